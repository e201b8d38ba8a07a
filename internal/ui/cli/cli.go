// Package cli says how commands meet people: errors with hints, and exit codes.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"mete.dev/mete/internal/model/fault"
)

// Exit codes, of every command but mete run.
const (
	OK          = 0
	Failed      = 1 // anything else
	Invalid     = 2 // the command line or a file is wrong
	NotFound    = 3 // what was asked for does not exist
	Denied      = 4 // a right is missing
	Unsupported = 5 // this machine or kernel cannot do it
	Unavailable = 6 // it may work later

	Interrupted = 130 // by a signal, before it was done
)

// Code is the exit code for an error.
func Code(err error) int {
	for _, c := range []struct {
		kind error
		code int
	}{
		{nil, OK},
		{context.Canceled, Interrupted},
		{fault.ErrInvalid, Invalid},
		{fault.ErrConflict, Invalid},
		{fault.ErrNotFound, NotFound},
		{fault.ErrDenied, Denied},
		{fault.ErrUnsupported, Unsupported},
		{fault.ErrUnavailable, Unavailable},
	} {
		if errors.Is(err, c.kind) {
			return c.code
		}
	}
	return Failed
}

// Explain writes an error to a person, with what to try next.
func Explain(w io.Writer, program string, err error) {
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	fmt.Fprintf(w, "%s: error: %v\n", program, err)
	if hint := fault.Hint(err); hint != "" {
		fmt.Fprintln(w, "hint:", hint)
	}
}

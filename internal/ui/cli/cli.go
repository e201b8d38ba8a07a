// Package cli defines how commands interact with people: errors with hints, and exit codes.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"mete.dev/mete/internal/model/fault"
)

// Exit codes of every command except mete run.
const (
	OK          = 0
	Failed      = 1 // anything else
	Invalid     = 2 // the command line or a file is wrong
	NotFound    = 3 // the requested thing does not exist
	Denied      = 4 // missing permission
	Unsupported = 5 // not possible on this machine or kernel
	Unavailable = 6 // it may work later

	Interrupted = 130 // by a signal, before it was done
)

// Code returns the exit code of an error.
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

// Explain prints an error with its hint.
func Explain(w io.Writer, program string, err error) {
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	fmt.Fprintf(w, "%s: error: %v\n", program, err)
	if hint := fault.Hint(err); hint != "" {
		fmt.Fprintln(w, "hint:", hint)
	}
}

// Package fault defines the few kinds of error that callers distinguish.
//
// Everything else about an error is for people: wrap one of these with the thing that it concerns
// ("memory.stat: ..."), and check with errors.Is.
package fault

import (
	"errors"
	"slices"
)

var (
	// ErrNotFound means that the named thing does not exist.
	ErrNotFound = errors.New("not found")
	// ErrInvalid means that the input is malformed; a retry does not help.
	ErrInvalid = errors.New("invalid")
	// ErrConflict means that the thing exists already or changed meanwhile.
	ErrConflict = errors.New("conflict")
	// ErrUnsupported means that this machine or kernel cannot do it.
	ErrUnsupported = errors.New("not supported")
	// ErrUnavailable means that a retry may succeed.
	ErrUnavailable = errors.New("unavailable")
	// ErrDenied means that the caller lacks a right.
	ErrDenied = errors.New("permission denied")
)

// Hinted is an error with advice for the user.
type Hinted struct {
	Err  error
	Hint string // one sentence: what to try next
}

func (h *Hinted) Error() string { return h.Err.Error() }
func (h *Hinted) Unwrap() error { return h.Err }

// WithHint attaches advice to err.
func WithHint(err error, hint string) error { return &Hinted{Err: err, Hint: hint} }

// Hint returns the hint attached to err, or "".
func Hint(err error) string {
	if h, ok := errors.AsType[*Hinted](err); ok {
		return h.Hint
	}
	return ""
}

// Attrs returns the attributes of a log line about err: others, then err and, if it has one, its hint.
func Attrs(err error, others ...any) []any {
	attrs := append(slices.Clip(others), "err", err)
	if hint := Hint(err); hint != "" {
		attrs = append(attrs, "hint", hint)
	}
	return attrs
}

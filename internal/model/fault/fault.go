// Package fault names the few kinds of error that callers tell apart.
//
// Everything else about an error is for people: wrap one of these with the
// thing that it concerns ("memory.stat: ..."), and let errors.Is find it.
package fault

import "errors"

var (
	// ErrNotFound says that the named thing does not exist, or no longer does.
	ErrNotFound = errors.New("not found")
	// ErrInvalid says that the input is malformed; trying again will not help.
	ErrInvalid = errors.New("invalid")
	// ErrConflict says that the thing exists already or changed meanwhile.
	ErrConflict = errors.New("conflict")
	// ErrUnsupported says that this machine or kernel cannot do it at all.
	ErrUnsupported = errors.New("not supported")
	// ErrUnavailable says that it may work later.
	ErrUnavailable = errors.New("unavailable")
	// ErrDenied says that the caller lacks a right.
	ErrDenied = errors.New("permission denied")
)

// Hinted is an error that knows what a person can do about it.
type Hinted struct {
	Err  error
	Hint string // one sentence: what to try next
}

func (h *Hinted) Error() string { return h.Err.Error() }
func (h *Hinted) Unwrap() error { return h.Err }

// WithHint attaches to err what a person can try next.
func WithHint(err error, hint string) error { return &Hinted{Err: err, Hint: hint} }

// Hint returns the hint attached to err, or "".
func Hint(err error) string {
	if h, ok := errors.AsType[*Hinted](err); ok {
		return h.Hint
	}
	return ""
}

package fault

import (
	"errors"
	"time"
)

// A RetryError is an error with a time after which to retry.
type RetryError struct {
	Err   error
	After time.Duration // from now; 0 if unknown
}

func (e *RetryError) Error() string { return e.Err.Error() }
func (e *RetryError) Unwrap() error { return e.Err }

// RetryAfter returns how long to wait before a retry, and whether err says so.
func RetryAfter(err error) (time.Duration, bool) {
	e, ok := errors.AsType[*RetryError](err)
	if !ok || e.After <= 0 {
		return 0, false
	}
	return e.After, true
}

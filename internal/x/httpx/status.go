package httpx

import (
	"errors"
	"net/http"
	"time"

	"mete.dev/mete/internal/model/fault"
)

// A Status is an error whose status code no kind of package fault implies. Compare it with
// errors.Is; [WithStatus] attaches it to another error.
type Status struct {
	Code int
	// Title is the title of the problem. If it is empty, the title is that of the error's kind.
	Title string
}

func (s Status) Error() string { return s.Title }

// Errors about a request.
var (
	ErrUnauthorized = Status{http.StatusUnauthorized, "not identified"}
	ErrMethod       = Status{http.StatusMethodNotAllowed, "method not allowed"}
	ErrTooSlow      = Status{http.StatusRequestTimeout, "request timeout"}
	ErrTooLarge     = Status{http.StatusRequestEntityTooLarge, "content too large"}
	ErrMediaType    = Status{http.StatusUnsupportedMediaType, "unsupported media type"}
	ErrTooMany      = Status{http.StatusTooManyRequests, "too many requests"}
)

// statusError is an error with a status, which its text does not show.
type statusError struct {
	error
	status Status
}

func (e *statusError) Unwrap() []error { return []error{e.status, e.error} }

// WithStatus returns err with a status: its text, hint and kinds stay.
func WithStatus(err error, s Status) error { return &statusError{err, s} }

// ProblemOf returns the problem by which a server answers err: that of fault.ProblemOf, with
// the code and title of err's [Status] if it has one.
func ProblemOf(err error) fault.Problem {
	p := fault.ProblemOf(err)
	s, ok := errors.AsType[Status](err)
	if !ok {
		return p
	}
	p.Status, p.Hint = s.Code, fault.Hint(err)
	if s.Title != "" {
		p.Title = s.Title
	}
	if p.Detail = err.Error(); p.Detail == p.Title {
		p.Detail = ""
	}
	return p
}

// Fail answers err with its problem, see [ProblemOf]. An answer with status 429 or 503 has a
// Retry-After if err is a fault.RetryError. An answer that the body is too large or came too
// slowly closes the connection, as the rest of the body is not read. Headers of a single
// server, such as WWW-Authenticate, are set before.
func Fail(w http.ResponseWriter, err error) {
	p := ProblemOf(err)
	switch p.Status {
	case http.StatusRequestTimeout, http.StatusRequestEntityTooLarge:
		w.Header().Set("Connection", "close")
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if wait, ok := fault.RetryAfter(err); ok {
			SetRetryAfter(w, wait)
		}
	}
	WriteProblem(w, p)
}

// RetryLater returns err with a time to wait before the request is sent again, if it is
// answered with status 503 and does not give that time itself.
func RetryLater(err error, wait time.Duration) error {
	if _, ok := fault.RetryAfter(err); ok || ProblemOf(err).Status != http.StatusServiceUnavailable {
		return err
	}
	return &fault.RetryError{Err: err, After: wait}
}

// Unidentified returns the error of a request whose client could not be identified because of
// err. A client that is known and lacks a right, or cannot be identified at present, receives err
// (fault.ErrDenied, fault.ErrUnavailable); any other client receives ErrUnauthorized.
func Unidentified(err error) error {
	if errors.Is(err, fault.ErrDenied) || errors.Is(err, fault.ErrUnavailable) {
		return err
	}
	return WithStatus(err, ErrUnauthorized)
}

package fault

import "errors"

// ProblemType is the media type of a Problem in JSON (RFC 9457).
const ProblemType = "application/problem+json"

// A Problem is an error in an HTTP response.
type Problem struct {
	Title  string `json:"title" doc:"the kind, for people"`
	Detail string `json:"detail,omitempty" doc:"this one, for people"`
	Status int    `json:"status" doc:"the status code"`
	Hint   string `json:"hint,omitempty" doc:"what to try next"`
}

// kinds are the kinds with their status codes. ErrDenied comes first: a wrapped error about a
// missing right must not reveal more by another status.
var kinds = [...]struct {
	err    error
	status int
}{
	{ErrDenied, 403}, {ErrInvalid, 400}, {ErrNotFound, 404}, {ErrConflict, 409}, {ErrUnsupported, 501}, {ErrUnavailable, 503},
}

// ProblemOf returns the problem for an error. An error without a kind is a 500 without its text,
// which is internal to the server.
func ProblemOf(err error) Problem {
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return Problem{Title: k.err.Error(), Detail: err.Error(), Status: k.status, Hint: Hint(err)}
		}
	}
	return Problem{Title: "internal error", Status: 500}
}

// Err returns the error of a received problem, of the same kind. A status without a kind maps to
// the nearest one: 401 is ErrDenied, 413 and 422 are ErrInvalid, others ErrUnavailable.
func (p Problem) Err() error {
	kind := ErrUnavailable
	switch p.Status {
	case 401:
		kind = ErrDenied
	case 413, 422:
		kind = ErrInvalid
	}
	for _, k := range kinds {
		if p.Status == k.status {
			kind = k.err
		}
	}
	text := p.Detail
	if text == "" {
		text = p.Title
	}
	if text == "" {
		text = kind.Error()
	}
	var err error = &received{text, kind}
	if p.Hint != "" {
		err = WithHint(err, p.Hint)
	}
	return err
}

// received is an error received as text, which includes its kind.
type received struct {
	text string
	kind error
}

func (e *received) Error() string { return e.text }
func (e *received) Unwrap() error { return e.kind }

package fault

import "errors"

// ProblemType is the media type of a Problem in JSON (RFC 9457).
const ProblemType = "application/problem+json"

// A Problem is an error as it travels over HTTP.
type Problem struct {
	Title  string `json:"title" doc:"the kind, for people"`
	Detail string `json:"detail,omitempty" doc:"this one, for people"`
	Status int    `json:"status" doc:"the status code"`
	Hint   string `json:"hint,omitempty" doc:"what to try next"`
}

// kinds are the kinds with their status codes. That of ErrDenied comes first,
// as an error about a missing right may tell more than it should by others.
var kinds = [...]struct {
	err    error
	status int
}{
	{ErrDenied, 403}, {ErrInvalid, 400}, {ErrNotFound, 404}, {ErrConflict, 409}, {ErrUnsupported, 501}, {ErrUnavailable, 503},
}

// ProblemOf makes an error ready to travel. One of no kind is a 500, whose text
// stays here: it is about the server's own matters.
func ProblemOf(err error) Problem {
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return Problem{Title: k.err.Error(), Detail: err.Error(), Status: k.status, Hint: Hint(err)}
		}
	}
	return Problem{Title: "internal error", Status: 500}
}

// Err makes an error of a problem that arrived, of the same kind as before. By
// status, what has no kind of its own belongs to the nearest one: 401 is
// ErrDenied, 413 ErrInvalid, and everything else may work later.
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

// received is an error that came as a text, which names its kind already.
type received struct {
	text string
	kind error
}

func (e *received) Error() string { return e.text }
func (e *received) Unwrap() error { return e.kind }

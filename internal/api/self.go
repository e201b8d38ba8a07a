package api

import (
	"context"
	"fmt"
	"net/http"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/pki/token"
)

// Jobs knows of jobs that ask for their own use.
type Jobs interface {
	// Identify says which job asks, by the token that it shows. An error of one who cannot
	// be known by it is an [UnauthenticatedError].
	Identify(r *http.Request) (token.Job, error)
	// Self is what that workload of that node used in all its life, and uses at present.
	Self(ctx context.Context, j token.Job) (*query.Self, error)
}

// An UnauthenticatedError is the error of one who shows nothing, or nothing any more, that says
// who asks.
type UnauthenticatedError struct{ Err error }

func (s *UnauthenticatedError) Error() string { return s.Err.Error() }

// Unwrap implements what package errors looks for.
func (s *UnauthenticatedError) Unwrap() error { return s.Err }

type selfParams struct {
	Form
	Conditional
}

func (d *description) registerSelf() {
	register[selfParams](d, endpoint{path: "/v1/self", id: "self", tag: "use", schema: "self", csv: true, forJobs: true, notFound: true, summary: "What the job that asks used itself",
		text: "For a job of mete run, by the token in its METE_SELF_TOKEN: its own use in all its life, up to complete_through, and what it uses at present. No other token is good here, and that one nowhere else."}, d.handler.self)
}

func (h *handler) self(ctx context.Context, a request) (*response, error) {
	s, err := h.jobSource.Self(ctx, a.job)
	if err != nil {
		return nil, err
	}
	return &response{json: func() []byte { return v1.SelfJSON(s) }, csv: func() []byte { return v1.SelfCSV(s) }}, nil
}

// identifyJob says which job asks.
func (h *handler) identifyJob(r *http.Request) (token.Job, error) {
	if h.jobSource == nil {
		return token.Job{}, fmt.Errorf("the use of who asks: %w", fault.ErrUnsupported)
	}
	return h.jobSource.Identify(r)
}

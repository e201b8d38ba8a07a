package api

import (
	"context"
	"fmt"
	"net/http"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/x/httpx"
)

// Jobs has the jobs that may ask for their own use.
type Jobs interface {
	// Identify returns the calling job, by its token. The error of a token that is not valid
	// is an [UnauthenticatedError].
	Identify(r *http.Request) (token.Job, error)
	// Self returns what a job used in all its life, and uses at present.
	Self(ctx context.Context, j token.Job) (*query.Self, error)
}

// errUnauthenticated is the status of the answer to a caller without a valid credential.
var errUnauthenticated = httpx.Status{Code: http.StatusUnauthorized, Title: "authentication required"}

// An UnauthenticatedError is the error of a caller without a valid credential.
type UnauthenticatedError struct{ Err error }

func (s *UnauthenticatedError) Error() string { return s.Err.Error() }

// Unwrap implements what package errors looks for.
func (s *UnauthenticatedError) Unwrap() error { return s.Err }

func (d *description) registerSelf() {
	register(d, endpoint{path: "/v1/self", id: "self", tag: "use", schema: "self", csv: true, forJobs: true, notFound: true, summary: "Usage of the calling job",
		text: "For a job of mete run, which authenticates with its METE_SELF_TOKEN: its own use in all its life, up to complete_through, and its present rates. No other token is valid here, and this one is valid nowhere else."}, d.handler.self)
}

func (h *handler) self(ctx context.Context, p *selfParams) (*response, error) {
	s, err := h.jobSource.Self(ctx, p.job)
	if err != nil {
		return nil, err
	}
	return &response{body: v1.SelfOf(s)}, nil
}

// identifyJob returns the calling job.
func (h *handler) identifyJob(r *http.Request) (token.Job, error) {
	if h.jobSource == nil {
		return token.Job{}, fmt.Errorf("a job's own use: %w", fault.ErrUnsupported)
	}
	return h.jobSource.Identify(r)
}

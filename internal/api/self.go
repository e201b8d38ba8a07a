package api

import (
	"context"
	"fmt"
	"net/http"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/x/httpx"
)

// Selves has the jobs and pods that may ask for their own use.
type Selves interface {
	// Identify returns the calling job or pod, by its token. The error of a token that is not valid
	// is an [UnauthenticatedError].
	Identify(r *http.Request) (SelfCaller, error)
	// Self returns what a job or pod used in all its life, and uses at present.
	Self(ctx context.Context, c SelfCaller) (*query.Self, error)
}

// A SelfCaller is the client that asks for its own use: a pod if Pod has a UID, else a job.
type SelfCaller struct {
	Job token.Job
	Pod pod.Ref
}

// group names who shares turns with the caller: the jobs of a node, or the pods of a namespace.
func (c *SelfCaller) group() string {
	if c.Pod.UID != "" {
		return c.Pod.Cluster + "/" + c.Pod.Namespace
	}
	return c.Job.Node
}

// errUnauthenticated is the status of the answer to a caller without a valid credential.
var errUnauthenticated = httpx.Status{Code: http.StatusUnauthorized, Title: "authentication required"}

// An UnauthenticatedError is the error of a caller without a valid credential.
type UnauthenticatedError struct{ Err error }

func (s *UnauthenticatedError) Error() string { return s.Err.Error() }

// Unwrap implements what package errors looks for.
func (s *UnauthenticatedError) Unwrap() error { return s.Err }

func (d *description) registerSelf() {
	register(d, endpoint{path: "/v1/self", id: "self", tag: "use", schema: "self", csv: true, forSelf: true, notFound: true, summary: "Usage of the calling job or pod",
		text: "For a job of mete run, which authenticates with its METE_SELF_TOKEN: its own use in all its life, up to complete_through, and its present rates. No other token is valid here, and this one is valid nowhere else. So does a pod of a Kubernetes cluster that the server watches, with a service-account token of the audience mete that is bound to it: its use is the sum of the pod and its containers."}, d.handler.self)
}

func (h *handler) self(ctx context.Context, p *selfParams) (*response, error) {
	s, err := h.selves.Self(ctx, p.self)
	if err != nil {
		return nil, err
	}
	return &response{body: v1.SelfOf(s)}, nil
}

// identifySelf returns the calling job or pod.
func (h *handler) identifySelf(r *http.Request) (SelfCaller, error) {
	if h.selves == nil {
		return SelfCaller{}, fmt.Errorf("a job's own use: %w", fault.ErrUnsupported)
	}
	return h.selves.Identify(r)
}

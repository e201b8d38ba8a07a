package ca

import (
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"
	"net/http"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/pki/token"
)

// jobSecret derives the secret for the keys of jobs from the authority's key, so that it is the
// same in all processes and need not be stored or restored.
func (p keyPair) jobSecret() []byte {
	key := must(p.key.Bytes()) // possible for a named curve
	return must(hkdf.Key(sha256.New, key, nil, "mete keys of jobs 1", sha256.Size))
}

// JobKey returns the key with which a node signs the tokens of its jobs.
func (a *Authority) JobKey(node string) token.JobKey { return token.JobKeyOf(a.jobs, node) }

// ForeignToken returns the bearer token of a request if it looks like one of another issuer, such as a Kubernetes
// cluster, and came alone and in a way in which a token may come. Otherwise the request is for IdentifyJob.
func (a *Authority) ForeignToken(r *http.Request) (text string, ok bool) {
	text, bears := bearerToken(r)
	return text, bears && token.IsForeign(text) && clientCertificate(r) == nil && (r.TLS != nil || a.mayBear(r))
}

// IdentifyJob identifies a job by its token. Other credentials, or none, are refused, as is an
// additional certificate. The error is fault.ErrDenied, fault.ErrUnavailable with a RetryAfter
// after too many wrong tokens, or the registry's.
func (a *Authority) IdentifyJob(r *http.Request) (token.Job, error) {
	text, bears := bearerToken(r)
	switch {
	case !bears && clientCertificate(r) == nil, r.TLS == nil && !a.mayBear(r):
		return token.Job{}, unidentifiedError{fault.WithHint(fmt.Errorf("no job token: %w", fault.ErrDenied), "mete run gives its job one in METE_SELF_TOKEN")}
	case clientCertificate(r) != nil:
		return token.Job{}, fmt.Errorf("a certificate does not identify a job: %w", fault.ErrDenied)
	}
	if !token.IsJob(text) {
		// Identify reports errors of other tokens; a valid one is refused too.
		if _, err := a.Identify(r); err != nil {
			return token.Job{}, err
		}
		return token.Job{}, fault.WithHint(fmt.Errorf("only jobs can query their own use: %w", fault.ErrDenied), "use /v1/usage for all workloads")
	}
	now := time.Now()
	wrong := func(why string) error {
		if wait := a.wrongTokens.take(remoteAddr(r), now); wait > 0 {
			return &fault.RetryError{Err: fmt.Errorf("too many wrong tokens: %w", fault.ErrUnavailable), After: wait}
		}
		return unidentifiedError{fault.WithHint(fmt.Errorf("%s: %w", why, fault.ErrDenied), "use the whole METE_SELF_TOKEN that mete run gave the job, with the server in METE_SELF_URL")}
	}
	v, err := token.ParseJob(text)
	if err != nil {
		return token.Job{}, wrong("not a job token")
	}
	if !v.IsSignedBy(a.JobKey(v.Node)) {
		return token.Job{}, wrong("the job token is not of this server")
	}
	if !now.Before(v.Ends) {
		return token.Job{}, unidentifiedError{fmt.Errorf("the job token expired at %s: %w", v.Ends.Format(time.RFC3339), fault.ErrDenied)}
	}
	return v.Job, a.CheckAllowed(r.Context(), v.Node)
}

// jobKeyFor returns the text of the key that a role gets with its certificate.
func (a *Authority) jobKeyFor(role registry.Role, node string) string {
	if role != registry.Agent {
		return ""
	}
	return a.JobKey(node).Reveal()
}

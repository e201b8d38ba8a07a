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

// jobSecret is what the keys of jobs are made of. It follows from the key of the
// authority, so that it is the same in all processes that have that, and there is
// nothing more to keep and to restore.
func (p keyPair) jobSecret() ([]byte, error) {
	key, err := p.key.Bytes()
	if err != nil {
		return nil, err
	}
	return hkdf.Key(sha256.New, key, nil, "mete keys of jobs 1", sha256.Size)
}

// JobKey is the key by which a node makes its jobs' tokens.
func (a *Authority) JobKey(node string) token.JobKey { return token.JobKeyOf(a.jobs, node) }

// IdentifyJob says which job asks, by its token. One who shows something else, or
// nothing, is refused, as is one who shows a certificate too. The error is
// fault.ErrDenied, or fault.ErrUnavailable with a RetryAfter for who shows too many
// wrong tokens, or the registry's.
func (a *Authority) IdentifyJob(r *http.Request) (token.Job, error) {
	text, bears := bearerToken(r)
	switch {
	case !bears && clientCertificate(r) == nil, r.TLS == nil && !a.isLocal(r):
		return token.Job{}, unidentifiedError{fault.WithHint(fmt.Errorf("no token of a job: %w", fault.ErrDenied), "mete run gives its job one in METE_SELF_TOKEN")}
	case clientCertificate(r) != nil:
		return token.Job{}, fmt.Errorf("a certificate is none of a job: %w", fault.ErrDenied)
	}
	if !token.IsJob(text) {
		// Whose it is, Identify says; here it counts for nothing either way.
		if _, err := a.Identify(r); err != nil {
			return token.Job{}, err
		}
		return token.Job{}, fault.WithHint(fmt.Errorf("only jobs have a use of their own: %w", fault.ErrDenied), "ask at /v1/usage, which tells of all")
	}
	now := time.Now()
	wrong := func(why string) error {
		if wait := a.wrongTokens.take(remoteAddr(r), now); wait > 0 {
			return &fault.RetryError{Err: fmt.Errorf("too many wrong tokens: %w", fault.ErrUnavailable), After: wait}
		}
		return unidentifiedError{fault.WithHint(fmt.Errorf("%s: %w", why, fault.ErrDenied), "show what mete run gave the job in METE_SELF_TOKEN, whole, to the server in METE_SELF_URL")}
	}
	v, err := token.ParseJob(text)
	if err != nil {
		return token.Job{}, wrong("token is none of a job")
	}
	if !v.IsSignedBy(a.JobKey(v.Node)) {
		return token.Job{}, wrong("token of a job is none of this server's")
	}
	if !now.Before(v.Ends) {
		return token.Job{}, unidentifiedError{fmt.Errorf("token of a job ended at %s: %w", v.Ends.Format(time.RFC3339), fault.ErrDenied)}
	}
	return v.Job, a.CheckAllowed(r.Context(), v.Node)
}

// jobKeyFor is the text of the key that a role gets along with its certificate.
func (a *Authority) jobKeyFor(role registry.Role, node string) string {
	if role != registry.Agent {
		return ""
	}
	return a.JobKey(node).Reveal()
}

package ca

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/x/httpx"
)

// maxClaim is how long a claim may be, in bytes; one has some 1,000.
const maxClaim = 64 << 10

// Handler answers POST /v1/enroll and POST /v1/renew.
func (a *Authority) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/enroll", a.handle(a.serveEnroll))
	mux.HandleFunc("POST /v1/renew", a.handle(a.serveRenew))
	return mux
}

func (a *Authority) handle(f func(*http.Request, token.Claim) (token.Grant, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, err := readClaim(w, r)
		var g token.Grant
		if err == nil {
			g, err = f(r, c)
		}
		w.Header().Set("Cache-Control", "no-store")
		if err != nil {
			a.writeProblem(w, r, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(g) // who has gone asks again
	}
}

func (a *Authority) serveEnroll(r *http.Request, c token.Claim) (token.Grant, error) {
	if r.Header.Get("Authorization") != "" {
		return token.Grant{}, fmt.Errorf("a token to enroll by stands in the body: %w", fault.ErrInvalid)
	}
	if clientCertificate(r) != nil {
		peer, err := a.Identify(r)
		if err != nil {
			return token.Grant{}, err
		}
		return a.enroll(r.Context(), c, &peer, false, remoteAddr(r))
	}
	if r.TLS == nil && !a.isLocal(r) {
		return token.Grant{}, fault.WithHint(fmt.Errorf("enrollment without TLS: %w", fault.ErrDenied), "use https")
	}
	return a.enroll(r.Context(), c, nil, r.TLS == nil, remoteAddr(r))
}

func (a *Authority) serveRenew(r *http.Request, c token.Claim) (token.Grant, error) {
	if clientCertificate(r) == nil {
		return token.Grant{}, unidentifiedError{fmt.Errorf("renewal without a certificate: %w", fault.ErrDenied)}
	}
	peer, err := a.Identify(r)
	if err != nil {
		return token.Grant{}, err
	}
	return a.renewCertificate(r.Context(), c, peer)
}

func readClaim(w http.ResponseWriter, r *http.Request) (c token.Claim, err error) {
	// A page in a browser cannot send this type to another's server unasked.
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
		return c, fmt.Errorf("content type %q is not application/json: %w", r.Header.Get("Content-Type"), fault.ErrInvalid)
	}
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxClaim))
	if err = d.Decode(&c); err == nil {
		if _, err = d.Token(); err == io.EOF {
			return c, nil
		} else if err == nil {
			err = errors.New("more than one value")
		}
	}
	return c, fmt.Errorf("body: %w: %w", err, fault.ErrInvalid)
}

func (a *Authority) writeProblem(w http.ResponseWriter, r *http.Request, err error) {
	p := fault.ProblemOf(err)
	wait, isLimited := fault.RetryAfter(err)
	_, tooLong := errors.AsType[*http.MaxBytesError](err)
	switch {
	case isLimited:
		p.Status = http.StatusTooManyRequests
		httpx.SetRetryAfter(w, wait)
	case p.Status == http.StatusServiceUnavailable:
		httpx.SetRetryAfter(w, 5*time.Second)
	case tooLong:
		p.Status = http.StatusRequestEntityTooLarge
	case IsUnidentified(err):
		p.Status = http.StatusUnauthorized
	case p.Status == http.StatusInternalServerError && r.Context().Err() == nil: // else who asked has gone
		a.log.Error("request failed", "path", r.URL.Path, "err", err)
	}
	w.Header().Set("Content-Type", fault.ProblemType)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // who has gone asks again
}

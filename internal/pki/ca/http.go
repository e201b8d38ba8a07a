package ca

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/x/httpx"
)

const (
	maxClaim   = 64 << 10        // bytes; a claim has about 1,000
	retryDelay = 5 * time.Second // of a request that may succeed later
)

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
		if err != nil {
			a.writeProblem(w, r, err)
			return
		}
		httpx.WriteJSON(w, http.StatusOK, g)
	}
}

func (a *Authority) serveEnroll(r *http.Request, c token.Claim) (token.Grant, error) {
	if r.Header.Get("Authorization") != "" {
		return token.Grant{}, fmt.Errorf("a token to enroll by belongs in the body: %w", fault.ErrInvalid)
	}
	if clientCertificate(r) != nil {
		peer, err := a.Identify(r)
		if err != nil {
			return token.Grant{}, err
		}
		return a.enroll(r.Context(), c, &peer, false, remoteAddr(r))
	}
	if r.TLS == nil && !isLocal(r) {
		hint := "use https"
		if a.cfg.Local {
			hint = "run the agent as the user that runs the server, with the same METE_STATE if that is set; other users need a server with TLS"
		}
		return token.Grant{}, fault.WithHint(fmt.Errorf("enrollment without TLS, and not as the server's user: %w", fault.ErrDenied), hint)
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
	// A browser lets a page send this type to another site only if that site allows it.
	if httpx.MediaType(r.Header) != "application/json" {
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

// Statuses of errors that keep the title of their kind.
var (
	tooLarge     = httpx.Status{Code: http.StatusRequestEntityTooLarge}
	tooMany      = httpx.Status{Code: http.StatusTooManyRequests}
	unauthorized = httpx.Status{Code: http.StatusUnauthorized}
)

// writeProblem answers an error, and logs one of no kind unless the client has gone away.
func (a *Authority) writeProblem(w http.ResponseWriter, r *http.Request, err error) {
	_, isLimited := fault.RetryAfter(err)
	_, isTooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case isLimited:
		err = httpx.WithStatus(err, tooMany)
	case isTooLarge:
		err = httpx.WithStatus(err, tooLarge)
	case IsUnidentified(err):
		err = httpx.WithStatus(err, unauthorized)
	}
	if httpx.ProblemOf(err).Status == http.StatusInternalServerError && r.Context().Err() == nil {
		a.log.Error("request failed", "path", r.URL.Path, "err", err)
	}
	httpx.Fail(w, httpx.RetryLater(err, retryDelay))
}

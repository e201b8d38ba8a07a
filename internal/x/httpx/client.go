package httpx

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"mete.dev/mete/internal/model/fault"
)

// NoRedirect is a CheckRedirect of an http.Client that follows no redirect: the redirect is
// the answer.
func NoRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// An Answer is a response whose body was read.
type Answer struct {
	*http.Response
	Body []byte // in place of the response's Body, which is closed
}

// Do sends a request and reads the answer, of at most limit bytes, whatever its status code.
// The error does not name the URL. It is fault.ErrDenied if the server does not accept this
// client's certificate, or if the transport says so; otherwise it is fault.ErrUnavailable.
func Do(c *http.Client, r *http.Request, limit int64) (*Answer, error) {
	resp, err := c.Do(r)
	if err != nil {
		return nil, connectionError(err)
	}
	defer func() { _ = resp.Body.Close() }() // it was only read
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil:
		return nil, connectionError(err)
	case int64(len(body)) > limit:
		return nil, fmt.Errorf("answer of more than %d bytes: %w", limit, fault.ErrUnavailable)
	}
	return &Answer{resp, body}, nil
}

// connectionError gives the error of a connection its kind.
func connectionError(err error) error {
	err = WithoutURL(err)
	if errors.Is(err, fault.ErrDenied) || errors.Is(err, fault.ErrUnavailable) {
		return err
	}
	// Package tls exports no type for an alert that the peer sends. One about a certificate is
	// about this client's.
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "remote error" && strings.Contains(err.Error(), "certificate") {
		return fmt.Errorf("%w: %w", err, fault.ErrDenied)
	}
	return fmt.Errorf("%w: %w", err, fault.ErrUnavailable)
}

// WithoutURL returns the cause of an error of an http.Client, which names method and URL. The
// URL may hold a secret.
func WithoutURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// Problem returns the problem that an answer holds. own is true if a mete server wrote it: it
// is a problem+json that names the status code of the answer. Otherwise the problem says no
// more than the status code.
func (a *Answer) Problem() (p fault.Problem, own bool) {
	own = MediaType(a.Header) == fault.ProblemType && json.Unmarshal(a.Body, &p) == nil && p.Status == a.StatusCode
	if !own {
		p = fault.Problem{Status: a.StatusCode, Title: "status " + a.Status}
	}
	return p, own
}

// Refusal returns the error of an answer that refuses data. It is fault.ErrDenied, or
// fault.ErrInvalid if a mete server says so: the 400 or 413 of a proxy is a matter of its
// settings, and no reason to drop data. Any other answer is a fault.RetryError of
// fault.ErrUnavailable, with the answer's Retry-After, but at most maxWait.
func (a *Answer) Refusal(maxWait time.Duration) error {
	p, own := a.Problem()
	err := p.Err()
	if errors.Is(err, fault.ErrDenied) || own && errors.Is(err, fault.ErrInvalid) {
		return err
	}
	p.Status = http.StatusServiceUnavailable
	return &fault.RetryError{Err: p.Err(), After: min(RetryAfter(a.Header, time.Now()), maxWait)}
}

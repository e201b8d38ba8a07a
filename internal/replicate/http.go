package replicate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/x/httpx"
)

// maxReplySize is how much of a reply is read: a mark is some 200 bytes.
const maxReplySize = 64 << 10

// maxRetryAfter is how long a server may tell another one to stay away.
const maxRetryAfter = 15 * time.Minute

// How long a request may take.
const requestTimeout = 2 * time.Minute

var (
	errMarkMoved = fmt.Errorf("the mark has moved: %w", fault.ErrConflict)
	errTooLarge  = fmt.Errorf("the page is too large: %w", fault.ErrInvalid)
)

// upstreamClient is the server above.
type upstreamClient struct {
	base   string
	client *http.Client
}

func (r *upstreamClient) mark(ctx context.Context) (replica.Mark, error) {
	return r.request(ctx, http.MethodGet, "/v1/states/mark", nil)
}

// post sends a page. Where the mark is elsewhere the error is errMarkMoved, and the
// mark is where.
func (r *upstreamClient) post(ctx context.Context, sent []byte) (replica.Mark, error) {
	return r.request(ctx, http.MethodPost, "/v1/states", sent)
}

func (r *upstreamClient) request(ctx context.Context, method, path string, body []byte) (m replica.Mark, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, method, r.base+path, bytes.NewReader(body))
	if err != nil {
		return m, err
	}
	if method == http.MethodPost {
		q.Header.Set("Content-Type", wire.MediaTypeStates)
	}
	a, err := r.client.Do(q)
	if err != nil {
		return m, r.connectionError(err)
	}
	defer func() { _ = a.Body.Close() }() // it was only read
	b, err := io.ReadAll(io.LimitReader(a.Body, maxReplySize))
	if err != nil {
		return m, r.connectionError(err)
	}
	switch a.StatusCode {
	case http.StatusOK, http.StatusConflict:
		if err := json.Unmarshal(b, &m); err != nil || mediaTypeOf(a) != "application/json" {
			return m, fmt.Errorf("%s: status %s without a mark: %w", r.base, a.Status, fault.ErrUnavailable)
		}
		if a.StatusCode == http.StatusConflict {
			return m, errMarkMoved
		}
		return m, nil
	}
	return m, r.parseProblem(a, b)
}

func (r *upstreamClient) connectionError(err error) error {
	// A connection that leads nowhere would be taken again by the next request.
	r.client.CloseIdleConnections()
	if errors.Is(err, fault.ErrDenied) {
		return err
	}
	return fmt.Errorf("%w: %w", fault.ErrUnavailable, err)
}

// parseProblem reads an error. That a page is invalid is believed only where a server
// of mete says it, not one in between.
func (r *upstreamClient) parseProblem(a *http.Response, body []byte) error {
	p := fault.Problem{Status: a.StatusCode}
	own := mediaTypeOf(a) == fault.ProblemType && json.Unmarshal(body, &p) == nil && p.Status == a.StatusCode
	if !own {
		p = fault.Problem{Status: a.StatusCode, Title: "status " + a.Status}
	}
	err := fmt.Errorf("%s: %w", r.base, p.Err())
	switch {
	case a.StatusCode == http.StatusRequestEntityTooLarge:
		return errTooLarge
	case errors.Is(err, fault.ErrDenied):
		r.client.CloseIdleConnections() // another certificate is shown only on another connection
		return err
	case own && errors.Is(err, fault.ErrInvalid):
		return err
	}
	p.Status = http.StatusServiceUnavailable
	return &fault.RetryError{Err: fmt.Errorf("%s: %w", r.base, p.Err()), After: min(httpx.RetryAfter(a.Header, time.Now()), maxRetryAfter)}
}

func mediaTypeOf(a *http.Response) string {
	kind, _, err := mime.ParseMediaType(a.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return kind
}

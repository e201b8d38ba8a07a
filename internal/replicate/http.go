package replicate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/x/httpx"
)

const (
	maxReplySize   = 64 << 10 // bytes; a mark has about 200
	requestTimeout = 2 * time.Minute
	// maxRetryAfter limits the time that a server can ask another one to wait.
	maxRetryAfter = 15 * time.Minute
)

var (
	errMarkMoved = fmt.Errorf("the mark has moved: %w", fault.ErrConflict)
	errTooLarge  = fmt.Errorf("the page is too large: %w", fault.ErrInvalid)
)

// upstreamClient sends requests to the server above.
type upstreamClient struct {
	base string // URL
	http *http.Client
}

// mark asks for the mark of this server.
func (c *upstreamClient) mark(ctx context.Context) (replica.Mark, error) {
	return c.request(ctx, http.MethodGet, "/v1/states/mark", nil)
}

// post sends a page, and returns the mark after it. If the page does not begin at the mark, the
// error is errMarkMoved, and the mark is the one at which it has to begin.
func (c *upstreamClient) post(ctx context.Context, page []byte) (replica.Mark, error) {
	return c.request(ctx, http.MethodPost, "/v1/states", page)
}

func (c *upstreamClient) request(ctx context.Context, method, path string, body []byte) (m replica.Mark, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return m, err
	}
	if method == http.MethodPost {
		r.Header.Set("Content-Type", wire.MediaTypeStates)
	}
	a, err := httpx.Do(c.http, r, maxReplySize)
	if err != nil {
		// The next request would use a connection that leads nowhere again.
		c.http.CloseIdleConnections()
		return m, fmt.Errorf("%s: %w", c.base, err)
	}
	switch a.StatusCode {
	case http.StatusOK, http.StatusConflict:
		if err := json.Unmarshal(a.Body, &m); err != nil || httpx.MediaType(a.Header) != "application/json" {
			return m, fmt.Errorf("%s: status %s without a mark: %w", c.base, a.Status, fault.ErrUnavailable)
		}
		if a.StatusCode == http.StatusConflict {
			return m, errMarkMoved
		}
		return m, nil
	case http.StatusRequestEntityTooLarge: // of the server or a proxy; a smaller page may pass
		return m, errTooLarge
	}
	err = a.Refusal(maxRetryAfter)
	if errors.Is(err, fault.ErrDenied) {
		c.http.CloseIdleConnections() // a new certificate takes a new connection
	}
	return m, fmt.Errorf("%s: %w", c.base, err)
}

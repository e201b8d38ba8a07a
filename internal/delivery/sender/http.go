package sender

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/httpx"
)

const (
	// maxReplySize is how much of a reply is read: a hundred thousand names.
	maxReplySize = 1 << 20
	// maxRetryAfter is how long a server may tell an agent to stay away: a mistyped
	// Retry-After must not stop it for a year.
	maxRetryAfter = 15 * time.Minute
)

// HTTP is a Server at a URL.
type HTTP struct {
	// Spool says how full the spool is, in bytes; nil says nothing of it.
	Spool func() (bytes, limit int64)

	batchURL, lossURL string
	client            *http.Client
	version           string
}

// NewHTTP returns the server at a base URL, such as "https://mete.example:9443".
// The client brings the connections and the identity; redirects are not
// followed, whatever it says of them. version is what the server hears of this
// program.
func NewHTTP(base *url.URL, client *http.Client, version string) *HTTP {
	c := *client
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &HTTP{
		batchURL: base.JoinPath("v1", "batches").String(),
		lossURL:  base.JoinPath("v1", "lost").String(),
		client:   &c, version: version,
	}
}

// Offer implements Server.
func (h *HTTP) Offer(ctx context.Context, c batch.Clock, sent []byte) (batch.Reply, error) {
	header := http.Header{
		wire.HeaderBoot:     {c.Boot},
		wire.HeaderBoottime: {strconv.FormatInt(c.Boottime, 10)},
		wire.HeaderWall:     {strconv.FormatInt(c.Wall, 10)},
	}
	if h.Spool != nil {
		header.Set(wire.HeaderSpool, wire.FormatSpool(h.Spool()))
	}
	return h.post(ctx, h.batchURL, wire.MediaType, sent, header)
}

// Reads implements Server. A server states it in each answer. It is asked by an
// empty batch, which goes the way that batches go, and which every server refuses.
func (h *HTTP) Reads(ctx context.Context) (wire.Format, error) {
	_, answer, err := h.exchange(ctx, h.batchURL, wire.MediaType, nil, http.Header{})
	if f, ok := wire.ParseFormat(answer.Get(wire.HeaderReads)); ok {
		return f, nil
	}
	if errors.Is(err, fault.ErrInvalid) { // a server from before it was stated
		return wire.BaseFormat(), nil
	}
	if err == nil {
		err = fmt.Errorf("an empty batch is not refused: %w", fault.ErrUnavailable)
	}
	return wire.Format{}, err
}

// Lost implements Server.
func (h *HTTP) Lost(ctx context.Context, l batch.Loss) (batch.Reply, error) {
	b, err := json.Marshal(l)
	if err != nil {
		return batch.Reply{}, err
	}
	return h.post(ctx, h.lossURL, "application/json", b, http.Header{})
}

func (h *HTTP) post(ctx context.Context, to, kind string, body []byte, header http.Header) (batch.Reply, error) {
	r, _, err := h.exchange(ctx, to, kind, body, header)
	return r, err
}

// exchange posts a body, and returns the answer's header too, nil where there was no
// answer.
func (h *HTTP) exchange(ctx context.Context, to, kind string, body []byte, header http.Header) (batch.Reply, http.Header, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return batch.Reply{}, nil, err
	}
	q.Header = header
	q.Header.Set("Content-Type", kind)
	q.Header.Set("Accept", "application/json, "+fault.ProblemType)
	q.Header.Set(wire.HeaderVersion, h.version)
	r, err := h.client.Do(q)
	if err != nil {
		// A connection that leads nowhere would be taken again by the next
		// request, until the kernel gives it up after a quarter of an hour.
		h.client.CloseIdleConnections()
		return batch.Reply{}, nil, connectionError(err)
	}
	defer func() { _ = r.Body.Close() }() // it was only read
	b, err := io.ReadAll(io.LimitReader(r.Body, maxReplySize+1))
	switch {
	case err != nil:
		h.client.CloseIdleConnections()
		return batch.Reply{}, nil, connectionError(err)
	case len(b) > maxReplySize:
		return batch.Reply{}, nil, fmt.Errorf("reply of more than %d bytes: %w", maxReplySize, fault.ErrUnavailable)
	case r.StatusCode == http.StatusOK || r.StatusCode == http.StatusConflict:
		p, err := parseReply(r, b)
		return p, r.Header, err
	}
	err = parseProblem(r, b)
	if errors.Is(err, fault.ErrDenied) {
		// Who this is was settled when the connection was made: another
		// certificate is shown only on another one.
		h.client.CloseIdleConnections()
	}
	return batch.Reply{}, r.Header, err
}

// connectionError gives an error of the connection its kind.
func connectionError(err error) error {
	// The URL is known, and the method says nothing.
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	// How TLS tells that the other side will not have our certificate; its
	// alert has no exported type.
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "remote error" && strings.Contains(err.Error(), "certificate") {
		return fmt.Errorf("%w: %w", fault.ErrDenied, err)
	}
	return fmt.Errorf("%w: %w", fault.ErrUnavailable, err)
}

// parseReply reads a verdict. What is not one comes from something in between, and
// is no server's word.
func parseReply(r *http.Response, body []byte) (batch.Reply, error) {
	var p batch.Reply
	err := json.Unmarshal(body, &p)
	refused := p.Verdict != batch.Accepted && p.Verdict != batch.Duplicate
	if err != nil || p.Verdict == 0 || refused != (r.StatusCode == http.StatusConflict) {
		return batch.Reply{}, fmt.Errorf("status %s without a verdict: %w", r.Status, fault.ErrUnavailable)
	}
	return p, nil
}

// parseProblem reads an error. That a batch is invalid is believed only where a
// server of mete says it: a proxy's 400 or 413 is a matter of its settings, and
// no reason to give up data.
func parseProblem(r *http.Response, body []byte) error {
	p := fault.Problem{Status: r.StatusCode}
	own := false
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err == nil && kind == fault.ProblemType {
		own = json.Unmarshal(body, &p) == nil && p.Status == r.StatusCode
	}
	if !own {
		p = fault.Problem{Status: r.StatusCode, Title: "status " + r.Status}
	}
	err := p.Err()
	if errors.Is(err, fault.ErrDenied) || own && errors.Is(err, fault.ErrInvalid) {
		return err
	}
	p.Status = http.StatusServiceUnavailable
	return &fault.RetryError{Err: p.Err(), After: min(httpx.RetryAfter(r.Header, time.Now()), maxRetryAfter)}
}

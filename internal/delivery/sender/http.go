package sender

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/httpx"
)

const (
	maxReplySize = 1 << 20 // bytes; about fifty thousand names
	// maxRetryAfter limits the time that a server can ask an agent to wait: a mistyped
	// Retry-After must not stop it for a year.
	maxRetryAfter = 15 * time.Minute
)

// HTTP is a Server over HTTP.
type HTTP struct {
	// Spool returns the size and the limit of the spool in bytes, for the header of each
	// offer. It may be nil.
	Spool func() (bytes, limit int64)

	batchURL, lossURL string
	client            *http.Client
	version           string
}

// NewHTTP returns the server at a base URL, such as "https://mete.example:9443". The client
// holds the certificate of this machine; HTTP follows no redirects, whatever its CheckRedirect.
// Each request states version, the version of this program.
func NewHTTP(base *url.URL, client *http.Client, version string) *HTTP {
	c := *client
	c.CheckRedirect = httpx.NoRedirect
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
	if boots := wire.FormatBoots(c.Earlier); boots != "" {
		header.Set(wire.HeaderBoots, boots)
	}
	if h.Spool != nil {
		header.Set(wire.HeaderSpool, wire.FormatSpool(h.Spool()))
	}
	return h.post(ctx, h.batchURL, wire.MediaType, sent, header)
}

// Reads implements Server. It asks with an empty batch, which every server refuses; the
// answer's header states the format.
func (h *HTTP) Reads(ctx context.Context) (wire.Format, error) {
	_, answer, err := h.exchange(ctx, h.batchURL, wire.MediaType, nil, http.Header{})
	if f, ok := wire.ParseFormat(answer.Get(wire.HeaderReads)); ok {
		return f, nil
	}
	if errors.Is(err, fault.ErrInvalid) { // the oldest servers have no such header
		return wire.BaseFormat(), nil
	}
	if err == nil {
		err = fmt.Errorf("server accepted an empty batch: %w", fault.ErrUnavailable)
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

func (h *HTTP) post(ctx context.Context, to, mediaType string, body []byte, header http.Header) (batch.Reply, error) {
	reply, _, err := h.exchange(ctx, to, mediaType, body, header)
	return reply, err
}

// exchange posts a body. The returned header is nil if there is no answer.
func (h *HTTP) exchange(ctx context.Context, to, mediaType string, body []byte, header http.Header) (batch.Reply, http.Header, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return batch.Reply{}, nil, err
	}
	r.Header = header
	r.Header.Set("Content-Type", mediaType)
	r.Header.Set("Accept", "application/json, "+fault.ProblemType)
	r.Header.Set(wire.HeaderVersion, h.version)
	a, err := httpx.Do(h.client, r, maxReplySize)
	if err != nil {
		// Otherwise the next requests reuse a dead connection until the kernel closes it,
		// after about 15 minutes.
		h.client.CloseIdleConnections()
		return batch.Reply{}, nil, err
	}
	if a.StatusCode == http.StatusOK || a.StatusCode == http.StatusConflict {
		reply, err := parseReply(a)
		return reply, a.Header, err
	}
	err = a.Refusal(maxRetryAfter)
	if errors.Is(err, fault.ErrDenied) {
		// TLS presents the certificate once per connection: a renewed one needs a new connection.
		h.client.CloseIdleConnections()
	}
	return batch.Reply{}, a.Header, err
}

// parseReply parses a verdict. An answer without one comes from a proxy, not a mete server.
func parseReply(a *httpx.Answer) (batch.Reply, error) {
	var reply batch.Reply
	err := json.Unmarshal(a.Body, &reply)
	refused := reply.Verdict != batch.Accepted && reply.Verdict != batch.Duplicate
	if err != nil || reply.Verdict == 0 || refused != (a.StatusCode == http.StatusConflict) {
		return batch.Reply{}, fmt.Errorf("status %s without a verdict: %w", a.Status, fault.ErrUnavailable)
	}
	return reply, nil
}

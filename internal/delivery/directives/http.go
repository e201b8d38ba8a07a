package directives

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"mete.dev/mete/internal/model/directive"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/httpx"
)

// HeaderRejected names the sections that an agent cannot follow, with commas between them.
const HeaderRejected = "Mete-Rejected"

// maxRetryAfter limits the time that a server can ask an agent to wait.
const maxRetryAfter = 15 * time.Minute

// HTTP is a Server over HTTP.
type HTTP struct {
	base   *url.URL
	client *http.Client
}

// NewHTTP returns the server at a base URL. The client holds the certificate of this machine; HTTP follows no redirects.
func NewHTTP(base *url.URL, client *http.Client) *HTTP {
	c := *client
	c.CheckRedirect = httpx.NoRedirect
	return &HTTP{base.JoinPath("v1", "directives"), &c}
}

// Directives implements Server.
func (h *HTTP) Directives(ctx context.Context, tag string, wait time.Duration, rejected []string) (l directive.List, newTag string, changed bool, err error) {
	to := *h.base
	to.RawQuery = url.Values{"wait": {strconv.Itoa(int(wait / time.Second))}}.Encode()
	a, err := h.get(ctx, to.String(), directive.MaxList, func(header http.Header) {
		if tag != "" {
			header.Set("If-None-Match", tag)
		}
		if len(rejected) > 0 {
			header.Set(HeaderRejected, strings.Join(rejected, ","))
		}
	})
	switch {
	case err != nil:
		return l, "", false, err
	case a.StatusCode == http.StatusNotModified && tag != "":
		return l, tag, false, nil
	case a.StatusCode == http.StatusNotFound:
		return l, "", false, fmt.Errorf("the server has no directives: %w", fault.ErrUnsupported)
	case a.StatusCode != http.StatusOK:
		return l, "", false, a.Refusal(maxRetryAfter)
	}
	if l, err = directive.ParseList(a.Body); err != nil {
		return l, "", false, fmt.Errorf("%w: %w", err, fault.ErrUnavailable)
	}
	return l, a.Header.Get("ETag"), true, nil
}

// Section implements Server.
func (h *HTTP) Section(ctx context.Context, hash string) ([]byte, error) {
	a, err := h.get(ctx, h.base.JoinPath(hash).String(), directive.MaxContent, func(http.Header) {})
	switch {
	case err != nil:
		return nil, err
	case a.StatusCode != http.StatusOK:
		return nil, a.Refusal(maxRetryAfter)
	}
	return a.Body, nil
}

func (h *HTTP) get(ctx context.Context, url string, limit int64, set func(http.Header)) (*httpx.Answer, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/json, "+fault.ProblemType)
	set(r.Header)
	a, err := httpx.Do(h.client, r, limit)
	if err != nil {
		h.client.CloseIdleConnections() // a dead connection would be used again
	}
	return a, err
}

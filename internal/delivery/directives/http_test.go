package directives

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/directive"
	"mete.dev/mete/internal/model/fault"
)

// TestHTTP checks the requests, and what each answer of a server or of a proxy means.
func TestHTTP(t *testing.T) {
	var status int
	var header http.Header
	var body string
	var got *http.Request
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		maps.Copy(w.Header(), header)
		w.WriteHeader(status)
		if status != http.StatusNotModified {
			_, _ = w.Write([]byte(body))
		}
	}))
	defer srv.Close()
	base, err := url.Parse(srv.URL + "/below")
	if err != nil {
		t.Fatal(err)
	}
	h := NewHTTP(base, srv.Client())
	one := fmt.Sprintf(`{"sections":[{"name":"a","hash":%q,"epoch":1,"life_s":60}]}`, directive.HashOf(nil))
	problem := http.Header{"Content-Type": {fault.ProblemType}}
	for _, c := range []struct {
		name     string
		tag      string
		rejected []string
		status   int
		header   http.Header
		body     string
		changed  bool
		now      string
		err      error
		again    time.Duration
	}{
		{name: "a list", status: 200, header: http.Header{"Etag": {`"x"`}}, body: one, changed: true, now: `"x"`},
		{name: "no change", tag: `"x"`, rejected: []string{"a", "b"}, status: 304, now: `"x"`},
		{name: "no change, one refused", tag: `"x"`, rejected: []string{"a"}, status: 304, now: `"x"`},
		{name: "no change, of nothing", status: 304, err: fault.ErrUnavailable},
		{name: "an older server", status: 404, header: problem, body: `{"status":404,"title":"not found"}`, err: fault.ErrUnsupported},
		{name: "no list", status: 200, body: "<html>", err: fault.ErrUnavailable},
		{name: "too long", status: 200, body: one + strings.Repeat(" ", directive.MaxList), err: fault.ErrUnavailable},
		{name: "as long as it may be", status: 200, header: http.Header{"Etag": {`"y"`}}, body: one + strings.Repeat(" ", directive.MaxList-len(one)), changed: true, now: `"y"`},
		{name: "denied", status: 403, header: problem, body: `{"status":403,"title":"denied"}`, err: fault.ErrDenied},
		{name: "a redirect", status: 302, header: http.Header{"Location": {"/else"}}, err: fault.ErrUnavailable},
		{name: "busy", status: 429, header: http.Header{"Retry-After": {"7"}}, err: fault.ErrUnavailable, again: 7 * time.Second},
		{name: "busy for long", status: 429, header: http.Header{"Retry-After": {"3600"}}, err: fault.ErrUnavailable, again: 15 * time.Minute},
		{name: "invalid for a proxy", status: 400, err: fault.ErrUnavailable},
	} {
		status, header, body = c.status, c.header, c.body
		l, now, changed, err := h.Directives(t.Context(), c.tag, 90*time.Second, c.rejected)
		if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) || changed != c.changed || now != c.now || changed != (len(l.Sections) == 1) {
			t.Errorf("%s: %+v, %q, %t, %v", c.name, l, now, changed, err)
		}
		if after, _ := fault.RetryAfter(err); after != c.again {
			t.Errorf("%s: again after %v", c.name, after)
		}
		if got.URL.String() != "/below/v1/directives?wait=90" || strings.Join(got.Header["If-None-Match"], " ") != c.tag || got.Header.Get("Accept") != "application/json, "+fault.ProblemType {
			t.Errorf("%s: %s %v", c.name, got.URL, got.Header)
		}
		if said := got.Header.Values(HeaderRejected); len(said) > 0 != (len(c.rejected) > 0) || strings.Join(said, " ") != strings.Join(c.rejected, ",") {
			t.Errorf("%s: the header of refused sections is %q", c.name, said)
		}
	}
	hash := directive.HashOf([]byte("x"))
	status, header, body = 200, nil, "content"
	if b, err := h.Section(t.Context(), hash); err != nil || string(b) != "content" || got.URL.String() != "/below/v1/directives/"+hash || got.Header.Get("Accept-Encoding") != "gzip" {
		t.Errorf("%s, %v, %s %v", b, err, got.URL, got.Header)
	}
	body = strings.Repeat("x", directive.MaxContent+1)
	if b, err := h.Section(t.Context(), hash); !errors.Is(err, fault.ErrUnavailable) || b != nil {
		t.Errorf("too long: %d bytes, %v", len(b), err)
	}
	body = body[1:]
	if b, err := h.Section(t.Context(), hash); err != nil || len(b) != directive.MaxContent {
		t.Errorf("as long as it may be: %d bytes, %v", len(b), err)
	}
	status = 404
	if b, err := h.Section(t.Context(), hash); !errors.Is(err, fault.ErrUnavailable) || b != nil {
		t.Errorf("gone meanwhile: %v", err)
	}
	srv.Close()
	if _, _, _, err := h.Directives(t.Context(), "", 0, nil); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("no server: %v", err)
	}
}

// broken is a transport whose requests fail if err is set, and that counts how often its connections were closed.
type broken struct {
	err    error
	closed int
}

func (b *broken) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.err != nil {
		return nil, b.err
	}
	return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody, Request: r}, nil
}

func (b *broken) CloseIdleConnections() { b.closed++ }

// TestDeadConnection checks that a connection over which a request failed is not used for the next one.
func TestDeadConnection(t *testing.T) {
	b := &broken{}
	h := NewHTTP(&url.URL{Scheme: "https", Host: "mete.test"}, &http.Client{Transport: b})
	if _, err := h.Section(t.Context(), "x"); err == nil || b.closed != 0 {
		t.Errorf("after an answer: %v, closed %d times", err, b.closed)
	}
	b.err = errors.New("no route")
	if _, err := h.Section(t.Context(), "x"); err == nil || b.closed != 1 {
		t.Errorf("after no answer: %v, closed %d times", err, b.closed)
	}
}

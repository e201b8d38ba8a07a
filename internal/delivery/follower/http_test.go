package follower

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
	}{
		{name: "a list", status: 200, header: http.Header{"Etag": {`"x"`}}, body: one, changed: true, now: `"x"`},
		{name: "no change", tag: `"x"`, rejected: []string{"a", "b"}, status: 304, now: `"x"`},
		{name: "no change, of nothing", status: 304, err: fault.ErrUnavailable},
		{name: "an older server", status: 404, header: problem, body: `{"status":404,"title":"not found"}`, err: fault.ErrUnsupported},
		{name: "no list", status: 200, body: "<html>", err: fault.ErrUnavailable},
		{name: "too long", status: 200, body: one + strings.Repeat(" ", directive.MaxList), err: fault.ErrUnavailable},
		{name: "as long as it may be", status: 200, header: http.Header{"Etag": {`"y"`}}, body: one + strings.Repeat(" ", directive.MaxList-len(one)), changed: true, now: `"y"`},
		{name: "denied", status: 403, header: problem, body: `{"status":403,"title":"denied"}`, err: fault.ErrDenied},
		{name: "a redirect", status: 302, header: http.Header{"Location": {"/else"}}, err: fault.ErrUnavailable},
		{name: "busy", status: 429, header: http.Header{"Retry-After": {"7"}}, err: fault.ErrUnavailable},
		{name: "invalid for a proxy", status: 400, err: fault.ErrUnavailable},
	} {
		status, header, body = c.status, c.header, c.body
		l, now, changed, err := h.Directives(t.Context(), c.tag, 90*time.Second, c.rejected)
		if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) || changed != c.changed || now != c.now || changed != (len(l.Sections) == 1) {
			t.Errorf("%s: %+v, %q, %t, %v", c.name, l, now, changed, err)
		}
		if after, ok := fault.RetryAfter(err); c.status == 429 && (!ok || after != 7*time.Second) {
			t.Errorf("%s: again after %v", c.name, after)
		}
		if got.URL.String() != "/below/v1/directives?wait=90" || got.Header.Get("If-None-Match") != c.tag || got.Header.Get(HeaderRejected) != strings.Join(c.rejected, ",") {
			t.Errorf("%s: %s %v", c.name, got.URL, got.Header)
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

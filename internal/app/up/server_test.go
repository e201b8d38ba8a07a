package up

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/testkit/toptest"
	"mete.dev/mete/internal/web"
)

// get sends a request to a loopback server, with the host of the URL.
func get(f *feed, method, url string, header ...string) *http.Response {
	addr := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9797}
	r := httptest.NewRequest(method, url, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	newServer(f, nil, func(*http.Request) error { return nil }, allowed(addr, "127.0.0.1")).Handler.ServeHTTP(w, r)
	return w.Result()
}

func body(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// newFedFeed returns a feed after one tick.
func newFedFeed() *feed {
	f := newFeed()
	f.latest.Store(newFrame(toptest.Machine(2)))
	return f
}

func TestSnapshot(t *testing.T) {
	f := newFedFeed()
	r := get(f, "GET", "http://127.0.0.1:9797/api/v0/snapshot")
	if r.StatusCode != 200 || r.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("snapshot: %s, %s", r.Status, r.Header.Get("Content-Type"))
	}
	var got live.Machine
	if err := json.Unmarshal([]byte(body(t, r)), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(toptest.Machine(2), &got); diff != "" {
		t.Errorf("snapshot (-want +got):\n%s", diff)
	}
	tag := r.Header.Get("ETag")
	if r := get(f, "GET", "http://127.0.0.1:9797/api/v0/snapshot", "If-None-Match", tag); r.StatusCode != 304 {
		t.Errorf("the same tick again: %s, want 304", r.Status)
	}
	f.latest.Store(newFrame(toptest.Machine(3)))
	if r := get(f, "GET", "http://127.0.0.1:9797/api/v0/snapshot", "If-None-Match", tag); r.StatusCode != 200 {
		t.Errorf("the next tick: %s, want 200", r.Status)
	}
	if r := get(f, "GET", "http://127.0.0.1:9797/api/v0/snapshot", "Accept-Encoding", "gzip"); r.Header.Get("Content-Encoding") != "gzip" {
		t.Errorf("compressed: %s, %q", r.Status, r.Header.Get("Content-Encoding"))
	}
	if r := get(f, "HEAD", "http://127.0.0.1:9797/api/v0/snapshot"); r.StatusCode != 200 || body(t, r) != "" {
		t.Errorf("HEAD: %s with a body, want 200 without", r.Status)
	}
}

func TestHealth(t *testing.T) {
	f := newFeed()
	check := func(when string, status int, word string) {
		t.Helper()
		r := get(f, "GET", "http://localhost:9797/healthz")
		if got := body(t, r); r.StatusCode != status || !strings.Contains(got, word) {
			t.Errorf("%s: %d %q, want %d with %q", when, r.StatusCode, got, status, word)
		}
	}
	check("at first", 503, "no reading yet")
	if r := get(f, "GET", "http://localhost:9797/api/v0/snapshot"); r.StatusCode != 503 || r.Header.Get("Retry-After") == "" {
		t.Errorf("snapshot before the first tick: %s, want 503 with Retry-After", r.Status)
	}
	f.latest.Store(newFrame(toptest.Machine(0)))
	check("after the first tick", 200, "ok")
	why := "proc: stat: gone"
	f.missed.Store(&why)
	check("after a lost tick", 503, why)
}

// TestHost checks that the server answers only to host names that another party cannot point to
// a different address.
func TestHost(t *testing.T) {
	own := "metal.example"
	for _, c := range []struct {
		ip     net.IP
		listen string
		yes    []string
		no     []string
	}{
		{net.IPv4(127, 0, 0, 1), "127.0.0.1",
			[]string{"127.0.0.1:9797", "localhost", "LOCALHOST.:1", "[::1]:9797", "127.9.9.9", "a.localhost:80"},
			[]string{"evil.example", "127.0.0.1.evil.example", "localhost.evil.example:9797", "192.0.2.1", "", ":9797", "[::2]:1"}},
		{net.IPv6zero, "", []string{"192.0.2.1:9797", "[2001:db8::1]:9797", "localhost:9797"}, []string{"evil.example:9797", own}},
		{net.IPv4(192, 0, 2, 1), own, []string{own + ":9797", strings.ToUpper(own), "192.0.2.1"}, []string{"evil.example"}},
	} {
		allow := allowed(&net.TCPAddr{IP: c.ip, Port: 9797}, c.listen)
		for _, h := range c.yes {
			if !allow(h) {
				t.Errorf("listening on %v: host %q is refused", c.ip, h)
			}
		}
		for _, h := range c.no {
			if allow(h) {
				t.Errorf("listening on %v: host %q is answered", c.ip, h)
			}
		}
	}
	for _, path := range []string{"/", "/api/v0/snapshot", "/healthz", "/live", "/static/-/js/app.js"} {
		if r := get(newFedFeed(), "GET", "http://evil.example"+path); r.StatusCode != http.StatusMisdirectedRequest {
			t.Errorf("%s as evil.example: %s, want 421", path, r.Status)
		}
	}
}

func TestOnlyReading(t *testing.T) {
	for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS", "PATCH"} {
		for _, path := range []string{"/", "/api/v0/snapshot", "/healthz", "/none"} {
			r := get(newFedFeed(), method, "http://localhost:9797"+path)
			if r.StatusCode != 405 || r.Header.Get("Allow") != "GET, HEAD" {
				t.Errorf("%s %s: %s, Allow %q, want 405 with GET, HEAD", method, path, r.Status, r.Header.Get("Allow"))
			}
		}
	}
	for _, path := range []string{"/none", "/web/index.html", "/index.html", "/../up.go", "/api/v0", "/api/v0/snapshot/"} {
		if r := get(newFedFeed(), "GET", "http://localhost:9797"+path); r.StatusCode == 200 {
			t.Errorf("GET %s: %s, want no such page", path, r.Status)
		}
	}
}

func TestHeaders(t *testing.T) {
	for _, url := range []string{"http://localhost/", "http://localhost/api/v0/snapshot", "http://localhost/none", "http://evil.example/"} {
		h := get(newFedFeed(), "GET", url).Header
		for k, want := range map[string]string{"Content-Security-Policy": web.Policy, "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
			"Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": "no-cache"} {
			if got := h.Get(k); got != want && !(k == "Cache-Control" && got == "") {
				t.Errorf("%s: %s = %q, want %q", url, k, got, want)
			}
		}
		if h.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: other origins can read it", url)
		}
	}
}

// TestPage checks that the page is the dashboard, with the snapshot available.
func TestPage(t *testing.T) {
	index := body(t, get(newFedFeed(), "GET", "http://localhost/"))
	if !strings.Contains(index, `data-live="1"`) {
		t.Errorf("the page has no snapshot:\n%s", index)
	}
	for _, m := range regexp.MustCompile(`(?:src|href)="([^"]+)"`).FindAllStringSubmatch(index, -1) {
		if r := get(newFedFeed(), "GET", "http://localhost"+m[1]); r.StatusCode != 200 {
			t.Errorf("the page names %s: %s", m[1], r.Status)
		}
	}
	for _, path := range []string{"/live", "/jobs", "/node/x"} {
		if r := get(newFedFeed(), "GET", "http://localhost"+path); r.StatusCode != 200 || body(t, r) != index {
			t.Errorf("%s: %s, want the page", path, r.Status)
		}
	}
}

// TestFeed checks that a failed tick is only reported, and that a fatal error ends the feed.
func TestFeed(t *testing.T) {
	f := newFeed()
	over := errors.New("over")
	m := &toptest.Meter{Err: func(step int) error {
		switch step {
		case 0:
			return errors.New("bad")
		case 1:
			if f.missed.Load() == nil {
				t.Errorf("a failed tick is not reported")
			}
		case 2:
			if f.latest.Load() == nil || f.missed.Load() != nil {
				t.Errorf("after a good tick: latest %v, missed %v", f.latest.Load(), f.missed.Load())
			}
			return errors.Join(over, errUnsupported)
		}
		return nil
	}}
	if err := f.run(t.Context(), time.Millisecond, m); !errors.Is(err, over) {
		t.Errorf("run = %v, want %v", err, over)
	}
	select {
	case <-f.ready:
	default:
		t.Errorf("the first tick is not signaled")
	}
}

// TestOtherSites checks that a page of another site gets nothing computed, and may link to the
// pages.
func TestOtherSites(t *testing.T) {
	kept := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/docs" {
			t.Errorf("%s is answered", r.URL)
		}
	})
	for path, page := range map[string]bool{"/": true, "/jobs": true, "/node/x": true, "/docs": true,
		"/api/v0/snapshot": false, "/api/v1/query?query=up": false, "/v1/usage": false, "/metrics": false, "/healthz": false, "/openapi.json": false, "/static/-/js/app.js": false, "/nosuch": false} {
		for _, site := range []string{"cross-site", "same-site"} {
			for mode, dest := range map[string]string{"no-cors": "image", "navigate": "document", "cors": "empty"} {
				r := httptest.NewRequest("GET", "http://127.0.0.1:9797"+path, nil)
				for k, v := range map[string]string{"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest} {
					r.Header.Set(k, v)
				}
				w := httptest.NewRecorder()
				newServer(newFedFeed(), kept, func(*http.Request) error { return nil }, allowed(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, "127.0.0.1")).Handler.ServeHTTP(w, r)
				if want := page && mode == "navigate"; (w.Code == 200) != want || !want && w.Code != 403 {
					t.Errorf("%s, %s, %s: %d", path, site, mode, w.Code)
				}
			}
		}
	}
}

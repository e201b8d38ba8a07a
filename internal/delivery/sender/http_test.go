package sender_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mete.dev/mete/internal/delivery/sender"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// serve returns the sender's side of a server below the path /mete/.
func serve(t *testing.T, s *httptest.Server) *sender.HTTP {
	t.Helper()
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL + "/mete/")
	if err != nil {
		t.Fatal(err)
	}
	return sender.NewHTTP(u, s.Client(), "v1.2.3")
}

// TestHTTP checks the request of an offer, in plain HTTP and with TLS and HTTP/2.
func TestHTTP(t *testing.T) {
	var got http.Header
	var body []byte
	var proto string
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, proto = r.Header, r.Proto
		body, _ = io.ReadAll(r.Body)
		if r.Method != http.MethodPost || r.URL.Path != "/mete/v1/batches" {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		_, _ = io.WriteString(w, `{"verdict":"taken","next":"18446744073709551615","names":["ffffffffffffffff","0000000000000007"],"new":1}`)
	})
	secure := httptest.NewUnstartedServer(handler)
	secure.EnableHTTP2 = true
	secure.StartTLS()
	for _, c := range []struct {
		s     *httptest.Server
		proto string
	}{{httptest.NewServer(handler), "HTTP/1.1"}, {secure, "HTTP/2.0"}} {
		h := serve(t, c.s)
		r, err := h.Offer(t.Context(), batch.Clock{Boot: "b", Boottime: 12, Wall: -3, Earlier: []batch.BootEnd{{Boot: "a-1", End: 5, Offset: -7}, {Boot: "a_2", End: 6}}}, []byte("bytes"))
		if err != nil {
			t.Fatal(err)
		}
		if r.Verdict != batch.Accepted || r.Next != 1<<64-1 || len(r.Names) != 2 || r.Names[0] != 1<<64-1 {
			t.Errorf("reply %+v", r)
		}
		for k, want := range map[string]string{
			"Mete-Boot": "b", "Mete-Boottime-Ns": "12", "Mete-Wall-Ns": "-3", "Mete-Boots": "a-1=5/-7, a_2=6/0", "Mete-Version": "v1.2.3", "Content-Type": "application/vnd.mete.batch", "Accept": "application/json, application/problem+json",
		} {
			if got.Get(k) != want {
				t.Errorf("%s: %q, want %q", k, got.Get(k), want)
			}
		}
		if string(body) != "bytes" || proto != c.proto {
			t.Errorf("body %q over %s, want %s", body, proto, c.proto)
		}
	}
}

// TestHTTPSpool checks that an offer states how full the spool is.
func TestHTTPSpool(t *testing.T) {
	var got string
	h := serve(t, httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Mete-Spool")
		_, _ = io.WriteString(w, `{"verdict":"taken","next":"2"}`)
	})))
	for _, want := range []string{"", "5/9"} {
		if want != "" {
			h.Spool = func() (bytes, limit int64) { return 5, 9 }
		}
		if _, err := h.Offer(t.Context(), batch.Clock{}, nil); err != nil || got != want {
			t.Errorf("the spool is stated as %q, %v; want %q", got, err, want)
		}
	}
}

// closing counts the calls that close idle connections.
type closing struct {
	*http.Transport
	calls int
}

func (c *closing) CloseIdleConnections() {
	c.calls++
	c.Transport.CloseIdleConnections()
}

// TestHTTPDenied checks that the request after a denial uses a new connection: TLS presents the
// certificate once in each. After another error the connection is kept; net/http may still close it.
func TestHTTPDenied(t *testing.T) {
	for status, want := range map[int]int{http.StatusForbidden: 2, http.StatusServiceUnavailable: 0} {
		var connections atomic.Int32
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				connections.Add(1)
			}
		}
		s.Start()
		transport := &closing{Transport: s.Client().Transport.(*http.Transport)}
		s.Client().Transport = transport
		h := serve(t, s)
		for range 2 {
			if _, err := h.Offer(t.Context(), batch.Clock{}, nil); err == nil {
				t.Errorf("an answer with status %d gives no error", status)
			}
		}
		if transport.calls != want {
			t.Errorf("closes idle connections %d times for two requests with status %d, want %d", transport.calls, status, want)
		}
		if n := connections.Load(); status == http.StatusForbidden && n != 2 {
			t.Errorf("%d connections for two requests with status %d, want 2", n, status)
		}
	}
}

// TestHTTPLongReply checks that a reply may have 1 MiB.
func TestHTTPLongReply(t *testing.T) {
	const reply = `{"verdict":"taken","next":"2"}`
	for size, ok := range map[int]bool{1 << 20: true, 1<<20 + 1: false} {
		h := serve(t, httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat(" ", size-len(reply))+reply)
		})))
		if r, err := h.Offer(t.Context(), batch.Clock{}, nil); (err == nil) != ok || ok && r.Next != 2 || !ok && !errors.Is(err, fault.ErrUnavailable) {
			t.Errorf("a reply of %d bytes: %+v, %v", size, r, err)
		}
	}
}

// TestHTTPCannotAsk checks requests that cannot be made: to a URL that is none, and of a time that JSON
// does not have.
func TestHTTPCannotAsk(t *testing.T) {
	h := sender.NewHTTP(&url.URL{Scheme: "http", Host: "a b"}, &http.Client{}, "")
	if _, err := h.Offer(t.Context(), batch.Clock{}, nil); err == nil {
		t.Error("an offer to a URL that is none")
	}
	if _, err := h.Reads(t.Context()); err == nil {
		t.Error("a query of a URL that is none")
	}
	h = serve(t, httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Error("there is a request")
	})))
	if _, err := h.Lost(t.Context(), batch.Loss{Gap: usage.Gap{From: time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)}}); err == nil {
		t.Error("a loss in the year 10000")
	}
}

// TestHTTPLost checks the request that reports a loss.
func TestHTTPLost(t *testing.T) {
	var body []byte
	h := serve(t, httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/mete/v1/lost" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s of %s", r.URL, r.Header.Get("Content-Type"))
		}
		body, _ = io.ReadAll(r.Body)
		_, _ = io.WriteString(w, `{"verdict":"known","next":"10"}`)
	})))
	r, err := h.Lost(t.Context(), batch.Loss{
		Stream: batch.Stream{1}, From: 7, To: 9, Hash: batch.Hash{2},
		Gap: usage.Gap{From: time.Unix(0, 0).UTC(), To: time.Unix(10, 5e8).UTC(), Reason: usage.Forgotten, Detail: "after <24 h>"},
	})
	if err != nil || r.Verdict != batch.Duplicate || r.Next != 10 {
		t.Fatalf("Lost = %+v, %v", r, err)
	}
	want := `{"stream":"01` + strings.Repeat("0", 30) + `","from":"7","to":"9","hash":"02` + strings.Repeat("0", 62) +
		`","gap":{"from":"1970-01-01T00:00:00Z","to":"1970-01-01T00:00:10.5Z","reason":"forgotten","detail":"after \u003c24 h\u003e"}}`
	if string(body) != want {
		t.Errorf("sent %s\nwant %s", body, want)
	}
}

// TestHTTPReplies checks the result of each kind of answer.
func TestHTTPReplies(t *testing.T) {
	const problem, plain = "application/problem+json", "text/html"
	for _, c := range []struct {
		status     int
		kind, body string
		after      string
		verdict    batch.Verdict
		want       error
		text, hint string
		wait       time.Duration
	}{
		{status: 200, body: `{"verdict":"known","next":"4"}`, verdict: batch.Duplicate},
		{status: 409, body: `{"verdict":"behind","next":"4"}`, verdict: batch.OutOfOrder},
		{status: 409, body: `{"verdict":"conflict","next":"4"}`, verdict: batch.Conflict},
		{status: 409, body: `{"verdict":"clone","next":"0"}`, verdict: batch.Clone},
		// Answers that no mete server gives.
		{status: 200, body: `{"verdict":"conflict","next":"4"}`, want: fault.ErrUnavailable},
		{status: 409, body: `{"verdict":"taken","next":"4"}`, want: fault.ErrUnavailable},
		{status: 409, kind: problem, body: `{"title":"conflict","status":409}`, want: fault.ErrUnavailable},
		{status: 200, kind: plain, body: `<html>Welcome! Log in to this network.</html>`, want: fault.ErrUnavailable},
		{status: 200, want: fault.ErrUnavailable},
		{status: 204, want: fault.ErrUnavailable, text: "status 204 No Content"},
		{status: 200, body: `{"verdict":"maybe","next":"4"}`, want: fault.ErrUnavailable},
		{status: 200, body: `{"verdict":"taken","next":"4","names":["` + strings.Repeat("0", 1<<20) + `"]}`, want: fault.ErrUnavailable},
		// Refusals by the server, and the same status codes from a proxy.
		{status: 400, kind: problem, body: `{"title":"invalid","detail":"window 3: too long","status":400,"hint":"update"}`, want: fault.ErrInvalid, text: "window 3: too long", hint: "update"},
		{status: 413, kind: problem, body: `{"title":"too large","status":413}`, want: fault.ErrInvalid, text: "too large"},
		{status: 400, kind: plain, body: `<h1>400</h1>`, want: fault.ErrUnavailable, text: "status 400 Bad Request"},
		{status: 413, kind: plain, body: `<h1>413</h1>`, want: fault.ErrUnavailable},
		{status: 400, kind: problem, body: `{"title":"invalid","status":404}`, want: fault.ErrUnavailable},
		{status: 400, kind: problem, body: `{`, want: fault.ErrUnavailable},
		{status: 401, want: fault.ErrDenied},
		{status: 403, kind: problem, body: `{"title":"permission denied","detail":"the certificate has ended","status":403}`, want: fault.ErrDenied, text: "the certificate has ended"},
		{status: 404, kind: plain, want: fault.ErrUnavailable, text: "status 404 Not Found"},
		{status: 404, kind: problem, body: `{"title":"not found","detail":"node n1 is not known","status":404}`, want: fault.ErrUnavailable, text: "node n1 is not known"},
		{status: 500, kind: plain, body: "oops", want: fault.ErrUnavailable},
		{status: 429, after: "7", want: fault.ErrUnavailable, wait: 7 * time.Second},
		{status: 503, kind: problem, body: `{"title":"unavailable","detail":"the disk is full","status":503,"hint":"make room"}`, after: "120", want: fault.ErrUnavailable, text: "the disk is full", hint: "make room", wait: 2 * time.Minute},
		{status: 503, after: "99999999", want: fault.ErrUnavailable, wait: 15 * time.Minute},
		{status: 503, after: "Wed, 21 Oct 2015 07:28:00 GMT", want: fault.ErrUnavailable},
		{status: 503, after: "soon", want: fault.ErrUnavailable},
		{status: 503, after: "-5", want: fault.ErrUnavailable},
		{status: 308, want: fault.ErrUnavailable},
	} {
		asked := 0
		h := serve(t, httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked++
			if c.kind != "" {
				w.Header().Set("Content-Type", c.kind)
			}
			if c.after != "" {
				w.Header().Set("Retry-After", c.after)
			}
			if c.status == 308 {
				w.Header().Set("Location", "/elsewhere")
			}
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		})))
		r, err := h.Offer(t.Context(), batch.Clock{}, []byte("x"))
		if r.Verdict != c.verdict || !errors.Is(err, c.want) || asked != 1 {
			t.Errorf("%d %s: %v, %v, asked %d times", c.status, c.body, r.Verdict, err, asked)
			continue
		}
		if c.text != "" && err.Error() != c.text || fault.Hint(err) != c.hint {
			t.Errorf("%d %s: %q, hint %q", c.status, c.body, err, fault.Hint(err))
		}
		if c.want == fault.ErrUnavailable && (errors.Is(err, fault.ErrInvalid) || errors.Is(err, fault.ErrDenied)) {
			t.Errorf("%d %s: %v is of two kinds", c.status, c.body, err)
		}
		if wait, ok := fault.RetryAfter(err); wait != c.wait || ok != (c.wait > 0) {
			t.Errorf("%d Retry-After %q: %v", c.status, c.after, wait)
		}
	}
}

// TestHTTPUnreached checks a closed server, one that breaks off its answer, and one
// that never answers.
func TestHTTPUnreached(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	h := serve(t, gone)
	gone.Close()
	if _, err := h.Offer(t.Context(), batch.Clock{}, nil); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("closed server: %v", err)
	}
	h = serve(t, httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `{"verdict":"taken"`)
	})))
	if _, err := h.Offer(t.Context(), batch.Clock{}, nil); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("truncated reply: %v", err)
	}
	quit := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	h = serve(t, httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		cancel() // the client gives up
		<-quit
	})))
	defer close(quit)
	if _, err := h.Offer(ctx, batch.Clock{}, bytes.Repeat([]byte("x"), 1<<20)); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("no answer: %v", err)
	}
}

// TestHTTPCertificate checks the errors of a server that rejects this machine's
// certificate (denied) and of one whose own is not trusted (unavailable).
func TestHTTPCertificate(t *testing.T) {
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	// By TLS 1.3 the client may have sent its request, and see a broken connection, before the
	// alert arrives.
	s.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool(), MaxVersion: tls.VersionTLS12}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	s.Client().Transport.(*http.Transport).TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &s.TLS.Certificates[0], nil
	}
	h := serve(t, s)
	if _, err := h.Offer(t.Context(), batch.Clock{}, nil); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("a certificate of an unknown authority: %v", err)
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	h = sender.NewHTTP(u, &http.Client{Transport: &http.Transport{}}, "")
	if _, err := h.Offer(t.Context(), batch.Clock{}, nil); !errors.Is(err, fault.ErrUnavailable) || errors.Is(err, fault.ErrDenied) {
		t.Errorf("untrusted server: %v", err)
	}
}

package httpx_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/httpx"
)

// get asks a server that answers as h does, and reads 100 bytes at most.
func get(t *testing.T, h http.HandlerFunc) (*httpx.Answer, error) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return getFrom(t.Context(), s.Client(), s.URL+"/secret")
}

func getFrom(ctx context.Context, c *http.Client, target string) (*httpx.Answer, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, err
	}
	return httpx.Do(c, r, 100)
}

// TestDo checks what an answer gives, and which kind of error there is without one.
func TestDo(t *testing.T) {
	a, err := get(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, strings.Repeat("x", 100))
	})
	if err != nil || a.StatusCode != http.StatusTeapot || len(a.Body) != 100 || httpx.MediaType(a.Header) != "text/plain" {
		t.Errorf("%+v, %v", a, err)
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, ask := range map[string]func() (*httpx.Answer, error){
		"too large": func() (*httpx.Answer, error) {
			return get(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat("x", 101)) })
		},
		"cut short": func() (*httpx.Answer, error) {
			return get(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "9") })
		},
		"no answer": func() (*httpx.Answer, error) {
			return get(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		},
		"no listener": func() (*httpx.Answer, error) { return getFrom(t.Context(), gone.Client(), gone.URL+"/secret") },
		"canceled":    func() (*httpx.Answer, error) { return getFrom(canceled, http.DefaultClient, gone.URL+"/secret") },
	} {
		a, err := ask()
		if a != nil || !errors.Is(err, fault.ErrUnavailable) || errors.Is(err, fault.ErrDenied) || strings.Contains(err.Error(), "/secret") {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
	if _, err := getFrom(canceled, http.DefaultClient, gone.URL); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

type transport func() error

func (f transport) RoundTrip(*http.Request) (*http.Response, error) { return nil, f() }

// TestDoKind checks that an error of the transport keeps its kind and hint, and has no other.
func TestDoKind(t *testing.T) {
	for _, kind := range []error{fault.ErrDenied, fault.ErrUnavailable} {
		cause := fault.WithHint(fmt.Errorf("not enrolled: %w", kind), "enroll")
		_, err := getFrom(t.Context(), &http.Client{Transport: transport(func() error { return cause })}, "http://server/secret")
		if err.Error() != cause.Error() || fault.Hint(err) != "enroll" || !errors.Is(err, kind) {
			t.Errorf("%v with the hint %q", err, fault.Hint(err))
		}
	}
}

// TestDoAlert checks that only a TLS alert about this client's certificate denies.
func TestDoAlert(t *testing.T) {
	for text, want := range map[string]error{
		"tls: bad certificate": fault.ErrDenied, "tls: certificate required": fault.ErrDenied, "tls: internal error": fault.ErrUnavailable,
	} {
		for op, want := range map[string]error{"remote error": want, "local error": fault.ErrUnavailable} {
			alert := &net.OpError{Op: op, Err: errors.New(text)}
			_, err := getFrom(t.Context(), &http.Client{Transport: transport(func() error { return alert })}, "http://server")
			if !errors.Is(err, want) || errors.Is(err, fault.ErrDenied) != (want == fault.ErrDenied) {
				t.Errorf("%v: %v, want %v", alert, err, want)
			}
		}
	}
}

// TestDoCertificate checks that a server which does not accept this client's certificate denies
// it, and that a server whose own certificate is not trusted is unavailable.
func TestDoCertificate(t *testing.T) {
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	// By TLS 1.3 the client may have sent its request, and see a broken connection, before the
	// alert arrives.
	s.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool(), MaxVersion: tls.VersionTLS12}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	c := s.Client()
	c.Transport.(*http.Transport).TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &s.TLS.Certificates[0], nil
	}
	if _, err := getFrom(t.Context(), c, s.URL); !errors.Is(err, fault.ErrDenied) || errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("a certificate of an unknown authority: %v", err)
	}
	if _, err := getFrom(t.Context(), &http.Client{Transport: &http.Transport{}}, s.URL); !errors.Is(err, fault.ErrUnavailable) || errors.Is(err, fault.ErrDenied) {
		t.Errorf("a server of an unknown authority: %v", err)
	}
}

func TestNoRedirect(t *testing.T) {
	s := httptest.NewServer(http.RedirectHandler("/elsewhere", http.StatusFound))
	defer s.Close()
	if a, err := getFrom(t.Context(), &http.Client{CheckRedirect: httpx.NoRedirect}, s.URL); err != nil || a.StatusCode != http.StatusFound {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestRefusal checks which answers are a mete server's, and which error each is to a client
// that must not drop data because of a proxy.
func TestRefusal(t *testing.T) {
	const problem = "application/problem+json"
	for _, c := range []struct {
		status          int
		mediaType, body string
		after           string
		own             bool
		want            error
		text, hint      string
		wait            time.Duration
	}{
		{status: 400, mediaType: problem, body: `{"title":"invalid","detail":"row 7: invalid","status":400,"hint":"update"}`, own: true, want: fault.ErrInvalid, text: "row 7: invalid", hint: "update"},
		{status: 400, mediaType: "Application/Problem+JSON; charset=utf-8", body: `{"status":400}`, own: true, want: fault.ErrInvalid, text: "invalid"},
		{status: 413, mediaType: problem, body: `{"title":"content too large","status":413}`, own: true, want: fault.ErrInvalid, text: "content too large"},
		{status: 400, mediaType: "text/html", body: `<h1>400</h1>`, want: fault.ErrUnavailable, text: "status 400 Bad Request"},
		{status: 413, want: fault.ErrUnavailable, text: "status 413 Request Entity Too Large"},
		{status: 400, mediaType: "application/json", body: `{"title":"invalid","status":400}`, want: fault.ErrUnavailable, text: "status 400 Bad Request"},
		{status: 400, mediaType: problem, body: `{"title":"invalid","status":404}`, want: fault.ErrUnavailable, text: "status 400 Bad Request"},
		{status: 400, mediaType: problem, body: `{"title":"bad request"}`, want: fault.ErrUnavailable, text: "status 400 Bad Request"},
		{status: 400, mediaType: problem, body: `{`, want: fault.ErrUnavailable, text: "status 400 Bad Request"},
		{status: 401, want: fault.ErrDenied, text: "status 401 Unauthorized"},
		{status: 403, mediaType: problem, body: `{"title":"permission denied","detail":"revoked","status":403}`, own: true, want: fault.ErrDenied, text: "revoked"},
		{status: 404, mediaType: problem, body: `{"title":"not found","detail":"node 1","status":404}`, own: true, want: fault.ErrUnavailable, text: "node 1"},
		{status: 500, mediaType: problem, body: `{"title":"internal error","status":500}`, own: true, want: fault.ErrUnavailable, text: "internal error"},
		{status: 429, after: "7", want: fault.ErrUnavailable, text: "status 429 Too Many Requests", wait: 7 * time.Second},
		{status: 503, after: "86400", want: fault.ErrUnavailable, text: "status 503 Service Unavailable", wait: time.Minute},
	} {
		a, err := get(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			for k, v := range map[string]string{"Content-Type": c.mediaType, "Retry-After": c.after} {
				if v != "" {
					w.Header().Set(k, v)
				}
			}
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		})
		if err != nil {
			t.Fatal(err)
		}
		p, own := a.Problem()
		if own != c.own || p.Status != c.status {
			t.Errorf("%d %s: problem %+v, of a mete server: %t", c.status, c.body, p, own)
		}
		err = a.Refusal(time.Minute)
		if !errors.Is(err, c.want) || err.Error() != c.text || fault.Hint(err) != c.hint {
			t.Errorf("%d %s: %v with the hint %q", c.status, c.body, err, fault.Hint(err))
		}
		for _, other := range []error{fault.ErrInvalid, fault.ErrDenied, fault.ErrUnavailable, fault.ErrNotFound} {
			if other != c.want && errors.Is(err, other) {
				t.Errorf("%d %s: %v is %q too", c.status, c.body, err, other)
			}
		}
		if wait, _ := fault.RetryAfter(err); wait != c.wait {
			t.Errorf("%d %s: retry after %v, want %v", c.status, c.body, wait, c.wait)
		}
	}
}

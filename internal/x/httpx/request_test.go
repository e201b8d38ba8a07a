package httpx_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/httpx"
)

func TestCheckMethod(t *testing.T) {
	for _, c := range []struct {
		method  string
		allowed []string
		allow   string // "" means no error
	}{
		{"POST", []string{"POST"}, ""}, {"HEAD", []string{"GET", "HEAD"}, ""}, {"post", []string{"POST"}, "POST"}, {"PUT", []string{"GET", "HEAD"}, "GET, HEAD"},
	} {
		w := httptest.NewRecorder()
		err := httpx.CheckMethod(w, &http.Request{Method: c.method}, c.allowed...)
		if errors.Is(err, httpx.ErrMethod) != (c.allow != "") || w.Header().Get("Allow") != c.allow ||
			err != nil && err.Error() != "there is only "+strings.Join(c.allowed, " and ") {
			t.Errorf("%s of %v: %v, Allow %q", c.method, c.allowed, err, w.Header().Get("Allow"))
		}
	}
}

func TestCheckMediaType(t *testing.T) {
	for _, c := range []struct {
		mediaType, encoding string
		ok                  bool
	}{
		{"application/json", "", true}, {"Application/JSON; charset=utf-8", "", true},
		{"", "", false}, {"text/plain", "", false}, {"application/json;;", "", false}, {"application/json", "gzip", false},
	} {
		r := &http.Request{Header: http.Header{"Content-Type": {c.mediaType}, "Content-Encoding": {c.encoding}}}
		err := httpx.CheckMediaType(r, "application/json")
		if (err == nil) != c.ok || err != nil && !errors.Is(err, httpx.ErrMediaType) {
			t.Errorf("%q, %q: %v", c.mediaType, c.encoding, err)
		}
	}
}

// oneConn is a listener of one connection.
type oneConn struct {
	conn chan net.Conn
	done chan struct{}
}

func (l oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l oneConn) Close() error { close(l.done); return nil }
func (oneConn) Addr() net.Addr { return &net.UnixAddr{} }

// TestReadBody sends bodies over a connection in memory: at once, slowly, too slowly, too
// large, cut short.
func TestReadBody(t *testing.T) {
	const limit, idle, whole = 10, 2 * time.Second, 8500 * time.Millisecond // between two parts
	const declared, chunked = "Content-Length: %d", "Transfer-Encoding: chunked"
	byteChunk := "1\r\nx\r\n"
	for name, c := range map[string]struct {
		header string
		parts  []string // one a second
		closes bool     // the client closes after the last part
		body   string
		want   error
		after  time.Duration
	}{
		"at once":                {header: fmt.Sprintf(declared, 10), parts: []string{"0123456789"}, body: "0123456789"},
		"empty":                  {header: fmt.Sprintf(declared, 0)},
		"of no known length":     {header: chunked, parts: []string{"5\r\nabcde\r\n0\r\n\r\n"}, body: "abcde"},
		"slow":                   {header: fmt.Sprintf(declared, 4), parts: []string{"a", "b", "c", "d"}, body: "abcd", after: 3 * time.Second},
		"declared too large":     {header: fmt.Sprintf(declared, 11), want: httpx.ErrTooLarge},
		"undeclared, too large":  {header: chunked, parts: []string{"b\r\n01234567890\r\n"}, want: httpx.ErrTooLarge},
		"silent":                 {header: fmt.Sprintf(declared, 4), want: httpx.ErrTooSlow, after: idle},
		"silent after two bytes": {header: chunked, parts: []string{byteChunk, byteChunk}, want: httpx.ErrTooSlow, after: time.Second + idle},
		"slow for too long":      {header: fmt.Sprintf(declared, 10), parts: strings.Split("0123456789", ""), want: httpx.ErrTooSlow, after: whole},
		"cut short":              {header: fmt.Sprintf(declared, 4), parts: []string{"a", "b"}, closes: true, want: fault.ErrUnavailable, after: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server := net.Pipe()
				l := oneConn{make(chan net.Conn, 1), make(chan struct{})}
				l.conn <- server
				type result struct {
					body  string
					err   error
					after time.Duration
					alive bool // the request is not canceled while the handler works on the body
				}
				results := make(chan result, 1)
				s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					began := time.Now()
					body, err := httpx.ReadBody(w, r, limit, idle, whole)
					after := time.Since(began)
					if err == nil {
						time.Sleep(2 * whole)
					}
					results <- result{string(body), err, after, r.Context().Err() == nil}
					if err != nil {
						httpx.Fail(w, err)
					}
				})}
				go func() { _ = s.Serve(l) }()
				go func() {
					_, _ = io.WriteString(client, "POST / HTTP/1.1\r\nHost: x\r\n"+c.header+"\r\n\r\n")
					for i, p := range c.parts {
						if i > 0 {
							time.Sleep(time.Second)
						}
						_, _ = io.WriteString(client, p)
					}
					if c.closes {
						_ = client.Close()
					}
				}()
				var closed bool
				if !c.closes {
					resp, err := http.ReadResponse(bufio.NewReader(client), nil)
					if err != nil {
						t.Fatal(err)
					}
					closed = resp.Close
				}
				got := <-results
				if got.body != c.body || !errors.Is(got.err, c.want) || got.after != c.after {
					t.Errorf("%q, %v after %v; want %q, %v after %v", got.body, got.err, got.after, c.body, c.want, c.after)
				}
				if c.want == nil && !got.alive {
					t.Error("the request was canceled after its body was read")
				}
				if lasts := c.want == nil; closed == lasts && !c.closes {
					t.Errorf("the answer closes the connection: %v", closed)
				}
				_ = client.Close()
				_ = s.Close()
				time.Sleep(time.Minute) // until both ends have noticed
			})
		})
	}
}

// TestReadBodyUnread checks that a body whose declared length is too large is not read.
func TestReadBodyUnread(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "/", failingReader{t})
	r.ContentLength = 11
	if _, err := httpx.ReadBody(httptest.NewRecorder(), r, 10, time.Second, time.Second); !errors.Is(err, httpx.ErrTooLarge) || err.Error() != "the body has more than 10 bytes" {
		t.Error(err)
	}
}

type failingReader struct{ t *testing.T }

func (f failingReader) Read([]byte) (int, error) {
	f.t.Error("the body is read")
	return 0, io.EOF
}

// TestSetReadTimeout checks that a client that sends nothing more is cut off, also where no
// handler reads the body.
func TestSetReadTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		l := oneConn{make(chan net.Conn, 1), make(chan struct{})}
		l.conn <- server
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			httpx.SetReadTimeout(w, 3*time.Second)
			httpx.Fail(w, httpx.ErrMethod)
		})}
		go func() { _ = s.Serve(l) }()
		began := time.Now()
		go func() { _, _ = io.WriteString(client, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx") }()
		if _, err := io.Copy(io.Discard, client); err != nil {
			t.Error(err)
		}
		// The server closes half a second after its last word, so that the client can read it.
		if after := time.Since(began); after < 3*time.Second || after > 4*time.Second {
			t.Errorf("cut off after %v, want 3 s", after)
		}
		_ = client.Close()
		_ = s.Close()
		time.Sleep(time.Minute) // until both ends have noticed
	})
}

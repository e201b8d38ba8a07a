package main

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/testkit/hosttest"
)

// TestHostile checks that invalid and silent clients get a clear answer or no answer, and do not
// disturb other clients.
func TestHostile(t *testing.T) {
	hosttest.Need(t, "procfs")
	t.Parallel()
	s := newSite(t)
	s.serve()
	s.measure()
	s.node.waitOutput("server reached")
	addr := strings.TrimPrefix(s.url, "https://")
	trusting := &tls.Config{InsecureSkipVerify: true}

	var slow sync.WaitGroup
	for name, head := range map[string]string{
		"silence":     "",
		"half a head": "POST /v1/batches HTTP/1.1\r\nHost: x\r\n",
		"half a body": "POST /v1/enroll HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
	} {
		slow.Go(func() { cutOff(t, addr, name, head) })
	}

	t.Run("plain HTTP", func(t *testing.T) {
		resp, err := http.Get("http://" + addr + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(b), "HTTPS") {
			t.Errorf("%s, %q, %v; want 400, and that it speaks HTTPS", resp.Status, b, err)
		}
	})
	t.Run("no TLS", func(t *testing.T) {
		for _, c := range []struct{ name, sent string }{
			{"noise", strings.Repeat("\x00\xff", 4096)},
			{"a truncated hello", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"},
			{"a long hello", "\x16\x03\x01\xff\xff" + strings.Repeat("a", 1<<16)},
		} {
			garbage(t, addr, c.name, c.sent)
		}
	})
	t.Run("TLS 1.2", func(t *testing.T) {
		c, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12})
		if err == nil {
			_ = c.Close()
			t.Error("TLS 1.2 is accepted")
		}
	})
	t.Run("no certificate", func(t *testing.T) {
		// Use a new connection each time: the server closes one with an oversized request.
		client := func() *http.Client {
			c := &http.Client{Transport: &http.Transport{TLSClientConfig: trusting.Clone(), ForceAttemptHTTP2: true}}
			t.Cleanup(c.CloseIdleConnections)
			return c
		}
		for _, path := range []string{"/v1/batches", "/v1/lost", "/v1/renew"} {
			if p := post(t, client(), s.url+path, "application/json", strings.NewReader("{}")); p.Status != http.StatusUnauthorized {
				t.Errorf("%s without a certificate: %+v, want 401", path, p)
			}
		}
		for _, path := range []string{"/v1/enroll", "/v1/renew"} {
			if p := post(t, client(), s.url+path, "application/json", io.LimitReader(zeros(' '), 1<<20)); p.Status != http.StatusRequestEntityTooLarge {
				t.Errorf("%s with a body of a MiB: %+v, want 413", path, p)
			}
		}
		if p := post(t, client(), s.url+"/v1/states", wire.MediaType, io.LimitReader(zeros(0), 5<<20)); p.Status != http.StatusUnauthorized {
			t.Errorf("states without a certificate: %+v, want 401", p)
		}
		resp, err := client().Get(s.url + "/v1/usage")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("a question without a token: %s, want 401", resp.Status)
		}
	})
	t.Run("wrong token", func(t *testing.T) {
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: trusting, ForceAttemptHTTP2: true}}
		defer c.CloseIdleConnections()
		other := token.New([5]byte{1}, [20]byte{2}, token.Fingerprint{3}).Reveal()
		for name, text := range map[string]string{"none of this server": other, "half": other[:20], "an agent's": s.token, "control characters": "mete_\t\t"} {
			r, err := http.NewRequest(http.MethodGet, s.url+"/v1/usage", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+text)
			resp, err := c.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusForbidden {
				t.Errorf("%s: %s, want 403", name, resp.Status)
			}
		}
	})
	t.Run("invalid requests of a node", func(t *testing.T) {
		// Use a new connection each time: the server closes one with an oversized request.
		client := func() *http.Client {
			id, err := enroll.Open(enroll.Config{Dir: filepath.Join(s.dir, "agent", "identity"), Server: s.url}, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(id.Client().CloseIdleConnections)
			return id.Client()
		}
		for name, q := range map[string]struct {
			path, kind string
			body       io.Reader
			status     int
		}{
			"garbage":             {"/v1/batches", wire.MediaType, strings.NewReader("garbage"), 400},
			"nothing":             {"/v1/batches", wire.MediaType, strings.NewReader(""), 400},
			"too much":            {"/v1/batches", wire.MediaType, bytes.NewReader(make([]byte, 5<<20)), 413},
			"much without length": {"/v1/batches", wire.MediaType, io.LimitReader(zeros(0), 5<<20), 413},
			"another type":        {"/v1/batches", "text/plain", strings.NewReader("x"), 415},
			"lost nonsense":       {"/v1/lost", "application/json", strings.NewReader(`{"stream":7}`), 400},
			"lost without end":    {"/v1/lost", "application/json", strings.NewReader(`{"from":"0","to":"18446744073709551615"}`), 400},
		} {
			if p := post(t, client(), s.url+q.path, q.kind, q.body); p.Status != q.status || p.Title == "" {
				t.Errorf("%s: %+v, want status %d and a title", name, p, q.status)
			}
		}
		resp, err := client().Get(s.url + "/v1/usage")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("a node asks: %s, want 403", resp.Status)
		}
	})
	slow.Wait()
	// The agent is still served.
	used := func() float64 {
		if a := s.ask(); a.Whole != nil {
			return a.Whole.CPU
		}
		return 0
	}
	before := used()
	s.server.await("more of the agent's windows", func() bool { return used() > before })
	if log := s.node.log.String(); strings.Contains(log, "level=ERROR") {
		t.Errorf("the agent was disturbed:\n%s", log)
	}
	s.node.stop()
	s.server.stop()
	if log := s.server.log.String(); strings.Contains(log, "level=ERROR") || strings.Count(log, "\n") > 60 { // about one line per case above
		t.Errorf("the server says too much:\n%s", log)
	}
}

// zeros is an endless stream of one byte.
type zeros byte

func (z zeros) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(z)
	}
	return len(b), nil
}

// garbage sends bytes that are not TLS; the server must close the connection.
func garbage(t *testing.T, addr, name, sent string) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	defer func() { _ = c.Close() }()
	_, _ = io.WriteString(c, sent) // the server may close the connection earlier
	if cw, ok := c.(*net.TCPConn); ok {
		_ = cw.CloseWrite()
	}
	_, _ = io.Copy(io.Discard, c) // returns when the server closes the connection
}

// post sends a body and returns the problem of the response.
func post(t *testing.T, c *http.Client, url, kind string, body io.Reader) (p fault.Problem) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Type", kind)
	q.Header.Set(wire.HeaderBoot, "b")
	q.Header.Set(wire.HeaderBoottime, "1000")
	q.Header.Set(wire.HeaderWall, fmt.Sprint(time.Now().UnixNano()))
	resp, err := c.Do(q)
	if err != nil {
		t.Errorf("%s: %v", url, err)
		return p
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err != nil || p.Status != resp.StatusCode || resp.Header.Get("Content-Type") != fault.ProblemType {
		t.Errorf("%s: %s, %q, %v; want a problem", url, resp.Status, b, err)
	}
	return p
}

// cutOff sends an incomplete request; the server must close the connection after a while.
func cutOff(t *testing.T, addr, name, head string) {
	c, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, head); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	_, _ = io.Copy(io.Discard, c) // see garbage
}

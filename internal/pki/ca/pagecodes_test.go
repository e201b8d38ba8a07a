package ca_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/pki/ca"
)

// TestPageCodes checks how many links are valid at once, to the second of their ends, and that the
// tokens of several browsers are valid together.
func TestPageCodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := open(t, ca.Config{Dir: t.TempDir(), Local: true}, &memory{})
		valid := func(codes []string) (n int) {
			t.Helper()
			for _, code := range codes {
				text, status := exchange(a, code)
				if (text == "") != (status == 403) || text != "" && status != 200 {
					t.Errorf("%d %q", status, text)
				}
				if text == "" {
					continue
				}
				n++
				if _, err := a.Identify(bearer(text)); err != nil {
					t.Errorf("the token of browser %d: %v", n, err)
				}
			}
			return n
		}
		make := func(n int) (codes []string) {
			for range n {
				codes = append(codes, a.NewPageCode())
				time.Sleep(time.Second)
			}
			return codes
		}
		codes := make(64)
		if n := valid(codes); n != 64 {
			t.Errorf("%d of 64 links are valid", n)
		}
		codes = make(66)
		if n := valid(codes[:2]); n != 0 {
			t.Errorf("%d of the two oldest of 66 links are valid", n)
		}
		if n := valid(codes[2:]); n != 64 {
			t.Errorf("%d of the 64 newest of 66 links are valid", n)
		}
		// Links that have ended leave room, and take it from no other one.
		codes = make(64)
		time.Sleep(time.Hour - 64*time.Second)
		if n := valid(codes[:1]); n != 1 {
			t.Error("a link ends before its hour is over")
		}
		time.Sleep(time.Second)
		a.NewPageCode()
		time.Sleep(time.Nanosecond)
		if n := valid(codes[1:3]); n != 1 {
			t.Errorf("%d of two links are valid, of which one has ended", n)
		}
	})
}

// TestPageRequest checks the answers to requests that are not those of the page.
func TestPageRequest(t *testing.T) {
	a := open(t, ca.Config{Dir: t.TempDir(), Local: true}, &memory{})
	code := a.NewPageCode()
	body := func(text string) func(*http.Request) {
		return func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader(text)) }
	}
	exact := `{"code":"` + code + `"}`
	exact += strings.Repeat(" ", 1024-len(exact))
	for name, c := range map[string]struct {
		change func(*http.Request)
		status int
	}{
		"elsewhere": {func(r *http.Request) { r.RemoteAddr = "192.0.2.1:1" }, 403},
		"a form":    {func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }, 415},
		"GET":       {func(r *http.Request) { r.Method = "GET" }, 405},
		"no JSON":   {body("code=" + code), 400},
		"too long":  {body(exact + " "), 413},
	} {
		if text, status := exchange(a, code, c.change); text != "" || status != c.status {
			t.Errorf("%s: %d %q, want %d", name, status, text, c.status)
		}
	}
	if text, status := exchange(a, code, body(exact)); text == "" || status != 200 {
		t.Errorf("a request of 1024 bytes: %d %q", status, text)
	}
}

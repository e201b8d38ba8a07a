package ca_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/pki/ca"
	"mete.dev/mete/internal/pki/token"
)

// exchange sends a code as a browser of this machine does.
func exchange(a *ca.Authority, code string, change ...func(*http.Request)) (text string, status int) {
	r := httptest.NewRequest("POST", "http://127.0.0.1:9797/v1/page-token", strings.NewReader(`{"code":"`+code+`"}`))
	r.RemoteAddr = "127.0.0.1:1"
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Origin", "http://127.0.0.1:9797")
	for _, f := range change {
		f(r)
	}
	w := httptest.NewRecorder()
	a.PageHandler().ServeHTTP(w, r)
	if w.Code == http.StatusOK && w.Header().Get("Cache-Control") != "no-store" {
		w.Code = 0 // the token would stay in caches
	}
	var got struct{ Token string }
	_ = json.Unmarshal(w.Body.Bytes(), &got) // a refusal has no token
	return got.Token, w.Code
}

// bearer returns a request of a program of this machine with a token.
func bearer(text string) *http.Request {
	r := httptest.NewRequest("GET", "http://127.0.0.1:9797/v1/nodes", nil)
	r.RemoteAddr = "127.0.0.1:1"
	r.Header.Set("Authorization", "Bearer "+text)
	return r
}

// TestPageLink checks that a link opens the page in one browser, once, and until the server ends.
func TestPageLink(t *testing.T) {
	dir, reg := t.TempDir(), &memory{}
	cfg := ca.Config{Dir: dir, Local: true}
	a := open(t, cfg, reg)
	code := a.NewPageCode()
	for name, f := range map[string]func(*http.Request){
		"elsewhere": func(r *http.Request) { r.RemoteAddr = "192.0.2.1:1" },
		"proxy":     func(r *http.Request) { r.Header.Set("X-Forwarded-For", "192.0.2.1") },
		"rebinding": func(r *http.Request) { r.Host = "example.org" },
		"form":      func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") },
		"GET":       func(r *http.Request) { r.Method = "GET" },
	} {
		if text, status := exchange(a, code, f); text != "" || status/100 != 4 {
			t.Errorf("%s: %d %q", name, status, text)
		}
	}
	text, status := exchange(a, code)
	if status != 200 || text == "" {
		t.Fatalf("%d %q", status, text)
	}
	if again, status := exchange(a, code); again != "" || status != 403 {
		t.Errorf("a second time: %d %q", status, again)
	}
	if guess, status := exchange(a, ""); guess != "" || status != 403 {
		t.Errorf("no code: %d %q", status, guess)
	}
	if p, err := a.Identify(bearer(text)); err != nil || p != (token.Principal{Role: registry.Viewer}) {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := a.Identify(bearer(code)); !ca.IsUnidentified(err) {
		t.Errorf("the code as a token: %+v, %v", p, err)
	}
	if p, err := a.Identify(bearer(text + "A")); !ca.IsUnidentified(err) {
		t.Errorf("a wrong token: %+v, %v", p, err)
	}
	elsewhere := bearer(text)
	elsewhere.RemoteAddr = "192.0.2.1:1"
	if p, err := a.Identify(elsewhere); !ca.IsUnidentified(err) {
		t.Errorf("from elsewhere: %+v, %v", p, err)
	}
	// After a restart another user may have had the port, and what the browser sent to it.
	if p, err := open(t, cfg, reg).Identify(bearer(text)); !ca.IsUnidentified(err) {
		t.Errorf("after a restart: %+v, %v", p, err)
	}
}

// TestPageLinkEnds checks that a link ends after an hour, and that their number is limited.
func TestPageLinkEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := open(t, ca.Config{Dir: t.TempDir(), Local: true}, &memory{})
		code := a.NewPageCode()
		time.Sleep(time.Hour + time.Second)
		if text, status := exchange(a, code); text != "" || status != 403 {
			t.Errorf("after an hour: %d %q", status, text)
		}
		first := a.NewPageCode()
		var last string
		for range 64 {
			time.Sleep(time.Second)
			last = a.NewPageCode()
		}
		if text, _ := exchange(a, first); text != "" {
			t.Error("the oldest of many links is valid")
		}
		if text, _ := exchange(a, last); text == "" {
			t.Error("the newest of many links is not valid")
		}
	})
}

package meterreader

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/attribute/external"
	"mete.dev/mete/internal/testkit"
)

// spec parses a meter with these keys beside the required ones.
func spec(t *testing.T, keys ...string) *external.Spec {
	t.Helper()
	text := "meters:\n  - name: m\n    nodes: [n]\n    " + strings.Join(keys, "\n    ") + "\n"
	specs, err := external.Parse([]byte(text), true)
	if err != nil {
		t.Fatal(err)
	}
	return &specs[0]
}

// read reads a polled meter once.
func read(t *testing.T, keys ...string) (int64, error) {
	t.Helper()
	s, err := open(spec(t, keys...))
	if err != nil {
		return 0, err
	}
	return s.(*poller).Read(t.Context())
}

// checkRead checks the value of a meter (an int) or the text in its error (a string).
func checkRead(t *testing.T, want any, keys ...string) {
	t.Helper()
	v, err := read(t, keys...)
	if text, ok := want.(string); ok {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%q: %d, %v; want %q", keys, v, err, text)
		}
		return
	}
	if err != nil || v != int64(want.(int)) {
		t.Errorf("%q: %d, %v; want %d", keys, v, err, want)
	}
}

// listen runs an MQTT meter until the test ends.
func listen(t *testing.T, url string, keys ...string) *recorded {
	t.Helper()
	s, err := open(spec(t, append([]string{"type: mqtt", "url: " + url, "user: mete"}, keys...)...))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	r := &recorded{}
	go func() {
		defer close(ended)
		s.Run(ctx, r.add)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return r
}

func TestHTTP(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/plug", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"id":0,"apower":8.9,"aenergy":{"total":6532.25,"by_minute":[45.1,47.9]}}`)
	})
	mux.HandleFunc("/number", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "12.5") })
	mux.HandleFunc("/secret", func(w http.ResponseWriter, r *http.Request) {
		if user, pass, _ := r.BasicAuth(); user+pass != "metepass" && r.Header.Get("Authorization") != "Bearer tok" {
			w.WriteHeader(http.StatusUnauthorized)
		}
		fmt.Fprint(w, 7)
	})
	asked := make(chan struct{})
	mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	})
	mux.HandleFunc("/large", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat(" ", maxText+1)) })
	s := httptest.NewServer(mux)
	defer s.Close()
	at := func(path string) string { return "url: " + s.URL + path }
	checkRead(t, 8900000, "type: http", at("/plug"), "path: apower", "unit: W")
	checkRead(t, 6532250000000, "type: http", at("/plug"), "path: aenergy.total", "unit: kJ", "interval: 5s")
	checkRead(t, 23516100000000, "type: http", at("/plug"), "path: aenergy.total", "unit: Wh")
	checkRead(t, 47900000, "type: http", at("/plug"), "path: aenergy.by_minute[1]", "unit: J")
	checkRead(t, "there is no voltage", "type: http", at("/plug"), "path: voltage", "unit: W")
	checkRead(t, "is not a number", "type: http", at("/plug"), "unit: W")
	checkRead(t, 12500000, "type: http", at("/number"), "unit: W")
	checkRead(t, "404 Not Found", "type: http", at("/none"), "unit: W")
	checkRead(t, "401 Unauthorized", "type: http", at("/secret"), "unit: W")
	checkRead(t, 7000000, "type: http", at("/secret"), "unit: W", "user: mete", "password: pass")
	checkRead(t, "more than", "type: http", at("/large"), "unit: W")
	t.Setenv("METE_TEST_TOKEN", "tok")
	checkRead(t, 7000000, "type: http", at("/secret"), "unit: W", "token_env: METE_TEST_TOKEN")
	checkRead(t, "METE_TEST_NONE is not set", "type: http", at("/secret"), "unit: W", "token_env: METE_TEST_NONE")
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("pass\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	checkRead(t, 7000000, "type: http", at("/secret"), "unit: W", "user: mete", "password_file: "+file)
	checkRead(t, "no such file", "type: http", at("/secret"), "unit: W", "password_file: "+file+"2")
	checkRead(t, "more than one place", "type: http", at("/secret"), "unit: W", "password: x", "password_file: "+file)

	// Reading a meter that does not answer ends with the context.
	src, err := open(spec(t, "type: http", at("/slow"), "unit: W"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		<-asked
		stop()
	}()
	if v, err := src.(*poller).Read(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("slow meter: %d, %v", v, err)
	}
}

// silent is a meter that does not answer.
type silent struct{}

func (silent) Read(ctx context.Context) (int64, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

// A poller limits a reading to its interval, and to readTimeout.
// A meter cannot send the server elsewhere: another port of the same host would get the
// credentials, and the answer of any address would be read.
func TestRedirect(t *testing.T) {
	asked := ""
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked += r.URL.Path + " " + r.Header.Get("Authorization")
		_, _ = io.WriteString(w, "7")
	}))
	defer other.Close()
	meter := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+"/secret", http.StatusFound)
	}))
	defer meter.Close()
	for _, kind := range [][]string{{"type: http", "unit: W"}, {"type: prometheus", "unit: W", "query: q"}, {"type: redfish", "unit: W"}} {
		if v, err := read(t, append(kind, "url: "+meter.URL, "user: mete", "password: hunter2")...); err == nil {
			t.Errorf("%s: %d", kind[0], v)
		}
	}
	checkRead(t, "302 Found", "type: http", "unit: W", "url: "+meter.URL)
	if asked != "" {
		t.Errorf("the other server got %s", asked)
	}
}

// An error of a meter names its host, and nothing else of its URL.
func TestURLIsHidden(t *testing.T) {
	meter := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusTeapot) }))
	defer meter.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, url := range []string{meter.URL, gone.URL} {
		for _, kind := range [][]string{{"type: http", "unit: W"}, {"type: prometheus", "unit: W", "query: q"}, {"type: redfish", "unit: W"}} {
			_, err := read(t, append(kind, "url: "+url+"/PATHSECRET?key=QUERYSECRET", "user: mete", "password: hunter2")...)
			host := strings.TrimPrefix(url, "http://")
			if err == nil || strings.Contains(err.Error(), "SECRET") || kind[0] != "type: redfish" && !strings.Contains(err.Error(), host) {
				t.Errorf("%s: %v", kind[0], err)
			}
		}
	}
}

func TestPollerTimeout(t *testing.T) {
	for interval, want := range map[time.Duration][]time.Duration{
		time.Second: {time.Second, 2 * time.Second, 3 * time.Second},
		time.Minute: {readTimeout, time.Minute + readTimeout, 2*time.Minute + readTimeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			began := time.Now()
			var failed []time.Duration
			(&poller{silent{}, interval}).Run(ctx, func(_ time.Time, _ int64, err error) {
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("error %v, want a time-out", err)
				}
				if failed = append(failed, time.Since(began)); len(failed) == len(want) {
					stop()
				}
			})
			if !slices.Equal(failed, want) {
				t.Errorf("interval %v: failed after %v, want %v", interval, failed, want)
			}
		})
	}
}

// Certificates are checked unless tls_insecure is set.
func TestTLS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, 3) }))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	checkRead(t, "certificate", "type: http", "url: "+s.URL, "unit: W")
	checkRead(t, 3000000, "type: http", "url: "+s.URL, "unit: W", "ca_file: "+ca)
	checkRead(t, 3000000, "type: http", "url: "+s.URL, "unit: W", "tls_insecure: true")
	if err := os.WriteFile(ca, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	checkRead(t, "no certificate in PEM", "type: http", "url: "+s.URL, "unit: W", "ca_file: "+ca)
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meter")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	checkRead(t, "no such file", "type: file", "file: "+path, "unit: W")
	write("230.5\n")
	checkRead(t, 230500000, "type: file", "file: "+path, "unit: W")
	write(`{"power":[{"w":1}]}`)
	checkRead(t, 1000000, "type: file", "file: "+path, "unit: W", `path: power[0].w`)
	old := time.Now().Add(-3 * time.Minute)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	checkRead(t, "last written 3", "type: file", "file: "+path, "unit: W", `path: power[0].w`)
	checkRead(t, 1000000, "type: file", "file: "+path, "unit: J", `path: power[0].w`)
}

// recorded holds what a source recorded.
type recorded struct {
	mu     sync.Mutex
	values []int64
	errs   []string
}

func (r *recorded) add(_ time.Time, v int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.errs = append(r.errs, err.Error())
		return
	}
	r.values = append(r.values, v)
}

// all returns the values recorded so far.
func (r *recorded) all() []int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.values)
}

// until waits for ok, which runs with the mutex held.
func (r *recorded) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	testkit.Eventually(t, what, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return ok()
	})
}

// failed reports whether a recorded error contains text. The caller holds the mutex.
func (r *recorded) failed(text string) bool {
	return slices.ContainsFunc(r.errs, func(s string) bool { return strings.Contains(s, text) })
}

func (r *recorded) last() int64 {
	if len(r.values) == 0 {
		return -1
	}
	return r.values[len(r.values)-1]
}

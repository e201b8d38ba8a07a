package meters

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

// spec reads one meter from a file of meters, with the keys that all have.
func spec(t *testing.T, keys ...string) *external.Spec {
	t.Helper()
	text := "meters:\n  - name: m\n    nodes: [n]\n    " + strings.Join(keys, "\n    ") + "\n"
	specs, err := external.Parse([]byte(text), true)
	if err != nil {
		t.Fatal(err)
	}
	return &specs[0]
}

// show asks a polled meter once.
func show(t *testing.T, keys ...string) (int64, error) {
	t.Helper()
	s, err := open(spec(t, keys...))
	if err != nil {
		return 0, err
	}
	return s.(*poller).Read(t.Context())
}

// shows wants a value, or an error that says something.
func shows(t *testing.T, want any, keys ...string) {
	t.Helper()
	v, err := show(t, keys...)
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

// listen runs a meter of a broker until the test ends.
func listen(t *testing.T, url string, keys ...string) *taken {
	t.Helper()
	s, err := open(spec(t, append([]string{"type: mqtt", "url: " + url, "user: mete"}, keys...)...))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	k := &taken{}
	go func() {
		defer close(ended)
		s.Run(ctx, k.take)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return k
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
	shows(t, 8900000, "type: http", at("/plug"), "path: apower", "unit: W")
	shows(t, 6532250000000, "type: http", at("/plug"), "path: aenergy.total", "unit: kJ", "interval: 5s")
	shows(t, 23516100000000, "type: http", at("/plug"), "path: aenergy.total", "unit: Wh")
	shows(t, 47900000, "type: http", at("/plug"), "path: aenergy.by_minute[1]", "unit: J")
	shows(t, "there is no voltage", "type: http", at("/plug"), "path: voltage", "unit: W")
	shows(t, "is no number", "type: http", at("/plug"), "unit: W")
	shows(t, 12500000, "type: http", at("/number"), "unit: W")
	shows(t, "404 Not Found", "type: http", at("/none"), "unit: W")
	shows(t, "401 Unauthorized", "type: http", at("/secret"), "unit: W")
	shows(t, 7000000, "type: http", at("/secret"), "unit: W", "user: mete", "password: pass")
	shows(t, "more than", "type: http", at("/large"), "unit: W")
	t.Setenv("METE_TEST_TOKEN", "tok")
	shows(t, 7000000, "type: http", at("/secret"), "unit: W", "token_env: METE_TEST_TOKEN")
	shows(t, "the environment has no METE_TEST_NONE", "type: http", at("/secret"), "unit: W", "token_env: METE_TEST_NONE")
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("pass\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	shows(t, 7000000, "type: http", at("/secret"), "unit: W", "user: mete", "password_file: "+file)
	shows(t, "no such file", "type: http", at("/secret"), "unit: W", "password_file: "+file+"2")
	shows(t, "more than one place", "type: http", at("/secret"), "unit: W", "password: x", "password_file: "+file)

	// One that does not answer is asked no longer than who asks has time.
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
		t.Errorf("a slow one: %d, %v", v, err)
	}
}

// never is a meter that does not answer.
type never struct{}

func (never) Read(ctx context.Context) (int64, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

// A meter that does not answer costs its own time only: its interval, and never more
// than patience.
func TestPollerIsPatient(t *testing.T) {
	for interval, want := range map[time.Duration][]time.Duration{
		time.Second: {time.Second, 2 * time.Second, 3 * time.Second},
		time.Minute: {readTimeout, time.Minute + readTimeout, 2*time.Minute + readTimeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			began := time.Now()
			var failed []time.Duration
			(&poller{never{}, interval}).Run(ctx, func(_ time.Time, _ int64, err error) {
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("it fails with %v", err)
				}
				if failed = append(failed, time.Since(began)); len(failed) == len(want) {
					stop()
				}
			})
			if !slices.Equal(failed, want) {
				t.Errorf("asked each %v, it fails after %v, want %v", interval, failed, want)
			}
		})
	}
}

// Certificates are checked unless it is said otherwise.
func TestTLS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, 3) }))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	shows(t, "certificate", "type: http", "url: "+s.URL, "unit: W")
	shows(t, 3000000, "type: http", "url: "+s.URL, "unit: W", "ca_file: "+ca)
	shows(t, 3000000, "type: http", "url: "+s.URL, "unit: W", "tls_insecure: true")
	if err := os.WriteFile(ca, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	shows(t, "no certificate in PEM", "type: http", "url: "+s.URL, "unit: W", "ca_file: "+ca)
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meter")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	shows(t, "no such file", "type: file", "file: "+path, "unit: W")
	write("230.5\n")
	shows(t, 230500000, "type: file", "file: "+path, "unit: W")
	write(`{"power":[{"w":1}]}`)
	shows(t, 1000000, "type: file", "file: "+path, "unit: W", `path: power[0].w`)
	old := time.Now().Add(-3 * time.Minute)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	shows(t, "was written 3", "type: file", "file: "+path, "unit: W", `path: power[0].w`)
	shows(t, 1000000, "type: file", "file: "+path, "unit: J", `path: power[0].w`)
}

// taken is what a source gave.
type taken struct {
	mu     sync.Mutex
	values []int64
	errs   []string
}

func (k *taken) take(_ time.Time, v int64, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		k.errs = append(k.errs, err.Error())
		return
	}
	k.values = append(k.values, v)
}

// all are the values that it gave so far.
func (k *taken) all() []int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.values)
}

// until waits for what a source gives; ok may look at k.
func (k *taken) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	testkit.Eventually(t, what, func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return ok()
	})
}

// failed says whether an error has said this; k.mu is held.
func (k *taken) failed(text string) bool {
	return slices.ContainsFunc(k.errs, func(s string) bool { return strings.Contains(s, text) })
}

func (k *taken) last() int64 {
	if len(k.values) == 0 {
		return -1
	}
	return k.values[len(k.values)-1]
}

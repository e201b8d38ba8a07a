package up

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/testkit/toptest"
)

// station is a Meter with a ledger, to which it admits the bearer of a token. It records the URL
// at which it is served.
type station struct {
	*toptest.Meter
	at  chan string // nil records nothing
	dir string
}

func (s station) Serve(url string) {
	if s.at != nil {
		s.at <- url
	}
}

func (station) Authorize(r *http.Request) error {
	if r.Header.Get("Authorization") != "Bearer right" {
		return fmt.Errorf("not the right token: %w", fault.ErrDenied)
	}
	return nil
}

func (s station) PageLink() (string, error) { return "http://127.0.0.1/#code=once", nil }

func (s station) Socket() string { return filepath.Join(s.dir, "sock") }

// TestServed checks that a meter gets the URL for jobs, reachable from this machine: its address,
// because the name localhost may lead to another one, where another user may listen.
func TestServed(t *testing.T) {
	t.Setenv("METE_STATE", t.TempDir())
	for listen, want := range map[string]string{"127.0.0.1:0": "http://127.0.0.1:", "localhost:0": "http://127.0.0.1:", "0.0.0.0:0": "http://127.0.0.1:"} {
		s := station{&toptest.Meter{Tick: time.Millisecond}, make(chan string, 1), t.TempDir()}
		ctx, cancel := context.WithCancel(t.Context())
		out := lines{make(chan string, 1)}
		cmd := Command(func(context.Context, Options) (Meter, http.Handler, error) { return s, nil, nil })
		cmd.SetArgs([]string{"--listen", listen, "--insecure"})
		cmd.SetOut(out)
		done := make(chan error, 1)
		go func() { done <- cmd.ExecuteContext(ctx) }()
		printed := <-out.c
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if at := <-s.at; !strings.HasPrefix(at, want) || !strings.Contains(printed, at) {
			t.Errorf("--listen %s: told %s, want %s, and printed %q", listen, at, want, printed)
		}
	}
}

// TestWhoSees checks who sees the latest second: only who is admitted, unless the machine is to
// be shown to everyone. Everyone gets the files of the page and the health.
func TestWhoSees(t *testing.T) {
	state := t.TempDir()
	t.Setenv("METE_STATE", state)
	for args, open := range map[string]bool{"": false, "--insecure": true} {
		ctx, cancel := context.WithCancel(t.Context())
		out := lines{make(chan string, 1)}
		cmd := Command(func(context.Context, Options) (Meter, http.Handler, error) {
			return station{Meter: &toptest.Meter{Tick: time.Millisecond}, dir: t.TempDir()}, nil, nil
		})
		cmd.SetArgs(append([]string{"--listen", "127.0.0.1:0"}, strings.Fields(args)...))
		cmd.SetOut(out)
		done := make(chan error, 1)
		go func() { done <- cmd.ExecuteContext(ctx) }()
		printed := <-out.c
		if !strings.Contains(printed, "open once, within an hour: http://127.0.0.1/#code=once\n") {
			t.Errorf("printed %q", printed)
		}
		url := strings.Fields(printed)[2]
		for _, c := range []struct {
			path, token string
			want        int
		}{
			{"/", "", 200}, {"/healthz", "", 200}, {"/static/-/js/app.js", "", 200},
			{"/api/v0/snapshot", "", 401}, {"/api/v0/snapshot", "wrong", 403}, {"/api/v0/snapshot", "right", 200},
		} {
			r, err := http.NewRequestWithContext(ctx, "GET", url+c.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if c.token != "" {
				r.Header.Set("Authorization", "Bearer "+c.token)
			}
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			if want := c.want; resp.StatusCode != want && !(open && resp.StatusCode == 200) {
				t.Errorf("%s %s with %q: %s, want %d", args, c.path, c.token, resp.Status, want)
			}
			if open && resp.StatusCode != 200 {
				t.Errorf("%s %s with %q: %s", args, c.path, c.token, resp.Status)
			}
			if err := resp.Body.Close(); err != nil {
				t.Error(err)
			}
		}
		if links, err := os.ReadDir(filepath.Join(state, "loopback")); err != nil || len(links) != 1 {
			t.Errorf("published: %v, %v", links, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(state, "loopback")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after the end: %v", err)
		}
	}
}

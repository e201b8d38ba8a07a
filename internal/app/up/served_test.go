package up

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/testkit/toptest"
)

// station is a Meter that records the URL at which it is served.
type station struct {
	*toptest.Meter
	at chan string
}

func (s station) Serve(url string) { s.at <- url }

// TestServed checks that a meter gets the URL for jobs, reachable from this machine.
func TestServed(t *testing.T) {
	for listen, want := range map[string]string{"127.0.0.1:0": "http://127.0.0.1:", "localhost:0": "http://localhost:", "0.0.0.0:0": "http://127.0.0.1:"} {
		s := station{&toptest.Meter{Tick: time.Millisecond}, make(chan string, 1)}
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

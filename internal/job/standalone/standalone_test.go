package standalone

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/pki/token"
)

// TestEndDuringEnrollment checks that the end of a job does not wait for an enrollment that the server does
// not answer: it ends this one and makes one of its own, so that both together last no longer than one.
func TestEndDuringEnrollment(t *testing.T) {
	for name, end := range map[string]func(*Run) error{
		"end": func(r *Run) error {
			return r.End(t.Context(), &usage.Window{Rows: make([]usage.Row, 1)}, Outcome{})
		},
		"handoff": func(r *Run) error {
			r.HandOff(&usage.Window{Rows: make([]usage.Row, 1)})
			return r.FinishHandOff(t.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int32
			asked := make(chan struct{})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // without it the context does not end with the connection
				if requests.Add(1) == 2 {          // that while the job runs
					close(asked)
					<-r.Context().Done()
				}
				w.WriteHeader(http.StatusServiceUnavailable)
			}))
			defer server.Close()
			h, err := hostfs.Open("/")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = h.Close() }() // read only
			cfg := Default()
			cfg.Dir, cfg.Server, cfg.Wait = t.TempDir(), server.URL, time.Minute
			cfg.Token = func() (token.Token, error) { return token.New([5]byte{1}, [20]byte{2}, token.Fingerprint{3}), nil }
			s, err := Open(t.Context(), cfg, h)
			if err != nil || s.Unreachable == nil {
				t.Fatalf("%v, unreachable: %v", err, s.Unreachable)
			}
			ctx, stop := context.WithCancel(t.Context())
			r := &Run{sender: s, closed: make(chan closedWindow, 1), stop: stop}
			r.wrote.Go(func() {
				r.enroll(ctx) // as once a minute
				r.storeWindows(ctx)
			})
			<-asked
			if err := end(r); !errors.Is(err, fault.ErrUnavailable) || requests.Load() != 3 {
				t.Errorf("%v after %d requests, want the answer to the third", err, requests.Load())
			}
			if !errors.Is(r.storeErr, context.Canceled) {
				t.Errorf("the enrollment while the job ran ended with %v, want that the end of the job ended it", r.storeErr)
			}
		})
	}
}

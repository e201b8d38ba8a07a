package up_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"mete.dev/mete/internal/app/up"
	"mete.dev/mete/internal/collect/sampler"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/pki/ca"
	"mete.dev/mete/internal/testkit/hosttest"
)

func config(state string) up.AllInOneConfig {
	cfg := up.DefaultAllInOne(state)
	cfg.Agent.Machine.Config = sampler.Config{Tick: 20 * time.Millisecond, Window: 100 * time.Millisecond}
	cfg.Agent.Machine.Reader = "files"
	return cfg
}

// sums returns the machine's use of the last two hours, and the sum of all rows.
func sums(t *testing.T, s *up.AllInOne) (total, whole float64) {
	t.Helper()
	w := httptest.NewRecorder()
	q := httptest.NewRequest(http.MethodGet, "http://localhost/v1/usage?by=kind&from="+time.Now().Add(-2*time.Hour).UTC().Format(time.RFC3339), nil)
	ca.TrustLocal(s.Handler()).ServeHTTP(w, q)
	var a struct {
		Total, Whole *struct {
			CPU float64 `json:"cpu_seconds"`
		}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil || w.Code != 200 {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	if a.Total == nil || a.Whole == nil {
		return 0, 0
	}
	return a.Total.CPU, a.Whole.CPU
}

// TestAllInOne checks that an AllInOne books every window until it is closed, also the last one,
// and continues as the same node when it is reopened; the time between is booked once.
func TestAllInOne(t *testing.T) {
	hosttest.Need(t, "procfs")
	// Socket paths must be short.
	state, err := os.MkdirTemp("", "mete-local-")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.RemoveAll(state); err != nil {
			t.Error(err)
		}
	}()
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	var node string
	cpus := 0
	began := time.Now()
	var before float64
	for range 2 {
		s, err := up.OpenAllInOne(t.Context(), config(state), log)
		if err != nil {
			t.Fatal(err)
		}
		if node != "" && s.Node.ID != node {
			t.Errorf("node %s, was %s", s.Node.ID, node)
		}
		node = s.Node.ID
		if _, err := up.OpenAllInOne(t.Context(), config(state), log); !errors.Is(err, fault.ErrConflict) || fault.Hint(err) == "" {
			t.Errorf("a second one with its state: %v", err)
		}
		for range 8 {
			m, err := s.Next(t.Context())
			if err != nil || len(m.Rows) == 0 {
				t.Fatalf("tick %+v, %v", m, err)
			}
			cpus = m.CPUs
		}
		var total, whole float64
		for whole <= before {
			if _, err := s.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
			total, whole = sums(t, s)
		}
		if total != whole {
			t.Errorf("rows sum to %v s, machine used %v s", total, whole)
		}
		before = whole
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		_, _ = s.Next(t.Context()) // the last one, if still there
		if _, err := s.Next(t.Context()); err == nil {
			t.Error("got a tick after the end")
		}
	}
	if most := time.Since(began).Seconds() * float64(cpus); before > most {
		t.Errorf("%v s of CPU time in %v on %d CPUs", before, time.Since(began), cpus)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s, err := up.OpenAllInOne(ctx, config("/dev/null/x"), log); err == nil || fault.Hint(err) == "" {
		t.Errorf("an invalid state directory: %v, %v", s, err)
	}
}

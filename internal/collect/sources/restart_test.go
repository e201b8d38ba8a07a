package sources_test

import (
	"log/slog"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/hosttest"
)

// Between two readings of a captured machine the meter is restarted from a checkpoint: each
// workload is booked the same as without a restart.
func TestCapturedRestart(t *testing.T) {
	for _, name := range hosttest.Names(t) {
		t.Run(name, func(t *testing.T) {
			h := hosttest.Open(t, name)
			open := func(checkpoint ...[]byte) *sources.Machine {
				cfg := everyTick(sources.Auto)
				cfg.Checkpoint = checkpoint
				m, err := sources.New(h, cfg, slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				mustTick(t, m)
				return m
			}
			m := open()
			saved := m.Accounts().Checkpoint(nil, true)
			mustClose(t, m)
			before := rawCounters(t, h)
			hosttest.Step(t, h)
			m = open(saved)
			defer mustClose(t, m)
			if _, err := m.Tick(); err != nil { // closes the window
				t.Fatal(err)
			}
			w := m.ClosedWindow()
			if w == nil || w.StartReason != usage.StartResumed {
				t.Fatalf("window %+v, want one that resumes", w)
			}
			checkCPU(t, w, before, rawCounters(t, h))
		})
	}
}

// Between two readings of a captured machine some ticks fail, as a file of the machine as a
// whole cannot be read: each workload is booked the same as without them.
func TestCapturedFailedTicks(t *testing.T) {
	for _, name := range hosttest.Names(t) {
		t.Run(name, func(t *testing.T) {
			windows := [2]*usage.Window{}
			for i := range windows {
				h := hosttest.Open(t, name)
				cfg := everyTick(sources.Auto)
				cfg.Node = "node"
				m, err := sources.New(h, cfg, slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				defer mustClose(t, m)
				mustTick(t, m)
				hosttest.Step(t, h)
				file := h.Path("/proc/meminfo")
				whole, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				for range 2 * i {
					if err := os.WriteFile(file, []byte("MemTotal: many"), 0o644); err != nil {
						t.Fatal(err)
					}
					if _, err := m.Tick(); err == nil {
						t.Fatal("a tick without the machine's memory")
					}
				}
				if err := os.WriteFile(file, whole, 0o644); err != nil {
					t.Fatal(err)
				}
				mustTick(t, m)
				windows[i] = m.ClosedWindow().Clone()
			}
			if d := cmp.Diff(windows[0], windows[1]); d != "" {
				t.Errorf("without failed ticks against with them:\n%s", d)
			}
		})
	}
}

func mustClose(t *testing.T, m *sources.Machine) {
	t.Helper()
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// An unreadable checkpoint costs only its own content.
func TestUnreadableCheckpoint(t *testing.T) {
	h := hosttest.Open(t, hosttest.Names(t)[0])
	cfg := everyTick(sources.Auto)
	cfg.Checkpoint, cfg.Node = [][]byte{{99}}, "node"
	m, err := sources.New(h, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, m)
	mustTick(t, m)
	var w usage.Window
	m.Accounts().CloseWindow(&w)
	if w.StartReason != usage.StartFirst || len(w.Gaps) != 1 || w.Gaps[0].Reason != usage.StateLost {
		t.Errorf("opening %v, gaps %v; want the first window and that the state was lost", w.StartReason, w.Gaps)
	}
	if boot, wall, err := m.Clock(); err != nil || boot <= 0 || wall <= 0 || m.Boot() == "" {
		t.Errorf("boot %q, clocks %d and %d, %v", m.Boot(), boot, wall, err)
	}
}

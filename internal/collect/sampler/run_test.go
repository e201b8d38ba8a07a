package sampler_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/collect/sampler"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// running runs a sampler concurrently until stop is called.
func running(t *testing.T, s *sampler.Sampler, tick func(), window func(*usage.Window)) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, tick, window) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// seen is a source that counts its readings, readable from another goroutine.
type seen struct {
	reads, at, fails atomic.Int64
	ending           [][]string // keys of ending jobs, of readings with some
}

func (x *seen) Read(s *usage.Snapshot) error {
	x.reads.Add(1)
	x.at.Store(s.At)
	if len(s.Ending) > 0 {
		x.ending = append(x.ending, slices.Clone(s.Ending))
	}
	if x.fails.Load() > 0 {
		return errors.New("failed on purpose")
	}
	return nil
}

// Each request gets a tick that begins after it, concurrent requests share one, and the
// length of windows does not change.
func TestRequestTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var x seen
		start := time.Now()
		s := newSampler(&clock{start: start}, newGroups(), &x)
		ticks := 0
		var ws []usage.Window
		stop := running(t, s, func() { ticks++ }, func(w *usage.Window) { ws = append(ws, *w.Clone()) })
		time.Sleep(500 * time.Millisecond)
		for i := range 20 {
			begun := time.Now()
			reads := x.reads.Load()
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() {
					if err := s.RequestTick(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if took := time.Since(begun); x.reads.Load() > reads+2 || took > 20*time.Millisecond || x.at.Load() < int64(begun.Sub(start)+time.Hour) {
				t.Errorf("round %d: %d ticks for ten requests, after %v", i, x.reads.Load()-reads, took)
			}
		}
		time.Sleep(20*time.Second + 500*time.Millisecond - time.Since(start))
		stop()
		if ticks != 21 || len(ws) != 3 || ws[0].Length() != 10*time.Second || ws[1].Length() != 10*time.Second {
			t.Errorf("%d ticks, %d windows, the first %v long; want 21, 3, 10s", ticks, len(ws), ws[0].Length())
		}
		if err := s.RequestTick(t.Context()); !errors.Is(err, fault.ErrUnavailable) {
			t.Errorf("request after the end: %v, want ErrUnavailable", err)
		}
	})
}

// A request for the end of a job gets a tick that begins after it, whose keys the function of OnBooked
// gets once, after the window of that tick, and its error; other requests do not get that error.
func TestRequestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var x seen
		s := newSampler(&clock{start: time.Now()}, newGroups(), &x)
		var calls [][]string
		failed := errors.New("the disk is full")
		var fail error
		closed := 0
		s.OnBooked(func(ending []string) error {
			if calls = append(calls, slices.Clone(ending)); fail == nil && len(ending) > 0 && ending[0] == "last" && closed == 0 {
				t.Error("called before the last window")
			}
			return fail
		})
		stop := running(t, s, nil, func(*usage.Window) { closed++ })
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		if len(calls) != 1 || calls[0] != nil {
			t.Errorf("calls %q, want one for the first tick", calls)
		}
		fail = failed
		var both sync.WaitGroup
		both.Go(func() {
			if err := s.RequestEnd(t.Context(), "a"); !errors.Is(err, failed) {
				t.Errorf("the end of a job: %v", err)
			}
		})
		both.Go(func() {
			if err := s.RequestTick(t.Context()); err != nil {
				t.Errorf("a tick: %v", err)
			}
		})
		both.Wait()
		synctest.Wait()
		fail = nil
		if err := s.RequestEnd(t.Context(), "b"); err != nil {
			t.Error(err)
		}
		calls = slices.DeleteFunc(calls, func(c []string) bool { return len(c) == 0 })
		if want := [][]string{{"a"}, {"b"}}; !slices.EqualFunc(calls, want, slices.Equal) {
			t.Errorf("calls %q, want %q", calls, want)
		} else if !slices.EqualFunc(x.ending, want, slices.Equal) {
			t.Errorf("sources received the ends of %q, want %q", x.ending, want)
		}
		last := make(chan error, 1)
		go func() { last <- s.RequestEnd(t.Context(), "last") }()
		synctest.Wait() // it waits for its tick
		stop()
		if err := <-last; err != nil || !slices.Equal(calls[len(calls)-1], []string{"last"}) {
			t.Errorf("as Run ended: %v, calls %q", err, calls)
		}
	})
}

// A regular tick serves earlier requests, and a canceled request blocks nothing.
func TestRequestBeforeTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var x seen
		s := newSampler(&clock{start: time.Now()}, newGroups(), &x)
		early, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := s.RequestTick(early); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("request before Run: %v", err)
		}
		stop := running(t, s, nil, nil)
		time.Sleep(995 * time.Millisecond)
		if err := s.RequestTick(t.Context()); err != nil {
			t.Error(err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := s.RequestTick(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("canceled request: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if got := x.reads.Load(); got != 3 {
			t.Errorf("%d ticks, want the first, the requested one and the second", got)
		}
		time.Sleep(20 * time.Millisecond)
		x.fails.Store(1)
		if err := s.RequestTick(t.Context()); err == nil {
			t.Error("a failed tick was reported as taken")
		}
		x.fails.Store(0)
		stop()
	})
}

// After a restart of the agent the first window has what a job used meanwhile, and windows
// are contiguous, in wall time too although the clock drifted.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, g := &clock{start: time.Now()}, newGroups()
		cfg := sampler.Config{Tick: time.Second, Window: 10 * time.Second}
		var records [][]byte
		var end usage.Window
		used := int64(0)
		for range 4 {
			accounts, err := attribute.Restore("node", records)
			if err != nil {
				t.Fatal(err)
			}
			g.reads = 0
			s := sampler.NewSampler(cfg, accounts, "boot", c, []sampler.Source{g}, slog.New(slog.DiscardHandler))
			stop := running(t, s, nil, func(w *usage.Window) {
				records = append(records, s.Accounts().Checkpoint(nil, false))
				s.Accounts().MarkSaved()
				if end.End != 0 && (w.Start != end.End || w.Offset != end.Offset) {
					t.Errorf("a window from %d at offset %d after one to %d at %d", w.Start, w.Offset, end.End, end.Offset)
				}
				end = *w
				for _, r := range w.Rows {
					if r.Workload.ID == "job" {
						used += r.Usage.Amount[usage.CPU]
						if r.Total[usage.CPU] != used {
							t.Errorf("total %d, the sum of all windows is %d", r.Total[usage.CPU], used)
						}
					}
				}
			})
			time.Sleep(13 * time.Second)
			stop()
			c.set += 100 * time.Millisecond
			time.Sleep(time.Hour)
		}
		if want := int64(4*13*time.Second+3*time.Hour) / 2; used != want {
			t.Errorf("booked %d, want %d", used, want)
		}
	})
}

// closings is a source that records which snapshots close a window.
type closings struct{ at []int64 }

func (c *closings) Read(s *usage.Snapshot) error {
	if s.Closing {
		c.at = append(c.at, s.At)
	}
	return nil
}

// TestClosing checks that the snapshots that say so are those at which windows end, whatever ticks are requested in between
// or fail, the last and shorter window too.
func TestClosing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var x closings
		var fails seen
		var ends []int64
		s := newSampler(&clock{start: time.Now()}, newGroups(), &fails, &x)
		stop := running(t, s, nil, func(w *usage.Window) { ends = append(ends, w.End) })
		time.Sleep(500 * time.Millisecond)
		for i := range 50 {
			fails.fails.Store(int64(i % 4 / 3))
			time.Sleep(700 * time.Millisecond)
			if err := s.RequestTick(t.Context()); err != nil && fails.fails.Load() == 0 {
				t.Fatal(err)
			}
		}
		fails.fails.Store(0)
		time.Sleep(time.Second)
		stop()
		if len(ends) < 3 || !slices.Equal(ends, x.at) {
			t.Errorf("windows end at %d, snapshots close them at %d", ends, x.at)
		}
	})
}

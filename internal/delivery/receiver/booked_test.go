package receiver_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/delivery/walltime"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// sampled is a time series database that keeps what it is given.
type sampled struct{ windows []walltime.CutWindow }

func (m *sampled) Append(_ context.Context, _ string, _ []batch.Name, ws []walltime.CutWindow) (batch.Span, error) {
	m.windows = append(m.windows, ws...)
	return batch.Span{}, nil
}

// Time that is booked is not booked again, and gets no samples: of a restored agent, of another
// stream, of a second agent.
func TestBooked(t *testing.T) { synctest.Test(t, testBooked) }

func testBooked(t *testing.T) {
	l, m := newLedger(), &sampled{}
	in, stop := run(t, quick(), l, m)
	defer stop()
	node := newMachine("boot", time.Hour, 1)
	window := func(from, to time.Duration, reason usage.StartReason) usage.Window {
		node.at = int64(from)
		w := node.window(to - from)
		w.Scope, w.StartReason = usage.Machine, reason
		return w
	}
	stream := func(n byte) { node.stream, node.number, node.last = batch.Stream{n}, 0, batch.Hash{} }
	cpu := func() (ns int64) {
		for _, u := range l.minutes {
			ns += u.Amount[usage.CPU]
		}
		return ns / 4
	}
	covered := func() (ns int64) {
		for i := range m.windows {
			ns += m.windows[i].Length().Nanoseconds()
		}
		return ns
	}
	check := func(what string, want time.Duration) {
		t.Helper()
		if got := time.Duration(cpu()); got != want {
			t.Errorf("%s: booked %v of 4 CPUs, want %v", what, got, want)
		}
		if got := time.Duration(covered()); got != want {
			t.Errorf("%s: samples of %v, want %v", what, got, want)
		}
	}
	s := time.Second
	first := node.batch(t, window(0, 30*s, usage.StartFirst), window(30*s, 60*s, usage.StartContinued))
	offer(t, in, "n", node.clock(), first, batch.Accepted)
	offer(t, in, "n", node.clock(), first, batch.Duplicate)
	check("first", 60*s)

	stream(2)
	offer(t, in, "n", node.clock(), node.batch(t, window(20*s, 80*s, usage.StartResumed), window(80*s, 90*s, usage.StartContinued)), batch.Accepted)
	check("restored", 70*s)
	gaps := l.entries[1].Gaps
	want := usage.Gap{From: node.began.Add(60 * s).UTC(), To: node.began.Add(80 * s).UTC(), Reason: usage.Overlapped}
	if len(gaps) != 1 || gaps[0] != want {
		t.Errorf("gaps %v, want %v", gaps, want)
	}

	stream(3)
	offer(t, in, "twin", node.clock(), node.batch(t, window(85*s, 95*s, usage.StartContinued)), batch.Accepted)
	check("second agent", 70*s)
	gaps = l.entries[2].Gaps
	want = usage.Gap{From: node.began.Add(90 * s).UTC(), To: node.began.Add(95 * s).UTC(), Reason: usage.Overlapped}
	if len(gaps) != 1 || gaps[0] != want {
		t.Errorf("gaps %v, want %v", gaps, want)
	}

	other := newMachine("another boot", time.Hour, 9)
	w := other.window(60 * s)
	w.Scope = usage.Machine
	offer(t, in, "other", other.clock(), other.batch(t, w), batch.Accepted)
	check("another machine", 130*s)

	old := newMachine("boot", time.Hour, 8)
	offer(t, in, "old", old.clock(), old.batch(t, old.window(60*s)), batch.Accepted) // states no scope
	check("old agent", 190*s)

	l.rival = "n"
	stream(4)
	_, err := in.Offer(t.Context(), "twin", node.clock(), node.batch(t, window(95*s, 105*s, usage.StartContinued)))
	if wait, ok := fault.RetryAfter(err); !errors.Is(err, fault.ErrUnavailable) || !ok || wait != time.Minute {
		t.Errorf("beside an agent of the same machine: %v, %v", err, wait)
	}
	check("rival", 190*s)
}

// TestLookups: a batch is compared with what is booked, unless it goes on where the latest one of its node ended, within
// half of the time after which another node may measure the kernel.
func TestLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, samples := newLedger(), &sampled{}
		in, stop := run(t, quick(), l, samples)
		defer stop()
		m := newMachine("boot", time.Hour, 1)
		window := func(change func(*usage.Window)) []byte {
			w := m.window(10 * time.Second)
			w.Scope, w.StartReason = usage.Machine, usage.StartContinued
			if change != nil {
				change(&w)
			}
			return m.batch(t, w)
		}
		same := func(*usage.Window) {}
		for _, c := range []struct {
			what    string
			pause   time.Duration
			change  func(*usage.Window)
			lookups int
		}{
			{"first", 0, same, 1},
			{"goes on", 0, same, 0},
			{"again", 0, same, 0},
			{"a pause", 0, func(w *usage.Window) { w.Start++ }, 1},
			{"after the pause", 0, same, 0},
			{"resumed", 0, func(w *usage.Window) { w.StartReason = usage.StartResumed }, 1},
			{"another scope", 0, func(w *usage.Window) { w.Scope = usage.ScopeOf(7) }, 1},
			{"this scope", 0, same, 1},
			{"before the limit", batch.RivalTimeout/2 - 1, same, 0},
			{"at the limit", batch.RivalTimeout / 2, same, 1},
			{"earlier", 0, func(w *usage.Window) { w.Start -= 5e9 }, 1},
		} {
			time.Sleep(c.pause)
			before := l.lookups
			offer(t, in, "n", m.clock(), window(c.change), batch.Accepted)
			if got := l.lookups - before; got != c.lookups {
				t.Errorf("%s: %d lookups, want %d", c.what, got, c.lookups)
			}
		}
		offer(t, in, "n", m.clock(), window(nil), batch.Accepted)
		before, sent := l.lookups, window(nil)
		l.fail = func(*batch.Entry) error { return fault.ErrUnavailable }
		if _, err := in.Offer(t.Context(), "n", m.clock(), sent); !errors.Is(err, fault.ErrUnavailable) || l.lookups != before {
			t.Errorf("%v, %d lookups", err, l.lookups-before)
		}
		l.fail = nil
		if offer(t, in, "n", m.clock(), sent, batch.Accepted); l.lookups != before+1 {
			t.Errorf("refused by the transaction, and offered again: %d lookups, want 1", l.lookups-before)
		}
		if offer(t, in, "n", m.clock(), sent, batch.Duplicate); l.lookups != before+2 {
			t.Errorf("a batch that is booked: %d lookups, want 1", l.lookups-before-1)
		}
		// One with a pause in it ends where its last part does.
		first, second := m.window(10*time.Second), m.window(10*time.Second)
		first.Scope, first.StartReason, second.Scope, second.StartReason = usage.Machine, usage.StartContinued, usage.Machine, usage.StartContinued
		second.Start++
		offer(t, in, "n", m.clock(), m.batch(t, first, second), batch.Accepted)
		before = l.lookups
		if offer(t, in, "n", m.clock(), window(nil), batch.Accepted); l.lookups != before {
			t.Errorf("after a batch with a pause: %d lookups, want none", l.lookups-before)
		}
		// Nor is the stream looked up for samples.
		offer(t, in, "n", m.clock(), window(nil), batch.Accepted)
		l.fails = map[string]error{"Mark": fault.ErrUnavailable}
		had := len(samples.windows)
		if offer(t, in, "n", m.clock(), window(nil), batch.Accepted); len(samples.windows) != had+1 {
			t.Errorf("%d windows have samples, want %d", len(samples.windows), had+1)
		}
		window(nil) // which is missing
		if _, err := in.Offer(t.Context(), "n", m.clock(), window(nil)); !errors.Is(err, fault.ErrUnavailable) {
			t.Errorf("a batch after a missing one: %v", err)
		}
	})
}

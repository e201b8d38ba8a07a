package sampler_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/collect/sampler"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A failure returns the error of a source, nil if there is none now.
type failure func() error

func (f failure) now() error {
	if f == nil {
		return nil
	}
	return f()
}

func always(err error) failure { return func() error { return err } }

// A clock is the machine's clocks, with an adjustable wall clock.
type clock struct {
	start time.Time
	set   time.Duration
	fails failure
}

func (c *clock) Clocks() (boot, mono, wall int64, err error) {
	up := int64(time.Since(c.start)) + int64(time.Hour)
	return up, up, time.Now().Add(c.set).UnixNano(), c.fails.now()
}

// groups is a source of a root group and a job that uses half a CPU.
type groups struct {
	start  time.Time
	reads  int
	booked int
	fails  failure
	root   usage.Group
	job    usage.Group
}

func (g *groups) Booked() { g.booked++ }

func newGroups() *groups {
	g := &groups{start: time.Now()}
	g.root = usage.Group{Slot: usage.Root, Parent: usage.NoSlot, MemoryParent: usage.NoSlot, New: true,
		Workload: workload.Workload{ID: "system", Kind: workload.System}}
	g.job = usage.Group{Slot: 1, New: true, Life: workload.Life{ID: 7}, Workload: workload.Workload{ID: "job", Kind: workload.Path}}
	return g
}

func (g *groups) Read(s *usage.Snapshot) error {
	g.reads++
	if err := g.fails.now(); err != nil {
		return err
	}
	g.root.New, g.job.New = g.reads == 1, g.reads == 1
	used := int64(time.Since(g.start)) / 2
	g.root.Put(usage.CPU, used)
	g.job.Put(usage.CPU, used)
	s.Groups = append(s.Groups[:0], &g.root, &g.job)
	s.Node = usage.Node{CPUs: 2, MemTotal: 1 << 30, MemFree: 1 << 29}
	return nil
}

// extra is a source other than the groups.
type extra struct {
	reads int
	fails failure
}

func (e *extra) Read(*usage.Snapshot) error { e.reads++; return e.fails.now() }

type books map[workload.ID]int64

func (b books) add(w *usage.Window) {
	for _, r := range w.Rows {
		b[r.Workload.ID] += r.Usage.Amount[usage.CPU]
	}
}

func newSampler(c *clock, sources ...sampler.Source) *sampler.Sampler {
	return sampler.NewSampler(sampler.Config{Tick: time.Second, Window: 10 * time.Second}, attribute.New("node"), "boot", c, sources, slog.New(slog.DiscardHandler))
}

// run runs a sampler for a while in virtual time and returns its windows.
func run(t *testing.T, s *sampler.Sampler, span time.Duration, tick func()) (ws []usage.Window) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), span)
	defer cancel()
	err := s.Run(ctx, tick, func(w *usage.Window) {
		copied := *w
		copied.Rows = append([]usage.Row(nil), w.Rows...)
		ws = append(ws, copied)
	})
	if err != nil {
		t.Fatal(err)
	}
	return ws
}

func TestWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ticks := 0
		ws := run(t, newSampler(&clock{start: time.Now()}, newGroups()), 35*time.Second+time.Millisecond, func() { ticks++ })
		if ticks != 36 || len(ws) != 4 {
			t.Fatalf("%d ticks and %d windows in 35 s, want 36 and 4", ticks, len(ws))
		}
		if last := ws[3]; last.Length() != 5*time.Second+time.Millisecond || last.Start != ws[2].End {
			t.Errorf("the last window goes from %d to %d, want the rest of 35 s", last.Start, last.End)
		}
		for i, w := range ws[:3] {
			if w.Length() != 10*time.Second || i > 0 && w.Start != ws[i-1].End || w.Boot != "boot" {
				t.Errorf("window %d from %d to %d", i, w.Start, w.End)
			}
			got := books{}
			got.add(&w)
			if got["job"] != 5e9 || got["system"] != 0 || w.Balance.Violations != 0 {
				t.Errorf("window %d: booked %v, %d violations", i, got, w.Balance.Violations)
			}
		}
	})
}

// The wall clock is set back an hour within a window: all totals are unaffected, windows do
// not overlap, and the next one has the new time.
func TestClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &clock{start: time.Now()}
		s := newSampler(c, newGroups())
		ticks := 0
		offset := time.Now().UnixNano() - int64(time.Hour)
		ws := run(t, s, 30*time.Second+time.Millisecond, func() {
			if ticks++; ticks == 15 {
				c.set = -time.Hour
			}
			want := offset
			if ticks > 21 {
				want -= int64(time.Hour)
			}
			if got := s.Snapshot().Offset; got != want {
				t.Errorf("tick %d: offset %v, want %v", ticks, time.Duration(got), time.Duration(want))
			}
		})
		got := books{}
		for i, w := range ws {
			got.add(&w)
			want := offset
			length := 10 * time.Second
			if i >= 2 {
				want -= int64(time.Hour)
			}
			if i == 3 {
				length = time.Millisecond
			}
			if w.Offset != want || w.Length() != length || i > 0 && w.Start != ws[i-1].End {
				t.Errorf("window %d: from %d to %d, offset %d, want %d", i, w.Start, w.End, w.Offset, want)
			}
		}
		if len(ws) != 4 || got["job"] != 15.0005e9 {
			t.Errorf("%d windows, booked %v, want 4 and 15.0005 s for the job", len(ws), got)
		}
	})
}

// A clock that drifts by less than half a second has no effect.
func TestClockDrifts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &clock{start: time.Now()}
		ws := run(t, newSampler(c, newGroups()), 60*time.Second, func() { c.set += 5 * time.Millisecond })
		for i, w := range ws {
			if w.Offset != ws[0].Offset {
				t.Errorf("window %d has offset %d, the first %d", i, w.Offset, ws[0].Offset)
			}
		}
	})
}

func TestUnsupportedSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &extra{fails: always(fmt.Errorf("meter: %w", fault.ErrUnsupported))}
		ws := run(t, newSampler(&clock{start: time.Now()}, newGroups(), e), 21*time.Second, nil)
		if e.reads != 1 || len(ws) != 3 {
			t.Errorf("read %d times, %d windows; want 1 and 3", e.reads, len(ws))
		}
	})
}

// An error costs its tick: the next one includes its use, and the other sources were read
// anyway.
func TestFailedTicks(t *testing.T) {
	for _, which := range []string{"clock", "first source", "other source"} {
		t.Run(which, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, g, e, last := &clock{start: time.Now()}, newGroups(), &extra{}, &extra{}
				failing := map[string]*failure{"clock": &c.fails, "first source": &g.fails, "other source": &e.fails}[which]
				ticks := 0
				*failing = func() error {
					if up := time.Since(c.start); up > 5500*time.Millisecond && up < 9500*time.Millisecond {
						return errors.New("failed on purpose")
					}
					return nil
				}
				got := books{}
				for i, w := range run(t, newSampler(c, g, e, last), 25*time.Second+time.Millisecond, func() { ticks++ }) {
					got.add(&w)
					if w.Balance.Violations != 0 || i == 0 && w.Length() != 14*time.Second {
						t.Errorf("window %d: %v long, %d violations", i, w.Length(), w.Balance.Violations)
					}
				}
				if ticks != 22 || got["job"] != 12.5005e9 {
					t.Errorf("%d ticks, booked %v; want 22 and 12.5005 s for the job", ticks, got)
				}
				if g.booked != 23 {
					t.Errorf("%d snapshots were booked, want one for each tick and one at the end", g.booked)
				}
				if want := map[string]int{"clock": 23, "first source": 23, "other source": 27}[which]; last.reads != want {
					t.Errorf("the last source was read %d times, want %d", last.reads, want)
				}
			})
		})
	}
}

func TestRunFirstTickFails(t *testing.T) {
	want := errors.New("no groups")
	g := newGroups()
	g.fails = always(want)
	if err := newSampler(&clock{start: time.Now()}, g).Run(t.Context(), nil, nil); !errors.Is(err, want) {
		t.Errorf("Run = %v, want %v", err, want)
	}
}

// Late ticks, because the machine was too busy, are made up for.
func TestMissedTicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ticks := 0
		got := books{}
		ws := run(t, newSampler(&clock{start: time.Now()}, newGroups()), 60*time.Second, func() {
			if ticks++; ticks == 5 {
				time.Sleep(7300 * time.Millisecond)
			}
		})
		for _, w := range ws {
			got.add(&w)
		}
		span := time.Duration(ws[len(ws)-1].End - ws[0].Start)
		if got["job"] != int64(span/2) || ws[0].Length() <= 10*time.Second {
			t.Errorf("booked %v over %v; the first window is %v long", got, span, ws[0].Length())
		}
	})
}

func TestConfig(t *testing.T) {
	if err := sampler.Default().Validate(); err != nil {
		t.Error(err)
	}
	if n := sampler.Default().Ticks(); n != 10 {
		t.Errorf("Ticks() = %d, want 10", n)
	}
	for _, c := range []sampler.Config{{Tick: time.Millisecond, Window: time.Second}, {Tick: 2 * time.Minute, Window: time.Hour}, {Tick: time.Second, Window: time.Millisecond}} {
		if err := c.Validate(); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%+v: %v, want ErrInvalid", c, err)
		}
	}
}

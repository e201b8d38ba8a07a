package tsdb

import (
	"errors"
	"math"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
)

// TestSamplesOfWindows compares all samples of some windows, one after another.
func TestSamplesOfWindows(t *testing.T) {
	t.Parallel()
	const disk, peak, memory = usage.DiskRead, usage.MemoryPeak, usage.Memory
	for name, do := range map[string]func(c *scene){
		"one workload": func(c *scene) {
			c.name("a", func(n *batch.Name) {
				n.Job, n.User, n.Project, n.Parent = "j", "u", "p", "top"
				n.Labels = map[string]string{batch.LabelNamespace: "ns", batch.LabelPod: "pod", batch.LabelContainer: "ctr", "other": "no"}
			})
			w := c.window(5, 15, use{key: "a", res: disk, amount: 10, total: 10}, use{key: "a", res: peak, amount: 7, total: thin}, use{key: "a", res: usage.CPU, amount: 3e9, total: 3e9},
				use{key: "a", res: usage.EnergyPackage, amount: 5e6, total: 5e6}, use{key: "idle", res: usage.EnergyRest, amount: 30e6, total: 30e6}, use{key: "system", res: memory, amount: 50, total: 50})
			w.Balance.Whole[1] = 12_344
			w.Total.Put(usage.NetworkRx, 70, usage.Measured)
			c.name("idle", nil)
			c.name("system", nil)
			c.put(w)
			c.put(c.window(15, 75, use{key: "a", res: disk, amount: 60, total: 70}, use{key: "a", res: peak, amount: 9, total: thin}))
			c.check()
		},
		"life begun earlier": func(c *scene) { // others showed it until then
			c.name("a", nil)
			c.put(c.window(5, 15, use{key: "a", res: disk, amount: 10, total: 110}))
			c.put(c.window(15, 25, use{key: "a", res: disk, amount: 10, total: 120}, use{key: "a", res: usage.DiskWritten, amount: 4, total: 9}))
			c.check("disk")
		},
		"lives": func(c *scene) { // with use from the start, with use later, in a window of 2 ms
			c.name("a", nil)
			c.put(c.window(0, 10, use{key: "a", res: disk, amount: 10, total: 10}))
			c.put(c.window(10, 20, use{key: "a", res: disk, amount: 30, total: 30}))
			c.put(c.window(20, 30, use{key: "a", res: disk, amount: 0, total: 0}))
			c.put(c.window(30, 30.001, use{key: "a", res: disk, amount: 1, total: 1}))
			c.put(c.window(30.001, 30.003, use{key: "a", res: disk, amount: 2, total: 2}))
			c.put(c.window(30.003, 40, use{key: "a", res: disk, amount: 1, total: 1}))
			c.check("disk")
		},
		"thin rows": func(c *scene) {
			c.name("a", nil)
			c.put(c.window(0, 10, use{key: "a", res: disk, amount: 10, total: thin})) // of which nothing is known
			c.put(c.window(10, 20, use{key: "a", res: disk, amount: 10, total: 20}))
			c.put(c.window(20, 80, use{key: "a", res: disk, amount: 60, total: thin}, use{key: "a", res: usage.DiskReads, amount: 1, total: thin}))
			c.put(c.window(20, 80, use{key: "a", res: disk, amount: 60, total: thin})) // again
			c.put(c.window(200, 210, use{key: "a", res: disk, amount: 1, total: thin}))
			c.put(c.window(210, 220, use{key: "a", res: disk, amount: 1, total: 182}))
			c.put(c.window(220, 230, use{key: "a", res: disk, amount: 1, total: thin}))
			c.check("disk")
		},
		"end": func(c *scene) {
			c.name("a", nil)
			c.name("b", nil)
			c.put(c.window(0, 10, use{key: "a", res: disk, amount: 10, total: 20}, use{key: "b", res: disk, amount: 1, total: 1}))
			c.put(c.window(10, 20, use{key: "a", res: disk, amount: 10, total: 30, ended: true}, use{key: "a", res: peak, amount: 3, total: thin}, use{key: "b", res: disk, amount: 1, total: 2}))
			c.put(c.window(20, 90, use{key: "b", res: disk, amount: 1, total: 3}))
			c.check("workload")
		},
		"short-lived": func(c *scene) {
			c.name("a", nil)
			c.name("b", nil)
			c.put(c.window(0, 10, use{key: "a", res: disk, amount: 10, total: 10, ended: true}, use{key: "a", res: peak, amount: 3, total: thin}))
			c.put(c.window(10, 20, use{key: "a", res: disk, amount: 5, total: 5, ended: true}, use{key: "b", res: disk, amount: 7, total: 7, ended: true}, use{key: "b", res: memory, amount: 2, total: 2}))
			c.put(c.window(10, 20, use{key: "a", res: disk, amount: 5, total: 5, ended: true})) // again
			c.put(c.window(0, 5, use{key: "a", res: disk, amount: 5, total: 5, ended: true}))   // late
			c.put(c.window(20, 30))
			c.put(c.window(30, 40, use{key: "a", res: disk, amount: 5, total: 6, ended: true})) // of a longer life
			c.check("workload")
		},
		"lives in one window": func(c *scene) {
			for _, key := range []string{"a", "b", "c"} {
				c.name(key, nil)
			}
			c.put(c.window(0, 10, use{key: "a", res: disk, amount: 10, total: 10}))
			// a: the life with series, one within the window, and one that goes on; b: no series before;
			// c: lives within the window alone.
			c.put(c.window(10, 20, use{key: "a", res: disk, amount: 2, total: 12, ended: true}, use{key: "a", res: disk, amount: 100, total: 100, ended: true, next: true}, use{key: "a", res: disk, amount: 40, total: 40, next: true},
				use{key: "b", res: disk, amount: 1000, total: 1000, ended: true}, use{key: "b", res: disk, amount: 7, total: 7, next: true},
				use{key: "c", res: disk, amount: 10_000, total: 10_000, ended: true}, use{key: "c", res: disk, amount: 20_000, total: 20_000, ended: true, next: true}))
			c.put(c.window(20, 30, use{key: "a", res: disk, amount: 1, total: 41}, use{key: "b", res: disk, amount: 1, total: 8}))
			c.check("disk")
		},
		"lives across edges": func(c *scene) { // the first one ends before a minute, between two, after both, without use
			for _, key := range []string{"a", "b", "c", "d", "e"} {
				c.name(key, nil)
			}
			row := func(key string, amount, total int64, last bool) use {
				return use{key: key, res: disk, amount: amount, total: total, ended: !last, next: last}
			}
			c.put(c.window(40, 50, row("a", 1, 10, true), row("b", 1, 10, true), row("c", 1, 10, true), row("d", 1, 10, true)))
			c.put(c.window(50, 130, row("a", 8, 18, false), row("a", 72, 72, true), row("b", 40, 50, false), row("b", 40, 40, true),
				row("c", 79, 89, false), row("c", 1, 1, true), row("d", 0, 10, false), row("d", 8, 8, true),
				row("e", 8, 88, false), row("e", 8, 8, true)))
			c.put(c.window(130, 140, row("a", 1, 73, true), row("b", 1, 41, true), row("c", 1, 2, true), row("d", 1, 9, true), row("e", 1, 9, true)))
			c.check("disk")
		},
		"lives in successive windows": func(c *scene) {
			c.name("a", nil)
			c.put(c.window(0, 10, use{key: "a", res: disk, amount: 5, total: 5}))
			c.put(c.window(10, 20, use{key: "a", res: disk, amount: 1, total: 6, ended: true}))
			c.put(c.window(20, 30, use{key: "a", res: disk, amount: 6, total: 6, ended: true}))
			c.fresh = append(c.fresh, c.name("a", func(n *batch.Name) { n.Job = "renamed" })) // while it has ended
			c.put(c.window(30, 40, use{key: "a", res: disk, amount: 9, total: 9}))
			c.check("disk", "info")
		},
		"lives beside an older one": func(c *scene) { // whose use was folded into its rows
			c.name("a", nil)
			c.put(c.window(0, 10, use{key: "a", res: disk, amount: 10, total: 1000}))
			c.put(c.window(10, 20, use{key: "a", res: disk, amount: 7, total: 7, ended: true}, use{key: "a", res: disk, amount: 5, total: 1005, next: true}))
			c.put(c.window(20, 30, use{key: "a", res: disk, amount: 100, total: 100, ended: true}, use{key: "a", res: disk, amount: 1, total: 1006, ended: true, next: true}, use{key: "a", res: disk, amount: 3, total: 3, next: true}))
			c.check("disk")
		},
		"lives in one row": func(c *scene) { // as spools of earlier versions merge them; b has no series, c is late
			for _, key := range []string{"a", "b", "c"} {
				c.name(key, nil)
			}
			c.put(c.window(0, 10, use{key: "a", res: disk, amount: 10, total: 1010}))
			c.put(c.window(10, 20, use{key: "a", res: disk, amount: 52, total: 40}, use{key: "b", res: disk, amount: 9, total: 3}, use{key: "c", res: disk, amount: 1, total: 9}))
			c.put(c.window(5, 9, use{key: "c", res: disk, amount: 4, total: 2}))
			c.put(c.window(20, 30, use{key: "a", res: disk, amount: 1, total: 41}, use{key: "b", res: disk, amount: 1, total: 4}))
			c.check("disk")
		},
		"lives, other rows": func(c *scene) { // without totals; of peaks; in a window too short for both
			for _, key := range []string{"a", "b"} {
				c.name(key, nil)
			}
			c.put(c.window(0, 10, use{key: "a", res: disk, amount: 10, total: 10}, use{key: "a", res: peak, amount: 5, total: thin}, use{key: "b", res: disk, amount: 10, total: 10}))
			c.put(c.window(10, 20, use{key: "a", res: disk, amount: 3, total: thin, ended: true}, use{key: "a", res: peak, amount: 7, total: thin},
				use{key: "a", res: disk, amount: 4, total: thin, next: true}, use{key: "a", res: peak, amount: 6, total: thin}))
			c.put(c.window(20, 20.002, use{key: "a", res: disk, amount: 1, total: 5}, use{key: "b", res: disk, amount: 1, total: 11, ended: true}, use{key: "b", res: disk, amount: 2, total: 2, next: true}))
			c.check("disk", "memory")
		},
		"renamed": func(c *scene) {
			first := c.name("a", nil)
			c.put(c.window(0, 10, use{key: "a", res: disk, amount: 10, total: 20}))
			c.fresh = append(c.fresh, first)
			c.put(c.window(10, 20, use{key: "a", res: disk, amount: 10, total: 30}))
			c.fresh = append(c.fresh, c.name("a", func(n *batch.Name) { n.Name = "A" }))
			c.put(c.window(20, 30, use{key: "a", res: disk, amount: 10, total: 40}))
			c.put(c.window(30, 40, use{key: "a", res: disk, amount: 10, total: 50}))
			c.check("info")
		},
		"idle": func(c *scene) { // the last values are repeated once a minute
			for _, key := range []string{"a", "b", "unseen"} {
				c.fresh = append(c.fresh, c.name(key, nil))
			}
			c.put(c.window(0, 10, use{key: "a", res: disk, amount: 10, total: 20}, use{key: "a", res: peak, amount: 4, total: thin}, use{key: "b", res: disk, amount: 1, total: 1}))
			for at := 10.0; at < 200; at += 10 {
				c.put(c.window(at, at+10, use{key: "b", res: memory, amount: 1, total: int64(at / 10)}))
			}
			c.check("workload")
		},
		"clock set": func(c *scene) { // idle, although the clock jumps between two windows
			c.name("a", nil)
			c.put(c.window(0, 10, use{key: "a", res: disk, amount: 10, total: 20}))
			w := c.window(10, 70)
			w.Offset += 5e9
			c.put(w)
			w = c.window(70, 130)
			w.Offset += 5e9
			c.put(w)
			c.check("disk")
		},
		"gap": func(c *scene) { // what an idle workload used in it is unknown until its windows come
			c.name("a", nil)
			c.put(c.window(0, 10, use{key: "a", res: disk, amount: 10, total: 20}))
			c.put(c.window(100, 110))
			c.put(c.window(110, 220))
			c.put(c.window(10, 100, use{key: "a", res: disk, amount: 5, total: 25}))
			c.put(c.window(220, 300))
			c.check("disk", "cpus")
		},
		"reboot": func(c *scene) { // the new boot's windows do not follow those of the old one
			c.name("a", nil)
			c.put(c.window(0, 10, use{key: "a", res: disk, amount: 10, total: 20}))
			c.boot = "b2"
			w := c.window(10, 70)
			w.Offset += 5e9
			c.put(w)
			c.check("disk")
		},
		"just after an edge": func(c *scene) { // windows that end less than a ms after a minute
			c.name("a", nil)
			c.put(c.window(50, 60.0004, use{key: "a", res: disk, amount: 10_0004, total: 10_0004}))
			c.put(c.window(60.0004, 70, use{key: "a", res: disk, amount: 10, total: thin}))
			c.check("disk")
		},
		"counters restart at 2^63": func(c *scene) {
			c.name("a", nil)
			c.put(c.window(0, 120, use{key: "a", res: memory, amount: 120 << 40, total: 70 << 40}))
			c.put(c.window(120, 180, use{key: "a", res: memory, amount: 60 << 40, total: 130 << 40}))
			c.name("b", nil)
			c.put(c.window(180, 300, use{key: "b", res: memory, amount: 60 << 40, total: 60 << 40}, use{key: "a", res: memory, amount: 1 << 40, total: 131 << 40}))
			c.put(c.window(300, 420, use{key: "b", res: memory, amount: 60 << 40, total: 30 << 40}))
			c.put(c.window(420, 420.0004), c.window(420.0004, 540.0004, use{key: "b", res: memory, amount: 60 << 40, total: 0}))
			c.check("memory")
		},
		"restart": func(c *scene) {
			c.name("a", nil)
			c.name("ended", func(n *batch.Name) { n.Ended = c.at(9) })
			c.name("brief", nil)
			c.put(c.window(0, 10, use{key: "a", res: disk, amount: 10, total: 20}, use{key: "ended", res: disk, amount: 1, total: 2}, use{key: "brief", res: disk, amount: 2, total: 2, ended: true}))
			c.l.through = c.at(10)
			c.close()
			c.open()
			c.put(c.window(10, 80, use{key: "brief", res: disk, amount: 7, total: 7, ended: true}))
			c.put(c.window(80, 90, use{key: "a", res: disk, amount: 10, total: thin}))
			c.check("disk", "info")
		},
		"restart while idle": func(c *scene) { // the windows before the restart came, so a used nothing
			c.name("a", nil)
			c.name("b", nil)
			c.put(c.window(0, 10, use{key: "a", res: disk, amount: 10, total: 20}))
			c.put(c.window(10, 60, use{key: "b", res: disk, amount: 1, total: 1}))
			c.l.through = c.at(60)
			c.close()
			c.open()
			c.put(c.window(60, 130))
			c.check("disk")
		},
	} {
		t.Run(name, func(t *testing.T) { play(t, do) })
	}
}

// Without samples of some windows Append returns their span, and the store notes it.
func TestAppendIncomplete(t *testing.T) {
	play(t, func(c *scene) {
		c.name("a", nil)
		a := func(at float64, total int64) usage.Window {
			return c.window(at, at+10, use{key: "a", res: usage.DiskRead, amount: 10, total: total})
		}
		c.l.failing = "Node"
		if span, err := c.try(); !errors.Is(err, errInjected) || !span.IsZero() {
			c.Errorf("no windows: %v, %v", span, err)
		}
		span, err := c.try(a(0, 10), a(10, 20))
		if want := (batch.Span{From: c.at(0).UTC(), To: c.at(20).UTC()}); span != want || !errors.Is(err, errInjected) {
			c.Errorf("unknown node: %v, %v, want %v", span, err, want)
		}
		c.l.failing = "Names"
		if span, err := c.try(a(20, 30)); span.From != c.at(20).UTC() || !errors.Is(err, errInjected) {
			c.Errorf("names are unknown: %v, %v", span, err)
		}
		c.l.failing = ""
		if got := c.s.unsampled["n1"]; got != (unsampledNode{Span: batch.Span{From: c.at(0).UTC(), To: c.at(30).UTC()}}) {
			c.Errorf("noted %v", got)
		}
		c.put(a(30, 40))
		c.put(a(40, 50))
		if got := c.s.unsampled["n1"].resumed; got != c.at(30).UnixMilli() {
			c.Errorf("resumed at %s s, want 30", c.seconds(got))
		}
		if n := c.s.Stats(); n.IncompleteNodes != 1 || n.Samples == 0 || n.Refused != 0 || n.Series == 0 || n.Backfilled != 0 || n.OverLimit != 0 {
			c.Errorf("counts %+v", n)
		}
		// Too old for the database.
		c.put(c.window(30*3600, 30*3600+10))
		before := c.s.Stats()
		if span, err := c.try(a(60, 70)); err != nil || span != (batch.Span{From: c.at(60).UTC(), To: c.at(70).UTC()}) {
			c.Errorf("old windows: %v, %v", span, err)
		}
		if n := c.s.Stats(); n.Refused != before.Refused+1 || n.Samples != before.Samples {
			c.Errorf("counts %+v, before %+v", n, before)
		}
	})
}

// A workload without windows leaves memory an hour after it was named, an ended one an hour after its
// end, each with the first repetition after it.
func TestWorkloadsLeaveMemory(t *testing.T) {
	play(t, func(c *scene) {
		c.fresh = append(c.fresh, c.name("unseen", nil))
		c.name("a", nil)
		c.put(c.window(0, 10, use{key: "a", res: usage.DiskRead, amount: 1, total: 2}))
		c.put(c.window(10, 60), c.window(60, 70, use{key: "a", res: usage.DiskRead, amount: 1, total: 3, ended: true}))
		n := c.s.nodes["n1"]
		has := func(key string) bool {
			short, _ := c.idOf(key)
			return n.workloads[short] != nil
		}
		for at := 70.0; at < 3800; at += 10 {
			c.put(c.window(at, at+10))
			// Values are repeated at 10 s, 70 s and so on.
			if got, want := has("unseen"), at+10 < 3610+60; got != want {
				c.Fatalf("at %v s: unseen %v, want %v", at+10, got, want)
			}
			if got, want := has("a"), at+10 < 3670+60; got != want {
				c.Fatalf("at %v s: ended %v, want %v", at+10, got, want)
			}
		}
	})
}

// The workloads of a node above the limit share a series; residual rows always have their own.
func TestSeriesLimit(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(c *scene){
		"above": func(c *scene) {
			const disk = usage.DiskRead
			for _, key := range []string{"a", "b", "x", "system", "idle"} {
				c.name(key, nil)
			}
			row := func(key string, total int64) use { return use{key: key, res: disk, amount: 1, total: total} }
			c.put(c.window(0, 10, row("a", 1), row("b", 1)))
			c.put(c.window(10, 20, row("a", 2), row("b", 2), row("x", 5), row("system", 1), row("idle", 7)))
			c.put(c.window(20, 30, row("a", 3), use{key: "x", res: disk, amount: 1, total: 6, ended: true}))
			if n := c.s.Stats().OverLimit; n != 2 {
				c.Errorf("%d rows above the limit, want 2", n)
			}
			c.check("workload")
		},
		"per hour": func(c *scene) { // new series within an hour, also of those that ended
			const disk = usage.DiskRead
			at := 0.0
			for _, key := range []string{"a", "b", "c"} {
				c.name(key, nil)
				c.put(c.window(at, at+10, use{key: key, res: disk, amount: 1, total: 2}))
				c.put(c.window(at+10, at+20, use{key: key, res: disk, amount: 1, total: 3, ended: true}))
				short, _ := c.idOf(key)
				delete(c.s.nodes["n1"].workloads, short) // as an hour later
				at += 20
			}
			// A workload without totals has no series while others share theirs.
			time.Sleep(time.Hour)
			c.name("d", nil)
			c.put(c.window(at, at+10, use{key: "d", res: disk, amount: 4, total: thin}))
			c.put(c.window(at+10, at+20, use{key: "d", res: disk, amount: 4, total: 9}))
			c.check("workload")
		},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(c *scene) {
				c.close()
				c.cfg.Workloads = 2
				c.open()
				do(c)
			})
		})
	}
}

func TestSeriesQuota(t *testing.T) {
	t.Parallel()
	q, now := seriesQuota{limit: 2}, time.Unix(1e9, 0)
	for i, c := range []struct {
		after time.Duration
		want  bool
	}{{0, true}, {0, true}, {0, false}, {time.Hour - 1, false}, {1, true}, {time.Minute, true}, {time.Hour - time.Minute - 1, false}, {1, true}} {
		now = now.Add(c.after)
		if got := q.allow(now); got != c.want {
			t.Errorf("series %d: %v, want %v", i, got, c.want)
		}
	}
}

func TestUntilRestart(t *testing.T) {
	t.Parallel()
	for v, want := range map[int64]int64{-1: math.MaxInt64, math.MinInt64: 0, -10: math.MaxInt64 - 9} {
		if got := untilRestart(v); got != want {
			t.Errorf("untilRestart(%d) = %d, want %d", v, got, want)
		}
	}
}

package tsdb

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"mete.dev/mete/internal/delivery/walltime"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A failingAppender takes all samples but one.
type failingAppender struct {
	storage.Appender
	left int
}

func (a *failingAppender) Commit() error   { return errInjected }
func (a *failingAppender) Rollback() error { return nil }

func (a *failingAppender) Append(ref storage.SeriesRef, _ labels.Labels, _ int64, _ float64) (storage.SeriesRef, error) {
	if a.left--; a.left == -1 {
		return 0, errInjected
	}
	return max(ref, 1), nil
}

// A failingAppenderV2 is a failingAppender with the interface of live samples.
type failingAppenderV2 struct {
	storage.AppenderV2
	left int
}

func (a *failingAppenderV2) Rollback() error { return nil }

func (a *failingAppenderV2) Commit() error {
	if a.left >= 0 {
		return errInjected
	}
	return nil
}

func (a *failingAppenderV2) Append(ref storage.SeriesRef, _ labels.Labels, _, _ int64, _ float64, _ *histogram.Histogram, _ *histogram.FloatHistogram, _ storage.AppendV2Options) (storage.SeriesRef, error) {
	if a.left--; a.left == -1 {
		return 0, errInjected
	}
	return max(ref, 1), nil
}

// Whichever sample of a backfill cannot be written, the error is returned.
func TestBackfillWriteFails(t *testing.T) {
	t.Parallel()
	const forever = 1e9
	lives := []life{{key: "idle", to: forever, rate: 2}, {key: "a", to: forever, rate: 10}, {key: "ends", to: 7300, rate: 4}, {key: "brief", from: 7180, to: 7190, rate: 7}}
	for name, v := range map[string]struct {
		from, until float64 // the windows that are booked
		away        bool    // no windows for some minutes
	}{
		"across a block":  {from: 6900, until: 7800},
		"away":            {from: 7200, until: 8100, away: true},
		"ends in the gap": {from: 6900, until: 7300},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(c *scene) {
				m := busyMachine{scene: c, from: v.from, to: v.from + 900, whole: 4096, lives: lives}
				ws := m.windows()
				short, _ := c.idOf("a") // whose counter restarts in the gap
				for i := 30; i < len(ws); i++ {
					for j := range ws[i].Rows {
						if r := &ws[i].Rows[j]; r.ShortID == short {
							r.Total[usage.DiskRead] -= 30 * 100
						}
					}
				}
				c.put(ws[:20]...)
				booked := ws[:int(v.until-v.from)/10]
				if v.away {
					booked = slices.Concat(ws[:24], ws[36:])
				}
				c.book(booked)
				if len(booked) > 60 {
					c.put(ws[40:]...)
				}
				job := backfillJob{c.s.nodes["n1"], batch.Span{From: c.at(v.from + 203), To: c.at(v.from + 403)}}
				job.node.newestEnd.Store(c.at(v.from + 903).UnixMilli())
				c.l.through = c.at(v.from + 903)
				failEachSample(c, job)
			})
		})
	}
}

// failEachSample runs a backfill for each of its samples, which then cannot be written.
func failEachSample(c *scene, job backfillJob) {
	c.Helper()
	for left := 0; ; left++ {
		b := &backfill{Store: c.s, from: never}
		oldest := time.Now().Add(-c.cfg.Retention)
		if ok, err := b.addNode(c.Context(), job, oldest); !ok || err != nil {
			c.Fatal(ok, err)
		}
		if err := b.eachSlice(c.Context(), b.read); err != nil {
			c.Fatal(err)
		}
		b.nodes[0].plan(c.l.names, oldest)
		app := &failingAppender{left: left}
		w := &blockWriter{app: app}
		err := b.eachSlice(c.Context(), func(ctx context.Context, from, to time.Time) error { return b.writeSlice(ctx, w, from, to) })
		switch {
		case err == nil && app.left >= 0:
			if left < 20 {
				c.Errorf("%d samples, want many", left)
			}
			return
		case !errors.Is(err, errInjected):
			c.Fatalf("sample %d failed: %v", left, err)
		case w.written != int64(left):
			c.Fatalf("%d samples written before the failure of number %d", w.written, left)
		}
	}
}

// Whichever live sample cannot be appended, the error is returned.
func TestAppendFails(t *testing.T) {
	play(t, func(c *scene) {
		disk := usage.DiskRead
		for _, key := range []string{"a", "b", "ends", "brief", "idle"} {
			c.name(key, nil)
		}
		// A window of two minutes that restarts counters of a, which has series, and of idle, which
		// has none; and one in which b is idle.
		const most, step = int64(math.MaxInt64), int64(1) << 40
		w1 := c.window(0, 10, use{key: "a", res: disk, amount: 10, total: 10}, use{key: "a", res: usage.Memory, amount: step, total: most - step}, use{key: "b", res: disk, amount: 1, total: 2})
		w2 := c.window(10, 130, use{key: "a", res: disk, amount: 10, total: 20}, use{key: "a", res: usage.MemoryPeak, amount: 3, total: thin}, use{key: "a", res: usage.Memory, amount: 4 * step, total: step},
			use{key: "ends", res: disk, amount: 10, total: 30, ended: true}, use{key: "brief", res: disk, amount: 3, total: 3, ended: true},
			use{key: "idle", res: usage.Memory, amount: 4 * step, total: step})
		w2.Total.Put(usage.NetworkRx, 5, usage.Measured)
		w3 := c.window(130, 200, use{key: "a", res: disk, amount: 10, total: thin})
		cuts, err := walltime.Cut([]usage.Window{w1, w2, w3}, make([]time.Duration, 3))
		if err != nil {
			c.Fatal(err)
		}
		some := 0
		for i := 0; ; i++ {
			delete(c.s.nodes, "n1")
			n, err := c.s.node(c.Context(), "n1")
			if err != nil {
				c.Fatal(err)
			}
			if err := c.s.fetchNames(c.Context(), n, cuts.Windows); err != nil {
				c.Fatal(err)
			}
			app := &failingAppenderV2{left: i}
			a := &appendTx{Store: c.s, node: n, app: app}
			if complete, err := a.appendWindows(cuts.Windows); complete || !errors.Is(err, errInjected) {
				c.Fatalf("sample %d failed: complete %v, %v", i, complete, err)
			}
			if c.s.Stats().Samples != 0 {
				c.Fatal("counted samples that are not in the database")
			}
			if app.left >= 0 { // the commit failed
				break
			}
			if a.appended != int64(i) {
				c.Fatalf("%d samples appended before the failure of number %d", a.appended, i)
			}
			some++
		}
		if some < 45 {
			c.Errorf("%d samples, want many", some)
		}
	})
}

// The last value of a series whose workload used nothing for hours is where its gap begins.
func TestFindOlderSamples(t *testing.T) {
	play(t, func(c *scene) {
		disk := usage.DiskRead
		started := func(n *batch.Name) { n.Started = c.at(-100) }
		c.name("a", started)
		c.name("ended", started)
		c.name("late", func(n *batch.Name) { n.Started = c.at(9000) })
		c.name("later", func(n *batch.Name) { n.Started = c.at(8000) })
		c.name("exact", started)
		c.name("after", started)
		c.put(c.window(0, 10, use{key: "a", res: disk, amount: 1, total: 5}, use{key: "ended", res: disk, amount: 1, total: 5}, use{key: "late", res: disk, amount: 1, total: 5}, use{key: "later", res: disk, amount: 1, total: 5}))
		c.put(c.window(10, 20, use{key: "a", res: disk, amount: 1, total: 6}, use{key: "a", res: usage.DiskWritten, amount: 1, total: 8}, use{key: "ended", res: disk, amount: 1, total: 6, ended: true}, use{key: "exact", res: disk, amount: 1, total: 7}))
		c.put(c.window(7000, 7010, use{key: "after", res: disk, amount: 1, total: 8}))
		c.put(c.window(9000, 9010, use{key: "a", res: disk, amount: 1, total: 9}))
		n := c.s.nodes["n1"]
		nb := newNodeBackfill(backfillJob{node: n}, span{1, 2}, nil, 0)
		from := c.at(8000).UnixMilli()
		froms := map[string]int64{"a": from, "ended": from, "late": from, "later": from, "exact": c.at(20).UnixMilli(), "after": c.at(6000).UnixMilli()}
		for key, from := range froms {
			short, _ := c.idOf(key)
			nb.workload(short).gaps = []gap{{res: disk, from: from}}
		}
		a, _ := c.idOf("a")
		nb.workloads[a].gaps = append(nb.workloads[a].gaps, gap{res: usage.DiskWritten, from: from, hasStart: true, startValue: 3})
		if err := c.s.findOlderSamples(c.Context(), nb, c.l.names, c.at(-1000)); err != nil {
			c.Fatal(err)
		}
		wb := nb.workloads[a]
		if g := wb.gaps[0]; !g.hasStart || g.from != c.at(20).UnixMilli() || g.startValue != 6 || wb.sampled != usage.SetOf(disk) {
			c.Errorf("gap %+v of resources %v", g, wb.sampled)
		}
		if g := wb.gaps[1]; g.from != from || g.startValue != 3 {
			c.Errorf("a gap with a start changed to %+v", g)
		}
		for key, from := range froms {
			short, _ := c.idOf(key)
			if g := nb.workloads[short].gaps[0]; g.hasStart != (key == "a" || key == "exact") || key != "a" && g.from != from {
				c.Errorf("%s: gap %+v", key, g)
			}
		}
		// One workload only.
		nb.workloads = map[workload.ShortID]*workloadBackfill{a: {gaps: []gap{{res: disk, from: from}}}}
		if err := c.s.findOlderSamples(c.Context(), nb, c.l.names, c.at(-1000)); err != nil || !nb.workloads[a].gaps[0].hasStart {
			c.Errorf("%+v, %v", nb.workloads[a].gaps[0], err)
		}
		// Two gaps of one workload: samples are looked for up to the later one.
		nb.workloads = map[workload.ShortID]*workloadBackfill{a: {gaps: []gap{{res: disk, from: c.at(15).UnixMilli()}, {res: usage.DiskWritten, from: from}}}}
		if err := c.s.findOlderSamples(c.Context(), nb, c.l.names, c.at(-1000)); err != nil || !nb.workloads[a].gaps[0].hasStart || nb.workloads[a].gaps[1].startValue != 8 {
			c.Errorf("%+v, %v", nb.workloads[a].gaps, err)
		}
		// Only samples of the retention count.
		nb.workloads = map[workload.ShortID]*workloadBackfill{a: {gaps: []gap{{res: disk, from: from}}}}
		if err := c.s.findOlderSamples(c.Context(), nb, c.l.names, c.at(100)); err != nil || nb.workloads[a].gaps[0].hasStart {
			c.Errorf("%+v, %v", nb.workloads[a].gaps[0], err)
		}
	})
}

// After the loss of the log the ledger learns since when samples may be missing: late ones were only
// there.
func TestOpenMarksLoss(t *testing.T) {
	play(t, func(c *scene) {
		c.put(c.window(0, 10))
		c.l.through = c.at(10)
		c.close()
		wal := filepath.Join(c.cfg.Dir, "wal")
		if err := errors.Join(os.RemoveAll(wal), os.WriteFile(wal, nil, 0o600)); err != nil {
			c.Fatal(err)
		}
		before := time.Now().Add(-c.cfg.OutOfOrderWindow)
		c.open()
		if got := c.l.unsampled["n1"]; got.From.Before(before) || got.From.After(before.Add(time.Second)) || got.To.Before(time.Now().Add(-time.Second)) {
			c.Errorf("marked %v, want from %v", got, before)
		}
		// Files with statements that cannot be read are errors.
		for _, name := range []string{missingFile, holesFile} {
			path := filepath.Join(c.cfg.Dir, name)
			if err := os.Mkdir(path, 0o700); err != nil {
				c.Fatal(err)
			}
			if err := c.s.loadUnsampled(c.Context()); err == nil {
				c.Errorf("%s is a directory, without an error", name)
			}
			_ = os.Remove(path)
		}
	})
}

package tsdb

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
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

func (a *failingAppenderV2) Append(ref storage.SeriesRef, _ labels.Labels, _, _ int64, _ float64, _ *histogram.Histogram, _ *histogram.FloatHistogram, _ storage.AppendV2Options) (storage.SeriesRef, error) {
	if a.left--; a.left == -1 {
		return 0, errInjected
	}
	return max(ref, 1), nil
}

// Whichever sample of a backfill cannot be written, the error is returned.
func TestBackfillWriteFails(t *testing.T) {
	play(t, func(c *scene) {
		const forever = 1e9
		m := busyMachine{scene: c, to: 900, whole: 4096, lives: []life{{key: "idle", to: forever, rate: 2}, {key: "a", to: forever, rate: 10},
			{key: "ends", to: 300, rate: 4}, {key: "brief", from: 280, to: 290, rate: 7}}}
		ws := m.windows()
		c.put(ws[:20]...)
		c.book(ws)
		c.put(ws[40:]...)
		job := backfillJob{c.s.nodes["n1"], batch.Span{From: c.at(203), To: c.at(403)}}
		written := 0
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
			if err == nil && app.left >= 0 {
				written = left
				break
			}
			if !errors.Is(err, errInjected) {
				c.Fatalf("sample %d failed: %v", left, err)
			}
			if left > 0 && w.written != int64(left) {
				c.Fatalf("%d samples written before the failure of number %d", w.written, left)
			}
		}
		if written < 60 {
			c.Errorf("%d samples, want many", written)
		}
	})
}

// Whichever live sample cannot be appended, the error is returned.
func TestAppendFails(t *testing.T) {
	play(t, func(c *scene) {
		disk := usage.DiskRead
		for _, key := range []string{"a", "b", "ends", "brief", "idle"} {
			c.name(key, nil)
		}
		n, err := c.s.node(c.Context(), "n1")
		if err != nil {
			c.Fatal(err)
		}
		window := func(i int) []walltime.CutWindow {
			at := float64(i) * 200
			w := c.window(at, at+70, use{key: "a", res: disk, amount: 10, total: 10 + int64(i)*10}, use{key: "a", res: usage.MemoryPeak, amount: 3, total: thin},
				use{key: "ends", res: disk, amount: 10, total: 30, ended: true}, use{key: "brief", res: disk, amount: 3, total: 3, ended: true},
				use{key: "idle", res: usage.Memory, amount: 9, total: math.MinInt64 + 4 + math.MaxInt64}) // restarts
			w.Total.Put(usage.NetworkRx, 5, usage.Measured)
			cuts, err := walltime.Cut([]usage.Window{w}, []time.Duration{0})
			if err != nil {
				c.Fatal(err)
			}
			return cuts.Windows
		}
		some := 0
		for i := 0; ; i++ {
			ws := window(i)
			if err := c.s.fetchNames(c.Context(), n, ws); err != nil {
				c.Fatal(err)
			}
			app := &failingAppenderV2{left: i}
			a := &appendTx{Store: c.s, node: n, app: app}
			if err := a.appendWindow(&ws[0]); err == nil && app.left >= 0 {
				break
			} else if !errors.Is(err, errInjected) {
				c.Fatal(err)
			}
			if a.appended != int64(i) {
				c.Fatalf("%d samples appended before the failure of number %d", a.appended, i)
			}
			some++
		}
		if some < 15 {
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
		c.put(c.window(0, 10, use{key: "a", res: disk, amount: 1, total: 5}, use{key: "ended", res: disk, amount: 1, total: 5}, use{key: "late", res: disk, amount: 1, total: 5}))
		c.put(c.window(10, 20, use{key: "a", res: disk, amount: 1, total: 6}, use{key: "a", res: usage.DiskWritten, amount: 1, total: 8}, use{key: "ended", res: disk, amount: 1, total: 6, ended: true}))
		c.put(c.window(9000, 9010, use{key: "a", res: disk, amount: 1, total: 9}))
		n := c.s.nodes["n1"]
		nb := newNodeBackfill(backfillJob{node: n}, span{1, 2}, nil, 0)
		from := c.at(8000).UnixMilli()
		for _, key := range []string{"a", "ended", "late"} {
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
		for _, key := range []string{"ended", "late"} {
			short, _ := c.idOf(key)
			if g := nb.workloads[short].gaps[0]; g.hasStart || g.from != from {
				c.Errorf("%s: gap %+v", key, g)
			}
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

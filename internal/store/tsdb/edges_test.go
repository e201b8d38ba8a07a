package tsdb

import (
	"context"
	"errors"
	"math"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// expect compares the samples of series whose text contains a word.
func (c *scene) expect(word, want string) {
	c.Helper()
	if got := c.samples(word); got != want+"\n" {
		c.Errorf("samples\n%swant\n%s", got, want)
	}
}

// A value that the database has otherwise, or whose series it has no more, is counted, and the rest
// of its window is taken.
func TestRefusedValues(t *testing.T) {
	play(t, func(c *scene) {
		const disk = usage.DiskRead
		c.name("a", nil)
		c.put(c.window(0, 10, use{key: "a", res: disk, amount: 10, total: 20}))
		c.put(c.window(0, 10, use{key: "a", res: disk, amount: 10, total: 21}, use{key: "a", res: usage.DiskWritten, amount: 3, total: 7}))
		if n := c.s.Stats().Refused; n != 1 {
			c.Errorf("another value for a time: %d samples refused, want 1", n)
		}
		n := c.s.nodes["n1"]
		n.outdated = append(n.outdated, 1<<40)
		c.put(c.window(10, 20, use{key: "a", res: disk, amount: 10, total: 31}))
		if got := c.s.Stats().Refused; got != 2 || len(n.outdated) > 0 {
			c.Errorf("an unknown series to end: %d samples refused, want 2; %v remain", got, n.outdated)
		}
		c.expect("disk", "workload_disk_read_bytes_total workload=a: 0=10 10=20 20=31\nworkload_disk_written_bytes_total workload=a: 10=7")
	})
}

// A series that has left memory is found by its labels.
func TestSeriesLeftMemory(t *testing.T) {
	play(t, func(c *scene) {
		const disk = usage.DiskRead
		c.name("a", nil)
		c.name("b", nil)
		c.put(c.window(0, 10, use{key: "a", res: disk, amount: 10, total: 10}, use{key: "b", res: disk, amount: 1, total: 2}))
		short, _ := c.idOf("b")
		k := c.s.nodes["n1"].workloads[short]
		ref := k.of(disk).ref
		k.of(disk).ref = 1 << 40
		c.put(c.window(10, 20, use{key: "a", res: disk, amount: 10, total: 20}, use{key: "b", res: disk, amount: 1, total: 3}))
		if k.of(disk).ref != ref {
			c.Errorf("reference %d, want %d", k.of(disk).ref, ref)
		}
		c.expect("disk", "workload_disk_read_bytes_total workload=a: 0=0 10=10 20=20\nworkload_disk_read_bytes_total workload=b: 0=1 10=2 20=3")
	})
}

// Windows that end in the same ms share its sample; the later ones count in what follows.
func TestWindowsWithinMillisecond(t *testing.T) {
	play(t, func(c *scene) {
		const disk = usage.DiskRead
		row := func(amount, total int64) use { return use{key: "a", res: disk, amount: amount, total: total} }
		c.name("a", nil)
		ws := []usage.Window{
			c.window(50, 59.9, row(10, 10)), c.window(59.9, 60.0001, row(1, 11)), c.window(60.0001, 60.0004, row(1, 12)), c.window(60.0004, 70, row(10, thin)),
			c.window(70, 70.0004, use{key: "a", res: disk, amount: 1, total: 23, ended: true}), c.window(70.0004, 80), c.window(80, 200),
		}
		for i := range ws {
			c.put(ws[i])
		}
		c.expect("disk", "workload_disk_read_bytes_total workload=a: 50=0 59.9=10 60=10 70=22 70.001|")
		refused := c.s.Stats().Refused
		if refused != 2 { // the third and the fifth window
			c.Errorf("%d samples refused, want 2", refused)
		}
		// Again.
		c.put(ws[1])
		if n := c.s.Stats().Refused; n != refused {
			c.Errorf("a window again: %d samples refused", n-refused)
		}
	})
}

// The series of short-lived workloads restarts when it would exceed 2^63, and not before.
func TestShortLivedRestart(t *testing.T) {
	play(t, func(c *scene) {
		const disk = usage.DiskRead
		brief := func(amount int64) use { return use{key: "a", res: disk, amount: amount, total: amount, ended: true} }
		c.name("a", nil)
		c.put(c.window(0, 10, brief(5)))
		b := c.s.nodes["n1"].shortLived
		b.of(disk).total = math.MaxInt64 - 5
		b.of(disk).last = float64(b.of(disk).total)
		c.put(c.window(10, 20, brief(5)))
		c.put(c.window(20, 30, brief(1)))
		c.expect("disk", "workload_disk_read_bytes_total workload=brief: 0=0 10=5 20=9.223372036854776e+18 20.001=0 30=1")
	})
}

// A window that is repeated, or late, does not count again in the series of short-lived workloads, and
// adds no resource to it.
func TestShortLivedRepeated(t *testing.T) {
	play(t, func(c *scene) {
		c.name("a", nil)
		c.put(c.window(10, 20, use{key: "a", res: usage.DiskRead, amount: 5, total: 5, ended: true}))
		c.put(c.window(10, 20, use{key: "a", res: usage.DiskRead, amount: 5, total: 5, ended: true}, use{key: "a", res: usage.DiskWritten, amount: 7, total: 7}))
		c.put(c.window(0, 10, use{key: "a", res: usage.DiskWritten, amount: 7, total: 7, ended: true}))
		if had := c.s.nodes["n1"].shortLived.had; had != usage.SetOf(usage.DiskRead) {
			c.Errorf("resources %v", had)
		}
		c.expect("disk", "workload_disk_read_bytes_total workload=brief: 10=0 20=5")
	})
}

// storedSamples counts the samples of a text of samples.
var storedSamples = regexp.MustCompile(` -?[0-9.]+[=|]`)

// A counter that restarts at 2^63 has its largest value just before the first edge after the restart, if
// there is room.
func TestRestartBetweenEdges(t *testing.T) {
	t.Parallel()
	const step = int64(1) << 20 // in a ms
	for name, v := range map[string]struct {
		end  float64
		want string
	}{
		"no room": {60.001, "30=9.223372005396447e+18 60=9.223372036853727e+18 60.001=1"},
		"room":    {60.002, "30=9.223372005395399e+18 60=9.223372036852679e+18 60.001=9.223372036854776e+18 60.002=1"},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(c *scene) {
				c.name("a", nil)
				amount := int64(math.Round((v.end-30)*1000)) * step
				c.put(c.window(20, 30)) // after which names are not repeated until 90
				c.put(c.window(30, v.end, use{key: "a", res: usage.DiskRead, amount: amount, total: 1}))
				c.expect("disk", "workload_disk_read_bytes_total workload=a: "+v.want)
				if got, want := c.s.Stats().Samples, int64(len(storedSamples.FindAllString(c.samples(), -1))); got != want {
					c.Errorf("%d samples appended, %d in the database", got, want)
				}
			})
		})
	}
}

// A workload whose last value is from the begin of the latest windows that are known, as after a
// restart, continues.
func TestContinuesFromCoverage(t *testing.T) {
	play(t, func(c *scene) {
		const disk = usage.DiskRead
		c.name("a", nil)
		c.put(c.window(0, 10, use{key: "a", res: disk, amount: 10, total: 20}))
		n := c.s.nodes["n1"]
		n.coverage = intervals{{c.at(10).UnixMilli(), c.at(10).UnixMilli()}}
		c.put(c.window(10, 20, use{key: "a", res: disk, amount: 10, total: thin}))
		n.coverage = intervals{{c.at(20).UnixMilli(), c.at(20).UnixMilli()}}
		c.put(c.window(20, 100))
		c.expect("disk", "workload_disk_read_bytes_total workload=a: 0=10 10=20 20=30 100=30")
	})
}

// A name that comes with a window again ends the series of the old one at once.
func TestRenamedWithRepeatedWindow(t *testing.T) {
	play(t, func(c *scene) {
		const disk = usage.DiskRead
		c.name("a", nil)
		c.put(c.window(0, 10, use{key: "a", res: disk, amount: 10, total: 20}))
		w := c.window(10, 20, use{key: "a", res: disk, amount: 10, total: 30})
		c.put(w)
		c.fresh = append(c.fresh, c.name("a", func(n *batch.Name) { n.Name = "A" }))
		c.put(w)
		c.expect("info", "workload_info kind=container name=A workload=a: 20=1\nworkload_info kind=container name=a workload=a: 10=1 20|")
	})
}

// A pod's name, which the ledger joins, ends the info series of before. The agent's own name, which it may
// repeat, does not bring that back.
func TestRename(t *testing.T) {
	play(t, func(c *scene) {
		const disk = usage.DiskRead
		own := c.name("a", nil)
		c.put(c.window(0, 10, use{key: "a", res: disk, amount: 10, total: 20}))
		joined := own
		joined.Name, joined.Job, joined.Labels = "web-1/app", "shop/deployment/web", map[string]string{batch.LabelNamespace: "shop", batch.LabelPod: "web-1", batch.LabelContainer: "app", batch.LabelPodUID: "u"}
		other := joined
		other.ID = workload.NewID("n1", workload.Container, "elsewhere")
		c.s.Rename("n1", []batch.Name{joined, other, {ID: "not an id"}})
		c.s.Rename("unknown", []batch.Name{joined})
		c.put(c.window(10, 20, use{key: "a", res: disk, amount: 10, total: 30}))
		c.fresh = append(c.fresh, own)
		c.put(c.window(20, 90, use{key: "a", res: disk, amount: 10, total: 40}))
		c.expect("info", "workload_info container=app job=shop/deployment/web kind=container name=web-1/app namespace=shop pod=web-1 uid=u workload=a: 20=1 90=1\n"+
			"workload_info kind=container name=a workload=a: 10=1 20|")
	})
}

// A pod that has ended when it gets its name has an info series for its last instant.
func TestRenameEnded(t *testing.T) {
	play(t, func(c *scene) {
		const disk = usage.DiskRead
		joined := c.name("a", nil)
		c.put(c.window(0, 10, use{key: "a", res: disk, amount: 10, total: 20}))
		c.put(c.window(10, 20, use{key: "a", res: disk, amount: 10, total: 30, ended: true}))
		joined.Job, joined.Labels = "shop/job/batch", map[string]string{batch.LabelNamespace: "shop"}
		c.s.Rename("n1", []batch.Name{joined})
		c.put(c.window(20, 30))
		c.put(c.window(30, 95))
		c.expect("info", "workload_info job=shop/job/batch kind=container name=a namespace=shop workload=a: 20=1 20.001|\nworkload_info kind=container name=a workload=a: 10=1 20.001|")
	})
}

// A window without length has no average.
func TestWindowWithoutLength(t *testing.T) {
	play(t, func(c *scene) {
		c.put(c.window(10, 10))
		c.expect("node_", "node_cpus: 10=2")
	})
}

// A closed database is an error, and the span of the windows is incomplete.
func TestClosedDatabase(t *testing.T) {
	play(t, func(c *scene) {
		c.put(c.window(0, 10))
		state := c.s.State()
		w, err := newBlockWriter(c.Context(), c.cfg.Dir)
		if err != nil {
			c.Fatal(err)
		}
		ref := c.s.nodes["n1"].refs[cpus]
		ref = 0
		if err := errors.Join(w.add(&ref, c.at(0).UnixMilli(), 1, func() labels.Labels { return c.s.nodes["n1"].nodeLabels("x") }), w.finish(c.s.log)); err != nil {
			c.Fatal(err)
		}
		c.close()
		c.open()
		n, err := c.s.node(c.Context(), "n1")
		if err != nil {
			c.Fatal(err)
		}
		c.close()
		if span, err := c.try(c.window(10, 20)); err == nil || span.From != c.at(10).UTC() || span.To != c.at(20).UTC() {
			c.Errorf("%v, %v", span, err)
		}
		if err := state.Put(c.Context(), c.at(10), []Sample{{"up", nil, 1}}); err == nil {
			c.Error("put without an error")
		}
		if _, err := c.s.newestSampleIn(c.Context(), n, 0, math.MaxInt64); err == nil {
			c.Error("the newest sample is known")
		}
		if _, err := c.s.readLastValues(c.Context(), n, 0, math.MaxInt64); err == nil {
			c.Error("the last values are known")
		}
		if _, err := c.s.Queryable().Querier(0, math.MaxInt64); err == nil {
			c.Error("queries are possible")
		}
		c.open()
		c.put(c.window(10, 20))
	})
}

// A canceled context ends each function that reads.
func TestCanceled(t *testing.T) {
	play(t, func(c *scene) {
		c.name("a", func(n *batch.Name) { n.Started = c.at(-100) })
		c.put(c.window(0, 70, use{key: "a", res: usage.CPU, amount: 10, total: 20}))
		n := c.s.nodes["n1"]
		ctx, stop := context.WithCancel(c.Context())
		stop()
		c.l.through = c.at(600)
		first := c.at(0).UnixMilli() / minute
		nb := newNodeBackfill(backfillJob{node: n}, span{first, first + 2}, nil, 0)
		short, _ := c.idOf("a")
		nb.workload(short).gaps = []gap{{res: usage.CPU, from: c.at(100).UnixMilli()}}
		for name, do := range map[string]func() error{
			"newestSample":     func() error { _, err := c.s.newestSample(ctx, n); return err },
			"readLastValues":   func() error { _, err := c.s.readLastValues(ctx, n, 0, math.MaxInt64); return err },
			"restoreWorkloads": func() error { return c.s.restoreWorkloads(ctx, n, c.at(70).UnixMilli()) },
			"unsampledSpans":   func() error { _, err := c.s.unsampledSpans(ctx, n, nb.within, first+3); return err },
			"scan":             func() error { return c.s.scan(ctx, nb) },
			"addNode": func() error {
				b := &backfill{Store: c.s}
				_, err := b.addNode(ctx, backfillJob{node: n, span: batch.Span{From: c.at(0), To: c.at(60)}}, c.at(-1000))
				return err
			},
			"findOlderSamples": func() error { return c.s.findOlderSamples(ctx, nb, c.l.names, c.at(-1000)) },
			"node": func() error {
				delete(c.s.nodes, "n1")
				_, err := c.s.node(ctx, "n1")
				return err
			},
		} {
			if err := do(); !errors.Is(err, context.Canceled) {
				c.Errorf("%s: %v", name, err)
			}
		}
		if len(c.s.nodes) > 0 {
			c.Error("a node whose samples are not restored is kept")
		}
	})
}

// A node whose state cannot be restored is not kept, so that its next batch tries again.
func TestNodeFails(t *testing.T) {
	play(t, func(c *scene) {
		c.name("a", nil)
		c.put(c.window(0, 10, use{key: "a", res: usage.CPU, amount: 10, total: 20}))
		c.l.through = c.at(50)
		c.close()
		c.open()
		for _, method := range []string{"Node", "Names", "Through", "MarkUnsampled"} {
			c.l.failing = method
			if _, err := c.s.node(c.Context(), "n1"); !errors.Is(err, errInjected) {
				c.Errorf("%s: %v", method, err)
			}
			if len(c.s.nodes) > 0 {
				c.Errorf("%s: the node is kept", method)
			}
		}
		c.l.failing = ""
		n, err := c.s.node(c.Context(), "n1")
		if err != nil {
			c.Fatal(err)
		}
		if again, err := c.s.node(c.Context(), "n1"); again != n || err != nil {
			c.Error("the node is another one the second time", err)
		}
		if b := n.shortLived; !b.restart {
			c.Error("the series of short-lived workloads does not restart, although samples are missing")
		}
	})
}

// A restored node has workloads up to the limit.
func TestRestoreLimit(t *testing.T) {
	play(t, func(c *scene) {
		row := func(key string) use { return use{key: key, res: usage.CPU, amount: 10, total: 20} }
		for _, key := range []string{"a", "b", "d", "system", "idle"} {
			c.name(key, nil)
		}
		c.put(c.window(0, 10, row("a"), row("b"), row("d"), row("system"), row("idle")))
		c.close()
		c.cfg.Workloads = 2
		c.open()
		n, err := c.s.node(c.Context(), "n1")
		if err != nil {
			c.Fatal(err)
		}
		if got := len(n.workloads); got < 2 || got > 4 {
			c.Errorf("%d workloads, want two and the residual ones", got)
		}
		for _, short := range residuals("n1") {
			if n.workloads[short] == nil {
				c.Error("a residual row is not restored")
			}
		}
	})
}

// A restored node has the workloads of the last two minutes, and covers these.
func TestRestoreRecent(t *testing.T) {
	play(t, func(c *scene) {
		for _, key := range []string{"a", "b", "d"} {
			c.name(key, nil)
		}
		n, err := c.s.node(c.Context(), "n1")
		if err != nil || len(n.coverage) > 0 {
			c.Fatalf("%v, covers %v without samples", err, n.coverage)
		}
		row := func(key string) use { return use{key: key, res: usage.CPU, amount: 10, total: 20} }
		c.put(c.window(0, 10, row("a")))
		short, _ := c.idOf("a")
		delete(n.workloads, short) // so that its value is not repeated
		c.put(c.window(10, 30, row("d")))
		short, _ = c.idOf("d")
		delete(n.workloads, short)
		c.put(c.window(30, 150, row("b")))
		c.close()
		c.open()
		if n, err = c.s.node(c.Context(), "n1"); err != nil {
			c.Fatal(err)
		}
		for key, want := range map[string]bool{"a": false, "b": true, "d": true} {
			if short, _ := c.idOf(key); (n.workloads[short] != nil) != want {
				c.Errorf("%s is restored: %v", key, !want)
			}
		}
		if want := (intervals{{c.at(30).UnixMilli(), c.at(150).UnixMilli()}}); !slices.Equal(n.coverage, want) || n.end != want[0].to {
			c.Errorf("covers %v until %d, want %v", n.coverage, n.end, want)
		}
	})
}

// The newest sample counts also if the clock of the node is ahead.
func TestNewestSampleAhead(t *testing.T) {
	play(t, func(c *scene) {
		ahead := time.Until(c.begin).Seconds()*-1 + 600
		c.put(c.window(ahead, ahead+10))
		got, err := c.s.newestSample(c.Context(), c.s.nodes["n1"])
		if want := c.at(ahead + 10).UnixMilli(); got != want || err != nil {
			c.Errorf("%s s, %v, want %s", c.seconds(got), err, c.seconds(want))
		}
	})
}

// A level without a label has only the labels of its node.
func TestLevelLabels(t *testing.T) {
	t.Parallel()
	n := &node{cluster: "c", name: "box"}
	if got := n.levelLabels(&metric.Level{Name: "x"}).String(); got != `{__name__="x", cluster="c", node="box"}` {
		t.Error(got)
	}
	if got := n.levelLabels(&metric.Level{Name: "x", Label: "l", Value: "v"}).String(); got != `{__name__="x", cluster="c", l="v", node="box"}` {
		t.Error(got)
	}
}

// A Put with invalid labels leaves nothing, and does not keep later ones from the database.
func TestStateFails(t *testing.T) {
	play(t, func(c *scene) {
		state := c.s.State()
		twice := Sample{"up", []string{"node", "a", "node", "b"}, 1}
		if err := state.Put(c.Context(), c.at(0), []Sample{{"rows", nil, 3}, twice}); err == nil {
			c.Error("took a label twice")
		}
		if err := state.Put(c.Context(), c.at(10), []Sample{{"rows", nil, 4}}); err == nil { // ends the invalid one
			c.Error("took a label twice")
		}
		if err := state.Put(c.Context(), c.at(20), []Sample{{"rows", nil, 5}}); err != nil {
			c.Error(err)
		}
		c.expect("", "rows: 20=5")
		if n := c.s.Stats().Samples; n != 1 {
			c.Errorf("%d samples, want 1", n)
		}
	})
}

// A value that a window has is not repeated at its end.
func TestNoValueTwice(t *testing.T) {
	play(t, func(c *scene) {
		c.name("a", nil)
		c.put(c.window(0, 10, use{key: "a", res: usage.DiskRead, amount: 10, total: 20}))
		before := c.s.Stats().Samples
		c.put(c.window(10, 70, use{key: "a", res: usage.DiskRead, amount: 10, total: 30}))
		if n := c.s.Stats().Samples - before; n != 5 { // two edges, the name and two gauges
			c.Errorf("%d samples, want 5", n)
		}
	})
}

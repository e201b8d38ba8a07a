package tsdb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/delivery/walltime"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
)

// book books windows in the ledger, as one batch.
func (c *scene) book(ws []usage.Window) {
	c.Helper()
	cuts, err := walltime.Cut(ws, make([]time.Duration, len(ws)))
	if err != nil {
		c.Fatal(err)
	}
	c.l.minutes, c.l.wholes = cuts.Minutes, cuts.Nodes
	slices.SortStableFunc(c.l.minutes, func(a, b batch.Minute) int { return int(a.Minute - b.Minute) })
	c.l.through = time.Unix(0, cuts.Windows[len(ws)-1].Ended())
}

// rebuild runs the store until all nodes are complete, and reopens it so that the samples are visible.
func (c *scene) rebuild() (put int64) {
	c.Helper()
	ctx, stop := context.WithCancel(c.Context())
	done := make(chan error)
	go func() { done <- c.s.Run(ctx) }()
	for end := time.Now().Add(time.Hour); c.s.IncompleteNodes() > 0 && time.Now().Before(end); {
		time.Sleep(time.Second) // virtual
	}
	stop()
	if err := <-done; err != nil || c.s.IncompleteNodes() > 0 {
		c.Fatal("not rebuilt", err)
	}
	put = c.s.Stats().Backfilled
	c.close()
	c.open()
	for _, b := range c.s.db.Blocks() {
		if m, width := b.Meta(), blockSpan.Milliseconds(); m.MinTime/width != (m.MaxTime-1)/width {
			c.Errorf("a block from %s s to %s s is of more than one slice", c.seconds(m.MinTime), c.seconds(m.MaxTime))
		}
	}
	return put
}

// A busyMachine makes the windows of a machine with some workloads, each from a time to
// another, in seconds. Their ids are in the order of time.
type busyMachine struct {
	*scene
	from, to float64
	lives    []life
	whole    int64
}

type life struct {
	key      string
	from, to float64 // multiples of 10 s
	rate     int64   // bytes read per second
	idle     [2]float64
}

// windows returns windows of ten seconds, the first of which begins 3 s after the machine.
func (m *busyMachine) windows() (ws []usage.Window) {
	totals := map[string]int64{}
	for at := m.from; at < m.to; at += 10 {
		var uses []use
		for _, l := range m.lives {
			if at < l.from || at >= l.to {
				continue
			}
			if at == l.from {
				totals[l.key] = 0
			}
			amount := l.rate * 10
			if at >= l.idle[0] && at < l.idle[1] {
				continue
			}
			totals[l.key] += amount
			ended := at+10 >= l.to
			uses = append(uses, use{key: l.key, res: usage.DiskRead, amount: amount, total: totals[l.key], ended: ended},
				use{key: l.key, res: usage.CPU, amount: amount * 1e6, total: totals[l.key] * 1e6}, use{key: l.key, res: usage.MemoryPeak, amount: int64(at) + l.rate, total: thin})
		}
		w := m.window(at+3, at+13, uses...)
		w.Balance.Whole[1] = m.whole * 10
		w.Total.Put(usage.NetworkTx, 1000+int64(at), usage.Measured)
		ws = append(ws, w)
	}
	for i, l := range m.lives {
		m.name(l.key, func(n *batch.Name) {
			n.Started = m.at(l.from + 3)
			if l.to < m.to {
				n.Ended = m.at(l.to + 3)
			}
			if i == 0 {
				n.Job = "job"
			}
		})
	}
	return ws
}

// TestBackfilledSamples compares all samples after a backfill.
func TestBackfilledSamples(t *testing.T) {
	t.Parallel()
	const forever = 1e9
	base := []life{
		{key: "system", to: forever, rate: 1}, {key: "idle", to: forever, rate: 2}, {key: "steady", to: forever, rate: 10},
		{key: "still", to: forever, rate: 3, idle: [2]float64{60, 2000}}, {key: "stopped", to: 300, rate: 4},
		{key: "starts", from: 310, to: forever, rate: 5}, {key: "within", from: 250, to: 370, rate: 6}, {key: "brief1", from: 280, to: 290, rate: 7}, {key: "brief2", from: 290, to: 300, rate: 8},
		{key: "pauses", to: forever, rate: 9, idle: [2]float64{240, 360}},
	}
	for name, v := range map[string]struct {
		lives    []life
		from, to float64
		lost     [2]float64 // of which the windows are lost
		cfg      func(*Config)
	}{
		"a few minutes":   {lives: base, to: 900, lost: [2]float64{200, 400}},
		"across a block":  {lives: []life{{key: "idle", to: forever, rate: 2}, {key: "a", to: forever, rate: 10}, {key: "b", from: 7200, to: 7210, rate: 1}}, from: 6900, to: 7900, lost: [2]float64{7050, 7380}},
		"from nothing":    {lives: base[:3], to: 700, lost: [2]float64{0, 200}},
		"jobs only":       {lives: []life{{key: "a", to: forever, rate: 10}, {key: "b", from: 220, to: forever, rate: 1}}, to: 900, lost: [2]float64{200, 400}},
		"above the limit": {lives: append(slices.Clone(base[:4]), base[5:9]...), to: 900, lost: [2]float64{200, 400}, cfg: func(c *Config) { c.Workloads = 4 }},
		"too old":         {lives: base[:3], to: 900, lost: [2]float64{200, 400}, cfg: func(c *Config) { c.Retention = 3 * time.Hour }},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(c *scene) {
				c.close()
				c.cfg.BackfillDelay = time.Minute
				if v.cfg != nil {
					v.cfg(&c.cfg)
				}
				c.open()
				m := busyMachine{scene: c, from: v.from, to: v.to, lives: v.lives, whole: 4096}
				ws := m.windows()
				var before, after []usage.Window
				for i := range ws {
					switch at := v.from + float64(i)*10; {
					case at < v.lost[0]:
						before = append(before, ws[i])
					case at >= v.lost[1]:
						after = append(after, ws[i])
					}
				}
				if len(before) > 0 {
					c.put(before...)
				}
				c.book(ws)
				c.l.through = c.at(v.lost[1] + 3)
				c.l.unsampled["n1"] = batch.Span{From: c.at(v.lost[0] + 3), To: c.at(v.lost[1] + 3)}
				c.close()
				c.open()
				c.put(after...)
				c.l.through = c.at(v.to + 3)
				if put := c.rebuild(); put == 0 && name != "too old" {
					c.Error("no samples are rebuilt")
				}
				if len(c.l.unsampled) > 0 {
					c.Errorf("the ledger still has %v", c.l.unsampled)
				}
				c.from, c.to = v.lost[0]-20, v.lost[1]+20
				c.check()
			})
		})
	}
}

// A node is ready for a backfill when it has sent windows for long enough, none of them late.
func TestReadyJobs(t *testing.T) {
	play(t, func(c *scene) {
		delay := c.cfg.BackfillDelay
		span := batch.Span{From: c.at(0), To: c.at(100)}
		for name, v := range map[string]struct {
			resumed, newest float64
			late            time.Duration // before now
			unknown         bool
			want            bool
		}{
			"ready":                    {resumed: 200, newest: 200 + delay.Seconds() + 120, late: time.Hour, want: true},
			"resumed before the end":   {resumed: 50, newest: 100 + delay.Seconds() + 120, late: time.Hour, want: true},
			"a ms too early":           {resumed: 200, newest: 200 + delay.Seconds() + 119.999, late: time.Hour},
			"late windows":             {resumed: 200, newest: 1000, late: delay - 1},
			"late windows, long since": {resumed: 200, newest: 1000, late: delay, want: true},
			"not resumed":              {newest: 1000, late: time.Hour},
			"unknown node":             {resumed: 200, newest: 1000, late: time.Hour, unknown: true},
		} {
			n := &node{id: "n1"}
			n.newestEnd.Store(c.at(v.newest).UnixMilli())
			n.lastLate.Store(time.Now().Add(-v.late).UnixNano())
			u := unsampledNode{Span: span}
			if v.resumed > 0 {
				u.resumed = c.at(v.resumed).UnixMilli()
			}
			c.s.nodes, c.s.unsampled = map[string]*node{"n1": n}, map[string]unsampledNode{"n1": u}
			if v.unknown {
				c.s.nodes = nil
			}
			got := c.s.readyJobs()
			if (len(got) == 1) != v.want {
				c.Errorf("%s: %v, want %v", name, len(got) == 1, v.want)
			}
			if len(got) == 1 && (got[0].node != n || got[0].span != span) {
				c.Errorf("%s: %+v", name, got[0])
			}
		}
	})
}

// A backfill that fails changes nothing and is repeated.
func TestBackfillFails(t *testing.T) {
	play(t, func(c *scene) {
		m := busyMachine{scene: c, to: 1200, lives: []life{{key: "idle", to: 1e9, rate: 2}, {key: "a", to: 1e9, rate: 10}, {key: "b", from: 200, to: 1e9, rate: 10}}}
		ws := m.windows()
		c.put(ws[:20]...)
		c.book(ws)
		c.put(ws[40:]...)
		span := batch.Span{From: c.at(203), To: c.at(403)}
		c.s.noteUnsampled("n1", span)
		c.s.noteResumed(c.s.nodes["n1"], c.at(403).UnixMilli())
		job := backfillJob{c.s.nodes["n1"], span}
		before := c.samples()
		for _, method := range []string{"Through", "Names", "Minutes", "Wholes"} {
			c.l.failing = method
			if put, err := c.s.backfill(c.Context(), []backfillJob{job}); !errors.Is(err, errInjected) || put != 0 {
				c.Errorf("%s: %d samples, %v", method, put, err)
			}
			if c.s.IncompleteNodes() != 1 {
				c.Errorf("%s: the node is complete", method)
			}
		}
		c.l.failing = "ClearUnsampled"
		put, err := c.s.backfill(c.Context(), []backfillJob{job})
		if !errors.Is(err, errInjected) || put == 0 || c.s.IncompleteNodes() != 1 || c.s.Stats().Backfilled != put {
			c.Errorf("ClearUnsampled: %d samples, %v", put, err)
		}
		c.l.failing = ""
		// The block cannot be written.
		if err := errors.Join(os.RemoveAll(backfillDir(c.cfg.Dir)), os.WriteFile(backfillDir(c.cfg.Dir), nil, 0o600)); err != nil {
			c.Fatal(err)
		}
		if put, err := c.s.backfill(c.Context(), []backfillJob{job}); err == nil || put != 0 || c.s.IncompleteNodes() != 1 {
			c.Errorf("no directory for blocks: %d samples, %v", put, err)
		}
		if err := os.Remove(backfillDir(c.cfg.Dir)); err != nil {
			c.Fatal(err)
		}
		// The ledger lacks the latest windows. It is not read then.
		c.l.through = c.at(1199.999)
		c.l.called = func(method string) {
			if method != "Through" && method != "ClearUnsampled" {
				c.Errorf("%s is called although no node is ready", method)
			}
		}
		if put, err := c.s.backfill(c.Context(), []backfillJob{job}); put != 0 || err != nil || c.s.IncompleteNodes() != 1 {
			c.Errorf("not booked yet: %d samples, %v", put, err)
		}
		c.l.called = nil
		if got := c.samples(); got != before {
			c.Errorf("samples changed:\n%swere\n%s", got, before)
		}
		// The span was extended since.
		c.l.through = c.at(1200)
		c.s.noteUnsampled("n1", batch.Span{From: c.at(100), To: c.at(110)})
		if _, err := c.s.backfill(c.Context(), []backfillJob{job}); err != nil || c.s.IncompleteNodes() != 1 {
			c.Errorf("extended: %d incomplete nodes, %v", c.s.IncompleteNodes(), err)
		}
		job.span = c.s.unsampled["n1"].Span
		if _, err := c.s.backfill(c.Context(), []backfillJob{job}); err != nil || c.s.IncompleteNodes() != 0 {
			c.Errorf("%d incomplete nodes, %v", c.s.IncompleteNodes(), err)
		}
	})
}

// Run waits a minute after a failure, and ends with its context; without a ledger it does nothing.
func TestRunRepeats(t *testing.T) {
	play(t, func(c *scene) {
		m := busyMachine{scene: c, to: 1200, lives: []life{{key: "idle", to: 1e9, rate: 2}}}
		ws := m.windows()
		c.put(ws[:20]...)
		c.book(ws)
		c.put(ws[40:]...)
		c.s.noteUnsampled("n1", batch.Span{From: c.at(203), To: c.at(403)})
		c.s.noteResumed(c.s.nodes["n1"], c.at(403).UnixMilli())
		c.l.failing = "Minutes"
		ctx, stop := context.WithCancel(c.Context())
		done := make(chan error)
		go func() { done <- c.s.Run(ctx) }()
		time.Sleep(16 * time.Second) // the first try is at 15 s
		synctest.Wait()
		c.l.failing = ""
		time.Sleep(58 * time.Second)
		if c.s.IncompleteNodes() != 1 {
			c.Error("no pause after a failure")
		}
		time.Sleep(20 * time.Second)
		if c.s.IncompleteNodes() != 0 {
			c.Error("not repeated")
		}
		stop()
		if err := <-done; err != nil {
			c.Error(err)
		}
		c.s.history = nil
		if err := c.s.Run(c.Context()); err != nil {
			c.Error(err)
		}
	})
}

// TestSlices checks the slices of a time: they end at even hours.
func TestSlices(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, to int64
		want     string
	}{{100, 100, ""}, {0, 120, "0-120 "}, {119, 121, "119-120 120-121 "}, {5, 250, "5-120 120-240 240-250 "}} {
		got := ""
		b := backfill{from: c.from, to: c.to}
		err := b.eachSlice(t.Context(), func(_ context.Context, from, to time.Time) error {
			got += fmt.Sprintf("%d-%d ", from.Unix()/60, to.Unix()/60)
			return nil
		})
		if got != c.want || err != nil {
			t.Errorf("from %d to %d: %s, %v, want %s", c.from, c.to, got, err, c.want)
		}
		if c.want != "" {
			if err := b.eachSlice(t.Context(), func(context.Context, time.Time, time.Time) error { return errInjected }); !errors.Is(err, errInjected) {
				t.Errorf("from %d to %d: %v", c.from, c.to, err)
			}
		}
	}
}

// A limitedContext is canceled after a number of calls of Err.
type limitedContext struct {
	context.Context
	left int
}

func (c *limitedContext) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// Whenever a backfill is canceled, it returns the error and the node stays incomplete.
func TestBackfillCanceled(t *testing.T) {
	play(t, func(c *scene) {
		m := busyMachine{scene: c, to: 1200, lives: []life{{key: "idle", to: 1e9, rate: 2}, {key: "a", to: 1e9, rate: 10, idle: [2]float64{60, 300}}}}
		ws := m.windows()
		c.put(ws[:20]...)
		c.book(ws)
		c.put(ws[40:]...)
		span := batch.Span{From: c.at(203), To: c.at(403)}
		c.s.noteUnsampled("n1", span)
		job := backfillJob{c.s.nodes["n1"], span}
		for left := range 1000 {
			ctx := &limitedContext{c.Context(), left}
			put, err := c.s.backfill(ctx, []backfillJob{job})
			if ctx.left >= 0 {
				if err != nil || put == 0 || c.s.IncompleteNodes() != 0 || left < 5 {
					c.Errorf("not canceled: %d samples, %v, %d incomplete nodes, after %d questions", put, err, c.s.IncompleteNodes(), left)
				}
				return
			}
			if !errors.Is(err, context.Canceled) || c.s.IncompleteNodes() != 1 {
				c.Fatalf("canceled at question %d: %v, %d incomplete nodes", left, err, c.s.IncompleteNodes())
			}
		}
		c.Error("asked a thousand times")
	})
}

// A backfill whose range begins hours after the last samples is canceled as well while it looks for these.
func TestBackfillLaterCanceled(t *testing.T) {
	play(t, func(c *scene) {
		lives := []life{{key: "idle", to: 1e9, rate: 2}, {key: "a", to: 1e9, rate: 10}}
		m := busyMachine{scene: c, to: 200, lives: lives}
		c.put(m.windows()...)
		m.from, m.to = 14400, 15600
		ws := m.windows()
		c.book(ws)
		c.put(ws[40:]...)
		job := backfillJob{c.s.nodes["n1"], batch.Span{From: c.at(14403), To: c.at(14803)}}
		looked := false
		for left := range 1000 {
			ctx := &limitedContext{c.Context(), left}
			c.l.called = func(method string) { looked = looked || method == "Names" }
			put, err := c.s.backfill(ctx, []backfillJob{job})
			if ctx.left >= 0 {
				if err != nil || put == 0 || !looked {
					c.Errorf("not canceled: %d samples, %v", put, err)
				}
				return
			}
			if !errors.Is(err, context.Canceled) {
				c.Fatalf("canceled at question %d: %v", left, err)
			}
		}
		c.Error("asked a thousand times")
	})
}

// TestAddNodeRange checks the edges of which samples may be missing, in minutes since the begin.
func TestAddNodeRange(t *testing.T) {
	play(t, func(c *scene) {
		m := busyMachine{scene: c, to: 1200, lives: []life{{key: "idle", to: 1e9, rate: 2}}}
		ws := m.windows()
		c.put(ws...)
		c.l.through = c.at(1203)
		first := c.at(0).UnixMilli() / minute
		for _, v := range []struct {
			from, to, oldest float64
			want             span
			none             bool
		}{
			{from: 203, to: 403, oldest: -100, want: span{3, 7}},
			{from: 240, to: 419.999, oldest: -100, want: span{4, 7}},
			{from: 203, to: 420, oldest: -100, want: span{3, 8}},
			{from: 203, to: 1190, oldest: -100, want: span{3, 20}},
			{from: 203, to: 403, oldest: 301, want: span{5, 7}},
			{from: 203, to: 403, oldest: 430, want: span{7, 7}},
			{from: 203, to: 403, oldest: 480, none: true},
		} {
			b := &backfill{Store: c.s, from: never}
			ok, err := b.addNode(c.Context(), backfillJob{c.s.nodes["n1"], batch.Span{From: c.at(v.from), To: c.at(v.to)}}, c.at(v.oldest))
			if !ok || err != nil || (len(b.nodes) == 0) != v.none {
				c.Fatalf("from %v to %v: %v, %v, %d nodes", v.from, v.to, ok, err, len(b.nodes))
			}
			if v.none {
				continue
			}
			nb := b.nodes[0]
			if got := (span{nb.within.first - first, nb.within.last - first}); got != v.want {
				c.Errorf("from %v to %v, kept since %v: edges %v, want %v", v.from, v.to, v.oldest, got, v.want)
			}
			if b.from != nb.first || b.to != nb.last || b.ids[0] != "n1" {
				c.Errorf("minutes from %d to %d of %v, want %d to %d", b.from, b.to, b.ids, nb.first, nb.last)
			}
		}
	})
}

func TestBackfillInterval(t *testing.T) {
	t.Parallel()
	for delay, want := range map[time.Duration]time.Duration{0: 50 * time.Millisecond, time.Second: 100 * time.Millisecond, time.Minute: 6 * time.Second, 6 * time.Minute: 15 * time.Second} {
		if got := backfillInterval(delay); got != want {
			t.Errorf("with a delay of %v: %v, want %v", delay, got, want)
		}
	}
}

// Run ends at once with its context, also during a backfill and in the pause after a failure, and does
// not take this for a failure.
func TestRunEnds(t *testing.T) {
	play(t, func(c *scene) {
		m := busyMachine{scene: c, to: 1200, lives: []life{{key: "idle", to: 1e9, rate: 2}}}
		ws := m.windows()
		c.put(ws[:20]...)
		c.book(ws)
		c.put(ws[40:]...)
		c.s.noteUnsampled("n1", batch.Span{From: c.at(203), To: c.at(403)})
		c.s.noteResumed(c.s.nodes["n1"], c.at(403).UnixMilli())
		for _, when := range []string{"before", "during", "after"} {
			var log bytes.Buffer
			c.s.log = slog.New(slog.NewTextHandler(&log, nil))
			ctx, stop := context.WithCancel(c.Context())
			began, failures, calls := time.Now(), 0, 0
			c.l.failing = "Minutes"
			c.l.called = func(method string) {
				if calls++; when == "during" {
					stop()
				}
			}
			wait := 30 * time.Second // in which the second try is not
			switch when {
			case "before":
				wait = 0
			case "after":
				failures = 1
			}
			if when != "during" {
				time.AfterFunc(wait, stop)
			}
			if err := c.s.Run(ctx); err != nil {
				c.Error(err)
			}
			stop()
			if took := time.Since(began); took > 30*time.Second || when == "before" && calls > 0 || when != "before" && calls == 0 {
				c.Errorf("%s: took %v, %d calls", when, took, calls)
			}
			if n := strings.Count(log.String(), "level=ERROR"); n != failures {
				c.Errorf("%s: %d failures, want %d: %s", when, n, failures, log.String())
			}
			c.l.called = nil
		}
		// It logs what it rebuilt. If no sample was missing, it is silent.
		c.l.failing = ""
		for _, v := range []struct{ from, to float64 }{{203, 403}, {600, 700}} {
			var log bytes.Buffer
			c.s.log = slog.New(slog.NewTextHandler(&log, nil))
			span := batch.Span{From: c.at(v.from), To: c.at(v.to)}
			c.s.unsampled["n1"] = unsampledNode{Span: span, resumed: c.at(v.to).UnixMilli()}
			put := c.s.Stats().Backfilled
			ctx, stop := context.WithTimeout(c.Context(), time.Minute)
			if err := c.s.Run(ctx); err != nil || c.s.IncompleteNodes() != 0 {
				c.Errorf("%v, %d incomplete nodes", err, c.s.IncompleteNodes())
			}
			stop()
			if put = c.s.Stats().Backfilled - put; (put > 0) != (v.from == 203) || strings.Contains(log.String(), "rebuilt") != (put > 0) {
				c.Errorf("%d samples; logged %s", put, log.String())
			}
		}
	})
}

// TestLateRow checks that a row just after the range counts for the time that a workload covers.
func TestLateRow(t *testing.T) {
	t.Parallel()
	n := &node{id: "n1", residuals: residuals("n1"), shortLived: &namedWorkload{}, quota: seriesQuota{limit: 10}}
	nb := newNodeBackfill(backfillJob{node: n}, span{10, 20}, nil, time.Minute)
	row := func(at int64) *workloadBackfill {
		m := batch.Minute{Minute: at, Workload: 7}
		m.Usage.Put(usage.CPU, 1, usage.Measured)
		m.Usage.Covered = 10 * time.Second
		nb.addMinute(&m)
		return nb.workloads[7]
	}
	for _, at := range []int64{8, 21, 22} { // one that begins outside the range is not known
		if row(at) != nil {
			t.Errorf("the row of minute %d counts", at)
		}
	}
	for _, v := range []struct {
		at, first, last, use int64
		covered              time.Duration
	}{{8, 0, 0, 0, 0}, {9, 9, 9, 1, 10}, {20, 9, 20, 2, 20}, {21, 9, 20, 2, 30}, {22, 9, 20, 2, 30}} {
		wb := row(v.at)
		if wb == nil {
			if v.first > 0 {
				t.Errorf("the row of minute %d does not count", v.at)
			}
			continue
		}
		if use := wb.head[usage.CPU] + wb.tail[usage.CPU]; wb.first != v.first || wb.last != v.last || use != v.use || wb.covered != v.covered*time.Second {
			t.Errorf("minute %d: from %d to %d, use %d, covers %v, want %+v", v.at, wb.first, wb.last, use, wb.covered, v)
		}
	}
	// A workload with samples has use before and after the range, too.
	nb.workloads[7].sampled = usage.SetOf(usage.CPU)
	if wb := row(22); wb.last != 22 || wb.covered != 40*time.Second {
		t.Errorf("with samples: to minute %d, covers %v", wb.last, wb.covered)
	}
}

package tsdb

import (
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A workload that lived for less than a window is short-lived; one that was idle until after
// the gap or has samples is not.
func TestIsShortLived(t *testing.T) {
	const at = int64(1000) // minute
	end := time.UnixMilli((at + 1) * minute)
	for name, c := range map[string]struct {
		workload workloadBackfill
		ended    time.Time
		want     bool
	}{
		"one window":          {workloadBackfill{first: at, last: at, covered: 10 * time.Second}, end.Add(-5 * time.Second), true},
		"across an edge":      {workloadBackfill{first: at - 1, last: at, covered: 11 * time.Second}, end.Add(-50 * time.Second), true},
		"reported a bit late": {workloadBackfill{first: at, last: at, covered: 10 * time.Second}, end.Add(9 * time.Second), true},
		"several windows":     {workloadBackfill{first: at, last: at, covered: 20 * time.Second}, end.Add(-5 * time.Second), false},
		"just too long":       {workloadBackfill{first: at, last: at, covered: 15*time.Second + 1}, end.Add(-5 * time.Second), false},
		"idle, then ended":    {workloadBackfill{first: at, last: at, covered: 10 * time.Second}, end.Add(time.Minute), false},
		"alive":               {workloadBackfill{first: at, last: at, covered: 10 * time.Second}, time.Time{}, false},
		"with samples":        {workloadBackfill{first: at, last: at, covered: 10 * time.Second, sampled: usage.SetOf(usage.CPU)}, end.Add(-5 * time.Second), false},
	} {
		if got := c.workload.isShortLived(&batch.Name{Ended: c.ended}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A backfill limits the workloads of a node in memory and sums the use of the others.
func TestBackfillBounds(t *testing.T) {
	n := &node{id: "n1", residuals: residuals("n1"), shortLived: &namedWorkload{}, quota: seriesQuota{limit: 10}}
	h := newNodeBackfill(backfillJob{node: n}, span{1, 10 * sliceMinutes}, nil, time.Minute)
	l := &memoryLedger{}
	b := &backfill{Store: &Store{history: l}, nodes: []*nodeBackfill{h}}
	residuals := len(h.workloads)
	var want, rest int64
	next := workload.ShortID(1)
	for at := range int64(10) {
		l.minutes = nil
		for range 100 {
			m := batch.Minute{Minute: at * sliceMinutes, Workload: next}
			m.Usage.Put(usage.CPU, int64(next), usage.Measured)
			l.minutes = append(l.minutes, m)
			next++
			want += int64(next) - 1
		}
		if err := b.read(t.Context(), time.UnixMilli(at*sliceMinutes*minute), time.UnixMilli((at+1)*sliceMinutes*minute)); err != nil {
			t.Fatal(err)
		}
		if n := len(h.workloads); n != min(10*int(at+1)+residuals, 50) {
			t.Fatalf("%d workloads after %d slices", n, at+1)
		}
	}
	for _, sum := range h.untracked {
		rest += sum[usage.CPU]
	}
	for _, t := range h.workloads {
		rest += t.head[usage.CPU] + t.tail[usage.CPU]
	}
	if rest != want {
		t.Errorf("sum of the use %d, want %d", rest, want)
	}
}

// The least use of a series without samples begins a gap over the whole range.
func TestUseWithoutSamples(t *testing.T) {
	t.Parallel()
	within := span{10, 20}
	want := gap{res: usage.CPU, from: 10*minute - 1, to: never, first: 9, last: 20, begin: 11, end: 11, sum: 1}
	var wb workloadBackfill
	wb.addUse(usage.CPU, 11, 0, within)
	wb.addUse(usage.CPU, 11, 1, within)
	if len(wb.gaps) != 1 || wb.gaps[0] != want {
		t.Errorf("%+v, want %+v", wb.gaps, want)
	}
	sampled := workloadBackfill{sampled: usage.SetOf(usage.CPU)}
	if sampled.addUse(usage.CPU, 11, 1, within); len(sampled.gaps) > 0 {
		t.Errorf("a series with samples has the gap %+v", sampled.gaps)
	}
}

// TestNodePlan checks which workloads get series of their own.
func TestNodePlan(t *testing.T) {
	t.Parallel()
	const oldest = int64(5) // minute
	n := &node{id: "n1", residuals: residuals("n1"), shortLived: &namedWorkload{}, quota: seriesQuota{limit: 100}}
	nb := newNodeBackfill(backfillJob{node: n}, span{10, 20}, nil, time.Minute)
	names := map[workload.ShortID]batch.Name{}
	want := map[workload.ShortID]string{}
	add := func(what, series string, started, ended int64, sampled usage.Set) {
		short := workload.ShortID(len(want) + 1)
		m := batch.Minute{Minute: 12, Workload: short}
		m.Usage.Put(usage.CPU, 1, usage.Measured)
		m.Usage.Covered = 10 * time.Second
		nb.addMinute(&m)
		if what != "unknown" {
			name := batch.Name{ID: workload.ID(what), Started: time.UnixMilli(started * minute)}
			if ended > 0 {
				name.Ended = time.UnixMilli(ended * minute)
			}
			names[short] = name
		}
		if nb.workloads[short].sampled = sampled; sampled != 0 {
			nb.workloads[short].gaps = []gap{{res: usage.CPU, first: 11, last: 20, sum: 1}}
		}
		want[short] = what + " " + series
	}
	add("unknown", "none", 6, 0, 0)
	add("live", "own", 6, 0, 0)
	add("live since the retention", "own", 5, 0, 0)
	add("live for long", "none", 4, 0, 0)
	add("live for long, with samples", "own", 4, 0, usage.SetOf(usage.CPU))
	add("ended after long", "own", 4, 30, 0)
	add("brief", "shared", 12, 13, 0)
	nb.plan(names, time.UnixMilli(oldest*minute))
	for short, want := range want {
		wb, series := nb.workloads[short], "none"
		switch {
		case wb.shortLived:
			series = "shared"
		case wb.labels != nil:
			series = "own"
		}
		what, _ := strings.CutSuffix(want, " "+series)
		if what == want || (len(wb.gaps) == 1) != (series == "own") {
			t.Errorf("%s: %s, %d gaps", want, series, len(wb.gaps))
		}
	}
	if g := nb.shortLived.gaps; len(g) != 1 || g[0].sum != 1 || g[0].begin != 12 {
		t.Errorf("the shared series has %+v", g)
	}
	for i, part := range []metric.Part{metric.System, metric.Idle} {
		if got := nb.workloads[n.residuals[i]].part; got != part {
			t.Errorf("residual row %d is of part %v", i, got)
		}
	}
}

// Rows that were booked after the gaps were planned do not count, and a minute without length has no
// samples of its node.
func TestBackfillBookedSince(t *testing.T) {
	t.Parallel()
	n := &node{id: "n1", cluster: "c", name: "box", residuals: residuals("n1"), shortLived: &namedWorkload{}, quota: seriesQuota{limit: 100}}
	nb := newNodeBackfill(backfillJob{node: n}, span{10, 20}, []span{{16, 16}}, time.Minute)
	nb.resetBlock()
	nb.workloads[7] = &workloadBackfill{first: 15, last: 15}
	nb.workloads[8] = &workloadBackfill{first: 16, last: 16}
	nb.minute, nb.edge = 15, 15
	w := &blockWriter{app: &failingAppender{left: 1e9}}
	for short, counts := range map[workload.ShortID]bool{n.residuals[0]: false, 7: true, 8: false, 9: false} {
		nb.parts = metric.Parts{}
		m := batch.Minute{Minute: 15, Workload: short}
		m.Usage.Put(usage.CPU, 1, usage.Measured)
		if err := nb.writeRow(w, &m); err != nil {
			t.Fatal(err)
		}
		if got := nb.parts != (metric.Parts{}); got != counts {
			t.Errorf("the row of %v counts: %v", short, got)
		}
	}
	for _, covered := range []time.Duration{0, time.Second} {
		nb.wholes[15] = batch.NodeMinute{Minute: 15, CPUs: 2, Covered: covered}
		if err := nb.writeMachine(w); err != nil || (w.written > 0) != (covered > 0) {
			t.Errorf("a minute of %v: %d samples, %v", covered, w.written, err)
		}
	}
}

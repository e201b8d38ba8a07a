package tsdb

import (
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
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
		if n := len(h.workloads); n != min(10*int(at+1)+residuals, maxWorkloadFactor*10) {
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

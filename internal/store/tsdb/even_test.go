package tsdb

import (
	"fmt"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
)

// A sample is a float at a time in ms.
type sample struct {
	chunks.Sample
	at int64
	v  float64
}

func (s sample) T() int64                 { return s.at }
func (s sample) F() float64               { return s.v }
func (s sample) ST() int64                { return 7 }
func (s sample) Type() chunkenc.ValueType { return chunkenc.ValFloat }

// The iterator reads one sample ahead of the one that it shows. It shows its last sample whole when the series has
// ended: the iterators of several blocks, chained, have none then.
func TestEvenIteratorAtEnd(t *testing.T) {
	lset := labels.FromStrings("__name__", "mete_workload_cpu_seconds_total")
	list := func(from int64) storage.Series {
		var all []chunks.Sample
		for i := range int64(7) {
			all = append(all, sample{at: from + i*10_000, v: float64(from + i)})
		}
		return storage.NewListSeries(lset, all)
	}
	merged := storage.ChainedSeriesMerge(list(5_000), list(105_000))
	buffered := storage.NewBuffer(60_000)
	buffered.Reset(evenSeries{merged, 0, 1_000_000}.Iterator(nil))
	for _, to := range []int64{30_000, 90_000, 160_000} {
		if got := buffered.Seek(to); got != chunkenc.ValFloat {
			t.Fatalf("seek to %d: %v", to, got)
		}
		if at, _ := buffered.At(); at < to || buffered.AtST() != 7 {
			t.Errorf("seek to %d: at %d, started at %d", to, at, buffered.AtST())
		}
	}
	if got := buffered.Next(); got != chunkenc.ValNone {
		t.Errorf("after the last: %v", got)
	}
	n := 0
	for it := buffered.Buffer(); it.Next() != chunkenc.ValNone; n++ {
		if it.AtST() != 7 {
			t.Errorf("a sample before the last started at %d", it.AtST())
		}
	}
	if n < 6 {
		t.Errorf("%d samples in the minute before", n)
	}
}

// A seek finds the first sample that is not earlier, or none.
func TestEvenIteratorSeek(t *testing.T) {
	list := storage.NewListSeries(labels.FromStrings("__name__", "x"), []chunks.Sample{sample{at: 5_000, v: 1}, sample{at: 15_000, v: 2}, sample{at: 25_000, v: 3}})
	it := evenSeries{list, 0, 20_000}.Iterator(nil)
	for _, c := range []struct {
		to, at int64
		v      float64
		want   chunkenc.ValueType
	}{{5_000, 5_000, 1, chunkenc.ValFloat}, {4_000, 5_000, 1, chunkenc.ValFloat}, {5_001, 15_000, 2, chunkenc.ValFloat}, {15_001, 0, 0, chunkenc.ValNone}, {15_001, 0, 0, chunkenc.ValNone}} {
		got := it.Seek(c.to)
		if at, v := it.At(); got != c.want || at != c.at || v != c.v || it.AtT() != at {
			t.Errorf("seek to %d: %v, %v at %d, want %v at %d", c.to, got, v, at, c.v, c.at)
		}
	}
}

// A sample at a minute edge is left out if its window is as long as agents make one at most.
func TestEvenIteratorEdges(t *testing.T) {
	for _, c := range []struct {
		at   []int64
		want string
	}{
		{[]int64{50_000, 60_000, 65_000}, "[50000 65000]"},
		{[]int64{50_000, 60_000, 65_001}, "[50000 60000 65001]"},
		{[]int64{50_000, 59_999, 65_000}, "[50000 59999 65000]"},
		{[]int64{60_000, 65_000, 70_000}, "[60000 65000 70000]"},
		{[]int64{40_000, 50_000, 60_000}, "[50000 60000]"}, // without a later one nothing is known
		{[]int64{50_000, 60_000, 70_000, 80_000}, "[50000 60000 70000]"},
	} {
		var all []chunks.Sample
		for _, at := range c.at {
			all = append(all, sample{at: at, v: 1})
		}
		var got []int64
		it := evenSeries{storage.NewListSeries(labels.FromStrings("__name__", "x"), all), 50_000, 70_000}.Iterator(nil)
		for it.Next() != chunkenc.ValNone {
			got = append(got, it.AtT())
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%v: %v, want %s", c.at, got, c.want)
		}
	}
}

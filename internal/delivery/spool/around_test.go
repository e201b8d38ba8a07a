package spool

import (
	"log/slog"
	"testing"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
)

// numbered returns a window of one number, in seconds of wall time.
func numbered(number uint64, from, to int64) window {
	return window{windowHead: windowHead{First: number, Last: number, Start: from * 1e9, End: to * 1e9}}
}

// TestGapAround checks the time of a window and of the lost windows next to it, in seconds. Window
// 6 is from 60 to 70.
func TestGapAround(t *testing.T) {
	for _, c := range []struct {
		name     string
		index    []window
		streams  []*stream
		from, to int64
	}{
		{"alone", nil, nil, 60, 70},
		{"beside others", []window{numbered(5, 40, 50), numbered(7, 80, 90)}, nil, 60, 70},
		{"lost before", []window{numbered(3, 30, 40)}, nil, 40, 70},
		{"lost after", []window{numbered(9, 90, 100)}, nil, 60, 90},
		{"lost on both sides", []window{numbered(2, 20, 30), numbered(3, 30, 40), numbered(9, 90, 100), numbered(10, 100, 110)}, nil, 40, 90},
		{"lost after a batch", nil, []*stream{{From: 1, Batched: 4, Through: 45e9, FirstStart: 10e9}}, 45, 70},
		{"batched just before", nil, []*stream{{From: 1, Batched: 5, Through: 45e9, FirstStart: 10e9}}, 60, 70},
		{"lost before a new stream", nil, []*stream{{From: 9, Batched: 8, Through: 85e9}}, 60, 85},
		{"lost before a stream with batches", nil, []*stream{{From: 9, Batched: 12, Through: 120e9, FirstStart: 88e9}}, 60, 88},
		{"lost before a stream with one batched window", nil, []*stream{{From: 9, Batched: 9, Through: 95e9, FirstStart: 88e9}}, 60, 88},
		{"just before a new stream", nil, []*stream{{From: 7, Batched: 6, Through: 85e9}}, 60, 70},
		{"the nearest counts", []window{numbered(2, 20, 30), numbered(12, 120, 130)}, []*stream{{From: 1, Batched: 4, Through: 45e9}, {From: 9, Batched: 8, Through: 85e9}}, 45, 85},
		{"lost after the first window", []window{numbered(1, 10, 20)}, nil, 20, 70},
		{"lost after batches of an unknown time", nil, []*stream{{From: 1, Batched: 4}}, 60, 70},
		{"lost before batches of an unknown time", []window{numbered(12, 120, 130)}, []*stream{{From: 9, Batched: 10, Through: 110e9}}, 60, 120},
		{"clocks that were set", []window{numbered(3, 64, 66), numbered(9, 62, 63)}, nil, 60, 70},
	} {
		w := numbered(6, 60, 70)
		s := &Spool{index: append(c.index, w), streams: c.streams}
		if from, to := (&recovery{s: s}).gapAround(w); from != c.from*1e9 || to != c.to*1e9 {
			t.Errorf("%s: from %v to %v s, want %d to %d", c.name, float64(from)/1e9, float64(to)/1e9, c.from, c.to)
		}
	}
}

// TestSplitUncertain checks which windows of a stream are given up, and the time of their gap, in
// seconds. The stream has the windows from 1 on; those through 2 are in batches, until 20.
func TestSplitUncertain(t *testing.T) {
	own := []window{numbered(3, 20, 30), numbered(4, 30, 40), numbered(5, 50, 60)}
	for _, c := range []struct {
		name     string
		index    []window
		to       uint64 // the stream's last window, 0 if it is live
		top      uint64
		from, by int64 // the gap, none if equal
		first    uint64
	}{
		{"one", own, 0, 3, 20, 30, 4},
		{"two, before a pause", own, 0, 4, 20, 40, 5},
		{"all", own, 0, 5, 20, 60, 6},
		{"two, the second is lost", []window{own[0], own[2]}, 0, 4, 20, 50, 5},
		{"all lost, none follows", nil, 0, 4, 20, 20, 5},
		{"all lost, one follows", []window{own[2]}, 0, 4, 20, 50, 5},
		{"none", own, 0, 2, 20, 20, 3},
		{"more than it has", own, 4, 9, 20, 40, 5},
	} {
		st := &stream{From: 1, To: c.to, Live: c.to == 0, Batched: 2, Through: 20e9, Next: 2, Wanted: 1}
		s := &Spool{index: c.index, streams: []*stream{st}, stored: map[batch.Stream][]storedBatch{}, log: slog.New(slog.DiscardHandler)}
		next := (&recovery{s: s}).splitUncertain(st, c.top)
		var want []usage.Gap
		if c.by > c.from {
			want = []usage.Gap{newGap(c.from*1e9, c.by*1e9, usage.Corrupt, "")}
		}
		if next.From != c.first || next.Batched != c.first-1 || next.Live != (c.to == 0) || next.Through != c.by*1e9 || len(next.Gaps) != len(want) || len(want) > 0 && next.Gaps[0] != want[0] {
			t.Errorf("%s: from window %d on, gaps %v, want %d, %v", c.name, next.From, next.Gaps, c.first, want)
		}
		if st.Live || st.To != 2 {
			t.Errorf("%s: the old stream goes on: %+v", c.name, st)
		}
	}
}

// TestSplitFirst checks the gap of a stream without batches: it begins with its first window and the gaps of that.
func TestSplitFirst(t *testing.T) {
	first := numbered(1, 20, 30)
	first.Gap = 15e9
	s := &Spool{index: []window{first, numbered(2, 30, 40), numbered(3, 40, 50)}}
	next := (&recovery{s: s}).splitUncertain(&stream{From: 1, Live: true, Next: 1, Wanted: 1}, 2)
	if want := newGap(15e9, 40e9, usage.Corrupt, ""); len(next.Gaps) != 1 || next.Gaps[0] != want || next.Through != 40e9 {
		t.Errorf("gaps %v, want %v", next.Gaps, want)
	}
}

package usage_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// of is a row of a life of a workload.
func of(kind workload.Kind, key string, life uint64, name string) usage.Row {
	return usage.NewRow(&usage.Identity{Workload: workload.Workload{ID: workload.NewID("n", kind, key), Kind: kind, Key: key, Name: name}, Life: workload.Life{ID: life}})
}

// windows draws windows that follow each other, as books close them.
func windows(t *rapid.T) (ws []usage.Window) {
	life := uint64(0)
	alive := []usage.Row{}
	end := int64(100)
	idle := of(workload.Idle, "", 0, "idle")
	for i := range rapid.IntRange(2, 5).Draw(t, "windows") {
		w := usage.Window{Boot: "b", Start: end, StartReason: usage.StartReason(rapid.IntRange(0, 2).Draw(t, "opening")), CPUs: i + 1, Offset: int64(i)}
		end += rapid.Int64Range(1, 100).Draw(t, "length")
		w.End = end
		for j := range rapid.IntRange(0, 2).Draw(t, "gaps") {
			w.Gaps = append(w.Gaps, usage.Gap{From: time.Unix(w.Start, 0), To: time.Unix(w.End, 0), Detail: fmt.Sprint(j)})
		}
		for range rapid.IntRange(0, 3).Draw(t, "births") {
			life++
			alive = append(alive, of(workload.Service, fmt.Sprint("w", life%3), life, "")) // lives of the same workload
		}
		var ended, here []usage.Row
		for _, r := range append(slices.Clone(alive), idle) {
			r.Usage = drawUsage(t)
			r.Usage.Covered = time.Duration(rapid.Int64Range(0, 100).Draw(t, "covered"))
			r.Has, r.Total[usage.CPU] = usage.SetOf(usage.CPU), 1<<50+end // more than is drawn: else it would be of a whole life
			renamed := *r.Workload
			renamed.Name = fmt.Sprint("name ", i)
			r.Workload = &renamed
			if r.Ended = renamed.Life.ID != 0 && rapid.Bool().Draw(t, "ends"); r.Ended {
				ended = append(ended, r)
			} else {
				here = append(here, r)
			}
		}
		alive = slices.Clone(here[:len(here)-1])
		w.Rows = append(ended, here...)
		w.Total = drawUsage(t)
		for k := range w.Balance.Whole {
			w.Balance.Whole[k] = rapid.Int64Range(0, 1<<40).Draw(t, "whole")
		}
		w.Balance.Lost = 1
		ws = append(ws, w)
	}
	return ws
}

// A merged window says of every life what the windows say that it is made of.
func TestMerge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ws := windows(t)
		got := ws[0].Clone()
		keep := ws[len(ws)-1].Clone()
		for i := range ws[1:] {
			got.Merge(&ws[i+1])
		}
		first, last := &ws[0], &ws[len(ws)-1]
		want := *last.Clone()
		want.Start, want.StartReason, want.Rows = first.Start, first.StartReason, nil
		want.Gaps, want.Total, want.Balance = nil, usage.Usage{}, usage.Balance{}
		rows := map[workload.Life]usage.Row{}
		for _, w := range ws {
			for _, g := range w.Gaps {
				by := time.Duration(last.Offset - w.Offset)
				g.From, g.To = g.From.Add(by), g.To.Add(by)
				want.Gaps = append(want.Gaps, g)
			}
			want.Total.Add(&w.Total)
			want.Balance.Add(&w.Balance)
			for _, r := range w.Rows {
				before := rows[r.Life()]
				r.Usage.Add(&before.Usage)
				rows[r.Life()] = r
			}
		}
		have := map[workload.Life]usage.Row{}
		for _, r := range got.Rows {
			have[r.Life()] = r
		}
		if d := cmp.Diff(rows, have); d != "" || len(have) != len(got.Rows) {
			t.Fatalf("%d rows of %d lives (-want +got):\n%s", len(got.Rows), len(have), d)
		}
		// Those that ended before stand first, then those of the last window as there.
		for i, r := range got.Rows[len(got.Rows)-len(last.Rows):] {
			if r.Life() != last.Rows[i].Life() {
				t.Fatalf("row %d from the last window is %v, want %v", i, r.Workload, last.Rows[i].Workload)
			}
		}
		got.Rows = nil
		if d := cmp.Diff(&want, got); d != "" {
			t.Fatalf("window (-want +got):\n%s", d)
		}
		again := last.Clone()
		again.Start, again.End = last.End, last.End+1
		got.Merge(again) // shares nothing with what it is made of
		if d := cmp.Diff(keep, last); d != "" {
			t.Fatalf("a merged window changed:\n%s", d)
		}
	})
}

// TestMergeMovesGaps sets the clock between two windows: the gaps of the first window stay beside
// it by the new clock, as by the old one. The end of the previous boot keeps its time by the clock
// of that boot.
func TestMergeMovesGaps(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	w := &usage.Window{Offset: 5000e9, Gaps: []usage.Gap{
		{From: at(5010), To: at(5020), Reason: usage.Unwatched}, {From: at(4900), To: at(5000), Reason: usage.Rebooted}}}
	was := w.Clone()
	got := w.Clone()
	for _, c := range []struct{ offset, unwatched, rebooted int64 }{{1000e9, 1010, 1000}, {9000e9, 9010, 1000}} {
		got.Merge(&usage.Window{Offset: c.offset})
		want := []usage.Gap{{From: at(c.unwatched), To: at(c.unwatched + 10), Reason: usage.Unwatched},
			{From: at(c.rebooted), To: at(c.offset / 1e9), Reason: usage.Rebooted}}
		if d := cmp.Diff(want, got.Gaps); d != "" {
			t.Errorf("offset %d (-want +got):\n%s", c.offset, d)
		}
	}
	if d := cmp.Diff(was, w); d != "" {
		t.Errorf("the clone's merge changed what it was cloned from:\n%s", d)
	}
}

// TestClone checks that a clone stays as it is when the window is used again.
func TestClone(t *testing.T) {
	w := usage.Window{Rows: make([]usage.Row, 1), Gaps: make([]usage.Gap, 1)}
	c := w.Clone()
	w.Rows[0].Ended, w.Gaps[0].Detail = true, "x"
	if c.Rows[0].Ended || c.Gaps[0].Detail != "" {
		t.Error("a clone shares memory with its window")
	}
}

// TestMergeOneLife checks that rows of one life are one row, also within a window, and that ends of lives of which
// nothing says that they are whole stay apart.
func TestMergeOneLife(t *testing.T) {
	row := func(short workload.ShortID, cpu int64, ended bool) usage.Row {
		r := usage.Row{ShortID: short, Ended: ended}
		r.Usage.Put(usage.CPU, cpu, usage.Measured)
		return r
	}
	total := func(r usage.Row, cpu int64) usage.Row {
		r.Has, r.Total[usage.CPU] = usage.SetOf(usage.CPU), cpu
		return r
	}
	for _, c := range []struct {
		name       string
		rows, next []usage.Row
		want       string
	}{
		{"twice in a window", nil, []usage.Row{row(1, 2, false), row(2, 3, false), row(2, 4, false), row(3, 5, false)}, "1:2 2:7 3:5 "},
		{"twice, and before", []usage.Row{row(2, 1, false), row(1, 1, false)}, []usage.Row{row(1, 2, false), row(1, 3, false), row(2, 4, false)}, "1:6 2:5 "},
		{"an end and a start", []usage.Row{row(1, 1, false)}, []usage.Row{row(1, 2, true), row(1, 3, false)}, "1:3 1:3 "},
		{"a whole life beside another", []usage.Row{total(row(1, 5, false), 50)}, []usage.Row{total(row(1, 2, true), 2), total(row(1, 3, false), 53)}, "1:2 1:8 "},
		{"ends", []usage.Row{row(1, 1, true)}, []usage.Row{row(1, 2, true), row(2, 4, false)}, "1:1 1:2 2:4 "},
	} {
		w := usage.Window{Rows: c.rows}
		w.Merge(&usage.Window{Rows: c.next})
		var text []byte
		for _, r := range w.Rows {
			text = fmt.Appendf(text, "%d:%d ", r.ShortID, r.Usage.Amount[usage.CPU])
		}
		if got := string(text); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// TestMergedLivesTotals checks that the row of whole lives has the totals of all of them.
func TestMergedLivesTotals(t *testing.T) {
	life := func(r usage.Resource, amount int64) *usage.Window {
		row := usage.Row{ShortID: 1, Ended: true, Has: usage.SetOf(r)}
		row.Usage.Put(r, amount, usage.Measured)
		row.Total[r] = amount
		return &usage.Window{Rows: []usage.Row{row}}
	}
	w := life(usage.CPU, 5)
	w.Merge(life(usage.Memory, 7))
	w.Merge(life(usage.CPU, 3))
	if len(w.Rows) != 1 || w.Rows[0].Has != usage.SetOf(usage.CPU, usage.Memory) || w.Rows[0].Total[usage.CPU] != 8 || w.Rows[0].Total[usage.Memory] != 7 {
		t.Errorf("rows %+v", w.Rows)
	}
}

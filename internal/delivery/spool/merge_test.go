package spool

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// TestSpanIndex checks on which side of an edge the end of a window is, before 1970 too.
func TestSpanIndex(t *testing.T) {
	for end, want := range map[int64]int64{1: 0, 9: 0, 10: 0, 11: 1, 20: 1, 21: 2, 0: -1, -1: -1, -9: -1, -10: -2, -11: -2, -19: -2, -20: -3} {
		if got := spanIndex(end, 10); got != want {
			t.Errorf("an end at %d is in span %d, want %d", end, got, want)
		}
	}
}

// TestFindMergeable checks which segments are merged in one go. A word is a segment with windows of a
// minute: "x" is one that continues the previous one, "o" one that does not, "-" none; a number is its size
// instead of 10, the size at which segments are full. The last segment is being written.
func TestFindMergeable(t *testing.T) {
	for _, c := range []struct {
		segments string
		before   time.Duration
		run      string // of the segments, none if empty
		windows  int
	}{
		{"", time.Hour, "", 0},
		{"xxxxx", time.Hour, "", 0},
		{"xxxxx -", time.Hour, "1", 5},
		{"xxxxx x", time.Hour, "1", 5},
		{"xxxxx xxxxx x", time.Hour, "1 2", 10},
		{"xxxxx xxxxx x", 10 * time.Minute, "1 2", 10},
		{"xxxxx xxxxx x", 10*time.Minute - 1, "1", 5},
		{"xxxxx xxxxx x", 5 * time.Minute, "1", 5},
		{"xxxxx xxxxx x", 5*time.Minute - 1, "", 0},
		{"xxx xxxxx x", 7 * time.Minute, "1", 3},
		{"xx xxx xxxxx x", 5 * time.Minute, "1 2", 5},
		// A quarter less has to be left.
		{"xooo x", time.Hour, "", 0},
		{"xxoo x", time.Hour, "1", 4},
		{"xxooo x", time.Hour, "", 0},
		{"xxooooo xxxx x", time.Hour, "1 2", 11},
		{"oooo xxxxx oooo x", 10 * time.Minute, "1 2", 9},
		{"oooo oooo x", time.Hour, "", 0},
		// Segments without windows are merged with the previous ones.
		{"- xxxxx - x", time.Hour, "2 3", 5},
		{"- - x", time.Hour, "", 0},
		{"xxxxx - xxxxx x", time.Hour, "1 2 3", 10},
		// Four full segments are merged at once, or more small ones.
		{"xxxxx xxxxx xxxxx xxxxx x", time.Hour, "1 2 3 4", 20},
		{"xxxxx xxxxx xxxxx xxxxx xxxxx x", time.Hour, "1 2 3 4", 20},
		{"oooo oooo oooo oooo xxxxx x", time.Hour, "5", 5},
		{"oooo oooo oooo oooo xxxxx xxxxx x", time.Hour, "5 6", 10},
		{"xxxxx2 xxxxx2 xxxxx2 xxxxx2 xxxxx2 xxxxx2 x", time.Hour, "1 2 3 4 5 6", 30},
		{"xxxxx8 xxxxx8 xxxxx8 xxxxx8 xxxxx8 x", time.Hour, "1 2 3 4 5", 25},
		{"xxxxx8 xxxxx8 xxxxx8 xxxxx8 xxxxx9 x", time.Hour, "1 2 3 4", 20},
		{"xxxxx9 xxxxx9 xxxxx9 xxxxx5 xxxxx8 xxxxx1 x", time.Hour, "1 2 3 4 5", 25},
		{"xxxxx20 xxxxx20 xxxxx20 xxxxx20 xxxxx1 x", time.Hour, "1 2 3 4", 20},
	} {
		s := &Spool{windows: &segments{size: 10}, streams: []*stream{{From: 1, Live: true}}}
		for i, word := range strings.Fields(c.segments) {
			seg := &segment{header: header{number: uint64(i + 1)}, size: 10}
			if at := strings.IndexAny(word, "0123456789"); at >= 0 {
				if _, err := fmt.Sscan(word[at:], &seg.size); err != nil {
					t.Fatal(err)
				}
			}
			s.windows.list = append(s.windows.list, seg)
			for _, kind := range word {
				if kind != 'x' && kind != 'o' {
					continue
				}
				n := int64(len(s.index))
				w := numbered(uint64(n+1), n*60, n*60+60)
				w.Continues, w.location.seg = kind == 'x', seg
				s.index = append(s.index, w)
			}
		}
		run, windows := s.findMergeable(5*time.Minute, int64(c.before))
		var got []string
		for _, seg := range run {
			got = append(got, fmt.Sprint(seg.number))
		}
		if strings.Join(got, " ") != c.run || len(windows) != c.windows {
			t.Errorf("%s, ended before %v: segments %v with %d windows, want %s, %d", c.segments, c.before, got, len(windows), c.run, c.windows)
		}
		if !slices.IsSortedFunc(windows, func(a, b window) int { return int(a.First - b.First) }) {
			t.Errorf("%s: windows %v", c.segments, windows)
		}
		for _, w := range windows {
			if !slices.Contains(run, w.location.seg) {
				t.Errorf("%s: a window is in segment %d", c.segments, w.location.seg.number)
			}
		}
	}
}

// TestMergeApart checks that windows of different streams are not merged.
func TestMergeApart(t *testing.T) {
	seg := &segment{}
	s := &Spool{windows: &segments{size: 10, list: []*segment{seg, {}}}, streams: []*stream{{From: 1, To: 2}, {From: 3, Live: true}}}
	for n := range int64(4) {
		w := numbered(uint64(n+1), n*60, n*60+60)
		w.Continues, w.location.seg = true, seg
		s.index = append(s.index, w)
	}
	if _, windows := s.findMergeable(5*time.Minute, maxWallTime); len(windows) != 4 {
		t.Errorf("%d windows, which become two, are merged", len(windows))
	}
	s.streams = []*stream{{ID: batch.Stream{1}, From: 1, To: 1}, {ID: batch.Stream{2}, From: 2, To: 2}, {ID: batch.Stream{3}, From: 3, To: 3}, {From: 4, Live: true}}
	if _, windows := s.findMergeable(5*time.Minute, maxWallTime); windows != nil {
		t.Errorf("windows of four streams are merged: %v", windows)
	}
}

// TestMergedRecord checks what a merged window keeps of its parts, now and after another start.
func TestMergedRecord(t *testing.T) {
	cfg := innerConfig(t)
	cfg.SegmentBytes = 1
	s := openInner(t, cfg)
	s.serial = 7 // of the last batch before the first window
	day := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC).UnixNano()
	at := int64(0)
	add := func(offset int64, reason usage.StartReason, names ...batch.Name) {
		t.Helper()
		w := &usage.Window{Boot: "b", Start: at, End: at + 10e9, Offset: day + offset, StartReason: reason}
		at = w.End
		gap := newGap(day+w.Start-5e9, day+w.Start-4e9, usage.Unwatched, "")
		if err := s.Append(w, names, []usage.Gap{gap}, func(bool) []byte { return nil }, nil); err != nil {
			t.Fatal(err)
		}
	}
	name := func(key, text string) batch.Name {
		return batch.Name{ID: workload.NewID("n", workload.Path, key), Kind: workload.Path, Key: key, Name: text}
	}
	add(0, usage.StartContinued, name("a", "1"), name("b", "1"))
	s.serial = 8
	add(1e8, usage.StartContinued, name("c", "1"), name("c", "2"), name("b", "2"))
	add(2e8, usage.StartContinued)
	s.serial = 7
	add(2e8, usage.StartResumed)
	if done, err := s.merge(time.Hour, maxWallTime); !done || err != nil {
		t.Fatal(done, err)
	}
	check := func(s *Spool) {
		t.Helper()
		if len(s.index) != 2 {
			t.Fatalf("%d windows, want a merged one and the last", len(s.index))
		}
		h := s.index[0].windowHead
		h.Wire = 0
		want := windowHead{First: 1, Last: 3, Boot: "b", End: 30e9, Offset: day + 2e8, Continues: true, Names: 3, Gap: day - 5e9, Serial: 7}
		if h != want {
			t.Errorf("merged: %+v, want %+v", h, want)
		}
		b, err := s.readWindow(s.index[0])
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, n := range b.Names {
			names = append(names, n.Key+n.Name)
		}
		if b.Number != 1 {
			t.Errorf("it is batch %d", b.Number)
		}
		if !slices.Equal(names, []string{"a1", "b2", "c2"}) || len(b.Gaps) != 3 || b.Windows[0].End != 30e9 {
			t.Errorf("names %v, gaps %v, window %+v", names, b.Gaps, b.Windows[0])
		}
	}
	check(s)
	if s.stats.Merged != 2 {
		t.Errorf("%d windows were merged away, want 2", s.stats.Merged)
	}
	s.serial = 1
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	g, _, found := logIn(t, s.windows.dir, 1)
	if len(found) != 2 || len(g.list) != 2 {
		t.Errorf("%d windows in %d segments on disk", len(found), len(g.list))
	}
	var head windowHead
	if _, err := unpack([]byte(found[0]), &head); err != nil || head.Serial != 7 || head.Last != 3 {
		t.Errorf("on disk: %+v, %v", head, err)
	}
}

// TestMergeNothing checks that a segment is removed of which no window can be read.
func TestMergeNothing(t *testing.T) {
	cfg := innerConfig(t)
	cfg.SegmentBytes = 1
	s := openInner(t, cfg)
	defer func() { _ = s.Close() }()
	fill(t, s, 4)
	for i := range 3 {
		p := s.index[i].location
		if err := os.WriteFile(s.windows.name(p.seg.number), []byte("lost"), 0o600); err != nil {
			t.Fatal(err)
		}
		s.index[i].Continues = true
	}
	if done, err := s.merge(time.Hour, maxWallTime); !done || err != nil {
		t.Fatal(done, err)
	}
	if len(s.index) != 1 || s.stats.Corrupt != 3 || len(s.windows.list) != 1 {
		t.Errorf("%d windows in %d segments, %d corrupt", len(s.index), len(s.windows.list), s.stats.Corrupt)
	}
	if names, err := (OS{}).List(s.windows.dir); err != nil || len(names) != 1 {
		t.Errorf("files %v, %v", names, err)
	}
}

// TestReadWindow checks that a record of the log of windows that does not have one window is corrupt.
func TestReadWindow(t *testing.T) {
	s := opened(t, &hookFS{})
	if err := s.Begin(nil, nil); err != nil {
		t.Fatal(err)
	}
	one := usage.Window{Boot: "b", End: 1}
	for name, payload := range map[string][]byte{
		"no head":     []byte("x"),
		"no window":   nil,
		"two windows": nil,
		"no batch":    pack(windowHead{Wire: 3}, []byte("bad")),
		"one window":  nil,
	} {
		if payload == nil {
			n := map[string]int{"no window": 0, "one window": 1, "two windows": 2}[name]
			encoded, err := wire.Encode(nil, &batch.Batch{Number: 1, Windows: slices.Repeat([]usage.Window{one}, n)})
			if err != nil {
				t.Fatal(err)
			}
			payload = pack(windowHead{Wire: len(encoded)}, encoded, []byte("checkpoint"))
		}
		p, err := s.windows.append(kindWindow, payload, false)
		if err != nil {
			t.Fatal(err)
		}
		b, err := s.readWindow(window{location: p})
		if whole := name == "one window"; whole && (err != nil || len(b.Windows) != 1) || !whole && (b != nil || !errors.Is(err, errCorrupt)) {
			t.Errorf("%s: %+v, %v", name, b, err)
		}
	}
}

// TestMergeAfterClockStep checks that windows in the future do not keep later ones from being merged.
func TestMergeAfterClockStep(t *testing.T) {
	segs := []*segment{{}, {}, {}}
	s := &Spool{windows: &segments{size: 10, list: segs}, streams: []*stream{{From: 1, Live: true}}}
	for n := range int64(10) {
		w := numbered(uint64(n+1), n*60, n*60+60)
		w.Continues, w.location.seg = true, segs[n/5]
		if n < 5 {
			w.Offset = 1e18
		}
		s.index = append(s.index, w)
	}
	if run, windows := s.findMergeable(5*time.Minute, int64(time.Hour)); len(run) != 1 || run[0] != segs[1] || len(windows) != 5 {
		t.Errorf("%d segments with %d windows, want the second", len(run), len(windows))
	}
}

package connection_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/connection"
)

// TestSums checks against exact sums what is promised of edges of groups, and that sums of few edges are what merged sketches are.
func TestSums(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const groups = 3
		most := rapid.IntRange(1, 40).Draw(t, "most")
		sums := connection.NewSums(most)
		var exact [groups]map[connection.Edge]connection.Traffic
		var merged [groups]connection.Sketch
		edges, every := 0, 0
		for g := range groups {
			exact[g] = map[connection.Edge]connection.Traffic{}
		}
		for range rapid.IntRange(0, 12).Draw(t, "sketches") {
			g := rapid.IntRange(0, groups-1).Draw(t, "group")
			y := drawn(t, 5, 1)
			sums.Add(g, &y.sketch)
			merged[g].Merge(y.sketch)
			every += len(y.sketch.Entries)
			for e, n := range y.by {
				exact[g][e] = exact[g][e].Plus(n)
			}
		}
		listed := [groups]map[connection.Edge]bool{{}, {}, {}}
		for g, e := range sums.All() {
			edges++
			listed[g][e.Edge] = true
			n := exact[g][e.Edge]
			if e.RxBytes > n.RxBytes || e.TxBytes > n.TxBytes || e.RxPackets > n.RxPackets || e.TxPackets > n.TxPackets || n.Bytes() > e.Bytes()+e.Error || e.Error < 0 {
				t.Errorf("group %d: %+v had %+v", g, e, n)
			}
		}
		if edges > most {
			t.Errorf("%d edges, at most %d", edges, most)
		}
		for g := range groups {
			for e, n := range exact[g] {
				if !listed[g][e] && n.Bytes() > sums.Missed() {
					t.Errorf("group %d: %+v had %+v and is not in it: at most %d bytes", g, e, n, sums.Missed())
				}
			}
		}
		if every > most {
			return
		}
		missed := int64(0)
		for g := range groups {
			missed = max(missed, merged[g].Missed)
			for _, want := range merged[g].Entries {
				if !listed[g][want.Edge] {
					t.Errorf("group %d: %+v is not in it", g, want)
				}
			}
		}
		for g, e := range sums.All() {
			found := false
			for _, want := range merged[g].Entries {
				found = found || want == e
			}
			if !found {
				t.Errorf("group %d: %+v is not in %+v", g, e, merged[g].Entries)
			}
		}
		if sums.Missed() != missed {
			t.Errorf("missed %d, want %d", sums.Missed(), missed)
		}
	})
}

// TestSumsEnd checks that sums that do not fit are no smaller than their parts, and that errors stay above 0.
func TestSumsEnd(t *testing.T) {
	sums := connection.NewSums(1)
	huge := connection.Sketch{Missed: math.MaxInt64}
	huge.Add(edge(1), connection.Traffic{})
	huge.Add(edge(4), connection.Traffic{RxBytes: math.MaxInt64 / 2})
	huge.Entries[0].Error, huge.Entries[1].Error = 0, 0
	for range 5 {
		sums.Add(0, &huge)
	}
	for i := range 5 {
		sums.Add(0, &connection.Sketch{Entries: []connection.Entry{{Edge: edge(i), Traffic: connection.Traffic{TxBytes: int64(i)}}}})
	}
	const end = math.MaxInt64 / 4
	for _, e := range sums.All() {
		if e.Edge != edge(4) || e.RxBytes != end || e.TxBytes != 4 || e.Error != end {
			t.Errorf("%+v", e)
		}
	}
	if sums.Missed() != end {
		t.Errorf("missed %d, want %d", sums.Missed(), int64(end))
	}
}

// TestSumsCut checks that the error of an edge does not grow when others are left out, but that of an edge that comes later does.
func TestSumsCut(t *testing.T) {
	sums := connection.NewSums(2)
	add := func(n int, bytes int64) {
		s := connection.Sketch{}
		s.Add(edge(n), connection.Traffic{RxBytes: bytes})
		sums.Add(0, &s)
	}
	for n := range 9 {
		add(n, int64(100-n))
	}
	if got := sums.Missed(); got != 98 {
		t.Errorf("missed %d, want 98", got)
	}
	for range sums.All() {
		break
	}
	add(8, 1000) // after it was left out with 92, when 98 were
	want := map[connection.Edge][2]int64{edge(0): {100, 0}, edge(8): {1000, 98}}
	for _, e := range sums.All() {
		if got := [2]int64{e.RxBytes, e.Error}; got != want[e.Edge] {
			t.Errorf("%v has %v, want %v", e.Edge, got, want[e.Edge])
		}
		delete(want, e.Edge)
	}
	if len(want) > 0 || sums.Missed() != 99 {
		t.Errorf("without %v; missed %d, want 99", want, sums.Missed())
	}
}

package walltime_test

import (
	"cmp"
	"errors"
	"math"
	"math/big"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/delivery/walltime"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// drawUsage makes a usage with some resources.
func drawUsage(t *rapid.T, most int64) (u usage.Usage) {
	for _, r := range rapid.SliceOfN(rapid.SampledFrom(slices.Collect(usage.Metered.All())), 0, 6).Draw(t, "resources") {
		q := usage.Quality(rapid.IntRange(1, 3).Draw(t, "quality"))
		u.Put(r, rapid.Int64Range(0, most).Draw(t, "amount"), q)
	}
	u.Covered = time.Duration(rapid.Int64Range(0, most).Draw(t, "covered"))
	// The classes of traffic are parts of it.
	for _, d := range usage.Directions {
		for r := range (u.Present & d.Classes).All() {
			u.Put(d.Whole, u.Amount[r], usage.Measured)
		}
	}
	return u
}

// checkClasses checks that the classes of traffic have at most all of it.
func checkClasses(t *rapid.T, u *usage.Usage) {
	for _, d := range usage.Directions {
		left := u.Amount[d.Whole]
		for r := range (u.Present & d.Classes).All() {
			left -= u.Amount[r]
		}
		if left < 0 {
			t.Fatalf("%s: the classes have %d bytes more than %d", d.Whole, -left, u.Amount[d.Whole])
		}
	}
}

// drawWindows makes windows of one boot, closed ones: their rows sum to whole
// and skew.
func drawWindows(t *rapid.T) []usage.Window {
	at := rapid.Int64Range(0, int64(time.Hour)).Draw(t, "start")
	offset := 1_700_000_000e9 + rapid.Int64Range(0, int64(48*time.Hour)).Draw(t, "offset")
	var ws []usage.Window
	for range rapid.IntRange(1, 4).Draw(t, "windows") {
		length := rapid.OneOf(
			rapid.Just(int64(0)), rapid.Just(int64(10e9)), rapid.Just(int64(60e9)),
			rapid.Int64Range(1, int64(3*time.Minute)), rapid.Int64Range(1, int64(9*time.Hour)), rapid.Int64Range(1, int64(20*24*time.Hour)),
		).Draw(t, "length")
		w := usage.Window{Boot: "b", Start: at, End: at + length, Offset: offset, CPUs: 2}
		var sum usage.Shares
		for range rapid.IntRange(0, 4).Draw(t, "rows") {
			u := drawUsage(t, 1<<45)
			w.Rows = append(w.Rows, usage.Row{ShortID: workload.ShortID(rapid.IntRange(1, 3).Draw(t, "workload")), Usage: u})
			for i, r := range usage.Wholes {
				sum[i] += u.Amount[r]
			}
		}
		for i := range sum {
			w.Balance.Skew[i] = rapid.Int64Range(-1<<40, min(sum[i], 1<<40)).Draw(t, "skew")
			w.Balance.Whole[i] = sum[i] - w.Balance.Skew[i]
		}
		w.Balance.Lost = rapid.Int64Range(0, 99).Draw(t, "lost")
		w.Total = drawUsage(t, 1<<45)
		ws = append(ws, w)
		at += length + rapid.Int64Range(0, 90e9).Draw(t, "pause")
	}
	return ws
}

func cut(t *rapid.T, ws []usage.Window, by []time.Duration) *walltime.Cuts {
	c, err := walltime.Cut(ws, by)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Whatever is cut, however long, the pieces of every resource sum to the whole,
// and each minute of the node to its parts.
func TestPiecesSumToTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ws := drawWindows(t)
		by := make([]time.Duration, len(ws))
		for i := range by {
			by[i] = time.Duration(rapid.Int64Range(-1e15, 1e15).Draw(t, "by"))
		}
		c := cut(t, ws, by)

		want, got := map[workload.ShortID]usage.Usage{}, map[workload.ShortID]usage.Usage{}
		var wantNode, gotNode batch.NodeMinute
		for _, w := range ws {
			covered, lives := w.Total.Covered, map[workload.ShortID]time.Duration{}
			for _, r := range w.Rows {
				if r.Usage.Present == 0 && r.Usage.Covered == 0 {
					continue
				}
				u := want[r.ShortID]
				u.Add(&r.Usage)
				u.Covered -= r.Usage.Covered
				want[r.ShortID] = u
				lives[r.ShortID] += r.Usage.Covered
				covered = max(covered, r.Usage.Covered)
			}
			for short, sum := range lives {
				u := want[short]
				u.Covered += min(sum, time.Duration(w.End-w.Start))
				want[short] = u
			}
			wantNode.Covered += min(covered, time.Duration(w.End-w.Start))
			wantNode.Lost += w.Balance.Lost
			wantNode.Total.Add(&w.Total)
			for i := range usage.Wholes {
				wantNode.Whole[i] += w.Balance.Whole[i]
				wantNode.Skew[i] += w.Balance.Skew[i]
			}
		}
		rows := map[int64]usage.Shares{}
		for _, m := range c.Minutes {
			u := got[m.Workload]
			u.Add(&m.Usage)
			got[m.Workload] = u
			checkClasses(t, &m.Usage)
			s := rows[m.Minute]
			for i, r := range usage.Wholes {
				s[i] += m.Usage.Amount[r]
			}
			rows[m.Minute] = s
		}
		if !slices.IsSortedFunc(c.Minutes, func(a, b batch.Minute) int {
			return cmp.Or(cmp.Compare(a.Minute, b.Minute), cmp.Compare(a.Workload, b.Workload), -1)
		}) {
			t.Fatalf("minutes are out of order, or twice: %v", c.Minutes)
		}
		if !slices.IsSortedFunc(c.Nodes, func(a, b batch.NodeMinute) int { return cmp.Or(cmp.Compare(a.Minute, b.Minute), -1) }) {
			t.Fatalf("minutes of the node are out of order, or twice: %v", c.Nodes)
		}
		for _, n := range c.Nodes {
			if n.CPUs != 2 {
				t.Fatalf("minute %d: %d CPUs", n.Minute, n.CPUs)
			}
			gotNode.Covered += n.Covered
			gotNode.Violations += n.Violations
			gotNode.Lost += n.Lost
			gotNode.Total.Add(&n.Total)
			for i, r := range usage.Wholes {
				gotNode.Whole[i] += n.Whole[i]
				gotNode.Skew[i] += n.Skew[i]
				if n.Whole[i]+n.Skew[i] != rows[n.Minute][i] {
					t.Fatalf("minute %d: %s: whole %d + skew %d, rows %d", n.Minute, r, n.Whole[i], n.Skew[i], rows[n.Minute][i])
				}
			}
		}
		// The edges say the same: what they make of a total stands in the same minutes.
		edges := map[int64]int64{}
		for i := range c.Windows {
			w, past := &c.Windows[i], int64(0)
			at := w.Began()
			for n, e := range w.Edges {
				sum := w.Cumulative(w.Balance.Whole[0], n)
				edges[at/int64(time.Minute)] += sum - past
				at, past = e.At, sum
			}
			if w.Window != &ws[i] || past != w.Balance.Whole[0] || at != w.Ended() || at != walltime.End(&ws[i], by[i]).UnixNano() || w.Began() != walltime.Start(&ws[i], by[i]).UnixNano() {
				t.Fatalf("window %d from %d to %d with %d of %d", i, w.Began(), w.Ended(), past, w.Balance.Whole[0])
			}
		}
		for _, n := range c.Nodes {
			if n.Whole[0] != edges[n.Minute] {
				t.Fatalf("minute %d: whole %d, %d by the edges", n.Minute, n.Whole[0], edges[n.Minute])
			}
		}
		for short, u := range got {
			if d := u.Covered - want[short].Covered; d.Abs() <= time.Duration(len(c.Minutes)) { // each piece is rounded
				u.Covered = want[short].Covered
				got[short] = u
			}
		}
		// Of traffic by class a piece of a row may lack a byte for each other class, so that it is not more than
		// the traffic as a whole.
		pieces, rowPieces := 0, map[workload.ShortID]int{}
		for i := range c.Windows {
			for j := range c.Windows[i].Rows {
				rowPieces[c.Windows[i].Rows[j].ShortID] += len(c.Windows[i].Edges)
			}
		}
		lenient := func(got, want *usage.Usage) {
			for r := range (got.Present & usage.Classified).All() {
				if d := want.Amount[r] - got.Amount[r]; d >= 0 && d <= int64(5*pieces) {
					got.Amount[r] = want.Amount[r]
				}
			}
		}
		for short, u := range got {
			w := want[short]
			pieces = rowPieces[short]
			lenient(&u, &w)
			got[short] = u
		}
		pieces = 0 // the machine has no classes, but drawn ones are rounded too
		for i := range c.Windows {
			pieces += len(c.Windows[i].Edges)
		}
		lenient(&gotNode.Total, &wantNode.Total)
		if d := gocmp.Diff(want, got); d != "" {
			t.Fatalf("rows (-want +got):\n%s", d)
		}
		if d := gocmp.Diff(wantNode, gotNode); d != "" {
			t.Fatalf("node (-want +got):\n%s", d)
		}
	})
}

// The order of windows is nothing, and neither is which of them come together:
// minutes of batches cut apart add up to those of one batch.
func TestOrderAndMergingAreNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ws := drawWindows(t)
		whole := cut(t, ws, make([]time.Duration, len(ws)))

		minutes, nodes := map[[2]uint64]usage.Usage{}, map[int64]batch.NodeMinute{}
		for _, w := range rapid.Permutation(ws).Draw(t, "order") {
			part := cut(t, []usage.Window{w}, []time.Duration{0})
			for _, m := range part.Minutes {
				k := [2]uint64{uint64(m.Minute), uint64(m.Workload)}
				u := minutes[k]
				u.Add(&m.Usage)
				minutes[k] = u
			}
			for _, m := range part.Nodes {
				n := nodes[m.Minute]
				n.Minute, n.CPUs, n.Covered = m.Minute, m.CPUs, n.Covered+m.Covered
				n.Violations += m.Violations
				n.Lost += m.Lost
				n.Total.Add(&m.Total)
				for i := range n.Whole {
					n.Whole[i] += m.Whole[i]
					n.Skew[i] += m.Skew[i]
				}
				nodes[m.Minute] = n
			}
		}
		sum := walltime.Cuts{Windows: whole.Windows} // of which each part has its own
		for k, u := range minutes {
			sum.Minutes = append(sum.Minutes, batch.Minute{Minute: int64(k[0]), Workload: workload.ShortID(k[1]), Usage: u})
		}
		for _, n := range nodes {
			sum.Nodes = append(sum.Nodes, n)
		}
		slices.SortFunc(sum.Minutes, func(a, b batch.Minute) int {
			return cmp.Or(cmp.Compare(a.Minute, b.Minute), cmp.Compare(a.Workload, b.Workload))
		})
		slices.SortFunc(sum.Nodes, func(a, b batch.NodeMinute) int { return cmp.Compare(a.Minute, b.Minute) })
		if d := gocmp.Diff(whole, &sum); d != "" {
			t.Fatalf("together (-), apart (+):\n%s", d)
		}
	})
}

// Each piece is the one that the formula gives, computed here by other means.
func TestPieceIsTheFormulas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := rapid.Int64Range(0, 600e9).Draw(t, "start")
		length := rapid.Int64Range(1, int64(2*time.Hour)).Draw(t, "length")
		total := rapid.Int64Range(0, 1<<51).Draw(t, "total")
		w := usage.Window{Boot: "b", Start: start, End: start + length, Rows: []usage.Row{{ShortID: 1}}}
		w.Rows[0].Usage.Put(usage.CPUUser, total, usage.Measured)
		for _, m := range cut(t, []usage.Window{w}, []time.Duration{0}).Minutes {
			upTo := func(edge int64) *big.Int {
				x := big.NewInt(min(max(edge-start, 0), length))
				return x.Div(x.Mul(x, big.NewInt(total)), big.NewInt(length))
			}
			want := upTo((m.Minute + 1) * 60e9)
			want.Sub(want, upTo(m.Minute*60e9))
			if got := m.Usage.Amount[usage.CPUUser]; got != want.Int64() {
				t.Fatalf("minute %d holds %d, want %v", m.Minute, got, want)
			}
		}
	})
}

func usageOf(amounts map[usage.Resource]int64, covered time.Duration) (u usage.Usage) {
	for r, v := range amounts {
		u.Put(r, v, usage.Measured)
	}
	u.Covered = covered
	return u
}

func TestCut(t *testing.T) {
	const s = int64(time.Second)
	row := func(u usage.Usage) []usage.Row { return []usage.Row{{ShortID: 7, Usage: u}} }
	for _, c := range []struct {
		name   string
		window usage.Window
		by     time.Duration
		want   []batch.Minute
	}{
		{"within a minute", usage.Window{Start: 70 * s, End: 80 * s, Rows: row(usageOf(map[usage.Resource]int64{usage.CPU: 5}, 9))}, 0,
			[]batch.Minute{{Workload: 7, Minute: 1, Usage: usageOf(map[usage.Resource]int64{usage.CPU: 5}, 9)}}},
		{"lives that share a tick", usage.Window{Start: 55 * s, End: 65 * s, Rows: slices.Concat(row(usageOf(map[usage.Resource]int64{usage.CPU: 5}, 8*time.Second)), row(usageOf(map[usage.Resource]int64{usage.CPU: 3}, 3*time.Second)))}, 0,
			[]batch.Minute{
				{Workload: 7, Minute: 0, Usage: usageOf(map[usage.Resource]int64{usage.CPU: 3}, 5*time.Second)},
				{Workload: 7, Minute: 1, Usage: usageOf(map[usage.Resource]int64{usage.CPU: 5}, 5*time.Second)},
			}},
		{"over an edge; the peak stands on both sides", usage.Window{Start: 57 * s, End: 67 * s, Rows: row(usageOf(map[usage.Resource]int64{usage.CPU: 11, usage.MemoryPeak: 40}, 9))}, 0,
			[]batch.Minute{
				{Workload: 7, Minute: 0, Usage: usageOf(map[usage.Resource]int64{usage.CPU: 3, usage.MemoryPeak: 40}, 2)},
				{Workload: 7, Minute: 1, Usage: usageOf(map[usage.Resource]int64{usage.CPU: 8, usage.MemoryPeak: 40}, 7)},
			}},
		{"up to an edge", usage.Window{Start: 110 * s, End: 120 * s, Rows: row(usageOf(map[usage.Resource]int64{usage.CPU: 5}, 10))}, 0,
			[]batch.Minute{{Workload: 7, Minute: 1, Usage: usageOf(map[usage.Resource]int64{usage.CPU: 5}, 10)}}},
		{"from just before an edge", usage.Window{Start: 60*s - 1, End: 120 * s, Rows: row(usageOf(map[usage.Resource]int64{usage.CPU: 60*s + 1}, 0))}, 0,
			[]batch.Minute{{Workload: 7, Minute: 0, Usage: usageOf(map[usage.Resource]int64{usage.CPU: 1}, 0)}, {Workload: 7, Minute: 1, Usage: usageOf(map[usage.Resource]int64{usage.CPU: 60 * s}, 0)}}},
		{"of no length, on an edge, moved", usage.Window{Start: 60 * s, End: 60 * s, Offset: 60 * s, Rows: row(usageOf(map[usage.Resource]int64{usage.CPU: 5}, 0))}, time.Minute,
			[]batch.Minute{{Workload: 7, Minute: 3, Usage: usageOf(map[usage.Resource]int64{usage.CPU: 5}, 0)}}},
		{"3 h stand at hours, in the first minute of each", usage.Window{Start: 1800 * s, End: 12600 * s, Rows: row(usageOf(map[usage.Resource]int64{usage.CPU: 6}, 12))}, 0,
			[]batch.Minute{
				{Workload: 7, Minute: 30, Usage: usageOf(map[usage.Resource]int64{usage.CPU: 1}, 2)},
				{Workload: 7, Minute: 60, Usage: usageOf(map[usage.Resource]int64{usage.CPU: 2}, 4)},
				{Workload: 7, Minute: 120, Usage: usageOf(map[usage.Resource]int64{usage.CPU: 2}, 4)},
				{Workload: 7, Minute: 180, Usage: usageOf(map[usage.Resource]int64{usage.CPU: 1}, 2)},
			}},
		{"8 days stand at days", usage.Window{Start: 43200 * s, End: 43200*s + 8*86400*s, Rows: row(usageOf(map[usage.Resource]int64{usage.CPU: 16}, 0))}, 0,
			func() (ms []batch.Minute) {
				for n := range int64(9) {
					m, v := n*1440, int64(2)
					if n == 0 {
						m = 720
					}
					if n == 0 || n == 8 {
						v = 1
					}
					ms = append(ms, batch.Minute{Workload: 7, Minute: m, Usage: usageOf(map[usage.Resource]int64{usage.CPU: v}, 0)})
				}
				return ms
			}()},
		{"a row without use is omitted", usage.Window{Start: 0, End: 10 * s, Rows: row(usage.Usage{})}, 0, nil},
	} {
		got, err := walltime.Cut([]usage.Window{c.window}, []time.Duration{c.by})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if d := gocmp.Diff(c.want, got.Minutes); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
}

// TestCutOfLargeMachine checks that the windows of a large machine are cut so finely
// that a minute can hold each piece.
func TestCutOfLargeMachine(t *testing.T) {
	const cores, bytes = 1024, 2 << 40
	for _, length := range []time.Duration{3 * time.Hour, 6 * 24 * time.Hour, 30 * 24 * time.Hour} {
		w := usage.Window{Boot: "b", End: int64(length), Rows: []usage.Row{{ShortID: 1}}}
		w.Rows[0].Usage.Put(usage.CPU, cores*int64(length), usage.Measured)
		w.Rows[0].Usage.Put(usage.Memory, bytes*int64(length/time.Second), usage.Measured)
		w.Balance.Whole[0], w.Balance.Whole[1] = cores*int64(length), bytes*int64(length/time.Second)
		if _, err := walltime.Cut([]usage.Window{w}, []time.Duration{0}); err != nil {
			t.Errorf("%v: %v", length, err)
		}
	}
}

// TestCutGrain checks how far apart the edges of a window are: by its length, and by the largest
// amount of a row or of the machine, of which the pieces of a minute, ten minutes or an hour may be
// too large.
func TestCutGrain(t *testing.T) {
	const h, d, half = time.Hour, 24 * time.Hour, 1 << 51 // half of what a minute may hold
	for _, c := range []struct {
		length time.Duration
		amount int64
		want   time.Duration
	}{
		{2 * h, 0, time.Minute}, {2*h + 1, 0, h}, {7 * d, 0, h}, {7*d + 1, 0, d},
		{4 * h, 4*half - 8, h}, {4 * h, 4 * half, 10 * time.Minute},
		{4 * h, 24*half - 64, 10 * time.Minute}, {4 * h, 24 * half, time.Minute}, {4 * h, 240 * half, time.Minute},
		{8 * d, 8*half - 16, d}, {8 * d, 8 * half, h},
		{8 * d, 192*half - 512, h}, {8 * d, 192 * half, 10 * time.Minute},
	} {
		ofRow := usage.Window{Boot: "b", End: int64(c.length), Rows: []usage.Row{{ShortID: 1}, {ShortID: 2}}}
		ofMachine := ofRow
		ofRow.Rows[0].Usage.Put(usage.DiskRead, c.amount, usage.Measured)
		ofMachine.Rows = nil
		ofMachine.Balance.Whole[1] = c.amount
		for name, w := range map[string]usage.Window{"row": ofRow, "machine": ofMachine} {
			cuts, err := walltime.Cut([]usage.Window{w}, []time.Duration{0})
			if err != nil {
				t.Errorf("%v with %d: %v", c.length, c.amount, err)
				continue
			}
			edges := cuts.Windows[0].Edges
			if got := time.Duration(edges[1].At - edges[0].At); got != c.want || len(edges) != int((c.length+c.want-1)/c.want) {
				t.Errorf("%v with %d of the %s: %d pieces of %v, want %v", c.length, c.amount, name, len(edges), got, c.want)
			}
		}
	}
}

// TestCutTight checks that a batch that would become more than 1<<18 pieces has windows of more than
// ten minutes cut at hours, and that one of more than 1<<20 pieces is refused nevertheless.
func TestCutTight(t *testing.T) {
	const m, ten = time.Minute, 10 * time.Minute
	// windows returns n windows of a length, each with the same rows, which used nothing.
	windows := func(n int, length time.Duration, rows int) (ws []usage.Window) {
		all := make([]usage.Row, rows)
		for i := range n {
			ws = append(ws, usage.Window{Boot: "b", Start: int64(i) * int64(length), End: int64(i+1) * int64(length), Rows: all})
		}
		return ws
	}
	more := windows(1, 0, 0) // one piece more
	for name, c := range map[string]struct {
		ws   []usage.Window
		want int // pieces of the first window, 0 if the batch is refused
	}{
		"1<<18":                       {windows(64, 63*m, 63), 63},
		"more":                        {append(windows(64, 63*m, 63), more...), 2},
		"more, of ten minutes":        {append(windows(600, ten, 63), more...), 10},
		"more, of slightly more time": {append(windows(600, ten+1, 63), more...), 1},
		"1<<20":                       {windows(128, 7*m, 1023), 7},
		"more than 1<<20":             {append(windows(128, 7*m, 1023), more...), 0},
	} {
		cuts, err := walltime.Cut(c.ws, make([]time.Duration, len(c.ws)))
		switch {
		case c.want == 0:
			if !errors.Is(err, fault.ErrInvalid) {
				t.Errorf("%s: %v, want invalid", name, err)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case len(cuts.Windows[0].Edges) != c.want:
			t.Errorf("%s: %d pieces, want %d", name, len(cuts.Windows[0].Edges), c.want)
		}
	}
}

func TestCutRefuses(t *testing.T) {
	const big = 1 << 52
	for name, ruin := range map[string]func(w *usage.Window){
		"negative":         func(w *usage.Window) { w.Rows[0].Usage.Amount[usage.CPU] = -1 },
		"classes received": func(w *usage.Window) { w.Rows[0].Usage.Put(usage.NetworkRxZone, 1, usage.Measured) },
		"classes sent": func(w *usage.Window) {
			for r, v := range map[usage.Resource]int64{usage.NetworkTx: 1<<62 + 1, usage.NetworkTxNode: 1 << 62, usage.NetworkTxZone: 1 << 62} {
				w.Total.Put(r, v, usage.Measured)
			}
		},
		"too large":            func(w *usage.Window) { w.Rows[0].Usage.Amount[usage.CPU] = big },
		"too large a peak":     func(w *usage.Window) { w.Rows[0].Usage.Put(usage.MemoryPeak, big, usage.Measured) },
		"too large together":   func(w *usage.Window) { w.Rows[0].Usage.Amount[usage.CPU] = big - 1 },
		"overflow of rows":     func(w *usage.Window) { w.Rows[0].Usage.Amount[usage.CPU] = 1<<63 - 1 },
		"total":                func(w *usage.Window) { w.Total.Put(usage.DiskRead, -5, usage.Measured) },
		"total too large":      func(w *usage.Window) { w.Total.Put(usage.DiskRead, big, usage.Measured) },
		"unknown resource":     func(w *usage.Window) { w.Rows[0].Usage.Present |= 1 << 60 },
		"reserved":             func(w *usage.Window) { w.Rows[0].Usage.Put(usage.CPUReserved, 1, usage.Measured) },
		"whole":                func(w *usage.Window) { w.Balance.Whole[0] = -1 },
		"whole too large":      func(w *usage.Window) { w.Balance.Whole[2], w.Balance.Skew[2] = big, -big },
		"whole and skew":       func(w *usage.Window) { w.Balance.Whole[2], w.Balance.Skew[2] = 1<<63-1, 1<<63-1 },
		"violations":           func(w *usage.Window) { w.Balance.Violations = -1 },
		"negative coverage":    func(w *usage.Window) { w.Rows[1].Usage.Covered = -1 },
		"more rows than known": func(w *usage.Window) { w.End, w.Rows = w.Start+int64(20000*time.Hour), make([]usage.Row, 5000) },
	} {
		w := usage.Window{Boot: "b", Start: 0, End: 10e9, Rows: []usage.Row{{ShortID: 1}, {ShortID: 1}}}
		for i := range w.Rows {
			w.Rows[i].Usage.Put(usage.CPU, 1, usage.Measured)
		}
		w.Balance.Whole[0] = 2
		if _, err := walltime.Cut([]usage.Window{w}, []time.Duration{0}); err != nil {
			t.Fatalf("sound window: %v", err)
		}
		ruin(&w)
		if _, err := walltime.Cut([]usage.Window{w}, []time.Duration{0}); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: error %v, want invalid", name, err)
		}
	}
}

// TestCutLimits checks the largest amounts that a minute holds, in one window and in two.
func TestCutLimits(t *testing.T) {
	const most = 1<<52 - 1
	part := func(id workload.ShortID, amount int64) usage.Row {
		r := usage.Row{ShortID: id}
		r.Usage.Put(usage.CPU, amount, usage.Measured)
		return r
	}
	// window has a whole and as much skew as its rows need.
	window := func(whole int64, rows ...usage.Row) usage.Window {
		w := usage.Window{Boot: "b", End: 10e9, Rows: rows}
		w.Balance.Whole[0], w.Balance.Skew[0] = whole, -whole
		for i := range rows {
			w.Balance.Skew[0] += rows[i].Usage.Amount[usage.CPU]
		}
		return w
	}
	// missing has 30 years in which whole and skew exceed the rows by this.
	missing := func(skew int64) usage.Window {
		return usage.Window{Boot: "b", End: int64(30 * 365 * 24 * time.Hour), Balance: usage.Balance{Skew: usage.Shares{skew}}}
	}
	// many has 30 days with a row for each amount, and all of them as its whole and skew.
	many := func(amounts ...int64) usage.Window {
		w := usage.Window{Boot: "b", End: int64(30 * 24 * time.Hour)}
		for i, v := range amounts {
			w.Rows = append(w.Rows, part(workload.ShortID(i), v))
			w.Balance.Skew[0] += v
		}
		w.Balance.Whole[0], w.Balance.Skew[0] = 1<<62, w.Balance.Skew[0]-1<<62
		return w
	}
	total := window(0)
	total.Total.Put(usage.CPU, 1, usage.Measured)
	largest := window(0)
	largest.Total.Put(usage.CPU, most, usage.Measured)
	violations, lost, covers := window(0), window(0), window(0, part(1, 0))
	violations.Balance.Violations, lost.Balance.Lost, covers.Rows[0].Usage.Covered = most, most, most
	for name, c := range map[string]struct {
		ws []usage.Window
		ok bool
	}{
		"row":                  {[]usage.Window{window(most, part(1, most))}, true},
		"row, more together":   {[]usage.Window{window(most, part(1, most)), window(1, part(1, 1))}, false},
		"whole":                {[]usage.Window{window(most)}, true},
		"whole, more together": {[]usage.Window{window(most), window(1, part(1, 1))}, false},
		"skew":                 {[]usage.Window{window(0, part(1, most))}, true},
		"skew too large":       {[]usage.Window{window(1), window(0, part(1, most), part(2, 1))}, false},
		"skew, together":       {[]usage.Window{window(1), window(0, part(1, most))}, true},
		"skew, more together":  {[]usage.Window{window(0, part(1, most)), window(0, part(2, 1))}, false},
		"total":                {[]usage.Window{largest}, true},
		"total, more together": {[]usage.Window{largest, total}, false},
		"violations":           {[]usage.Window{violations}, true},
		"CPUs":                 {[]usage.Window{{Boot: "b", End: 1, CPUs: -1}}, false},
		"rows of all together": {[]usage.Window{many(1<<62, 1<<62-1)}, true},
		"rows of more":         {[]usage.Window{many(1<<62, 1<<62)}, false},
		"rows of still more":   {[]usage.Window{many(1<<62, 1<<62, 1<<62)}, false},
		"skew, far below":      {[]usage.Window{{Boot: "b", End: 1, Balance: usage.Balance{Skew: usage.Shares{math.MinInt64}}}}, false},
		"missing":              {[]usage.Window{missing(1<<62 - 1)}, true},
		"too much is missing":  {[]usage.Window{missing(1 << 62)}, false},
		"excess":               {[]usage.Window{missing(1 - 1<<62)}, true},
		"too much excess":      {[]usage.Window{missing(-1 << 62)}, false},
		"lost":                 {[]usage.Window{lost}, true},
		"covers":               {[]usage.Window{covers}, true},
	} {
		if _, err := walltime.Cut(c.ws, make([]time.Duration, len(c.ws))); (err == nil) != c.ok || err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, accepted should be %t", name, err, c.ok)
		}
	}
	violations.Balance.Violations++
	lost.Balance.Lost++
	covers.Rows[0].Usage.Covered++
	for _, w := range []usage.Window{violations, lost, covers} {
		if _, err := walltime.Cut([]usage.Window{w}, []time.Duration{0}); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%+v of %+v: %v", w.Balance, w.Rows, err)
		}
	}
}

// A window whose parts do not sum to its whole is a defect that is counted, and
// moves no amount.
func TestCutCountsBrokenIdentities(t *testing.T) {
	for _, whole := range []int64{90, 99} { // less and more than the parts
		w := usage.Window{Boot: "b", Start: 55e9, End: 65e9, Rows: []usage.Row{{ShortID: 1}}}
		w.Rows[0].Usage.Put(usage.CPU, 100, usage.Measured)
		w.Balance.Whole[0], w.Balance.Skew[0] = whole, 4
		c, err := walltime.Cut([]usage.Window{w}, []time.Duration{0})
		if err != nil {
			t.Fatal(err)
		}
		var sum batch.NodeMinute
		for _, n := range c.Nodes {
			sum.Violations, sum.Whole[0], sum.Skew[0] = sum.Violations+n.Violations, sum.Whole[0]+n.Whole[0], sum.Skew[0]+n.Skew[0]
		}
		if sum.Violations != 1 || sum.Whole[0] != whole || sum.Skew[0] != 4 {
			t.Errorf("%d violations, whole %d, skew %d; want 1, %d, 4", sum.Violations, sum.Whole[0], sum.Skew[0], whole)
		}
	}
}

func BenchmarkCutLive(b *testing.B)    { benchmarkCut(b, 1, 500, 10*time.Second) }
func BenchmarkCutBacklog(b *testing.B) { benchmarkCut(b, 450, 22, 5*time.Minute) }

// benchmarkCut cuts windows that follow one another, a row of each resource of
// every workload in them.
func benchmarkCut(b *testing.B, windows, rows int, length time.Duration) {
	ws := make([]usage.Window, windows)
	for n := range ws {
		w := &ws[n]
		*w = usage.Window{Boot: "b", Start: 45e9 + int64(n)*int64(length), End: 45e9 + int64(n+1)*int64(length)}
		for i := range rows {
			r := usage.Row{ShortID: workload.ShortID(i) << 50}
			for res := range usage.Metered.All() {
				r.Usage.Put(res, int64(i)*1000, usage.Measured)
			}
			w.Rows = append(w.Rows, r)
		}
	}
	by := make([]time.Duration, windows)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := walltime.Cut(ws, by); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*windows*rows), "ns/row")
}

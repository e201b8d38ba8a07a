package spool

import (
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// TestUnmergeable checks that a window with an amount of which a thousand might not fit is never
// merged, neither for a row nor for the machine.
func TestUnmergeable(t *testing.T) {
	for _, c := range []struct {
		row, total int64
		want       bool
	}{{1, 1, false}, {1<<50 - 1, 1<<50 - 1, false}, {1 << 50, 1, true}, {1, 1 << 50, true}} {
		w := usage.Window{Boot: "b", End: 10, StartReason: usage.StartContinued, Rows: []usage.Row{{ShortID: workload.ShortID(1)}, {ShortID: workload.ShortID(2)}}}
		w.Rows[0].Usage.Put(usage.CPU, c.row, usage.Measured)
		w.Total.Put(usage.DiskRead, c.total, usage.Measured)
		if h := headOf(&batch.Batch{Windows: []usage.Window{w}}, 1, 1, nil); h.Unmergeable != c.want {
			t.Errorf("row %d, total %d: unmergeable %t", c.row, c.total, h.Unmergeable)
		}
	}
}

// TestCanMerge checks which windows may be merged.
func TestCanMerge(t *testing.T) {
	const minute = int64(time.Minute)
	base := windowHead{Boot: "b", Start: 0, End: minute}
	next := windowHead{Boot: "b", Start: minute, End: 2 * minute, Continues: true}
	for name, c := range map[string]struct {
		change func(h, next *windowHead)
		want   bool
	}{
		"side by side":             {func(*windowHead, *windowHead) {}, true},
		"up to the edge":           {func(_, n *windowHead) { n.End = 5 * minute }, true},
		"beyond the edge":          {func(_, n *windowHead) { n.End = 5*minute + 1 }, false},
		"from the edge on":         {func(h, n *windowHead) { h.End, n.Start, n.End = 5*minute, 5*minute, 6*minute }, false},
		"does not continue":        {func(_, n *windowHead) { n.Continues = false }, false},
		"a hole":                   {func(_, n *windowHead) { n.Start++ }, false},
		"another boot":             {func(_, n *windowHead) { n.Boot = "c" }, false},
		"first too large":          {func(h, _ *windowHead) { h.Unmergeable = true }, false},
		"second too large":         {func(_, n *windowHead) { n.Unmergeable = true }, false},
		"clock set by a second":    {func(_, n *windowHead) { n.Offset = 1e9 }, true},
		"clock set back by one":    {func(h, n *windowHead) { h.Offset, n.Offset = 1e9, 0 }, true},
		"clock set by more":        {func(_, n *windowHead) { n.Offset = 1e9 + 1 }, false},
		"clock set back by more":   {func(h, n *windowHead) { h.Offset, n.Offset = 1e9+1, 0 }, false},
		"before 1970, in one span": {func(h, n *windowHead) { h.Offset, n.Offset = -5*minute, -5*minute }, true},
		"over the edge of 1970":    {func(h, n *windowHead) { h.Offset, n.Offset = -minute, -minute }, false},
	} {
		h, n := base, next
		c.change(&h, &n)
		if got := h.canMerge(&n, 5*time.Minute); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

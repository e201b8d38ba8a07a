package read

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A block has, for each key, the sums, peaks and sets of its rows and the minutes of the first and
// the last of them; so has one that is joined from the blocks of parts of its range, for the
// resources that all of these hold.
func TestBlock(t *testing.T) {
	type sums struct {
		sum, peak, set, first, end int64
	}
	cpu, peak := blockAmounts+int(usage.CPU), 0
	usage.All.Each(func(r usage.Resource) {
		if isPeak[r] {
			peak = blockAmounts + int(r)
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		level := rapid.SampledFrom([]schema.Level{schema.Minutes, schema.Hours}).Draw(t, "level")
		w := level.Width()
		all := schema.Range{Level: level, From: 1440, To: 1440 + 6*w}
		whole := newBlock(usageBlocks, all, usage.All, 2)
		parts := []*block{
			newBlock(usageBlocks, schema.Range{Level: level, From: 1440, To: 1440 + w}, usage.All, 2),
			newBlock(usageBlocks, schema.Range{Level: level, From: 1440 + w, To: 1440 + 6*w}, usage.All&^usage.SetOf(usage.DiskRead), 2),
		}
		want := map[int64]*sums{}
		lost := map[int64]int64{} // of DiskRead
		for minute := all.From; minute < all.To; minute += w {
			for key := int64(1); key < 4; key++ {
				if !rapid.Bool().Draw(t, "row") {
					continue
				}
				values := make([]int64, len(usageBlocks.rules))
				values[cpu], values[peak] = rapid.Int64Range(-2, 5).Draw(t, "sum"), rapid.Int64Range(0, 5).Draw(t, "peak")
				values[blockPresent] = rapid.Int64Range(0, 7).Draw(t, "set")
				values[blockAmounts+int(usage.DiskRead)] = 1
				whole.add(key, minute, minute, values)
				part := parts[0]
				if minute > all.From {
					part = parts[1]
				}
				part.add(key, minute, minute, values)
				s := want[key]
				if s == nil {
					s = &sums{first: minute}
					want[key] = s
				}
				s.sum, s.peak, s.set, s.end = s.sum+values[cpu], max(s.peak, values[peak]), s.set|values[blockPresent], minute+w
				lost[key]++
			}
		}
		for name, b := range map[string]*block{"whole": whole, "joined": joinBlocks(all, parts)} {
			if len(b.keys) != len(want) {
				t.Fatalf("%s: keys %v, want %d", name, b.keys, len(want))
			}
			for i, key := range b.keys {
				first, end := b.span(i)
				if got := (sums{b.value(cpu, i), b.value(peak, i), b.value(blockPresent, i), first, end}); got != *want[key] {
					t.Fatalf("%s: key %d has %+v, want %+v", name, key, got, *want[key])
				}
				disk := b.value(blockAmounts+int(usage.DiskRead), i)
				if name == "joined" && (disk != 0 || b.has.Has(usage.DiskRead) || !b.has.Has(usage.CPU)) || name == "whole" && disk != lost[key] {
					t.Fatalf("%s: key %d has %d of disk, %v", name, key, disk, b.has)
				}
			}
			if b.bytes() < int64(8*len(b.keys)) {
				t.Fatalf("%s: %d bytes", name, b.bytes())
			}
		}
	})
}

// Sums that overflow make another row of the key, with its own minutes.
func TestBlockOverflow(t *testing.T) {
	b := newBlock(nodeBlocks, schema.Range{Level: schema.Minutes, From: 1440, To: 1450}, 0, 1)
	row := func(cpus, measured, skew int64) []int64 {
		v := make([]int64, len(nodeBlocks.rules))
		v[blockCPUs], v[blockMeasured], v[blockWholes+1] = cpus, measured, skew
		return v
	}
	b.add(7, 1440, 1440, row(2, math.MaxInt64-1, -5))
	b.add(7, 1441, 1443, row(4, 1, math.MinInt64+5))
	b.add(7, 1444, 1445, row(3, 1, 0))
	b.add(7, 1446, 1446, row(3, 1, 0))
	if len(b.keys) != 2 || b.value(blockCPUs, 0) != 4 || b.value(blockMeasured, 0) != math.MaxInt64 || b.value(blockWholes+1, 0) != math.MinInt64 || b.value(blockMeasured, 1) != 2 {
		t.Errorf("%d rows: %v", len(b.keys), b.cols)
	}
	for i, want := range [][2]int64{{1440, 1444}, {1444, 1447}} {
		if first, end := b.span(i); first != want[0] || end != want[1] {
			t.Errorf("row %d is from %d to %d, want %v", i, first, end, want)
		}
	}
	one := newBlock(nodeBlocks, schema.Range{Level: schema.Minutes, From: 1440, To: 1441}, 0, 1)
	one.add(7, 1440, 1440, row(2, 1, 0))
	if first, end := one.span(0); one.at != nil || first != 1440 || end != 1441 || one.value(blockWholes, 0) != 0 {
		t.Errorf("a block of one row: %v, from %d to %d", one.at, first, end)
	}
}

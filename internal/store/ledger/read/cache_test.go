package read

import (
	"reflect"
	"testing"
	"time"
	"unsafe"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/schema"
)

// minutesOf returns a range of minutes, which are of the first day.
func minutesOf(from, to int64) schema.Range {
	return schema.Range{Level: schema.Minutes, From: from, To: to}
}

// emptyBlock returns a block without rows.
func emptyBlock(p schema.Range, has usage.Set) *block { return newBlock(usageBlocks, p, has, 0) }

// touched returns the set of the buckets of minutes.
func touched(minutes ...int64) map[schema.Bucket]bool {
	all := map[schema.Bucket]bool{}
	for _, m := range minutes {
		all[schema.Bucket{Level: schema.Minutes, Start: m}] = true
	}
	return all
}

// A block serves the revisions since which none of its rows was written, as far as that is known.
func TestCacheRevisions(t *testing.T) {
	has := usage.SetOf(usage.CPU)
	p := minutesOf(10, 12)
	for name, c := range map[string]struct {
		put   int64 // the revision of the block
		write func(*blockCache)
		want  map[int64]bool // whether it serves a revision
	}{
		"nothing":           {5, func(c *blockCache) {}, map[int64]bool{4: false, 5: true, 6: false}},
		"other rows":        {5, func(c *blockCache) { c.noteWrites(6, 5, touched(9, 12)) }, map[int64]bool{4: false, 5: true, 6: true, 7: false}},
		"its first row":     {5, func(c *blockCache) { c.noteWrites(6, 5, touched(10)) }, map[int64]bool{5: false, 6: false}},
		"its last row":      {5, func(c *blockCache) { c.noteWrites(6, 5, touched(11)) }, map[int64]bool{5: false, 6: false}},
		"later":             {5, func(c *blockCache) { c.noteWrites(6, 5, touched(1)); c.noteWrites(7, 6, touched(11)) }, map[int64]bool{5: false, 6: false, 7: false}},
		"failed":            {5, func(c *blockCache) { c.noteWrites(6, 5, touched(1)); c.noteFailed(6) }, map[int64]bool{5: true, 6: false}},
		"another process":   {5, func(c *blockCache) { c.noteWrites(8, 6, touched(1)) }, map[int64]bool{5: false, 7: false, 8: false}},
		"older copy":        {5, func(c *blockCache) { c.noteWrites(4, 5, touched(1)) }, map[int64]bool{3: false, 4: false, 5: false}},
		"the same revision": {5, func(c *blockCache) { c.noteWrites(5, 5, touched(1)) }, map[int64]bool{4: false, 5: false}},
	} {
		for rev, want := range c.want {
			b := newBlockCache(5)
			b.put(emptyBlock(p, has), c.put)
			c.write(b)
			if got, _ := b.get(usageBlocks, p, has, rev); (got != nil) != want {
				t.Errorf("%s: a block of revision %d serves %d: %v", name, c.put, rev, !want)
			}
		}
	}
}

// Blocks of revisions of which not all writes are known are not kept.
func TestCacheKnownRevisions(t *testing.T) {
	for name, c := range map[string]struct {
		write func(*blockCache)
		want  map[int64]bool // whether a block of a revision is kept
	}{
		"nothing":         {func(c *blockCache) {}, map[int64]bool{4: false, 5: true, 6: false}},
		"a write":         {func(c *blockCache) { c.noteWrites(6, 5, touched(1)) }, map[int64]bool{4: false, 5: true, 6: true, 7: false}},
		"failed":          {func(c *blockCache) { c.noteWrites(6, 5, touched(1)); c.noteFailed(6) }, map[int64]bool{5: true, 6: false}},
		"another process": {func(c *blockCache) { c.noteWrites(9, 7, touched(1)) }, map[int64]bool{7: false, 8: true, 9: true, 10: false}},
		"older copy":      {func(c *blockCache) { c.noteWrites(3, 5, touched(1)) }, map[int64]bool{1: false, 2: true, 3: true, 4: false}},
		"most writes": {func(c *blockCache) {
			for i := range int64(maxDirty) {
				c.noteWrites(6+i, 5+i, touched(i))
			}
		}, map[int64]bool{4: false, 5: true}},
		"too many writes": {func(c *blockCache) {
			for i := range int64(maxDirty + 1) {
				c.noteWrites(6+i, 5+i, touched(i))
			}
			if len(c.dirty) != 1 {
				t.Errorf("%d buckets are held", len(c.dirty))
			}
		}, map[int64]bool{5 + maxDirty: false, 6 + maxDirty: true}},
	} {
		b := newBlockCache(5)
		c.write(b)
		for rev, want := range c.want {
			b.put(emptyBlock(minutesOf(900_000, 900_001), usage.All), rev)
			if got := len(b.blocks) == 1; got != want {
				t.Errorf("%s: a block of revision %d is kept: %v", name, rev, got)
			}
			clear(b.blocks)
		}
	}
}

// Old and too small blocks are dropped when they are found, but not what only later queries can use; a
// block replaces another, and one joined from parts replaces these.
func TestCacheDrops(t *testing.T) {
	cpu, memory := usage.SetOf(usage.CPU), usage.SetOf(usage.Memory)
	p := minutesOf(10, 11)
	c := newBlockCache(5)
	check := func(when string, want int) {
		t.Helper()
		var bytes int64
		for _, e := range c.blocks {
			bytes += e.bytes() + blockOverhead
		}
		if len(c.blocks) != want || c.bytes != bytes {
			t.Errorf("%s: %d blocks of %d bytes, want %d of %d", when, len(c.blocks), c.bytes, want, bytes)
		}
	}
	if b, has := c.get(usageBlocks, p, cpu, 5); b != nil || has != 0 || c.hits != 0 {
		t.Errorf("found %v with %v", b, has)
	}
	c.put(emptyBlock(p, cpu), 5)
	check("put", 1)
	if b, has := c.get(usageBlocks, p, cpu, 5); b == nil || has != cpu || c.hits != 1 {
		t.Errorf("found %v with %v", b, has)
	}
	if b, _ := c.get(nodeBlocks, p, 0, 5); b != nil {
		t.Error("found a block of nodes")
	}
	if b, has := c.get(usageBlocks, p, cpu|memory, 5); b != nil || has != cpu {
		t.Errorf("found %v with %v", b, has)
	}
	check("too few resources", 0)
	c.put(emptyBlock(p, cpu|memory), 5)
	c.put(emptyBlock(p, memory), 5)
	check("replaced", 1)
	c.noteWrites(6, 5, touched(10))
	c.put(emptyBlock(p, cpu), 6)
	if b, has := c.get(usageBlocks, p, cpu, 5); b != nil || has != cpu {
		t.Errorf("found %v with %v for an older view", b, has)
	}
	check("an older view", 1)
	c.noteWrites(7, 6, touched(10))
	if b, _ := c.get(usageBlocks, p, cpu, 7); b != nil {
		t.Error("found an old block")
	}
	check("old", 0)
	for m := range int64(3) {
		c.put(emptyBlock(minutesOf(m, m+1), cpu), 7)
	}
	c.free(nodeBlocks, minutesOf(0, 3).Split())
	check("free other", 3)
	c.free(usageBlocks, minutesOf(0, 2).Split())
	check("free", 1)
	c.noteWrites(7, 7, nil)
	check("replaced by a copy", 0)
}

// The blocks used last fill the memory, and none takes more than a quarter of it.
func TestCacheEvicts(t *testing.T) {
	c := newBlockCache(5)
	size := emptyBlock(minutesOf(0, 1), 0).bytes() + blockOverhead
	c.most = 4 * size
	for m := range int64(4) {
		c.put(emptyBlock(minutesOf(m, m+1), 0), 5)
	}
	held := func() (all []int64) {
		for m := range int64(6) {
			if c.blocks[blockKey{usageBlocks, minutesOf(m, m+1)}] != nil {
				all = append(all, m)
			}
		}
		return all
	}
	if got, want := held(), []int64{0, 1, 2, 3}; !reflect.DeepEqual(got, want) {
		t.Errorf("held %v, want %v", got, want)
	}
	c.get(usageBlocks, minutesOf(0, 1), 0, 5)
	c.put(emptyBlock(minutesOf(4, 5), 0), 5)
	c.put(emptyBlock(minutesOf(5, 6), 0), 5)
	if got, want := held(), []int64{0, 3, 4, 5}; !reflect.DeepEqual(got, want) || c.bytes != c.most {
		t.Errorf("held %v, want %v; %d bytes", got, want, c.bytes)
	}
	for _, m := range []int64{5, 4, 3, 0} {
		c.get(usageBlocks, minutesOf(m, m+1), 0, 5)
	}
	c.put(emptyBlock(minutesOf(1, 2), 0), 5)
	c.put(emptyBlock(minutesOf(2, 3), 0), 5)
	if got, want := held(), []int64{0, 1, 2, 3}; !reflect.DeepEqual(got, want) {
		t.Errorf("held %v, want %v", got, want)
	}
	c.most = 4*size - 1
	c.put(emptyBlock(minutesOf(5, 6), 0), 5)
	if got, want := held(), []int64{0, 1, 2, 3}; !reflect.DeepEqual(got, want) {
		t.Errorf("held %v after a large one, want %v", got, want)
	}
}

// Rows become one block once they are not written any more.
func TestSplitRanges(t *testing.T) {
	const hour, day = schema.HourMinutes, schema.DayMinutes
	now := time.Unix(1_000_000, 0)
	c := newBlockCache(5)
	for minute, age := range map[int64]time.Duration{25: minQuiet - 1, 40: minQuiet, 50: 0} {
		c.dirty[schema.Bucket{Level: schema.Minutes, Start: minute}] = dirtyMark{1, now.Add(-age)}
	}
	r := func(l schema.Level, from, to int64) schema.Range { return schema.Range{Level: l, From: from, To: to} }
	long := [...]int64{schema.Minutes: blockLengths[schema.Minutes], schema.Hours: blockLengths[schema.Hours], schema.Days: blockLengths[schema.Days]}
	got := c.splitRanges([]schema.Range{r(schema.Minutes, 8, 50), r(schema.Hours, 0, day), r(schema.Days, 0, 4*day), r(schema.Days, 4*day, 7*day)}, false, now)
	want := []schema.Range{r(schema.Minutes, 8, 9), r(schema.Minutes, 9, 10), r(schema.Minutes, 10, 20)}
	want = append(want, minutesOf(20, 30).Split()...)
	want = append(want, r(schema.Minutes, 30, 40), r(schema.Minutes, 40, 50))
	for at := int64(0); at < day; at += long[schema.Hours] {
		want = append(want, r(schema.Hours, at, at+long[schema.Hours]))
	}
	want = append(want, r(schema.Days, 0, 4*day))
	want = append(want, r(schema.Days, 4*day, 7*day).Split()...)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("blocks\n%v, want\n%v", got, want)
	}
	got = c.splitRanges([]schema.Range{r(schema.Days, 0, 4*day), r(schema.Hours, 0, 12*hour)}, true, now)
	want = append(r(schema.Days, 0, 4*day).Split(), r(schema.Hours, 0, 6*hour), r(schema.Hours, 6*hour, 12*hour))
	if !reflect.DeepEqual(got, want) {
		t.Errorf("blocks of single days\n%v, want\n%v", got, want)
	}
}

// A block takes memory only for what is not zero, and says how much.
func TestBlockMemory(t *testing.T) {
	row := make([]int64, len(usageBlocks.rules))
	row[blockPresent] = 1
	b := newBlock(usageBlocks, minutesOf(0, 10), usage.All, 5)
	for range 2 {
		b.add(1, 0, 0, row)
		b.add(2, 1, 1, row)
	}
	for c := range b.cols {
		if (b.cols[c] != nil) != (c == blockPresent) {
			t.Errorf("column %d is %v", c, b.cols[c])
		}
	}
	bytes := uintptr(cap(b.keys)+cap(b.cols[blockPresent]))*unsafe.Sizeof(b.keys[0]) + uintptr(cap(b.first)+cap(b.last))*unsafe.Sizeof(b.first[0])
	if got := b.bytes(); got != int64(bytes) {
		t.Errorf("%d bytes, want %d", got, bytes)
	}
}

// Joined blocks of nodes have all of their columns.
func TestJoinNodes(t *testing.T) {
	parts := make([]*block, 2)
	row := make([]int64, len(nodeBlocks.rules))
	for c := range row {
		row[c] = int64(c) + 1
	}
	for i := range parts {
		parts[i] = newBlock(nodeBlocks, minutesOf(int64(i), int64(i)+1), 0, 1)
		parts[i].add(7, int64(i), int64(i), row)
	}
	b := joinBlocks(minutesOf(0, 2), parts)
	for c, rule := range nodeBlocks.rules {
		want := 2 * row[c]
		if rule == schema.MergeMax {
			want = row[c]
		}
		if got := b.value(c, 0); got != want {
			t.Errorf("column %d has %d, want %d", c, got, want)
		}
	}
	if first, end := b.span(0); first != 0 || end != 2 || b.at != nil {
		t.Errorf("from %d to %d", first, end)
	}
}

// Writes of a transaction are noted before it commits, and revoked if it does not; an older copy of the
// database has other groups too.
func TestCacheObserves(t *testing.T) {
	for _, rev := range []int64{4, 5, 6} {
		c := &cache{newBlockCache(5), &groupIndexes{all: map[[32]byte]*groupIndex{{}: newGroupIndex(5)}}}
		c.Committing(rev, 5, touched(1))
		if c.blocks.known != rev || len(c.indexes.all) != int(max(0, rev-5)) {
			t.Errorf("revision %d: %d is known, %d indexes", rev, c.blocks.known, len(c.indexes.all))
		}
		if c.CommitFailed(rev); c.blocks.known != rev-1 {
			t.Errorf("revision %d failed: %d is known", rev, c.blocks.known)
		}
	}
}

package read

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A blockCache keeps blocks between queries, since queries mostly read the same rows again. A block
// serves a view of another revision only if no transaction wrote its rows between the two; the
// writer records that by revision.
type blockCache struct {
	mu sync.Mutex
	// dirty is complete for the revisions in [since, known].
	since, known int64
	dirty        map[schema.Bucket]dirtyMark
	blocks       map[blockKey]*cachedBlock
	bytes, uses  int64
	hits         int64 // lookups that found a block
	most         int64 // bytes
	minQuiet     time.Duration
}

// A dirtyMark is the last write to a bucket.
type dirtyMark struct {
	rev int64
	at  time.Time
}

type blockKey struct {
	kind *blockKind
	schema.Range
}

type cachedBlock struct {
	*block
	rev, used, size int64
}

const (
	// maxCacheBytes limits the memory of cached blocks: about two hours of minutes of 20,000
	// workloads before blocks are joined.
	maxCacheBytes = 200_000_000
	// blockOverhead is added to the size of each block, which limits their number.
	blockOverhead = 8_000
	// maxDirty is the maximum number of buckets in dirty.
	maxDirty = 16_000
	// minQuiet is how long rows must be unchanged before several are kept as one block. Late rows
	// are mostly less late than this.
	minQuiet = 2 * time.Minute
)

// blockLengths are the block lengths in minutes of rows that no longer change, by level. No block
// of minutes or hours spans two days.
var blockLengths = [...]int64{schema.Minutes: 10, schema.Hours: 6 * schema.HourMinutes, schema.Days: 4 * schema.DayMinutes}

func newBlockCache(rev int64) *blockCache {
	return &blockCache{since: rev, known: rev, dirty: map[schema.Bucket]dirtyMark{}, blocks: map[blockKey]*cachedBlock{}, most: maxCacheBytes, minQuiet: minQuiet}
}

// noteWrites records what a transaction is about to commit; before is the revision of this
// process's previous transaction.
func (c *blockCache) noteWrites(rev, before int64, touched map[schema.Bucket]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case rev <= before: // the database was replaced by an older copy
		clear(c.blocks)
		c.bytes, c.since = 0, rev-1
	case rev != before+1: // another process wrote unknown rows
		c.since = rev - 1
	}
	if len(c.dirty)+len(touched) > maxDirty {
		clear(c.dirty)
		c.since = rev
	}
	now := time.Now()
	for u := range touched {
		c.dirty[u] = dirtyMark{rev, now}
	}
	c.known = rev
}

// noteFailed revokes the record of a transaction that was not committed.
func (c *blockCache) noteFailed(rev int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known = rev - 1
}

// isUnchanged reports whether a range has the same rows at revisions a and b.
func (c *blockCache) isUnchanged(p schema.Range, a, b int64) bool {
	first := min(a, b)
	if first < c.since || max(a, b) > c.known {
		return false
	}
	for at := p.From; at < p.To; at += p.Level.Width() {
		if c.dirty[schema.Bucket{Level: p.Level, Start: at}].rev > first {
			return false
		}
	}
	return true
}

// get returns a block as of a revision, or nil. has are the resources that a cached block holds,
// stale or not.
func (c *blockCache) get(k *blockKind, p schema.Range, want usage.Set, rev int64) (found *block, has usage.Set) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := blockKey{k, p}
	e := c.blocks[key]
	switch {
	case e == nil:
		return nil, 0
	case want&^e.has != 0 || !c.isUnchanged(p, e.rev, rev):
		if e.rev <= rev {
			c.drop(key, e)
		}
		return nil, e.has
	}
	c.hits++
	c.touch(e)
	return e.block, e.has
}

// rows returns how many rows the block has that get returns; false means that it returns none.
func (c *blockCache) rows(k *blockKind, p schema.Range, want usage.Set, rev int64) (int64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.blocks[blockKey{k, p}]
	if e == nil || want&^e.has != 0 || !c.isUnchanged(p, e.rev, rev) {
		return 0, false
	}
	return int64(len(e.block.keys)), true
}

// touch makes a block the one used last.
func (c *blockCache) touch(e *cachedBlock) {
	c.uses++
	e.used = c.uses
}

func (c *blockCache) drop(key blockKey, e *cachedBlock) {
	delete(c.blocks, key)
	c.bytes -= e.size
}

// put caches a block as of a revision, and evicts the least recently used.
func (c *blockCache) put(b *block, rev int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	size := b.bytes() + blockOverhead
	if !c.isUnchanged(b.Range, rev, rev) || size > c.most/4 {
		return
	}
	key := blockKey{b.kind, b.Range}
	if e := c.blocks[key]; e != nil {
		c.drop(key, e)
	}
	e := &cachedBlock{block: b, rev: rev, size: size}
	c.blocks[key] = e
	c.touch(e)
	for c.bytes += size; c.bytes > c.most; {
		key := leastUsed(c.blocks, func(e *cachedBlock) int64 { return e.used })
		c.drop(key, c.blocks[key])
	}
}

// leastUsed returns the key of the entry that was used longest ago.
func leastUsed[K comparable, E any](all map[K]E, used func(E) int64) K {
	return slices.MinFunc(slices.Collect(maps.Keys(all)), func(a, b K) int { return cmp.Compare(used(all[a]), used(all[b])) })
}

// free removes the blocks of parts of a range.
func (c *blockCache) free(k *blockKind, parts []schema.Range) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range parts {
		if e := c.blocks[blockKey{k, p}]; e != nil {
			c.drop(blockKey{k, p}, e)
		}
	}
}

// isQuiet reports whether no row of a range was written within minQuiet.
func (c *blockCache) isQuiet(p schema.Range, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for at := p.From; at < p.To; at += p.Level.Width() {
		if t, ok := c.dirty[schema.Bucket{Level: p.Level, Start: at}]; ok && now.Sub(t.at) < c.minQuiet {
			return false
		}
	}
	return true
}

// splitRanges splits ranges into those of blocks. single excludes blocks of several days.
func (c *blockCache) splitRanges(ranges []schema.Range, single bool, now time.Time) (out []schema.Range) {
	for _, p := range ranges {
		block := blockLengths[p.Level]
		for at := p.From; at < p.To; at = out[len(out)-1].To {
			b := schema.Range{Level: p.Level, From: at, To: at + block}
			if at%block != 0 || b.To > p.To || single && p.Level == schema.Days || !c.isQuiet(b, now) {
				b.To = at + p.Level.Width()
			}
			out = append(out, b)
		}
	}
	return out
}

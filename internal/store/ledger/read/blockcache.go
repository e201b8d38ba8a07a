package read

import (
	"sync"
	"time"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A cache keeps blocks from one question to the next: most of what a question is
// about was read for the one before. A block is used for the moment of another
// view only where nothing has written to its rows between the two, which the
// writer notes by revisions.
type blockCache struct {
	mu sync.Mutex
	// Of the revisions in [since, known] it is noted here which rows they wrote.
	since, known int64
	dirty        map[schema.Bucket]dirtyMark
	blocks       map[blockKey]*cachedBlock
	bytes, uses  int64
	hits         int64 // blocks that were found
	minQuiet     time.Duration
}

// A dirtyMark is the last time that a cell was written to.
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
	// maxCacheBytes is how much memory blocks may take: about two hours of minutes of
	// 20,000 workloads, as far as they are not summed yet.
	maxCacheBytes = 192 << 20
	// blockOverhead is what a block costs beside its rows, so that there are not too many.
	blockOverhead = 8 << 10
	// maxDirty is of how many cells it is noted when they were written to.
	maxDirty = 1 << 14
	// minQuiet is for how long nobody has written to rows that are kept as one block
	// of several: what is late is mostly late by less.
	minQuiet = 2 * time.Minute
)

// blockLengths is of how many minutes the blocks of each level are where they are at
// rest. None of minutes or hours is of two days.
var blockLengths = [...]int64{schema.Minutes: 10, schema.Hours: 6 * schema.HourMinutes, schema.Days: 4 * schema.DayMinutes}

func newBlockCache(rev int64) *blockCache {
	return &blockCache{since: rev, known: rev, dirty: map[schema.Bucket]dirtyMark{}, blocks: map[blockKey]*cachedBlock{}, minQuiet: minQuiet}
}

// noteWrites notes what a transaction is about to commit; before is the revision of
// the one before it here.
func (s *blockCache) noteWrites(rev, before int64, touched map[schema.Bucket]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case rev <= before: // an older copy
		clear(s.blocks)
		s.bytes, s.since = 0, rev-1
	case rev != before+1: // another program wrote, nobody knows what
		s.since = rev - 1
	}
	if len(s.dirty)+len(touched) > maxDirty {
		clear(s.dirty)
		s.since = rev
	}
	now := time.Now()
	for u := range touched {
		s.dirty[u] = dirtyMark{rev, now}
	}
	s.known = rev
}

// noteFailed takes back that a transaction would be committed.
func (s *blockCache) noteFailed(rev int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = rev - 1
}

// isUnchanged says whether a range has the same rows at two revisions.
func (s *blockCache) isUnchanged(p schema.Range, a, b int64) bool {
	first := min(a, b)
	if first < s.since || max(a, b) > s.known {
		return false
	}
	for at := p.From; at < p.To; at += p.Level.Width() {
		if s.dirty[schema.Bucket{Level: p.Level, Start: at}].rev > first {
			return false
		}
	}
	return true
}

// get finds a block as it is at a revision, nil where there is none; has are the
// resources that it had before, if any.
func (s *blockCache) get(k *blockKind, p schema.Range, want usage.Set, rev int64) (found *block, has usage.Set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := blockKey{k, p}
	e := s.blocks[key]
	switch {
	case e == nil:
		return nil, 0
	case want&^e.has != 0 || !s.isUnchanged(p, e.rev, rev):
		if e.rev <= rev {
			s.drop(key, e)
		}
		return nil, e.has
	}
	s.uses++
	s.hits++
	e.used = s.uses
	return e.block, e.has
}

func (s *blockCache) drop(key blockKey, e *cachedBlock) {
	delete(s.blocks, key)
	s.bytes -= e.size
}

// put keeps a block of a revision, and lets go of those that were not used for
// the longest time.
func (s *blockCache) put(b *block, rev int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	size := b.bytes() + blockOverhead
	if !s.isUnchanged(b.Range, rev, rev) || size > maxCacheBytes/4 {
		return
	}
	key := blockKey{b.kind, b.Range}
	if e := s.blocks[key]; e != nil {
		s.drop(key, e)
	}
	s.uses++
	s.blocks[key] = &cachedBlock{b, rev, s.uses, size}
	for s.bytes += size; s.bytes > maxCacheBytes; {
		var oldest blockKey
		least := s.uses + 1
		for k, e := range s.blocks {
			if e.used < least {
				oldest, least = k, e.used
			}
		}
		s.drop(oldest, s.blocks[oldest])
	}
}

// free lets go of the blocks of parts of a range.
func (s *blockCache) free(k *blockKind, parts []schema.Range) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range parts {
		if e := s.blocks[blockKey{k, p}]; e != nil {
			s.drop(blockKey{k, p}, e)
		}
	}
}

// isQuiet says whether nobody writes to the rows of a range.
func (s *blockCache) isQuiet(p schema.Range, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at := p.From; at < p.To; at += p.Level.Width() {
		if t, ok := s.dirty[schema.Bucket{Level: p.Level, Start: at}]; ok && now.Sub(t.at) < s.minQuiet {
			return false
		}
	}
	return true
}

// splitRanges cuts ranges into those of blocks. single is that none is of two days.
func (s *blockCache) splitRanges(ranges []schema.Range, single bool, now time.Time) (out []schema.Range) {
	for _, p := range ranges {
		block := blockLengths[p.Level]
		for at := p.From; at < p.To; at = out[len(out)-1].To {
			b := schema.Range{Level: p.Level, From: at, To: at + block}
			if at%block != 0 || b.To > p.To || single && p.Level == schema.Days || !s.isQuiet(b, now) {
				b.To = at + p.Level.Width()
			}
			out = append(out, b)
		}
	}
	return out
}

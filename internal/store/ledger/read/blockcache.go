package read

import (
	"sync"
	"time"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A shelf keeps slabs from one question to the next: most of what a question is
// about was read for the one before. A slab is used for the moment of another
// view only where nothing has written to its rows between the two, which the
// writer notes by revisions.
type shelf struct {
	mu sync.Mutex
	// Of the revisions in [since, known] it is noted here which rows they wrote.
	since, known int64
	touched      map[schema.Bucket]touch
	slabs        map[slabKey]*kept
	bytes, uses  int64
	hits         int64 // slabs that were found
	rest         time.Duration
}

// A touch is the last time that a cell was written to.
type touch struct {
	rev int64
	at  time.Time
}

type slabKey struct {
	kind *slabKind
	schema.Range
}

type kept struct {
	*slab
	rev, used, size int64
}

const (
	// shelfBytes is how much memory slabs may take: about two hours of minutes of
	// 20,000 workloads, as far as they are not summed yet.
	shelfBytes = 192 << 20
	// slabBytes is what a slab costs beside its rows, so that there are not too many.
	slabBytes = 8 << 10
	// maxTouched is of how many cells it is noted when they were written to.
	maxTouched = 1 << 14
	// longRest is for how long nobody has written to rows that are kept as one slab
	// of several: what is late is mostly late by less.
	longRest = 2 * time.Minute
)

// blocks is of how many minutes the slabs of each level are where they are at
// rest. None of minutes or hours is of two days.
var blocks = [...]int64{schema.Minutes: 10, schema.Hours: 6 * schema.HourMinutes, schema.Days: 4 * schema.DayMinutes}

func newShelf(rev int64) *shelf {
	return &shelf{since: rev, known: rev, touched: map[schema.Bucket]touch{}, slabs: map[slabKey]*kept{}, rest: longRest}
}

// writes notes what a transaction is about to commit; before is the revision of
// the one before it here.
func (s *shelf) writes(rev, before int64, touched map[schema.Bucket]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case rev <= before: // an older copy
		clear(s.slabs)
		s.bytes, s.since = 0, rev-1
	case rev != before+1: // another program wrote, nobody knows what
		s.since = rev - 1
	}
	if len(s.touched)+len(touched) > maxTouched {
		clear(s.touched)
		s.since = rev
	}
	now := time.Now()
	for u := range touched {
		s.touched[u] = touch{rev, now}
	}
	s.known = rev
}

// failed takes back that a transaction would be committed.
func (s *shelf) failed(rev int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = rev - 1
}

// same says whether a stretch has the same rows at two revisions.
func (s *shelf) same(p schema.Range, a, b int64) bool {
	first := min(a, b)
	if first < s.since || max(a, b) > s.known {
		return false
	}
	for at := p.From; at < p.To; at += p.Level.Width() {
		if s.touched[schema.Bucket{Level: p.Level, Start: at}].rev > first {
			return false
		}
	}
	return true
}

// get finds a slab as it is at a revision, nil where there is none; has are the
// resources that it had before, if any.
func (s *shelf) get(k *slabKind, p schema.Range, want usage.Set, rev int64) (found *slab, has usage.Set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := slabKey{k, p}
	e := s.slabs[key]
	switch {
	case e == nil:
		return nil, 0
	case want&^e.has != 0 || !s.same(p, e.rev, rev):
		if e.rev <= rev {
			s.drop(key, e)
		}
		return nil, e.has
	}
	s.uses++
	s.hits++
	e.used = s.uses
	return e.slab, e.has
}

func (s *shelf) drop(key slabKey, e *kept) {
	delete(s.slabs, key)
	s.bytes -= e.size
}

// put keeps a slab of a revision, and lets go of those that were not used for
// the longest time.
func (s *shelf) put(b *slab, rev int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	size := b.bytes() + slabBytes
	if !s.same(b.Range, rev, rev) || size > shelfBytes/4 {
		return
	}
	key := slabKey{b.kind, b.Range}
	if e := s.slabs[key]; e != nil {
		s.drop(key, e)
	}
	s.uses++
	s.slabs[key] = &kept{b, rev, s.uses, size}
	for s.bytes += size; s.bytes > shelfBytes; {
		var oldest slabKey
		least := s.uses + 1
		for k, e := range s.slabs {
			if e.used < least {
				oldest, least = k, e.used
			}
		}
		s.drop(oldest, s.slabs[oldest])
	}
}

// free lets go of the slabs of parts of a stretch.
func (s *shelf) free(k *slabKind, parts []schema.Range) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range parts {
		if e := s.slabs[slabKey{k, p}]; e != nil {
			s.drop(slabKey{k, p}, e)
		}
	}
}

// resting says whether nobody writes to the rows of a stretch.
func (s *shelf) resting(p schema.Range, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at := p.From; at < p.To; at += p.Level.Width() {
		if t, ok := s.touched[schema.Bucket{Level: p.Level, Start: at}]; ok && now.Sub(t.at) < s.rest {
			return false
		}
	}
	return true
}

// pieces cuts stretches into those of slabs. single is that none is of two days.
func (s *shelf) pieces(stretches []schema.Range, single bool, now time.Time) (out []schema.Range) {
	for _, p := range stretches {
		block := blocks[p.Level]
		for at := p.From; at < p.To; at = out[len(out)-1].To {
			b := schema.Range{Level: p.Level, From: at, To: at + block}
			if at%block != 0 || b.To > p.To || single && p.Level == schema.Days || !s.resting(b, now) {
				b.To = at + p.Level.Width()
			}
			out = append(out, b)
		}
	}
	return out
}

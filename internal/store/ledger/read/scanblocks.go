package read

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// minParallelRows is the number of rows, some ten milliseconds, from which helpers read in
// parallel.
const minParallelRows = 20_000

// A blockScan loads the blocks of some ranges, from the cache or from the database. One or several
// goroutines read, each taking the next chunk when it is done with one.
type blockScan struct {
	rd      *Reader
	v       *db.View
	kind    *blockKind
	keys    []int64 // if not nil, only these
	missing []chunk
	next    atomic.Int64
}

// A chunk is a block to be read.
type chunk struct {
	schema.Range
	want usage.Set
}

// scanBlocks calls use for the blocks of ranges, in any order. single excludes blocks of several
// days. If keys is not nil the blocks hold those keys only.
func (rd *Reader) scanBlocks(v *db.View, k *blockKind, want usage.Set, ranges []schema.Range, single bool, keys []int64, use func(*block) error) error {
	g := &blockScan{rd: rd, v: v, kind: k, keys: keys}
	if keys != nil {
		for _, p := range splitForKeys(ranges, single) {
			g.missing = append(g.missing, chunk{p, want})
		}
		return g.loadChunks(v, use)
	}
	var units int64
	for _, p := range rd.cache.blocks.splitRanges(ranges, single, time.Now()) {
		b, has := rd.cache.blocks.get(k, p, want, v.Rev)
		if b == nil {
			g.missing = append(g.missing, chunk{p, want | has})
			units += p.Len()
			continue
		}
		if err := use(b); err != nil {
			return err
		}
	}
	if units == 0 {
		return nil
	}
	var most int64
	if err := v.SQL.QueryRowContext(v.Ctx, "SELECT coalesce(max(id), 0) FROM "+k.layout.Key).Scan(&most); err != nil {
		return err
	}
	if units*most < minParallelRows {
		return g.loadChunks(v, use)
	}
	return g.loadInParallel(use)
}

// loadChunks reads chunks, as of v, until none is left.
func (s *blockScan) loadChunks(v *db.View, use func(*block) error) error {
	end := int64(len(s.missing))
	for i := s.next.Add(1) - 1; i < end; i = s.next.Add(1) - 1 {
		b, err := s.loadBlock(v, s.missing[i])
		if err == nil {
			err = use(b)
		}
		if err != nil {
			s.next.Store(end) // the results of other goroutines are not needed
			return err
		}
	}
	return nil
}

// loadInParallel is loadChunks with helpers. They start at once, as they must see the same
// snapshot. A helper without a connection when the chunks are gone gives up.
func (s *blockScan) loadInParallel(use func(*block) error) error {
	var mu sync.Mutex
	useOne := func(b *block) error {
		mu.Lock()
		defer mu.Unlock()
		return use(b)
	}
	joining, gone := context.WithCancel(s.v.Ctx)
	var helpers errgroup.Group
	for range db.MaxWorkers() {
		helpers.Go(func() error { return s.runWorker(joining, useOne) })
	}
	err := s.loadChunks(s.v, useOne)
	gone()
	return errors.Join(err, helpers.Wait())
}

// runWorker takes chunks too, if a worker slot is free and its view has the same revision: each
// write transaction has a revision, so views of one revision are equal.
func (s *blockScan) runWorker(joining context.Context, use func(*block) error) (err error) {
	select {
	case s.rd.workers <- struct{}{}:
		defer func() { <-s.rd.workers }()
	default:
		return nil
	}
	conn, err := s.rd.db.Reader.Conn(joining)
	if err != nil {
		return nil // the others do all the work
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return s.rd.db.ViewOn(s.v.Ctx, conn, func(v *db.View) error {
		if v.Rev != s.v.Rev {
			return nil
		}
		return s.loadChunks(v, use)
	})
}

// loadBlock loads the block of a chunk: from blocks of its parts if most of them are cached.
func (s *blockScan) loadBlock(v *db.View, p chunk) (*block, error) {
	if s.keys != nil {
		return s.rd.readBlock(v, s.kind, p.Range, p.want, s.keys)
	}
	parts := p.Split()
	blocks := make([]*block, len(parts))
	have := 0
	for i, part := range parts {
		if blocks[i], _ = s.rd.cache.blocks.get(s.kind, part, p.want, v.Rev); blocks[i] != nil {
			have++
		}
	}
	if 2*have <= len(parts) {
		b, err := s.rd.readBlock(v, s.kind, p.Range, p.want, nil)
		if err == nil {
			s.rd.cache.blocks.put(b, v.Rev)
		}
		return b, err
	}
	for i, part := range parts {
		if blocks[i] != nil {
			continue
		}
		var err error
		if blocks[i], err = s.rd.readBlock(v, s.kind, part, p.want, nil); err != nil {
			return nil, err
		}
	}
	b := joinBlocks(p.Range, blocks)
	s.rd.cache.blocks.put(b, v.Rev)
	s.rd.cache.blocks.free(s.kind, parts)
	return b, nil
}

// maxUnitsPerLookup is how many rows of a key one statement looks up.
const maxUnitsPerLookup = 2 * schema.HourMinutes

// splitForKeys splits ranges for a query of some keys.
func splitForKeys(ranges []schema.Range, single bool) (out []schema.Range) {
	for _, p := range ranges {
		for at := p.From; at < p.To; at = out[len(out)-1].To {
			to := min(p.To, at+maxUnitsPerLookup*p.Level.Width())
			switch {
			case p.Level == schema.Days && single:
				to = at + schema.DayMinutes
			case p.Level != schema.Days:
				to = min(to, at-at%schema.DayMinutes+schema.DayMinutes)
			}
			out = append(out, schema.Range{Level: p.Level, From: at, To: to})
		}
	}
	return out
}

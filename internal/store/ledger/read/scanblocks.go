package read

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// minParallelRows is from how many rows on others help to read them: it takes some ten
// milliseconds.
const minParallelRows = 20_000

// A blockScan finds the blocks of some ranges: those in the cache, and others by
// reading them, by one reader or by several, each of which takes the next chunk
// when it is done with one.
type blockScan struct {
	rd      *Reader
	v       *db.View
	kind    *blockKind
	keys    []int64 // the only ones; nil is all
	missing []chunk
	next    atomic.Int64
}

// A chunk is a block that is to be read.
type chunk struct {
	schema.Range
	want usage.Set
}

// scanBlocks gives the blocks of ranges to use, in any order. single is that none is
// of two days. Where keys is not nil they are of those keys alone.
func (rd *Reader) scanBlocks(v *db.View, k *blockKind, want usage.Set, ranges []schema.Range, single bool, keys []int64, use func(*block) error) error {
	g := &blockScan{rd: rd, v: v, kind: k, keys: keys}
	if keys != nil {
		for _, p := range splitForKeys(ranges, single) {
			g.missing = append(g.missing, chunk{p, want})
		}
		return g.loadChunks(use)
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
	if err := v.SQL.QueryRowContext(v.Ctx, "SELECT coalesce(max(id), 0) FROM "+k.shape.Key).Scan(&most); err != nil {
		return err
	}
	if units*most < minParallelRows {
		return g.loadChunks(use)
	}
	return g.loadInParallel(use)
}

// loadChunks reads pieces until there are no more.
func (g *blockScan) loadChunks(use func(*block) error) error {
	return g.loadChunksIn(g.v, use)
}

func (g *blockScan) loadChunksIn(v *db.View, use func(*block) error) error {
	end := int64(len(g.missing))
	for i := g.next.Add(1) - 1; i < end; i = g.next.Add(1) - 1 {
		b, err := g.loadBlock(v, g.missing[i])
		if err == nil {
			err = use(b)
		}
		if err != nil {
			g.next.Store(end) // what others would find is of no use
			return err
		}
	}
	return nil
}

// loadInParallel is work with others. They begin at once, as they have to see the same
// moment. Who has no connection yet when the pieces are gone is needed no more.
func (g *blockScan) loadInParallel(use func(*block) error) error {
	joining, gone := context.WithCancel(g.v.Ctx)
	defer gone()
	var helpers errgroup.Group
	found := make(chan *block)
	for range db.MaxWorkers() {
		helpers.Go(func() error { return g.runWorker(joining, found) })
	}
	over := make(chan error, 1)
	go func() {
		over <- helpers.Wait()
		close(found)
	}()
	err := g.loadChunks(func(b *block) error {
		if err := use(b); err != nil {
			return err
		}
		for {
			select {
			case b := <-found:
				if b == nil { // nobody helps any more
					return nil
				}
				if err := use(b); err != nil {
					return err
				}
			default:
				return nil
			}
		}
	})
	gone()
	for b := range found {
		if err == nil {
			err = use(b)
		}
	}
	if failed := <-over; err == nil {
		err = failed
	}
	return err
}

// runWorker takes pieces as well, if it may and if it sees the same moment of the
// ledger: each transaction that writes has a revision, so views of one revision
// are alike.
func (g *blockScan) runWorker(joining context.Context, found chan<- *block) (err error) {
	select {
	case g.rd.workers <- struct{}{}:
		defer func() { <-g.rd.workers }()
	default:
		return nil
	}
	conn, err := g.rd.db.Reader.Conn(joining)
	if err != nil {
		return nil // those who have one do it all
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return g.rd.db.ViewOn(g.v.Ctx, conn, func(v *db.View) error {
		if v.Rev != g.v.Rev {
			return nil
		}
		return g.loadChunksIn(v, func(b *block) error { found <- b; return nil })
	})
}

// loadBlock makes the block of a chunk: of blocks of its parts, where most of them are on
// the cache.
func (g *blockScan) loadBlock(v *db.View, p chunk) (*block, error) {
	if g.keys != nil {
		return g.rd.readBlock(v, g.kind, p.Range, p.want, g.keys)
	}
	parts := p.Split()
	blocks := make([]*block, len(parts))
	have := 0
	for i, part := range parts {
		if len(parts) == 1 {
			break
		}
		if blocks[i], _ = g.rd.cache.blocks.get(g.kind, part, p.want, v.Rev); blocks[i] != nil {
			have++
		}
	}
	if 2*have <= len(parts) {
		b, err := g.rd.readBlock(v, g.kind, p.Range, p.want, nil)
		if err == nil {
			g.rd.cache.blocks.put(b, v.Rev)
		}
		return b, err
	}
	for i, part := range parts {
		if blocks[i] != nil {
			continue
		}
		var err error
		if blocks[i], err = g.rd.readBlock(v, g.kind, part, p.want, nil); err != nil {
			return nil, err
		}
	}
	b := joinBlocks(p.Range, blocks)
	g.rd.cache.blocks.put(b, v.Rev)
	g.rd.cache.blocks.free(g.kind, parts)
	return b, nil
}

// maxUnitsPerLookup is how many rows of a key are looked up by one statement.
const maxUnitsPerLookup = 2 * schema.HourMinutes

// few cuts ranges for a question about some keys.
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

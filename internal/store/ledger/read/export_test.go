package read

import (
	"context"
	"database/sql"
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

const (
	MaxKeyLookups   = maxKeyLookups
	WorkloadsPerRow = workloadsPerRow
	RowsPerLookup   = rowsPerLookup
	MinParallelRows = minParallelRows
	MaxArguments    = maxArguments
)

// KeyLookups returns how many workloads a query looks up by key, or -1 if it scans all rows of its
// range.
func (rd *Reader) KeyLookups(ctx context.Context, q query.Query) (n int, err error) {
	err = rd.db.View(ctx, func(v *db.View) error {
		s, err := rd.newSelection(v, &q)
		if err != nil {
			return err
		}
		from, to := queryRange(v, q.From, q.To)
		ids, err := s.matchingWorkloads(v.Cover(from, to, v.Days))
		if n = len(ids); ids == nil {
			n = -1
		}
		return err
	})
	return n, err
}

// LooksUp reports whether a query of usage looks up rows by key; else it scans.
func (rd *Reader) LooksUp(ctx context.Context, q query.Query) (yes bool, err error) {
	err = rd.db.View(ctx, func(v *db.View) error {
		s, err := rd.newSelection(v, &q)
		if err != nil {
			return err
		}
		from, to := queryRange(v, q.From, q.To)
		ids, err := s.lookUps(v.Cover(from, to, v.Days))
		yes = ids != nil
		return err
	})
	return yes, err
}

// SetMinQuiet sets how long rows must be unchanged before they are kept as one block.
func (rd *Reader) SetMinQuiet(d time.Duration) { rd.cache.blocks.minQuiet = d }

// CachedBlocks returns the number of cached blocks, of those with several rows of a key, and of
// cache hits.
func (rd *Reader) CachedBlocks() (all, several int, hits int64) {
	rd.cache.blocks.mu.Lock()
	defer rd.cache.blocks.mu.Unlock()
	for k := range rd.cache.blocks.blocks {
		if k.To-k.From > k.Level.Width() {
			several++
		}
	}
	return len(rd.cache.blocks.blocks), several, rd.cache.blocks.hits
}

// DropBlocks empties the cache of blocks.
func (rd *Reader) DropBlocks() { clear(rd.cache.blocks.blocks) }

// InView calls f with a snapshot.
func (rd *Reader) InView(ctx context.Context, f func(*db.View) error) error {
	return rd.db.View(ctx, f)
}

// UsageOf answers a query from a snapshot.
func (rd *Reader) UsageOf(v *db.View, q query.Query) (*query.Answer, error) {
	from, to := queryRange(v, q.From, q.To)
	return rd.usageIn(v, q, from, to)
}

// GroupsAfter sums the groups of a query after it calls f.
func (rd *Reader) GroupsAfter(v *db.View, q query.Query, f func()) ([]query.Group, error) {
	s, err := rd.newSelection(v, &q)
	if err != nil {
		return nil, err
	}
	gs := newGroups(s.want)
	a, err := s.newAggregation(gs)
	if err != nil {
		return nil, err
	}
	f()
	from, to := queryRange(v, q.From, q.To)
	err = rd.scanBlocks(v, usageBlocks, s.want, v.Cover(from, to, v.Days), false, nil, a.addBlock)
	groups, _ := gs.sorted(0)
	return groups, err
}

// AddRows adds blocks with one row for each of the workloads to an aggregation, and returns how many
// pages it holds after each.
func (rd *Reader) AddRows(v *db.View, q query.Query, blocks ...[]int64) (pages []int, err error) {
	s, err := rd.newSelection(v, &q)
	if err != nil {
		return nil, err
	}
	a, err := s.newAggregation(newGroups(s.want))
	if err != nil {
		return nil, err
	}
	for _, workloads := range blocks {
		b := newBlock(usageBlocks, schema.Range{Level: schema.Days, To: schema.DayMinutes}, s.want, len(workloads))
		for _, w := range workloads {
			b.add(w, 0, 0, make([]int64, len(usageBlocks.rules)))
		}
		if err := a.addBlock(b); err != nil {
			return nil, err
		}
		pages = append(pages, len(a.pages))
	}
	return pages, nil
}

const (
	PageSize = pageSize
	MaxPages = maxPages
)

// Index returns the index of a query, and how many workloads are in it.
func (rd *Reader) Index(ctx context.Context, q query.Query) (index any, members int, err error) {
	err = rd.db.View(ctx, func(v *db.View) error {
		s, err := rd.newSelection(v, &q)
		if err != nil {
			return err
		}
		found, err := rd.cache.indexes.find(s)
		if err == nil {
			index, members = found, len(found.members)
		}
		return err
	})
	return index, members, err
}

// LimitIndex limits the workloads of an index.
func LimitIndex(index any, most int) { index.(*groupIndex).most = most }

// MaxIndexes is how many indexes are kept.
const MaxIndexes = maxIndexes

// Scan calls use with the CPU time of each block of ranges.
func (rd *Reader) Scan(v *db.View, single bool, use func(cpu int64) error, ranges ...schema.Range) error {
	return rd.scanBlocks(v, usageBlocks, usage.SetOf(usage.CPU), ranges, single, nil, func(b *block) error {
		var sum int64
		for i := range b.keys {
			sum += b.value(blockAmounts+int(usage.CPU), i)
		}
		return use(sum)
	})
}

// HoldConnections takes all but some of the connections for reading, until leave is called.
func (rd *Reader) HoldConnections(ctx context.Context, but int) (leave func() error, err error) {
	var held []*sql.Conn
	for range rd.db.Reader.Stats().MaxOpenConnections - but {
		c, err := rd.db.Reader.Conn(ctx)
		if err != nil {
			return nil, err
		}
		held = append(held, c)
	}
	return func() (err error) {
		for _, c := range held {
			err = c.Close()
		}
		return err
	}, nil
}

package read

import (
	"context"
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/store/ledger/db"
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

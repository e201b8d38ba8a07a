package read

import (
	"context"
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/store/ledger/db"
)

// KeyLookups is how many workloads a question looks up one by one; -1 is that it reads all
// rows of its range.
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

// SetMinQuiet is after how long without a row blocks of several minutes, hours or days are
// kept.
func (rd *Reader) SetMinQuiet(d time.Duration) { rd.cache.blocks.minQuiet = d }

// CachedBlocks is how many blocks are kept, how many of those are of several rows of a key,
// and how many were used again.
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

package read

import (
	"context"
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/store/ledger/db"
)

// Chosen is how many workloads a question looks up one by one; -1 is that it reads all
// rows of its range.
func (rd *Reader) Chosen(ctx context.Context, q query.Query) (n int, err error) {
	err = rd.db.View(ctx, func(v *db.View) error {
		s, err := rd.newSelection(v, &q)
		if err != nil {
			return err
		}
		from, to := queryRange(v, q.From, q.To)
		ids, err := s.chosen(v.Cover(from, to, v.Days))
		if n = len(ids); ids == nil {
			n = -1
		}
		return err
	})
	return n, err
}

// Rest is after how long without a row slabs of several minutes, hours or days are
// kept.
func (rd *Reader) Rest(d time.Duration) { rd.cache.shelf.rest = d }

// Shelf is how many slabs are kept, how many of those are of several rows of a key,
// and how many were used again.
func (rd *Reader) Shelf() (slabs, blocks int, hits int64) {
	rd.cache.shelf.mu.Lock()
	defer rd.cache.shelf.mu.Unlock()
	for k := range rd.cache.shelf.slabs {
		if k.To-k.From > k.Level.Width() {
			blocks++
		}
	}
	return len(rd.cache.shelf.slabs), blocks, rd.cache.shelf.hits
}

package ledger

import (
	"context"
	"time"

	"mete.dev/mete/internal/model/query"
)

// Reading calls f while a reader has its moment of the ledger; count counts the
// rows of a table in it.
func (l *Ledger) Reading(ctx context.Context, f func(count func(table string) (int64, error)) error) error {
	return l.view(ctx, func(v *view) error {
		return f(func(table string) (n int64, err error) {
			err = v.tx.QueryRowContext(ctx, "SELECT count(*) FROM "+table).Scan(&n)
			return n, l.d.fault(err)
		})
	})
}

// Chosen is how many workloads a question looks up one by one; -1 is that it reads all
// rows of its range.
func (l *Ledger) Chosen(ctx context.Context, q query.Query) (n int, err error) {
	err = l.view(ctx, func(v *view) error {
		s, err := l.newSelection(v, &q)
		if err != nil {
			return err
		}
		from, to := v.minutesOf(q.From, q.To)
		ids, err := s.chosen(v.stretches(from, to, v.days))
		if n = len(ids); ids == nil {
			n = -1
		}
		return err
	})
	return n, err
}

// Rest is after how long without a row slabs of several minutes, hours or days are
// kept.
func (l *Ledger) Rest(d time.Duration) { l.shelf.rest = d }

// Shelf is how many slabs are kept, how many of those are of several rows of a key,
// and how many were used again.
func (l *Ledger) Shelf() (slabs, blocks int, hits int64) {
	l.shelf.mu.Lock()
	defer l.shelf.mu.Unlock()
	for k := range l.shelf.slabs {
		if k.to-k.from > k.level.width() {
			blocks++
		}
	}
	return len(l.shelf.slabs), blocks, l.shelf.hits
}

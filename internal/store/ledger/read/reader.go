// Package read answers queries of a ledger.
package read

import (
	"context"
	"fmt"

	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A Reader answers queries. Its methods are safe for concurrent use.
type Reader struct {
	db      *db.DB
	workers chan struct{} // one entry per running scan helper
	cache   *cache        // SQLite only
}

// A cache holds what is kept in memory between queries.
type cache struct {
	blocks  *blockCache
	indexes *groupIndexes
}

// New returns a reader that observes writes to the database.
func New(ctx context.Context, database *db.DB) (*Reader, error) {
	rd := &Reader{db: database, workers: make(chan struct{}, db.MaxWorkers())}
	err := database.View(ctx, func(v *db.View) error {
		rd.cache = &cache{newBlockCache(v.Rev), &groupIndexes{all: map[[32]byte]*groupIndex{}}}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	database.Observe(rd.cache)
	return rd, nil
}

// Committing implements db.Observer.
func (c *cache) Committing(rev, before int64, touched map[schema.Bucket]bool) {
	if rev <= before {
		c.indexes.clear()
	}
	c.blocks.noteWrites(rev, before, touched)
}

// CommitFailed implements db.Observer.
func (c *cache) CommitFailed(rev int64) { c.blocks.noteFailed(rev) }

// Package read answers queries of a ledger.
package read

import (
	"context"
	"fmt"

	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A Reader answers queries. Its methods may be called from several goroutines.
type Reader struct {
	db      *db.DB
	workers chan struct{} // has an entry for each that helps another one
	cache   *cache        // of SQLite
}

// A cache is what is kept in memory from one query to the next.
type cache struct {
	blocks  *blockCache
	indexes *groupIndexes
}

// New makes a reader, which is told of what is written to the database.
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

// Committing implements observer.
func (c *cache) Committing(rev, before int64, touched map[schema.Bucket]bool) {
	if rev <= before {
		c.indexes.clear()
	}
	c.blocks.noteWrites(rev, before, touched)
}

// CommitFailed implements observer.
func (c *cache) CommitFailed(rev int64) { c.blocks.noteFailed(rev) }

package db

import (
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
)

// maxEpochs is how many epochs are remembered. An upstream server whose position is in an older one
// receives everything again.
const maxEpochs = 1000

// beginEpoch starts an epoch. A process that opens a ledger cannot know whether it was restored
// from an older copy, in which case new revisions may equal old ones of other rows.
func (t *Tx) beginEpoch() error {
	if err := t.begin(); err != nil {
		return err
	}
	if err := t.newEpoch(t.Rev); err != nil {
		return err
	}
	_, err := t.Exec("DELETE FROM epoch WHERE rev < (SELECT min(rev) FROM (SELECT rev FROM epoch ORDER BY rev DESC LIMIT $1) AS latest)", int64(maxEpochs))
	return err
}

func (t *Tx) newEpoch(rev int64) error {
	_, err := t.Exec("INSERT INTO epoch (rev, id) VALUES ($1, $2) ON CONFLICT (rev) DO UPDATE SET id = excluded.id", rev, rand.Text())
	return err
}

// EpochOf returns the epoch in which a revision was made. Revisions before the oldest remembered
// epoch belong to the ledger's first.
func (v *View) EpochOf(rev int64) (id string, err error) {
	err = v.SQL.QueryRowContext(v.Ctx, "SELECT id FROM epoch WHERE rev <= $1 ORDER BY rev DESC LIMIT 1", rev).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return v.DB.epoch, nil
	}
	return id, v.DB.Fault(err)
}

// indexRevs indexes a table of usage or connections by revision if rows are replicated to an upstream server. The
// index costs about as much space as the rows, so other ledgers drop it. PostgreSQL keeps it:
// another server of the same ledger may need it.
func (t *Tx) indexRevs(table, key string) error {
	switch {
	case !t.DB.upstream && t.DB.IsSQLite():
		return t.Define("DROP INDEX IF EXISTS " + table + "_rev")
	case !t.DB.upstream:
		return nil
	}
	return t.Define(fmt.Sprintf("CREATE INDEX IF NOT EXISTS %[1]s_rev ON %[1]s (rev, minute, %[2]s)", table, key))
}

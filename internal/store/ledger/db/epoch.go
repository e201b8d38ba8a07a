package db

import (
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"

	"mete.dev/mete/internal/store/ledger/schema"
)

// maxEpochs is how many epochs are remembered. A server above that stands in an
// earlier one is told everything again.
const maxEpochs = 1000

// beginEpoch begins an epoch: whoever opens a ledger cannot know whether it is an
// older copy of itself, and revisions that are made from now on may have been
// made before, for other things.
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

// EpochOf is the epoch in which a revision was made; those before all that are
// remembered are of the ledger's first.
func (v *View) EpochOf(rev int64) (id string, err error) {
	err = v.SQL.QueryRowContext(v.Ctx, "SELECT id FROM epoch WHERE rev <= $1 ORDER BY rev DESC LIMIT 1", rev).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return v.DB.epoch, nil
	}
	return id, v.DB.Fault(err)
}

// indexRevs makes a table of usage such that what changed last is found
// quickly, where someone will ask for that. The index costs about as much as
// the row, so others do without: one that is left from when there was a server
// above goes. In PostgreSQL it stays, as another server of the same ledger may
// need it.
func (t *Tx) indexRevs(s *schema.Layout, table string) error {
	switch {
	case !t.DB.upstream && t.DB.IsSQLite():
		return t.Define("DROP INDEX IF EXISTS " + table + "_rev")
	case !t.DB.upstream:
		return nil
	}
	return t.Define(fmt.Sprintf("CREATE INDEX IF NOT EXISTS %[1]s_rev ON %[1]s (rev, minute, %[2]s)", table, s.Key))
}

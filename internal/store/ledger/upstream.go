package ledger

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/usage"
)

// maxEpochs is how many epochs are remembered. A server above that stands in an
// earlier one is told everything again.
const maxEpochs = 1000

// open begins an epoch: whoever opens a ledger cannot know whether it is an
// older copy of itself, and revisions that are made from now on may have been
// made before, for other things.
func (t *txn) open() error {
	if err := t.begin(); err != nil {
		return err
	}
	if err := t.newEpoch(t.rev); err != nil {
		return err
	}
	_, err := t.exec("DELETE FROM epoch WHERE rev < (SELECT min(rev) FROM (SELECT rev FROM epoch ORDER BY rev DESC LIMIT $1) AS latest)", int64(maxEpochs))
	return err
}

func (t *txn) newEpoch(rev int64) error {
	_, err := t.exec("INSERT INTO epoch (rev, id) VALUES ($1, $2) ON CONFLICT (rev) DO UPDATE SET id = excluded.id", rev, rand.Text())
	return err
}

// epochOf is the epoch in which a revision was made; those before all that are
// remembered are of the ledger's first.
func (l *Ledger) epochOf(v *view, rev int64) (id string, err error) {
	err = v.tx.QueryRowContext(v.ctx, "SELECT id FROM epoch WHERE rev <= $1 ORDER BY rev DESC LIMIT 1", rev).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return l.epoch, nil
	}
	return id, l.d.fault(err)
}

// indexRevs makes a table of usage such that what changed last is found
// quickly, where someone will ask for that. The index costs about as much as
// the row, so others do without: one that is left from when there was a server
// above goes. In PostgreSQL it stays, as another server of the same ledger may
// need it.
func (t *txn) indexRevs(s *shape, table string) error {
	switch {
	case !t.l.cfg.Upstream && t.l.d == lite:
		return t.define("DROP INDEX IF EXISTS " + table + "_rev")
	case !t.l.cfg.Upstream:
		return nil
	}
	return t.define(fmt.Sprintf("CREATE INDEX IF NOT EXISTS %[1]s_rev ON %[1]s (rev, minute, %[2]s)", table, s.key))
}

// A kind is one of the things of which states are told. They are told in the
// order of their revisions, and those of one revision in the order of kinds:
// an hour comes after its minutes, so that it makes up for those that are
// dropped meanwhile.
type kind int64

const (
	ofNode kind = iota
	ofWorkload
	ofGap
	ofShift
	ofNodeMinute
	ofMinute
	ofNodeHour
	ofHour
	ofNodeDay
	ofDay
	ofNesting // a and b are node and minute
	ofAll     // after everything of a revision
)

// A cursor is a place in that order. a and b are minute and key of a row, or
// the id of something else and 0.
type cursor struct {
	rev  int64
	kind kind
	a, b int64
}

func (c cursor) compare(o cursor) int {
	for _, d := range [...][2]int64{{c.rev, o.rev}, {int64(c.kind), int64(o.kind)}, {c.a, o.a}, {c.b, o.b}} {
		if d[0] != d[1] {
			if d[0] < d[1] {
				return -1
			}
			return 1
		}
	}
	return 0
}

// position writes a cursor as a server above keeps it, with all that has to be
// as it was for it to mean anything.
func position(o replica.Offer, epoch string, c cursor) string {
	return fmt.Sprintf("%s.%d.%d.%d.%d.%d.%t", epoch, c.rev, c.kind, c.a, c.b, o.Finest, o.Masked)
}

// parsePosition reads what position wrote for the same offer; false is anything
// else.
func parsePosition(o replica.Offer, text string) (epoch string, c cursor, ok bool) {
	f := strings.Split(text, ".")
	if len(f) != 7 {
		return "", c, false
	}
	var n [4]int64
	for i := range n {
		var err error
		if n[i], err = strconv.ParseInt(f[1+i], 10, 64); err != nil {
			return "", c, false
		}
	}
	c = cursor{n[0], kind(n[1]), n[2], n[3]}
	return f[0], c, position(o, f[0], c) == text
}

// resume is where to go on for a server above: from the beginning where its
// position is none of this ledger as it is now. That costs time and no harm,
// as states take the place of states.
func (l *Ledger) resume(v *view, o replica.Offer, at string, rev int64) (cursor, error) {
	epoch, c, ok := parsePosition(o, at)
	if !ok || c.rev > rev {
		return cursor{}, nil
	}
	now, err := l.epochOf(v, c.rev)
	if err != nil || now != epoch {
		return cursor{}, err
	}
	return c, nil
}

// Secret returns a secret of this ledger's own, which is made when it is first
// asked for.
func (l *Ledger) Secret(ctx context.Context, key string) (secret string, err error) {
	err = l.write(ctx, func(t *txn) error {
		_, err := t.exec("INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO NOTHING", key, rand.Text()+rand.Text())
		if err != nil {
			return err
		}
		return t.queryRow("SELECT value FROM meta WHERE key = $1", key).scan(&secret)
	})
	return secret, about(err, "secret %q", key)
}

// usageOf is the usage in a row of a table, whose resources begin at a column.
func usageOf(values []int64, first int) (u usage.Usage) {
	u.Present = usage.Set(values[colPresent])
	u.Quality = fromRough(u.Present, values[colRough])
	u.Covered = duration(values[colCovered])
	u.Present.Each(func(r usage.Resource) { u.Amount[r] = values[first+int(r)-1] })
	return u
}

package ledger

import (
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"mete.dev/mete/internal/model/fault"
)

// migrations are the steps of the schema, in the order of their names. A step
// is never changed once it has been released; one more is added. The tables of
// usage are not in them: their columns follow from meter's list of resources,
// and are added when it grows.
//
//go:embed schema/*.sql
var migrations embed.FS

// The keys of table meta that are the ledger's own.
const (
	metaSchema = "ledger.schema" // how many migrations were made
	metaEpoch  = "ledger.epoch"
)

// migrate brings the schema up to date, all in one transaction.
func (l *Ledger) migrate(ctx context.Context) error {
	begin := l.writer.BeginTx
	if l.conn != nil {
		begin = l.conn.BeginTx
	}
	tx, err := begin(ctx, nil)
	if err != nil {
		return l.d.fault(err)
	}
	t := &txn{l: l, ctx: ctx, tx: tx}
	if err = t.migrate(); err == nil {
		err = l.d.fault(tx.Commit())
	}
	if err != nil {
		_ = tx.Rollback()
	}
	return err
}

func (t *txn) migrate() error {
	if t.l.d.lock != "" {
		if err := t.define(t.l.d.lock); err != nil {
			return err
		}
	}
	if err := t.define("CREATE TABLE IF NOT EXISTS meta (key text NOT NULL PRIMARY KEY, value text NOT NULL) {keyed}"); err != nil {
		return err
	}
	made, err := t.made()
	if err != nil {
		return err
	}
	steps, err := migrations.ReadDir("schema")
	if err != nil {
		return err
	}
	if made > len(steps) {
		return newer(fmt.Sprintf("its schema is version %d, this program's is %d", made, len(steps)))
	}
	for _, step := range steps[made:] {
		text, err := migrations.ReadFile("schema/" + step.Name())
		if err != nil {
			return err
		}
		if err := t.define(string(text)); err != nil {
			return fmt.Errorf("%s: %w", step.Name(), err)
		}
	}
	if made < len(steps) { // else nothing is written, so that a full disk can be read
		if err := t.setMeta(metaSchema, strconv.Itoa(len(steps))); err != nil {
			return err
		}
	}
	if made == 0 {
		if err := t.setMeta(metaEpoch, rand.Text()); err != nil {
			return err
		}
	}
	if err := t.open(); err != nil {
		return err
	}
	return t.usageTables()
}

func newer(why string) error {
	return fault.WithHint(fmt.Errorf("%s: %w", why, fault.ErrUnsupported),
		"it was written by a newer mete: run that version, or restore the copy from before it")
}

// made is how many migrations were made.
func (t *txn) made() (n int, err error) {
	err = each(t.ctx, t.tx, func(scan func(...any) error) error {
		var text string
		if err := scan(&text); err != nil {
			return err
		}
		n, err = strconv.Atoi(text)
		return err
	}, "SELECT value FROM meta WHERE key = $1", metaSchema)
	return n, t.l.d.fault(err)
}

func (t *txn) setMeta(key, value string) error {
	_, err := t.tx.ExecContext(t.ctx, "INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value", key, value)
	return t.l.d.fault(err)
}

// usageTables makes the tables of usage, and adds the columns that they lack.
func (t *txn) usageTables() error {
	if err := t.define(createGroups()); err != nil {
		return err
	}
	if err := t.define("CREATE UNIQUE INDEX IF NOT EXISTS group_day_key ON group_day ({group})"); err != nil {
		return err
	}
	if err := t.complete("group_day", append([]string{"minute"}, groupKeys...), groupColumns(), days); err != nil {
		return err
	}
	kept, err := t.numbers("SELECT day FROM kept")
	if err != nil {
		return err
	}
	for _, s := range []*shape{usageShape, nodeShape} {
		err := errors.Join(t.table(s, s.hourTable(), hours), t.table(s, s.dayTable(), days))
		for _, day := range kept {
			err = errors.Join(err, t.table(s, s.minuteTable(day), minutes))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// table makes a table of usage, or completes it.
func (t *txn) table(s *shape, table string, v level) error {
	if err := t.define(s.create(table, v)); err != nil {
		return err
	}
	if err := t.indexRevs(s, table); err != nil {
		return err
	}
	return t.complete(table, []string{"minute", s.key}, s.cols, v)
}

// complete adds to the table the columns that it lacks. One that nobody knows
// is of a newer program, which counts on it in every row.
func (t *txn) complete(table string, keys []string, cols []column, v level) error {
	rows, err := t.tx.QueryContext(t.ctx, "SELECT * FROM "+table+" WHERE minute < 0")
	if err != nil {
		return t.l.d.fault(err)
	}
	have, err := rows.Columns()
	if err = errors.Join(err, rows.Close()); err != nil {
		return t.l.d.fault(err)
	}
	for _, name := range have {
		if !slices.Contains(keys, name) && !slices.ContainsFunc(cols, func(c column) bool { return c.name == name }) {
			return newer(fmt.Sprintf("table %s has a column %s that this program does not know", table, name))
		}
	}
	for _, c := range cols {
		if !slices.Contains(have, c.name) {
			if err := t.define("ALTER TABLE " + table + " ADD COLUMN " + c.define(v)); err != nil {
				return err
			}
		}
	}
	return nil
}

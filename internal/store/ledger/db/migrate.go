package db

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/store/ledger/schema"
)

// The keys of table meta that are the ledger's own.
const (
	metaSchema = "ledger.schema" // how many migrations were made
	metaEpoch  = "ledger.epoch"
)

// migrate brings the schema up to date, all in one transaction.
func (db *DB) migrate(ctx context.Context) error {
	tx, err := db.beginWrite(ctx)
	if err != nil {
		return db.Fault(err)
	}
	t := &Tx{DB: db, Ctx: ctx, SQL: tx}
	if err = t.migrate(); err == nil {
		err = db.Fault(tx.Commit())
	}
	if err != nil {
		_ = tx.Rollback()
	}
	return err
}

func (t *Tx) migrate() error {
	if t.DB.Dialect.MigrationLock != "" {
		if err := t.Define(t.DB.Dialect.MigrationLock); err != nil {
			return err
		}
	}
	if err := t.Define("CREATE TABLE IF NOT EXISTS meta (key text NOT NULL PRIMARY KEY, value text NOT NULL) {keyed}"); err != nil {
		return err
	}
	made, err := t.countMigrations()
	if err != nil {
		return err
	}
	steps, err := schema.Migrations.ReadDir(".")
	if err != nil {
		return err
	}
	if made > len(steps) {
		return newer(fmt.Sprintf("its schema is version %d, this program's is %d", made, len(steps)))
	}
	for _, step := range steps[made:] {
		text, err := schema.Migrations.ReadFile(step.Name())
		if err != nil {
			return err
		}
		if err := t.Define(string(text)); err != nil {
			return fmt.Errorf("%s: %w", step.Name(), err)
		}
	}
	if made < len(steps) { // else nothing is written, so that a full disk can be read
		if err := t.SetMeta(metaSchema, strconv.Itoa(len(steps))); err != nil {
			return err
		}
	}
	if made == 0 {
		if err := t.SetMeta(metaEpoch, rand.Text()); err != nil {
			return err
		}
	}
	if err := t.beginEpoch(); err != nil {
		return err
	}
	return t.usageTables()
}

func newer(why string) error {
	return fault.WithHint(fmt.Errorf("%s: %w", why, fault.ErrUnsupported),
		"it was written by a newer mete: run that version, or restore the copy from before it")
}

// countMigrations is how many migrations were made.
func (t *Tx) countMigrations() (n int, err error) {
	err = Each(t.Ctx, t.SQL, func(scan func(...any) error) error {
		var text string
		if err := scan(&text); err != nil {
			return err
		}
		n, err = strconv.Atoi(text)
		return err
	}, "SELECT value FROM meta WHERE key = $1", metaSchema)
	return n, t.DB.Fault(err)
}

func (t *Tx) SetMeta(key, value string) error {
	_, err := t.SQL.ExecContext(t.Ctx, "INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value", key, value)
	return t.DB.Fault(err)
}

// usageTables makes the tables of usage, and adds the columns that they lack.
func (t *Tx) usageTables() error {
	if err := t.Define(schema.CreateGroups()); err != nil {
		return err
	}
	if err := t.Define("CREATE UNIQUE INDEX IF NOT EXISTS group_day_key ON group_day ({group})"); err != nil {
		return err
	}
	if err := t.complete("group_day", append([]string{"minute"}, schema.GroupKeys...), schema.GroupColumns(), schema.Days); err != nil {
		return err
	}
	kept, err := t.Ints("SELECT day FROM kept")
	if err != nil {
		return err
	}
	for _, s := range []*schema.Layout{schema.UsageLayout, schema.NodeLayout} {
		err := errors.Join(t.table(s, s.HourTable(), schema.Hours), t.table(s, s.DayTable(), schema.Days))
		for _, day := range kept {
			err = errors.Join(err, t.table(s, s.MinuteTable(day), schema.Minutes))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// table makes a table of usage, or completes it.
func (t *Tx) table(s *schema.Layout, table string, v schema.Level) error {
	if err := t.Define(s.Create(table, v)); err != nil {
		return err
	}
	if err := t.indexRevs(s, table); err != nil {
		return err
	}
	return t.complete(table, []string{"minute", s.Key}, s.Columns, v)
}

// complete adds to the table the columns that it lacks. One that nobody knows
// is of a newer program, which counts on it in every row.
func (t *Tx) complete(table string, keys []string, cols []schema.Column, v schema.Level) error {
	rows, err := t.SQL.QueryContext(t.Ctx, "SELECT * FROM "+table+" WHERE minute < 0")
	if err != nil {
		return t.DB.Fault(err)
	}
	have, err := rows.Columns()
	if err = errors.Join(err, rows.Close()); err != nil {
		return t.DB.Fault(err)
	}
	for _, name := range have {
		if !slices.Contains(keys, name) && !slices.ContainsFunc(cols, func(c schema.Column) bool { return c.Name == name }) {
			return newer(fmt.Sprintf("table %s has a column %s that this program does not know", table, name))
		}
	}
	for _, c := range cols {
		if !slices.Contains(have, c.Name) {
			if err := t.Define("ALTER TABLE " + table + " ADD COLUMN " + c.Define(v)); err != nil {
				return err
			}
		}
	}
	return nil
}

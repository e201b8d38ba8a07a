package db

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/store/ledger/schema"
)

// The ledger's own keys in table meta.
const (
	metaSchema = "ledger.schema" // number of applied migrations
	metaEpoch  = "ledger.epoch"
)

// migrate brings the schema up to date in one transaction. SQLite cannot replace a table that others refer to while it
// enforces references, and changes that only between transactions.
func (db *DB) migrate(ctx context.Context) (err error) {
	if db.Conn != nil {
		enforce := func(on int) error {
			_, err := db.Conn.ExecContext(ctx, fmt.Sprintf("PRAGMA foreign_keys = %d", on))
			return db.Fault(err)
		}
		if err := enforce(0); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, enforce(1)) }()
	}
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
	if made > SchemaVersion() {
		return newerError(fmt.Sprintf("its schema has version %d, this program supports %d", made, SchemaVersion()))
	}
	for i, step := range schema.Migrations[made:] {
		err := t.Define(step.Text)
		switch {
		case err != nil:
		case step.Name == "0012_within.sql":
			err = t.moveNestedDays()
		case step.Name == "0021_versions.sql":
			err = t.allowVersions()
		}
		if err == nil {
			err = t.SetMeta(metaSchema, strconv.Itoa(made+i+1))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", step.Name, err)
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
	return t.ensureUsageTables()
}

// moveNestedDays gives the rows of nested days the keys of rows within the host. Sums that are
// folded in part are removed, so that they are summed from their beginning: progress is by key.
func (t *Tx) moveNestedDays() error {
	days, err := t.Ints("SELECT DISTINCT minute FROM within_day ORDER BY minute")
	if err != nil || len(days) == 0 {
		return err
	}
	kept, err := t.Ints("SELECT day FROM kept")
	if err != nil {
		return err
	}
	for _, s := range []*schema.Layout{schema.UsageLayout, schema.NodeLayout} {
		of := "SELECT w.id FROM workload w JOIN within_day x ON x.node = w.node WHERE x.minute = %[3]d"
		host := "SELECT max(x.host) FROM workload w JOIN within_day x ON x.node = w.node WHERE x.minute = %[3]d AND w.id = %[1]s.%[2]s"
		if s == schema.NodeLayout {
			of = "SELECT x.node FROM within_day x WHERE x.minute = %[3]d"
			host = "SELECT max(x.host) FROM within_day x WHERE x.minute = %[3]d AND x.node = %[1]s.%[2]s"
		}
		for _, day := range days {
			tables := []string{s.HourTable(), s.DayTable()}
			if slices.Contains(kept, day) {
				tables = append(tables, s.MinuteTable(day))
			}
			for _, table := range tables {
				err := t.Define(fmt.Sprintf("UPDATE %[1]s SET %[2]s = %[2]s + ("+host+") * %[5]d WHERE minute >= %[3]d AND minute < %[4]d AND %[2]s IN ("+of+")",
					table, s.Key, day, day+schema.DayMinutes, int64(schema.FirstWithin)))
				if err != nil {
					return err
				}
			}
		}
		for _, v := range []schema.Level{schema.Hours, schema.Days} {
			err := t.Define(fmt.Sprintf("DELETE FROM %s WHERE minute = (SELECT %s_mark FROM counter)", schema.Range{Level: v}.Table(s), v.Name()))
			if err != nil {
				return err
			}
		}
	}
	return t.Define("UPDATE counter SET hour_workload = 0, hour_node = 0, day_workload = 0, day_node = 0")
}

// allowVersions allows several rows of a workload, that begin at different minutes. SQLite can only do so by replacing
// the table.
func (t *Tx) allowVersions() error {
	if !t.DB.IsSQLite() {
		if err := t.Define("ALTER TABLE workload DROP CONSTRAINT workload_node_short_key"); err != nil {
			return err
		}
	} else if err := t.replaceTable("workload", ",\n\tUNIQUE (node, short)", ""); err != nil {
		return err
	}
	return errors.Join(t.Define("CREATE UNIQUE INDEX workload_version ON workload (node, short, from_minute)"),
		t.Define("CREATE INDEX workload_version_of ON workload (version_of) WHERE version_of <> 0"))
}

// replaceTable replaces a table of SQLite by one with the same rows, whose definition has another text in the place of
// one.
func (t *Tx) replaceTable(name, text, by string) error {
	var was string
	err := t.SQL.QueryRowContext(t.Ctx, "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = $1", name).Scan(&was)
	if err != nil {
		return t.DB.Fault(err)
	}
	_, columns, _ := strings.Cut(was, "(")
	if !strings.Contains(columns, text) {
		return fmt.Errorf("table %s is not as an earlier version made it: %s: %w", name, was, fault.ErrUnsupported)
	}
	var again []string // its indexes
	err = Each(t.Ctx, t.SQL, func(scan func(...any) error) error {
		var index string
		err := scan(&index)
		again = append(again, index)
		return err
	}, "SELECT sql FROM sqlite_schema WHERE type = 'index' AND tbl_name = $1 AND sql IS NOT NULL ORDER BY name", name)
	if err != nil {
		return t.DB.Fault(err)
	}
	for _, statement := range slices.Concat([]string{
		"CREATE TABLE replaced (" + strings.Replace(columns, text, by, 1),
		"INSERT INTO replaced SELECT * FROM " + name,
		"DROP TABLE " + name,
		"ALTER TABLE replaced RENAME TO " + name,
	}, again) {
		if err := t.Define(statement); err != nil {
			return err
		}
	}
	return nil
}

func newerError(why string) error {
	return fault.WithHint(fmt.Errorf("%s: %w", why, fault.ErrUnsupported),
		"a newer mete wrote it: run that version, or restore an older copy")
}

// countMigrations returns the number of applied migrations.
func (t *Tx) countMigrations() (n int, err error) {
	err = t.SQL.QueryRowContext(t.Ctx, "SELECT coalesce(max(value), '0') FROM meta WHERE key = $1", metaSchema).Scan(&n)
	return n, t.DB.Fault(err)
}

func (t *Tx) SetMeta(key, value string) error {
	_, err := t.SQL.ExecContext(t.Ctx, "INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value", key, value)
	return t.DB.Fault(err)
}

// ensureUsageTables creates the tables of usage, and adds missing columns.
func (t *Tx) ensureUsageTables() error {
	if err := t.Define(schema.CreateGroups()); err != nil {
		return err
	}
	if err := t.addMissingColumns("group_day", append([]string{"minute"}, schema.GroupKeys...), schema.GroupColumns(), schema.Days); err != nil {
		return err
	}
	if err := t.Define("CREATE UNIQUE INDEX IF NOT EXISTS group_day_key ON group_day ({group})"); err != nil {
		return err
	}
	kept, err := t.Ints("SELECT day FROM kept")
	if err != nil {
		return err
	}
	for _, s := range []*schema.Layout{schema.UsageLayout, schema.NodeLayout} {
		err := errors.Join(t.ensureTable(s, s.HourTable(), schema.Hours), t.ensureTable(s, s.DayTable(), schema.Days))
		for _, day := range kept {
			err = errors.Join(err, t.ensureTable(s, s.MinuteTable(day), schema.Minutes))
		}
		if err != nil {
			return err
		}
	}
	return t.indexRevs("connections", "workload")
}

// ensureTable creates a table of usage, or adds its missing columns.
func (t *Tx) ensureTable(s *schema.Layout, table string, v schema.Level) error {
	if err := t.Define(s.Create(table, v)); err != nil {
		return err
	}
	if err := t.indexRevs(table, s.Key); err != nil {
		return err
	}
	return t.addMissingColumns(table, []string{"minute", s.Key}, s.Columns, v)
}

// addMissingColumns adds the missing columns to a table. An unknown column was added by a newer program that
// relies on it in every row.
func (t *Tx) addMissingColumns(table string, keys []string, cols []schema.Column, v schema.Level) error {
	have, err := columnsOf(t.Ctx, t.SQL, table)
	if err != nil {
		return t.DB.Fault(err)
	}
	for _, name := range have {
		if !slices.Contains(keys, name) && !slices.ContainsFunc(cols, func(c schema.Column) bool { return c.Name == name }) {
			return newerError(fmt.Sprintf("table %s has unknown column %s", table, name))
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

// columnsOf returns the names of the columns of a table of usage.
func columnsOf(ctx context.Context, q Queryer, table string) ([]string, error) {
	rows, err := q.QueryContext(ctx, "SELECT * FROM "+table+" WHERE minute < 0")
	if err != nil {
		return nil, err
	}
	names, err := rows.Columns()
	return names, errors.Join(err, rows.Close())
}

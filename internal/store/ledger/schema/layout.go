// Package schema defines how a ledger is stored: tables and columns, rows as values, ranges of
// minutes, hours and days, migrations, and the differences between SQLite and PostgreSQL.
package schema

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/usage"
)

// A MergeRule says how a column combines when two rows are merged.
type MergeRule uint8

const (
	MergeSum    MergeRule = iota // amounts
	MergeMax                     // peaks
	MergeOr                      // sets
	MergeLatest                  // rev
)

// A Column is a column of a table of usage.
type Column struct {
	Name   string
	Merge  MergeRule
	Signed bool // may be negative
}

// A Layout is what the tables of one kind of usage have in common. All columns are integers; the
// first two are the first minute of the row's span and the key, and form the primary key.
type Layout struct {
	Key     string
	Columns []Column // after minute and key; rev is first
}

// A Level is the length of a row's span.
type Level uint8

const (
	Minutes Level = iota
	Hours
	Days
)

const (
	HourMinutes = 60
	DayMinutes  = 24 * 60
)

// Width returns the span of a row in minutes.
func (l Level) Width() int64 { return [...]int64{1, HourMinutes, DayMinutes}[l] }

// MinuteBits is the maximum size of an amount in a row of minutes: 60 of them fit an hour, so
// folding hours cannot overflow, and amounts that could are refused when booked. Old windows come
// in pieces of an hour or a day, stored in their first minute, so days cannot be guaranteed in the
// same way: 2^57 is 1.6 TiB of memory for a day. Days saturate at 63 bits, which is 100 TiB.
const MinuteBits = 57

// UsageLayout describes tables of what workloads used, NodeLayout tables of what nodes had.
var (
	UsageLayout = &Layout{Key: "workload", Columns: slices.Concat(leadingColumns(), ResourceColumns())}
	NodeLayout  = &Layout{Key: "node", Columns: slices.Concat(leadingColumns(), nodeColumns(), ResourceColumns())}
)

// Column indexes common to both layouts.
const (
	ColRev = iota
	ColPresent
	ColUncertainty     // of resources below 32
	ColUncertaintyHigh // of the others
	ColCovered
	ColRest
)

// Column indexes of NodeLayout. ColSkew is that of the first skew, in the order of [usage.Wholes].
const (
	colWhole = ColRest + 3
	ColSkew  = colWhole + len(usage.Wholes)
	colTotal = ColSkew + len(usage.Wholes)
)

func leadingColumns() []Column {
	return []Column{{Name: "rev", Merge: MergeLatest}, {Name: "present", Merge: MergeOr}, {Name: "rough", Merge: MergeOr}, {Name: "rough_high", Merge: MergeOr}, {Name: "covered_ms"}}
}

func nodeColumns() []Column {
	cols := []Column{{Name: "cpus", Merge: MergeMax}, {Name: "violations"}, {Name: "lost"}}
	for _, r := range usage.Wholes {
		cols = append(cols, Column{Name: "whole_" + r.String()})
	}
	for _, r := range usage.Wholes {
		cols = append(cols, Column{Name: "skew_" + r.String(), Signed: true})
	}
	return cols
}

// FirstResource is the index of the first resource's column; those of all resources are last.
func (l *Layout) FirstResource() int {
	if l == NodeLayout {
		return colTotal
	}
	return ColRest
}

// ResourceColumns returns the columns of all resources in order: resource r has index r-1.
func ResourceColumns() []Column {
	var cols []Column
	usage.All.Each(func(r usage.Resource) {
		c := Column{Name: r.String()}
		if r.Detail().Kind == usage.Peak {
			c.Merge = MergeMax
		}
		cols = append(cols, c)
	})
	return cols
}

// ColumnList returns all columns as an SQL list, minute and key included.
func (l *Layout) ColumnList() string {
	names := []string{"minute", l.Key}
	for _, c := range l.Columns {
		names = append(names, c.Name)
	}
	return strings.Join(names, ", ")
}

func (l *Layout) HourTable() string { return l.prefix() + "hour" }
func (l *Layout) DayTable() string  { return l.prefix() + "day" }

// LevelOf returns the level of the rows of a table.
func (l *Layout) LevelOf(table string) Level {
	switch table {
	case l.HourTable():
		return Hours
	case l.DayTable():
		return Days
	}
	return Minutes
}

// MinuteTable returns the table of minutes of the day that begins with minute day.
func (l *Layout) MinuteTable(day int64) string {
	return l.prefix() + "minute_" + time.UnixMilli(day*60_000).UTC().Format("20060102")
}

func (l *Layout) prefix() string {
	if l == NodeLayout {
		return "node_"
	}
	return ""
}

func UsageMinuteTable(day int64) string { return UsageLayout.MinuteTable(day) }
func NodeMinuteTable(day int64) string  { return NodeLayout.MinuteTable(day) }

// Define returns the column's definition for CREATE TABLE.
func (c Column) Define(v Level) string {
	var check string
	switch {
	case c.Merge == MergeOr || c.Merge == MergeLatest || c.Signed && v != Minutes:
	case c.Signed:
		check = fmt.Sprintf(" CHECK (abs(%s) >> %d = 0)", c.Name, MinuteBits)
	case v == Minutes:
		check = fmt.Sprintf(" CHECK (%s >> %d = 0)", c.Name, MinuteBits)
	default:
		check = fmt.Sprintf(" CHECK (%s >= 0)", c.Name)
	}
	return c.Name + " {int} NOT NULL DEFAULT 0" + check
}

// Create returns the statement that creates a table, with placeholders of the schema files.
func (l *Layout) Create(table string, v Level) string {
	var b strings.Builder
	fmt.Fprintf(&b, "CREATE TABLE IF NOT EXISTS %s (\n\tminute {int} NOT NULL,\n\t%s {int} NOT NULL,\n", table, l.Key)
	for _, c := range l.Columns {
		fmt.Fprintf(&b, "\t%s,\n", c.Define(v))
	}
	fmt.Fprintf(&b, "\tPRIMARY KEY (minute, %s)\n) {keyed}", l.Key)
	return b.String()
}

// GroupKeys are the columns, beside minute, by which group_day sums.
var GroupKeys = []string{"cluster", "namespace", "job", "username", "project", "kind", "pool"}

// GroupColumns returns the numeric columns of group_day. An amount is hi * 2^32 + lo: those of a
// large group do not fit 64 bits.
func GroupColumns() []Column {
	cols := leadingColumns()[ColPresent:]
	for _, c := range ResourceColumns() {
		cols = append(cols, Column{Name: c.Name + "_hi"}, Column{Name: c.Name + "_lo"})
	}
	return cols
}

func CreateGroups() string {
	var b strings.Builder
	b.WriteString("CREATE TABLE IF NOT EXISTS group_day (\n\tminute {int} NOT NULL")
	for _, k := range GroupKeys {
		fmt.Fprintf(&b, ",\n\t%s text NOT NULL", k)
	}
	for _, c := range GroupColumns() {
		fmt.Fprintf(&b, ",\n\t%s {int} NOT NULL DEFAULT 0", c.Name)
	}
	b.WriteString("\n) {strict}")
	return b.String()
}

// MergeClause returns the conflict clause that adds a row to an existing one. A sum that overflows
// saturates if saturates is set; otherwise the database refuses it.
func (l *Layout) MergeClause(table string, d *Dialect, saturates bool) string {
	var sets []string
	for _, c := range l.Columns {
		sets = append(sets, c.merge(table+"."+c.Name, "excluded."+c.Name, d, saturates))
	}
	return fmt.Sprintf(" ON CONFLICT (minute, %s) DO UPDATE SET %s", l.Key, strings.Join(sets, ", "))
}

// merge returns the assignment that merges the value b into the value a of the column.
func (c Column) merge(a, b string, d *Dialect, saturates bool) string {
	var v string
	switch {
	case c.Merge == MergeSum && saturates:
		v = fmt.Sprintf("CASE WHEN %[2]s > 0 AND %[1]s > %[3]d - %[2]s THEN %[3]d WHEN %[2]s < 0 AND %[1]s < -%[3]d - %[2]s THEN -%[3]d ELSE %[1]s + %[2]s END",
			a, b, int64(math.MaxInt64))
	case c.Merge == MergeSum:
		v = a + " + " + b
	case c.Merge == MergeMax:
		v = d.Greatest + "(" + a + ", " + b + ")"
	case c.Merge == MergeOr:
		v = a + " | " + b
	case c.Merge == MergeLatest:
		v = b
	}
	return c.Name + " = " + v
}

// RowStatements returns the statements of SQLite that add a row to an existing one, and that insert one. Both have
// the same parameters: the columns, minute and key.
func (l *Layout) RowStatements(table string) (update, insert string) {
	var names, sets []string
	for _, c := range l.Columns {
		names, sets = append(names, c.Name), append(sets, c.merge(c.Name, "?", SQLite, false))
	}
	update = fmt.Sprintf("UPDATE %s SET %s WHERE minute = ? AND %s = ?", table, strings.Join(sets, ", "), l.Key)
	insert = fmt.Sprintf("INSERT INTO %s (%s, minute, %s) VALUES (%s?, ?)", table, strings.Join(names, ", "), l.Key, strings.Repeat("?, ", len(names)))
	return update, insert
}

// Name returns the level's prefix in column names of table counter.
func (l Level) Name() string {
	if l == Days {
		return "day"
	}
	return "hour"
}

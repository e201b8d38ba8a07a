// Package schema says how a ledger stands in a database: tables and their columns,
// rows as values, ranges of minutes, hours and days, migrations, and what differs
// between SQLite and PostgreSQL.
package schema

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/usage"
)

// MergeRule says what becomes of a column when two rows become one.
type MergeRule uint8

const (
	MergeSum    MergeRule = iota // amounts
	MergeMax                     // peaks
	MergeOr                      // sets
	MergeLatest                  // rev
)

// A Column is one of a table of usage.
type Column struct {
	Name   string
	Merge  MergeRule
	Signed bool // may be negative
}

// A Layout is what the tables of one kind of usage have in common. All columns
// are integers; the first two are the minute with which a row's span begins
// and the key, and together they are the primary key.
type Layout struct {
	Key     string
	Columns []Column // after minute and key; rev is the first
}

// A Level is a length of span for which there are rows.
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

// Width is how many minutes a row of the level spans.
func (v Level) Width() int64 { return [...]int64{1, HourMinutes, DayMinutes}[v] }

// MinuteBits is how many bits an amount of a row of minutes may have: 60 of
// them fit an hour, so that folding hours cannot overflow, and what could not
// be folded is refused when it is booked. As old windows come in pieces of an
// hour or a day, which stand in their first minute, there is no room to make
// sure of the same for days: 2^57 are 1.6 TiB of memory for a day. There what
// would not fit 63 bits, which are 100 TiB, stays at the largest value.
const MinuteBits = 57

// UsageLayout is of tables of what workloads used, NodeLayout of tables of what
// nodes had.
var (
	UsageLayout = &Layout{Key: "workload", Columns: slices.Concat(leadingColumns(), ResourceColumns())}
	NodeLayout  = &Layout{Key: "node", Columns: slices.Concat(leadingColumns(), nodeColumns(), ResourceColumns())}
)

// Where the columns stand in the rows of both shapes.
const (
	ColRev = iota
	ColPresent
	ColUncertainty
	ColCovered
	ColRest
)

func leadingColumns() []Column {
	return []Column{{Name: "rev", Merge: MergeLatest}, {Name: "present", Merge: MergeOr}, {Name: "rough", Merge: MergeOr}, {Name: "covered_ms"}}
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

// ResourceColumns are those of the one list of resources, in its order: that of
// r is the (r-1)th.
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

// ColumnList are the columns of s as SQL lists them, minute and key included.
func (s *Layout) ColumnList() string {
	names := []string{"minute", s.Key}
	for _, c := range s.Columns {
		names = append(names, c.Name)
	}
	return strings.Join(names, ", ")
}

// HourTable and DayTable are where the shape's hours and days are.
func (s *Layout) HourTable() string { return s.prefix() + "hour" }
func (s *Layout) DayTable() string  { return s.prefix() + "day" }

// LevelOf is the level of the rows of a table.
func (s *Layout) LevelOf(table string) Level {
	switch table {
	case s.HourTable():
		return Hours
	case s.DayTable():
		return Days
	}
	return Minutes
}

// MinuteTable is where the minutes of the day are that begins with minute day.
func (s *Layout) MinuteTable(day int64) string {
	return s.prefix() + "minute_" + time.Unix(day*60, 0).UTC().Format("20060102")
}

func (s *Layout) prefix() string {
	if s == NodeLayout {
		return "node_"
	}
	return ""
}

func UsageMinuteTable(day int64) string { return UsageLayout.MinuteTable(day) }
func NodeMinuteTable(day int64) string  { return NodeLayout.MinuteTable(day) }

// Define is what stands for c in the definition of a table.
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

// Create is the statement that makes a table of the shape, in the words of the
// schema files.
func (s *Layout) Create(table string, v Level) string {
	var b strings.Builder
	fmt.Fprintf(&b, "CREATE TABLE IF NOT EXISTS %s (\n\tminute {int} NOT NULL,\n\t%s {int} NOT NULL,\n", table, s.Key)
	for _, c := range s.Columns {
		fmt.Fprintf(&b, "\t%s,\n", c.Define(v))
	}
	fmt.Fprintf(&b, "\tPRIMARY KEY (minute, %s)\n) {keyed}", s.Key)
	return b.String()
}

// GroupKeys are the columns by which group_day sums, beside minute.
var GroupKeys = []string{"cluster", "namespace", "job", "username", "project", "kind", "pool"}

// GroupColumns are the columns of group_day that are numbers. An amount is
// hi * 2^32 + lo: those of a large group do not fit 64 bits.
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

// MergeClause is the clause that adds a row to the one that is there already. Where a
// sum does not fit it stays at the largest value if it saturates, else the
// database refuses it.
func (s *Layout) MergeClause(table string, d *Dialect, saturates bool) string {
	var sets []string
	for _, c := range s.Columns {
		a, b := table+"."+c.Name, "excluded."+c.Name
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
		sets = append(sets, c.Name+" = "+v)
	}
	return fmt.Sprintf(" ON CONFLICT (minute, %s) DO UPDATE SET %s", s.Key, strings.Join(sets, ", "))
}

// Name is the level's in the names of the columns of table counter.
func (v Level) Name() string {
	if v == Days {
		return "day"
	}
	return "hour"
}

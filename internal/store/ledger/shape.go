package ledger

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/usage"
)

// how says what becomes of a column when two rows become one.
type how uint8

const (
	add     how = iota // amounts
	highest            // peaks
	bits               // sets
	latest             // rev
)

// A column is one of a table of usage.
type column struct {
	name   string
	how    how
	signed bool // may be negative
}

// A shape is what the tables of one kind of usage have in common. All columns
// are integers; the first two are the minute with which a row's span begins
// and the key, and together they are the primary key.
type shape struct {
	key  string
	cols []column // after minute and key; rev is the first
}

// A level is a length of span for which there are rows.
type level uint8

const (
	minutes level = iota
	hours
	days
)

const (
	hourMinutes = 60
	dayMinutes  = 24 * 60
)

// width is how many minutes a row of the level spans.
func (v level) width() int64 { return [...]int64{1, hourMinutes, dayMinutes}[v] }

// minuteBits is how many bits an amount of a row of minutes may have: 60 of
// them fit an hour, so that folding hours cannot overflow, and what could not
// be folded is refused when it is booked. As old windows come in pieces of an
// hour or a day, which stand in their first minute, there is no room to make
// sure of the same for days: 2^57 are 1.6 TiB of memory for a day. There what
// would not fit 63 bits, which are 100 TiB, stays at the largest value.
const minuteBits = 57

// usageShape is of tables of what workloads used, nodeShape of tables of what
// nodes had.
var (
	usageShape = &shape{key: "workload", cols: slices.Concat(leading(), resourceColumns())}
	nodeShape  = &shape{key: "node", cols: slices.Concat(leading(), nodeColumns(), resourceColumns())}
)

// Where the columns stand in the rows of both shapes.
const (
	colRev = iota
	colPresent
	colRough
	colCovered
	colRest
)

func leading() []column {
	return []column{{name: "rev", how: latest}, {name: "present", how: bits}, {name: "rough", how: bits}, {name: "covered_ms"}}
}

func nodeColumns() []column {
	cols := []column{{name: "cpus", how: highest}, {name: "violations"}, {name: "lost"}}
	for _, r := range usage.Wholes {
		cols = append(cols, column{name: "whole_" + r.String()})
	}
	for _, r := range usage.Wholes {
		cols = append(cols, column{name: "skew_" + r.String(), signed: true})
	}
	return cols
}

// resourceColumns are those of the one list of resources, in its order: that of
// r is the (r-1)th.
func resourceColumns() []column {
	var cols []column
	usage.All.Each(func(r usage.Resource) {
		c := column{name: r.String()}
		if r.Detail().Kind == usage.Peak {
			c.how = highest
		}
		cols = append(cols, c)
	})
	return cols
}

// names are the columns of s as SQL lists them, minute and key included.
func (s *shape) names() string {
	names := []string{"minute", s.key}
	for _, c := range s.cols {
		names = append(names, c.name)
	}
	return strings.Join(names, ", ")
}

// hourTable and dayTable are where the shape's hours and days are.
func (s *shape) hourTable() string { return s.prefix() + "hour" }
func (s *shape) dayTable() string  { return s.prefix() + "day" }

// levelOf is the level of the rows of a table.
func (s *shape) levelOf(table string) level {
	switch table {
	case s.hourTable():
		return hours
	case s.dayTable():
		return days
	}
	return minutes
}

// minuteTable is where the minutes of the day are that begins with minute day.
func (s *shape) minuteTable(day int64) string {
	return s.prefix() + "minute_" + time.Unix(day*60, 0).UTC().Format("20060102")
}

func (s *shape) prefix() string {
	if s == nodeShape {
		return "node_"
	}
	return ""
}

func minuteTable(day int64) string     { return usageShape.minuteTable(day) }
func nodeMinuteTable(day int64) string { return nodeShape.minuteTable(day) }

// define is what stands for c in the definition of a table.
func (c column) define(v level) string {
	var check string
	switch {
	case c.how == bits || c.how == latest || c.signed && v != minutes:
	case c.signed:
		check = fmt.Sprintf(" CHECK (abs(%s) >> %d = 0)", c.name, minuteBits)
	case v == minutes:
		check = fmt.Sprintf(" CHECK (%s >> %d = 0)", c.name, minuteBits)
	default:
		check = fmt.Sprintf(" CHECK (%s >= 0)", c.name)
	}
	return c.name + " {int} NOT NULL DEFAULT 0" + check
}

// create is the statement that makes a table of the shape, in the words of the
// schema files.
func (s *shape) create(table string, v level) string {
	var b strings.Builder
	fmt.Fprintf(&b, "CREATE TABLE IF NOT EXISTS %s (\n\tminute {int} NOT NULL,\n\t%s {int} NOT NULL,\n", table, s.key)
	for _, c := range s.cols {
		fmt.Fprintf(&b, "\t%s,\n", c.define(v))
	}
	fmt.Fprintf(&b, "\tPRIMARY KEY (minute, %s)\n) {keyed}", s.key)
	return b.String()
}

// groupKeys are the columns by which group_day sums, beside minute.
var groupKeys = []string{"cluster", "namespace", "job", "username", "project", "kind", "pool"}

// groupColumns are the columns of group_day that are numbers. An amount is
// hi * 2^32 + lo: those of a large group do not fit 64 bits.
func groupColumns() []column {
	cols := leading()[colPresent:]
	for _, c := range resourceColumns() {
		cols = append(cols, column{name: c.name + "_hi"}, column{name: c.name + "_lo"})
	}
	return cols
}

func createGroups() string {
	var b strings.Builder
	b.WriteString("CREATE TABLE IF NOT EXISTS group_day (\n\tminute {int} NOT NULL")
	for _, k := range groupKeys {
		fmt.Fprintf(&b, ",\n\t%s text NOT NULL", k)
	}
	for _, c := range groupColumns() {
		fmt.Fprintf(&b, ",\n\t%s {int} NOT NULL DEFAULT 0", c.name)
	}
	b.WriteString("\n) {strict}")
	return b.String()
}

// merge is the clause that adds a row to the one that is there already. Where a
// sum does not fit it stays at the largest value if it saturates, else the
// database refuses it.
func (s *shape) merge(table string, d *dialect, saturates bool) string {
	var sets []string
	for _, c := range s.cols {
		a, b := table+"."+c.name, "excluded."+c.name
		var v string
		switch {
		case c.how == add && saturates:
			v = fmt.Sprintf("CASE WHEN %[2]s > 0 AND %[1]s > %[3]d - %[2]s THEN %[3]d WHEN %[2]s < 0 AND %[1]s < -%[3]d - %[2]s THEN -%[3]d ELSE %[1]s + %[2]s END",
				a, b, int64(math.MaxInt64))
		case c.how == add:
			v = a + " + " + b
		case c.how == highest:
			v = d.greatest + "(" + a + ", " + b + ")"
		case c.how == bits:
			v = a + " | " + b
		case c.how == latest:
			v = b
		}
		sets = append(sets, c.name+" = "+v)
	}
	return fmt.Sprintf(" ON CONFLICT (minute, %s) DO UPDATE SET %s", s.key, strings.Join(sets, ", "))
}

// fold is the statement that adds rows of a finer table to a coarser one, where
// they begin at $1; their rev is $2. It takes the rows of keys [$3, $4) at the n
// minutes from $5 on: so each minute is looked up by the primary key.
func (s *shape) fold(from, to string, n int, d *dialect) string {
	saturates := to == s.dayTable()
	var group string
	switch {
	case d.folds:
		group = " GROUP BY " + s.key
	case !saturates:
		// What is alike in its bits is summed; the few sums of a key are merged.
		group = " GROUP BY " + s.key + ", present, rough"
	}
	var cols []string
	for _, c := range s.cols[1:] {
		switch {
		case group == "" || c.how == bits && !d.folds:
			cols = append(cols, c.name)
		case c.how == bits:
			cols = append(cols, "bit_or("+c.name+")")
		case c.how == highest:
			cols = append(cols, "max("+c.name+")")
		case d.folds:
			cols = append(cols, fmt.Sprintf("greatest(least(sum(%s), %d), -%[2]d)", c.name, int64(math.MaxInt64)))
		default:
			cols = append(cols, "sum("+c.name+")")
		}
	}
	return fmt.Sprintf("INSERT INTO %s (%s) SELECT CAST($1 AS {int}), %s, CAST($2 AS {int}), %s FROM %s WHERE %s%s%s",
		to, s.names(), s.key, strings.Join(cols, ", "), from, s.keys(3, n), group, s.merge(to, d, saturates))
}

// keys is the condition for the keys [$i, $i+1) at the n minutes from $i+2 on.
func (s *shape) keys(i, n int) string {
	places := make([]string, n)
	for j := range places {
		places[j] = fmt.Sprintf("$%d", i+2+j)
	}
	return fmt.Sprintf("%[1]s >= $%[2]d AND %[1]s < $%[3]d AND minute IN (%[4]s)", s.key, i, i+1, strings.Join(places, ", "))
}

// saturated counts the rows of day $1 with keys [$2, $3) in which a sum did not
// fit.
func (s *shape) saturated() string {
	var where []string
	for _, c := range s.cols[colCovered:] {
		where = append(where, fmt.Sprintf("abs(%s) = %d", c.name, int64(math.MaxInt64)))
	}
	return fmt.Sprintf("SELECT count(*) FROM %s WHERE minute = $1 AND %[2]s >= $2 AND %[2]s < $3 AND (%[3]s)", s.dayTable(), s.key, strings.Join(where, " OR "))
}

// Two bits for each resource have to fit an int64.
var _ [32 - usage.Limit]struct{}

// thermometer turns qualities into bits whose OR is the worse: measured 00,
// apportioned 01, modelled 11. Absence is not in them.
func thermometer(present usage.Set, q usage.Qualities) int64 {
	const low = 0x5555555555555555
	h, l := uint64(q)>>1&low, uint64(q)&low
	rough := h | (h&l)<<1
	present.Each(func(r usage.Resource) {
		if q.Get(r) == usage.Absent {
			// Someone gave an amount and no quality: the worst is meant.
			rough |= 3 << (2 * r)
		}
	})
	return int64(rough)
}

// fromRough is the way back.
func fromRough(present usage.Set, rough int64) (q usage.Qualities) {
	present.Each(func(r usage.Resource) {
		q.Set(r, [...]usage.Quality{usage.Measured, usage.Apportioned, usage.Modelled, usage.Modelled}[uint64(rough)>>(2*r)&3])
	})
	return q
}

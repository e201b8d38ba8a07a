// Package check looks for contradictions within a ledger.
package check

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// maxFaults limits how many faults of each kind Check reports.
const maxFaults = 100

// A Checker checks a ledger for consistency.
type Checker struct{ db *db.DB }

func New(database *db.DB) *Checker { return &Checker{database} }

// Check returns one line for each contradiction:
//
// - balance: for each node and minute, whole + skew is the sum of the rows
// - hour, day: a row is the sum of the finer ones, where these are kept
// - groups: those of a day sum to the day's rows that are not within another node
// - booked: the booked ranges of a kernel run neither overlap nor adjoin
//
// It reads a day at a time, each from one snapshot, and blocks no writer. Rows of a downstream
// server may be out of balance while it sends.
func (c *Checker) Check(ctx context.Context) ([]string, error) {
	run := &checkRun{faults: map[string]int{}}
	for day := int64(0); ; day += schema.DayMinutes {
		err := c.db.View(ctx, func(v *db.View) (err error) {
			run.View = v
			if day, err = run.nextDay(day); err != nil || day == schema.MaxKey {
				return c.db.Fault(err)
			}
			return db.Wrap(c.db.Fault(run.checkDay(day)), "checking %s", schema.FormatMinute(day))
		})
		if err != nil {
			return nil, err
		}
		if day == schema.MaxKey {
			break
		}
	}
	err := c.db.View(ctx, func(v *db.View) error {
		run.View = v
		return db.Wrap(c.db.Fault(run.checkBooked()), "checking booked ranges")
	})
	if err != nil {
		return nil, err
	}
	return run.report, nil
}

type checkRun struct {
	*db.View
	report []string
	faults map[string]int // number of faults by kind
}

// count counts a fault and reports whether to list it.
func (c *checkRun) count(kind string) bool {
	c.faults[kind]++
	if c.faults[kind] == maxFaults+1 {
		c.report = append(c.report, kind+": more not shown")
	}
	return c.faults[kind] <= maxFaults
}

// nextDay returns the first day from the given one on that has rows.
func (c *checkRun) nextDay(from int64) (int64, error) {
	day, err := db.FirstMinute(c.Ctx, c.SQL, from, schema.UsageLayout.HourTable(), schema.NodeLayout.HourTable(), schema.UsageLayout.DayTable(), schema.NodeLayout.DayTable(), "group_day")
	if day < schema.MaxKey {
		day -= day % schema.DayMinutes
	}
	for _, d := range c.Days {
		if d >= from {
			return min(day, d), err
		}
	}
	return day, err
}

// checkBooked compares each booked range with the previous one of its kernel run.
func (c *checkRun) checkBooked() error {
	var last struct {
		run, to int64
		scope   string
	}
	return db.Each(c.Ctx, c.SQL, func(scan func(...any) error) error {
		var run, from, to int64
		var scope, boot string
		if err := scan(&run, &scope, &from, &to, &boot); err != nil {
			return err
		}
		if (to <= from || run == last.run && scope == last.scope && from <= last.to) && c.count("booked") {
			c.report = append(c.report, fmt.Sprintf("booked: run %d of boot %s, scope %s: the range from %d to %d ns does not begin after the previous one, which ends at %d ns", run, boot, scope, from, to, last.to))
		}
		last.run, last.scope, last.to = run, scope, to
		return nil
	}, "SELECT b.run, b.scope, b.from_ns, b.to_ns, k.boot FROM booked b JOIN kernel_run k ON k.id = b.run ORDER BY b.run, b.scope, b.from_ns")
}

func (c *checkRun) checkDay(day int64) error {
	for hour := day; hour < day+schema.DayMinutes && day >= c.MinuteFloor; hour += schema.HourMinutes {
		if err := c.checkBalance(hour); err != nil {
			return err
		}
		if err := c.checkSums(schema.Hours, hour); err != nil {
			return err
		}
	}
	if day >= c.HourFloor {
		if err := c.checkSums(schema.Days, day); err != nil {
			return err
		}
	}
	return c.checkGroups(day)
}

// A wideInt is hi * 2^32 + lo: sums may not fit 64 bits.
type wideInt struct{ hi, lo int64 }

func (a wideInt) add(b wideInt) wideInt {
	lo := a.lo&math.MaxUint32 + b.lo&math.MaxUint32
	return wideInt{a.hi + b.hi + a.lo>>32 + b.lo>>32 + lo>>32, lo & math.MaxUint32}
}

// toInt64 returns the amount, or false if it does not fit.
func (a wideInt) toInt64() (int64, bool) { return a.hi<<32 | a.lo, a.hi == a.hi<<32>>32 }

func (a wideInt) String() string {
	if v, ok := a.toInt64(); ok {
		return fmt.Sprint(v)
	}
	return fmt.Sprintf("%d * 2^32 + %d", a.hi, a.lo)
}

// sumHalves returns SQL for the two halves of the sum, or of the maximum, of a column.
func sumHalves(c schema.Column) string {
	if c.Merge == schema.MergeMax {
		return "0, max(" + c.Name + ")"
	}
	return fmt.Sprintf("CAST(sum(%[1]s >> 32) AS {int}), CAST(sum(%[1]s & 4294967295) AS {int})", c.Name)
}

// halves returns SQL for the two halves of a column of one row.
func halves(c schema.Column) string { return fmt.Sprintf("%[1]s >> 32, %[1]s & 4294967295", c.Name) }

// A total is one side of a comparison: the sum of its rows.
type total struct {
	rows, present, rough int64
	amounts              []wideInt
}

func (t *total) add(cols []schema.Column, present, rough int64, amounts []int64) {
	if t.rows == 0 {
		t.amounts = make([]wideInt, len(cols))
	}
	t.rows++
	t.present, t.rough = t.present|present, t.rough|rough
	for i, c := range cols {
		v := wideInt{}.add(wideInt{amounts[2*i], amounts[2*i+1]})
		if c.Merge != schema.MergeMax {
			v = v.add(t.amounts[i])
		} else if a := t.amounts[i]; cmp.Or(cmp.Compare(a.hi, v.hi), cmp.Compare(a.lo, v.lo)) > 0 {
			v = a
		}
		t.amounts[i] = v
	}
}

// A comparison holds both sides of one key: the finer rows and the coarser one.
type comparison struct {
	minute, id   int64
	fine, coarse total
}

// eachComparison calls f for each pair that the query yields. The query returns, ordered by minute
// and key: side (0 is the finer), minute, key, present, rough, and two halves of each column.
func (c *checkRun) eachComparison(cols []schema.Column, f func(*comparison), query string, args ...any) error {
	var p comparison
	var side, minute, id, present, rough int64
	amounts := make([]int64, 2*len(cols))
	into := []any{&side, &minute, &id, &present, &rough}
	for i := range amounts {
		into = append(into, &amounts[i])
	}
	done := func() {
		if p.fine.rows+p.coarse.rows > 0 {
			f(&p)
		}
	}
	err := db.Each(c.Ctx, c.SQL, func(scan func(...any) error) error {
		if err := scan(into...); err != nil {
			return err
		}
		if p.minute != minute || p.id != id {
			done()
			p = comparison{minute: minute, id: id}
		}
		t := &p.fine
		if side == 1 {
			t = &p.coarse
		}
		t.add(cols, present, rough, amounts)
		return nil
	}, c.DB.Expand(query), args...)
	if err == nil {
		done()
	}
	return err
}

// A finding is a fault of a key whose name is not looked up yet.
type finding struct {
	id   int64
	text string
}

// reportFaults appends the findings, naming their keys.
func (c *checkRun) reportFaults(what string, s *schema.Layout, found []finding) error {
	for _, f := range found {
		if !c.count(what) {
			return nil
		}
		query, name, short := "SELECT node_id, 0 FROM node WHERE id = $1", "", int64(0)
		if s == schema.UsageLayout {
			query = "SELECT n.node_id, w.short FROM workload w JOIN node n ON n.id = w.node WHERE w.id = $1"
		}
		id, within := schema.SplitKey(f.id)
		err := c.SQL.QueryRowContext(c.Ctx, query, id).Scan(&name, &short)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			name = fmt.Sprintf("%s %d, which does not exist", s.Key, id)
		case err != nil:
			return err
		case s == schema.UsageLayout:
			name = fmt.Sprintf("node %s, workload %016x", name, uint64(short))
		default:
			name = "node " + name
		}
		if within != 0 {
			name += fmt.Sprintf(" within node %d", within)
		}
		c.report = append(c.report, fmt.Sprintf("%s: %s: %s", what, name, f.text))
	}
	return nil
}

// checkBalance compares what nodes had in the minutes of an hour with the rows of their workloads.
func (c *checkRun) checkBalance(hour int64) error {
	if !c.hasMinutes(hour) {
		return nil
	}
	var cols []schema.Column
	var sums, wholes []string
	for _, r := range usage.Wholes {
		col := schema.Column{Name: r.String()}
		cols, sums = append(cols, col), append(sums, sumHalves(col))
		wholes = append(wholes, halves(schema.Column{Name: fmt.Sprintf("(whole_%[1]s + skew_%[1]s)", r)}))
	}
	day := hour - hour%schema.DayMinutes
	// By key of the node: rows within another node, and others, each have their own whole.
	key := fmt.Sprintf("(m.workload - %s + w.node)", schema.IDOf("m.workload"))
	query := fmt.Sprintf(`SELECT 0 AS side, m.minute AS minute, %[1]s AS id, 0 AS present, 0 AS rough, %[2]s FROM %[3]s m JOIN workload w ON w.id = %[4]s
		WHERE m.minute >= $1 AND m.minute < $2 GROUP BY m.minute, %[1]s
		UNION ALL SELECT 1, minute, node, 0, 0, %[5]s FROM %[6]s WHERE minute >= $1 AND minute < $2 ORDER BY minute, id`,
		key, strings.Join(sums, ", "), schema.UsageMinuteTable(day), schema.IDOf("m.workload"), strings.Join(wholes, ", "), schema.NodeMinuteTable(day))
	var found []finding
	err := c.eachComparison(cols, func(p *comparison) {
		for i, col := range cols {
			var rows, whole wideInt
			if p.fine.rows > 0 {
				rows = p.fine.amounts[i]
			}
			if p.coarse.rows > 0 {
				whole = p.coarse.amounts[i]
			}
			if rows != whole {
				found = append(found, finding{p.id, fmt.Sprintf("%s: %s: whole + skew is %s, the rows are %s", schema.FormatMinute(p.minute), col.Name, whole, rows)})
			}
		}
	}, query, hour, hour+schema.HourMinutes)
	if err != nil {
		return err
	}
	return c.reportFaults("balance", schema.NodeLayout, found)
}

// hasMinutes reports whether the day of minute has tables of minutes.
func (c *checkRun) hasMinutes(minute int64) bool {
	return slices.Contains(c.Days, minute-minute%schema.DayMinutes)
}

// checkSums compares the rows of an hour or day with the sums of the finer ones.
func (c *checkRun) checkSums(into schema.Level, at int64) error {
	if mark, _ := c.Mark(into); at > mark {
		return nil
	}
	if err := c.checkSumsOf(schema.UsageLayout, into, at); err != nil {
		return err
	}
	return c.checkSumsOf(schema.NodeLayout, into, at)
}

func (c *checkRun) checkSumsOf(s *schema.Layout, into schema.Level, at int64) error {
	to, from := schema.Range{Level: into, From: at, To: at + into.Width()}, schema.Range{Level: into - 1, From: at, To: at + into.Width()}
	cols := s.Columns[schema.ColCovered:]
	sums, own := make([]string, len(cols)), make([]string, len(cols))
	for i, col := range cols {
		sums[i], own[i] = sumHalves(col), halves(col)
	}
	query := fmt.Sprintf("SELECT 1 AS side, minute, %s AS id, present, rough, %s FROM %s WHERE minute = $1", s.Key, strings.Join(own, ", "), to.Table(s))
	args := []any{at}
	if into == schema.Days || c.hasMinutes(at) {
		// A row is stored under the first minute of its span.
		query = fmt.Sprintf("SELECT 0 AS side, CAST($1 AS {int}) AS minute, %[1]s AS id, present, rough, %[2]s FROM %[3]s WHERE minute >= $1 AND minute < $2 GROUP BY %[1]s, present, rough UNION ALL %[4]s",
			s.Key, strings.Join(sums, ", "), from.Table(s), query)
		args = append(args, at+into.Width())
	}
	var found []finding
	err := c.eachComparison(cols, func(p *comparison) {
		folded := c.IsFolded(into, s, schema.RowKey{Minute: at, ID: p.id})
		switch {
		case p.coarse.rows == 0 && !folded:
			return
		case p.coarse.rows == 0:
			found = append(found, finding{p.id, schema.FormatMinute(at) + ": missing, but finer rows exist"})
			return
		case p.fine.rows == 0 || !folded:
			found = append(found, finding{p.id, schema.FormatMinute(at) + ": present, but nothing was folded into it"})
			return
		case p.coarse.present != p.fine.present || p.coarse.rough != p.fine.rough:
			found = append(found, finding{p.id, schema.FormatMinute(at) + ": presence or quality differs from the finer rows"})
		}
		for i, col := range cols {
			have, want := p.coarse.amounts[i], p.fine.amounts[i]
			if v, _ := have.toInt64(); into == schema.Days && max(v, -v) == math.MaxInt64 {
				if _, ok := want.toInt64(); !ok || col.Signed {
					continue // saturated
				}
			}
			if have != want {
				found = append(found, finding{p.id, fmt.Sprintf("%s: %s is %s, the finer rows are %s", schema.FormatMinute(at), col.Name, have, want)})
			}
		}
	}, query+" ORDER BY id", args...)
	if err != nil {
		return err
	}
	return c.reportFaults(into.Name(), s, found)
}

// checkGroups compares the groups of a day with the day's rows.
func (c *checkRun) checkGroups(day int64) error {
	var stale int64
	err := c.SQL.QueryRowContext(c.Ctx, "SELECT count(*) FROM stale_day WHERE minute = $1", day).Scan(&stale)
	if err != nil || stale > 0 || day >= c.Day {
		return err
	}
	cols := schema.UsageLayout.Columns[schema.ColCovered:]
	sums, groups := make([]string, len(cols)), make([]string, len(cols))
	for i, col := range cols {
		sums[i] = sumHalves(col)
		switch {
		case i == 0:
			groups[i] = sums[i]
		case col.Merge == schema.MergeMax:
			groups[i] = fmt.Sprintf("0, max(%[1]s_hi * 4294967296 + %[1]s_lo)", col.Name)
		default:
			groups[i] = fmt.Sprintf("CAST(sum(%[1]s_hi) AS {int}), CAST(sum(%[1]s_lo) AS {int})", col.Name)
		}
	}
	query := fmt.Sprintf(`SELECT 0 AS side, minute, 0 AS id, 0 AS present, 0 AS rough, %s FROM day u WHERE minute = $1
		AND workload < %d GROUP BY minute
		UNION ALL SELECT 1, minute, 0, 0, 0, %s FROM group_day WHERE minute = $1 GROUP BY minute ORDER BY side`, strings.Join(sums, ", "), int64(schema.FirstWithin), strings.Join(groups, ", "))
	return c.eachComparison(cols, func(p *comparison) {
		for i, col := range cols {
			var rows, groups wideInt
			if p.fine.rows > 0 {
				rows = p.fine.amounts[i]
			}
			if p.coarse.rows > 0 {
				groups = p.coarse.amounts[i]
			}
			if rows != groups && c.count("groups") {
				c.report = append(c.report, fmt.Sprintf("groups: %s: %s is %s, the rows are %s", schema.FormatMinute(day), col.Name, groups, rows))
			}
		}
	}, query, day)
}

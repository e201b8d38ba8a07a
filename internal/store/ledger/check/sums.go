package check

import (
	"cmp"
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

// checkDay checks the rows of a day against each other.
func (c *checkRun) checkDay(day int64) error {
	if err := c.checkOwners(day); err != nil {
		return err
	}
	for hour := day; hour < day+schema.DayMinutes && day >= c.MinuteFloor && !c.incomplete[day]; hour += schema.HourMinutes {
		if c.hasMinutes(hour) {
			if err := c.checkBalance(schema.Range{Level: schema.Minutes, From: hour, To: hour + schema.HourMinutes}); err != nil {
				return err
			}
		}
		if err := c.checkSums(schema.Hours, hour); err != nil {
			return err
		}
	}
	// Rows that are the sums of balanced ones are balanced.
	if day >= c.HourFloor && !c.hasMinutes(day) {
		if err := c.checkBalance(schema.Range{Level: schema.Hours, From: day, To: min(day+schema.DayMinutes, c.Hour)}); err != nil {
			return err
		}
	}
	if day >= c.HourFloor {
		if err := c.checkSums(schema.Days, day); err != nil {
			return err
		}
		if err := c.checkConnections(day); err != nil {
			return err
		}
	} else if day < c.Day {
		if err := c.checkBalance(schema.Range{Level: schema.Days, From: day, To: day + schema.DayMinutes}); err != nil {
			return err
		}
	}
	return c.checkGroups(day)
}

// A wideInt is hi * 2^32 + lo: sums may not fit 64 bits.
type wideInt struct{ hi, lo int64 }

// newWideInt returns the one form of an amount, in which lo has 32 bits.
func newWideInt(hi, lo int64) wideInt { return wideInt{hi + lo>>32, lo & math.MaxUint32} }

func (a wideInt) add(b wideInt) wideInt { return newWideInt(a.hi+b.hi, a.lo+b.lo) }

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
	rows, present int64
	rough         usage.Uncertainty
	amounts       []wideInt
}

func (t *total) add(cols []schema.Column, present int64, rough usage.Uncertainty, amounts []int64) {
	if t.rows == 0 {
		t.amounts = make([]wideInt, len(cols))
	}
	t.rows++
	t.present, t.rough = t.present|present, t.rough.Or(rough)
	for i, c := range cols {
		v := newWideInt(amounts[2*i], amounts[2*i+1])
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
// and key: side (0 is the finer), minute, key, present, rough, rough_high, and two halves of each
// column.
func (c *checkRun) eachComparison(cols []schema.Column, f func(*comparison), query string, args ...any) error {
	var p comparison
	var side, minute, id, present int64
	var rough usage.Uncertainty
	amounts := make([]int64, 2*len(cols))
	into := []any{&side, &minute, &id, &present, &rough[0], &rough[1]}
	for i := range amounts {
		into = append(into, &amounts[i])
	}
	done := func() {
		if p.fine.rows+p.coarse.rows > 0 {
			f(&p)
		}
	}
	statement, err := c.prepare(query)
	if err != nil {
		return err
	}
	err = db.Each(c.Ctx, db.Prepared{Stmt: statement}, func(scan func(...any) error) error {
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
	}, query, args...)
	if err == nil {
		done()
	}
	return err
}

// prepare returns a query of this step as a statement: all hours of a day have the same ones, which
// SQLite takes longer to prepare than to run. They end with the transaction.
func (c *checkRun) prepare(query string) (*sql.Stmt, error) {
	if s := c.prepared[query]; s != nil {
		return s, nil
	}
	s, err := c.SQL.PrepareContext(c.Ctx, c.DB.Expand(query))
	c.prepared[query] = s
	return s, err
}

// reportFaults reports faults of keys of a layout. Those of rows that a server below may still be
// sending are warnings if passing is true.
func (c *checkRun) reportFaults(kind string, s *schema.Layout, found *faults, passing bool) error {
	warning := false
	for _, f := range found.list {
		var short, source int64
		query := "SELECT node_id, name, source, 0 FROM node WHERE id = $1"
		if s == schema.UsageLayout {
			query = "SELECT n.node_id, n.name, n.source, w.short FROM workload w JOIN node n ON n.id = w.node WHERE w.id = $1"
		}
		id, within := schema.SplitKey(f.id)
		err := c.SQL.QueryRowContext(c.Ctx, query, id).Scan(&f.Node, &f.Name, &source, &short)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			f.Text = fmt.Sprintf("%s %d, which does not exist: %s", s.Key, id, f.Text)
		case err != nil:
			return err
		case s == schema.UsageLayout:
			f.Workload = fmt.Sprintf("%016x", uint64(short))
		}
		if within != 0 {
			f.Text = fmt.Sprintf("within node %d: %s", within, f.Text)
		}
		if passing && source != 0 {
			f.Warning = true
			f.Text += "; the server below may still be sending"
		}
		f.Kind, warning = kind, f.Warning
		c.add(f.Finding)
	}
	if found.more == 0 {
		return nil
	}
	if c.result.Counts[kind] += found.more; !warning {
		c.result.Defects += found.more
	}
	return nil
}

// checkBalance compares what nodes had in each row of a range with the rows of their workloads.
func (c *checkRun) checkBalance(r schema.Range) error {
	var cols, highest []schema.Column
	var sums, wholes, most, mostWhole []string
	for _, w := range usage.Wholes {
		col, whole := schema.Column{Name: w.String()}, schema.Column{Name: fmt.Sprintf("(whole_%[1]s + skew_%[1]s)", w)}
		if r.Level == schema.Days {
			whole.Name = fmt.Sprintf("(CASE WHEN whole_%[1]s = %[2]d THEN whole_%[1]s ELSE whole_%[1]s + skew_%[1]s END)", w, int64(math.MaxInt64))
		}
		cols, sums, wholes = append(cols, col), append(sums, sumHalves(col)), append(wholes, halves(whole))
		if r.Level == schema.Days { // days saturate
			col.Merge = schema.MergeMax
			highest, most, mostWhole = append(highest, col), append(most, sumHalves(col)), append(mostWhole, fmt.Sprintf("0, whole_%s", w))
		}
	}
	// By key of the node: rows within another node, and others, each have their own whole.
	key := fmt.Sprintf("(m.workload - %s + w.node)", schema.IDOf("m.workload"))
	query := fmt.Sprintf(`SELECT 0 AS side, m.minute AS minute, %[1]s AS id, 0 AS present, 0 AS rough, 0 AS rough_high, %[2]s FROM %[3]s m JOIN workload w ON w.id = %[4]s
		WHERE m.minute >= $1 AND m.minute < $2 GROUP BY m.minute, %[1]s
		UNION ALL SELECT 1, minute, node, 0, 0, 0, %[5]s FROM %[6]s WHERE minute >= $1 AND minute < $2 ORDER BY minute, id`,
		key, strings.Join(append(sums, most...), ", "), r.Table(schema.UsageLayout), schema.IDOf("m.workload"), strings.Join(append(wholes, mostWhole...), ", "), r.Table(schema.NodeLayout))
	var found faults
	err := c.eachComparison(append(cols, highest...), func(p *comparison) {
		for i, col := range cols {
			var rows, whole wideInt
			if p.fine.rows > 0 {
				rows = p.fine.amounts[i]
			}
			if p.coarse.rows > 0 {
				whole = p.coarse.amounts[i]
			}
			if rows == whole || highest != nil && (p.fine.isSaturated(len(cols)+i) || p.coarse.isSaturated(len(cols)+i)) {
				continue
			}
			f := c.span(r.Level, p.minute, fmt.Sprintf("%s: whole + skew is %s, the rows are %s", col.Name, whole, rows))
			if f.Resource, f.Have, f.Want = col.Name, whole.String(), rows.String(); r.Level != schema.Minutes {
				f.Text = "the " + r.Level.Name() + ": " + f.Text
			}
			found.add(p.id, f)
		}
	}, query, r.From, r.To)
	if err != nil {
		return err
	}
	if err := c.reportFaults("balance", schema.NodeLayout, &found, true); err != nil {
		return err
	}
	return c.checkClasses(r)
}

// isSaturated reports whether a column has the largest amount that a row can hold.
func (t *total) isSaturated(column int) bool {
	if t.rows == 0 {
		return false
	}
	v, ok := t.amounts[column].toInt64()
	return !ok || v == math.MaxInt64
}

// span returns a finding about a row of a level.
func (c *checkRun) span(v schema.Level, at int64, text string) Finding {
	return Finding{From: at, To: at + v.Width(), Text: text}
}

// hasMinutes reports whether the day of minute has tables of minutes.
func (c *checkRun) hasMinutes(minute int64) bool {
	day := minute - minute%schema.DayMinutes
	return slices.Contains(c.Days, day) && !c.incomplete[day]
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
	query := fmt.Sprintf("SELECT 1 AS side, minute, %s AS id, present, rough, rough_high, %s FROM %s WHERE minute = $1", s.Key, strings.Join(own, ", "), to.Table(s))
	args := []any{at}
	if into == schema.Days || c.hasMinutes(at) {
		// A row is stored under the first minute of its span.
		query = fmt.Sprintf("SELECT 0 AS side, CAST($1 AS {int}) AS minute, %[1]s AS id, present, rough, rough_high, %[2]s FROM %[3]s WHERE minute >= $1 AND minute < $2 GROUP BY %[1]s, present, rough, rough_high UNION ALL %[4]s",
			s.Key, strings.Join(sums, ", "), from.Table(s), query)
		args = append(args, at+into.Width())
	}
	var found faults
	err := c.eachComparison(cols, func(p *comparison) {
		folded := c.IsFolded(into, s, schema.RowKey{Minute: at, ID: p.id})
		switch {
		case p.coarse.rows == 0 && !folded:
			return
		case p.coarse.rows == 0:
			found.add(p.id, c.span(into, at, "missing, but finer rows exist"))
			return
		case p.fine.rows == 0 || !folded:
			found.add(p.id, c.span(into, at, "present, but nothing was folded into it"))
			return
		case p.coarse.present != p.fine.present || p.coarse.rough != p.fine.rough:
			found.add(p.id, c.span(into, at, "presence or quality differs from the finer rows"))
		}
		for i, col := range cols {
			have, want := p.coarse.amounts[i], p.fine.amounts[i]
			if v, _ := have.toInt64(); into == schema.Days && max(v, -v) == math.MaxInt64 {
				if _, ok := want.toInt64(); !ok || col.Signed {
					continue // saturated
				}
			}
			if have != want {
				f := c.span(into, at, fmt.Sprintf("%s is %s, the finer rows are %s", col.Name, have, want))
				f.Resource, f.Have, f.Want = col.Name, have.String(), want.String()
				found.add(p.id, f)
			}
		}
	}, query+" ORDER BY id", args...)
	if err != nil {
		return err
	}
	return c.reportFaults(into.Name(), s, &found, false)
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
	query := fmt.Sprintf(`SELECT 0 AS side, minute, 0 AS id, 0 AS present, 0 AS rough, 0 AS rough_high, %s FROM day u WHERE minute = $1
		AND workload < %d GROUP BY minute
		UNION ALL SELECT 1, minute, 0, 0, 0, 0, %s FROM group_day WHERE minute = $1 GROUP BY minute ORDER BY side`, strings.Join(sums, ", "), int64(schema.FirstWithin), strings.Join(groups, ", "))
	return c.eachComparison(cols, func(p *comparison) {
		for i, col := range cols {
			var rows, groups wideInt
			if p.fine.rows > 0 {
				rows = p.fine.amounts[i]
			}
			if p.coarse.rows > 0 {
				groups = p.coarse.amounts[i]
			}
			if rows != groups {
				f := c.span(schema.Days, day, fmt.Sprintf("%s is %s, the rows are %s", col.Name, groups, rows))
				f.Kind, f.Resource, f.Have, f.Want = "groups", col.Name, groups.String(), rows.String()
				c.add(f)
			}
		}
	}, query, day)
}

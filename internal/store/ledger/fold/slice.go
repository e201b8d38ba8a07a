package fold

import (
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// foldIn folds a slice, unless the mark moved since the slice was found; then it does nothing.
func (r *foldRun) foldIn(t *db.Tx, s *slice) error {
	switch {
	case s.skip:
		return skipTo(t, s)
	case s.keys == nil:
		return r.sumGroups(t, s)
	}
	mark, done := t.Mark(s.into)
	if mark != s.start || *done.Key(s.keys) != s.first || s.keys == schema.NodeLayout && done.Workload != schema.MaxKey {
		return nil
	}
	from := schema.Range{Level: s.into - 1, From: s.start, To: s.start + s.into.Width()}.Table(s.keys)
	to := schema.Range{Level: s.into, From: s.start, To: s.start + s.into.Width()}.Table(s.keys)
	query := t.DB.Expand(foldRows(s.keys, from, to, len(s.finer), t.DB.Dialect))
	if _, err := t.Exec(query, append([]any{s.start, t.Rev, s.first, s.end}, s.finer...)...); err != nil {
		return err
	}
	var err error
	switch {
	case s.into == schema.Days:
		err = noteSaturated(t, s)
	case s.keys == schema.UsageLayout:
		err = errors.Join(noteSeen(t, from, s), closeConnections(t, s))
	}
	if err != nil {
		return err
	}
	if s.end < schema.MaxKey || s.keys == schema.UsageLayout {
		return setMark(t, s.into.Name()+"_"+s.keys.Key, s.end)
	}
	if s.into == schema.Days {
		if err := t.MarkStale(s.start); err != nil {
			return err
		}
	}
	return finishSpan(t, s.into, s.start+s.into.Width())
}

// skipTo moves a mark to the first rows to fold.
func skipTo(t *db.Tx, s *slice) error {
	mark, done := t.Mark(s.into)
	if *done != (schema.Progress{}) {
		return nil
	}
	first, err := firstUnfolded(t.Ctx, t.SQL, &t.Marks, s.into)
	if err != nil || first < s.start {
		return t.DB.Fault(err)
	}
	return finishSpan(t, s.into, max(mark, s.start))
}

// finishSpan records that everything before to is folded.
func finishSpan(t *db.Tx, into schema.Level, to int64) error {
	_, err := t.Exec(fmt.Sprintf("UPDATE counter SET %[1]s_mark = $1, %[1]s_workload = 0, %[1]s_node = 0 WHERE id = 1", into.Name()), to)
	return err
}

// noteSeen records the first and last minute of the workloads that were folded, and the number of
// rows.
func noteSeen(t *db.Tx, table string, s *slice) error {
	id := schema.IDOf("workload")
	_, err := t.Exec(`UPDATE workload SET first_minute = CASE WHEN last_minute = 0 OR first_minute > f.first THEN f.first ELSE first_minute END,
		last_minute = CASE WHEN last_minute < f.last THEN f.last ELSE last_minute END
		FROM (SELECT `+id+` AS id, min(minute) AS first, max(minute) AS last FROM `+table+` WHERE `+keyRange(s.keys, 1, len(s.finer))+` GROUP BY `+id+`) AS f
		WHERE f.id = workload.id`, append([]any{s.first, s.end}, s.finer...)...)
	if err != nil {
		return err
	}
	_, err = t.Exec("UPDATE kept SET rows = rows + $1 WHERE day = $2", s.rows, s.start-s.start%schema.DayMinutes)
	return err
}

// closeConnections makes the connections of a slice of an hour due to servers above, which take those of hours that are folded.
func closeConnections(t *db.Tx, s *slice) error {
	_, err := t.Exec("UPDATE connections SET rev = $1 WHERE minute = $2 AND workload >= $3 AND workload < $4", t.Rev, s.start, s.first, s.end)
	return err
}

// noteSaturated audits days that were folded and have saturated amounts.
func noteSaturated(t *db.Tx, s *slice) error {
	var n int64
	if err := t.QueryRow(countSaturated(s.keys), s.start, s.first, s.end).Scan(&n); err != nil || n == 0 {
		return err
	}
	return t.Audit(registry.Audit{
		At: time.Now(), Actor: "local", Action: "ledger.saturated", Object: s.keys.DayTable(),
		Detail: fmt.Sprintf("%d rows of day %s have amounts that do not fit; their hours are exact", n, schema.FormatMinute(s.start)),
	})
}

// sumGroups sums a slice of the groups of a stale day. All groups of the day are summed again,
// since names of workloads may have changed; each slice adds to the sums of previous slices.
func (r *foldRun) sumGroups(t *db.Tx, s *slice) error {
	var next int64
	err := t.QueryRow("SELECT next FROM stale_day WHERE minute = $1", s.start).Scan(&next)
	if errors.Is(err, sql.ErrNoRows) || err == nil && next != s.first {
		return nil
	}
	if err != nil {
		return err
	}
	if s.first == 0 {
		r.begun[s.start] = true
		if _, err := t.Exec("DELETE FROM group_day WHERE minute = $1", s.start); err != nil {
			return err
		}
	}
	if _, err := t.Exec(t.DB.Expand(sumGroupsSQL), s.start, s.first, s.end); err != nil {
		return err
	}
	if s.end == schema.MaxKey {
		_, err = t.Exec("DELETE FROM stale_day WHERE minute = $1", s.start)
	} else {
		_, err = t.Exec("UPDATE stale_day SET next = $2 WHERE minute = $1", s.start, s.end)
	}
	return err
}

// sumGroupsSQL adds to the rows of group_day of day $1 what its workloads [$2, $3) used, without rows
// within another node. Rows that
// differ in presence or quality stay separate: SQLite has no aggregate for bits.
var sumGroupsSQL = func() string {
	cols, exprs := []string{"minute"}, []string{"d.minute"}
	for _, k := range schema.GroupKeys {
		table := "w."
		if k == "cluster" || k == "pool" {
			table = "n."
		}
		cols, exprs = append(cols, k), append(exprs, table+k)
	}
	cols, exprs = append(cols, "present", "rough", "rough_high"), append(exprs, "d.present", "d.rough", "d.rough_high")
	group := strings.Join(exprs, ", ")
	cols, exprs = append(cols, "covered_ms"), append(exprs, "sum(d.covered_ms)")
	sets := []string{"covered_ms = group_day.covered_ms + excluded.covered_ms"}
	usage.All.Each(func(r usage.Resource) {
		name := r.String()
		cols = append(cols, name+"_hi", name+"_lo")
		if r.Detail().Kind == usage.Peak {
			// Both halves of the largest value.
			exprs = append(exprs, "max(d."+name+") >> 32", "max(d."+name+") & 4294967295")
			for _, half := range []string{"_hi", "_lo"} {
				sets = append(sets, fmt.Sprintf("%[1]s%[2]s = CASE WHEN (excluded.%[1]s_hi, excluded.%[1]s_lo) > (group_day.%[1]s_hi, group_day.%[1]s_lo) THEN excluded.%[1]s%[2]s ELSE group_day.%[1]s%[2]s END", name, half))
			}
			return
		}
		exprs = append(exprs, "sum(d."+name+" >> 32)", "sum(d."+name+" & 4294967295)")
		for _, half := range []string{"_hi", "_lo"} {
			sets = append(sets, fmt.Sprintf("%[1]s = group_day.%[1]s + excluded.%[1]s", name+half))
		}
	})
	return fmt.Sprintf(`INSERT INTO group_day (%s) SELECT %s FROM day d JOIN workload w ON w.id = d.workload JOIN node n ON n.id = w.node
		WHERE d.minute = $1 AND d.workload >= $2 AND d.workload < $3 AND d.workload < %d AND %s GROUP BY %s ON CONFLICT ({group}) DO UPDATE SET %s`,
		strings.Join(cols, ", "), strings.Join(exprs, ", "), int64(schema.FirstWithin), schema.HasContent("d"), group, strings.Join(sets, ", "))
}()

func setMark(t *db.Tx, column string, to int64) error {
	_, err := t.Exec("UPDATE counter SET "+column+" = $1 WHERE id = 1", to)
	return err
}

// foldRows returns the statement that adds rows of a finer table to a coarser one at minute $1 with
// rev $2. It takes the rows of keys [$3, $4) at the n minutes from $5 on, so that each minute is a
// lookup by primary key.
func foldRows(s *schema.Layout, from, to string, n int, d *schema.Dialect) string {
	saturates := to == s.DayTable()
	group := grouping(s, saturates, d)
	var cols []string
	for _, c := range s.Columns[1:] {
		switch {
		case group == "" || c.Merge == schema.MergeOr && !d.Aggregates:
			cols = append(cols, c.Name)
		case c.Merge == schema.MergeOr:
			cols = append(cols, "bit_or("+c.Name+")")
		case c.Merge == schema.MergeMax:
			cols = append(cols, "max("+c.Name+")")
		case d.Aggregates:
			cols = append(cols, fmt.Sprintf("greatest(least(sum(%s), %d), -%[2]d)", c.Name, int64(math.MaxInt64)))
		default:
			cols = append(cols, "sum("+c.Name+")")
		}
	}
	return fmt.Sprintf("INSERT INTO %s (%s) SELECT CAST($1 AS {int}), %s, CAST($2 AS {int}), %s FROM %s WHERE %s%s%s",
		to, s.ColumnList(), s.Key, strings.Join(cols, ", "), from, keyRange(s, 3, n), group, s.MergeClause(to, d, saturates))
}

// grouping returns how foldRows groups the rows.
func grouping(s *schema.Layout, saturates bool, d *schema.Dialect) string {
	switch {
	case d.Aggregates:
		return " GROUP BY " + s.Key
	case saturates:
		return ""
	}
	// Sum rows with equal bits; the conflict clause merges the few sums of a key.
	return " GROUP BY " + s.Key + ", present, rough, rough_high"
}

// keyRange returns the condition for the keys [$i, $i+1) at the n minutes from $i+2 on.
func keyRange(s *schema.Layout, i, n int) string {
	places := make([]string, n)
	for j := range places {
		places[j] = fmt.Sprintf("$%d", i+2+j)
	}
	return fmt.Sprintf("%[1]s >= $%[2]d AND %[1]s < $%[3]d AND minute IN (%[4]s)", s.Key, i, i+1, strings.Join(places, ", "))
}

// countSaturated returns the statement that counts the rows of day $1 with keys [$2, $3) that have
// a saturated sum.
func countSaturated(s *schema.Layout) string {
	var where []string
	for _, c := range s.Columns[schema.ColCovered:] {
		where = append(where, fmt.Sprintf("abs(%s) = %d", c.Name, int64(math.MaxInt64)))
	}
	return fmt.Sprintf("SELECT count(*) FROM %s WHERE minute = $1 AND %[2]s >= $2 AND %[2]s < $3 AND (%[3]s)", s.DayTable(), s.Key, strings.Join(where, " OR "))
}

package ledger

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
)

// slice folds a slice, unless what it goes on from is not as it was when it was
// found: then it is found anew.
func (f *folding) slice(t *txn, s *slice) error {
	switch {
	case s.skip:
		return t.skip(s)
	case s.keys == nil:
		return f.sum(t, s)
	}
	mark, done := t.at(s.into)
	if mark != s.at || *done.of(s.keys) != s.first || s.keys == nodeShape && done.workload != last {
		return nil
	}
	from := stretch{s.into - 1, s.at, s.at + s.into.width()}.table(s.keys)
	to := stretch{s.into, s.at, s.at + s.into.width()}.table(s.keys)
	query := t.l.d.words.Replace(s.keys.fold(from, to, len(s.finer), t.l.d))
	if _, err := t.exec(query, append([]any{s.at, t.rev, s.first, s.end}, s.finer...)...); err != nil {
		return err
	}
	var err error
	switch {
	case s.into == days:
		err = t.saturated(s)
	case s.keys == usageShape:
		err = t.seen(from, s)
	}
	if err != nil {
		return err
	}
	if s.end < last || s.keys == usageShape {
		return t.mark(s.into.word()+"_"+s.keys.key, s.end)
	}
	if s.into == days {
		if err := t.stale(s.at); err != nil {
			return err
		}
	}
	return t.reach(s.into, s.at+s.into.width())
}

// word is the level's in the names of the columns of table counter.
func (v level) word() string {
	if v == days {
		return "day"
	}
	return "hour"
}

// skip moves a mark to where there is something to fold.
func (t *txn) skip(s *slice) error {
	mark, done := t.at(s.into)
	if mark >= s.at || *done != (part{}) {
		return nil
	}
	first, err := t.unfolded(t.ctx, t.tx, s.into)
	if err != nil || first < s.at {
		return t.l.d.fault(err)
	}
	return t.reach(s.into, s.at)
}

// reach says that all before to is folded.
func (t *txn) reach(into level, to int64) error {
	_, err := t.exec(fmt.Sprintf("UPDATE counter SET %[1]s_mark = $1, %[1]s_workload = 0, %[1]s_node = 0 WHERE id = 1", into.word()), to)
	return err
}

// seen notes of workloads whose minutes were folded when they were seen, and
// how many minutes there were.
func (t *txn) seen(table string, s *slice) error {
	_, err := t.exec(`UPDATE workload SET first_minute = CASE WHEN last_minute = 0 OR first_minute > f.first THEN f.first ELSE first_minute END,
		last_minute = CASE WHEN last_minute < f.last THEN f.last ELSE last_minute END
		FROM (SELECT workload AS id, min(minute) AS first, max(minute) AS last FROM `+table+` WHERE `+s.keys.keys(1, len(s.finer))+` GROUP BY workload) AS f
		WHERE f.id = workload.id`, append([]any{s.first, s.end}, s.finer...)...)
	if err != nil {
		return err
	}
	_, err = t.exec("UPDATE kept SET rows = rows + $1 WHERE day = $2", s.rows, s.at-s.at%dayMinutes)
	return err
}

// saturated tells of days that were folded and have amounts that do not fit.
func (t *txn) saturated(s *slice) error {
	var n int64
	if err := t.queryRow(s.keys.saturated(), s.at, s.first, s.end).scan(&n); err != nil || n == 0 {
		return err
	}
	return t.audit(registry.Audit{
		At: time.Now(), Actor: "local", Action: "ledger.saturated", Object: s.keys.dayTable(),
		Detail: fmt.Sprintf("%d rows of day %s have amounts that do not fit; their hours are exact", n, stamp(s.at)),
	})
}

// sum sums a slice of the groups of a stale day. They are made anew as a whole,
// since what a workload belongs to may have been learned since; each slice adds
// to those of the slices before.
func (f *folding) sum(t *txn, s *slice) error {
	var next int64
	err := t.queryRow("SELECT next FROM stale_day WHERE minute = $1", s.at).scan(&next)
	if errors.Is(err, sql.ErrNoRows) || err == nil && next != s.first {
		return nil
	}
	if err != nil {
		return err
	}
	if s.first == 0 {
		f.begun[s.at] = true
		if _, err := t.exec("DELETE FROM group_day WHERE minute = $1", s.at); err != nil {
			return err
		}
	}
	if _, err := t.exec(t.l.d.words.Replace(sumGroups), s.at, s.first, s.end); err != nil {
		return err
	}
	if s.end == last {
		_, err = t.exec("DELETE FROM stale_day WHERE minute = $1", s.at)
	} else {
		_, err = t.exec("UPDATE stale_day SET next = $2 WHERE minute = $1", s.at, s.end)
	}
	return err
}

// sumGroups adds to the rows of group_day of day $1 what its workloads [$2, $3)
// used. Rows whose amounts are not alike in presence and quality are kept apart,
// as SQLite has no aggregate for bits.
var sumGroups = func() string {
	cols, exprs := []string{"minute"}, []string{"d.minute"}
	for _, k := range groupKeys {
		table := "w."
		if k == "cluster" || k == "pool" {
			table = "n."
		}
		cols, exprs = append(cols, k), append(exprs, table+k)
	}
	cols, exprs = append(cols, "present", "rough"), append(exprs, "d.present", "d.rough")
	group := strings.Join(exprs, ", ")
	cols, exprs = append(cols, "covered_ms"), append(exprs, "sum(d.covered_ms)")
	sets := []string{"covered_ms = group_day.covered_ms + excluded.covered_ms"}
	usage.All.Each(func(r usage.Resource) {
		name := r.String()
		cols = append(cols, name+"_hi", name+"_lo")
		if r.Detail().Kind == usage.Peak {
			// Both halves of the one largest value.
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
		WHERE d.minute = $1 AND d.workload >= $2 AND d.workload < $3 AND `+rowsOutside+` GROUP BY %s ON CONFLICT ({group}) DO UPDATE SET %s`,
		strings.Join(cols, ", "), strings.Join(exprs, ", "), group, strings.Join(sets, ", "))
}()

// mark moves a mark or a floor.
func (t *txn) mark(column string, to int64) error {
	_, err := t.exec("UPDATE counter SET "+column+" = $1 WHERE id = 1", to)
	return err
}

package book

import (
	"fmt"
	"slices"

	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// SetVersions makes the versions of a workload those that begin with the given minutes, in order, besides the first one. A
// server that was restored from an older copy does not have the versions that it made since: their rows become
// those of the versions that it has.
func SetVersions(t *db.Tx, node int64, short workload.ShortID, from []int64) error {
	w, ok, err := t.KnownWorkload(node, short)
	if !ok && len(from) == 0 || err != nil || slices.Equal(w.Begins(), from) {
		return err
	}
	for _, m := range from {
		if _, err := t.Version(node, short, m); err != nil {
			return err
		}
	}
	if w, _, err = t.KnownWorkload(node, short); err != nil {
		return err
	}
	for _, m := range w.Begins() {
		if !slices.Contains(from, m) {
			if err := dropVersion(t, node, short, m, from); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropVersion removes the version that begins with a minute. Its rows are added to those of the versions that stay.
func dropVersion(t *db.Tx, node int64, short workload.ShortID, begin int64, stay []int64) error {
	w, _, err := t.KnownWorkload(node, short)
	if err != nil {
		return err
	}
	gone := w.At(begin)
	var last int64
	if err := t.QueryRow("SELECT last_minute FROM workload WHERE id = $1", gone).Scan(&last); err != nil {
		return err
	}
	hosts, err := t.Ints("SELECT DISTINCT host FROM within_day WHERE node = $1", node)
	if err != nil {
		return err
	}
	kept, err := t.Ints("SELECT day FROM kept ORDER BY day")
	if err != nil {
		return err
	}
	first, end := schema.DayOf(begin), last+1
	if len(kept) > 0 {
		end = max(end, kept[len(kept)-1]+schema.DayMinutes)
	}
	// The version that a row belongs to: of a longer one, that in which the removed version began.
	owner := func(minute int64) int64 {
		at := int64(0)
		for _, m := range stay {
			if m <= max(minute, begin) {
				at = m
			}
		}
		return w.At(at)
	}
	owners, keys := map[int64]bool{}, []int64(nil)
	for _, m := range append([]int64{0}, stay...) {
		owners[w.At(m)] = true
	}
	owners[gone] = true
	for id := range owners {
		for _, h := range append([]int64{0}, hosts...) {
			keys = append(keys, schema.Key(id, h))
		}
	}
	slices.Sort(keys)
	c := NewChange(schema.UsageLayout)
	for at := first; at < end; {
		level := t.FinestLevel(at)
		span := schema.Range{Level: level, From: at, To: at + max(level.Width(), schema.HourMinutes)}
		if at = span.To; level == schema.Minutes && !slices.Contains(kept, schema.DayOf(span.From)) {
			continue
		}
		rows := map[schema.RowKey][]int64{}
		err := c.each(t, level, span.From, span.To, keys, func(k schema.RowKey, values []int64) { rows[k] = slices.Clone(values) })
		if err != nil {
			return err
		}
		for k, values := range rows {
			id, within := schema.SplitKey(k.ID)
			if id != gone {
				continue
			}
			to := schema.RowKey{Minute: k.Minute, ID: schema.Key(owner(k.Minute), within)}
			sum := make([]int64, len(values))
			for _, part := range [][]int64{rows[to], values} {
				if part != nil {
					c.wanted[0].AddSaturating(sum, part)
				}
			}
			sum[schema.ColRev] = t.Rev
			c.Set(replica.Resolution(level), to, sum)
			empty := make([]int64, len(values))
			empty[schema.ColRev] = t.Rev
			c.Set(replica.Resolution(level), k, empty)
		}
	}
	if _, err := c.Apply(t, 0); err != nil {
		return fmt.Errorf("moving rows of a version: %w", err)
	}
	return deleteVersion(t, node, short, begin, append([]int64{0}, hosts...), kept, first, end)
}

// deleteVersion deletes a version and its rows, which are empty.
func deleteVersion(t *db.Tx, node int64, short workload.ShortID, begin int64, hosts, kept []int64, first, end int64) error {
	w, _, err := t.KnownWorkload(node, short)
	if err != nil {
		return err
	}
	gone := w.At(begin)
	var keys []int64
	for _, h := range hosts {
		keys = append(keys, schema.Key(gone, h))
	}
	remove := func(table string, from, to, width int64) error {
		var minutes []int64
		for m := from; m < to; m += width {
			minutes = append(minutes, m)
		}
		for some := range slices.Chunk(minutes, schema.DayMinutes) {
			// Not prepared: the text differs each time.
			if err := t.Define(fmt.Sprintf("DELETE FROM %s WHERE minute IN (%s) AND workload IN (%s)", table, schema.JoinInts(some), schema.JoinInts(keys))); err != nil {
				return err
			}
		}
		return nil
	}
	for _, day := range kept {
		if day >= first {
			if err := remove(schema.UsageMinuteTable(day), day, day+schema.DayMinutes, 1); err != nil {
				return err
			}
		}
	}
	for _, v := range []schema.Level{schema.Hours, schema.Days} {
		if err := remove(schema.Range{Level: v}.Table(schema.UsageLayout), first, end, v.Width()); err != nil {
			return err
		}
	}
	for _, statement := range []string{"DELETE FROM workload_label WHERE workload = $1", "DELETE FROM workload WHERE id = $1"} {
		if _, err := t.Exec(statement, gone); err != nil {
			return err
		}
	}
	return t.ForgetVersion(node, short, begin)
}

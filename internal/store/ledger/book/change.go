package book

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A Change is a set of rows of one layout that replace the rows in the ledger.
type Change struct {
	layout  *schema.Layout
	wanted  [3]schema.Pending
	pending map[string]schema.Pending // by table
	// dirty are the rows of hours and days to sum again.
	dirty [3]map[schema.RowKey]bool
	late  map[int64]schema.MinuteSpan
}

func NewChange(s *schema.Layout) *Change {
	c := &Change{layout: s, pending: map[string]schema.Pending{}, late: map[int64]schema.MinuteSpan{}}
	for i := range c.wanted {
		c.wanted[i], c.dirty[i] = schema.NewPending(s), map[schema.RowKey]bool{}
	}
	return c
}

// Set sets the values of a row.
func (c *Change) Set(v replica.Resolution, k schema.RowKey, values []int64) {
	c.wanted[v].Rows[k] = values
}

func (c *Change) table(v schema.Level, minute int64) string {
	switch v {
	case schema.Minutes:
		return c.layout.MinuteTable(minute - minute%schema.DayMinutes)
	case schema.Hours:
		return c.layout.HourTable()
	}
	return c.layout.DayTable()
}

// Apply writes the rows and everything derived from them. Before minute coarse, finer rows may hold
// coarser spans; it returns the end of the last span that does so now.
func (c *Change) Apply(t *db.Tx, coarse int64) (through int64, err error) {
	for v := schema.Days; ; v-- {
		// Coarser spans go first: each clears the finer rows that it replaces.
		for _, k := range c.wanted[v].SortedKeys() {
			at := t.FinestLevel(k.Minute)
			if v > at {
				through = max(through, k.Minute+v.Width())
			}
		}
		if err := c.clearReplaced(t, v, coarse); err != nil {
			return through, err
		}
		for k, values := range c.wanted[v].Rows {
			if err := c.placeRow(t, v, k, values); err != nil {
				return through, err
			}
		}
		if v == schema.Minutes {
			break
		}
	}
	if err := c.flush(t); err != nil {
		return through, err
	}
	for _, v := range []schema.Level{schema.Hours, schema.Days} {
		if err := c.sumDirty(t, v); err != nil {
			return through, err
		}
		if err := c.flush(t); err != nil {
			return through, err
		}
	}
	return through, c.noteChanged(t)
}

// clearReplaced zeroes the rows that rows of level v replace: finer rows within their spans, and
// rows that hold a coarser span around them.
func (c *Change) clearReplaced(t *db.Tx, v schema.Level, coarse int64) error {
	within := map[int64][]int64{} // keys by the first minute of the span
	around := [3]map[int64][]int64{}
	for w := range around {
		around[w] = map[int64][]int64{}
	}
	for _, k := range c.wanted[v].SortedKeys() {
		if v > t.FinestLevel(k.Minute) {
			within[k.Minute] = append(within[k.Minute], k.ID)
		}
		for w := v + 1; w <= schema.Days && k.Minute < coarse; w++ {
			span := k.Minute - k.Minute%w.Width()
			if !slices.Contains(around[w][span], k.ID) {
				around[w][span] = append(around[w][span], k.ID)
			}
		}
	}
	for span, keys := range within {
		if err := c.zeroRows(t, span, span+v.Width(), keys, 0); err != nil {
			return err
		}
	}
	for w, flag := range map[schema.Level]int64{schema.Hours: schema.HoldsHour, schema.Days: schema.HoldsDay} {
		for span, keys := range around[w] {
			if w <= t.FinestLevel(span) {
				continue // it is in its own table
			}
			holding, err := c.holdingKeys(t, span, keys, flag)
			if err == nil && len(holding) > 0 {
				err = c.zeroRows(t, span, span+w.Width(), holding, flag)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// holdingKeys returns the keys whose row at minute has the flag.
func (c *Change) holdingKeys(t *db.Tx, minute int64, keys []int64, flag int64) (holding []int64, err error) {
	at := t.FinestLevel(minute)
	err = c.each(t, at, minute, minute+at.Width(), keys, func(k schema.RowKey, values []int64) {
		if values[schema.ColUncertainty]&flag != 0 {
			holding = append(holding, k.ID)
		}
	})
	return holding, err
}

// zeroRows zeroes the finest rows of keys in [from, to); if flag is not 0, only rows with that
// flag.
func (c *Change) zeroRows(t *db.Tx, from, to int64, keys []int64, flag int64) error {
	at := t.FinestLevel(from)
	return c.each(t, at, from, to, keys, func(k schema.RowKey, values []int64) {
		if flag != 0 && values[schema.ColUncertainty]&flag == 0 {
			return
		}
		nothing := make([]int64, len(c.layout.Columns))
		nothing[schema.ColRev] = t.Rev
		c.putRow(t, at, k, nothing)
	})
}

// placeRow puts a row into the finest table that is kept.
func (c *Change) placeRow(t *db.Tx, v schema.Level, k schema.RowKey, values []int64) error {
	at := t.FinestLevel(k.Minute)
	if v > at {
		values[schema.ColUncertainty] |= schema.HoldsHour << (v - schema.Hours)
	}
	if at != schema.Minutes {
		c.putRow(t, at, k, values)
		return nil
	}
	for _, part := range spill(c.layout, values) {
		c.putRow(t, at, k, part)
		k.Minute++
	}
	return nil
}

// spill splits a row whose amounts are too large for a minute into as many rows as needed. All but
// the first hold amounts only.
func spill(s *schema.Layout, values []int64) [][]int64 {
	const most = schema.MaxMinuteAmount
	rows := [][]int64{values}
	for i, c := range s.Columns {
		for n, rest := 0, values[i]; c.Merge == schema.MergeSum && (rest > most || rest < -most); n++ {
			if n+1 == len(rows) {
				more := make([]int64, len(s.Columns))
				more[schema.ColRev], more[schema.ColUncertainty] = values[schema.ColRev], values[schema.ColUncertainty]&(schema.HoldsHour|schema.HoldsDay)
				rows = append(rows, more)
			}
			part := min(max(rest, -most), most)
			rows[n][i], rest = part, rest-part
			rows[n+1][i] = rest
		}
	}
	return rows
}

// putRow queues a row for writing, and marks the sums that it changes as dirty.
func (c *Change) putRow(t *db.Tx, v schema.Level, k schema.RowKey, values []int64) {
	table := c.table(v, k.Minute)
	if _, ok := c.pending[table]; !ok {
		c.pending[table] = schema.NewPending(c.layout)
	}
	c.pending[table].Rows[k] = values
	if hour := k.Minute - k.Minute%schema.HourMinutes; v == schema.Minutes && t.IsFolded(schema.Hours, c.layout, k) {
		c.late[k.ID] = c.late[k.ID].Extend(k.Minute)
		if hour >= t.HourFloor {
			c.dirty[schema.Hours][schema.RowKey{Minute: hour, ID: k.ID}] = true
		}
	}
	day := k.Minute - k.Minute%schema.DayMinutes
	if v != schema.Minutes {
		c.late[k.ID] = c.late[k.ID].Extend(k.Minute)
	}
	if v == schema.Days || t.IsFolded(schema.Days, c.layout, k) {
		c.dirty[schema.Days][schema.RowKey{Minute: day, ID: k.ID}] = true
	}
}

// flush writes the queued rows.
func (c *Change) flush(t *db.Tx) error {
	for _, table := range slices.Sorted(maps.Keys(c.pending)) {
		h := c.pending[table]
		if table != c.layout.HourTable() && table != c.layout.DayTable() {
			for k := range h.Rows {
				if err := t.EnsureMinutes(k.Minute - k.Minute%schema.DayMinutes); err != nil {
					return err
				}
				break // all are of one day
			}
		}
		if err := t.Put(table, h, replaceRows(c.layout)); err != nil {
			return fmt.Errorf("%s: %w", table, err)
		}
	}
	clear(c.pending)
	return nil
}

// replaceRows returns the conflict clause that replaces an existing row.
func replaceRows(s *schema.Layout) string {
	var sets []string
	for _, c := range s.Columns {
		sets = append(sets, c.Name+" = excluded."+c.Name)
	}
	return fmt.Sprintf(" ON CONFLICT (minute, %s) DO UPDATE SET %s", s.Key, strings.Join(sets, ", "))
}

// sumDirty sums the dirty rows of hours or days again from their finer rows.
func (c *Change) sumDirty(t *db.Tx, v schema.Level) error {
	keys := map[int64][]int64{}
	for k := range c.dirty[v] {
		keys[k.Minute] = append(keys[k.Minute], k.ID)
	}
	for _, span := range slices.Sorted(maps.Keys(keys)) {
		from := t.FinestLevel(span)
		if v == schema.Days && span >= t.HourFloor {
			from = schema.Hours // fewer rows with the same sums
		}
		if from >= v {
			continue // this row was set directly
		}
		sums := schema.NewPending(c.layout)
		err := c.each(t, from, span, span+v.Width(), keys[span], func(k schema.RowKey, values []int64) {
			k.Minute = span
			if have, ok := sums.Rows[k]; ok {
				sums.AddSaturating(have, values)
				return
			}
			sums.Rows[k] = slices.Clone(values)
		})
		if err != nil {
			return err
		}
		for k, values := range sums.Rows {
			values[schema.ColRev] = t.Rev
			table := c.table(v, span)
			if _, ok := c.pending[table]; !ok {
				c.pending[table] = schema.NewPending(c.layout)
			}
			c.pending[table].Rows[k] = values
		}
	}
	return nil
}

// noteChanged marks the days whose groups changed, and records when workloads were used.
func (c *Change) noteChanged(t *db.Tx) error {
	if c.layout != schema.UsageLayout {
		return nil
	}
	for key, s := range c.late {
		id, _ := schema.SplitKey(key)
		if err := noteUsed(t, id, s); err != nil {
			return err
		}
	}
	stale := map[int64]bool{}
	for k := range c.dirty[schema.Days] {
		stale[k.Minute] = true
	}
	for day := range stale {
		if err := t.MarkStale(day); err != nil {
			return err
		}
	}
	return nil
}

// each calls f for the rows of keys in [from, to) of a level, except rows queued for replacement. f
// must not keep the slice.
func (c *Change) each(t *db.Tx, v schema.Level, from, to int64, keys []int64, f func(schema.RowKey, []int64)) error {
	if v == schema.Minutes {
		if err := t.EnsureMinutes(from - from%schema.DayMinutes); err != nil {
			return err
		}
	}
	var spans strings.Builder
	for m := from; m < to; m += v.Width() {
		if m > from {
			spans.WriteString(", ")
		}
		fmt.Fprint(&spans, m)
	}
	table := c.table(v, from)
	waiting := c.pending[table].Rows
	for chunk := range slices.Chunk(keys, 200) {
		var k schema.RowKey
		values := make([]int64, len(c.layout.Columns))
		dest := []any{&k.Minute, &k.ID}
		for i := range values {
			dest = append(dest, &values[i])
		}
		// Not prepared: the text differs each time.
		err := db.Each(t.Ctx, t.SQL, func(scan func(...any) error) error {
			if err := scan(dest...); err != nil {
				return err
			}
			if _, ok := waiting[k]; !ok {
				f(k, values)
			}
			return nil
		}, fmt.Sprintf("SELECT %s FROM %s WHERE minute IN (%s) AND %s IN (%s)", c.layout.ColumnList(), table, spans.String(), c.layout.Key, schema.JoinInts(chunk)))
		if err != nil {
			return t.DB.Fault(err)
		}
	}
	return nil
}

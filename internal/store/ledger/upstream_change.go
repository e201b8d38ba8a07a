package ledger

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"mete.dev/mete/internal/model/replica"
)

// What a row of a finer table may hold instead of its own span, in the bits of
// rough that belong to no resource. An hour that came as such stands in its
// first minute, so that minutes, hours and days have the same sums.
const (
	holdsHour = 1 << 0
	holdsDay  = 1 << 1
)

// A change is rows of one shape that are to be as they were told.
type change struct {
	shape *shape
	told  [3]heap
	puts  map[string]heap // by table
	// touched are the rows of hours and days that are to be summed anew.
	touched [3]map[rowKey]bool
	late    map[int64]span
}

func newChange(s *shape) *change {
	c := &change{shape: s, puts: map[string]heap{}, late: map[int64]span{}}
	for i := range c.told {
		c.told[i], c.touched[i] = newHeap(s), map[rowKey]bool{}
	}
	return c
}

// want notes what a row is to be.
func (c *change) want(v replica.Resolution, k rowKey, values []int64) { c.told[v].rows[k] = values }

// finest is the level of the finest rows that are kept from a minute on.
func (t *txn) finest(minute int64) level {
	switch {
	case minute >= t.MinuteFloor:
		return minutes
	case minute >= t.HourFloor:
		return hours
	}
	return days
}

func (c *change) table(v level, minute int64) string {
	switch v {
	case minutes:
		return c.shape.minuteTable(minute - minute%dayMinutes)
	case hours:
		return c.shape.hourTable()
	}
	return c.shape.dayTable()
}

// apply writes what was told, and all that follows from it. Before minute
// coarse finer rows may hold coarser spans; it returns up to where they do now.
func (c *change) apply(t *txn, coarse int64) (through int64, err error) {
	for v := days; ; v-- {
		// Coarser spans go first, as each clears the finer rows that it replaces.
		for _, k := range c.told[v].sorted() {
			at := t.finest(k.minute)
			if v > at {
				through = max(through, k.minute+v.width())
			}
		}
		if err := c.clear(t, v, coarse); err != nil {
			return 0, err
		}
		for k, values := range c.told[v].rows {
			if err := c.place(t, v, k, values); err != nil {
				return 0, err
			}
		}
		if v == minutes {
			break
		}
	}
	if err := c.flush(t); err != nil {
		return 0, err
	}
	for _, v := range []level{hours, days} {
		if err := c.sum(t, v); err != nil {
			return 0, err
		}
		if err := c.flush(t); err != nil {
			return 0, err
		}
	}
	return through, c.note(t)
}

// clear makes nothing of the rows that those of a level replace: finer ones in
// their spans, and those that hold a coarser span around them.
func (c *change) clear(t *txn, v level, coarse int64) error {
	within := map[int64][]int64{} // keys by the first minute of the span
	around := [3]map[int64][]int64{}
	for w := range around {
		around[w] = map[int64][]int64{}
	}
	for _, k := range c.told[v].sorted() {
		if v > t.finest(k.minute) {
			within[k.minute] = append(within[k.minute], k.id)
		}
		for w := v + 1; w <= days && k.minute < coarse; w++ {
			span := k.minute - k.minute%w.width()
			if !slices.Contains(around[w][span], k.id) {
				around[w][span] = append(around[w][span], k.id)
			}
		}
	}
	for span, keys := range within {
		if err := c.zero(t, span, span+v.width(), keys, 0); err != nil {
			return err
		}
	}
	for w, flag := range map[level]int64{hours: holdsHour, days: holdsDay} {
		for span, keys := range around[w] {
			if w <= t.finest(span) {
				continue // it stands in its own table
			}
			holding, err := c.holding(t, span, keys, flag)
			if err == nil && len(holding) > 0 {
				err = c.zero(t, span, span+w.width(), holding, flag)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// holding are those of the keys whose row at a minute has the flag.
func (c *change) holding(t *txn, minute int64, keys []int64, flag int64) (holding []int64, err error) {
	at := t.finest(minute)
	err = c.each(t, at, minute, minute+at.width(), keys, func(k rowKey, values []int64) {
		if values[colRough]&flag != 0 {
			holding = append(holding, k.id)
		}
	})
	return holding, err
}

// zero makes nothing of the finest rows of some keys in [from, to), of those
// with a flag only unless that is 0.
func (c *change) zero(t *txn, from, to int64, keys []int64, flag int64) error {
	at := t.finest(from)
	return c.each(t, at, from, to, keys, func(k rowKey, values []int64) {
		if flag != 0 && values[colRough]&flag == 0 {
			return
		}
		nothing := make([]int64, len(c.shape.cols))
		nothing[colRev] = t.rev
		c.put(t, at, k, nothing)
	})
}

// place puts a row where it belongs: into the finest table that is kept.
func (c *change) place(t *txn, v level, k rowKey, values []int64) error {
	at := t.finest(k.minute)
	if v > at {
		values[colRough] |= holdsHour << (v - hours)
	}
	if at != minutes {
		c.put(t, at, k, values)
		return nil
	}
	for _, part := range c.shape.spill(values) {
		c.put(t, at, k, part)
		k.minute++
	}
	return nil
}

// mostOfMinute is the largest amount that a row of minutes can have.
const mostOfMinute = 1<<minuteBits - 1

// spill divides a row whose amounts are too large for a minute among as many as
// it takes. All but the first are of amounts only.
func (s *shape) spill(values []int64) [][]int64 {
	const most = mostOfMinute
	rows := [][]int64{values}
	for i, c := range s.cols {
		for n, rest := 0, values[i]; c.how == add && (rest > most || rest < -most); n++ {
			if n+1 == len(rows) {
				more := make([]int64, len(s.cols))
				more[colRev], more[colRough] = values[colRev], values[colRough]&(holdsHour|holdsDay)
				rows = append(rows, more)
			}
			part := min(max(rest, -most), most)
			rows[n][i], rest = part, rest-part
			rows[n+1][i] = rest
		}
	}
	return rows
}

// put notes a row that is to be written, and which sums change by it.
func (c *change) put(t *txn, v level, k rowKey, values []int64) {
	table := c.table(v, k.minute)
	if _, ok := c.puts[table]; !ok {
		c.puts[table] = newHeap(c.shape)
	}
	c.puts[table].rows[k] = values
	if hour := k.minute - k.minute%hourMinutes; v == minutes && t.folded(hours, c.shape, k) {
		c.late[k.id] = c.late[k.id].with(k.minute)
		if hour >= t.HourFloor {
			c.touched[hours][rowKey{hour, k.id}] = true
		}
	}
	day := k.minute - k.minute%dayMinutes
	if v != minutes {
		c.late[k.id] = c.late[k.id].with(k.minute)
	}
	if v == days || t.folded(days, c.shape, k) {
		c.touched[days][rowKey{day, k.id}] = true
	}
}

// flush writes the rows that were put.
func (c *change) flush(t *txn) error {
	for _, table := range slices.Sorted(maps.Keys(c.puts)) {
		h := c.puts[table]
		if table != c.shape.hourTable() && table != c.shape.dayTable() {
			for k := range h.rows {
				if err := t.minutes(k.minute - k.minute%dayMinutes); err != nil {
					return err
				}
				break // all are of one day
			}
		}
		if err := t.put(table, h, c.shape.replace()); err != nil {
			return fmt.Errorf("%s: %w", table, err)
		}
	}
	clear(c.puts)
	return nil
}

// replace is the clause that puts a row in place of the one that is there.
func (s *shape) replace() string {
	var sets []string
	for _, c := range s.cols {
		sets = append(sets, c.name+" = excluded."+c.name)
	}
	return fmt.Sprintf(" ON CONFLICT (minute, %s) DO UPDATE SET %s", s.key, strings.Join(sets, ", "))
}

// sum makes the touched rows of hours or days anew, of the finer rows that they
// are the sums of.
func (c *change) sum(t *txn, v level) error {
	keys := map[int64][]int64{}
	for k := range c.touched[v] {
		keys[k.minute] = append(keys[k.minute], k.id)
	}
	for _, span := range slices.Sorted(maps.Keys(keys)) {
		from := t.finest(span)
		if v == days && span >= t.HourFloor {
			from = hours // fewer rows, of the same sums
		}
		if from >= v {
			continue // it was told itself
		}
		sums := newHeap(c.shape)
		err := c.each(t, from, span, span+v.width(), keys[span], func(k rowKey, values []int64) {
			k.minute = span
			if have, ok := sums.rows[k]; ok {
				sums.saturate(have, values)
				return
			}
			sums.rows[k] = slices.Clone(values)
		})
		if err != nil {
			return err
		}
		for k, values := range sums.rows {
			values[colRev] = t.rev
			table := c.table(v, span)
			if _, ok := c.puts[table]; !ok {
				c.puts[table] = newHeap(c.shape)
			}
			c.puts[table].rows[k] = values
		}
	}
	return nil
}

// saturate adds a row to another; a sum that does not fit stays at the largest
// value, as where days are folded.
func (h heap) saturate(have, values []int64) {
	for i, c := range h.shape.cols {
		switch a, b := have[i], values[i]; c.how {
		case add:
			switch {
			case b > 0 && a > math.MaxInt64-b:
				have[i] = math.MaxInt64
			case b < 0 && a < -math.MaxInt64-b:
				have[i] = -math.MaxInt64
			default:
				have[i] = a + b
			}
		case highest:
			have[i] = max(a, b)
		case bits:
			have[i] = a | b
		case latest:
		}
	}
}

// note marks the days whose groups have changed, and when workloads were used.
func (c *change) note(t *txn) error {
	if c.shape != usageShape {
		return nil
	}
	for id, s := range c.late {
		if err := t.used(id, s); err != nil {
			return err
		}
	}
	stale := map[int64]bool{}
	for k := range c.touched[days] {
		stale[k.minute] = true
	}
	for day := range stale {
		if err := t.stale(day); err != nil {
			return err
		}
	}
	return nil
}

// each calls f with the rows of some keys in [from, to) of the tables of a
// level, without those that wait to be replaced. What f is given is its own only
// as long as it runs.
func (c *change) each(t *txn, v level, from, to int64, keys []int64, f func(rowKey, []int64)) error {
	if v == minutes {
		if err := t.minutes(from - from%dayMinutes); err != nil {
			return err
		}
	}
	var spans strings.Builder
	for m := from; m < to; m += v.width() {
		if m > from {
			spans.WriteString(", ")
		}
		fmt.Fprint(&spans, m)
	}
	table := c.table(v, from)
	waiting := c.puts[table].rows
	for chunk := range slices.Chunk(keys, 200) {
		var k rowKey
		values := make([]int64, len(c.shape.cols))
		dest := []any{&k.minute, &k.id}
		for i := range values {
			dest = append(dest, &values[i])
		}
		// Not prepared: each is another text.
		err := each(t.ctx, t.tx, func(scan func(...any) error) error {
			if err := scan(dest...); err != nil {
				return err
			}
			if _, ok := waiting[k]; !ok {
				f(k, values)
			}
			return nil
		}, fmt.Sprintf("SELECT %s FROM %s WHERE minute IN (%s) AND %s IN (%s)", c.shape.names(), table, spans.String(), c.shape.key, join(chunk)))
		if err != nil {
			return t.l.d.fault(err)
		}
	}
	return nil
}

package wire

import (
	"fmt"
	"math"
	"slices"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/proto"
)

func fromMessage(m *proto.Batch, l Limits) (*batch.Batch, error) {
	b := &batch.Batch{Number: m.Number}
	switch {
	case m.Version == 0:
		return nil, invalid("it says no version of its layout")
	case m.Version > layoutVersion:
		return nil, newerError("layout %d is unknown", m.Version)
	case len(m.Stream) != len(b.Stream):
		return nil, invalid("stream of %d bytes, not %d", len(m.Stream), len(b.Stream))
	case len(m.Previous) != 0 && len(m.Previous) != len(b.Previous):
		return nil, invalid("previous hash of %d bytes, not %d", len(m.Previous), len(b.Previous))
	}
	copy(b.Stream[:], m.Stream)
	copy(b.Previous[:], m.Previous)
	for i, n := range m.Names {
		name, err := nameFrom(n, l)
		if err != nil {
			return nil, fmt.Errorf("name %d: %w", i, err)
		}
		b.Names = append(b.Names, name)
	}
	for i, g := range m.Gaps {
		gap, err := gapFrom(g, l)
		if err != nil {
			return nil, fmt.Errorf("gap %d: %w", i, err)
		}
		b.Gaps = append(b.Gaps, gap)
	}
	if err := windowsFrom(b, m, l); err != nil {
		return nil, err
	}
	if err := balancesFrom(b.Windows, m.Balances); err != nil {
		return nil, fmt.Errorf("balances: %w", err)
	}
	if err := handoversFrom(b.Windows, m.Handovers, l); err != nil {
		return nil, fmt.Errorf("handovers: %w", err)
	}
	if err := volumesFrom(b.Windows, m.Volumes, l); err != nil {
		return nil, fmt.Errorf("volumes: %w", err)
	}
	if err := rowsFrom(b, m, l); err != nil {
		return nil, fmt.Errorf("rows: %w", err)
	}
	if err := connectionsFrom(b.Windows, m.Connections, l); err != nil {
		return nil, fmt.Errorf("connections: %w", err)
	}
	if err := machineFrom(b, m.Machine); err != nil {
		return nil, fmt.Errorf("machine: %w", err)
	}
	return b, nil
}

// windowsFrom reads what windows are without their rows.
func windowsFrom(b *batch.Batch, m *proto.Batch, l Limits) error {
	if len(m.Windows) > 0 {
		b.Windows = make([]usage.Window, len(m.Windows))
	}
	var last usage.Window
	for i, w := range m.Windows {
		now := usage.Window{
			Boot: last.Boot, Extent: last.Extent, Start: last.End + w.Start, Offset: last.Offset + w.Offset,
			StartReason: usage.StartReason(w.Opening), CPUs: int(w.Cpus),
			Balance: usage.Balance{Violations: w.Violations, Lost: w.Lost},
		}
		if w.Boot != nil {
			now.Boot, now.Start = *w.Boot, w.Start
			if err := checkTexts(l, now.Boot); err != nil {
				return fmt.Errorf("window %d: boot: %w", i, err)
			}
		}
		if w.Scope != nil {
			if now.Scope = usage.Scope(*w.Scope); !now.Scope.IsValid() {
				return invalid("window %d: scope %q", i, *w.Scope)
			}
			if now.Ancestors = usage.Ancestors(w.Ancestors); !now.Ancestors.IsValid() {
				return invalid("window %d: ancestors %q", i, w.Ancestors)
			}
		}
		now.End = now.Start + int64(w.Length)
		switch {
		case now.Start < 0 || w.Length > math.MaxInt64 || now.End < now.Start:
			return invalid("window %d: from %d, of %d ns", i, now.Start, w.Length)
		case now.Boot == last.Boot && now.Start < last.End:
			return invalid("window %d: begins at %d, before the end of the previous window at %d", i, now.Start, last.End)
		case now.Offset > math.MaxInt64-now.End:
			return invalid("window %d: offset %d", i, now.Offset)
		case w.Opening < proto.Opening_OPENING_CONTINUES || w.Opening > proto.Opening_OPENING_BOOTED:
			return invalid("window %d: opening %d is unknown", i, w.Opening)
		case w.Cpus > math.MaxInt32:
			return invalid("window %d: %d CPUs", i, w.Cpus)
		}
		b.Windows[i], last = now, now
	}
	return nil
}

func balancesFrom(windows []usage.Window, m *proto.Balances) error {
	if m == nil {
		return nil
	}
	n := len(m.Resources) * len(windows)
	for _, column := range [][]int64{m.Workloads, m.System, m.Idle, m.Skew, m.Rest} {
		if !isComplete(column, n) {
			return invalid("%d numbers for %d windows of %d resources", len(column), len(windows), len(m.Resources))
		}
	}
	var seen usage.Set
	for k, number := range m.Resources {
		i := slices.IndexFunc(usage.Wholes[:], func(r usage.Resource) bool { return proto.Resource(r) == number })
		switch {
		case i < 0:
			return unknownResource(int64(number))
		case seen.Has(usage.Wholes[i]):
			return invalid("%v: twice", usage.Wholes[i])
		}
		seen |= usage.SetOf(usage.Wholes[i])
		for j := range windows {
			b, at := &windows[j].Balance, k*len(windows)+j
			b.Workloads[i], b.System[i], b.Idle[i] = elementAt(m.Workloads, at), elementAt(m.System, at), elementAt(m.Idle, at)
			b.Skew[i] = elementAt(m.Skew, at)
			b.Whole[i] = whole(b, i) + elementAt(m.Rest, at)
		}
	}
	return nil
}

// rowsFrom reads the rows of all windows into one slice, of which each window
// has its part.
func rowsFrom(b *batch.Batch, m *proto.Batch, l Limits) error {
	total := uint64(0)
	for _, w := range m.Windows {
		total += uint64(w.Rows)
	}
	steps := m.Rows.GetWorkload()
	switch {
	case total > uint64(l.Rows):
		return invalid("%d, more than %d", total, l.Rows)
	case uint64(len(steps)) != total:
		return invalid("%d workloads for %d rows", len(steps), total)
	case len(m.Workloads) > len(steps):
		return invalid("%d workloads are listed for %d rows", len(m.Workloads), total)
	}
	for i := 1; i < len(m.Workloads); i++ {
		if m.Workloads[i-1] >= m.Workloads[i] {
			return invalid("the list of workloads is not in ascending order")
		}
	}
	rows, lines := make([]usage.Row, total), make([]line, total)
	last := slices.Repeat([]int{-1}, len(m.Workloads))
	n := 0
	for i := range b.Windows {
		w, first, next := &b.Windows[i], n, int64(0)
		for range m.Windows[i].Rows {
			place := next + steps[n]
			if place < 0 || place >= int64(len(last)) {
				return invalid("row %d is of workload %d of %d", n, place, len(last))
			}
			rows[n].ShortID = workload.ShortID(m.Workloads[place])
			lines[n] = line{Row: &rows[n], length: w.End - w.Start, place: int(place), before: last[place]}
			last[place], next = n, place+1
			n++
		}
		if n > first {
			w.Rows = rows[first:n:n]
		}
	}
	return tableFrom(lines, len(last), m.Rows)
}

// machineFrom reads what the machine did as a whole in each window.
func machineFrom(b *batch.Batch, m *proto.Table) error {
	if m == nil {
		return nil
	}
	if len(m.Workload) != 0 {
		return invalid("it names workloads")
	}
	rows, lines := make([]usage.Row, len(b.Windows)), make([]line, len(b.Windows))
	for i := range lines {
		lines[i] = line{Row: &rows[i], length: b.Windows[i].End - b.Windows[i].Start, before: i - 1}
	}
	if err := tableFrom(lines, 1, m); err != nil {
		return err
	}
	for i := range rows {
		b.Windows[i].Total = rows[i].Usage
	}
	return nil
}

// tableFrom fills the rows of lines from the columns; places is the number of
// workloads of lines.
func tableFrom(lines []line, places int, m *proto.Table) error {
	shapes := make([]shape, len(m.GetShapes()))
	for i, s := range m.GetShapes() {
		var err error
		if shapes[i], err = shapeFrom(s); err != nil {
			return fmt.Errorf("shape %d: %w", i, err)
		}
	}
	if len(m.GetShape()) != len(lines) {
		return invalid("%d shapes for %d rows", len(m.GetShape()), len(lines))
	}
	uncovered := m.GetUncovered()
	for i, n := range m.GetShape() {
		if int64(n) >= int64(len(shapes)) {
			return invalid("row %d is of shape %d of %d", i, n, len(shapes))
		}
		s, l := shapes[n], &lines[i]
		l.Has, l.Ended = s.has, s.ended
		l.Usage.Present, l.Usage.Quality, l.Usage.Covered = s.present, s.quality, time.Duration(l.length)
		if s.partial {
			if len(uncovered) == 0 {
				return invalid("row %d: its time without readings is missing", i)
			}
			l.Usage.Covered -= time.Duration(uncovered[0])
			uncovered = uncovered[1:]
			if l.Usage.Covered < 0 {
				return invalid("row %d: covered for %d ns", i, l.Usage.Covered)
			}
		}
	}
	if len(uncovered) > 0 {
		return invalid("%d times without readings too many", len(uncovered))
	}
	if err := readAmounts(lines, m.GetAmounts()); err != nil {
		return fmt.Errorf("amounts of %w", err)
	}
	if err := readTotals(lines, places, m.GetTotals()); err != nil {
		return fmt.Errorf("totals: %w", err)
	}
	return nil
}

// readAmounts reads the columns, each of which has to have as many numbers as there
// are lines with the resource.
func readAmounts(lines []line, list []*proto.Column) error {
	last := proto.Resource(0)
	for _, m := range list {
		switch {
		case m.Resource < 1 || m.Resource >= usage.Limit:
			return unknownResource(int64(m.Resource))
		case m.Resource <= last:
			return invalid("%v: after %v", usage.Resource(m.Resource), usage.Resource(last))
		case len(m.Values) > 0 && len(m.Deltas) > 0:
			return invalid("%v: values and deltas", usage.Resource(m.Resource))
		}
		last = m.Resource
		c := amountColumn(lines, usage.Resource(m.Resource))
		if err := c.read(m.Values, m.Deltas); err != nil {
			return fmt.Errorf("%v: %w", usage.Resource(m.Resource), err)
		}
	}
	return nil
}

func readTotals(lines []line, places int, list []int64) error {
	if n := countTotals(lines); n != len(list) {
		return invalid("%d, not %d", len(list), n)
	}
	negative := false
	eachTotal(lines, places, func(l *line, r usage.Resource, at int, foretold int64) int64 {
		l.Total[r] = foretold + list[at]
		negative = negative || l.Total[r] < 0
		return l.Total[r]
	})
	if negative {
		return invalid("one is negative")
	}
	return nil
}

package wire

import (
	"fmt"
	"slices"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/proto"
)

func batchMessage(b *batch.Batch) (*proto.Batch, error) {
	m := &proto.Batch{Version: layoutVersion, Stream: b.Stream[:], Number: b.Number}
	if b.Previous != (batch.Hash{}) {
		m.Previous = b.Previous[:]
	}
	for i := range b.Names {
		n, err := nameMessage(&b.Names[i])
		if err != nil {
			return nil, fmt.Errorf("name %d: %w", i, err)
		}
		m.Names = append(m.Names, n)
	}
	for i := range b.Gaps {
		g, err := gapMessage(&b.Gaps[i])
		if err != nil {
			return nil, fmt.Errorf("gap %d: %w", i, err)
		}
		m.Gaps = append(m.Gaps, g)
	}
	windows := b.Windows
	m.Workloads = workloads(windows)
	for i := range windows {
		m.Windows = append(m.Windows, windowMessage(windows, i))
	}
	m.Balances = balancesMessage(windows)
	var err error
	if m.Handovers, err = handoversMessage(windows); err != nil {
		return nil, err
	}
	m.Volumes = volumesMessage(windows)
	m.Connections = connectionsMessage(windows)
	lines := linesOf(windows, m.Workloads)
	m.Rows = tableMessage(lines, len(m.Workloads))
	m.Rows.Workload = placeSteps(windows, lines)
	if machine, ok := machineLines(windows); ok {
		m.Machine = tableMessage(machine, 1)
	}
	return m, nil
}

// workloads lists the workloads of all rows in ascending order.
func workloads(windows []usage.Window) (list []uint64) {
	for i := range windows {
		for j := range windows[i].Rows {
			list = append(list, uint64(windows[i].Rows[j].ShortID))
		}
		// Windows have about the same rows: the list stays as short as one.
		slices.Sort(list)
		list = slices.Compact(list)
	}
	return list
}

func windowMessage(windows []usage.Window, i int) *proto.Window {
	w := &windows[i]
	m := &proto.Window{
		Start: w.Start, Length: uint64(w.End - w.Start), Offset: w.Offset, Opening: proto.Opening(w.StartReason),
		Cpus: uint32(max(0, w.CPUs)), Rows: uint32(len(w.Rows)),
		Violations: w.Balance.Violations, Lost: w.Balance.Lost,
	}
	if i == 0 || windows[i-1].Boot != w.Boot {
		boot := cleanText(w.Boot)
		m.Boot = &boot
	} else {
		m.Start -= windows[i-1].End
	}
	var last usage.Window
	if i > 0 {
		m.Offset -= windows[i-1].Offset
		last = windows[i-1]
	}
	if w.Extent != last.Extent {
		scope := cleanText(string(w.Scope))
		m.Scope, m.Ancestors = &scope, cleanText(string(w.Ancestors))
	}
	return m
}

func balancesMessage(windows []usage.Window) *proto.Balances {
	var m proto.Balances
	for i, r := range usage.Wholes {
		if !slices.ContainsFunc(windows, func(w usage.Window) bool {
			b := &w.Balance
			return b.Whole[i]|b.Workloads[i]|b.System[i]|b.Idle[i]|b.Skew[i] != 0
		}) {
			continue
		}
		m.Resources = append(m.Resources, proto.Resource(r))
		for j := range windows {
			b := &windows[j].Balance
			m.Workloads, m.System, m.Idle = append(m.Workloads, b.Workloads[i]), append(m.System, b.System[i]), append(m.Idle, b.Idle[i])
			m.Skew, m.Rest = append(m.Skew, b.Skew[i]), append(m.Rest, b.Whole[i]-whole(b, i))
		}
	}
	if len(m.Resources) == 0 {
		return nil
	}
	m.Workloads, m.System, m.Idle = omitZeros(m.Workloads), omitZeros(m.System), omitZeros(m.Idle)
	m.Skew, m.Rest = omitZeros(m.Skew), omitZeros(m.Rest)
	return &m
}

// whole is what the parts of the i-th whole make it.
func whole(b *usage.Balance, i int) int64 {
	return b.Workloads[i] + b.System[i] + b.Idle[i] - b.Skew[i]
}

// linesOf makes the rows of all windows into lines.
func linesOf(windows []usage.Window, list []uint64) []line {
	var lines []line
	last := slices.Repeat([]int{-1}, len(list))
	for i := range windows {
		w := &windows[i]
		lines = slices.Grow(lines, len(w.Rows))
		for j := range w.Rows {
			place, _ := slices.BinarySearch(list, uint64(w.Rows[j].ShortID))
			lines = append(lines, line{Row: &w.Rows[j], length: w.End - w.Start, place: place, before: last[place]})
			last[place] = len(lines) - 1
		}
	}
	return lines
}

// placeSteps says for each line how far its place is from the one after that of the
// line before in the same window: all zeros where rows are in order and
// complete.
func placeSteps(windows []usage.Window, lines []line) []int64 {
	list := make([]int64, 0, len(lines))
	for i := range windows {
		next := 0
		for range windows[i].Rows {
			place := lines[len(list)].place
			list = append(list, int64(place-next))
			next = place + 1
		}
	}
	return list
}

// machineLines makes the windows' totals into lines of one workload; ok is
// false if all totals are empty.
func machineLines(windows []usage.Window) (lines []line, ok bool) {
	for i := range windows {
		w := &windows[i]
		lines = append(lines, line{Row: &usage.Row{Usage: w.Total}, length: w.End - w.Start, before: i - 1})
		ok = ok || w.Total.Present != 0 || w.Total.Covered != 0
	}
	return lines, ok
}

// tableMessage puts lines into columns; places is the number of workloads of lines.
func tableMessage(lines []line, places int) *proto.Table {
	m := &proto.Table{Shape: make([]uint32, 0, len(lines))}
	index := map[shape]uint32{}
	var present usage.Set
	for i := range lines {
		s := shapeOf(&lines[i])
		n, ok := index[s]
		if !ok {
			n = uint32(len(m.Shapes))
			index[s], m.Shapes = n, append(m.Shapes, s.message())
			present |= s.present
		}
		m.Shape = append(m.Shape, n)
		if s.partial {
			m.Uncovered = append(m.Uncovered, lines[i].length-int64(lines[i].Usage.Covered))
		}
	}
	present.Each(func(r usage.Resource) {
		if c := columnMessage(lines, r); c != nil {
			m.Amounts = append(m.Amounts, c)
		}
	})
	m.Totals = make([]int64, countTotals(lines))
	eachTotal(lines, places, func(l *line, r usage.Resource, at int, foretold int64) int64 {
		m.Totals[at] = l.Total[r] - foretold
		return l.Total[r]
	})
	return m
}

// columnMessage puts the amounts of r into a column, as values or as deltas:
// whichever takes fewer bytes. It is nil where all are 0.
func columnMessage(lines []line, r usage.Resource) *proto.Column {
	c, m := amountColumn(lines, r), &proto.Column{Resource: proto.Resource(r)}
	switch n, values, deltas, some := c.measure(); {
	case !some:
		return nil
	case deltas < values:
		m.Deltas = c.deltas(n)
	default:
		m.Values = c.values(n)
	}
	return m
}

package wire

import (
	"fmt"
	"math"
	"slices"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/usage"
	pb "mete.dev/mete/proto"
)

// A stateTable is the rows of a table of states.
type stateTable struct {
	usages []*usage.Usage
	nodes  []*batch.NodeMinute // nil where the rows are of workloads
	cpus   []int64             // of nodes
}

// A namedColumn is a column of a table of states, by the name that it is sent under.
type namedColumn struct {
	name string
	column
}

// columns are those of the table, in the order in which they are sent.
func (t *stateTable) columns() (list []namedColumn) {
	add := func(name string, c column) {
		c.rows, c.full = len(t.usages), true
		list = append(list, namedColumn{name, c})
	}
	usage.All.Each(func(r usage.Resource) {
		add(r.String(), column{at: func(i int) *int64 {
			if u := t.usages[i]; u.Present.Has(r) {
				return &u.Amount[r]
			}
			return nil
		}})
	})
	if t.nodes == nil {
		return list
	}
	add("cpus", column{limit: math.MaxInt32, at: func(i int) *int64 { return &t.cpus[i] }})
	add("violations", column{at: func(i int) *int64 { return &t.nodes[i].Violations }})
	add("lost", column{at: func(i int) *int64 { return &t.nodes[i].Lost }})
	for k, r := range usage.Wholes {
		add("whole_"+r.String(), column{at: func(i int) *int64 { return &t.nodes[i].Whole[k] }})
		add("skew_"+r.String(), column{signed: true, at: func(i int) *int64 { return &t.nodes[i].Skew[k] }})
	}
	return list
}

// write puts the rows into the columns of m, of which it has the minutes, keys and within.
func (t *stateTable) write(m *pb.StateTable) {
	for _, u := range t.usages {
		m.Present, m.Covered = append(m.Present, uint64(u.Present)), append(m.Covered, uint64(u.Covered/time.Millisecond))
		m.Quality, m.QualityHigh = append(m.Quality, u.Quality[0]), append(m.QualityHigh, u.Quality[1])
	}
	m.Within, m.QualityHigh = omitZeros(m.Within), omitZeros(m.QualityHigh)
	for _, c := range t.columns() {
		if list := omitZeros(c.deltas(c.rows)); list != nil {
			m.Columns = append(m.Columns, &pb.StateColumn{Name: c.name, Values: list})
		}
	}
}

// read fills the rows from the columns of m, of which there are as many.
func (t *stateTable) read(m *pb.StateTable) error {
	for i, u := range t.usages {
		u.Present, u.Quality[0] = usage.Set(m.Present[i]), m.Quality[i]
		if m.QualityHigh != nil {
			u.Quality[1] = m.QualityHigh[i]
		}
		if err := checkPresent(u.Present); err != nil {
			return fmt.Errorf("row %d: %w", i, err)
		}
		if m.Covered[i] > math.MaxInt64/uint64(time.Millisecond) || u.Quality.Only(u.Present) != u.Quality {
			return invalid("row %d: covered for %d ms, or a quality of nothing", i, m.Covered[i])
		}
		u.Covered = time.Duration(m.Covered[i]) * time.Millisecond
	}
	known, seen := map[string]column{}, map[string]bool{}
	for _, c := range t.columns() {
		known[c.name] = c.column
	}
	for _, mc := range m.Columns {
		c, ok := known[mc.Name]
		switch {
		case !ok:
			return newerError("column %.32q is unknown", mc.Name)
		case seen[mc.Name]:
			return invalid("column %q: twice", mc.Name)
		}
		seen[mc.Name] = true
		if err := c.read(nil, mc.Values); err != nil {
			return fmt.Errorf("column %q: %w", mc.Name, err)
		}
	}
	return nil
}

// workloadRowsMessage puts the rows of workloads of one resolution into a table.
func workloadRowsMessage(p *replica.Page, v replica.Resolution) *pb.StateTable {
	m, last := &pb.StateTable{Level: uint32(v)}, int64(0)
	var t stateTable
	for i := range p.Rows {
		if r := &p.Rows[i]; r.Resolution == v {
			m.Minute, m.Key, last = append(m.Minute, r.Minute-last), append(m.Key, uint32(r.Workload)), r.Minute
			t.usages = append(t.usages, &r.Usage)
			m.Within = append(m.Within, uint32(r.Within))
		}
	}
	t.write(m)
	return m
}

// nodeRowsMessage puts the rows of nodes of one resolution into a table.
func nodeRowsMessage(p *replica.Page, v replica.Resolution) *pb.StateTable {
	m, last := &pb.StateTable{Level: uint32(v)}, int64(0)
	var t stateTable
	for i := range p.NodeRows {
		if r := &p.NodeRows[i]; r.Resolution == v {
			m.Minute, m.Key, last = append(m.Minute, r.Minute-last), append(m.Key, uint32(r.Node)), r.Minute
			u := r.Total
			u.Covered = r.Covered
			t.usages, t.nodes, t.cpus = append(t.usages, &u), append(t.nodes, &r.NodeMinute), append(t.cpus, int64(r.CPUs))
			m.Within = append(m.Within, uint32(r.Within))
		}
	}
	t.write(m)
	return m
}

// tablesFrom reads the rows of all tables.
func tablesFrom(p *replica.Page, m *pb.States, l Limits) error {
	total := 0
	for _, t := range slices.Concat(m.Rows, m.NodeRows) {
		n := len(t.Key)
		total += n
		switch {
		case total > l.Rows:
			return invalid("more than %d rows", l.Rows)
		case t.Level > uint32(replica.Day):
			return invalid("rows of level %d", t.Level)
		case len(t.Minute) != n || len(t.Present) != n || len(t.Quality) != n || len(t.Covered) != n, !isComplete(t.Within, n), !isComplete(t.QualityHigh, n):
			return invalid("%d rows of level %d do not have all columns", n, t.Level)
		}
	}
	for _, t := range m.Rows {
		if err := workloadRowsFrom(p, t); err != nil {
			return err
		}
	}
	for _, t := range m.NodeRows {
		if err := nodeRowsFrom(p, t); err != nil {
			return err
		}
	}
	return nil
}

// workloadRowsFrom reads the rows of workloads of a table.
func workloadRowsFrom(p *replica.Page, m *pb.StateTable) error {
	first, last := len(p.Rows), int64(0)
	p.Rows = append(p.Rows, make([]replica.Row, len(m.Key))...)
	rows := p.Rows[first:]
	t := stateTable{usages: make([]*usage.Usage, len(rows))}
	for i := range rows {
		r := &rows[i]
		last += m.Minute[i]
		r.Resolution, r.Minute, r.Workload = replica.Resolution(m.Level), last, int(m.Key[i])
		if m.Within != nil {
			r.Within = int(m.Within[i])
		}
		t.usages[i] = &r.Usage
	}
	return t.read(m)
}

// nodeRowsFrom reads the rows of nodes of a table.
func nodeRowsFrom(p *replica.Page, m *pb.StateTable) error {
	first, last := len(p.NodeRows), int64(0)
	p.NodeRows = append(p.NodeRows, make([]replica.NodeRow, len(m.Key))...)
	rows := p.NodeRows[first:]
	t := stateTable{usages: make([]*usage.Usage, len(rows)), nodes: make([]*batch.NodeMinute, len(rows)), cpus: make([]int64, len(rows))}
	for i := range rows {
		r := &rows[i]
		last += m.Minute[i]
		r.Resolution, r.Minute, r.Node = replica.Resolution(m.Level), last, int(m.Key[i])
		if m.Within != nil {
			r.Within = int(m.Within[i])
		}
		t.usages[i], t.nodes[i] = &r.Total, &r.NodeMinute
	}
	err := t.read(m)
	for i := range rows {
		r := &rows[i]
		r.CPUs, r.Covered, r.Total.Covered = int(t.cpus[i]), r.Total.Covered, 0
	}
	return err
}

package wire

import (
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/usage"
	pb "mete.dev/mete/proto"
)

// MediaTypeStates is the Content-Type of a page of states in a request.
const MediaTypeStates = "application/vnd.mete.states"

// EncodeStates appends a page to dst as it is sent.
func EncodeStates(dst []byte, p *replica.Page) ([]byte, error) {
	m := &pb.States{Version: layoutVersion, Sequence: p.From.Sequence, From: p.From.Position, To: p.To}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		sn := &pb.StateNode{
			Id: cleanText(n.ID), Cluster: cleanText(n.Cluster), Name: cleanText(n.Name), MachineId: cleanText(n.MachineID), Boot: cleanText(n.Boot),
			Enrolled: ledgerNanos(n.At), Pool: cleanText(n.Pool), Cpus: uint32(n.CPUs), CpuMinute: n.CPUMinute, Revoked: ledgerNanos(n.Revoked), Through: ledgerNanos(n.Through),
		}
		if h := &n.Host; h.Node != "" {
			sn.Host = &pb.StateHost{Node: cleanText(h.Node), Workload: uint64(h.Workload), Since: ledgerNanos(h.Since), Seen: ledgerNanos(h.Seen)}
		}
		m.Nodes = append(m.Nodes, sn)
	}
	for i := range p.Workloads {
		w := &p.Workloads[i]
		sw := &pb.StateWorkload{Node: uint32(w.Node), Short: uint64(w.Short)}
		if w.Name != nil {
			sw.Changed, sw.Named = true, ledgerNanos(w.Named)
			sw.Namespace, sw.Pod, sw.Container = cleanText(w.Namespace), cleanText(w.Pod), cleanText(w.Container)
			if w.Name.ID != "" {
				var err error
				if sw.Name, err = nameMessage(w.Name); err != nil {
					return dst, fmt.Errorf("workload %d: %w", i, err)
				}
			}
		}
		m.Workloads = append(m.Workloads, sw)
	}
	for v := replica.Minute; v <= replica.Day; v++ {
		if t := usageTable(p, v); len(t.Key) > 0 {
			m.Rows = append(m.Rows, t)
		}
		if t := nodeTable(p, v); len(t.Key) > 0 {
			m.NodeRows = append(m.NodeRows, t)
		}
	}
	for i := range p.Gaps {
		g, err := gapMessage(&p.Gaps[i].Gap)
		if err != nil {
			return dst, fmt.Errorf("gap %d: %w", i, err)
		}
		m.Gaps = append(m.Gaps, &pb.StateGap{Node: uint32(p.Gaps[i].Node), Gap: g, Booked: ledgerNanos(p.Gaps[i].Booked)})
	}
	for i := range p.Shifts {
		s := &p.Shifts[i]
		m.Shifts = append(m.Shifts, &pb.StateShift{Node: uint32(s.Node), Boot: cleanText(s.Boot), At: ledgerNanos(s.At), By: int64(s.By), From: ledgerNanos(s.From)})
	}
	for _, n := range p.Nestings {
		m.Nestings = append(m.Nestings, &pb.StateNesting{Node: uint32(n.Node), Host: uint32(n.Host + 1), Workload: uint32(n.Workload + 1), Minute: n.Minute})
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return dst, fmt.Errorf("page: %w", err)
	}
	return compress(dst, raw), nil
}

// ledgerNanos is for times out of a ledger, which holds them as ns.
func ledgerNanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// A nodeColumn is a number of a row of nodes that is none of a resource.
type nodeColumn struct {
	name   string
	signed bool
	at     func(*batch.NodeMinute) *int64
}

// nodeColumns are the columns of a node's row, by the names that they are sent under.
var nodeColumns = func() []nodeColumn {
	list := []nodeColumn{
		{"violations", false, func(n *batch.NodeMinute) *int64 { return &n.Violations }},
		{"lost", false, func(n *batch.NodeMinute) *int64 { return &n.Lost }},
	}
	for i, r := range usage.Wholes {
		list = append(list,
			nodeColumn{"whole_" + r.String(), false, func(n *batch.NodeMinute) *int64 { return &n.Whole[i] }},
			nodeColumn{"skew_" + r.String(), true, func(n *batch.NodeMinute) *int64 { return &n.Skew[i] }})
	}
	return list
}()

// cpus is the name of the one number that is no int64.
const cpus = "cpus"

func usageTable(p *replica.Page, v replica.Resolution) *pb.StateTable {
	t, last := &pb.StateTable{Level: uint32(v)}, int64(0)
	var us []*usage.Usage
	for i := range p.Rows {
		if r := &p.Rows[i]; r.Resolution == v {
			t.Minute, t.Key, last = append(t.Minute, r.Minute-last), append(t.Key, uint32(r.Workload)), r.Minute
			us = append(us, &r.Usage)
		}
	}
	usageColumns(t, us)
	return t
}

func nodeTable(p *replica.Page, v replica.Resolution) *pb.StateTable {
	t, last := &pb.StateTable{Level: uint32(v)}, int64(0)
	var us []*usage.Usage
	var rows []*replica.NodeRow
	for i := range p.NodeRows {
		if r := &p.NodeRows[i]; r.Resolution == v {
			t.Minute, t.Key, last = append(t.Minute, r.Minute-last), append(t.Key, uint32(r.Node)), r.Minute
			u := r.Total
			u.Covered = r.Covered
			us, rows = append(us, &u), append(rows, r)
		}
	}
	usageColumns(t, us)
	column(t, cpus, len(rows), func(i int) int64 { return int64(rows[i].CPUs) })
	for _, part := range nodeColumns {
		column(t, part.name, len(rows), func(i int) int64 { return *part.at(&rows[i].NodeMinute) })
	}
	return t
}

func usageColumns(t *pb.StateTable, us []*usage.Usage) {
	for _, u := range us {
		t.Present, t.Quality = append(t.Present, uint64(u.Present)), append(t.Quality, uint64(u.Quality))
		t.Covered = append(t.Covered, uint64(u.Covered/time.Millisecond))
	}
	usage.All.Each(func(r usage.Resource) {
		column(t, r.String(), len(us), func(i int) int64 {
			v, ok := us[i].Get(r)
			if !ok {
				return 0
			}
			return v
		})
	})
}

// column adds a column of n numbers, unless all are 0.
func column(t *pb.StateTable, name string, n int, at func(int) int64) {
	values, any := make([]int64, n), int64(0)
	for i := range values {
		values[i] = at(i)
		any |= values[i]
	}
	if any != 0 {
		t.Columns = append(t.Columns, &pb.StateColumn{Name: name, Values: values})
	}
}

// DecodeStates reads what EncodeStates wrote. Errors wrap fault.ErrInvalid. What
// is read has passed [replica.Page.Check]. Of the limits, Rows counts those of
// workloads and nodes together, and Names the workloads.
func DecodeStates(src []byte, l Limits) (*replica.Page, error) {
	raw, err := decompress(src, l)
	if err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	most := map[protoreflect.Name]int{
		"StateNode": l.Names, "StateWorkload": l.Names, "Name": l.Names, "LabelsEntry": l.Names * l.Labels,
		"StateTable": 6, "StateColumn": 6 * 64, "StateGap": l.Gaps, "Gap": l.Gaps, "StateShift": l.Gaps,
		"StateHost": l.Names, "StateNesting": l.Names,
	}
	if err := countMessages(raw, pb.File_states_proto.Messages().ByName("States"), most); err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	var m pb.States
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(raw, &m); err != nil {
		return nil, fmt.Errorf("page: %w: %w", err, fault.ErrInvalid)
	}
	p, err := pageFrom(&m, l)
	if err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	return p, p.Check()
}

func pageFrom(m *pb.States, l Limits) (*replica.Page, error) {
	switch {
	case m.Version == 0:
		return nil, invalid("it says no version of its layout")
	case m.Version > layoutVersion:
		return nil, newerError("layout %d is unknown", m.Version)
	}
	p := &replica.Page{From: replica.Mark{Sequence: m.Sequence, Position: m.From}, To: m.To}
	if err := checkTexts(l, m.From, m.To); err != nil {
		return nil, err
	}
	for i, n := range m.Nodes {
		if n.Cpus > math.MaxInt32 {
			return nil, invalid("node %d: %d CPUs", i, n.Cpus)
		}
		if err := checkTexts(l, n.Id, n.Cluster, n.Name, n.MachineId, n.Boot, n.Pool); err != nil {
			return nil, fmt.Errorf("node %d: %w", i, err)
		}
		p.Nodes = append(p.Nodes, replica.Node{
			Node: registry.Node{ID: n.Id, Cluster: n.Cluster, Name: n.Name, MachineID: n.MachineId, Boot: n.Boot, At: timeFromNanos(n.Enrolled)},
			Pool: n.Pool, CPUs: int(n.Cpus), CPUMinute: n.CpuMinute, Revoked: timeFromNanos(n.Revoked), Through: timeFromNanos(n.Through),
		})
		if h := n.Host; h != nil && h.Node != "" {
			if err := checkTexts(l, h.Node); err != nil {
				return nil, fmt.Errorf("node %d: host: %w", i, err)
			}
			p.Nodes[i].Host = replica.Host{Node: h.Node, Workload: batch.ShortID(h.Workload), Since: timeFromNanos(h.Since), Seen: timeFromNanos(h.Seen)}
		}
	}
	for i, sw := range m.Workloads {
		w := replica.Workload{Node: int(sw.Node), Short: batch.ShortID(sw.Short)}
		if sw.Changed {
			w.Name, w.Named, w.Namespace, w.Pod, w.Container = &batch.Name{}, timeFromNanos(sw.Named), sw.Namespace, sw.Pod, sw.Container
			if err := checkTexts(l, sw.Namespace, sw.Pod, sw.Container); err != nil {
				return nil, fmt.Errorf("workload %d: %w", i, err)
			}
		}
		if sw.Changed && sw.Name != nil {
			n, err := nameFrom(sw.Name, l)
			if err != nil {
				return nil, fmt.Errorf("workload %d: %w", i, err)
			}
			w.Name = &n
		}
		p.Workloads = append(p.Workloads, w)
	}
	for i, g := range m.Gaps {
		if g.Gap == nil {
			return nil, invalid("gap %d: it is not there", i)
		}
		gap, err := gapFrom(g.Gap, l)
		if err != nil {
			return nil, fmt.Errorf("gap %d: %w", i, err)
		}
		p.Gaps = append(p.Gaps, replica.Gap{Node: int(g.Node), Gap: gap, Booked: timeFromNanos(g.Booked)})
	}
	for i, s := range m.Shifts {
		if err := checkTexts(l, s.Boot); err != nil {
			return nil, fmt.Errorf("shift %d: %w", i, err)
		}
		p.Shifts = append(p.Shifts, replica.Shift{Node: int(s.Node), Shift: batch.Shift{Boot: s.Boot, At: timeFromNanos(s.At), By: time.Duration(s.By), From: timeFromNanos(s.From)}})
	}
	for _, n := range m.Nestings {
		p.Nestings = append(p.Nestings, replica.Nesting{Node: int(n.Node), Host: int(n.Host) - 1, Workload: int(n.Workload) - 1, Minute: n.Minute})
	}
	return p, tablesFrom(p, m, l)
}

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
		case len(t.Minute) != n || len(t.Present) != n || len(t.Quality) != n || len(t.Covered) != n:
			return invalid("%d rows of level %d do not have all columns", n, t.Level)
		}
	}
	for _, t := range m.Rows {
		first := len(p.Rows)
		p.Rows = append(p.Rows, make([]replica.Row, len(t.Key))...)
		rows, last := p.Rows[first:], int64(0)
		for i := range rows {
			last += t.Minute[i]
			rows[i].Resolution, rows[i].Minute, rows[i].Workload = replica.Resolution(t.Level), last, int(t.Key[i])
		}
		if err := columnsFrom(t, func(i int) *usage.Usage { return &rows[i].Usage }, nil); err != nil {
			return err
		}
	}
	for _, t := range m.NodeRows {
		first := len(p.NodeRows)
		p.NodeRows = append(p.NodeRows, make([]replica.NodeRow, len(t.Key))...)
		rows, last := p.NodeRows[first:], int64(0)
		for i := range rows {
			last += t.Minute[i]
			rows[i].Resolution, rows[i].Minute, rows[i].Node = replica.Resolution(t.Level), last, int(t.Key[i])
		}
		if err := columnsFrom(t, func(i int) *usage.Usage { return &rows[i].Total }, func(i int) *batch.NodeMinute { return &rows[i].NodeMinute }); err != nil {
			return err
		}
		for i := range rows {
			rows[i].Covered, rows[i].Total.Covered = rows[i].Total.Covered, 0
		}
	}
	return nil
}

// columnsFrom fills rows from the columns of a table; node is nil where they are
// of workloads.
func columnsFrom(t *pb.StateTable, used func(int) *usage.Usage, node func(int) *batch.NodeMinute) error {
	for i := range t.Key {
		u := used(i)
		u.Present, u.Quality = usage.Set(t.Present[i]), usage.Qualities(t.Quality[i])
		if u.Present&^usage.All != 0 {
			return newerError("a resource is unknown")
		}
		var q usage.Qualities
		u.Present.Each(func(r usage.Resource) { q.Set(r, u.Quality.Get(r)) })
		if t.Covered[i] > math.MaxInt64/uint64(time.Millisecond) || q != u.Quality {
			return invalid("row %d: covered for %d ms, or a quality of nothing", i, t.Covered[i])
		}
		u.Covered = time.Duration(t.Covered[i]) * time.Millisecond
	}
	seen := map[string]bool{}
	for _, c := range t.Columns {
		at := columnSetter(c.Name, used, node)
		switch {
		case at == nil:
			return newerError("column %.32q is unknown", c.Name)
		case seen[c.Name] || len(c.Values) != len(t.Key):
			return invalid("column %q: %d numbers for %d rows, or twice", c.Name, len(c.Values), len(t.Key))
		}
		seen[c.Name] = true
		for i, v := range c.Values {
			if err := at(i, v); err != nil {
				return fmt.Errorf("column %q: %w", c.Name, err)
			}
		}
	}
	return nil
}

// columnSetter says where the numbers of a column belong; nil is nowhere.
func columnSetter(name string, used func(int) *usage.Usage, node func(int) *batch.NodeMinute) (at func(i int, v int64) error) {
	usage.All.Each(func(r usage.Resource) {
		if r.String() != name {
			return
		}
		at = func(i int, v int64) error {
			if u := used(i); u.Present.Has(r) {
				u.Amount[r] = v
			} else if v != 0 {
				return invalid("row %d has an amount of what is absent", i)
			}
			return nil
		}
	})
	if node == nil || at != nil {
		return at
	}
	if name == cpus {
		return func(i int, v int64) error {
			if v < 0 || v > math.MaxInt32 {
				return invalid("%d CPUs", v)
			}
			node(i).CPUs = int(v)
			return nil
		}
	}
	for _, part := range nodeColumns {
		if part.name == name {
			return func(i int, v int64) error {
				if v < 0 && !part.signed {
					return invalid("row %d: %d", i, v)
				}
				*part.at(node(i)) = v
				return nil
			}
		}
	}
	return nil
}

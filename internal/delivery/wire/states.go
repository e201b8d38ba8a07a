package wire

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/workload"
	pb "mete.dev/mete/proto"
)

// MediaTypeStates is the Content-Type of a page of states in a request.
const MediaTypeStates = "application/vnd.mete.states"

// The layouts of pages. A server refuses one that it does not know: it would take a row within a node, or of a later
// version of a workload, for another row of the same time.
const (
	withinLayout   = 2 // rows are within nodes
	versionsLayout = 3 // workloads have versions
)

// EncodeStates appends a page to dst as it is sent.
func EncodeStates(dst []byte, p *replica.Page) ([]byte, error) {
	m := &pb.States{Version: layoutVersion, Sequence: p.From.Sequence, From: p.From.Position, To: p.To, Within: p.Within}
	switch {
	case p.SaysVersions():
		m.Version = versionsLayout
	case p.SaysWithin():
		m.Version = withinLayout
	}
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
		sw := &pb.StateWorkload{Node: uint32(w.Node), Short: uint64(w.Short), From: w.From, Next: w.Next}
		if w.Name != nil {
			sw.Changed, sw.Named = true, ledgerNanos(w.Named)
			sw.Namespace, sw.Pod, sw.Container = cleanText(w.Namespace), cleanText(w.Pod), cleanText(w.Container)
			if r := &w.Run; r.ID != "" {
				sw.Run = &pb.StateRun{Id: cleanText(string(r.ID)), Name: cleanText(r.Name), Started: ledgerNanos(withinYears(r.Started)), Ended: ledgerNanos(withinYears(r.Ended))}
				if r.Exit != nil {
					sw.Run.Exit = new(int32(*r.Exit))
				}
			}
			if w.Name.ID != "" {
				name := *w.Name
				name.Started, name.Ended = withinYears(name.Started), withinYears(name.Ended)
				var err error
				if sw.Name, err = nameMessage(&name); err != nil {
					return dst, fmt.Errorf("workload %d: %w", i, err)
				}
			}
		}
		m.Workloads = append(m.Workloads, sw)
	}
	for v := replica.Minute; v <= replica.Day; v++ {
		if t := workloadRowsMessage(p, v); len(t.Key) > 0 {
			m.Rows = append(m.Rows, t)
		}
		if t := nodeRowsMessage(p, v); len(t.Key) > 0 {
			m.NodeRows = append(m.NodeRows, t)
		}
	}
	for i := range p.Gaps {
		gap := p.Gaps[i].Gap
		gap.From, gap.To = withinYears(gap.From), withinYears(gap.To)
		g, err := gapMessage(&gap)
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
	m.Connections = stateConnectionsMessage(p)
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

// withinYears returns a time that a batch can have: one that is too far away, which a sender may have stated, would keep
// all other rows from being sent.
func withinYears(t time.Time) time.Time {
	const most = 9_000_000_000 // s, the year 2255
	if s := t.Unix(); t.IsZero() || s > -most && s < most {
		return t
	} else if s > 0 {
		return time.Unix(most, 0).UTC()
	}
	return time.Unix(-most, 0).UTC()
}

// DecodeStates decodes the output of EncodeStates. Errors wrap fault.ErrInvalid, or
// ErrNewer. The page that it returns has passed [replica.Page.Check]. Of the limits, Rows
// applies to the rows of workloads and nodes together, and Names to the workloads.
func DecodeStates(src []byte, l Limits) (*replica.Page, error) {
	raw, err := decompress(src, l)
	if err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	most := map[protoreflect.Name]int{
		"StateNode": l.Names, "StateWorkload": l.Names, "Name": l.Names, "LabelsEntry": l.Names * l.Labels,
		"StateTable": 6, "StateColumn": 6 * 64, "StateGap": l.Gaps, "Gap": l.Gaps, "StateShift": l.Gaps,
		"StateHost": l.Names, "StateNesting": l.Names, "StateRun": l.Names,
		"StateConnections": 1, "Connections": 1,
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
	case m.Version > versionsLayout:
		return nil, newerError("layout %d is unknown", m.Version)
	}
	p := &replica.Page{From: replica.Mark{Sequence: m.Sequence, Position: m.From}, To: m.To, Within: m.Within}
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
			p.Nodes[i].Host = replica.Host{Node: h.Node, Workload: workload.ShortID(h.Workload), Since: timeFromNanos(h.Since), Seen: timeFromNanos(h.Seen)}
		}
	}
	for i, sw := range m.Workloads {
		w := replica.Workload{Node: int(sw.Node), Short: workload.ShortID(sw.Short), From: sw.From, Next: sw.Next}
		if sw.Changed {
			var err error
			w.Name, w.Named, w.Namespace, w.Pod, w.Container = &batch.Name{}, timeFromNanos(sw.Named), sw.Namespace, sw.Pod, sw.Container
			if err := checkTexts(l, sw.Namespace, sw.Pod, sw.Container); err != nil {
				return nil, fmt.Errorf("workload %d: %w", i, err)
			}
			if w.Run, err = runFrom(sw.Run, l); err != nil {
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
			return nil, invalid("gap %d is missing", i)
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
	if err := stateConnectionsFrom(p, m.Connections, l); err != nil {
		return nil, fmt.Errorf("connections: %w", err)
	}
	return p, tablesFrom(p, m, l)
}

// stateConnectionsMessage is nil where a page has no connections.
func stateConnectionsMessage(p *replica.Page) *pb.StateConnections {
	if len(p.Connections) == 0 {
		return nil
	}
	m, last := &pb.StateConnections{}, int64(0)
	var rows []*connection.Sketch
	for i := range p.Connections {
		c := &p.Connections[i]
		m.Minute, m.Workload, last = append(m.Minute, c.Minute-last), append(m.Workload, uint32(c.Workload)), c.Minute
		rows = append(rows, c.Sketch)
	}
	m.Edges = sketchesMessage(rows)
	return m
}

// stateConnectionsFrom reads the connections of a page; nil is none.
func stateConnectionsFrom(p *replica.Page, m *pb.StateConnections, l Limits) error {
	if m == nil {
		return nil
	}
	n := len(m.Minute)
	if len(m.Workload) != n || n > l.Rows {
		return invalid("%d workloads for %d hours", len(m.Workload), n)
	}
	var last int64
	for i := range n {
		last += m.Minute[i]
		p.Connections = append(p.Connections, replica.Connections{Minute: last, Workload: int(m.Workload[i]), Sketch: &connection.Sketch{}})
	}
	return sketchesFrom(m.Edges, n, l, func(row int, s *connection.Sketch) { p.Connections[row].Sketch = s })
}

// runFrom returns the run that a message describes; nil is none.
func runFrom(m *pb.StateRun, l Limits) (r workload.Run, err error) {
	if m == nil {
		return r, nil
	}
	if err := checkTexts(l, m.Id, m.Name); err != nil {
		return r, fmt.Errorf("run: %w", err)
	}
	r = workload.Run{ID: workload.ID(m.Id), Name: m.Name, Started: timeFromNanos(m.Started), Ended: timeFromNanos(m.Ended)}
	if m.Exit != nil {
		r.Exit = new(int(*m.Exit))
	}
	return r, nil
}

package table

import (
	"slices"
	"strconv"
	"strings"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/ui/top"
)

// An edgeRow is an edge, or a sum of traffic.
type edgeRow struct {
	*v1.Edge
	name string
	sum  *v1.Figures
}

// ConnectionsText writes edges as a table, then the rest and the sum.
func ConnectionsText(c *v1.Connections, s Style) string {
	text := s.interval(c.From, c.To) + "\n"
	if len(c.Edges) == 0 {
		return text + "no connections are recorded in this range: mete-agent and mete up record them with --connections auto\n"
	}
	var seen qualityMarks
	var rows []*edgeRow
	for i := range c.Edges {
		rows = append(rows, &edgeRow{Edge: &c.Edges[i]})
	}
	rows = append(rows, nil)
	if c.Total != nil {
		rows = append(rows, &edgeRow{name: "rest", sum: c.Rest}, &edgeRow{name: "SUM", sum: c.Total})
	}
	edge := func(cell func(*v1.Edge) string) func(*edgeRow) string {
		return func(r *edgeRow) string {
			if r.Edge == nil {
				return ""
			}
			return cell(r.Edge)
		}
	}
	bytes := func(key string, of func(*v1.Edge) int64) func(*edgeRow) string {
		return func(r *edgeRow) string {
			if r.Edge != nil {
				return unit.Bytes(float64(of(r.Edge)))
			}
			a := r.sum.Get(key)
			if seen.note(a.Quality); a.Quality == usage.Absent {
				return s.absent()
			}
			return top.Mark(a.Quality, s.ASCII) + unit.Bytes(a.Value.Float(unit.Byte))
		}
	}
	var cols []column[edgeRow]
	for i, d := range c.By {
		cols = append(cols, column[edgeRow]{strings.ToUpper(s.text(string(d))), false, func(r *edgeRow) string {
			switch {
			case r.Edge != nil:
				return s.text(r.Keys[i])
			case i == 0:
				return r.name
			}
			return ""
		}})
	}
	cols = append(cols,
		column[edgeRow]{"DIRECTION", false, edge(func(e *v1.Edge) string { return s.text(e.Direction) })},
		column[edgeRow]{"PEER", false, edge(func(e *v1.Edge) string { return s.text(e.Peer) })},
		column[edgeRow]{"PORT", false, edge(func(e *v1.Edge) string { return s.port(e) })},
		column[edgeRow]{"CLASS", false, edge(func(e *v1.Edge) string { return s.text(e.Class) })},
		column[edgeRow]{"RECEIVED", true, bytes("network_rx_bytes", func(e *v1.Edge) int64 { return e.RxBytes })},
		column[edgeRow]{"SENT", true, bytes("network_tx_bytes", func(e *v1.Edge) int64 { return e.TxBytes })},
		column[edgeRow]{"MAY BE MORE BY", true, edge(func(e *v1.Edge) string { return unit.Bytes(float64(e.Error)) })})
	text += write(slices.Values(rows), cols)
	if c.Others > 0 {
		text += "rest: smaller rows, each of at most " + unit.Bytes(float64(c.Others)) + ", and traffic of which no connections are recorded\n"
	} else {
		text += "rest: traffic of which no connections are recorded\n"
	}
	return text + s.legend(&seen)
}

// port writes the protocol of an edge, and its port if it has one.
func (s Style) port(e *v1.Edge) string {
	if e.Port == 0 {
		return s.text(e.Protocol)
	}
	return s.text(e.Protocol) + "/" + strconv.Itoa(e.Port)
}

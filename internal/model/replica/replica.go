// Package replica holds the types of replication to an upstream server: what is sent (Page, Row,
// NodeRow), its progress (Mark), and the replacement of names (Mask).
//
// A server sends the states of rows, not increments: a state replaces the previous one. So
// repetitions change nothing, corrections may reduce a row, and a ledger restored from an older
// copy simply sends everything again. Decision 7 gives the reasons.
package replica

import (
	"fmt"
	"slices"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// Resolution is the length of a row's span.
type Resolution uint8

// The resolutions. Their numbers are sent.
const (
	Minute Resolution = iota
	Hour
	Day
)

var minutesOf = [...]int64{1, 60, 24 * 60}

// Minutes returns the length of the span in minutes.
func (v Resolution) Minutes() int64 { return minutesOf[v] }

// A Mark is how far a server has taken the states of another. A page is taken only if it continues
// the mark, so pages cannot be skipped, repeated or reordered.
type Mark struct {
	Sequence uint64 `json:"sequence,string"` // number of pages taken; 0 is none
	Position string `json:"position"`        // opaque to the receiver; "" is the beginning
	// MinuteFloor and HourFloor are the first minutes and hours that the server keeps, in minutes
	// since 1970. Before them it accepts hours and days instead.
	MinuteFloor int64 `json:"minute_floor"`
	HourFloor   int64 `json:"hour_floor"`
}

// SamePosition reports whether both are the same position, whatever the floors.
func (m Mark) SamePosition(o Mark) bool { return m.Sequence == o.Sequence && m.Position == o.Position }

// A Source is an authenticated downstream server.
type Source struct {
	ID      string // of its enrollment
	Cluster string // that contains its nodes
}

// ResolveCluster returns the cluster of a source's node: the given one if it is within the
// source's, as "eu.west" is in "eu", else the source's.
func (s Source) ResolveCluster(cluster string) string {
	if len(cluster) > len(s.Cluster) && cluster[:len(s.Cluster)] == s.Cluster && cluster[len(s.Cluster)] == '.' {
		return cluster
	}
	return s.Cluster
}

// An Offer configures how a ledger sends its states.
type Offer struct {
	Finest Resolution // Minute or Hour
	Masked bool       // names are replaced; a change sends everything again
	Rows   int        // maximum size of a page; other records count as rows too
	// OpenMinute is the first minute that is not over. It and later changes are held back, so that
	// no partial minutes are sent. 0 is none.
	OpenMinute int64
}

// A Page is the unit of replication: everything that changed between two positions.
type Page struct {
	From      Mark   // position that it continues; floors are ignored
	To        string // position after it
	Nodes     []Node // nodes to which other fields refer by index
	Workloads []Workload
	Rows      []Row
	NodeRows  []NodeRow
	Gaps      []Gap
	Shifts    []Shift
	Nestings  []Nesting
	// Connections are those of hours that are folded. A server of an earlier version ignores them.
	Connections []Connections
	// Within says that rows state which node they are within. If not, the source is of an earlier
	// version, and all rows of the days in Nestings are.
	Within bool
}

// SaysWithin reports whether a server that ignores Within would store the page as something else.
func (p *Page) SaysWithin() bool {
	return p.Within && (len(p.Nestings) > 0 || slices.ContainsFunc(p.Rows, func(r Row) bool { return r.Within != 0 }) ||
		slices.ContainsFunc(p.NodeRows, func(r NodeRow) bool { return r.Within != 0 }))
}

// SaysVersions reports whether a server that ignores versions would store the page as something else.
func (p *Page) SaysVersions() bool {
	return slices.ContainsFunc(p.Workloads, func(w Workload) bool { return w.From != 0 || w.Next != 0 })
}

// Empty reports whether the page has no records.
func (p *Page) Empty() bool {
	return len(p.Nodes)+len(p.Workloads)+len(p.Rows)+len(p.NodeRows)+len(p.Gaps)+len(p.Shifts)+len(p.Nestings)+len(p.Connections) == 0
}

// A Node is the state of a node.
type Node struct {
	registry.Node
	Pool      string
	CPUs      int
	CPUMinute int64 // when it had them
	Revoked   time.Time
	Through   time.Time
	Host      Host // if it is a guest now
}

// A Host says in which other node a node is nested now, and as which workload.
type Host struct {
	Node        string // its id; "" if the node is not a guest
	Workload    workload.ShortID
	Since, Seen time.Time // first and latest confirmation
}

// A Nesting says that rows of a node on a day are within its host's. It is never revoked.
type Nesting struct {
	Node     int   // in Page.Nodes
	Host     int   // likewise; -1 is unknown
	Workload int   // in Page.Workloads: the guest on its host; -1 is unknown
	Minute   int64 // first minute of the day, since 1970
}

// A Workload is a version of a workload of the page's rows, with its name if that changed.
type Workload struct {
	Node  int // in Page.Nodes
	Short workload.ShortID
	// From is the minute with which the version begins, since 1970; 0 is the first version. Next is that of the version
	// after it, 0 if there is none.
	From, Next int64
	// Name is nil if it did not change. Its ID is "" if the workload has no name yet.
	Name                      *batch.Name
	Named                     time.Time // end of the window that named it
	Namespace, Pod, Container string
	Run                       workload.Run // that it is a part of
}

// A Row is the use of a workload in a span.
type Row struct {
	Resolution Resolution
	Minute     int64 // first minute of the span, since 1970
	Workload   int   // in Page.Workloads
	Within     int   // the place in Page.Nodes of the node whose rows include it, plus one; 0 is none
	Usage      usage.Usage
}

// A NodeRow is the state of a node in a span.
type NodeRow struct {
	Resolution Resolution
	Node       int // in Page.Nodes
	Within     int // as in Row
	batch.NodeMinute
}

// Connections are those of a workload in an hour.
type Connections struct {
	Minute   int64 // first minute of the hour, since 1970
	Workload int   // in Page.Workloads
	Sketch   *connection.Sketch
}

// A Gap is a gap of a node.
type Gap struct {
	Node int // in Page.Nodes
	usage.Gap
	Booked time.Time
}

// A Shift is a shift of a node.
type Shift struct {
	Node int // in Page.Nodes
	batch.Shift
}

// Check validates a page by itself: indexes, beginnings of spans, amounts. The error wraps
// fault.ErrInvalid.
func (p *Page) Check() error {
	for i := range p.Nodes {
		if n := &p.Nodes[i]; n.ID == "" || n.CPUs < 0 {
			return invalid("node %d: id %q, %d CPUs", i, n.ID, n.CPUs)
		}
	}
	for i := range p.Workloads {
		w := &p.Workloads[i]
		if w.Node < 0 || w.Node >= len(p.Nodes) {
			return invalid("workload %d is of node %d of %d", i, w.Node, len(p.Nodes))
		}
		if !isStorable(w.From) || !isStorable(w.Next) || w.From%VersionMinutes != 0 || w.Next%VersionMinutes != 0 || w.Next != 0 && w.Next <= w.From {
			return invalid("workload %d is the version from minute %d until %d", i, w.From, w.Next)
		}
		if w.Name == nil || w.Name.ID == "" {
			continue
		}
		if short, ok := workload.ShortIDOf(w.Name.ID); !ok || short != w.Short {
			return invalid("workload %d is %s, and its id %q", i, w.Short, w.Name.ID)
		}
	}
	for i := range p.Rows {
		r := &p.Rows[i]
		if !validSpan(r.Resolution, r.Minute) || r.Workload < 0 || r.Workload >= len(p.Workloads) || r.Within < 0 || r.Within > len(p.Nodes) || !validAmounts(&r.Usage) {
			return invalid("row %d: minute %d of workload %d", i, r.Minute, r.Workload)
		}
	}
	for i := range p.NodeRows {
		r := &p.NodeRows[i]
		bad := !validSpan(r.Resolution, r.Minute) || r.Node < 0 || r.Node >= len(p.Nodes) || r.Within < 0 || r.Within > len(p.Nodes) || !validAmounts(&r.Total) ||
			r.Covered < 0 || r.CPUs < 0 || r.Violations < 0 || r.Lost < 0
		for _, v := range r.Whole {
			bad = bad || v < 0
		}
		if bad {
			return invalid("row %d of nodes: minute %d of node %d", i, r.Minute, r.Node)
		}
	}
	for i := range p.Gaps {
		if n := p.Gaps[i].Node; n < 0 || n >= len(p.Nodes) {
			return invalid("gap %d is of node %d of %d", i, n, len(p.Nodes))
		}
	}
	for i := range p.Shifts {
		if n := p.Shifts[i].Node; n < 0 || n >= len(p.Nodes) {
			return invalid("shift %d is of node %d of %d", i, n, len(p.Nodes))
		}
	}
	for i, n := range p.Nestings {
		if n.Node < 0 || n.Host < -1 || max(n.Node, n.Host) >= len(p.Nodes) || n.Workload < -1 || n.Workload >= len(p.Workloads) || !validSpan(Day, n.Minute) {
			return invalid("nesting %d: node %d in %d as %d on the day of minute %d", i, n.Node, n.Host, n.Workload, n.Minute)
		}
	}
	for i := range p.Connections {
		c := &p.Connections[i]
		if !validSpan(Hour, c.Minute) || c.Workload < 0 || c.Workload >= len(p.Workloads) {
			return invalid("connections %d: minute %d of workload %d", i, c.Minute, c.Workload)
		}
		if err := c.Sketch.Validate(); err != nil {
			return fmt.Errorf("page: connections %d: %w", i, err)
		}
	}
	return nil
}

// VersionMinutes is a quarter of an hour: versions of workloads begin with one.
const VersionMinutes = batch.Quarter

// isStorable reports whether a minute has at most 31 bits: it is from 1970 to the year 6053.
func isStorable(minute int64) bool { return minute>>31 == 0 }

func validSpan(v Resolution, minute int64) bool {
	return v <= Day && isStorable(minute) && minute%v.Minutes() == 0
}

func validAmounts(u *usage.Usage) bool {
	ok := u.Covered >= 0 && u.Present&^usage.All == 0
	(u.Present & usage.All).Each(func(r usage.Resource) { ok = ok && u.Amount[r] >= 0 })
	return ok
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("page: "+format+": %w", append(args, fault.ErrInvalid)...)
}

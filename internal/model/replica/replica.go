// Package replica holds the nouns of the way from a server to the one above it:
// what is sent (Page, Row, NodeRow), how far it has come (Mark), and what is
// left unsaid where names are nobody's business above (Mask).
//
// A server tells what its rows are, not what was added to them: a state takes
// the place of the one before. So a repeat changes nothing, a correction may
// make less of a row, and a ledger that went back to an older copy of itself
// simply tells everything again. decision 7 says why.
package replica

import (
	"fmt"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// Resolution is how long a row's span is.
type Resolution uint8

// The levels. Their numbers are sent.
const (
	Minute Resolution = iota
	Hour
	Day
)

var minutesOf = [...]int64{1, 60, 24 * 60}

// Minutes is how many minutes a row of the resolution spans.
func (v Resolution) Minutes() int64 { return minutesOf[v] }

// A Mark is how far a server has taken the states of another. The next page
// names it, and is taken only there: pages can neither be left out nor come
// twice nor in another order.
type Mark struct {
	Sequence uint64 `json:"sequence,string"` // of the pages taken, from 1; 0 is none
	Position string `json:"position"`        // the sender's own word; "" is the beginning
	// MinuteFloor and HourFloor are from where the server keeps minutes and
	// hours, in minutes since 1970. Before them it wants hours and days instead.
	MinuteFloor int64 `json:"minute_floor"`
	HourFloor   int64 `json:"hour_floor"`
}

// SamePosition reports whether both are the same place, whatever is kept.
func (m Mark) SamePosition(o Mark) bool { return m.Sequence == o.Sequence && m.Position == o.Position }

// A Source is a server whose states come, as far as that was proved.
type Source struct {
	ID      string // that it was enrolled under
	Cluster string // in which its nodes may be
}

// ResolveCluster is the cluster of a node of the source that says it is in another: one
// that belongs to the source's, as "eu.west" does to "eu", else the source's.
func (s Source) ResolveCluster(cluster string) string {
	if len(cluster) > len(s.Cluster) && cluster[:len(s.Cluster)] == s.Cluster && cluster[len(s.Cluster)] == '.' {
		return cluster
	}
	return s.Cluster
}

// An Offer says how a ledger tells its states.
type Offer struct {
	Finest Resolution // Minute or Hour
	Masked bool       // names are replaced; where that changes all is told again
	Rows   int        // of a page, at most; all else in it counts as a row, too
	// OpenMinute is the first minute that is not over: it waits, and all that changed
	// after it, so that nobody above sees parts of a minute. 0 is none.
	OpenMinute int64
}

// A Page is what is sent at once: all that has changed between two places.
type Page struct {
	From      Mark   // that it continues; floors do not count
	To        string // the position after it
	Nodes     []Node // all that the others name by their place here
	Workloads []Workload
	Rows      []Row
	NodeRows  []NodeRow
	Gaps      []Gap
	Shifts    []Shift
	Nestings  []Nesting
}

// Empty reports whether there is nothing in the page.
func (p *Page) Empty() bool {
	return len(p.Nodes)+len(p.Workloads)+len(p.Rows)+len(p.NodeRows)+len(p.Gaps)+len(p.Shifts)+len(p.Nestings) == 0
}

// A Node is what a server knows of a node.
type Node struct {
	registry.Node
	Pool      string
	CPUs      int
	CPUMinute int64 // in which it had them
	Revoked   time.Time
	Through   time.Time
	Host      Host // in which it is a guest now
}

// A Host says in which other node a node is now, and what it is there.
type Host struct {
	Node        string // its id; "" where the node is no guest
	Workload    workload.ShortID
	Since, Seen time.Time // when that was found first, and last
}

// A Nesting says that a node was a guest on a day: what it used is within what its
// host had. It is never taken back.
type Nesting struct {
	Node     int   // in Page.Nodes
	Host     int   // the same; -1 is not known
	Workload int   // in Page.Workloads: what it is on its host; -1 is not known
	Minute   int64 // the day's first, since 1970
}

// A Workload is one that rows are of, and what it is called if that has
// changed.
type Workload struct {
	Node  int // in Page.Nodes
	Short workload.ShortID
	// Name is nil where nothing new is said. Its ID is "" where the workload
	// has no name yet.
	Name                      *batch.Name
	Named                     time.Time // up to when what named it was booked
	Namespace, Pod, Container string
}

// A Row is what a workload used in a span.
type Row struct {
	Resolution Resolution
	Minute     int64 // with which it begins, since 1970
	Workload   int   // in Page.Workloads
	Usage      usage.Usage
}

// A NodeRow is what there was on a node in a span.
type NodeRow struct {
	Resolution Resolution
	Node       int // in Page.Nodes
	batch.NodeMinute
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

// Check reports what is wrong with a page by itself: places that are not there,
// spans that do not begin where such spans do, amounts that cannot be. The
// error wraps fault.ErrInvalid.
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
		if w.Name == nil || w.Name.ID == "" {
			continue
		}
		if short, ok := workload.ShortIDOf(w.Name.ID); !ok || short != w.Short {
			return invalid("workload %d is %s, and its id %q", i, w.Short, w.Name.ID)
		}
	}
	for i := range p.Rows {
		r := &p.Rows[i]
		if !validSpan(r.Resolution, r.Minute) || r.Workload < 0 || r.Workload >= len(p.Workloads) || !validAmounts(&r.Usage) {
			return invalid("row %d: minute %d of workload %d", i, r.Minute, r.Workload)
		}
	}
	for i := range p.NodeRows {
		r := &p.NodeRows[i]
		bad := !validSpan(r.Resolution, r.Minute) || r.Node < 0 || r.Node >= len(p.Nodes) || !validAmounts(&r.Total) ||
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
	return nil
}

// lastMinute is the end of what can be stored, in the year 6053.
const lastMinute = 1 << 31

func validSpan(v Resolution, minute int64) bool {
	return v <= Day && minute >= 0 && minute < lastMinute && minute%v.Minutes() == 0
}

func validAmounts(u *usage.Usage) bool {
	ok := u.Covered >= 0 && u.Present&^usage.All == 0
	(u.Present & usage.All).Each(func(r usage.Resource) { ok = ok && u.Amount[r] >= 0 })
	return ok
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("page: "+format+": %w", append(args, fault.ErrInvalid)...)
}

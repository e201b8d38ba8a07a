package external

import (
	"time"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A Node is a machine in a minute, as far as that was booked.
type Node struct {
	ID          string
	BookedUntil time.Time     // up to when it is booked
	Covered     time.Duration // for how much of the minute there are rows
	Streams     int           // in which it sends, of late
}

// fullyCovered is how much of a minute rows cover that cover all of it: times are rounded
// to milliseconds in each window.
const fullyCovered = time.Minute - 100*time.Millisecond

// settleTime is how long after a minute that rows cover in part they are taken to be
// all.
const settleTime = 2 * time.Minute

// IsComplete reports whether all rows of a minute have come: they cover it, or the
// machine has gone on for two minutes and sends in no other stream, or it was waited
// for long enough. It may err, as where two streams cover the same half of a minute:
// the ledger divides a minute again when later rows of it come.
func (n *Node) IsComplete(m int64, wait time.Duration, now time.Time) bool {
	end := time.Unix(0, MinuteStart(m+1))
	switch {
	case now.Sub(end) > wait, n.Covered >= fullyCovered:
		return true
	}
	return n.Streams == 1 && n.Covered > 0 && n.BookedUntil.Sub(end) >= settleTime
}

// A MeterEnergy is what one meter showed in a minute.
type MeterEnergy struct {
	Meter  string
	Nodes  []string // ids of the machines that it feeds
	Energy int64    // uJ
	Error  int64    // by how much that may be off, uJ
}

// A GroupMinute is a minute of meters that are looked at together.
type GroupMinute struct {
	Minute int64
	Meters []MeterEnergy
	// NeededFrom is, for each meter of the group, from when on its samples are still needed.
	NeededFrom map[string]int64
	// Failures says, by meter, why nothing is booked; it is empty where all is well.
	Failures map[string]string
}

// Nodes are the ids of all machines of the group, each once.
func (b *GroupMinute) Nodes() (ids []string) {
	seen := map[string]bool{}
	for _, c := range b.Meters {
		for _, n := range c.Nodes {
			if !seen[n] {
				seen[n] = true
				ids = append(ids, n)
			}
		}
	}
	return ids
}

// A NodeEnergy is the energy of one machine by its meters, and its error, in uJ.
type NodeEnergy struct{ Energy, Error int64 }

// Divide gives each machine its part of the energy of its meters. If a meter feeds several
// machines, its energy is divided by the machines' own energy in that minute; if they have none, by
// the CPU time that they used; if they used none, evenly. rows holds the rows of each machine, by
// id. The parts sum to the energy of the meters.
func (b *GroupMinute) Divide(rows map[string][]Row) map[string]NodeEnergy {
	parts := map[string]NodeEnergy{}
	for _, c := range b.Meters {
		n := len(c.Nodes)
		byEnergy, byCPU, evenly := make([]int64, n), make([]int64, n), make([]int64, n)
		for i, id := range c.Nodes {
			for j := range rows[id] {
				r := &rows[id][j]
				byEnergy[i] = energy.AddSaturated(byEnergy[i], r.totalEnergy())
				if v, ok := r.Usage.Get(usage.CPU); ok && r.Kind != workload.Idle {
					byCPU[i] = energy.AddSaturated(byCPU[i], v)
				}
			}
			evenly[i] = 1
		}
		gave, offs := make([]int64, n), make([]int64, n)
		for _, weights := range [][]int64{byEnergy, byCPU, evenly} {
			if energy.Divide(c.Energy, weights, gave) {
				energy.Divide(c.Error, weights, offs)
				break
			}
		}
		for i, id := range c.Nodes {
			p := parts[id]
			parts[id] = NodeEnergy{energy.AddSaturated(p.Energy, gave[i]), energy.AddSaturated(p.Error, offs[i])}
		}
	}
	return parts
}

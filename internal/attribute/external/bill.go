package external

import (
	"time"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A Node is a machine in a minute, as far as that was booked.
type Node struct {
	ID      string
	Through time.Time     // up to when it is booked
	Covered time.Duration // for how much of the minute there are rows
	Streams int           // in which it sends, of late
}

// nearly is how much of a minute rows cover that cover all of it: times are rounded
// to milliseconds in each window.
const nearly = time.Minute - 100*time.Millisecond

// settled is how long after a minute that rows cover in part they are taken to be
// all.
const settled = 2 * time.Minute

// Ready reports whether all rows of a minute have come: they cover it, or the
// machine has gone on for two minutes and sends in no other stream, or it was waited
// for long enough.
func (n *Node) Ready(m int64, wait time.Duration, now time.Time) bool {
	end := time.Unix(0, Start(m+1))
	switch {
	case now.Sub(end) > wait, n.Covered >= nearly:
		return true
	}
	return n.Streams == 1 && n.Covered > 0 && n.Through.Sub(end) >= settled
}

// A Charge is what one meter showed in a minute.
type Charge struct {
	Meter  string
	Nodes  []string // ids of the machines that it feeds
	Energy int64    // uJ
	Error  int64    // by how much that may be off, uJ
}

// A Bill is a minute of meters that are looked at together.
type Bill struct {
	Minute  int64
	Charges []Charge
	// Since is, for each meter of the bill, from when on its samples are still needed.
	Since map[string]int64
	// Failed says, by meter, why nothing is booked; it is empty where all is well.
	Failed map[string]string
}

// Nodes are the ids of all machines of the bill, each once.
func (b *Bill) Nodes() (ids []string) {
	seen := map[string]bool{}
	for _, c := range b.Charges {
		for _, n := range c.Nodes {
			if !seen[n] {
				seen[n] = true
				ids = append(ids, n)
			}
		}
	}
	return ids
}

// A Part is what the meters of one machine showed for it.
type Part struct{ Energy, Error int64 }

// Divide gives each machine its part of what its meters showed. A meter that feeds
// several is divided by their own energy in that minute, where none has any by CPU
// time used, and else evenly. rows are those of each machine, by id. The parts sum to
// what the meters showed.
func (b *Bill) Divide(rows map[string][]Row) map[string]Part {
	parts := map[string]Part{}
	for _, c := range b.Charges {
		n := len(c.Nodes)
		byEnergy, byCPU, evenly := make([]int64, n), make([]int64, n), make([]int64, n)
		for i, id := range c.Nodes {
			for j := range rows[id] {
				r := &rows[id][j]
				byEnergy[i] = plus(byEnergy[i], r.energyOf())
				if v, ok := r.Usage.Get(usage.CPU); ok && r.Kind != workload.Idle {
					byCPU[i] = plus(byCPU[i], v)
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
			parts[id] = Part{plus(p.Energy, gave[i]), plus(p.Error, offs[i])}
		}
	}
	return parts
}

package v1

import (
	"encoding/json"
	"io"
	"slices"
	"strconv"
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// EnergyBy returns the dimensions of the answer that [EnergyOf] reads.
func EnergyBy() []query.Dimension {
	return []query.Dimension{query.ByCluster, query.ByNode, query.ByKind}
}

// An Energy divides the energy of nodes among workloads, system and idle, by domain.
type Energy struct {
	From  *time.Time   `json:"from"`
	To    *time.Time   `json:"to"`
	Gaps  int          `json:"gaps" doc:"number of gaps that overlap the range: figures may be too low because of them"`
	Sum   Energies     `json:"sum" doc:"sum of all nodes except guests, on all pages"`
	Nodes []NodeEnergy `json:"nodes" nullable:"false"`
	Page
}

// A NodeEnergy is the energy of one node.
type NodeEnergy struct {
	Node    string   `json:"node" doc:"name, with the id where several nodes have it"`
	Cluster string   `json:"cluster"`
	Nested  bool     `json:"nested" doc:"true for a guest, whose energy is within its host's: it is in no sum"`
	Energy  Energies `json:"energy"`
}

// Energies are energies by domain. A domain that is absent is null.
type Energies struct {
	Package *Flows       `json:"package" doc:"CPU packages"`
	DRAM    *Flows       `json:"dram" doc:"memory"`
	GPU     *Flows       `json:"gpu" doc:"accelerators"`
	Rest    *Flows       `json:"rest" doc:"energy that no finer meter shows, or that of the whole machine if it has no finer meter"`
	All     *Flows       `json:"all" doc:"all domains together"`
	Error   *json.Number `json:"error_joules" doc:"error of all of it, either way"`
}

// Flows divide an energy, in joules.
type Flows struct {
	Workloads json.Number   `json:"workloads_joules"`
	System    json.Number   `json:"system_joules"`
	Idle      json.Number   `json:"idle_joules" doc:"energy of idle machines that is not divided among workloads"`
	Whole     json.Number   `json:"whole_joules" doc:"the sum of the three"`
	Quality   usage.Quality `json:"quality" doc:"the worst quality of its parts"`
}

// A nodeParts is the energy of one node: of workloads, system and idle.
type nodeParts struct {
	cluster, node string
	nested        bool
	parts         [3]query.Total
}

// EnergyOf reads the energy of all nodes out of an answer by [EnergyBy].
func EnergyOf(a *query.Answer) *Energy {
	var nodes []nodeParts
	at := map[[2]string]int{}
	for nested, groups := range [][]query.Group{a.Groups, a.NestedGroups} {
		clear(at)
		for i := range groups {
			g := &groups[i]
			key := [2]string{g.Keys[0], g.Keys[1]}
			n, ok := at[key]
			if !ok {
				n = len(nodes)
				at[key] = n
				nodes = append(nodes, nodeParts{cluster: key[0], node: key[1], nested: nested == 1})
			}
			nodes[n].parts[1+slices.Index([]string{"system", "idle"}, g.Keys[2])].Add(&g.Usage)
		}
	}
	out := &Energy{From: timeOrNil(a.From), To: timeOrNil(a.To), Gaps: a.Gaps, Nodes: make([]NodeEnergy, 0, len(nodes))}
	var sum [3]query.Total
	for i := range nodes {
		n := &nodes[i]
		for p := range sum {
			if !n.nested {
				sum[p].Add(&n.parts[p])
			}
		}
		out.Nodes = append(out.Nodes, NodeEnergy{n.node, n.cluster, n.nested, energiesOf(&n.parts)})
	}
	out.Sum = energiesOf(&sum)
	return out
}

// Key is the key of a node in the order of nodes.
func (n *NodeEnergy) Key() string {
	return SortKey(n.Cluster, n.Node, strconv.FormatBool(n.Nested))
}

// energiesOf are the energies of workloads, system and idle.
func energiesOf(parts *[3]query.Total) Energies {
	var out Energies
	var off unit.Sum
	known := false
	for p := range parts {
		if parts[p].Present.Has(usage.EnergyError) {
			off, known = off.Plus(parts[p].Sum[usage.EnergyError]), true
		}
	}
	out.Error = joulesOf(off, known)
	for i, to := range []**Flows{&out.Package, &out.DRAM, &out.GPU, &out.Rest} {
		r := usage.Energies[i]
		*to = flowsOf(parts, func(t *query.Total) (unit.Sum, usage.Quality) {
			if !t.Present.Has(r) {
				return unit.Sum{}, usage.Absent
			}
			return t.Sum[r], t.Quality.Get(r)
		})
	}
	out.All = flowsOf(parts, func(t *query.Total) (unit.Sum, usage.Quality) { return t.AllEnergy() })
	return out
}

// flowsOf returns one amount of each part; nil if the amount is absent in all parts.
func flowsOf(parts *[3]query.Total, get func(*query.Total) (unit.Sum, usage.Quality)) *Flows {
	var v [3]unit.Sum
	var whole unit.Sum
	worst := usage.Absent
	for p := range parts {
		var q usage.Quality
		v[p], q = get(&parts[p])
		whole, worst = whole.Plus(v[p]), max(worst, q)
	}
	if worst == usage.Absent {
		return nil
	}
	return &Flows{joules(v[0]), joules(v[1]), joules(v[2]), joules(whole), worst}
}

// WriteJSON implements [Document].
func (e *Energy) WriteJSON(w io.Writer) error { return writeLine(w, e) }

// An energyRow is the energy of one domain of one node, as CSV has it.
type energyRow struct {
	Cluster string `json:"cluster"`
	Node    string `json:"node"`
	Nested  bool   `json:"nested"`
	Domain  string `json:"domain"`
	Flows   Flows
	From    *time.Time `json:"from"`
	To      *time.Time `json:"to"`
}

// WriteCSV implements [Table]: a row for each domain of each node.
func (e *Energy) WriteCSV(w io.Writer) error {
	var rows []energyRow
	for i := range e.Nodes {
		n := &e.Nodes[i]
		for k, f := range []*Flows{n.Energy.Package, n.Energy.DRAM, n.Energy.GPU, n.Energy.Rest} {
			if f != nil {
				rows = append(rows, energyRow{n.Cluster, n.Node, n.Nested, [...]string{"package", "dram", "gpu", "rest"}[k], *f, e.From, e.To})
			}
		}
	}
	return writeCSV(w, rows)
}

package v1

import (
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// EnergyBy are the dimensions of the answer that [Energy.JSON] writes.
var EnergyBy = []query.Dimension{query.ByCluster, query.ByNode, query.ByKind}

// flowsJSON is where the energy of a domain went, in joules.
type flowsJSON struct {
	Workloads json.RawMessage `json:"workloads_joules"`
	System    json.RawMessage `json:"system_joules"`
	Idle      json.RawMessage `json:"idle_joules" doc:"drawn by idle machines, and given to nobody"`
	Whole     json.RawMessage `json:"whole_joules" doc:"the sum of the three"`
	Quality   usage.Quality   `json:"quality" doc:"the worst of what it is made of"`
}

// energiesJSON is the energy of one node, or of several together. A domain that
// nobody could see is null.
type energiesJSON struct {
	Package *flowsJSON      `json:"package" doc:"CPU packages"`
	DRAM    *flowsJSON      `json:"dram" doc:"memory"`
	GPU     *flowsJSON      `json:"gpu" doc:"accelerators"`
	Rest    *flowsJSON      `json:"rest" doc:"what no finer meter shows, or the whole machine where there is none"`
	All     *flowsJSON      `json:"all" doc:"all domains together"`
	Error   json.RawMessage `json:"error_joules" doc:"by how much all of it may be off"`
}

type nodeEnergyJSON struct {
	Node    string       `json:"node" doc:"name, with the id where several have it"`
	Cluster string       `json:"cluster"`
	Nested  bool         `json:"nested" doc:"it is a guest, and within what its host has: it is in no sum"`
	Energy  energiesJSON `json:"energy"`
}

type energyJSON struct {
	From  *time.Time       `json:"from"`
	To    *time.Time       `json:"to"`
	Gaps  int              `json:"gaps" doc:"gaps that touch the range: figures may be too low by them"`
	Sum   energiesJSON     `json:"sum"`
	Nodes []nodeEnergyJSON `json:"nodes" nullable:"false"`
	Page
}

// A nodeEnergy is the energy of one node: of workloads, system and idle.
type nodeEnergy struct {
	cluster, node string
	nested        bool
	parts         [3]query.Total
}

// An Energy is the energy of nodes, by domain and by where it went.
type Energy struct {
	answer *query.Answer
	nodes  []nodeEnergy
}

// NewEnergy reads the energy of nodes out of an answer by [EnergyBy].
func NewEnergy(a *query.Answer) *Energy {
	e := &Energy{answer: a}
	at := map[[2]string]int{}
	for nested, groups := range [][]query.Group{a.Groups, a.NestedGroups} {
		clear(at)
		for i := range groups {
			g := &groups[i]
			key := [2]string{g.Keys[0], g.Keys[1]}
			n, ok := at[key]
			if !ok {
				n = len(e.nodes)
				at[key] = n
				e.nodes = append(e.nodes, nodeEnergy{cluster: key[0], node: key[1], nested: nested == 1})
			}
			e.nodes[n].parts[kindIndex(g.Keys[2])].Add(&g.Usage)
		}
	}
	return e
}

// kindIndex is where a kind of workload stands in nodeEnergy.
func kindIndex(kind string) int { return 1 + slices.Index([]string{"system", "idle"}, kind) }

// Keys are those of the nodes, by which they have an order.
func (e *Energy) Keys() []string {
	return mapSlice(e.nodes, func(n nodeEnergy) string { return n.cluster + "\x00" + n.node + "\x00" + strconv.FormatBool(n.nested) })
}

// JSON writes the sum of all nodes, and those at some places; next is where the
// next page begins.
func (e *Energy) JSON(show []int, next string) []byte {
	out := energyJSON{From: timeOrNil(e.answer.From), To: timeOrNil(e.answer.To), Gaps: e.answer.Gaps, Nodes: []nodeEnergyJSON{}, Page: Page{next}}
	var sum [3]query.Total
	for i := range e.nodes {
		for p := range sum {
			if !e.nodes[i].nested {
				sum[p].Add(&e.nodes[i].parts[p])
			}
		}
	}
	out.Sum = energiesOf(&sum)
	for _, i := range show {
		n := &e.nodes[i]
		out.Nodes = append(out.Nodes, nodeEnergyJSON{n.node, n.cluster, n.nested, energiesOf(&n.parts)})
	}
	return append(marshal(out), '\n')
}

// energiesOf writes the energy of workloads, system and idle.
func energiesOf(parts *[3]query.Total) energiesJSON {
	out := energiesJSON{Error: json.RawMessage("null")}
	var off unit.Sum
	known := false
	for p := range parts {
		if parts[p].Present.Has(usage.EnergyError) {
			off, known = off.Plus(parts[p].Sum[usage.EnergyError]), true
		}
	}
	out.Error = joulesOf(off, known)
	for i, to := range []**flowsJSON{&out.Package, &out.DRAM, &out.GPU, &out.Rest} {
		r := usage.Energies[i]
		*to = flows(parts, func(t *query.Total) (unit.Sum, usage.Quality) {
			if !t.Present.Has(r) {
				return unit.Sum{}, usage.Absent
			}
			return t.Sum[r], t.Quality.Get(r)
		})
	}
	out.All = flows(parts, func(t *query.Total) (unit.Sum, usage.Quality) { return t.AllEnergy() })
	return out
}

// flows writes one amount of each part; nil where none has it.
func flows(parts *[3]query.Total, get func(*query.Total) (unit.Sum, usage.Quality)) *flowsJSON {
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
	return &flowsJSON{number(v[0], unit.Microjoule), number(v[1], unit.Microjoule), number(v[2], unit.Microjoule), number(whole, unit.Microjoule), worst}
}

// CSV writes one row for each domain of the nodes at some places.
func (e *Energy) CSV(show []int) []byte {
	rows := [][]string{{"cluster", "node", "nested", "domain", "workloads_joules", "system_joules", "idle_joules", "whole_joules", "quality", "from", "to"}}
	for _, i := range show {
		n := &e.nodes[i]
		all := energiesOf(&n.parts)
		for k, f := range []*flowsJSON{all.Package, all.DRAM, all.GPU, all.Rest} {
			if f != nil {
				rows = append(rows, []string{n.cluster, n.node, strconv.FormatBool(n.nested), domainNames[k],
					string(f.Workloads), string(f.System), string(f.Idle), string(f.Whole), f.Quality.String(), formatTime(e.answer.From), formatTime(e.answer.To)})
			}
		}
	}
	return writeCSV(rows)
}

var domainNames = [...]string{"package", "dram", "gpu", "rest"}

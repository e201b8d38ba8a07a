package v1

import (
	"encoding/json"
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A VM is a virtual machine that a host gave energy. Energies are by the host's figures.
type VM struct {
	Guest     string        `json:"guest" doc:"UUID"`
	Name      string        `json:"name" doc:"name of the domain"`
	Host      string        `json:"host" doc:"id of the node that it runs on"`
	HostName  string        `json:"host_name"`
	Workload  workload.ID   `json:"workload" doc:"id of its workload on the host"`
	Node      string        `json:"node" doc:"id of its own node; empty where nothing in it reports shares, and where the caller may not see it"`
	NodeName  string        `json:"node_name"`
	Compared  int64         `json:"compared" doc:"number of shares that host and guest both reported"`
	Differing int64         `json:"differing" doc:"number of those that were not equal"`
	Largest   json.Number   `json:"largest_difference_joules" doc:"largest difference, in joules"`
	N         int64         `json:"number,string" doc:"number of the latest share that was compared"`
	Last      *time.Time    `json:"last_at" doc:"when that was"`
	Energy    *json.Number  `json:"energy_joules" doc:"energy by the host's figures; null where it is absent"`
	Active    *json.Number  `json:"energy_active_joules" doc:"active energy; null where the energy was not split"`
	Idle      *json.Number  `json:"energy_idle_joules" doc:"idle energy; null where the energy was not split"`
	Error     *json.Number  `json:"energy_error_joules" doc:"error of the energy, either way"`
	Quality   usage.Quality `json:"quality"`
}

// ListKey implements [Element].
func (VM) ListKey() string { return "vms" }

// VMOf makes a VM.
func VMOf(v *query.VM) VM {
	t := &v.Usage
	out := VM{Guest: v.Guest, Name: v.Name, Host: v.Host, HostName: v.HostName, Workload: v.Workload, Node: v.Node, NodeName: v.NodeName, Compared: v.Compared, Differing: v.Differing,
		Largest: joules(unit.Sum{}.Add(v.Largest)), N: v.N, Last: timeOrNil(v.Last), Error: joulesOf(t.Sum[usage.EnergyError], t.Present.Has(usage.EnergyError))}
	all, q := t.Energy()
	out.Quality, out.Energy = q, joulesOf(all, q != usage.Absent)
	if q == usage.Absent || !t.Present.Has(usage.EnergyIdle) || t.Sum[usage.EnergyIdle].Compare(all) > 0 {
		return out
	}
	idle, active := t.Sum[usage.EnergyIdle], all
	for left := idle; left != (unit.Sum{}); {
		part := left.Int64()
		left, active = left.Add(-part), active.Add(-part)
	}
	out.Active, out.Idle, out.Quality = joulesOf(active, true), joulesOf(idle, true), max(q, t.Quality.Get(usage.EnergyIdle))
	return out
}

// joules writes an energy in microjoules as joules.
func joules(v unit.Sum) json.Number { return json.Number(v.Decimal(unit.Microjoule)) }

// joulesOf is joules for a field of JSON: nil, which is null, if exists is false.
func joulesOf(v unit.Sum, exists bool) *json.Number {
	if !exists {
		return nil
	}
	n := joules(v)
	return &n
}

package v1

import (
	"encoding/json"
	"strconv"
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

type vmJSON struct {
	Guest     string          `json:"guest" doc:"UUID"` // UUID
	Name      string          `json:"name" doc:"of the domain"`
	Host      string          `json:"host" doc:"id of the node that it runs on"`
	HostName  string          `json:"host_name"`
	Workload  workload.ID     `json:"workload" doc:"id of what it is there"`
	Node      string          `json:"node" doc:"id of its own node; empty where nothing in it tells of shares, or who asks may not see it"`
	NodeName  string          `json:"node_name"`
	Compared  int64           `json:"compared" doc:"shares that host and guest both told of"`
	Differing int64           `json:"differing" doc:"those of them that were not equal"`
	Largest   json.RawMessage `json:"largest_difference_joules" doc:"by how much at most, in joules"`
	N         int64           `json:"number,string" doc:"of the latest share that was compared"` // of the latest share that was compared
	Last      *time.Time      `json:"last_at" doc:"when that was"`
	// Energy is by the host's figures; null where nobody could see it.
	Energy  json.RawMessage `json:"energy_joules" doc:"by the host's figures; null where nobody could see it"`
	Active  json.RawMessage `json:"energy_active_joules" doc:"null where it was not split"` // both null where it was not split
	Idle    json.RawMessage `json:"energy_idle_joules" doc:"null where it was not split"`
	Error   json.RawMessage `json:"energy_error_joules" doc:"by how much it may be off"`
	Quality usage.Quality   `json:"quality"`
}

// VMEnergy is the energy of a virtual machine: all of it, what it used by being
// active, and its part of what the host draws anyway. split is false where the last
// two are not known apart.
func VMEnergy(t *query.Total) (all, active, idle unit.Sum, split bool, q usage.Quality) {
	all, q = t.Energy()
	if q == usage.Absent || !t.Present.Has(usage.EnergyIdle) || t.Sum[usage.EnergyIdle].Compare(all) > 0 {
		return all, all, unit.Sum{}, false, q
	}
	idle, active = t.Sum[usage.EnergyIdle], all
	for left := idle; left != (unit.Sum{}); {
		part := left.Int64()
		left, active = left.Add(-part), active.Add(-part)
	}
	return all, active, idle, true, max(q, t.Quality.Get(usage.EnergyIdle))
}

// joulesOf is an energy as JSON has it: null where there is none.
func joulesOf(v unit.Sum, there bool) json.RawMessage {
	if !there {
		return json.RawMessage("null")
	}
	return number(v, unit.Microjoule)
}

// VMsJSON writes virtual machines under the key vms.
func VMsJSON(list []query.VM) []byte {
	return marshalList("vms", mapSlice(list, func(v query.VM) vmJSON {
		all, active, idle, split, q := VMEnergy(&v.Usage)
		return vmJSON{v.Guest, v.Name, v.Host, v.HostName, v.Workload, v.Node, v.NodeName, v.Compared, v.Differing,
			joulesOf(unit.Sum{}.Add(v.Largest), true), v.N, timeOrNil(v.Last), joulesOf(all, q != usage.Absent), joulesOf(active, split), joulesOf(idle, split),
			joulesOf(v.Usage.Sum[usage.EnergyError], v.Usage.Present.Has(usage.EnergyError)), q}
	}))
}

// ParseVMs reads what VMsJSON wrote. Its energy is in the domain rest, as the others
// are not told apart.
func ParseVMs(body []byte) ([]query.VM, error) {
	list, err := unmarshalList[vmJSON]("vms", body)
	return mapSlice(list, func(v vmJSON) query.VM {
		out := query.VM{Guest: v.Guest, Name: v.Name, Host: v.Host, HostName: v.HostName, Workload: v.Workload, Node: v.Node, NodeName: v.NodeName,
			Compared: v.Compared, Differing: v.Differing, N: v.N, Last: timeOrZero(v.Last)}
		if largest, e := parseNumber(v.Largest, unit.Microjoule); e == nil {
			out.Largest = largest.Int64()
		}
		for r, raw := range map[usage.Resource]json.RawMessage{usage.EnergyRest: v.Energy, usage.EnergyIdle: v.Idle, usage.EnergyError: v.Error} {
			sum, e := parseNumber(raw, unit.Microjoule)
			if e != nil || v.Quality == usage.Absent {
				continue // null
			}
			out.Usage.Present |= usage.SetOf(r)
			out.Usage.Quality.Set(r, v.Quality)
			out.Usage.Sum[r] = sum
		}
		return out
	}), err
}

// VMsCSV writes virtual machines with the keys of the JSON form.
func VMsCSV(list []query.VM) []byte {
	rows := [][]string{{"guest", "name", "host", "host_name", "workload", "node", "node_name", "compared", "differing", "largest_difference_joules",
		"number", "last_at", "energy_joules", "energy_active_joules", "energy_idle_joules", "energy_error_joules", "quality"}}
	for _, v := range list {
		all, active, idle, split, q := VMEnergy(&v.Usage)
		amount := func(sum unit.Sum, there bool) string {
			if !there {
				return ""
			}
			return sum.Decimal(unit.Microjoule)
		}
		rows = append(rows, []string{v.Guest, v.Name, v.Host, v.HostName, string(v.Workload), v.Node, v.NodeName,
			strconv.FormatInt(v.Compared, 10), strconv.FormatInt(v.Differing, 10), unit.Microjoule.Decimal(v.Largest),
			strconv.FormatInt(v.N, 10), formatTime(v.Last), amount(all, q != usage.Absent), amount(active, split), amount(idle, split),
			amount(v.Usage.Sum[usage.EnergyError], v.Usage.Present.Has(usage.EnergyError)), q.String()})
	}
	return writeCSV(rows)
}

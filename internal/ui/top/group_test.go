package top_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/ui/top"
)

var now = time.Date(2026, 3, 1, 12, 0, 5, 0, time.UTC)

// latest is a node of four CPUs with a slice, a service in it, system and idle; cpu
// is what the service used.
func latest(id, name, cluster string, cpu float64) live.NodeRates {
	l := live.NodeRates{Node: id, Name: name, Cluster: cluster, From: now.Add(-15 * time.Second), To: now.Add(-5 * time.Second), CPUs: 4}
	put := func(key, name string, kind workload.Kind, parent workload.ID, cores, gib, watts float64) workload.ID {
		row := live.WorkloadRates{ID: workload.NewID(id, kind, key), Kind: kind, Name: name, Parent: parent}
		var u usage.Usage
		set := func(r usage.Resource, v float64, q usage.Quality) {
			u.Put(r, int64(math.Round(v)), q)
		}
		set(usage.CPU, cores*10e9, usage.Measured)
		set(usage.Memory, gib*10*(1<<30), usage.Apportioned)
		set(usage.EnergyRest, watts*10e6, usage.Modelled)
		set(usage.EnergyError, watts*5e6, usage.Modelled)
		amounts := live.FiguresOf(&u)
		row.Rates, row.Quality = amounts.Rates(l.To.Sub(l.From))
		l.Rows = append(l.Rows, row)
		return row.ID
	}
	slice := workload.NewID(id, workload.Slice, "s")
	put("a", "nginx.service", workload.Service, slice, cpu, 1, 10*cpu)
	put("s", "system.slice", workload.Slice, "", 0, 0.5, 0)
	put("", "system", workload.System, "", 0.25, 0.5, 2)
	put("", "idle", workload.Idle, "", 3.75-cpu, 6, 20)
	return l
}

func ask(t *testing.T, only string, list ...live.NodeRates) (*live.Machine, error) {
	t.Helper()
	var rates v1.List[live.NodeRates]
	if err := json.Unmarshal(v1.JSON(v1.List[live.NodeRates]{Items: list}), &rates); err != nil {
		t.Fatal(err)
	}
	return top.Fleet{Server: "https://mete.example", At: now, Only: only, Rates: rates.Items, Nodes: []v1.Node{
		{ID: "1", Name: "web-1", Cluster: "lab", State: "live", CPUs: 4},
		{ID: "2", Name: "web-2", Cluster: "lab", State: "live", CPUs: 4},
		{ID: "3", Name: "db-1", Cluster: "east", State: "silent", Through: new(now.Add(-3 * time.Hour))},
		{ID: "4", Name: "guest", Cluster: "lab", State: "live", Nested: &v1.Nesting{Host: "1", HostName: "web-1", Name: "vm7"}},
		{ID: "5", Name: "old", Cluster: "east", State: "revoked"},
		{ID: "6", Name: "late", Cluster: "east", State: "behind"},
	}}.Machine()
}

func three() []live.NodeRates {
	return []live.NodeRates{latest("2", "web-2", "lab", 2.5), latest("1", "web-1", "lab", 0.5), latest("4", "guest", "lab", 0.25), latest("6", "late", "east", 1)}
}

// The rows of all machines sum to the fleet; guests and those that are not heard add
// nothing.
func TestFleet(t *testing.T) {
	m, err := ask(t, "", three()...)
	if err != nil {
		t.Fatal(err)
	}
	if f := m.Fleet; f.Nodes != 6 || f.Stale != 2 || f.Guests != 1 || f.Workloads != 6 || m.CPUs != 12 {
		t.Errorf("fleet is %+v with %d CPUs", f, m.CPUs)
	}
	if m.CPU.Whole != 12 || m.CPU.Workloads != 4 || m.CPU.System != 0.75 || m.Energy.Watts != 106 || m.Energy.Error != 53 || m.Energy.Idle != 60 || m.Energy.Quality != usage.Modelled {
		t.Errorf("CPU %+v, energy %+v", m.CPU, m.Energy)
	}
	seen := map[workload.ID]bool{"": true}
	for i := range m.Rows {
		if r := &m.Rows[i]; !seen[r.Parent] {
			t.Errorf("%s stands before its parent", r.Name)
		}
		seen[m.Rows[i].ID] = true
	}
	if d := top.Arrange(m, top.Options{}).Differs; d != nil {
		t.Errorf("rows do not sum to the fleet: %q", d)
	}
	got := top.Text(m, 110, top.Options{}) + "\n" + top.Text(m, 0, top.Options{Flat: true, Sort: top.ByPower}) + "\n" +
		top.Text(m, 80, top.Options{Filter: "web-2", ASCII: true})
	golden(t, "fleet.txt", got)
}

// TestOnly checks that Machine shows the workloads of a guest if Only names it, since its host's
// figures are then not shown.
func TestOnly(t *testing.T) {
	m, err := ask(t, "guest", three()...)
	if err != nil || m.Fleet.Nodes != 1 || m.CPU.Workloads != 0.25 {
		t.Fatalf("one guest alone: %v, %+v", err, m)
	}
	if _, err := ask(t, "nosuch", three()...); !errors.Is(err, fault.ErrNotFound) || fault.Hint(err) == "" {
		t.Errorf("an unknown node: %v", err)
	}
	m, err = ask(t, "")
	if err != nil || m.Energy != nil || m.Fleet.Stale != 5 {
		t.Errorf("a server without data of any node: %v, %+v", err, m.Fleet)
	}
}

// TestParents checks that a row with a missing parent, and one that is its own parent, is kept.
func TestParents(t *testing.T) {
	l := latest("1", "web-1", "lab", 1)
	l.Rows[0].Parent, l.Rows[1].Parent = l.Rows[1].ID, l.Rows[0].ID
	l.Rows[2].Parent = l.Rows[2].ID
	l.Rows[3].Parent = workload.NewID("1", workload.Slice, "gone")
	m, err := ask(t, "web-1", l)
	if err != nil || len(m.Rows) != 5 || m.CPU.Whole != 4 {
		t.Errorf("%v: %d rows of %v CPUs, want all 5 of 4", err, len(m.Rows), m.CPU.Whole)
	}
}

func FuzzFleet(f *testing.F) {
	f.Add(v1.JSON(v1.List[live.NodeRates]{Items: three()}))
	f.Add([]byte(`{"nodes":[{"workloads":null}]}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var list v1.List[live.NodeRates]
		if json.Unmarshal(body, &list) != nil {
			return
		}
		v := top.Fleet{Server: "s", At: now, Rates: list.Items}
		for _, n := range list.Items {
			v.Nodes = append(v.Nodes, v1.Node{ID: n.Node, Name: n.Name, State: "live"})
		}
		m, err := v.Machine()
		if err != nil {
			t.Fatal(err)
		}
		if text := top.Text(m, 100, top.Options{}); strings.ContainsAny(text, "\x1b\r") {
			t.Fatalf("%q", text)
		}
	})
}

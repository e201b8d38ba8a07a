package v1_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// Where energy went sums to all of it, by domain and by node; a guest is within its
// host and in no sum.
func TestEnergy(t *testing.T) {
	group := func(node, kind string, pack, rest, off int64) query.Group {
		g := query.Group{Keys: []string{"lab", node, kind}}
		u := usage.Usage{}
		u.Put(usage.EnergyPackage, pack, usage.Measured)
		u.Put(usage.EnergyRest, rest, usage.Modelled)
		u.Put(usage.EnergyError, off, usage.Measured)
		u.Present.Each(func(r usage.Resource) {
			g.Usage.Present |= 1 << r
			g.Usage.Sum[r] = unit.Sum{}.Add(u.Amount[r])
			g.Usage.Quality.Set(r, u.Quality.Get(r))
		})
		return g
	}
	a := &query.Answer{From: noon.Add(-time.Hour), To: noon, By: v1.EnergyBy(), Gaps: 2,
		Groups:       []query.Group{group("n1", "job", 5e6, 1, 3), group("n1", "vm", 1e6, 1, 0), group("n1", "idle", 2e6, 1, 1), group("n2", "system", 4e6, 0, 0)},
		NestedGroups: []query.Group{group("g1", "job", 9e6, 0, 0)}}
	e := v1.EnergyOf(a)
	if len(e.Nodes) != 3 {
		t.Fatalf("nodes %v, want 3", e.Nodes)
	}
	e.Nodes, e.Next = []v1.NodeEnergy{e.Nodes[0], e.Nodes[2]}, "on"
	var m struct {
		Gaps  int
		Sum   map[string]json.RawMessage
		Nodes []struct {
			Node   string
			Nested bool
			Energy struct{ Package, DRAM, All *json.RawMessage }
		}
		Next string `json:"next_cursor"`
	}
	if err := json.Unmarshal(v1.JSON(e), &m); err != nil {
		t.Fatal(err)
	}
	if got, want := string(m.Sum["package"]), `{"workloads_joules":6,"system_joules":4,"idle_joules":2,"whole_joules":12,"quality":"measured"}`; got != want {
		t.Errorf("package %s, want %s", got, want)
	}
	if got := string(m.Sum["all"]); !strings.Contains(got, `"whole_joules":12.000003,"quality":"modelled"`) || string(m.Sum["dram"]) != "null" || string(m.Sum["error_joules"]) != "0.000004" {
		t.Errorf("all %s, dram %s, error %s", got, m.Sum["dram"], m.Sum["error_joules"])
	}
	if m.Gaps != 2 || len(m.Nodes) != 2 || m.Nodes[0].Node != "n1" || m.Nodes[0].Nested || !m.Nodes[1].Nested || m.Next != "on" {
		t.Errorf("%+v", m)
	}
	if got, want := string(v1.CSV(e)), "lab,g1,true,package,9,0,0,9,measured,2026-03-01T11:00:00Z,2026-03-01T12:00:00Z\n"; !strings.Contains(got, want) {
		t.Errorf("CSV %s, want %s", got, want)
	}
}

// Jobs are what has a name of a job, and nothing that no job caused.
func TestJobs(t *testing.T) {
	a := &query.Answer{From: noon.Add(-time.Hour), To: noon, By: v1.JobsBy()}
	for _, keys := range [][]string{{"b", "web", "", "", ""}, {"a", "idle", "idle", "idle", "idle"}, {"a", "idle", "prod", "", ""}, {"a", "", "", "u", ""}, {"a", "system", "system", "system", "system"}, {"a", "web", "", "", ""}} {
		a.Groups = append(a.Groups, query.Group{Keys: keys})
	}
	v1.KeepJobs(a)
	var got []string
	for i := range a.Groups {
		got = append(got, strings.Join(a.Groups[i].Keys[:2], "/"))
	}
	if s := strings.Join(got, " "); s != "a/idle a/web b/web" {
		t.Errorf("jobs %q: that is called idle is one, what is idle is none", s)
	}
}

// TestFalling checks that descending keys sort in the reverse order of their numbers.
func TestFalling(t *testing.T) {
	last := ""
	for _, ns := range []int64{1<<63 - 1, 5e18, 1, 0, -1, -1 << 63} {
		s := v1.DescendingKey(ns)
		if len(s) != 16 || s <= last {
			t.Errorf("Falling(%d) = %q after %q", ns, s, last)
		}
		last = s
	}
}

package idle_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/attribute/idle"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

func put(t *query.Total, r usage.Resource, v int64) {
	t.Present |= usage.SetOf(r)
	t.Quality.Worsen(r, usage.Apportioned)
	t.Sum[r] = t.Sum[r].Add(v)
}

// draw returns random groups of some machines, by job, node and kind.
func draw(t *rapid.T) (groups []query.Group) {
	large := rapid.SampledFrom([]int64{10, 1e12, math.MaxInt64}).Draw(t, "large")
	amount := rapid.Int64Range(0, large)
	for n := range rapid.IntRange(1, 3).Draw(t, "nodes") {
		add := func(job, kind string) {
			g := query.Group{Keys: []string{job, fmt.Sprint("n", n), kind}, Nodes: 1}
			for range rapid.IntRange(0, 2).Draw(t, "rows") {
				covered, cpu := amount.Draw(t, "covered"), amount.Draw(t, "cpu")
				g.Usage.Covered = g.Usage.Covered.Add(covered)
				put(&g.Usage, usage.CPU, cpu)
				if rapid.IntRange(0, 3).Draw(t, "has its part") > 0 {
					g.Usage.ClaimCovered = g.Usage.ClaimCovered.Add(covered)
					g.Usage.ClaimCPU = g.Usage.ClaimCPU.Add(cpu)
				}
			}
			for _, r := range []usage.Resource{usage.EnergyPackage, usage.EnergyRest, usage.EnergyError, usage.EnergyIdle} {
				if rapid.Bool().Draw(t, "there") {
					put(&g.Usage, r, amount.Draw(t, "energy"))
				}
			}
			groups = append(groups, g)
		}
		for _, kind := range []string{"idle", "system"} {
			if rapid.IntRange(0, 4).Draw(t, kind) > 0 {
				add(kind, kind)
			}
		}
		for j := range rapid.IntRange(0, 4).Draw(t, "groups") {
			add(fmt.Sprint("j", j), rapid.SampledFrom([]string{"", "job", "container", "vm"}).Draw(t, "kind"))
		}
	}
	return groups
}

// TestNothingIsLost checks that under every policy the energy sums to the total exactly, and so
// does the error.
func TestNothingIsLost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		groups := draw(t)
		sums := func(of []query.Group) (sum query.Total) {
			for i := range of {
				sum.Add(&of[i].Usage)
			}
			return sum
		}
		before := sums(groups)
		p := rapid.SampledFrom([]power.Policy{power.None, power.Equal, power.Reserved, power.Used}).Draw(t, "policy")
		idle.Divide(p, groups, groups)
		merged := idle.MergeNodes(groups)
		for _, after := range []query.Total{sums(groups), sums(merged)} {
			a, _ := before.AllEnergy()
			b, _ := after.AllEnergy()
			if a != b {
				t.Fatalf("%v: all energy is %v, want %v", p, b, a)
			}
			if a, b := before.Sum[usage.EnergyError], after.Sum[usage.EnergyError].Plus(after.IdleError); a != b {
				t.Fatalf("%v: the error is %v, want %v", p, b, a)
			}
			if before.Sum[usage.EnergyIdle].Compare(after.Sum[usage.EnergyIdle]) < 0 {
				t.Fatalf("%v: the rows' own idle energy grew", p)
			}
			if before.Sum[usage.CPU] != after.Sum[usage.CPU] || before.Covered != after.Covered {
				t.Fatalf("%v: CPU time or time covered has changed", p)
			}
		}
		for i := range groups {
			g := &groups[i]
			claims := g.Usage.ClaimCPU != unit.Sum{} && p == power.Used || g.Usage.ClaimCovered != (unit.Sum{}) && p == power.Equal
			if kind := g.Keys[2]; (kind == "system" || kind == "vm" || kind != "idle" && !claims) && g.Usage.Idle != (unit.Sum{}) || kind != "idle" && p == power.None && g.Usage.Idle != (unit.Sum{}) {
				t.Fatalf("%v: %q has %v of idle energy", p, g.Keys, g.Usage.Idle)
			}
		}
		for i := 1; i < len(merged); i++ {
			if slices.ContainsFunc(merged[:i], func(g query.Group) bool { return slices.Equal(g.Keys, merged[i].Keys) }) {
				t.Fatalf("%q appears twice", merged[i].Keys)
			}
		}
	})
}

// TestOthersHaveTheirShare checks that the part of groups that were not requested goes to no other
// group.
func TestOthersHaveTheirShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := draw(t)
		some := slices.DeleteFunc(slices.Clone(all), func(query.Group) bool { return rapid.Bool().Draw(t, "left out") })
		p := rapid.SampledFrom([]power.Policy{power.Equal, power.Used}).Draw(t, "policy")
		idle.Divide(p, some, all)
		idle.Divide(p, all, slices.Clone(all))
		for i := range some {
			j := slices.IndexFunc(all, func(g query.Group) bool { return slices.Equal(g.Keys, some[i].Keys) })
			a, b := some[i].Usage.Idle.Float(unit.Count), all[j].Usage.Idle.Float(unit.Count)
			if math.Abs(a-b) > 2+1e-9*b {
				t.Fatalf("%v: %q has %v of idle energy among few, %v among all", p, some[i].Keys, a, b)
			}
		}
	})
}

// TestIdle checks two machines with different idle energy: each divides its own.
func TestIdle(t *testing.T) {
	group := func(job, node, kind string, hours time.Duration, cpu, joules int64) query.Group {
		g := query.Group{Keys: []string{job, node, kind}, Nodes: 1}
		g.Usage.Covered = unit.Sum{}.Add(int64(hours * time.Hour))
		g.Usage.ClaimCovered, g.Usage.ClaimCPU = g.Usage.Covered, unit.Sum{}.Add(cpu*1e9)
		put(&g.Usage, usage.CPU, cpu*1e9)
		put(&g.Usage, usage.EnergyRest, joules*1e6)
		put(&g.Usage, usage.EnergyError, joules*1e5)
		return g
	}
	for p, want := range map[power.Policy]string{
		power.None:  "web 40+0 ±4, db 5+0 ±0.5, idle 0+360 ±36, guest 50+0 ±5, system 7+0 ±0.7",
		power.Equal: "web 40+270 ±31, db 5+90 ±9.5, idle 0+0 ±0, guest 50+0 ±5, system 7+0 ±0.7",
		power.Used:  "web 40+320 ±36, db 5+40 ±4.5, idle 0+0 ±0, guest 50+0 ±5, system 7+0 ±0.7",
	} {
		groups := []query.Group{
			group("web", "a", "container", 2, 300, 30), group("db", "a", "container", 2, 100, 5), group("idle", "a", "idle", 0, 0, 160+20),
			group("web", "b", "container", 1, 10, 10), group("guest", "b", "vm", 3, 500, 50), group("idle", "b", "idle", 0, 0, 180), group("system", "b", "system", 9, 900, 7),
		}
		if p == power.Used {
			// All of it is on machine a, divided 3 to 1, in addition to b's part.
			groups[2].Usage.Sum[usage.EnergyRest] = unit.Sum{}.Add(160e6)
			groups[2].Usage.Sum[usage.EnergyError] = unit.Sum{}.Add(16e6)
			groups[5].Usage.Sum[usage.EnergyRest] = unit.Sum{}.Add(200e6)
			groups[5].Usage.Sum[usage.EnergyError] = unit.Sum{}.Add(20e6)
		}
		idle.Divide(p, groups, groups)
		got := ""
		for _, g := range idle.MergeNodes(groups) {
			active, _ := g.Usage.Energy()
			off := g.Usage.Sum[usage.EnergyError].Plus(g.Usage.IdleError)
			got += fmt.Sprintf(", %s %s+%s ±%s", g.Keys[0], active.Decimal(unit.Microjoule), g.Usage.Idle.Decimal(unit.Microjoule), off.Decimal(unit.Microjoule))
			if want := map[string]int{"web": 2, "idle": 2}[g.Keys[0]]; g.Nodes != max(1, want) || g.Usage.IdleQuality != usage.Apportioned {
				t.Errorf("%v: %s is on %d nodes, its idle part %v", p, g.Keys[0], g.Nodes, g.Usage.IdleQuality)
			}
		}
		if got = got[2:]; got != want {
			t.Errorf("%v: %s\nwant %s", p, got, want)
		}
	}
}

package fleet_test

import (
	"testing"
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/fleet"
)

// Seeded rows sum to the capacity of their nodes, in hours and in days, and errors are smaller than
// amounts.
func TestSeedAddsUp(t *testing.T) {
	today := time.Now().UTC().Truncate(24 * time.Hour) // may be over when the fleet is seeded, but then the next day is seeded too
	f := fleet.Open(t, fleet.Config{Nodes: 3, Each: 4, Windows: 3, Window: 10 * time.Second, Days: 3, Classes: true})
	for _, c := range []struct{ from, to time.Time }{
		{today.Add(-21 * time.Hour), today.Add(-20 * time.Hour)}, {today.Add(-24 * time.Hour), today}, {today.Add(-48 * time.Hour), today},
	} {
		a, err := f.Server.Ledger.Usage(t.Context(), query.Query{From: c.from, To: c.to, By: []query.Dimension{query.ByKind}, Scope: query.Scope{All: true}})
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Groups) != 3 {
			t.Errorf("%v to %v: %d kinds, want containers, system and idle", c.from, c.to, len(a.Groups))
		}
		for _, d := range usage.Directions {
			var whole, sum unit.Sum
			for i := range a.Groups {
				whole = whole.Plus(a.Groups[i].Usage.Sum[d.Whole])
				for r := range d.Classes.All() {
					sum = sum.Plus(a.Groups[i].Usage.Sum[r])
				}
			}
			if sum == (unit.Sum{}) || sum.Compare(whole) >= 0 {
				t.Errorf("%v to %v: %v is %v, %v of it with a class", c.from, c.to, d.Whole, whole, sum)
			}
		}
		for _, r := range []usage.Resource{usage.CPU, usage.Memory, usage.EnergyPackage} {
			var sum, off unit.Sum
			for i := range a.Groups {
				if v := a.Groups[i].Usage.Sum[r]; v.Compare(unit.Sum{}) <= 0 {
					t.Errorf("%v to %v: %v of %v is %v", c.from, c.to, r, a.Groups[i].Keys, v)
				}
				sum, off = sum.Plus(a.Groups[i].Usage.Sum[r]), off.Plus(a.Groups[i].Usage.Sum[usage.EnergyError])
			}
			if sum != a.Capacity.Sum[r] {
				t.Errorf("%v to %v: %v of all kinds is %v, of all nodes %v", c.from, c.to, r, sum, a.Capacity.Sum[r])
			}
			if r == usage.EnergyPackage && off.Compare(sum) >= 0 {
				t.Errorf("%v to %v: energy %v may be off by %v", c.from, c.to, sum, off)
			}
		}
	}
}

package idle_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
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

// TestNothingIsLost checks that under every policy the shares sum to the whole exactly, that each is
// in proportion to its claim, and that without claims nothing is divided.
func TestNothingIsLost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		amount := rapid.Int64Range(0, rapid.SampledFrom([]int64{10, 1e12, math.MaxInt64}).Draw(t, "large"))
		var whole idle.Share
		for range rapid.IntRange(0, 4).Draw(t, "domains") {
			whole.Add(idle.Share{Energy: unit.Sum{}.Add(amount.Draw(t, "energy")), Error: unit.Sum{}.Add(amount.Draw(t, "error"))})
		}
		d := idle.Divider{Policy: rapid.SampledFrom([]power.Policy{power.None, power.Equal, power.Reserved, power.Used}).Draw(t, "policy")}
		for range 2 { // the second time the divider is used again
			claims := make([]idle.Claim, rapid.IntRange(0, 5).Draw(t, "claims"))
			var all float64
			weight := func(c idle.Claim) float64 {
				switch d.Policy {
				case power.Equal:
					return float64(c.Covered)
				case power.Used:
					return float64(c.CPU)
				}
				return 0
			}
			for i := range claims {
				claims[i] = idle.Claim{CPU: amount.Draw(t, "cpu"), Covered: amount.Draw(t, "covered")}
				all += weight(claims[i])
			}
			shares := d.Divide(whole, claims)
			if (shares != nil) != (all > 0) || shares != nil && len(shares) != len(claims) {
				t.Fatalf("%v: %d shares of claims %v", d.Policy, len(shares), claims)
			}
			var sum idle.Share
			for i, s := range shares {
				sum.Add(s)
				for _, c := range [][2]unit.Sum{{s.Energy, whole.Energy}, {s.Error, whole.Error}} {
					// Each domain's part is rounded by less than one, and weights to 60 bits.
					got, of := c[0].Float(unit.Count), c[1].Float(unit.Count)
					if want := of * weight(claims[i]) / all; math.Abs(got-want) > 5+1e-12*of {
						t.Fatalf("%v: %v of claims %v is %v of %v, want %v", d.Policy, i, claims, got, of, want)
					}
				}
			}
			if shares != nil && sum != whole {
				t.Fatalf("%v: the shares sum to %v, want %v", d.Policy, sum, whole)
			}
		}
	})
}

// TestShareAdd checks sums by numbers, because sums in the other tests are made by Add on both sides.
func TestShareAdd(t *testing.T) {
	t.Parallel()
	of := func(energy, off int64) idle.Share {
		return idle.Share{Energy: unit.Sum{}.Add(energy), Error: unit.Sum{}.Add(off)}
	}
	got := of(70, 3)
	got.Add(of(5, 4))
	if got != of(75, 7) {
		t.Errorf("70 +- 3 and 5 +- 4 are %v", got)
	}
}

// TestClaims checks which workloads claim idle energy.
func TestClaims(t *testing.T) {
	t.Parallel()
	cpu := usage.SetOf(usage.CPU)
	for _, c := range []struct {
		kind    string
		present usage.Set
		want    bool
	}{
		{"container", cpu, true},
		{"", 0, true},
		{"container", usage.SetOf(usage.CPUReserved), false},
		{"container", cpu | usage.SetOf(usage.CPUReserved), true},
		{"container", cpu | usage.SetOf(usage.EnergyIdle), false},
		{"vm", cpu, false},
		{"idle", cpu, false},
		{"system", cpu, false},
	} {
		if got := idle.Claims(c.kind, c.present); got != c.want {
			t.Errorf("%q with %v: %v", c.kind, c.present, got)
		}
	}
}

// TestPut checks that the energy of the group idle moves to its share, and that other groups get
// theirs beside their own energy.
func TestPut(t *testing.T) {
	t.Parallel()
	share := idle.Share{Energy: unit.Sum{}.Add(7), Error: unit.Sum{}.Add(3)}
	for kind, want := range map[string]string{"idle": "0+7 ±0+3, apportioned", "container": "40+7 ±4+3, apportioned"} {
		var u query.Total
		put(&u, usage.EnergyRest, 40)
		put(&u, usage.EnergyError, 4)
		before := u
		idle.Put(&u, kind, share, usage.Absent)
		if u != before {
			t.Errorf("%s of a machine without idle energy: %+v", kind, u)
		}
		idle.Put(&u, kind, share, usage.Measured)
		active, _ := u.Energy()
		if got := fmt.Sprintf("%v+%v ±%v+%v, %v", active, u.Idle, u.Sum[usage.EnergyError], u.IdleError, u.IdleQuality); got != want {
			t.Errorf("%s: %s, want %s", kind, got, want)
		}
	}
}

// TestMergeNodes checks that groups of several machines and kinds become one, and that no group is held after
// the next one.
func TestMergeNodes(t *testing.T) {
	t.Parallel()
	group := func(job, node, kind string, first time.Duration, cpu int64) query.Group {
		g := query.Group{Keys: []string{job, node, kind}, Nodes: 1, First: time.Unix(0, int64(first)), Last: time.Unix(0, int64(first+time.Hour))}
		put(&g.Usage, usage.CPU, cpu)
		return g
	}
	merged := idle.MergeNodes(func(yield func(*query.Group) bool) {
		var one query.Group // for all of them
		for _, one = range []query.Group{
			group("web", "a", "container", 2, 300), group("db", "a", "container", 2, 100), group("web", "b", "container", 1, 10), group("web", "b", "service", 9, 1),
		} {
			yield(&one)
		}
	})
	var got strings.Builder
	for _, g := range merged {
		fmt.Fprintf(&got, "%s on %d: %v from %d to %d; ", g.Keys, g.Nodes, g.Usage.Sum[usage.CPU], g.First.UnixNano(), g.Last.Add(-time.Hour).UnixNano())
	}
	if want := "[web] on 2: 311 from 1 to 9; [db] on 1: 100 from 2 to 2; "; got.String() != want {
		t.Errorf("%s\nwant %s", got.String(), want)
	}
	if !slices.Equal(merged[0].Keys, []string{"web"}) {
		t.Errorf("keys %q", merged[0].Keys)
	}
}

package attribute_test

import (
	"testing"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// TestSuspended checks that a curve books nothing for a night of suspend, in which CLOCK_MONOTONIC
// stops.
func TestSuspended(t *testing.T) {
	accounts := attribute.New("node")
	accounts.SetMeters(energy.New(energy.Config{Curve: power.Curve{Domain: power.Rest, Points: []power.Point{{Load: 0, Power: 40_000_000}, {Load: power.PPM, Power: 140_000_000}}}}))
	const night = 8 * 3600 * second
	cpu := int64(0)
	tick := func(at, mono int64) int64 {
		root := &usage.Group{Slot: 0, Parent: usage.NoSlot, Life: workload.Life{ID: 1}, Exact: true}
		root.Put(usage.CPU, cpu)
		cpu += second
		s := &usage.Snapshot{Boot: "b", At: at, Mono: mono, Node: usage.Node{CPUs: 2, MemTotal: 1 << 30, MemFree: 1 << 29}, Groups: []*usage.Group{root}}
		b := accounts.Tick(s)
		return b.Whole.Get(usage.EnergyRest)
	}
	tick(second, second)
	for _, c := range []struct{ at, mono, want int64 }{
		{2 * second, 2 * second, 90_000_000},
		{night + 3*second, 3 * second, 90_000_000},
		{night + 4*second, 4 * second, 90_000_000},
		{night + 14*second, 14 * second, 450_000_000}, // late, not suspended
	} {
		if got := tick(c.at, c.mono); got != c.want {
			t.Errorf("to %d s: %d uJ, want %d", c.at/second, got, c.want)
		}
	}
}

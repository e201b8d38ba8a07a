package walltime_test

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/delivery/walltime"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// TestAttributedIsPlausible checks windows that the accounts make of machines whose CPUs come and go,
// which are suspended and rebooted, and whose agent is away: none of them is refused or counts as a
// violation, also when merged.
func TestAttributedIsPlausible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		groups := rapid.IntRange(0, 4).Draw(t, "groups")
		cpu := make([]int64, groups+1) // of the root first
		boot, at, mono, steal, cpus := 0, int64(1e9), int64(1e9), int64(0), rapid.IntRange(1, 300).Draw(t, "cpus")
		most := cpus
		acc := attribute.New("n")
		var merged *usage.Window
		check := func(w *usage.Window) {
			t.Helper()
			if err := walltime.CheckCPU([]usage.Window{*w}); err != nil {
				t.Fatal(err)
			}
			if !walltime.IsPlausible(w, most) {
				t.Fatalf("window of %v with %d CPUs, at most %d: %+v", w.Length(), w.CPUs, most, w.Balance)
			}
			if _, err := walltime.Cut([]usage.Window{*w}, []time.Duration{0}); err != nil {
				t.Fatal(err)
			}
		}
		for range rapid.IntRange(1, 25).Draw(t, "ticks") {
			span := rapid.SampledFrom([]int64{1, 1e6, 1e9, 1e9, 1e9, 10e9, 3600e9, 60 * 24 * 3600e9}).Draw(t, "span")
			switch rapid.IntRange(0, 12).Draw(t, "event") {
			case 0:
				cpus = rapid.IntRange(1, 300).Draw(t, "cpus")
				most = max(most, cpus)
			case 1: // suspended
				at += span
			case 2:
				boot, at, mono, steal, cpu = boot+1, 0, 0, 0, make([]int64, groups+1)
				fallthrough
			case 3: // the agent is away
				saved, err := attribute.Restore("n", [][]byte{acc.Checkpoint(nil, true)})
				if err != nil {
					t.Fatal(err)
				}
				acc = saved
			}
			at, mono = at+span, mono+span
			free := int64(cpus) * span
			if taken := rapid.Int64Range(0, free/8).Draw(t, "steal"); rapid.Bool().Draw(t, "steals") {
				steal, free = steal+taken, free-taken
			}
			for i := range cpu {
				used := rapid.Int64Range(0, free).Draw(t, "used")
				if rapid.IntRange(0, 4).Draw(t, "all") == 0 {
					used = free
				}
				cpu[i], free = cpu[i]+used, free-used
			}
			sum := int64(0)
			for _, v := range cpu {
				sum += v
			}
			s := &usage.Snapshot{Boot: fmt.Sprint(boot), At: at, Mono: mono, Offset: 1e18, Node: usage.Node{CPUs: cpus, Steal: steal, MemTotal: 1 << 36, MemFree: 1 << 35}}
			for i, v := range cpu {
				g := &usage.Group{Slot: usage.Slot(i), Parent: 0, Life: workload.Life{ID: uint64(i + 1)}, Workload: workload.Workload{ID: workload.NewID("n", workload.Path, fmt.Sprint(i)), Kind: workload.Path, Name: fmt.Sprint(i)}}
				if i == 0 {
					g.Parent, v = usage.NoSlot, sum
				} else if rapid.IntRange(0, 9).Draw(t, "early") == 0 {
					v += 2e6 // it was read later than the root
				}
				g.Put(usage.CPU, v)
				s.Groups = append(s.Groups, g)
			}
			acc.Tick(s)
			if rapid.IntRange(0, 2).Draw(t, "close") > 0 {
				continue
			}
			var w usage.Window
			acc.CloseWindow(&w)
			acc.MarkSaved()
			check(&w)
			if merged != nil && w.StartReason == usage.StartContinued && merged.Boot == w.Boot {
				merged.Merge(&w)
			} else {
				merged = w.Clone()
			}
			check(merged)
		}
	})
}

// TestImplausible checks windows of hostile agents, and the limits that honest ones are below.
func TestImplausible(t *testing.T) {
	const s = time.Second
	window := func(cpus int, length time.Duration, r usage.Resource, amounts ...int64) usage.Window {
		w := usage.Window{Boot: "b", Start: 1e9, End: 1e9 + int64(length), CPUs: cpus}
		for i, v := range amounts {
			row := usage.Row{ShortID: workload.ShortID(i + 1)}
			row.Usage.Put(r, v, usage.Measured)
			w.Rows = append(w.Rows, row)
		}
		return w
	}
	given := window(2, 10*s, usage.EnergyRest, 1e15)
	given.Handovers = []usage.Handover{{Guest: "of itself"}}
	giving := window(2, 10*s, usage.EnergyRest, 1e15)
	giving.Handovers = []usage.Handover{{Guest: "another", Workload: "w"}}
	whole := window(2, 10*s, usage.CPU)
	whole.Balance.Whole[0] = 8192*20e9 + 1
	for _, c := range []struct {
		name      string
		w         usage.Window
		cpus      int // of the node before
		refused   bool
		plausible bool
	}{
		{"full", window(2, 10*s, usage.CPU, 19e9, 1e9), 2, false, true},
		{"4.5 million seconds", window(2, 10*s, usage.CPU, 1, 4.5e15), 2, true, false},
		{"of all CPUs that there may be", window(8192, 10*s, usage.CPU, 8192*20e9), 0, false, true},
		{"of one more", window(8192, 10*s, usage.CPU, 8192*20e9, 1), 0, true, true},
		{"the whole", whole, 2, true, true},
		{"in user mode", window(2, 10*s, usage.CPUUser, 8192*20e9+1), 2, true, true},
		{"CPUs", window(8193, 10*s, usage.CPU), 0, true, true},
		{"more than its CPUs", window(2, 10*s, usage.CPU, 80e9+1), 2, false, false},
		{"more than its one CPU", window(1, 10*s, usage.CPU, 40e9+1), 1, false, false},
		{"in the kernel", window(2, 10*s, usage.CPUSystem, 8192*20e9+1), 2, true, true},
		{"of CPUs that were removed", window(2, 10*s, usage.CPU, 80e9+1), 3, false, true},
		{"of an instant", window(2, 0, usage.CPU, 40e9), 2, false, true},
		{"a job of an instant", window(0, 1, usage.CPU, 64e9), 0, false, true},
		{"sum that overflows", window(2, 10*s, usage.CPU, math.MaxInt64, math.MaxInt64), 2, true, false},
		{"30 years", window(8192, 30*365*24*3600*s, usage.CPU, 1<<60), 0, false, true},
		{"100 kW", window(2, 10*s, usage.EnergyPackage, 1e12, 1e12), 2, false, true},
		{"more", window(2, 10*s, usage.EnergyPackage, 1e12, 1e12+1), 2, false, false},
		{"more of memory", window(2, 10*s, usage.EnergyDRAM, 2e12+1), 2, false, false},
		{"more of accelerators", window(2, 10*s, usage.EnergyGPU, 2e12+1), 2, false, false},
		{"more of the rest", window(2, 10*s, usage.EnergyRest, 2e12+1), 2, false, false},
		{"more that may be wrong", window(2, 10*s, usage.EnergyError, 2e12+1), 2, false, true},
		{"given by a host in days of suspension", given, 2, false, true},
		{"of a host", giving, 2, false, false},
	} {
		if err := walltime.CheckCPU([]usage.Window{c.w}); (err != nil) != c.refused || err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, refused: want %v", c.name, err, c.refused)
		}
		if got := walltime.IsPlausible(&c.w, c.cpus); got != c.plausible {
			t.Errorf("%s: plausible %v", c.name, got)
		}
	}
}

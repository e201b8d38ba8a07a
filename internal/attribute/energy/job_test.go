package energy_test

import (
	"testing"

	"pgregory.net/rapid"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// TestJobsShareAll checks that two jobs that use the whole machine share all of its energy, except
// active energy of accelerators.
func TestJobsShareAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var a, b energy.Job
		var active, idle int64
		amount := rapid.Int64Range(0, 1<<40)
		for range rapid.IntRange(1, 5).Draw(t, "ticks") {
			var tick energy.Tick
			for d := power.Package; d < power.DomainLimit; d++ {
				q := usage.Quality(rapid.SampledFrom([]int{0, 1, 3}).Draw(t, "quality"))
				if q == usage.Absent {
					continue
				}
				x := energy.DomainEnergy{Quality: q, Idle: amount.Draw(t, "idle"), IdleError: amount.Draw(t, "off"), ActiveError: amount.Draw(t, "off")}
				x.Energy = x.Idle + amount.Draw(t, "active")
				tick.Domain[d] = x
				idle += x.Idle
				if d != power.GPU {
					active += x.Active()
				}
			}
			use := func(what string) (energy.JobUse, energy.JobUse) {
				all := rapid.Int64Range(1, 1<<40).Draw(t, what)
				one := rapid.Int64Range(0, all).Draw(t, what)
				off := rapid.Int64Range(0, all).Draw(t, what)
				return energy.JobUse{Job: one, All: all, AllError: off}, energy.JobUse{Job: all - one, All: all, AllError: off}
			}
			cpuA, cpuB := use("cpu")
			memA, memB := use("memory")
			a.Add(&tick, cpuA, memA)
			b.Add(&tick, cpuB, memB)
		}
		// Each job is at most one uJ short in each domain of each tick.
		const off = 5 * 4
		if d, e := active-a.Active-b.Active, idle-a.Idle-b.Idle; d < 0 || d > off || e < 0 || e > off {
			t.Fatalf("active %d + %d of %d, idle %d + %d of %d", a.Active, b.Active, active, a.Idle, b.Idle, idle)
		}
		for _, j := range []energy.Job{a, b} {
			if j.Active < 0 || j.Idle < 0 || j.ActiveError < 0 || j.IdleError < 0 || j.Quality != usage.Absent && j.Quality < usage.Apportioned {
				t.Fatalf("%+v", j)
			}
		}
	})
}

// TestJob checks that a job counts at least with its own use even if the machine's total is less,
// that an idle job has zero energy, and that without domains energy is absent.
func TestJob(t *testing.T) {
	var tick energy.Tick
	var j energy.Job
	if j.Add(&tick, energy.JobUse{Job: 5, All: 5}, energy.JobUse{}); j.Quality != usage.Absent {
		t.Errorf("nothing shown: %+v, want absent", j)
	}
	tick.Domain[power.Rest] = energy.DomainEnergy{Quality: usage.Modelled, Energy: 100, Idle: 60, ActiveError: 16, IdleError: 24}
	j.Add(&tick, energy.JobUse{All: 5}, energy.JobUse{})
	if j.Quality != usage.Modelled || j.Active != 0 || j.Idle != 0 {
		t.Errorf("nothing used: %+v, want 0, modelled", j)
	}
	j.Add(&tick, energy.JobUse{Job: 5, All: 3}, energy.JobUse{})
	if j.Active != 40 || j.Idle != 60 || j.ActiveError != 16 || j.IdleError != 24 {
		t.Errorf("alone: %+v, want all: 40 +-16, and 60 +-24 of idle", j)
	}
	one := j.ActiveError
	j.Add(&tick, energy.JobUse{Job: 5, All: 5}, energy.JobUse{})
	if j.Active != 80 || j.ActiveError != 2*one {
		t.Errorf("twice: %+v, want errors that add up", j)
	}
}

// TestJobError checks that the error of the machine's use is part of the job's, unless the job is
// all of it.
func TestJobError(t *testing.T) {
	var tick energy.Tick
	tick.Domain[power.Rest] = energy.DomainEnergy{Quality: usage.Modelled, Energy: 100, Idle: 60, ActiveError: 16, IdleError: 24}
	for _, c := range []struct {
		cpu  energy.JobUse
		want energy.Job
	}{
		// 20 uJ +- 8 of division, rounded up, and +- 4, as the whole use is off by a fifth; 30 uJ +- 12 and +- 6.
		{energy.JobUse{Job: 5, All: 10, AllError: 2}, energy.Job{Active: 20, ActiveError: 10, Idle: 30, IdleError: 14}},
		{energy.JobUse{Job: 5, All: 10}, energy.Job{Active: 20, ActiveError: 9, Idle: 30, IdleError: 12}},
		// 10 uJ +- 4 of division, rounded up, and +- 5, as the whole use is off by a half; 15 uJ +- 6 and +- 7.
		{energy.JobUse{Job: 1, All: 4, AllError: 2}, energy.Job{Active: 10, ActiveError: 8, Idle: 15, IdleError: 10}},
		{energy.JobUse{Job: 5, All: 5, AllError: 5}, energy.Job{Active: 40, ActiveError: 16, Idle: 60, IdleError: 65}},
	} {
		var j energy.Job
		j.Add(&tick, c.cpu, energy.JobUse{})
		if j.Active != c.want.Active || j.ActiveError != c.want.ActiveError || j.Idle != c.want.Idle || j.IdleError != c.want.IdleError {
			t.Errorf("%+v: %+v, want %+v", c.cpu, j, c.want)
		}
	}
}

// TestJobMemory checks that energy of memory is divided by bytes held, its idle part by CPU time, and
// that accelerators give only idle energy.
func TestJobMemory(t *testing.T) {
	cpu, memory := energy.JobUse{Job: 1, All: 2}, energy.JobUse{Job: 1, All: 4}
	for d, want := range map[power.Domain][2]int64{power.Package: {40, 10}, power.DRAM: {20, 10}, power.GPU: {0, 10}, power.Rest: {40, 10}} {
		var tick energy.Tick
		var j energy.Job
		tick.Domain[d] = energy.DomainEnergy{Quality: usage.Measured, Energy: 100, Idle: 20}
		j.Add(&tick, cpu, memory)
		if got := [2]int64{j.Active, j.Idle}; got != want || j.Quality != usage.Apportioned {
			t.Errorf("%v: %v, %v; want %v, apportioned", d, got, j.Quality, want)
		}
		// Energy that no workload used is idle energy too.
		j = energy.Job{}
		if j.Add(&tick, energy.JobUse{}, energy.JobUse{}); j != (energy.Job{Quality: usage.Apportioned}) {
			t.Errorf("%v: nothing used: %+v", d, j)
		}
		if d == power.DRAM {
			if j.Add(&tick, cpu, energy.JobUse{}); j.Active != 0 || j.Idle != 50 {
				t.Errorf("no memory known: %+v, want half of everything, as idle", j)
			}
		}
	}
}

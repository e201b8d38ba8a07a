package attribute

import (
	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// SetMeters says what the machine's energy is measured with, before the first
// tick. Without it, energy is absent.
func (acc *Accounts) SetMeters(m *energy.Meters) { acc.energy.meters = m }

// Meters returns what was learned of the machine's power; nil without meters.
func (acc *Accounts) Meters() *energy.Meters { return acc.energy.meters }

// Events returns what happened to energy meters in the latest tick. It is good
// until the next one.
func (acc *Accounts) Events() []energy.Event { return acc.energy.events }

// energyState is what the accounts need to divide energy.
type energyState struct {
	meters    *energy.Meters
	events    []energy.Event
	positions []energy.Position // restored: up to where counters are booked

	present   bool                     // the latest tick has energy
	cpus      int                      // online in it
	idlePower [power.DomainLimit]int64 // of it, the part of virtual machines too

	weights, parts, errors []int64 // by place in the order; used anew each tick
}

// divideEnergy books the tick's energy: what was active to who used what it goes by,
// the rest to idle, but for the part of virtual machines. It comes after balance,
// as it goes by what that booked.
//
// A package's energy, and that of which no more is known than that the machine
// used it, goes by CPU time. That of memory goes by bytes held, as nobody counts
// the traffic of each workload. Whose work an accelerator does is not known, so
// what it uses beyond idling is booked to system.
func (acc *Accounts) divideEnergy(s *usage.Snapshot) {
	e := &acc.energy
	if e.meters == nil {
		return
	}
	span := energy.Interval{At: s.At, CPUs: s.Node.CPUs}
	if acc.tickStart == usage.StartContinued || acc.tickStart == usage.StartResumed {
		span.Elapsed = acc.elapsed
		span.Suspended = acc.elapsed - (s.Mono - acc.mono) // CLOCK_MONOTONIC stands still then
	}
	cpu := indexOf(usage.CPU)
	if whole := acc.tick.Whole[cpu]; whole > 0 {
		used := min(whole, acc.tick.Workloads[cpu]+acc.tick.System[cpu])
		span.Load = int64(float64(used) / float64(whole) * power.PPM)
	}
	tick := e.meters.Tick(span, s.Before, s.After)
	e.events, e.present, e.cpus, e.idlePower = tick.Events, false, s.Node.CPUs, [power.DomainLimit]int64{}
	for d := power.Package; d < power.DomainLimit; d++ {
		if a := &tick.Domain[d]; a.Quality != usage.Absent {
			acc.divideDomainEnergy(d, a)
			e.present = true
		}
	}
	if e.present {
		acc.addGuestShares(s, tick)
	}
	acc.recordMeterEvents(e.events)
}

func (acc *Accounts) divideDomainEnergy(d power.Domain, a *energy.DomainEnergy) {
	e := &acc.energy
	e.weights, e.parts, e.errors = resize(e.weights, len(acc.current)), resize(e.parts, len(acc.current)), resize(e.errors, len(acc.current))
	rule, by := energy.ByCPU, usage.CPU
	switch d {
	case power.DRAM:
		rule, by = energy.ByResident, usage.Memory
	case power.GPU:
		rule, by = energy.ByTraffic, 0
	}
	for i, o := range acc.current {
		if e.weights[i] = 0; by != 0 {
			e.weights[i] = o.share.Amount[by]
		}
	}
	if by == 0 {
		e.weights[0] = 1
	}
	left := a.Split(rule, e.weights, e.parts, e.errors)
	quality := max(a.Quality, usage.Apportioned)
	res, n := usage.EnergyOf(d), indexOf(usage.EnergyOf(d))
	t := &acc.tick
	for i, o := range acc.current {
		if i > 0 && (by == 0 || !o.share.Present.Has(by)) {
			continue // what it used of that is not known: its energy is absent, not zero
		}
		o.share.Put(res, e.parts[i], quality)
		o.share.Put(usage.EnergyError, e.errors[i], quality)
		if i == 0 {
			t.System[n] = e.parts[i]
		} else {
			t.Workloads[n] += e.parts[i]
		}
	}
	e.idlePower[d] = a.Idle + left
	idle, off := acc.divideIdleEnergy(d, a, e.idlePower[d])
	acc.idle.share.Put(res, idle, quality)
	acc.idle.share.Put(usage.EnergyIdle, idle, quality)
	acc.idle.share.Put(usage.EnergyError, off, quality)
	t.Whole[n], t.Idle[n] = a.Energy, idle
}

func resize(s []int64, n int) []int64 {
	if cap(s) < n {
		return make([]int64, n)
	}
	return s[:n]
}

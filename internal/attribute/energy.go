package attribute

import (
	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// SetMeters sets the meters of the machine's energy. Call it before the first tick. Without it
// energy is absent.
func (acc *Accounts) SetMeters(m *energy.Meters) { acc.energy.meters = m }

// Meters returns the meters with what was learned from them, or nil.
func (acc *Accounts) Meters() *energy.Meters { return acc.energy.meters }

// Events returns the events of energy meters in the latest tick. It is valid until the next one.
func (acc *Accounts) Events() []energy.Event { return acc.energy.events }

// energyState is the state for dividing energy.
type energyState struct {
	meters    *energy.Meters
	events    []energy.Event
	positions []energy.Position // restored positions up to which counters are booked

	present   bool                     // the latest tick has energy
	cpus      int                      // online in the latest tick
	idlePower [power.DomainLimit]int64 // of the latest tick, including the part of virtual machines

	weights, parts, errors []int64 // by index in current; reused each tick
}

// divideEnergy books the tick's energy: active energy to workloads by what they used, the rest to
// idle except for the part of virtual machines. It runs after balanceTick, whose bookings it uses.
//
// Energy of packages, and of a machine of which only the total is known, is divided by CPU time.
// Energy of memory is divided by bytes held, since no counter shows the memory traffic of a
// workload. It is unknown for whom accelerators work, so what they use beyond idle is booked to
// system.
func (acc *Accounts) divideEnergy(s *usage.Snapshot) {
	e := &acc.energy
	if e.meters == nil {
		return
	}
	span := energy.Interval{At: s.At, CPUs: s.Node.CPUs}
	if acc.tickStart == usage.StartContinued || acc.tickStart == usage.StartResumed {
		span.Elapsed = acc.elapsed
		span.Suspended = acc.elapsed - (s.Mono - acc.mono) // CLOCK_MONOTONIC stops during suspend
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
			continue // use unknown: energy is absent, not zero
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

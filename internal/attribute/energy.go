package attribute

import (
	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// Meter says what the machine's energy is measured with, before the first
// tick. Without it, energy is absent.
func (b *Books) Meter(m *energy.Meters) { b.energy.meters = m }

// Energy returns what was learned of the machine's power; nil without meters.
func (b *Books) Energy() *energy.Meters { return b.energy.meters }

// Events returns what happened to energy meters in the latest tick. It is good
// until the next one.
func (b *Books) Events() []energy.Event { return b.energy.events }

// powers is what the books need to divide energy.
type powers struct {
	meters    *energy.Meters
	events    []energy.Event
	positions []energy.Position // restored: up to where counters are booked

	shown bool                     // the latest tick has energy
	cpus  int                      // online in it
	idle  [power.DomainLimit]int64 // of it, the part of virtual machines too

	weights, parts, errors []int64 // by place in the order; used anew each tick
}

// divide books the tick's energy: what was active to who used what it goes by,
// the rest to idle, but for the part of virtual machines. It comes after balance,
// as it goes by what that booked.
//
// A package's energy, and that of which no more is known than that the machine
// used it, goes by CPU time. That of memory goes by bytes held, as nobody counts
// the traffic of each workload. Whose work an accelerator does is not known, so
// what it uses beyond idling is booked to system.
func (b *Books) divide(s *usage.Snapshot) {
	e := &b.energy
	if e.meters == nil {
		return
	}
	span := energy.Span{At: s.At, CPUs: s.Node.CPUs}
	if b.now == usage.Continues || b.now == usage.Resumed {
		span.Elapsed = b.elapsed
		span.Asleep = b.elapsed - (s.Mono - b.mono) // CLOCK_MONOTONIC stands still then
	}
	cpu := indexOf(usage.CPU)
	if whole := b.tick.Whole[cpu]; whole > 0 {
		used := min(whole, b.tick.Workloads[cpu]+b.tick.System[cpu])
		span.Load = int64(float64(used) / float64(whole) * power.PPM)
	}
	tick := e.meters.Tick(span, s.Before, s.After)
	e.events, e.shown, e.cpus, e.idle = tick.Events, false, s.Node.CPUs, [power.DomainLimit]int64{}
	for d := power.Package; d < power.DomainLimit; d++ {
		if a := &tick.Domain[d]; a.Quality != usage.Absent {
			b.divideDomain(d, a)
			e.shown = true
		}
	}
	if e.shown {
		b.give(s, tick)
	}
	b.befall(e.events)
}

func (b *Books) divideDomain(d power.Domain, a *energy.Amount) {
	e := &b.energy
	e.weights, e.parts, e.errors = resize(e.weights, len(b.order)), resize(e.parts, len(b.order)), resize(e.errors, len(b.order))
	rule, by := energy.ByCPU, usage.CPU
	switch d {
	case power.DRAM:
		rule, by = energy.ByResident, usage.Memory
	case power.GPU:
		rule, by = energy.ByTraffic, 0
	}
	for i, o := range b.order {
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
	t := &b.tick
	for i, o := range b.order {
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
	e.idle[d] = a.Idle + left
	idle, off := b.divideIdle(d, a, e.idle[d])
	b.idle.share.Put(res, idle, quality)
	b.idle.share.Put(usage.EnergyIdle, idle, quality)
	b.idle.share.Put(usage.EnergyError, off, quality)
	t.Whole[n], t.Idle[n] = a.Energy, idle
}

func resize(s []int64, n int) []int64 {
	if cap(s) < n {
		return make([]int64, n)
	}
	return s[:n]
}

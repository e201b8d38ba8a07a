package attribute

import (
	"crypto/sha256"
	"fmt"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A Guest is a virtual machine of this machine, with what it was given.
type Guest struct {
	Guest    *usage.Guest
	Workload workload.ID // that it is here
	Share    power.Share // up to the latest tick
}

// Guests returns the virtual machines that the latest tick showed, those that
// ended in it too, each with all energy that it was given since its epoch began.
// There are none where the tick has no energy. The list is good until the next tick.
func (b *Books) Guests() []Guest {
	b.listed = b.listed[:0]
	if !b.energy.shown {
		return b.listed
	}
	for _, a := range b.guests {
		if g := a.guest; g.shown != nil {
			b.listed = append(b.listed, Guest{g.shown, a.w.ID, g.share})
		}
	}
	return b.listed
}

// A guest is the virtual machine that runs in an account's group, or did. What its
// group is booked goes on to be given to it though it is not shown for a while: a
// meter that was restarted has to find it first.
type guest struct {
	shown *usage.Guest // in the latest snapshot; nil where it was not there
	name  string
	turn  uint64 // counts the virtual machines that this group had before
	old   bool   // it was there before the latest tick

	share  power.Share
	opened power.Share   // when the window was; without an epoch where there was none
	shares []power.Share // of the window's ticks
	booked int64         // in the window, uJ
}

// meet takes over which virtual machine a group shows.
func (b *Books) meet(a *account, shown *usage.Guest) {
	g := a.guest
	switch {
	case g == nil:
		g = &guest{}
	case shown != nil && shown.UUID != g.share.Guest:
		b.handOver(a) // another one has its place
		g = &guest{turn: g.turn + 1}
	}
	if g.old = g.share.Epoch != ""; !g.old {
		g.share.Guest, g.share.Epoch = shown.UUID, b.epoch(a, shown.UUID, g.turn)
		a.dirty.guest, a.dirty.share = true, true
	}
	if g.shown = shown; shown != nil && g.name != shown.Name {
		g.name, a.dirty.guest = shown.Name, true
	}
	a.guest = g
	b.guests = append(b.guests, a)
}

// epoch names the beginning of what a virtual machine is given. Nobody outside can
// guess it, since nobody knows when counting began. It is the same again where a
// checkpoint of before it was gone on with.
func (b *Books) epoch(a *account, uuid string, turn uint64) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%d\x00%s\x00%d\x00%d\x00%s\x00%d", b.boot, b.first, a.w.ID, a.life.Hierarchy, a.life.ID, uuid, turn)
	return string(workload.IDOf([16]byte(h.Sum(nil)[:16])))
}

// mostCPUs is more than any virtual machine has.
const mostCPUs = 1 << 20

// divideIdle gives virtual machines their part of a domain's idle energy, and
// returns what of it is left, and of by how much it may be off: as many CPUs as one
// has of those that the machine has online, or of all that the virtual machines have
// where those are more. One that came in this tick was not there for all of it, and
// has none.
func (b *Books) divideIdle(d power.Domain, a *energy.Amount, idle int64) (left, off int64) {
	if len(b.guests) == 0 {
		return idle, a.IdleError
	}
	e := &b.energy
	last := len(b.guests)
	e.weights, e.parts, e.errors = resize(e.weights, last+1), resize(e.parts, last+1), resize(e.errors, last+1)
	claimed := int64(0)
	for i, o := range b.guests {
		e.weights[i] = 0
		if g := o.guest; g.old && g.shown != nil {
			e.weights[i] = int64(min(max(0, g.shown.VCPUs), mostCPUs))
		}
		claimed += e.weights[i]
	}
	if claimed == 0 {
		e.weights[last] = 1
	} else {
		e.weights[last] = max(0, int64(e.cpus)-claimed)
	}
	energy.Divide(idle, e.weights, e.parts)
	energy.Divide(a.IdleError, e.weights, e.errors)
	res, quality := usage.EnergyOf(d), max(a.Quality, usage.Apportioned)
	for i, o := range b.guests {
		if e.weights[i] > 0 {
			o.share.Put(res, e.parts[i], quality)
			o.share.Put(usage.EnergyError, e.errors[i], quality)
			b.tick.Workloads[indexOf(res)] += e.parts[i]
		}
		o.share.Put(usage.EnergyIdle, e.parts[i], quality)
	}
	return e.parts[last], e.errors[last]
}

// give adds to the share of each virtual machine what it was booked in the tick.
func (b *Books) give(s *usage.Snapshot, tick *energy.Tick) {
	for _, a := range b.guests {
		g := a.guest
		var all, modelled int64
		for d := power.Package; d < power.DomainLimit; d++ {
			part := a.share.Amount[usage.EnergyOf(d)]
			if all += part; tick.Domain[d].Quality == usage.Modelled {
				modelled += part
			}
		}
		idle := a.share.Amount[usage.EnergyIdle]
		to := &g.share
		to.N, to.At = max(s.At/1e6, to.N+1), s.At
		to.Active += all - idle
		to.Idle += idle
		to.Error += a.share.Amount[usage.EnergyError]
		to.Modelled += modelled
		g.booked += all
		g.shares = usage.AddShare(g.shares, to)
		a.dirty.share = true
	}
}

// handOver notes for the open window what a virtual machine was given in it.
func (b *Books) handOver(a *account) {
	g := a.guest
	if len(g.shares) > 0 && g.share.Guest != "" {
		b.handed = append(b.handed, usage.Handover{Guest: g.share.Guest, Workload: a.w.ID, Name: g.name,
			Opened: g.opened, Shares: g.shares, Booked: g.booked})
	}
	g.shares = make([]power.Share, 0, len(g.shares))
	g.opened, g.booked = g.share, 0
}

// handovers appends what the window has of them: those of this machine's guests, and
// what its own host gave it.
func (b *Books) handovers(to []usage.Handover) []usage.Handover {
	to = append(to, b.handed...)
	clear(b.handed)
	b.handed = b.handed[:0]
	if b.energy.meters != nil {
		if h, ok := b.energy.meters.Handover(); ok {
			to = append(to, h)
		}
	}
	return to
}

package attribute

import (
	"crypto/sha256"
	"fmt"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A Guest is a virtual machine of this machine, with its share.
type Guest struct {
	Guest    *usage.Guest
	Workload workload.ID // its workload here
	Share    power.Share // up to the latest tick
}

// Guests returns the virtual machines in the latest tick, including those that ended in it, with
// all energy given to each since its epoch began. It is empty if the tick has no energy, and valid
// until the next tick.
func (acc *Accounts) Guests() []Guest {
	acc.guestList = acc.guestList[:0]
	if !acc.energy.present {
		return acc.guestList
	}
	for _, a := range acc.guests {
		if g := a.guest; g.current != nil {
			acc.guestList = append(acc.guestList, Guest{g.current, a.w.ID, g.share})
		}
	}
	return acc.guestList
}

// A guest is the virtual machine that runs, or ran, in an account's group. It is still given what
// its group is booked while it is not shown: after a restart the agent has to find it first.
type guest struct {
	current    *usage.Guest // in the latest snapshot; nil if it is missing there
	name       string
	generation uint64 // number of virtual machines that this group had before
	wasPresent bool   // existed before the latest tick

	share    power.Share
	baseline power.Share   // share when the window opened; no epoch if there was none
	shares   []power.Share // one for each tick of the window
	booked   int64         // in the window, uJ
}

// updateGuest takes over the virtual machine that a group shows.
func (acc *Accounts) updateGuest(a *account, shown *usage.Guest) {
	g := a.guest
	switch {
	case g == nil:
		g = &guest{}
	case shown != nil && shown.UUID != g.share.Guest:
		acc.closeHandover(a) // replaced by another virtual machine
		g = &guest{generation: g.generation + 1}
	}
	if g.wasPresent = g.share.Epoch != ""; !g.wasPresent {
		g.share.Guest, g.share.Epoch = shown.UUID, acc.newEpoch(a, shown.UUID, g.generation)
		a.dirty.guest, a.dirty.share = true, true
	}
	if g.current = shown; shown != nil && g.name != shown.Name {
		g.name, a.dirty.guest = shown.Name, true
	}
	a.guest = g
	acc.guests = append(acc.guests, a)
}

// newEpoch returns an id for a new series of shares. Outsiders cannot guess it, as they do not know
// when counting began. It repeats if an earlier checkpoint is resumed.
func (acc *Accounts) newEpoch(a *account, uuid string, turn uint64) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%d\x00%s\x00%d\x00%d\x00%s\x00%d", acc.boot, acc.first, a.w.ID, a.life.Hierarchy, a.life.ID, uuid, turn)
	return string(workload.IDFromBytes([16]byte(h.Sum(nil))))
}

// mostCPUs exceeds the CPUs of any virtual machine.
const mostCPUs = 1 << 20

// divideIdleEnergy gives virtual machines their part of a domain's idle energy: their CPUs divided
// by the machine's online CPUs, or by all their CPUs where those are more. A virtual machine that
// appeared in this tick gets nothing. It returns what is left of the energy and of its error.
func (acc *Accounts) divideIdleEnergy(d power.Domain, a *energy.DomainEnergy, idle int64) (left, off int64) {
	if len(acc.guests) == 0 {
		return idle, a.IdleError
	}
	e := &acc.energy
	last, n := len(acc.guests), len(acc.guests)+1
	e.weights, e.parts, e.errors = resize(e.weights, n), resize(e.parts, n), resize(e.errors, n)
	claimed := int64(0)
	for i, o := range acc.guests {
		e.weights[i] = 0
		if g := o.guest; g.wasPresent && g.current != nil {
			e.weights[i] = int64(min(max(0, g.current.VCPUs), mostCPUs))
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
	for i, o := range acc.guests {
		if e.weights[i] > 0 {
			o.share.Put(res, e.parts[i], quality)
			o.share.Put(usage.EnergyError, e.errors[i], quality)
			acc.tick.Workloads[indexOf(res)] += e.parts[i]
		}
		o.share.Put(usage.EnergyIdle, e.parts[i], quality)
	}
	return e.parts[last], e.errors[last]
}

// addGuestShares adds what was booked in the tick to the share of each virtual machine.
func (acc *Accounts) addGuestShares(s *usage.Snapshot, tick *energy.Tick) {
	for _, a := range acc.guests {
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

// closeHandover records for the open window what a virtual machine was given in it.
func (acc *Accounts) closeHandover(a *account) {
	g := a.guest
	if len(g.shares) > 0 && g.share.Guest != "" {
		acc.handovers = append(acc.handovers, usage.Handover{Guest: g.share.Guest, Workload: a.w.ID, Name: g.name,
			Opened: g.baseline, Shares: g.shares, Booked: g.booked})
	}
	g.shares = make([]power.Share, 0, len(g.shares))
	g.baseline, g.booked = g.share, 0
}

// appendHandovers appends the window's handovers: those of this machine's guests, and the one from
// its own host.
func (acc *Accounts) appendHandovers(to []usage.Handover) []usage.Handover {
	to = append(to, acc.handovers...)
	clear(acc.handovers)
	acc.handovers = acc.handovers[:0]
	if acc.energy.meters != nil {
		if h, ok := acc.energy.meters.TakeHandover(); ok {
			to = append(to, h)
		}
	}
	return to
}

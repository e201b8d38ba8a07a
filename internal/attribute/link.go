package attribute

import (
	"slices"

	"mete.dev/mete/internal/model/usage"
)

// nestedCounters are the counters that include those of descendants, dead ones too.
//
// Each account's counter is subtracted from that of its holder, the nearest account above that
// shows one. Holders change: a group is seen late, is unreadable for a while, or ends before its
// descendants. Then earlier use stays where it was booked, so that nothing is booked twice or lost.
var nestedCounters = [...]usage.Resource{usage.CPU, usage.DiskRead, usage.DiskWritten, usage.DiskReads, usage.DiskWrites}

var nestedSet = usage.SetOf(nestedCounters[:]...)

// nestedIndex returns the index of r in nestedCounters, or -1.
func nestedIndex(r usage.Resource) int {
	switch {
	case r == usage.CPU:
		return 0
	case nestedSet.Has(r):
		return slices.Index(nestedCounters[:], r)
	}
	return -1
}

// nestedLevels are the levels that include those of descendants.
var nestedLevels = [...]usage.Resource{usage.Memory, usage.PIDs}

// There is an account for each group, so its arrays have no unused entries: nestedSlot is the index
// of a resource among the nested ones, levelSlot among the levels, counterSlot among those of bookedSet. All
// other resources map to an index after these, which is never written.
var (
	nestedSlot  = slotIndexes(append(nestedCounters[:], nestedLevels[:]...)...)
	levelSlot   = slotIndexes(usage.Memory, usage.PIDs, usage.MemoryAnon, usage.MemoryFile, usage.MemoryWorking)
	counterSlot = slotIndexes(slices.Collect(bookedSet.All())...)
)

// counterSlots is less by the resources of readings that are not in bookedSet, but for one entry.
const nestedSlots, levelSlots, counterSlots = len(nestedCounters) + len(nestedLevels) + 1, 5 + 1, usage.ReadingLimit - 16

// bookedSet are the counters that groups show and that are booked as they are: user and system time are not, see splitCPU.
var bookedSet = counterSet & (1<<usage.ReadingLimit - 1) &^ (energySet | usage.Specified | usage.Classified | usage.SetOf(usage.CPUUser, usage.CPUSystem))

func slotIndexes(of ...usage.Resource) (place [usage.Limit]uint8) {
	for i := range place {
		place[i] = uint8(len(of))
	}
	for i, r := range of {
		place[r] = uint8(i)
	}
	return place
}

var inclusiveSet = func() (s usage.Set) {
	usage.All.Each(func(r usage.Resource) {
		if r.Detail().Inclusive {
			s |= usage.SetOf(r)
		}
	})
	return s
}()

// isInclusive reports whether a's reading of r includes its descendants'.
func isInclusive(a *account, r usage.Resource) bool {
	return (inclusiveSet &^ a.reading.Own).Has(r)
}

// linkParents sets the parents of an account.
func (acc *Accounts) linkParents(a *account, g *usage.Group) {
	if g.Parent == usage.NoSlot {
		a.born = a.born || acc.tickStart == usage.StartBooted
		return
	}
	parent, memory := acc.accountAt(a, g.Parent), acc.accountAt(a, g.MemoryParent)
	memory.nested = true
	if parent != a.parent || memory != a.memory {
		a.parent, a.memory, a.dirty.links = parent, memory, true
	}
	if a.since == acc.round {
		// Below a group that is itself seen late nothing is known to be new.
		a.born = acc.isBorn(g) && (a.parent.since != acc.round || a.parent.born)
	}
	if a.final && !g.Exact || a.since == acc.round && !a.born && acc.tickStart != usage.StartFirst {
		a.parent.uncertain = true
	}
}

// accountAt returns the account at a slot, or the root's if there is none.
func (acc *Accounts) accountAt(a *account, s usage.Slot) *account {
	if s > 0 && int(s) < len(acc.bySlot) && acc.bySlot[s] != nil && acc.bySlot[s] != a {
		return acc.bySlot[s]
	}
	return acc.bySlot[usage.Root]
}

// linkCounters finds the holder of each reading and adds the reading there. Children come before
// parents, so that each parent knows how much of its growth is theirs.
func (acc *Accounts) linkCounters() {
	for _, a := range slices.Backward(acc.current) {
		for _, r := range nestedLevels {
			// The memory that an ended group held belongs to other groups, or is free.
			if a.reading.Has.Has(r) && isInclusive(a, r) && !a.final {
				if up := holderOf(a, r); up != nil {
					up.childValues[nestedSlot[r]] += a.reading.Value[r]
				}
			}
		}
		for r := range ((a.reading.Has&^a.reading.Own | a.previous.Has&^a.previous.Own) & nestedSet).All() {
			a.updateHolder(nestedIndex(r), r)
		}
	}
}

// updateHolder updates the holder of a's counter of one nested resource.
func (a *account) updateHolder(i int, r usage.Resource) {
	old := a.holders[i]
	var up *account
	if a.reading.Has.Has(r) && isInclusive(a, r) {
		up = holderOf(a, r)
	}
	a.holders[i] = up
	moved := old != up || a.hasRestarted(r)
	if moved {
		a.dirty.set |= 1 << r
	}
	if old != nil && moved {
		last := a.previous.Value[r]
		if !a.reading.Has.Has(r) { // those below were unlinked before
			last = max(last, a.booked[counterSlot[r]]+a.childValues[nestedSlot[r]]+a.excluded[nestedSlot[r]])
		}
		old.excluded[nestedSlot[r]] += last
		old.dirty.set |= 1 << r
	}
	if up == nil {
		return
	}
	if a.final {
		a.raiseToBooked(r)
	}
	now := a.reading.Value[r]
	grew := a.growth(i, r)
	if moved {
		up.excluded[nestedSlot[r]] -= now - grew
		up.dirty.set |= 1 << r
	}
	up.childValues[nestedSlot[r]] += now
	up.childGrowth[i] += grew
}

// lowerByRemoved lowers the state of counters by what they lost with removed block devices, as if
// they had never counted these, so that the growth of the other devices is booked.
func (acc *Accounts) lowerByRemoved(s *usage.Snapshot) {
	for i, g := range s.Groups {
		if a := acc.current[i]; a.since != acc.round { // otherwise the loss is booked above
			for r, n := range g.Removed {
				a.lower(r, n)
			}
		}
	}
	for r, n := range s.Node.Removed {
		acc.lastNode.Total.Value[r] -= n
	}
}

// lower lowers a nested counter by n. The counter that includes it is lowered by its own loss, which
// includes n; but n was not booked to its own group.
func (a *account) lower(r usage.Resource, n int64) {
	a.booked[counterSlot[r]] -= n
	previous := *a.previous
	previous.Value[r] -= n
	a.previous = &previous
	a.dirty.set |= 1 << r
	a.dormant = false
	if up := a.holders[nestedIndex(r)]; up != nil {
		up.booked[counterSlot[r]] += n
		up.dirty.set |= 1 << r
	}
}

// raiseToBooked raises the last reading of a nested counter to what was booked of it, to the group
// and its descendants. That can be more, since they are read later; and a group that ended unseen
// has no later reading to show its holder that this is not the holder's own.
func (a *account) raiseToBooked(r usage.Resource) {
	v := &a.reading.Value[r]
	if !a.hasRestarted(r) && !a.isRebased(r, *v) {
		*v = max(*v, a.booked[counterSlot[r]]+a.childValues[nestedSlot[r]]+a.excluded[nestedSlot[r]])
	}
}

// growth returns how much of a's counter came in this tick, as far as known.
func (a *account) growth(i int, r usage.Resource) int64 {
	now := a.reading.Value[r]
	switch {
	case a.hasRestarted(r):
		return now
	case a.previous.Has.Has(r):
		return now - a.previous.Value[r]
	case a.born && !a.seen.Has(r):
		return now
	}
	return min(now, a.childGrowth[i])
}

// hasRestarted reports whether a counter restarted at zero. A small decrease is a correction
// instead, such as a request returned by a device; see also lostDevice.
func (a *account) hasRestarted(r usage.Resource) bool {
	return !a.lostDevice(r) && a.previous.Has.Has(r) && a.reading.Has.Has(r) && a.reading.Value[r] < a.previous.Value[r]/2
}

// holderOf returns the nearest account above a whose inclusive reading of r includes a's. An
// account that is unreadable now is the holder only if there is none above it.
func holderOf(a *account, r usage.Resource) *account {
	var silent *account
	for up := a.parentFor(r); up != nil; up = up.parentFor(r) {
		switch {
		case up.closed || !isInclusive(up, r):
		case up.reading.Has.Has(r):
			return up
		case silent == nil && up.seen.Has(r):
			silent = up
		}
	}
	return silent
}

// parentFor returns the account directly above a in the hierarchy that counts r.
func (a *account) parentFor(r usage.Resource) *account {
	if r == usage.Memory {
		return a.memory
	}
	return a.parent
}

package attribute

import (
	"math/bits"
	"time"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// NewAfterLoss returns empty accounts for a node whose accounts there were, but which cannot
// be gone on with. Their first window says so.
func NewAfterLoss(node, detail string) *Accounts {
	acc := New(node)
	acc.lossDetail = detail
	return acc
}

// Offset returns what wall time was ahead of CLOCK_BOOTTIME where the accounts were
// restored and nothing was booked since, if that was in this boot.
func (acc *Accounts) Offset(boot string) (offset int64, ok bool) {
	return acc.offset, acc.restored && acc.boot == boot
}

// startTick finds out how a snapshot relates to what was there before.
func (acc *Accounts) startTick(s *usage.Snapshot) {
	away := acc.restored
	acc.tickStart, acc.restored = usage.StartContinued, false
	switch {
	case !acc.started, !away && s.Boot != acc.boot, away && s.Boot == acc.boot && s.At < acc.at:
		acc.startFirst(s)
	case s.Boot != acc.boot:
		acc.startAfterReboot(s)
	case away:
		acc.startResumed(s)
	}
}

// startFirst starts over on the first snapshot of a boot.
func (acc *Accounts) startFirst(s *usage.Snapshot) {
	lost := acc.lossDetail
	acc.reset(usage.StartFirst, s.Boot)
	acc.first, acc.at, acc.start, acc.mono, acc.lastNode = s.At, s.At, s.At, s.Mono, s.Node
	if lost != "" {
		acc.gaps = []usage.Gap{gap(s.Wall(), s.Wall(), usage.StateLost, lost)}
	}
}

// startAfterReboot starts over where the machine did: with nothing booked, at the zero of
// CLOCK_BOOTTIME, since when the kernel counts.
func (acc *Accounts) startAfterReboot(s *usage.Snapshot) {
	ended, booted := wall(acc.at+acc.offset), wall(s.Offset)
	acc.reset(usage.StartBooted, s.Boot)
	acc.first = s.At
	acc.gaps = []usage.Gap{gap(ended, booted, usage.Rebooted, ""), gap(booted, s.Wall(), usage.Unwatched, "")}
}

// reset empties the accounts.
func (acc *Accounts) reset(now usage.StartReason, boot string) {
	*acc = Accounts{node: acc.node, interval: acc.interval, energy: energyState{meters: acc.energy.meters}, idle: &account{w: acc.idle.w, slot: usage.NoSlot}, started: true, boot: boot, tickStart: now, windowStart: now}
}

func wall(ns int64) time.Time { return time.Unix(0, ns).UTC() }

// gap is a gap that does not end before it begins, though the clock was set.
func gap(from, to time.Time, why usage.Reason, detail string) usage.Gap {
	if to.Before(from) {
		to = from
	}
	return usage.Gap{From: from, To: to, Reason: why, Detail: detail}
}

// startResumed finds the restored accounts of the groups that are there, so that they
// are gone on with; the others end as any that nobody showed the end of.
func (acc *Accounts) startResumed(s *usage.Snapshot) {
	acc.tickStart, acc.windowStart = usage.StartResumed, usage.StartResumed
	if acc.energy.meters != nil {
		acc.energy.meters.Resume(acc.energy.positions)
	}
	// Boottime went on all the while, so both ends are by what the wall clock shows
	// now: it may have been set meanwhile.
	acc.gaps = []usage.Gap{{From: wall(acc.at + s.Offset), To: s.Wall(), Reason: usage.Unwatched}}

	lives := make(map[workload.Life]*account, len(acc.current))
	for _, a := range acc.current[1:] {
		lives[a.life] = a
	}
	acc.attach(acc.current[0], s.Groups[0])
	var strange []*usage.Group
	for _, g := range s.Groups[1:] {
		if a := lives[g.Life]; a != nil && g.Life.ID < firstSubstituteID {
			acc.attach(a, g)
			delete(lives, g.Life)
		} else {
			strange = append(strange, g)
		}
	}
	if len(strange) == 0 || len(lives) == 0 {
		return
	}
	names := make(map[workload.ID]*account, len(lives))
	for _, a := range lives {
		names[a.w.ID] = a
	}
	for _, g := range strange {
		if a := names[g.Workload.ID]; a != nil && a.isSameGroup(g) {
			acc.attach(a, g)
			delete(names, g.Workload.ID)
		}
	}
}

// firstSubstituteID is from where on the id of a life is only a stand-in for the kernel's,
// which could not be had: another run of the meter gives the same to others.
const firstSubstituteID = 1 << 63

// isSameGroup reports whether a group that shows another life is a's nevertheless, seen
// now through another hierarchy or by its right id.
func (a *account) isSameGroup(g *usage.Group) bool {
	if a.life.Hierarchy == g.Life.Hierarchy && max(a.life.ID, g.Life.ID) < firstSubstituteID {
		return false
	}
	for set := a.reading.Has & g.Has & counterSet &^ a.reading.Counted; set != 0; set &= set - 1 {
		r := usage.Resource(bits.TrailingZeros64(uint64(set)))
		if g.Value[r] < a.reading.Value[r] {
			return false
		}
	}
	return true
}

// attach gives a restored account the slot of its group.
func (acc *Accounts) attach(a *account, g *usage.Group) {
	acc.growSlots(g.Slot)
	acc.bySlot[g.Slot], a.slot = a, g.Slot
	if a.life != g.Life {
		a.life, a.dirty.head = g.Life, true
	}
}

// isBorn reports whether all that a new group shows came in this tick, as far
// as its source can tell: a group that is new after the meter was away began
// since then, or it would be known.
func (acc *Accounts) isBorn(g *usage.Group) bool {
	switch acc.tickStart {
	case usage.StartContinued:
		return g.Born
	case usage.StartFirst:
		return false
	}
	return true
}

// reconcileNew takes back that groups are new since the meter went away where they
// show more CPU time than the group above them gained: then they were there
// before, but under no name, and what they show is booked above.
func (acc *Accounts) reconcileNew(s *usage.Snapshot) {
	// Groups read one after the other differ by what was used meanwhile, at
	// this reading and at the last.
	slack := 2 * int64(s.Took) * int64(s.Node.CPUs)
	cpu := nestedIndex(usage.CPU)
	gained := map[*account]int64{}
	fresh := false
	for _, a := range acc.current {
		if !a.reading.Has.Has(usage.CPU) || !isInclusive(a, usage.CPU) {
			continue
		}
		fresh = fresh || a.born && a.since == acc.round
		if up := holderOf(a, usage.CPU); up != nil {
			gained[up] += max(0, a.growth(cpu, usage.CPU))
		}
	}
	if !fresh {
		return
	}
	for _, a := range acc.current {
		if a.parent == nil || a.since != acc.round || !a.born {
			continue
		}
		up := holderOf(a, usage.CPU)
		told := up != nil && up.reading.Has.Has(usage.CPU) && (up.previous.Has.Has(usage.CPU) || up.since == acc.round && up.born)
		if told && gained[up] > up.growth(cpu, usage.CPU)+slack || a.parent.since == acc.round && !a.parent.born {
			a.born, a.parent.uncertain = false, true
		}
	}
}

// stale is what a restored account showed before, and since then did not.
type stale struct {
	set, own, counted usage.Set
}

// isRebased reports whether a counter that is shown again after the meter was
// away may count from elsewhere than it did.
func (a *account) isRebased(r usage.Resource, own int64) bool {
	switch {
	case !a.stale.set.Has(r):
		return false
	case a.stale.countedOtherwise(&a.reading).Has(r):
		return true
	}
	return !isInclusive(a, r) && own < a.booked[r]
}

// countedOtherwise is what counts in another way than before.
func (s *stale) countedOtherwise(now *usage.Reading) usage.Set {
	return s.counted | now.Counted | (s.own ^ now.Own)
}

// growthWhileAway is what such a counter shows for certain that was used since.
func (a *account) growthWhileAway(r usage.Resource, own int64) int64 {
	switch {
	case a.reading.Counted.Has(r):
		return own // the meter began to count after it was away
	case a.stale.countedOtherwise(&a.reading).Has(r), r == usage.CPU:
		return 0
	case own < a.booked[r]/2:
		return own // the kernel began anew
	}
	return 0
}

package attribute

import (
	"time"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// NewAfterLoss returns empty accounts for a node whose accounts cannot be restored. The first
// window reports that as a gap.
func NewAfterLoss(node, detail string) *Accounts {
	acc := New(node)
	acc.lossDetail = detail
	return acc
}

// Offset returns the offset of wall time to CLOCK_BOOTTIME in restored accounts without a tick
// since; ok is false if they are of another boot.
func (acc *Accounts) Offset(boot string) (offset int64, ok bool) {
	return acc.offset, acc.restored && acc.boot == boot
}

// startTick determines how a snapshot relates to the previous state.
func (acc *Accounts) startTick(s *usage.Snapshot) {
	away := acc.restored
	acc.tickStart, acc.restored = usage.StartContinued, false
	switch {
	case !acc.started, !away && s.Boot != acc.boot, away && s.Boot == acc.boot && s.At < acc.at:
		acc.startFirst(s)
	case s.Boot != acc.boot:
		acc.startAfterReboot(s)
	case away && acc.seesOtherGroups(s):
		acc.startElsewhere(s)
	case away:
		acc.startResumed(s)
	}
}

// seesOtherGroups reports whether the root group is another one than that of the restored accounts,
// as in a container that was replaced, or after a change of what the agent may see.
func (acc *Accounts) seesOtherGroups(s *usage.Snapshot) bool {
	before, now := acc.current[0].life.ID, s.Groups[0].Life.ID
	return before != now && before != 0 && max(before, now) < firstSubstituteID
}

// startElsewhere starts over with other groups: it is not known what these used before.
func (acc *Accounts) startElsewhere(s *usage.Snapshot) {
	from := wall(acc.at + s.Offset)
	acc.startFirst(s)
	acc.gaps = []usage.Gap{gap(from, s.Wall(), usage.StateLost, "the agent sees another part of the machine's control groups than before")}
}

// startFirst starts over at the first snapshot of a boot.
func (acc *Accounts) startFirst(s *usage.Snapshot) {
	lost := acc.lossDetail
	acc.reset(usage.StartFirst, s.Boot)
	acc.first, acc.at, acc.start, acc.mono, acc.lastNode = s.At, s.At, s.At, s.Mono, s.Node
	if lost != "" {
		acc.gaps = []usage.Gap{gap(s.Wall(), s.Wall(), usage.StateLost, lost)}
	}
}

// startAfterReboot starts over at the reboot: with nothing booked, at the zero of CLOCK_BOOTTIME,
// where the kernel's counters begin.
func (acc *Accounts) startAfterReboot(s *usage.Snapshot) {
	ended, booted := wall(acc.at+acc.offset), wall(s.Offset)
	acc.reset(usage.StartBooted, s.Boot)
	acc.first = s.At
	acc.gaps = []usage.Gap{gap(ended, booted, usage.Rebooted, ""), gap(booted, s.Wall(), usage.Unwatched, "")}
}

func (acc *Accounts) reset(now usage.StartReason, boot string) {
	*acc = Accounts{node: acc.node, interval: acc.interval, energy: energyState{meters: acc.energy.meters}, idle: newAccount(account{w: acc.idle.w, slot: usage.NoSlot}), started: true, boot: boot, tickStart: now, windowStart: now}
}

func wall(ns int64) time.Time { return time.Unix(0, ns).UTC() }

// gap returns a gap that does not end before it begins, even if the clock was set.
func gap(from, to time.Time, why usage.Reason, detail string) usage.Gap {
	if to.Before(from) {
		to = from
	}
	return usage.Gap{From: from, To: to, Reason: why, Detail: detail}
}

// startResumed attaches restored accounts to the groups that still exist. The others end like any
// group without a final reading.
func (acc *Accounts) startResumed(s *usage.Snapshot) {
	acc.tickStart, acc.windowStart = usage.StartResumed, usage.StartResumed
	if acc.energy.meters != nil {
		acc.energy.meters.Resume(acc.energy.positions)
	}
	// Boottime continued, so both ends use the present offset: the wall clock may have been set
	// meanwhile.
	acc.gaps = []usage.Gap{{From: wall(acc.at + s.Offset), To: s.Wall(), Reason: usage.Unwatched}}

	lives := make(map[workload.Life]*account, len(acc.current))
	for _, a := range acc.current[1:] {
		lives[a.life] = a
	}
	acc.attach(acc.current[0], s.Groups[0])
	var unmatched []*usage.Group
	for _, g := range s.Groups[1:] {
		if a := lives[g.Life]; a != nil && g.Life.ID < firstSubstituteID {
			acc.attach(a, g)
			delete(lives, g.Life)
		} else {
			unmatched = append(unmatched, g)
		}
	}
	names := make(map[workload.ID]*account, len(lives))
	for _, a := range lives {
		names[a.w.ID] = a
	}
	for _, g := range unmatched {
		if a := names[g.Workload.ID]; a != nil && a.isSameGroup(g) {
			acc.attach(a, g)
			delete(names, g.Workload.ID)
		}
	}
}

// firstSubstituteID is the first of the ids that replace a life's kernel id where it is
// unavailable. Another run of the agent assigns them differently.
const firstSubstituteID = 1 << 63

// isSameGroup reports whether a group with another life is still a's, seen through another
// hierarchy or with its real id.
func (a *account) isSameGroup(g *usage.Group) bool {
	if a.life.Hierarchy == g.Life.Hierarchy && max(a.life.ID, g.Life.ID) < firstSubstituteID {
		return false
	}
	for r := range (a.reading.Has & g.Has & counterSet &^ a.reading.Counted).All() {
		if g.Value[r] < a.reading.Value[r] {
			return false
		}
	}
	return true
}

// attach assigns the slot of its group to a restored account.
func (acc *Accounts) attach(a *account, g *usage.Group) {
	acc.growSlots(g.Slot)
	acc.bySlot[g.Slot], a.slot = a, g.Slot
	if a.life != g.Life {
		a.life, a.dirty.head = g.Life, true
	}
}

// isBorn reports whether everything that a new group shows came in this tick, as far as its source
// can tell. A group that is new after a pause of the agent began during the pause; otherwise it
// would be known.
func (acc *Accounts) isBorn(g *usage.Group) bool {
	switch acc.tickStart {
	case usage.StartContinued:
		return g.Born
	case usage.StartFirst:
		return false
	}
	return g.Born || acc.shownEnds[g.Slot] == nil
}

// reconcileNew revises groups assumed to be new since a pause if they show more CPU time than the
// group above gained: then they existed before without an account, and what they show is booked
// above.
func (acc *Accounts) reconcileNew(s *usage.Snapshot) {
	// Groups are read one after another; their counters differ by what was used meanwhile, at this
	// reading and the last.
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
		if a.parent == nil || a.since != acc.round || !a.born || acc.shownEnds[a.slot] != nil {
			continue
		}
		up := holderOf(a, usage.CPU)
		comparable := up != nil && up.reading.Has.Has(usage.CPU) && (up.previous.Has.Has(usage.CPU) || up.since == acc.round && up.born)
		if comparable && gained[up] > up.growth(cpu, usage.CPU)+slack || a.parent.since == acc.round && !a.parent.born {
			a.born, a.parent.uncertain = false, true
		}
	}
}

// rebaseRequests lets the machine's disk requests continue from what they show, as those that fell do, if
// they count otherwise than before the pause of the agent: with those that the kernel merges if the files of
// groups count requests, else without them.
func (acc *Accounts) rebaseRequests(s *usage.Snapshot) {
	for r := range (usage.SetOf(usage.DiskReads, usage.DiskWrites) & s.Node.Total.Has & acc.lastNode.Total.Has).All() {
		var before, now, nowCounted bool
		for _, a := range acc.current {
			before = before || (a.stale.set &^ a.stale.counted).Has(r)
			now = now || (a.reading.Has &^ a.reading.Counted).Has(r)
			nowCounted = nowCounted || (a.reading.Has & a.reading.Counted).Has(r)
		}
		if now && !before || nowCounted && before {
			acc.lastNode.Total.Value[r] = s.Node.Total.Value[r] + 1
		}
	}
}

// stale is what a restored account showed before and has not shown since.
type stale struct {
	set, own, counted usage.Set
}

// isRebased reports whether a counter that returns after a pause of the agent may have another
// base.
func (a *account) isRebased(r usage.Resource, own int64) bool {
	switch {
	case !a.stale.set.Has(r):
		return false
	case a.stale.countedOtherwise(&a.reading).Has(r), a.lostDevice(r):
		return true
	}
	return !isInclusive(a, r) && own < a.booked[counterSlot[r]]
}

// lostDevice reports whether a disk counter fell during a pause of the agent: the sums that the kernel
// shows lack devices that were removed meanwhile. The sum of the other devices was booked before, except for
// an unknown part.
func (a *account) lostDevice(r usage.Resource) bool {
	return r != usage.CPU && nestedSet.Has(r) && (a.stale.set & a.previous.Has & a.reading.Has &^ a.stale.countedOtherwise(&a.reading)).Has(r) &&
		a.reading.Value[r] < a.previous.Value[r]
}

// countedOtherwise returns the resources that are counted in another way than before.
func (s *stale) countedOtherwise(now *usage.Reading) usage.Set {
	return s.counted | now.Counted | (s.own ^ now.Own)
}

// growthWhileAway returns the part of such a counter that certainly came during the pause.
func (a *account) growthWhileAway(r usage.Resource, own int64) int64 {
	switch {
	case a.reading.Counted.Has(r):
		return own // counting began after the pause
	case a.stale.countedOtherwise(&a.reading).Has(r), r == usage.CPU:
		return 0
	case a.lostDevice(r):
		return own - a.booked[counterSlot[r]] // more than 0 if groups below lost more
	case own < a.booked[counterSlot[r]]/2:
		return own // the kernel restarted the counter
	}
	return 0
}

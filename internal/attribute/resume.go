package attribute

import (
	"math/bits"
	"time"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// Lost returns empty books for a node whose books there were, but which cannot
// be gone on with. Their first window says so.
func Lost(node, detail string) *Books {
	b := New(node)
	b.lost = detail
	return b
}

// Offset returns what wall time was ahead of CLOCK_BOOTTIME where the books were
// restored and nothing was booked since, if that was in this boot.
func (b *Books) Offset(boot string) (offset int64, ok bool) {
	return b.offset, b.away && b.boot == boot
}

// begin finds out how a snapshot relates to what was there before.
func (b *Books) begin(s *usage.Snapshot) {
	away := b.away
	b.now, b.away = usage.Continues, false
	switch {
	case !b.started, !away && s.Boot != b.boot, away && s.Boot == b.boot && s.At < b.at:
		b.open(s)
	case s.Boot != b.boot:
		b.reboot(s)
	case away:
		b.resume(s)
	}
}

// open starts over on the first snapshot of a boot.
func (b *Books) open(s *usage.Snapshot) {
	lost := b.lost
	b.anew(usage.First, s.Boot)
	b.first, b.at, b.start, b.mono, b.node0 = s.At, s.At, s.At, s.Mono, s.Node
	if lost != "" {
		b.gaps = []usage.Gap{gap(s.Wall(), s.Wall(), usage.StateLost, lost)}
	}
}

// reboot starts over where the machine did: with nothing booked, at the zero of
// CLOCK_BOOTTIME, since when the kernel counts.
func (b *Books) reboot(s *usage.Snapshot) {
	ended, booted := wall(b.at+b.offset), wall(s.Offset)
	b.anew(usage.Booted, s.Boot)
	b.first = s.At
	b.gaps = []usage.Gap{gap(ended, booted, usage.Rebooted, ""), gap(booted, s.Wall(), usage.Unwatched, "")}
}

// anew empties the books.
func (b *Books) anew(now usage.Opening, boot string) {
	*b = Books{node: b.node, pace: b.pace, energy: powers{meters: b.energy.meters}, idle: &account{w: b.idle.w, slot: usage.NoSlot}, started: true, boot: boot, now: now, opening: now}
}

func wall(ns int64) time.Time { return time.Unix(0, ns).UTC() }

// gap is a gap that does not end before it begins, though the clock was set.
func gap(from, to time.Time, why usage.Reason, detail string) usage.Gap {
	if to.Before(from) {
		to = from
	}
	return usage.Gap{From: from, To: to, Reason: why, Detail: detail}
}

// resume finds the restored accounts of the groups that are there, so that they
// are gone on with; the others end as any that nobody showed the end of.
func (b *Books) resume(s *usage.Snapshot) {
	b.now, b.opening = usage.Resumed, usage.Resumed
	if b.energy.meters != nil {
		b.energy.meters.Resume(b.energy.positions)
	}
	// Boottime went on all the while, so both ends are by what the wall clock shows
	// now: it may have been set meanwhile.
	b.gaps = []usage.Gap{{From: wall(b.at + s.Offset), To: s.Wall(), Reason: usage.Unwatched}}

	lives := make(map[workload.Life]*account, len(b.order))
	for _, a := range b.order[1:] {
		lives[a.life] = a
	}
	b.seat(b.order[0], s.Groups[0])
	var strange []*usage.Group
	for _, g := range s.Groups[1:] {
		if a := lives[g.Life]; a != nil && g.Life.ID < unsure {
			b.seat(a, g)
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
		if a := names[g.Workload.ID]; a != nil && a.was(g) {
			b.seat(a, g)
			delete(names, g.Workload.ID)
		}
	}
}

// unsure is from where on the id of a life is only a stand-in for the kernel's,
// which could not be had: another run of the meter gives the same to others.
const unsure = 1 << 63

// was reports whether a group that shows another life is a's nevertheless, seen
// now through another hierarchy or by its right id.
func (a *account) was(g *usage.Group) bool {
	if a.life.Hierarchy == g.Life.Hierarchy && max(a.life.ID, g.Life.ID) < unsure {
		return false
	}
	for set := a.reading.Has & g.Has & counters &^ a.reading.Counted; set != 0; set &= set - 1 {
		r := usage.Resource(bits.TrailingZeros64(uint64(set)))
		if g.Value[r] < a.reading.Value[r] {
			return false
		}
	}
	return true
}

// seat gives a restored account the slot of its group.
func (b *Books) seat(a *account, g *usage.Group) {
	b.reach(g.Slot)
	b.accounts[g.Slot], a.slot = a, g.Slot
	if a.life != g.Life {
		a.life, a.dirty.head = g.Life, true
	}
}

// brings reports whether all that a new group shows came in this tick, as far
// as its source can tell: a group that is new after the meter was away began
// since then, or it would be known.
func (b *Books) brings(g *usage.Group) bool {
	switch b.now {
	case usage.Continues:
		return g.Born
	case usage.First:
		return false
	}
	return true
}

// weigh takes back that groups are new since the meter went away where they
// show more CPU time than the group above them gained: then they were there
// before, but under no name, and what they show is booked above.
func (b *Books) weigh(s *usage.Snapshot) {
	// Groups read one after the other differ by what was used meanwhile, at
	// this reading and at the last.
	slack := 2 * int64(s.Took) * int64(s.Node.CPUs)
	cpu := nest(usage.CPU)
	gained := map[*account]int64{}
	fresh := false
	for _, a := range b.order {
		if !a.reading.Has.Has(usage.CPU) || !inclusive(a, usage.CPU) {
			continue
		}
		fresh = fresh || a.born && a.since == b.round
		if up := above(a, usage.CPU); up != nil {
			gained[up] += max(0, a.growth(cpu, usage.CPU))
		}
	}
	if !fresh {
		return
	}
	for _, a := range b.order {
		if a.parent == nil || a.since != b.round || !a.born {
			continue
		}
		up := above(a, usage.CPU)
		told := up != nil && up.reading.Has.Has(usage.CPU) && (up.before.Has.Has(usage.CPU) || up.since == b.round && up.born)
		if told && gained[up] > up.growth(cpu, usage.CPU)+slack || a.parent.since == b.round && !a.parent.born {
			a.born, a.parent.blur = false, true
		}
	}
}

// stale is what a restored account showed before, and since then did not.
type stale struct {
	set, own, counted usage.Set
}

// rebased reports whether a counter that is shown again after the meter was
// away may count from elsewhere than it did.
func (a *account) rebased(r usage.Resource, own int64) bool {
	switch {
	case !a.stale.set.Has(r):
		return false
	case a.stale.other(&a.reading).Has(r):
		return true
	}
	return !inclusive(a, r) && own < a.booked[r]
}

// other is what counts in another way than before.
func (s *stale) other(now *usage.Reading) usage.Set {
	return s.counted | now.Counted | (s.own ^ now.Own)
}

// gained is what such a counter shows for certain that was used since.
func (a *account) gained(r usage.Resource, own int64) int64 {
	switch {
	case a.reading.Counted.Has(r):
		return own // the meter began to count after it was away
	case a.stale.other(&a.reading).Has(r), r == usage.CPU:
		return 0
	case own < a.booked[r]/2:
		return own // the kernel began anew
	}
	return 0
}

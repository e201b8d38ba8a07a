package attribute

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// Between two checkpoints groups end. If the agent is killed then, the kernel shows their use in the
// counters of the groups above only. So the agent writes a record of each end at once. Restored
// accounts show these groups as ended in their first snapshot: their use is booked by name, once,
// and the remainder above is less by it.

// An end is what a record says of a group: that it ended, or what it showed when its job ended.
type end struct {
	w       workload.Workload
	life    workload.Life
	above   []workload.Life // from its parent up, without the root
	born    bool
	reading usage.Reading // the last one
	use     usage.Usage   // since the checkpoint
}

// newBoot is the base of ends that follow no checkpoint of their boot.
const newBoot = -1

// base returns the tick of the checkpoint that the open window follows, newBoot if the window began
// with the boot; ok is false if it follows no checkpoint that is durable.
func (acc *Accounts) base() (at int64, ok bool) {
	switch {
	case acc.saved:
		return acc.savedAt, acc.start == acc.savedAt
	case acc.windowStart == usage.StartBooted:
		return newBoot, true
	}
	return at, false
}

// CanRecordEnds reports whether a record of ends would follow a durable checkpoint.
func (acc *Accounts) CanRecordEnds() bool {
	_, ok := acc.base()
	return ok
}

// IsFirst reports whether the latest tick was the first of all: nothing is booked yet, and a
// checkpoint of that may be saved before the first window closes.
func (acc *Accounts) IsFirst() bool { return acc.started && acc.tickStart == usage.StartFirst }

// Gaps returns the gaps at the beginning of the open window.
func (acc *Accounts) Gaps() []usage.Gap { return acc.gaps }

// Ends appends a record for [Restore] to dst: of the groups that ended in the open window since the
// latest call of MarkEndsSaved, and of the groups of ending jobs, which live on until their makers
// remove them; their own ends are not recorded again if they used no CPU time since. It appends nothing if there is none. A record is valid until the next checkpoint is
// saved, which includes it.
func (acc *Accounts) Ends(dst []byte, isEnding func(*workload.Workload) bool) []byte {
	base, ok := acc.base()
	if !ok {
		return dst
	}
	none := len(dst)
	dst = append(dst, checkpointVersion, recordEnds)
	dst = appendString(dst, acc.boot)
	dst = binary.AppendVarint(dst, base)
	header := len(dst)
	for _, a := range acc.ended[acc.endsSaved:] {
		if !a.unread && a.recorded != a.cpuTime()+1 {
			dst = appendEnd(dst, a)
		}
	}
	acc.ending = acc.ending[:0]
	for _, a := range acc.current {
		for up := a; isEnding != nil && up != nil && !a.closed; up = up.parent {
			if up.w.Kind == workload.Job && isEnding(&up.w) {
				dst, acc.ending = appendEnd(dst, a), append(acc.ending, a)
				break
			}
		}
	}
	if len(dst) == header {
		return dst[:none]
	}
	return append(dst, 0)
}

// MarkEndsSaved says that the latest record of Ends is durable. No tick may come between the two.
func (acc *Accounts) MarkEndsSaved() {
	acc.endsSaved = len(acc.ended)
	for _, a := range acc.ending {
		a.recorded = a.cpuTime() + 1
	}
}

func appendEnd(dst []byte, a *account) []byte {
	dst = appendLife(append(dst, 1), a.life)
	for up := a.parent; up != nil && up.parent != nil; up = up.parent {
		dst = appendLife(append(dst, 1), up.life)
	}
	dst = append(dst, 0)
	dst = append(dst, byte(a.w.Kind))
	for _, s := range [...]string{string(a.w.ID), a.w.Key, a.w.Name, a.w.Path} {
		dst = appendString(dst, s)
	}
	dst = appendBool(dst, a.born)
	last := a.lastReading()
	for _, s := range [...]usage.Set{last.Has, last.Own, last.Apportioned, last.Counted} {
		dst = binary.AppendUvarint(dst, uint64(s))
	}
	for r := range last.Has.All() {
		dst = binary.AppendVarint(dst, last.Value[r])
	}
	use := a.use()
	dst = appendPresence(dst, use.Present, use.Quality)
	dst = binary.AppendVarint(dst, int64(use.Covered))
	for r := range use.Present.All() {
		dst = binary.AppendVarint(dst, use.Amount[r])
	}
	return dst
}

// cpuTime returns the CPU time of the last reading.
func (a *account) cpuTime() int64 {
	last := a.lastReading()
	return last.Value[usage.CPU]
}

// lastReading returns the latest reading, with what is booked of nested counters that it lacks: the
// files of a removed group may be unreadable in the tick that shows its end.
func (a *account) lastReading() usage.Reading {
	last := a.reading
	missing := nestedSet & a.seen &^ (last.Has | last.Own | a.previous.Own | a.stale.own)
	for r := range missing.All() {
		last.Put(r, a.booked[counterSlot[r]]+a.childValues[nestedSlot[r]]+a.excluded[nestedSlot[r]])
	}
	return last
}

func appendLife(dst []byte, l workload.Life) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(dst, uint64(l.Hierarchy)), l.ID)
}

// life reads what appendLife wrote.
func (s *scanner) life() workload.Life {
	hierarchy := s.uint()
	l := workload.Life{Hierarchy: uint32(hierarchy), ID: s.uint()}
	s.bad = s.bad || hierarchy != uint64(l.Hierarchy)
	return l
}

// ends reads a record of ends. Those that do not follow the checkpoint are in a later one.
func (r *restorer) ends() {
	acc := r.acc
	boot, base := r.string(), r.int()
	follows := acc.started && (boot == acc.boot && base == acc.at || boot != acc.boot && base == newBoot)
	if follows && boot != acc.endsBoot {
		acc.ends, acc.endsBoot = nil, boot
	}
	for r.bool() {
		e := end{life: r.life()}
		for r.bool() {
			e.above = append(e.above, r.life())
		}
		e.w = workload.Workload{Kind: workload.Kind(r.byte()), ID: workload.ID(r.string()), Key: r.string(), Name: r.string(), Path: r.string()}
		e.born = r.bool()
		for _, s := range [...]*usage.Set{&e.reading.Has, &e.reading.Own, &e.reading.Apportioned, &e.reading.Counted} {
			*s = r.readingSet()
		}
		for res := range e.reading.Has.All() {
			e.reading.Value[res] = r.int()
		}
		e.use.Present, e.use.Quality = r.presence()
		e.use.Covered = time.Duration(r.int())
		for res := range e.use.Present.All() {
			v := r.int()
			e.use.Amount[res] = v
			r.bad = r.bad || v < 0
		}
		if follows && !r.bad {
			acc.ends = slices.DeleteFunc(acc.ends, func(before end) bool { return before.isSame(e.life, e.w.ID) })
			acc.ends = append(acc.ends, e)
		}
	}
}

// isSame reports whether e is of a life. Where the kernel's id is unavailable, its workload's id
// says so: another run of the agent assigns substitutes differently.
func (e *end) isSame(l workload.Life, id workload.ID) bool {
	if max(e.life.ID, l.ID) >= firstSubstituteID {
		return e.w.ID == id
	}
	return e.life == l
}

// showEnds returns a snapshot, the first after Restore, with the groups whose ends were recorded
// and that are gone, and these ends by slot.
func (acc *Accounts) showEnds(s *usage.Snapshot) (*usage.Snapshot, map[usage.Slot]*end) {
	ends := acc.ends
	acc.ends = nil
	if len(ends) == 0 || acc.endsBoot != s.Boot || acc.boot == s.Boot && s.At < acc.at {
		return s, nil
	}
	slots := map[workload.Life]usage.Slot{}
	ids := map[workload.ID]bool{}
	next := usage.Root
	for _, g := range s.Groups {
		slots[g.Life], ids[g.Workload.ID] = g.Slot, true
		next = max(next, g.Slot)
	}
	ends = slices.DeleteFunc(ends, func(e end) bool {
		_, lives := slots[e.life]
		return e.life.ID < firstSubstituteID && lives || e.life.ID >= firstSubstituteID && ids[e.w.ID]
	})
	slices.SortStableFunc(ends, func(a, b end) int { return cmp.Compare(len(a.above), len(b.above)) }) // parents first
	out := *s
	out.Groups = slices.Clone(s.Groups)
	shown := make(map[usage.Slot]*end, len(ends))
	for i := range ends {
		e := &ends[i]
		next++
		up := usage.Root
		for _, l := range e.above {
			if slot, ok := slots[l]; ok {
				up = slot
				break
			}
		}
		slots[e.life], shown[next] = next, e
		out.Groups = append(out.Groups, &usage.Group{Slot: next, Parent: up, MemoryParent: up, Life: e.life, Workload: e.w,
			New: true, Born: e.born, Final: true, Reading: e.reading})
	}
	return &out, shown
}

// bookEnd books a group whose end an earlier run of the agent recorded. Counters that include those
// of other groups are booked like any others, so that no use is booked twice or lost, and are not of
// better quality than that run recorded; the rest is what that run booked. Energy is divided later.
func (acc *Accounts) bookEnd(a *account, e *end) {
	nested := nestedSet &^ (a.reading.Own & a.reading.Has)
	u := e.use.OfGroup()
	for r := range (e.use.Present & usage.Classified).All() {
		a.addClass(r, e.use.Amount[r])
	}
	if e.use.Present.Has(usage.Storage) {
		a.makeApart().storage = storage{booked: e.use.Amount[usage.Storage], ended: true}
	}
	for r := range (u.Present & (nested | energySet)).All() {
		u.Amount[r] = 0
	}
	u.Present &^= nested | energySet
	u.Quality = u.Quality.Only(u.Present)
	a.share = u
	for r := range (nested & a.reading.Has).All() {
		acc.bookCounter(a, r, a.reading.Value[r]-a.childValues[nestedSlot[r]])
		a.share.Quality.Worsen(r, e.use.Quality.Get(r))
	}
	if a.share.Present.Has(usage.CPUUser) {
		cpu := a.share.Amount[usage.CPU]
		user := min(cpu, a.share.Amount[usage.CPUUser])
		a.share.Amount[usage.CPUUser], a.share.Amount[usage.CPUSystem] = user, cpu-user
	}
	a.level = [levelSlots]int64{}
	a.stale, a.unread = stale{}, true
}

// Package attribute divides what a machine used among its workloads, so that
// the parts sum to the whole in integers, tick by tick.
//
// The kernel counts inclusively: a group's counters hold its descendants',
// living and dead. [Books] turns that into exclusive amounts: each workload
// gets what it used and no child workload did, the root's remainder goes to
// the workload "system", and what nobody used to "idle".
package attribute

import (
	"math/bits"
	"time"

	"mete.dev/mete/internal/meter"
	"mete.dev/mete/internal/unit"
	"mete.dev/mete/internal/workload"
)

// Books holds a machine's open accounts, one for each workload. They are fed
// one snapshot a tick and closed once a window. Not for concurrent use.
//
// All bookings are cumulative at heart: an account remembers how much was
// booked since its life began, and a tick books only what goes beyond that. As
// the kernel cannot be read at one instant, a parent's counter may be a few
// microseconds older than its children's; what its remainder lacks in one tick
// it is not given twice in the next.
type Books struct {
	node     string
	accounts []*account // by slot; nil where free
	order    []*account // of this tick's snapshot, parents first
	ended    []*account // died in this window, kept for its rows
	idle     *account

	boot     string
	at, mono int64 // of the latest snapshot
	node0    meter.Node
	started  bool
	start    int64 // of the open window, ns of CLOCK_BOOTTIME
	offset   int64

	whole   unit.Integral // memory that there is
	free    unit.Integral // memory that nobody uses
	carry   meter.Shares  // skew not yet worked off
	tick    meter.Balance
	window  meter.Balance
	elapsed int64         // ns of CLOCK_BOOTTIME in the latest tick
	stolen  int64         // CPU ns in the latest tick that the hypervisor took
	total0  meter.Reading // of the machine at the tick before
}

// An account is what one life of a workload has been booked.
type account struct {
	w      workload.Workload
	life   workload.Life
	slot   meter.Slot
	parent *account // nil for the root
	memory *account // the parent in the hierarchy that charges memory
	fresh  bool     // not linked yet
	final  bool
	born   bool // its life began after counting did, so all it shows is booked
	blur   bool // a child ended unseen: its last use is in this remainder

	reading meter.Reading      // latest
	below   [meter.Limit]int64 // sum of the living children's readings
	gone    [meter.Limit]int64 // of children that ended, at their end
	booked  [meter.Limit]int64 // own counter value up to which is booked
	level   [meter.Limit]int64 // own level at the latest tick
	levels  meter.Set          // which readings were there at the latest tick
	seen    meter.Set          // which readings were there at any tick
	rest    [meter.Limit]unit.Integral

	user, system int64 // latest readings
	part, of     int64 // user / (user + system) when they last moved

	share  meter.Usage // of the latest tick
	window meter.Usage
	total  meter.Usage
}

// New returns empty books for the node of this id.
func New(node string) *Books {
	id := workload.NewID(node, workload.Idle, "")
	return &Books{node: node, idle: &account{slot: meter.NoSlot,
		w: workload.Workload{ID: id, Kind: workload.Idle, Name: "idle"}}}
}

// Tick books what was used since the snapshot before and returns the tick's
// balance. The first snapshot books nothing: it is where counting begins.
func (b *Books) Tick(s *meter.Snapshot) meter.Balance {
	first := !b.started || s.Boot != b.boot
	if first {
		b.open(s)
	}
	b.elapsed = s.At - b.at
	b.admit(s, first)
	b.sumChildren()
	b.tick = meter.Balance{Lost: s.Lost}
	for _, a := range b.order {
		b.book(a)
	}
	b.balance(s, first)
	b.post()
	b.bury()
	b.stolen, b.total0 = s.Node.Steal-b.node0.Steal, b.node0.Total
	b.at, b.mono, b.offset, b.node0 = s.At, s.Mono, s.Offset, s.Node
	b.window.Add(&b.tick)
	return b.tick
}

// open starts over on the first snapshot of a boot.
func (b *Books) open(s *meter.Snapshot) {
	idle := b.idle.w
	*b = Books{node: b.node, idle: &account{w: idle, slot: meter.NoSlot}, started: true, boot: s.Boot, at: s.At, start: s.At, mono: s.Mono, node0: s.Node}
}

// admit opens accounts for new groups and takes over all readings.
func (b *Books) admit(s *meter.Snapshot, first bool) {
	b.order = b.order[:0]
	for _, g := range s.Groups {
		if n := int(g.Slot) + 1; n > len(b.accounts) {
			b.accounts = append(b.accounts, make([]*account, n-len(b.accounts))...)
		}
		a := b.accounts[g.Slot]
		if a == nil || g.New || a.life != g.Life {
			a = &account{life: g.Life, slot: g.Slot, fresh: true}
			b.accounts[g.Slot] = a
		}
		a.w, a.final, a.blur = g.Workload, g.Final, false
		a.reading = g.Reading
		a.below = [meter.Limit]int64{}
		a.share = meter.Usage{Covered: time.Duration(b.elapsed)}
		b.order = append(b.order, a)
	}
	for i, g := range s.Groups {
		b.link(b.order[i], g, first)
	}
}

// link puts an account below its parents.
func (b *Books) link(a *account, g *meter.Group, first bool) {
	if g.Parent == meter.NoSlot {
		a.fresh = false
		return
	}
	if a.fresh {
		a.fresh = false
		a.parent, a.memory = b.under(g.Parent), b.under(g.MemoryParent)
		// Below a group that is itself seen late nothing is known to be new.
		a.born = g.Born && !first && (a.parent.seen != 0 || a.parent.born)
	}
	if a.final && !g.Exact {
		a.parent.blur = true
	}
}

// under is the account at a slot, or the root's where that was given up.
func (b *Books) under(s meter.Slot) *account {
	if s > 0 && int(s) < len(b.accounts) && b.accounts[s] != nil {
		return b.accounts[s]
	}
	return b.accounts[meter.Root]
}

// sumChildren adds each inclusive reading to the nearest account above that
// holds it too. What a group showed when it was first seen, if it was there
// before, has been booked to the account above, so it is not taken from it.
func (b *Books) sumChildren() {
	for _, a := range b.order {
		for set := a.reading.Has & inclusiveSet &^ a.reading.Own; set != 0; set &= set - 1 {
			r := meter.Resource(bits.TrailingZeros64(uint64(set)))
			up := above(a, r)
			if up == nil {
				continue
			}
			up.below[r] += a.reading.Value[r]
			if !a.seen.Has(r) && !a.born && counterSet.Has(r) {
				up.gone[r] -= a.reading.Value[r]
			}
		}
	}
}

var inclusiveSet, counterSet = func() (incl, count meter.Set) {
	meter.All.Each(func(r meter.Resource) {
		if d := r.Detail(); d.Inclusive {
			incl |= meter.SetOf(r)
		}
		if r.Detail().Kind == meter.Counter {
			count |= meter.SetOf(r)
		}
	})
	return incl, count
}()

// inclusive reports whether a's reading of r holds its descendants'.
func inclusive(a *account, r meter.Resource) bool {
	return inclusiveSet.Has(r) && !a.reading.Own.Has(r)
}

// above is the nearest account over a whose inclusive reading of r holds a's.
func above(a *account, r meter.Resource) *account {
	over := func(a *account) *account {
		if r == meter.Memory {
			return a.memory
		}
		return a.parent
	}
	for up := over(a); up != nil; up = over(up) {
		if up.reading.Has.Has(r) && inclusive(up, r) {
			return up
		}
	}
	return nil
}

// book gives a its share of the tick.
func (b *Books) book(a *account) {
	set := a.reading.Has
	set &^= meter.SetOf(meter.CPUUser, meter.CPUSystem) // see split
	if a.parent == nil {
		set &^= b.node0.Total.Has | meter.SetOf(meter.Memory) // see balance
	}
	for ; set != 0; set &= set - 1 {
		r := meter.Resource(bits.TrailingZeros64(uint64(set)))
		own := a.reading.Value[r]
		if inclusive(a, r) {
			own -= a.below[r]
		}
		switch r.Detail().Kind {
		case meter.Counter:
			b.bookCounter(a, r, own)
		case meter.Integral:
			b.bookLevel(a, r, max(0, own))
		}
	}
	a.split()
	a.levels = a.reading.Has
	a.seen |= a.reading.Has
}

// split divides the tick's CPU time into user and system, in the proportion
// that the kernel showed when it last told them apart. The kernel samples them
// at clock ticks or scales such samples, so they are apportioned; they always
// sum to the CPU time.
func (a *account) split() {
	user, system := a.reading.Value[meter.CPUUser], a.reading.Value[meter.CPUSystem]
	if !a.reading.Has.Has(meter.CPUUser) || !a.share.Present.Has(meter.CPU) {
		return
	}
	if du, ds := user-a.user, system-a.system; du >= 0 && ds >= 0 && du+ds > 0 {
		a.part, a.of = du, du+ds
	}
	a.user, a.system = user, system
	cpu := a.share.Amount[meter.CPU]
	part := cpu
	if a.of > 0 {
		hi, lo := bits.Mul64(uint64(cpu), uint64(a.part))
		q, _ := bits.Div64(hi, lo, uint64(a.of)) // part <= of: no overflow
		part = int64(q)
	}
	a.share.Put(meter.CPUUser, part, meter.Apportioned)
	a.share.Put(meter.CPUSystem, cpu-part, meter.Apportioned)
}

// bookCounter books what a's own counter shows beyond what is booked.
func (b *Books) bookCounter(a *account, r meter.Resource, own int64) {
	if inclusive(a, r) {
		own -= a.gone[r]
	}
	if !a.seen.Has(r) && !a.born {
		a.booked[r] = own
	}
	a.share.Put(r, max(0, own-a.booked[r]), a.quality(r))
	a.booked[r] = max(a.booked[r], own)
}

// bookLevel books a level over the tick: the trapezoid from the tick before.
// A group that was born in the tick began with nothing; for one that was there
// before it was seen, or whose level was out of sight, what it held before now
// is not known.
func (b *Books) bookLevel(a *account, r meter.Resource, own int64) {
	q := a.quality(r)
	from := own
	switch {
	case a.levels.Has(r):
		from = a.level[r]
	case a.seen.Has(r):
	case a.born:
		from = 0
	default:
		a.rest[r] = unit.Integral{}
		b.peak(a, r, own, q)
		a.share.Put(r, 0, q)
		return
	}
	a.share.Put(r, a.rest[r].Add(from, own, b.elapsed), q)
	b.peak(a, r, own, q)
}

// peak notes the level itself, and the peak that is made of it.
func (b *Books) peak(a *account, r meter.Resource, own int64, q meter.Quality) {
	a.level[r] = own
	switch r {
	case meter.Memory:
		a.share.Put(meter.MemoryPeak, own, q)
	case meter.PIDs:
		a.share.Put(meter.PIDsPeak, own, q)
	}
}

// quality is how sure a's share of r is in this tick.
func (a *account) quality(r meter.Resource) meter.Quality {
	if a.reading.Apportioned.Has(r) || a.blur && inclusive(a, r) {
		return meter.Apportioned
	}
	return meter.Measured
}

// post adds the tick's shares to the window's.
func (b *Books) post() {
	for _, a := range b.order {
		a.window.Add(&a.share)
	}
	b.idle.window.Add(&b.idle.share)
}

// bury closes the accounts of groups that ended: what they showed at their end
// stays in the counters above them.
func (b *Books) bury() {
	for _, a := range b.order {
		if !a.final {
			continue
		}
		for set := a.reading.Has & inclusiveSet & counterSet &^ a.reading.Own; set != 0; set &= set - 1 {
			r := meter.Resource(bits.TrailingZeros64(uint64(set)))
			if up := above(a, r); up != nil {
				up.gone[r] += a.reading.Value[r]
			}
		}
		b.ended = append(b.ended, a)
		b.accounts[a.slot] = nil
	}
}

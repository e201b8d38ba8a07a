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
	last     []*account // of the snapshot before
	round    uint64     // counts snapshots
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
	round  uint64   // of the latest snapshot that it was in
	since  uint64   // round in which it was opened
	final  bool
	closed bool // final, and that is booked
	born   bool // its life began after counting did, so all it shows is booked
	blur   bool // some use of a child that was not seen is in this remainder

	reading meter.Reading // latest
	before  meter.Reading // of the tick before
	seen    meter.Set     // which readings were there at any tick

	// up is who holds this account's counters too, and below, grown and gone
	// are what others so hold here: what they show now, by how much that grew in
	// the tick, and what else is not to be counted as this account's own. See link.go.
	up    [len(nested)]*account
	grown [len(nested)]int64
	below [meter.Limit]int64
	gone  [meter.Limit]int64

	booked [meter.Limit]int64 // own counter value up to which is booked
	level  [meter.Limit]int64 // own level at the latest tick
	rest   [meter.Limit]unit.Integral

	user, system int64 // latest readings
	part, of     int64 // user / (user + system) when they last moved

	cpuLimit, memoryLimit int64 // as in meter.Group

	share  meter.Usage // of the latest tick
	window meter.Usage
	total  total
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
	b.round++
	b.elapsed = s.At - b.at
	b.tick = meter.Balance{Lost: s.Lost}
	b.admit(s)
	for i, g := range s.Groups {
		b.place(b.order[i], g, first)
	}
	b.link()
	for _, a := range b.order {
		b.book(a, s)
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

// admit opens accounts for new groups, takes over all readings, and closes the
// accounts of groups that are not there any more although nobody showed their end.
func (b *Books) admit(s *meter.Snapshot) {
	b.last, b.order = b.order, b.last[:0]
	for _, g := range s.Groups {
		if n := int(g.Slot) + 1; n > len(b.accounts) {
			b.accounts = append(b.accounts, make([]*account, n-len(b.accounts))...)
		}
		a := b.accounts[g.Slot]
		if a == nil || g.New && a.since != b.round || a.life != g.Life {
			a = &account{life: g.Life, slot: g.Slot, since: b.round}
			b.accounts[g.Slot] = a
		}
		a.w, a.final, a.blur, a.round = g.Workload, g.Final, false, b.round
		a.cpuLimit, a.memoryLimit = g.CPULimit, g.MemoryLimit
		a.before, a.reading = a.reading, g.Reading
		a.below, a.grown = [meter.Limit]int64{}, [len(nested)]int64{}
		a.share = meter.Usage{Covered: time.Duration(b.elapsed)}
		b.order = append(b.order, a)
	}
	for _, a := range b.last {
		if a.round != b.round && !a.closed {
			a.final = true
			if a.parent != nil {
				a.parent.blur = true
			}
			b.shut(a)
		}
	}
	clear(b.last)
}

// book gives a its share of the tick.
func (b *Books) book(a *account, s *meter.Snapshot) {
	set := a.reading.Has
	set &^= meter.SetOf(meter.CPUUser, meter.CPUSystem) // see split
	if a.parent == nil {
		set &^= s.Node.Total.Has | meter.SetOf(meter.Memory, meter.PIDs) // see balance
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
			if a.final {
				own = 0 // it ended in the tick, as it began in one: with nothing
			}
			b.bookLevel(a, r, max(0, own))
		}
	}
	a.split()
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
	i := nest(r)
	if inclusive(a, r) {
		own -= a.gone[r]
	}
	var used int64
	switch {
	case !a.seen.Has(r):
		if !a.born {
			a.booked[r] = own
		}
		used = own - a.booked[r]
	case a.restarted(r):
		used = a.reading.Value[r]
		if i >= 0 {
			used -= a.grown[i]
		}
		a.booked[r] = own
	case !a.before.Has.Has(r) && i >= 0 && a.up[i] != nil:
		a.booked[r] = own // what it used out of sight is in the account above
	default:
		used = own - a.booked[r]
	}
	a.share.Put(r, max(0, used), a.quality(r))
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
	case a.before.Has.Has(r):
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

// bury closes the accounts of groups that ended.
func (b *Books) bury() {
	for _, a := range b.order {
		if a.final {
			b.shut(a)
		}
	}
}

// shut closes an account. What it showed last stays in the counters above it
// and is nobody's own there.
func (b *Books) shut(a *account) {
	a.closed = true
	for i, r := range nested {
		if up := a.up[i]; up != nil {
			up.gone[r] += a.reading.Value[r]
			a.up[i] = nil
		}
	}
	b.ended = append(b.ended, a)
	if b.accounts[a.slot] == a {
		b.accounts[a.slot] = nil
	}
}

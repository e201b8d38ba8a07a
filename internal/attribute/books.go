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
	"slices"
	"time"

	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
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
	guests   []*account // those of this tick's that a virtual machine runs in, or did
	listed   []Guest
	handed   []usage.Handover // in this window, by those that are gone

	boot     string
	at, mono int64 // of the latest snapshot
	node0    usage.Node
	started  bool
	first    int64 // of the first snapshot ever, in this boot
	start    int64 // of the open window, ns of CLOCK_BOOTTIME
	offset   int64

	now     usage.Opening // what the latest tick is: Continues but for the first
	opening usage.Opening // of the open window
	gaps    []usage.Gap   // that the open window begins with
	lost    string        // why there was nothing to go on with
	pace    time.Duration // between two ticks, as a rule; 0 is not known
	machine usage.Usage   // of the machine as a whole in the open window
	away    bool          // restored, and no tick since
	awake   bool          // nobody is let sleep, so that a test sees that it changes nothing

	serial  uint64   // of the account opened last
	saved   bool     // a checkpoint is durable
	savedAt int64    // the tick that it was made after
	buried  []uint64 // accounts in it that ended since

	whole   unit.Integral // memory that there is
	free    unit.Integral // memory that nobody uses
	carry   usage.Shares  // skew not yet worked off
	tick    usage.Balance
	window  usage.Balance
	elapsed int64         // ns of CLOCK_BOOTTIME in the latest tick
	stolen  int64         // CPU ns in the latest tick that the hypervisor took
	total0  usage.Reading // of the machine at the tick before
	energy  powers

	troubles []trouble // of energy meters, in the open window
}

// An account is what one life of a workload has been booked.
type account struct {
	w      workload.Workload
	serial uint64 // never given to another account of this boot
	life   workload.Life
	slot   usage.Slot
	parent *account // nil for the root
	memory *account // the parent in the hierarchy that charges memory
	round  uint64   // of the latest snapshot that it was in
	since  uint64   // round in which it was opened
	final  bool
	closed bool // final, and that is booked
	born   bool // its life began after counting did, so all it shows is booked
	blur   bool // some use of a child that was not seen is in this remainder

	reading usage.Reading // latest
	before  usage.Reading // of the tick before
	same    bool          // both are
	asleep  bool          // as long as they are, its share stays, too: see doze.go
	seen    usage.Set     // which readings were there at any tick

	// up is who holds this account's counters too, and below, grown and gone
	// are what others so hold here: what they show now, by how much that grew in
	// the tick, and what else is not to be counted as this account's own. See link.go.
	up    [len(nested)]*account
	grown [len(nested)]int64
	below [inner]int64 // by within
	gone  [inner]int64

	booked [usage.EnergyPackage]int64 // own counter value up to which is booked
	level  [levels]int64              // own level at the latest tick, by lasting
	rest   [levels]unit.Integral      // by lasting

	user, system int64 // latest readings
	part, of     int64 // user / (user + system) when they last moved

	cpuLimit, memoryLimit int64 // as in usage.Group

	guest  *guest      // nil where no virtual machine was ever seen
	share  usage.Usage // of the latest tick
	window usage.Usage
	total  total

	stale stale // what is restored and was not shown again yet
	dirty dirty // what changed since the checkpoint
}

// New returns empty books for the node of this id.
func New(node string) *Books {
	id := workload.NewID(node, workload.Idle, "")
	return &Books{node: node, idle: &account{slot: usage.NoSlot,
		w: workload.Workload{ID: id, Kind: workload.Idle, Name: "idle"}}}
}

// Pace says how often Tick is called, as a rule. What a tick covers that is
// more than a few times longer is not known.
func (b *Books) Pace(tick time.Duration) { b.pace = tick }

// Tick books what was used since the snapshot before and returns the tick's
// balance. The first snapshot books nothing: it is where counting begins.
func (b *Books) Tick(s *usage.Snapshot) usage.Balance {
	b.begin(s)
	b.round++
	b.elapsed = s.At - b.at
	b.tick = usage.Balance{Lost: s.Lost}
	b.admit(s)
	for i, g := range s.Groups {
		b.place(b.order[i], g)
	}
	if b.now == usage.Resumed {
		b.weigh(s)
	}
	b.link()
	for _, a := range b.order {
		b.book(a, s)
	}
	b.balance(s)
	b.divide(s)
	b.totals(s)
	b.post()
	b.bury()
	b.stolen, b.total0 = s.Node.Steal-b.node0.Steal, b.node0.Total
	b.at, b.mono, b.offset, b.node0 = s.At, s.Mono, s.Offset, s.Node
	b.window.Add(&b.tick)
	return b.tick
}

// admit opens accounts for new groups, takes over all readings, and closes the
// accounts of groups that are not there any more although nobody showed their end.
func (b *Books) admit(s *usage.Snapshot) {
	b.last, b.order, b.guests = b.order, b.last[:0], b.guests[:0]
	for _, g := range s.Groups {
		b.reach(g.Slot)
		a := b.accounts[g.Slot]
		if a == nil || g.New && a.since != b.round && b.now != usage.Resumed || a.life != g.Life {
			b.serial++
			a = &account{serial: b.serial, life: g.Life, slot: g.Slot, since: b.round}
			b.accounts[g.Slot] = a
		}
		if a.w != g.Workload {
			a.w, a.dirty.head = g.Workload, true
		}
		a.final, a.blur, a.round = g.Final, false, b.round
		a.cpuLimit, a.memoryLimit = g.CPULimit, g.MemoryLimit
		if same := a.reading == g.Reading; !same || !a.same {
			a.before, a.reading, a.same = a.reading, g.Reading, same
		}
		a.below, a.grown = [inner]int64{}, [len(nested)]int64{}
		if g.Guest != nil || a.guest != nil {
			b.meet(a, g.Guest)
		}
		b.order = append(b.order, a)
	}
	for _, a := range slices.Backward(b.last) { // children before what they are taken from
		if a.round == b.round || a.closed {
			continue
		}
		a.final, a.below = true, [inner]int64{}
		for i, r := range nested {
			if a.up[i] != nil {
				a.complete(r)
			}
		}
		for up := a.parent; up != nil; up = up.parent {
			// Where that one is gone too, what is not told apart is higher up.
			if up.blur = true; up.round == b.round {
				break
			}
		}
		b.shut(a)
	}
	clear(b.last)
}

// reach makes room for a slot.
func (b *Books) reach(s usage.Slot) {
	if n := int(s) + 1; n > len(b.accounts) {
		b.accounts = append(b.accounts, make([]*account, n-len(b.accounts))...)
	}
}

// book gives a its share of the tick.
func (b *Books) book(a *account, s *usage.Snapshot) {
	if a.asleep = a.asleep && b.quiet(a); a.asleep {
		b.doze(a)
		return
	}
	a.share = usage.Usage{Covered: b.covered()}
	set := a.reading.Has
	set &^= usage.SetOf(usage.CPUUser, usage.CPUSystem) // see split
	if a.parent == nil {
		set &^= s.Node.Total.Has | usage.SetOf(usage.Memory, usage.PIDs) // see balance
	}
	for ; set != 0; set &= set - 1 {
		r := usage.Resource(bits.TrailingZeros64(uint64(set)))
		own := a.reading.Value[r]
		if inclusive(a, r) {
			own -= a.below[within[r]]
		}
		switch r.Detail().Kind {
		case usage.Counter:
			b.bookCounter(a, r, own)
		case usage.Integral:
			if a.final {
				own = 0 // it ended in the tick, as it began in one: with nothing
			}
			b.bookLevel(a, r, max(0, own))
		}
	}
	if a.final {
		a.level = [levels]int64{} // also of what its end did not show
	}
	a.split()
	a.seen |= a.reading.Has
	a.stale.set &^= a.reading.Has
	a.asleep = b.quiet(a) && a.used(counters) == 0
}

// split divides the tick's CPU time into user and system, in the proportion
// that the kernel showed when it last told them apart. The kernel samples them
// at clock ticks or scales such samples, so they are apportioned; they always
// sum to the CPU time.
func (a *account) split() {
	shown := a.reading.Has.Has(usage.CPUUser)
	if !shown && !a.stale.set.Has(usage.CPUUser) || !a.share.Present.Has(usage.CPU) {
		return
	}
	if user, system := a.reading.Value[usage.CPUUser], a.reading.Value[usage.CPUSystem]; shown && (user != a.user || system != a.system) {
		if du, ds := user-a.user, system-a.system; du >= 0 && ds >= 0 && du+ds > 0 {
			a.part, a.of = du, du+ds
		}
		a.user, a.system, a.dirty.split = user, system, true
	}
	cpu := a.share.Amount[usage.CPU]
	part := cpu
	if a.of > 0 {
		hi, lo := bits.Mul64(uint64(cpu), uint64(a.part))
		q, _ := bits.Div64(hi, lo, uint64(a.of)) // part <= of: no overflow
		part = int64(q)
	}
	a.share.Put(usage.CPUUser, part, usage.Apportioned)
	a.share.Put(usage.CPUSystem, cpu-part, usage.Apportioned)
}

// bookCounter books what a's own counter shows beyond what is booked.
func (b *Books) bookCounter(a *account, r usage.Resource, own int64) {
	i := nest(r)
	if inclusive(a, r) {
		own -= a.gone[within[r]]
	}
	was := a.booked[r]
	var used int64
	switch {
	case !a.seen.Has(r):
		if !a.born {
			a.booked[r] = own
		}
		used = own - a.booked[r]
	case a.rebased(r, own):
		used = a.gained(r, own)
		a.booked[r] = own
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
	if a.booked[r] != was || used > 0 {
		a.dirty.set |= 1 << r
	}
}

// bookLevel books a level over the tick: the trapezoid from the tick before.
// A group that was born in the tick began with nothing; for one that was there
// before it was seen, or whose level was out of sight, what it held before now
// is not known. Nor is it where the meter was away, unless it was seen before
// that; then the trapezoid is a guess.
func (b *Books) bookLevel(a *account, r usage.Resource, own int64) {
	q := a.quality(r)
	from, how := own, q
	switch {
	case a.before.Has.Has(r):
		if from = a.level[lasting[r]]; b.now == usage.Resumed {
			how = usage.Apportioned
		}
	case b.now == usage.Continues && a.seen.Has(r):
	case b.now == usage.Continues && a.born:
		from = 0
	default:
		a.rest[lasting[r]] = unit.Integral{}
		b.peak(a, r, own, q)
		a.share.Put(r, 0, q)
		a.dirty.set |= 1 << r
		return
	}
	if from != own || !a.before.Has.Has(r) {
		a.dirty.set |= 1 << r
	}
	a.share.Put(r, a.rest[lasting[r]].Add(from, own, b.elapsed), how)
	b.peak(a, r, own, q)
}

// peaks are the highest of a level.
var peaks = [usage.Limit]usage.Resource{usage.Memory: usage.MemoryPeak, usage.PIDs: usage.PIDsPeak}

// peak notes the level itself, and the peak that is made of it.
func (b *Books) peak(a *account, r usage.Resource, own int64, q usage.Quality) {
	a.level[lasting[r]] = own
	if p := peaks[r]; p != 0 {
		a.share.Put(p, own, q)
	}
}

// quality is how sure a's share of r is in this tick.
func (a *account) quality(r usage.Resource) usage.Quality {
	if a.reading.Apportioned.Has(r) || a.blur && inclusive(a, r) {
		return usage.Apportioned
	}
	return usage.Measured
}

// post adds the tick's shares to the window's.
func (b *Books) post() {
	for _, a := range b.order {
		a.window.Add(&a.share)
		a.touch()
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
			up.gone[within[r]] += a.reading.Value[r]
			up.dirty.set |= 1 << r
			up.asleep = false
			a.up[i] = nil
		}
	}
	b.ended = append(b.ended, a)
	if a.slot >= 0 && b.accounts[a.slot] == a {
		b.accounts[a.slot] = nil
	}
	if a.dirty.known {
		b.buried = append(b.buried, a.serial)
	}
}

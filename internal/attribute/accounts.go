// Package attribute divides what a machine used among its workloads, so that the parts sum to the
// whole in integers, tick by tick.
//
// The kernel counts inclusively: a group's counters include its descendants', living and dead.
// [Accounts] turns that into exclusive amounts: each workload gets what it used and no child
// workload did, the remainder of the root goes to the workload "system", and what was not used to
// "idle".
package attribute

import (
	"math/bits"
	"slices"
	"time"

	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// Accounts holds a machine's open accounts, one for each workload. It is fed one snapshot a tick
// and closed once a window. It is not safe for concurrent use.
//
// All booking is cumulative: an account remembers how much was booked since its life began, and a
// tick books only what exceeds that. The kernel cannot be read at one instant, so a parent's
// counter may be a few microseconds older than its children's; a shortfall of the parent's
// remainder in one tick is made up before it books more.
type Accounts struct {
	node      string
	bySlot    []*account         // by slot; nil if free
	current   []*account         // of this tick's snapshot, parents first
	previous  []*account         // of the snapshot before
	replaced  [2][]usage.Reading // readings that those of this tick, and of the previous one, replaced
	round     uint64             // counts snapshots
	ended     []*account         // ended in this window, kept for its rows
	endsSaved int                // how many of these are in a durable record
	ending    []*account         // in the latest record without having ended
	idle      *account
	guests    []*account // of this tick that host a virtual machine, or did
	guestList []Guest
	handovers []usage.Handover // of this window, of guests that are gone

	boot     string
	at, mono int64 // of the latest snapshot
	lastNode usage.Node
	started  bool
	first    int64 // the first snapshot of this boot
	start    int64 // of the open window, ns of CLOCK_BOOTTIME
	offset   int64

	tickStart   usage.StartReason   // StartContinued except for the first tick
	windowStart usage.StartReason   // of the open window
	gaps        []usage.Gap         // at the beginning of the open window
	lossDetail  string              // why earlier accounts could not be restored
	interval    time.Duration       // expected time between ticks; 0 is unknown
	machine     usage.Usage         // of the machine as a whole in the open window
	restored    bool                // restored, with no tick since
	ends        []end               // recorded after the restored checkpoint
	endsBoot    string              // of ends
	shownEnds   map[usage.Slot]*end // in the latest tick
	noDormancy  bool                // disables dormancy, for tests

	serial         uint64   // of the latest account
	saved          bool     // a checkpoint of this boot is durable
	savedAt        int64    // tick of that checkpoint
	retiredSerials []uint64 // accounts in it that have ended since

	memoryTotal unit.Integral // total memory
	memoryFree  unit.Integral // free memory
	skew        usage.Shares  // skew still to be compensated
	unseen      int64         // use outside of the groups that was booked too early: 0 or less, in ns
	tick        usage.Balance
	window      usage.Balance
	elapsed     int64         // ns of CLOCK_BOOTTIME in the latest tick
	tooLong     bool          // the latest tick is too long for an integral of the machine's memory
	stolen      int64         // CPU ns taken by the hypervisor in the latest tick
	lastTotal   usage.Reading // of the machine at the previous tick
	energy      energyState

	meterFailures []meterFailure    // of energy meters, in the open window
	volumes       []usage.VolumeUse // measured in the open window
}

// An account is what was booked to one life of a workload. There is one for each group, so its size
// counts. Pointers come first: the garbage collector does not look at what follows the last one.
type account struct {
	w        workload.Workload
	identity *usage.Identity // of the rows of the window before; nil in the first
	parent   *account        // nil for the root
	memory   *account        // the parent in the hierarchy that charges memory
	// holders are the accounts whose counters include this account's. childValues, childGrowth and
	// excluded are what other accounts include here: their present values, their growth in this
	// tick, and other amounts that are not this account's own. See link.go.
	holders  [len(nestedCounters)]*account
	previous *usage.Reading           // of the previous tick; &reading if they are equal
	guest    *guest                   // nil if the account never hosted a virtual machine
	held     map[usage.Resource]int64 // as in usage.Group
	apart    *apart                   // nil for most groups

	short     workload.ShortID // of identity
	serial    uint64           // never reused within a boot
	life      workload.Life
	round     uint64 // of the latest snapshot that contains it
	since     uint64 // round in which it was opened
	recorded  int64  // CPU time in a durable record of its ending job, plus 1; 0 is none
	slot      usage.Slot
	final     bool
	closed    bool // final and fully booked
	unread    bool // it ended without a reading in this run of the meter
	born      bool // its life began after counting did, so everything it shows is booked
	uncertain bool // its remainder includes use of a child that was not seen
	nested    bool // other workloads are or were below it in the hierarchy that charges memory
	unchanged bool // reading equals previous
	dormant   bool // its share repeats: see dormant.go
	repeated  bool // the open window has all of the share of a dormant account that stays the same

	reading usage.Reading // latest
	seen    usage.Set     // readings present in any tick

	childGrowth [len(nestedCounters)]int64
	childValues [nestedSlots]int64 // by nestedSlot
	excluded    [nestedSlots]int64

	booked     [counterSlots]int64       // own counter value booked so far, by counterSlot
	level      [levelSlots]int64         // own level at the latest tick, by levelSlot
	remainders [levelSlots]unit.Integral // by levelSlot

	user, system        int64 // latest readings
	userPart, userWhole int64 // user / (user + system) when they last changed

	cpuLimit, memoryLimit int64 // as in usage.Group

	share  usage.GroupUsage // of the latest tick
	window usage.GroupUsage // of the open window, but for classes
	total  total

	stale stale // readings restored and not seen since
	dirty dirty // changes since the checkpoint
}

// New returns empty accounts for the node with this id.
func New(node string) *Accounts {
	id := workload.NewID(node, workload.Idle, "")
	return &Accounts{node: node, idle: newAccount(account{slot: usage.NoSlot,
		w: workload.Workload{ID: id, Kind: workload.Idle, Name: "idle"}})}
}

// apart is what few accounts have.
type apart struct {
	storage storage
	classes *usage.ClassBytes // network traffic by class in the open window; nil if there was none
	// connections are with whom traffic was exchanged in the open window; nil if that is not known.
	connections *connection.Sketch
}

// makeApart returns a's apart, and makes it if there is none.
func (a *account) makeApart() *apart {
	if a.apart == nil {
		a.apart = &apart{}
	}
	return a.apart
}

// newAccount returns an account without a previous reading.
func newAccount(a account) *account {
	a.previous = &noReading
	return &a
}

// noReading is the previous reading of accounts that have none. It is never written.
var noReading usage.Reading

// SetInterval sets the expected time between ticks. Time covered by a tick that is several times
// longer counts as unknown.
func (acc *Accounts) SetInterval(tick time.Duration) { acc.interval = tick }

// Tick books what was used since the previous snapshot and returns the tick's balance. The first
// snapshot books nothing: counting begins there.
func (acc *Accounts) Tick(s *usage.Snapshot) usage.Balance {
	s, ends := acc.showEnds(s)
	acc.startTick(s)
	acc.shownEnds = ends
	acc.round++
	acc.elapsed = s.At - acc.at
	acc.tooLong = !acc.canIntegrate(acc.lastNode.MemTotal, s.Node.MemTotal)
	acc.tick = usage.Balance{Lost: s.Lost}
	acc.updateAccounts(s)
	acc.lowerByRemoved(s)
	for i, g := range s.Groups {
		acc.linkParents(acc.current[i], g)
	}
	if acc.tickStart == usage.StartResumed {
		acc.reconcileNew(s)
		acc.rebaseRequests(s)
	}
	acc.linkCounters()
	for _, a := range acc.current {
		acc.book(a, s)
	}
	acc.balanceTick(s)
	acc.divideEnergy(s)
	acc.addMachineTotals(s)
	acc.addToWindow()
	acc.retireEnded()
	acc.stolen, acc.lastTotal = s.Node.Steal-acc.lastNode.Steal, acc.lastNode.Total
	acc.at, acc.mono, acc.offset, acc.lastNode = s.At, s.Mono, s.Offset, s.Node
	acc.window.Add(&acc.tick)
	if len(s.Volumes) > 0 {
		acc.volumes = usage.MergeVolumes(acc.volumes, s.Volumes)
	}
	return acc.tick
}

// updateAccounts opens accounts for new groups, takes over all readings, and retires the accounts
// of groups that are gone without a final reading.
func (acc *Accounts) updateAccounts(s *usage.Snapshot) {
	clear(acc.guests)
	acc.startReplacing()
	acc.previous, acc.current, acc.guests = acc.current, acc.previous[:0], acc.guests[:0]
	for _, g := range s.Groups {
		acc.growSlots(g.Slot)
		a := acc.bySlot[g.Slot]
		if a == nil || g.New && a.since != acc.round && acc.tickStart != usage.StartResumed || a.life != g.Life {
			acc.serial++
			a = newAccount(account{serial: acc.serial, life: g.Life, slot: g.Slot, since: acc.round})
			acc.bySlot[g.Slot] = a
		}
		if a.w != g.Workload {
			a.w, a.dirty.head = g.Workload, true
		}
		a.final, a.uncertain, a.round = g.Final, false, acc.round
		a.cpuLimit, a.memoryLimit, a.held = g.CPULimit, g.MemoryLimit, g.Held
		acc.replaceReading(a, g)
		a.setStorage(g)
		if g.Classes != nil {
			for r, bytes := range g.Classes.All() {
				a.addClass(r, bytes)
			}
		}
		if g.Connections != nil {
			a.addConnections(g.Connections)
		}
		a.childValues, a.childGrowth = [nestedSlots]int64{}, [len(nestedCounters)]int64{}
		if g.Guest != nil || a.guest != nil {
			acc.updateGuest(a, g.Guest)
		}
		acc.current = append(acc.current, a)
	}
	for _, a := range slices.Backward(acc.previous) { // children before their holders
		if a.round == acc.round || a.closed {
			continue
		}
		a.final, a.unread, a.childValues = true, true, [nestedSlots]int64{}
		for i, r := range nestedCounters {
			if a.holders[i] != nil {
				a.raiseToBooked(r)
			}
		}
		for up := a.parent; up != nil; up = up.parent {
			// If that one is gone too, the use is in a remainder further up.
			if up.uncertain = true; up.round == acc.round {
				break
			}
		}
		acc.retire(a)
	}
	clear(acc.previous)
}

// startReplacing makes room for the readings that those of a tick replace. Groups that are gone have
// previous readings among those of the previous tick. It gives up room for
// many more than that had: in the first ticks all readings change.
func (acc *Accounts) startReplacing() {
	room := acc.replaced[1][:0]
	acc.replaced[1] = acc.replaced[0]
	if cap(room) > 4*len(acc.replaced[1])+64 {
		room = nil
	}
	acc.replaced[0] = room
}

// replaceReading takes over the reading of a's group. The one that it replaces is copied unless both
// are equal and stay so: the reading of a group that ended may be raised, see raiseToBooked.
func (acc *Accounts) replaceReading(a *account, g *usage.Group) {
	if a.unchanged = a.reading == g.Reading; a.unchanged && !g.Final {
		a.previous = &a.reading
		return
	}
	acc.replaced[0] = append(acc.replaced[0], a.reading)
	a.previous, a.reading = &acc.replaced[0][len(acc.replaced[0])-1], g.Reading
}

func (acc *Accounts) growSlots(s usage.Slot) {
	for int(s) >= len(acc.bySlot) {
		acc.bySlot = append(acc.bySlot, nil)
	}
}

// book books a's share of the tick.
func (acc *Accounts) book(a *account, s *usage.Snapshot) {
	if e := acc.shownEnds[a.slot]; e != nil {
		acc.bookEnd(a, e)
		return
	}
	if a.dormant = a.dormant && acc.canBeDormant(a); a.dormant {
		acc.bookDormant(a)
		return
	}
	a.share = usage.GroupUsage{Covered: acc.coveredTime()}
	set := a.reading.Has
	set &^= usage.SetOf(usage.CPUUser, usage.CPUSystem) // see splitCPU
	if a.parent == nil {
		set &^= s.Node.Total.Has | usage.SetOf(usage.Memory, usage.PIDs) // see balanceTick
	}
	for r := range set.All() {
		own := a.reading.Value[r]
		if isInclusive(a, r) {
			own -= a.childValues[nestedSlot[r]]
		}
		switch r.Detail().Kind {
		case usage.Counter:
			acc.bookCounter(a, r, own)
		case usage.Integral:
			if a.final {
				own = 0 // a level ends, as it begins, at zero
			}
			acc.bookLevel(a, r, max(0, own))
		}
	}
	if a.final {
		a.level = [levelSlots]int64{} // including levels that the final reading lacks
	}
	a.splitCPU()
	a.seen |= a.reading.Has
	a.stale.set &^= a.reading.Has
	a.dormant = acc.canBeDormant(a) && a.sumShares(counterSet) == 0
}

// splitCPU divides the tick's CPU time into user and system in the ratio that the kernel last
// showed. The kernel samples the two at clock ticks, or scales such samples, so they are
// apportioned; they always sum to the CPU time.
func (a *account) splitCPU() {
	shown := a.reading.Has.Has(usage.CPUUser)
	if !shown && !a.stale.set.Has(usage.CPUUser) || !a.share.Present.Has(usage.CPU) {
		return
	}
	if user, system := a.reading.Value[usage.CPUUser], a.reading.Value[usage.CPUSystem]; shown && (user != a.user || system != a.system) {
		if du, ds := user-a.user, system-a.system; du >= 0 && ds >= 0 {
			a.userPart, a.userWhole = du, du+ds
		}
		a.user, a.system, a.dirty.split = user, system, true
	}
	cpu := a.share.Amount[usage.CPU]
	part := cpu
	if a.userWhole > 0 {
		hi, lo := bits.Mul64(uint64(cpu), uint64(a.userPart))
		q, _ := bits.Div64(hi, lo, uint64(a.userWhole)) // part <= whole: no overflow
		part = int64(q)
	}
	a.share.Put(usage.CPUUser, part, usage.Apportioned)
	a.share.Put(usage.CPUSystem, cpu-part, usage.Apportioned)
}

// bookCounter books the amount of a's own counter that is not booked yet.
func (acc *Accounts) bookCounter(a *account, r usage.Resource, own int64) {
	i := nestedIndex(r)
	if isInclusive(a, r) {
		own -= a.excluded[nestedSlot[r]]
	}
	booked := &a.booked[counterSlot[r]]
	was := *booked
	var used int64
	switch {
	case !a.seen.Has(r):
		if !a.born {
			*booked = own
		}
		used = own - *booked
	case a.isRebased(r, own):
		used = a.growthWhileAway(r, own)
		*booked = own
	case a.hasRestarted(r):
		used = a.reading.Value[r]
		if i >= 0 {
			used -= a.childGrowth[i]
		}
		*booked = own
	case !a.previous.Has.Has(r) && i >= 0 && a.holders[i] != nil:
		*booked = own // use while it was unreadable is booked to the holder
	default:
		used = own - *booked
	}
	a.share.Put(r, max(0, used), a.quality(r))
	*booked = max(*booked, own)
	if *booked != was {
		a.dirty.set |= 1 << r
	}
}

// bookLevel books a level over the tick: what its source integrated, or else the trapezoid from the
// previous tick. A group born in
// the tick begins at zero. The integral is unknown for a group that existed before it was seen or
// whose level was unreadable, and after a pause of the agent unless the group was seen before it;
// then the trapezoid is a guess. After weeks without a tick it is unknown if it can be too large.
func (acc *Accounts) bookLevel(a *account, r usage.Resource, own int64) {
	q := a.quality(r)
	if held, ok := a.held[r]; ok {
		acc.putPeak(a, r, own, q)
		a.share.Put(r, held, q)
		return
	}
	from, how := own, q
	known := !acc.tooLong && acc.canIntegrate(a.level[levelSlot[r]], own)
	switch {
	case !known:
	case a.previous.Has.Has(r):
		if from = a.level[levelSlot[r]]; acc.tickStart == usage.StartResumed {
			how = usage.Apportioned
		}
	case acc.tickStart == usage.StartContinued && a.seen.Has(r):
	case acc.tickStart == usage.StartContinued && a.born:
		from = 0
	default:
		known = false
	}
	if !known {
		a.remainders[levelSlot[r]] = unit.Integral{}
		acc.putPeak(a, r, own, q)
		a.share.Put(r, 0, q)
		a.dirty.set |= 1 << r // Restore would integrate an unchanged level
		return
	}
	if from != own {
		a.dirty.set |= 1 << r
	}
	a.share.Put(r, a.remainders[levelSlot[r]].Add(from, own, acc.elapsed), how)
	acc.putPeak(a, r, own, q)
}

// peaks maps a level to the resource that holds its peak.
var peaks = [usage.Limit]usage.Resource{usage.Memory: usage.MemoryPeak, usage.PIDs: usage.PIDsPeak}

// putPeak stores the level itself and its peak: the level, or the kernel's high-water mark if the
// mark rose since its reading before.
func (acc *Accounts) putPeak(a *account, r usage.Resource, own int64, q usage.Quality) {
	a.level[levelSlot[r]] = own
	p := peaks[r]
	if p == 0 {
		return
	}
	if acc.markRose(a, p) {
		own = max(own, a.reading.Value[p])
	}
	a.share.Put(p, own, q)
}

// markRose reports whether the high-water mark of a's own level rose since its reading before. The
// first reading of a mark says so of a group that was born in this run of the meter; of others it may
// be older than the tick. The mark of a group includes that of the groups below it, so a workload
// with others below it has no mark of its own.
func (acc *Accounts) markRose(a *account, p usage.Resource) bool {
	switch {
	case !a.reading.Has.Has(p) || a.nested:
		return false
	case a.previous.Has.Has(p):
		return a.reading.Value[p] > a.previous.Value[p]
	}
	const restored = 0
	return a.since != restored && a.born && !a.seen.Has(p)
}

// quality returns the quality of a's share of r in this tick.
func (a *account) quality(r usage.Resource) usage.Quality {
	if a.reading.Apportioned.Has(r) || a.uncertain && isInclusive(a, r) || a.lostDevice(r) {
		return usage.Apportioned
	}
	return usage.Measured
}

// putCPUPeak stores the CPU time of the tick as CPUs. A tick that readings do not cover is an average
// over a time of unknown course.
func (acc *Accounts) putCPUPeak(a *account) {
	if cpu, ok := a.share.Get(usage.CPU); ok && acc.coveredTime() > 0 {
		a.share.Put(usage.CPUPeak, millicores(cpu, acc.elapsed), a.share.Quality.Get(usage.CPU))
	}
}

// millicores returns CPU time per time, both in ns, to the nearest thousandth of a CPU.
func millicores(cpu, elapsed int64) int64 {
	hi, lo := bits.Mul64(uint64(cpu), 1000)
	lo, carry := bits.Add64(lo, uint64(elapsed)/2, 0)
	q, _ := bits.Div64(hi+carry, lo, uint64(elapsed)) // a CPU has 1e9 ns per s: no overflow
	return int64(q)
}

func (acc *Accounts) addToWindow() {
	for _, a := range acc.current {
		if a.dormant && a.repeated {
			a.repeatInWindow()
			continue
		}
		acc.putCPUPeak(a)
		a.window.Add(&a.share)
		a.markDirty()
		a.repeated = a.dormant
	}
	acc.idle.window.Add(&acc.idle.share)
}

// retireEnded retires the accounts of groups that ended.
func (acc *Accounts) retireEnded() {
	for _, a := range acc.current {
		if a.final {
			acc.retire(a)
		}
	}
}

// retire closes an account. Its last reading stays in the counters of its holders, who exclude it
// from their own.
func (acc *Accounts) retire(a *account) {
	a.closed = true
	previous := *a.previous
	a.previous = &previous // which no later tick replaces
	for i, r := range nestedCounters {
		if up := a.holders[i]; up != nil {
			up.excluded[nestedSlot[r]] += a.reading.Value[r]
			up.dirty.set |= 1 << r
		}
	}
	acc.ended = append(acc.ended, a)
	if a.slot != usage.NoSlot && acc.bySlot[a.slot] == a {
		acc.bySlot[a.slot] = nil
	}
	if a.dirty.known {
		acc.retiredSerials = append(acc.retiredSerials, a.serial)
	}
}

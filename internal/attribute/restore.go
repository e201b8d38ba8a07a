package attribute

import (
	"cmp"
	"fmt"
	"slices"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// Restore returns the accounts of a node as of a checkpoint: records made by [Accounts.Checkpoint],
// a full one and all deltas saved after it, in order, and by [Accounts.Ends]. Without records they are empty. The error
// wraps fault.ErrInvalid if a record is unreadable or missing.
//
// The next snapshot of the same boot is booked without a break: counters are complete, including
// those of new groups. The use of groups that ended meanwhile is in the account above, apportioned,
// unless their ends were recorded.
// A level seen before and after is taken as a straight line; other levels are unknown for the time
// between. In another boot everything counts from 0.
func Restore(node string, records [][]byte) (*Accounts, error) {
	acc := New(node)
	r := &restorer{acc: acc}
	for i, rec := range records {
		if err := r.record(rec); err != nil {
			return nil, fmt.Errorf("checkpoint: record %d of %d: %w", i+1, len(records), err)
		}
	}
	if !acc.started {
		return New(node), nil
	}
	if err := r.link(); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	if r.version < 3 { // version 2 lacks the start of counting
		acc.first = acc.at
	}
	acc.restored, acc.start, acc.saved, acc.savedAt = true, acc.at, true, acc.at
	return acc, nil
}

// A restorer reads records.
type restorer struct {
	scanner
	acc      *Accounts
	accounts map[uint64]*restored
	count    int // of records
	version  byte
}

// restored is an account with links as serials.
type restored struct {
	*account
	parentSerial, memorySerial uint64
	holderSerials              [len(nestedCounters)]uint64
	last                       int // number of the latest record that contains it
}

// levelLimit exceeds the levels of any machine: 8 PiB, or as many tasks.
const levelLimit = 1 << 53

func (r *restorer) record(rec []byte) error {
	acc := r.acc
	r.scanner = scanner{rest: rec}
	r.count++
	version := r.byte()
	if version < 1 || version > checkpointVersion {
		return fmt.Errorf("unknown version %d: %w", version, fault.ErrInvalid)
	}
	kind := r.byte()
	full := kind == recordFull
	switch {
	case kind == recordEnds:
		if r.ends(); r.bad || len(r.rest) > 0 {
			return fmt.Errorf("truncated or corrupt: %w", fault.ErrInvalid)
		}
		return nil
	case full:
		*acc = *New(acc.node)
		r.accounts = map[uint64]*restored{}
		if node := r.string(); node != acc.node && !r.bad {
			return fmt.Errorf("it belongs to node %q: %w", node, fault.ErrInvalid)
		}
		acc.boot, acc.started = r.string(), r.bool()
	case kind != recordDelta:
		return fmt.Errorf("unknown kind %#x: %w", kind, fault.ErrInvalid)
	case !acc.started:
		return fmt.Errorf("delta without a full record: %w", fault.ErrInvalid)
	case r.int() != acc.at:
		return fmt.Errorf("the record before it is missing: %w", fault.ErrInvalid)
	}
	r.version = version
	acc.ends, acc.endsBoot = nil, ""
	since := acc.at
	r.node()
	if !full {
		for n := r.uint(); n > 0 && !r.bad; n-- {
			delete(r.accounts, r.uint())
		}
	}
	for n := r.uint(); n > 0 && !r.bad; n = r.uint() {
		r.account(n, acc.at-since)
	}
	if !full {
		for _, a := range r.accounts {
			if a.last != r.count {
				r.bad = r.extrapolate(a, acc.at-since) != 0 || r.bad
			}
		}
	}
	if r.bad || len(r.rest) > 0 {
		return fmt.Errorf("truncated or corrupt: %w", fault.ErrInvalid)
	}
	return nil
}

// node reads the machine's state.
func (r *restorer) node() {
	acc := r.acc
	at := r.int()
	r.bad = r.bad || at < acc.at
	acc.at, acc.mono, acc.offset, acc.serial = at, r.int(), r.int(), r.uint()
	if r.version > 2 {
		acc.first = r.int()
	}
	n := usage.Node{CPUs: int(r.int()), Steal: r.int(), MemTotal: r.level(r.int()), MemFree: r.level(r.int()), Tasks: r.level(r.int())}
	if r.version > 3 {
		n.Idle = r.int()
	}
	n.Total.Has = r.readingSet()
	for res := range n.Total.Has.All() {
		n.Total.Value[res] = r.int()
	}
	acc.lastNode = n
	acc.memoryTotal, acc.memoryFree = r.integral(), r.integral()
	carried := len(acc.skew)
	if r.version == 1 {
		carried = indexOf(usage.EnergyPackage)
	}
	for i := range carried {
		acc.skew[i] = r.int()
	}
	if r.version > 1 {
		r.positions()
	}
	t := &acc.idle.total
	*t = total{}
	t.present, t.quality = r.presence()
	for res := range t.present.All() {
		t.set(res, r.sum())
	}
}

// positions reads up to where energy is booked.
func (r *restorer) positions() {
	r.acc.energy.positions = nil
	for n := r.uint(); n > 0 && !r.bad; n-- {
		p := energy.Position{Meter: r.string(), At: r.int(), Value: r.int(), ReadError: r.int(), Surplus: r.int(), PeakPower: r.int()}
		if r.version > 5 {
			p.OutageSurplus, p.OutageError = r.int(), r.int()
		}
		if r.version > 2 {
			p.Received, p.Booked = r.share(), r.share()
		}
		r.acc.energy.positions = append(r.acc.energy.positions, p)
	}
}

// account reads an account: all of it, or the changes since the previous record.
func (r *restorer) account(number uint64, elapsed int64) {
	acc, parts := r.acc, r.uint()
	a := r.accounts[number]
	old := a != nil
	if !old {
		a = &restored{account: newAccount(account{serial: number, slot: usage.NoSlot})}
		r.accounts[number] = a
		r.bad = r.bad || parts&partAll != partAll || number > acc.serial
	}
	r.bad = r.bad || a.last == r.count // twice in one record
	a.last = r.count
	var tooLarge usage.Set
	if old {
		tooLarge = r.extrapolate(a, elapsed)
	}
	if parts&partHead != 0 {
		hierarchy := r.uint()
		a.life = workload.Life{Hierarchy: uint32(hierarchy), ID: r.uint()}
		a.w = workload.Workload{Kind: workload.Kind(r.byte()), ID: workload.ID(r.string()), Name: r.string(), Path: r.string()}
		a.w.Key = acc.boot + a.w.Path
		r.bad = r.bad || hierarchy != uint64(a.life.Hierarchy)
	}
	if parts&partOwn != 0 {
		a.w.Key = r.string()
	}
	if parts&partLinks != 0 {
		a.parentSerial, a.memorySerial, a.born = r.uint(), r.uint(), r.bool()
	}
	if parts&partSets != 0 {
		for _, s := range [...]*usage.Set{&a.reading.Has, &a.reading.Own, &a.reading.Apportioned, &a.reading.Counted, &a.seen} {
			*s = r.readingSet()
		}
		a.total.present, a.total.quality = r.presence()
	}
	if parts&partSplit != 0 {
		a.user, a.system, a.userPart, a.userWhole = r.int(), r.int(), r.int(), r.int()
		r.bad = r.bad || a.userPart < 0 || a.userPart > a.userWhole
	}
	r.guest(a, parts)
	changed := r.set()
	r.bad = r.bad || tooLarge&^changed != 0
	for res := range changed.All() {
		r.resource(a, res)
	}
}

// guest reads the virtual machine of an account.
func (r *restorer) guest(a *restored, parts uint64) {
	if parts&partGuest != 0 {
		uuid, epoch := r.string(), r.string()
		if a.guest == nil || a.guest.share.Epoch != epoch {
			a.account.guest = &guest{share: power.Share{Guest: uuid, Epoch: epoch}}
		}
		a.guest.name, a.guest.generation = r.string(), r.uint()
		r.bad = r.bad || epoch == ""
	}
	if parts&partShare == 0 {
		return
	}
	if r.bad = r.bad || a.guest == nil; !r.bad {
		r.amounts(&a.guest.share)
	}
}

func (r *restorer) resource(a *restored, res usage.Resource) {
	if usage.Apart.Has(res) {
		a.total.set(res, r.sum())
		return
	}
	v := r.int()
	a.reading.Value[res] = v
	r.bad = r.bad || v != 0 && energySet.Has(res) // groups have no energy readings
	a.total.set(res, r.sum())
	switch {
	case counterSet.Has(res):
		if booked := v - r.int(); bookedSet.Has(res) {
			a.booked[counterSlot[res]] = booked
		}
		if i := nestedIndex(res); i >= 0 {
			a.excluded[nestedSlot[res]], a.holderSerials[i] = r.int(), r.uint()
		}
	case integralSet.Has(res):
		a.level[levelSlot[res]] = r.level(v - r.int())
		a.remainders[levelSlot[res]] = r.integral()
	}
}

// extrapolate adds the integrals of unchanged levels over elapsed. For levels that changed, the
// record's values replace the result. It returns the levels whose integral is too large: their values
// have to be in the record.
func (r *restorer) extrapolate(a *restored, elapsed int64) (tooLarge usage.Set) {
	for res := range (a.reading.Has & integralSet).All() {
		level := a.level[levelSlot[res]]
		if !unit.Fits(level, elapsed) {
			tooLarge |= 1 << res
			continue
		}
		a.total.set(res, a.total.sum(res).Add(a.remainders[levelSlot[res]].Add(level, level, elapsed)))
	}
	return tooLarge
}

// link resolves serials to links, and orders the accounts.
func (r *restorer) link() error {
	acc := r.acc
	var root *restored
	for _, a := range r.accounts {
		if a.parentSerial == 0 {
			if root != nil {
				return fmt.Errorf("two roots: %w", fault.ErrInvalid)
			}
			root = a
		}
	}
	if root == nil {
		return fmt.Errorf("no root: %w", fault.ErrInvalid)
	}
	for _, a := range r.accounts {
		a.stale = stale{set: a.seen, own: a.reading.Own, counted: a.reading.Counted}
		a.dirty.known = true
		if a.guest != nil {
			a.guest.baseline = a.guest.share
		}
		for i, n := range a.holderSerials {
			if up := r.accounts[n]; up != nil {
				a.holders[i] = up.account
			}
		}
		if a == root {
			continue
		}
		a.parent, a.account.memory = root.account, root.account
		if up := r.accounts[a.parentSerial]; up != nil {
			a.parent = up.account
		}
		if up := r.accounts[a.memorySerial]; up != nil {
			a.account.memory = up.account
		}
	}
	// From the root down: accounts in a cycle are not reached.
	below := map[*account][]*account{}
	for _, a := range r.accounts {
		below[a.parent] = append(below[a.parent], a.account)
	}
	for next := below[nil]; len(next) > 0; {
		slices.SortFunc(next, func(x, y *account) int { return cmp.Compare(x.serial, y.serial) })
		acc.current = append(acc.current, next...)
		var lower []*account
		for _, a := range next {
			lower = append(lower, below[a]...)
		}
		next = lower
	}
	if len(acc.current) != len(r.accounts) {
		return fmt.Errorf("some accounts have no path to the root: %w", fault.ErrInvalid)
	}
	for _, a := range acc.current {
		steps := 0
		for up := a; up != nil; up = up.memory {
			if steps++; steps > len(acc.current) {
				return fmt.Errorf("some accounts have no path to the root: %w", fault.ErrInvalid)
			}
		}
	}
	return nil
}

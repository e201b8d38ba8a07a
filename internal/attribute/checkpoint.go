package attribute

import (
	"encoding/binary"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// A checkpoint is the state of the accounts between two windows, in bytes for [Restore]: a version,
// then a full record or a delta. A full record holds all accounts. A delta names the tick of the
// record that it follows, and holds the accounts that changed since, with the new values only.
// Integrals of unchanged levels are not included; Restore computes them. Records of ends may follow
// each of them.
const (
	checkpointVersion = 7 // version 1 has no energy, 2 no virtual machines, 3 no idle time, 4 no resources past 31, 5 no surplus of an outage, 6 no disk space
	recordFull        = 'F'
	recordDelta       = 'D'
	recordEnds        = 'E' // see ends.go
)

// Parts of an account in a record.
const (
	partHead  = 1 << iota // workload and life
	partLinks             // parents
	partSets              // sets of readings, and the total's quality
	partSplit             // user and system time
	partOwn               // a key that is not boot + path
	partGuest             // identity of the virtual machine
	partShare             // energy given to it
	partAll   = partHead | partLinks | partSets | partSplit
)

// dirty says what changed in an account since the checkpoint.
type dirty struct {
	known                    bool // included in the checkpoint
	head, links, sets, split bool
	guest, share             bool
	set                      usage.Set
}

var counterSet, integralSet, peaksSet = func() (c, i, p usage.Set) {
	usage.All.Each(func(r usage.Resource) {
		switch r.Detail().Kind {
		case usage.Counter:
			c |= usage.SetOf(r)
		case usage.Integral:
			i |= usage.SetOf(r)
		case usage.Peak:
			p |= usage.SetOf(r)
		}
	})
	return c, i, p
}()

// rootSet are the resources of the root that change in every tick without a reading; see
// balanceTick.
var rootSet = usage.SetOf(usage.Memory, usage.MemoryPeak, usage.PIDs, usage.PIDsPeak)

// markDirty records what a tick changed in an account.
func (a *account) markDirty() {
	now, before := &a.reading, a.previous
	if now.Has != before.Has || now.Own != before.Own || now.Apportioned != before.Apportioned || now.Counted != before.Counted {
		a.dirty.sets = true
	}
	changed := now.Has ^ before.Has
	if !a.dormant { // else both are equal
		for r := range (now.Has & before.Has &^ a.dirty.set).All() {
			if now.Value[r] != before.Value[r] {
				changed |= 1 << r
			}
		}
	}
	if a.parent == nil {
		changed |= rootSet
	}
	a.dirty.set |= changed
	a.markUsed(counterSet | peaksSet)
}

// markUsed records which amounts of these resources a tick added to, or raised.
func (a *account) markUsed(of usage.Set) {
	for r := range (a.share.Present & of &^ a.dirty.set).All() {
		if v := a.share.Amount[r]; v != 0 && (counterSet.Has(r) || v > a.total.sum(r).Int64()) {
			a.dirty.set |= 1 << r
		}
	}
}

// Checkpoint appends the accounts to dst: all of them, or the changes since the latest checkpoint
// confirmed by [Accounts.MarkSaved]. Without one in this boot it appends all. Call it after closing
// a window and before the next tick: an open window is not included.
func (acc *Accounts) Checkpoint(dst []byte, full bool) []byte {
	full = full || !acc.saved
	if full {
		dst = append(dst, checkpointVersion, recordFull)
		dst = appendString(dst, acc.node)
		dst = appendString(dst, acc.boot)
		dst = appendBool(dst, acc.started)
	} else {
		dst = append(dst, checkpointVersion, recordDelta)
		dst = binary.AppendVarint(dst, acc.savedAt)
	}
	dst = acc.appendNode(dst)
	if !full {
		dst = binary.AppendUvarint(dst, uint64(len(acc.retiredSerials)))
		for _, serial := range acc.retiredSerials {
			dst = binary.AppendUvarint(dst, serial)
		}
	}
	for _, a := range acc.current {
		switch d := &a.dirty; {
		case a.closed:
		case full || !d.known:
			parts := uint64(partAll)
			if a.guest != nil {
				parts |= partGuest | partShare
			}
			dst = acc.appendAccount(dst, a, parts, a.reading.Has|a.seen|a.total.present)
		default:
			if parts := d.parts(); parts != 0 || d.set != 0 {
				dst = acc.appendAccount(dst, a, parts, d.set)
			}
		}
	}
	return append(dst, 0)
}

// MarkSaved confirms that the latest result of Checkpoint is durable. No tick may come between the
// two.
func (acc *Accounts) MarkSaved() {
	if !acc.started {
		return
	}
	acc.saved, acc.savedAt, acc.retiredSerials = true, acc.at, acc.retiredSerials[:0]
	for _, a := range acc.current {
		a.dirty = dirty{known: true}
	}
}

func (d *dirty) parts() (parts uint64) {
	for i, part := range [...]bool{d.head, d.links, d.sets, d.split, false, d.guest, d.share} {
		if part {
			parts |= 1 << i
		}
	}
	return parts
}

func (acc *Accounts) appendNode(dst []byte) []byte {
	n := &acc.lastNode
	dst = binary.AppendVarint(dst, acc.at)
	dst = binary.AppendVarint(dst, acc.mono)
	dst = binary.AppendVarint(dst, acc.offset)
	dst = binary.AppendUvarint(dst, acc.serial)
	dst = binary.AppendVarint(dst, acc.first)
	for _, v := range [...]int64{int64(n.CPUs), n.Steal, n.MemTotal, n.MemFree, n.Tasks, n.Idle} {
		dst = binary.AppendVarint(dst, v)
	}
	dst = binary.AppendUvarint(dst, uint64(n.Total.Has))
	for r := range n.Total.Has.All() {
		dst = binary.AppendVarint(dst, n.Total.Value[r])
	}
	dst = binary.AppendUvarint(dst, acc.memoryTotal.Rest())
	dst = binary.AppendUvarint(dst, acc.memoryFree.Rest())
	for _, v := range acc.skew {
		dst = binary.AppendVarint(dst, v)
	}
	var positions []energy.Position
	switch {
	case acc.restored: // no tick has adopted them
		positions = acc.energy.positions
	case acc.energy.meters != nil:
		positions = acc.energy.meters.Positions()
	}
	dst = binary.AppendUvarint(dst, uint64(len(positions)))
	for _, p := range positions {
		dst = appendString(dst, p.Meter)
		for _, v := range [...]int64{p.At, p.Value, p.ReadError, p.Surplus, p.PeakPower, p.OutageSurplus, p.OutageError} {
			dst = binary.AppendVarint(dst, v)
		}
		dst = appendShare(dst, &p.Received)
		dst = appendShare(dst, &p.Booked)
	}
	t := &acc.idle.total
	dst = appendPresence(dst, t.present, t.quality)
	for r := range t.present.All() {
		dst = appendSum(dst, t.sum(r))
	}
	return dst
}

func (acc *Accounts) appendAccount(dst []byte, a *account, parts uint64, set usage.Set) []byte {
	own := parts&partHead != 0 && a.w.Key != acc.boot+a.w.Path
	if own {
		parts |= partOwn
	}
	dst = binary.AppendUvarint(dst, a.serial)
	dst = binary.AppendUvarint(dst, parts)
	if parts&partHead != 0 {
		dst = binary.AppendUvarint(dst, uint64(a.life.Hierarchy))
		dst = binary.AppendUvarint(dst, a.life.ID)
		dst = append(dst, byte(a.w.Kind))
		dst = appendString(dst, string(a.w.ID))
		dst = appendString(dst, a.w.Name)
		dst = appendString(dst, a.w.Path)
	}
	if own {
		dst = appendString(dst, a.w.Key)
	}
	if parts&partLinks != 0 {
		dst = binary.AppendUvarint(dst, a.parent.nearestOpen(usage.CPU).liveSerial())
		dst = binary.AppendUvarint(dst, a.memory.nearestOpen(usage.Memory).liveSerial())
		dst = appendBool(dst, a.born)
	}
	if parts&partSets != 0 {
		for _, s := range [...]usage.Set{a.reading.Has, a.reading.Own, a.reading.Apportioned, a.reading.Counted, a.seen} {
			dst = binary.AppendUvarint(dst, uint64(s))
		}
		dst = appendPresence(dst, a.total.present, a.total.quality)
	}
	if parts&partSplit != 0 {
		for _, v := range [...]int64{a.user, a.system, a.userPart, a.userWhole} {
			dst = binary.AppendVarint(dst, v)
		}
	}
	if parts&partGuest != 0 {
		dst = appendString(dst, a.guest.share.Guest)
		dst = appendString(dst, a.guest.share.Epoch)
		dst = appendString(dst, a.guest.name)
		dst = binary.AppendUvarint(dst, a.guest.generation)
	}
	if parts&partShare != 0 {
		dst = appendAmounts(dst, &a.guest.share)
	}
	dst = binary.AppendUvarint(dst, uint64(set))
	for r := range set.All() {
		if usage.Apart.Has(r) {
			dst = appendSum(dst, a.total.sum(r))
			continue
		}
		v, booked := a.reading.Value[r], a.booked[counterSlot[r]] // both 0 for energy, which groups do not show
		dst = binary.AppendVarint(dst, v)
		dst = appendSum(dst, a.total.sum(r))
		switch {
		case counterSet.Has(r):
			dst = binary.AppendVarint(dst, v-booked)
			if i := nestedIndex(r); i >= 0 {
				dst = binary.AppendVarint(dst, a.excluded[nestedSlot[r]])
				dst = binary.AppendUvarint(dst, a.holders[i].liveSerial())
			}
		case integralSet.Has(r):
			dst = binary.AppendVarint(dst, v-a.level[levelSlot[r]])
			dst = binary.AppendUvarint(dst, a.remainders[levelSlot[r]].Rest())
		}
	}
	return dst
}

// liveSerial returns the serial by which other accounts refer to a, or 0 if it is nil or closed.
func (a *account) liveSerial() uint64 {
	if a == nil || a.closed {
		return 0
	}
	return a.serial
}

// nearestOpen returns a, or if it is closed the nearest open account above it.
func (a *account) nearestOpen(r usage.Resource) *account {
	for a != nil && a.closed {
		a = a.parentFor(r)
	}
	return a
}

func appendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// appendShare appends a share; a share without an epoch takes one byte.
func appendShare(dst []byte, s *power.Share) []byte {
	if s.Epoch == "" {
		return appendString(dst, "")
	}
	return appendAmounts(appendString(appendString(dst, s.Epoch), s.Guest), s)
}

func appendAmounts(dst []byte, s *power.Share) []byte {
	for _, v := range [...]int64{s.N, s.At, s.Active, s.Idle, s.Error, s.Modelled} {
		dst = binary.AppendVarint(dst, v)
	}
	return dst
}

// appendPresence appends which resources are present, and their qualities.
func appendPresence(dst []byte, present usage.Set, q usage.Qualities) []byte {
	dst = binary.AppendUvarint(dst, uint64(present))
	for _, w := range q[:present.Words()] {
		dst = binary.AppendUvarint(dst, w)
	}
	return dst
}

func appendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// appendSum appends a sum: one number for most, two beyond 62 bits.
func appendSum(dst []byte, s unit.Sum) []byte {
	hi, lo := s.Halves()
	if hi == 0 && lo < 1<<63 {
		return binary.AppendUvarint(dst, lo<<1)
	}
	dst = binary.AppendUvarint(dst, lo<<1|1)
	return binary.AppendUvarint(dst, hi<<1|lo>>63)
}

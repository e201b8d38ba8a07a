package attribute

import (
	"encoding/binary"
	"math/bits"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// A checkpoint is the accounts between two windows, as bytes that only [Restore]
// reads: a version, then a full record or a delta. A full record holds all
// accounts. A delta names the tick of the record that it follows, and holds the
// accounts that changed since: of those what changed, each with its new
// value. A level that stayed as it was is not among that; Restore knows what
// it came to.
const (
	checkpointVersion = 3 // the first had no energy, the second no virtual machines
	recordFull        = 'F'
	recordDelta       = 'D'
)

// Which parts of an account a record holds.
const (
	partHead  = 1 << iota // its workload and life
	partLinks             // where it stands
	partSets              // which readings there are, and how sure its total is
	partSplit             // user and system time
	partOwn               // the workload's key is none of its path, and is written
	partGuest             // which virtual machine it is
	partShare             // and what that was given
	partAll   = partHead | partLinks | partSets | partSplit
)

// dirty is what changed in an account since the checkpoint.
type dirty struct {
	known                    bool // it is in the checkpoint
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

// rootSet is what changes in the root's account in every tick, as no reading
// shows it; see balance.
var rootSet = usage.SetOf(usage.Memory, usage.MemoryPeak, usage.PIDs, usage.PIDsPeak)

// markDirty notes what a tick changed in an account.
func (a *account) markDirty() {
	now, before := &a.reading, &a.previous
	if now.Has != before.Has || now.Own != before.Own || now.Apportioned != before.Apportioned || now.Counted != before.Counted {
		a.dirty.sets = true
	}
	changed := now.Has ^ before.Has
	for set := now.Has & before.Has &^ a.dirty.set; set != 0; set &= set - 1 {
		r := bits.TrailingZeros64(uint64(set))
		if now.Value[r] != before.Value[r] {
			changed |= 1 << r
		}
	}
	for set := a.share.Present & (counterSet | peaksSet) &^ a.dirty.set; set != 0; set &= set - 1 {
		r := usage.Resource(bits.TrailingZeros64(uint64(set)))
		if v := a.share.Amount[r]; v != 0 && (counterSet.Has(r) || v > a.total.amount[r].Int64()) {
			changed |= 1 << r
		}
	}
	if a.parent == nil {
		changed |= rootSet
	}
	a.dirty.set |= changed
}

// Checkpoint appends the accounts as they are to dst: all of them, or what changed
// since the latest checkpoint that was [Accounts.MarkSaved]; all too where there is
// none of this boot. It is called when a window was closed, before the next
// tick: what is in an open window is not in it.
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

// MarkSaved says that what Checkpoint gave last is where a restart will find it.
// Between the two there is no tick.
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
	for _, v := range [...]int64{int64(n.CPUs), n.Steal, n.MemTotal, n.MemFree, n.Tasks} {
		dst = binary.AppendVarint(dst, v)
	}
	dst = binary.AppendUvarint(dst, uint64(n.Total.Has))
	for set := n.Total.Has; set != 0; set &= set - 1 {
		dst = binary.AppendVarint(dst, n.Total.Value[bits.TrailingZeros64(uint64(set))])
	}
	dst = binary.AppendUvarint(dst, acc.memoryTotal.Rest())
	dst = binary.AppendUvarint(dst, acc.memoryFree.Rest())
	for _, v := range acc.skew {
		dst = binary.AppendVarint(dst, v)
	}
	var positions []energy.Position
	switch {
	case acc.restored: // no tick took them over
		positions = acc.energy.positions
	case acc.energy.meters != nil:
		positions = acc.energy.meters.Positions()
	}
	dst = binary.AppendUvarint(dst, uint64(len(positions)))
	for _, p := range positions {
		dst = appendString(dst, p.Meter)
		for _, v := range [...]int64{p.At, p.Value, p.ReadError, p.Surplus, p.PeakPower} {
			dst = binary.AppendVarint(dst, v)
		}
		dst = appendShare(dst, &p.Received)
		dst = appendShare(dst, &p.Booked)
	}
	t := &acc.idle.total
	dst = binary.AppendUvarint(dst, uint64(t.present))
	dst = binary.AppendUvarint(dst, uint64(t.quality))
	for set := t.present; set != 0; set &= set - 1 {
		dst = appendSum(dst, t.amount[bits.TrailingZeros64(uint64(set))])
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
		for _, s := range [...]usage.Set{a.reading.Has, a.reading.Own, a.reading.Apportioned, a.reading.Counted, a.seen, a.total.present} {
			dst = binary.AppendUvarint(dst, uint64(s))
		}
		dst = binary.AppendUvarint(dst, uint64(a.total.quality))
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
	for ; set != 0; set &= set - 1 {
		r := usage.Resource(bits.TrailingZeros64(uint64(set)))
		var v, booked int64
		if r < usage.EnergyPackage { // no group shows energy
			v, booked = a.reading.Value[r], a.booked[r]
		}
		dst = binary.AppendVarint(dst, v)
		dst = appendSum(dst, a.total.amount[r])
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

// liveSerial is the serial by which another account names a; 0 where there is none
// any more.
func (a *account) liveSerial() uint64 {
	if a == nil || a.closed {
		return 0
	}
	return a.serial
}

// nearestOpen is a, or who is above it where it has ended.
func (a *account) nearestOpen(r usage.Resource) *account {
	for a != nil && a.closed {
		a = a.parentFor(r)
	}
	return a
}

func appendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// appendShare writes a share; one byte where it has no epoch.
func appendShare(dst []byte, s *power.Share) []byte {
	if s.Epoch == "" {
		return appendString(dst, "")
	}
	return appendAmounts(appendString(appendString(dst, s.Epoch), s.Guest), s)
}

// appendAmounts writes the numbers of a share.
func appendAmounts(dst []byte, s *power.Share) []byte {
	for _, v := range [...]int64{s.N, s.At, s.Active, s.Idle, s.Error, s.Modelled} {
		dst = binary.AppendVarint(dst, v)
	}
	return dst
}

func appendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// appendSum writes one number for most sums, two for those past 62 bits.
func appendSum(dst []byte, s unit.Sum) []byte {
	hi, lo := s.Halves()
	if hi == 0 && lo < 1<<63 {
		return binary.AppendUvarint(dst, lo<<1)
	}
	dst = binary.AppendUvarint(dst, lo<<1|1)
	return binary.AppendUvarint(dst, hi<<1|lo>>63)
}

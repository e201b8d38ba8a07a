package attribute

import (
	"encoding/binary"
	"math/bits"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// A checkpoint is the books between two windows, as bytes that only [Restore]
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

var counters, integrals, highest = func() (c, i, p usage.Set) {
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

// restless is what changes in the root's account in every tick, as no reading
// shows it; see balance.
var restless = usage.SetOf(usage.Memory, usage.MemoryPeak, usage.PIDs, usage.PIDsPeak)

// touch notes what a tick changed in an account.
func (a *account) touch() {
	now, before := &a.reading, &a.before
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
	for set := a.share.Present & (counters | highest) &^ a.dirty.set; set != 0; set &= set - 1 {
		r := usage.Resource(bits.TrailingZeros64(uint64(set)))
		if v := a.share.Amount[r]; v != 0 && (counters.Has(r) || v > a.total.amount[r].Int64()) {
			changed |= 1 << r
		}
	}
	if a.parent == nil {
		changed |= restless
	}
	a.dirty.set |= changed
}

// Checkpoint appends the books as they are to dst: all of them, or what changed
// since the latest checkpoint that was [Books.Saved]; all too where there is
// none of this boot. It is called when a window was closed, before the next
// tick: what is in an open window is not in it.
func (b *Books) Checkpoint(dst []byte, full bool) []byte {
	full = full || !b.saved
	if full {
		dst = append(dst, checkpointVersion, recordFull)
		dst = appendString(dst, b.node)
		dst = appendString(dst, b.boot)
		dst = appendBool(dst, b.started)
	} else {
		dst = append(dst, checkpointVersion, recordDelta)
		dst = binary.AppendVarint(dst, b.savedAt)
	}
	dst = b.appendNode(dst)
	if !full {
		dst = binary.AppendUvarint(dst, uint64(len(b.buried)))
		for _, serial := range b.buried {
			dst = binary.AppendUvarint(dst, serial)
		}
	}
	for _, a := range b.order {
		switch d := &a.dirty; {
		case a.closed:
		case full || !d.known:
			parts := uint64(partAll)
			if a.guest != nil {
				parts |= partGuest | partShare
			}
			dst = b.appendAccount(dst, a, parts, a.reading.Has|a.seen|a.total.present)
		default:
			if parts := d.parts(); parts != 0 || d.set != 0 {
				dst = b.appendAccount(dst, a, parts, d.set)
			}
		}
	}
	return append(dst, 0)
}

// Saved says that what Checkpoint gave last is where a restart will find it.
// Between the two there is no tick.
func (b *Books) Saved() {
	if !b.started {
		return
	}
	b.saved, b.savedAt, b.buried = true, b.at, b.buried[:0]
	for _, a := range b.order {
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

func (b *Books) appendNode(dst []byte) []byte {
	n := &b.node0
	dst = binary.AppendVarint(dst, b.at)
	dst = binary.AppendVarint(dst, b.mono)
	dst = binary.AppendVarint(dst, b.offset)
	dst = binary.AppendUvarint(dst, b.serial)
	dst = binary.AppendVarint(dst, b.first)
	for _, v := range [...]int64{int64(n.CPUs), n.Steal, n.MemTotal, n.MemFree, n.Tasks} {
		dst = binary.AppendVarint(dst, v)
	}
	dst = binary.AppendUvarint(dst, uint64(n.Total.Has))
	for set := n.Total.Has; set != 0; set &= set - 1 {
		dst = binary.AppendVarint(dst, n.Total.Value[bits.TrailingZeros64(uint64(set))])
	}
	dst = binary.AppendUvarint(dst, b.whole.Rest())
	dst = binary.AppendUvarint(dst, b.free.Rest())
	for _, v := range b.carry {
		dst = binary.AppendVarint(dst, v)
	}
	var positions []energy.Position
	switch {
	case b.away: // no tick took them over
		positions = b.energy.positions
	case b.energy.meters != nil:
		positions = b.energy.meters.Positions()
	}
	dst = binary.AppendUvarint(dst, uint64(len(positions)))
	for _, p := range positions {
		dst = appendString(dst, p.Meter)
		for _, v := range [...]int64{p.At, p.Value, p.Half, p.Ahead, p.Highest} {
			dst = binary.AppendVarint(dst, v)
		}
		dst = appendShare(dst, &p.Given)
		dst = appendShare(dst, &p.Booked)
	}
	t := &b.idle.total
	dst = binary.AppendUvarint(dst, uint64(t.present))
	dst = binary.AppendUvarint(dst, uint64(t.quality))
	for set := t.present; set != 0; set &= set - 1 {
		dst = appendSum(dst, t.amount[bits.TrailingZeros64(uint64(set))])
	}
	return dst
}

func (b *Books) appendAccount(dst []byte, a *account, parts uint64, set usage.Set) []byte {
	own := parts&partHead != 0 && a.w.Key != b.boot+a.w.Path
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
		dst = binary.AppendUvarint(dst, a.parent.standing(usage.CPU).number())
		dst = binary.AppendUvarint(dst, a.memory.standing(usage.Memory).number())
		dst = appendBool(dst, a.born)
	}
	if parts&partSets != 0 {
		for _, s := range [...]usage.Set{a.reading.Has, a.reading.Own, a.reading.Apportioned, a.reading.Counted, a.seen, a.total.present} {
			dst = binary.AppendUvarint(dst, uint64(s))
		}
		dst = binary.AppendUvarint(dst, uint64(a.total.quality))
	}
	if parts&partSplit != 0 {
		for _, v := range [...]int64{a.user, a.system, a.part, a.of} {
			dst = binary.AppendVarint(dst, v)
		}
	}
	if parts&partGuest != 0 {
		dst = appendString(dst, a.guest.share.Guest)
		dst = appendString(dst, a.guest.share.Epoch)
		dst = appendString(dst, a.guest.name)
		dst = binary.AppendUvarint(dst, a.guest.turn)
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
		case counters.Has(r):
			dst = binary.AppendVarint(dst, v-booked)
			if i := nest(r); i >= 0 {
				dst = binary.AppendVarint(dst, a.gone[within[r]])
				dst = binary.AppendUvarint(dst, a.up[i].number())
			}
		case integrals.Has(r):
			dst = binary.AppendVarint(dst, v-a.level[lasting[r]])
			dst = binary.AppendUvarint(dst, a.rest[lasting[r]].Rest())
		}
	}
	return dst
}

// number is the serial by which another account names a; 0 where there is none
// any more.
func (a *account) number() uint64 {
	if a == nil || a.closed {
		return 0
	}
	return a.serial
}

// standing is a, or who is above it where it has ended.
func (a *account) standing(r usage.Resource) *account {
	for a != nil && a.closed {
		a = a.over(r)
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

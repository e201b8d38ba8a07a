package attribute

import (
	"math/bits"
	"time"

	"mete.dev/mete/internal/meter"
)

// balance books system and idle, so that the tick's parts sum to its whole.
//
// The root's account holds what the root's CPU counter shows beyond all other
// workloads: that is system, and what is left of the machine's CPU time is
// idle. Memory and disk have no root counter that holds everything, so there
// system is what is left of the whole: of memory less what is free, of disk
// what the devices did.
func (b *Books) balance(s *meter.Snapshot) {
	root := b.order[0]
	b.idle.share = meter.Usage{Covered: b.covered()}
	sum := b.sumShares()
	b.holdTasks(root, s)
	t := &b.tick
	t.Workloads = sum

	for i, r := range meter.Wholes {
		switch r {
		case meter.CPU:
			t.System[i] = root.share.Amount[r]
			t.Whole[i] = max(0, int64(s.Node.CPUs)*(s.Mono-b.mono)-(s.Node.Steal-b.node0.Steal))
			if b.now == meter.First {
				t.Whole[i] = 0
			}
			t.Idle[i], t.Skew[i] = settle(t.Whole[i]-t.System[i]-sum[i], &b.carry[i])
			b.idle.share.Put(r, t.Idle[i], meter.Measured)
		case meter.Memory:
			if b.now != meter.Booted { // else nobody saw it
				t.Whole[i] = b.whole.Add(b.node0.MemTotal, s.Node.MemTotal, b.elapsed)
				t.Idle[i] = b.free.Add(b.node0.MemFree, s.Node.MemFree, b.elapsed)
			}
			t.System[i], t.Skew[i] = settle(t.Whole[i]-t.Idle[i]-sum[i], &b.carry[i])
			b.holdMemory(root, s, t.System[i], t.Idle[i])
		case meter.EnergyPackage, meter.EnergyDRAM, meter.EnergyGPU, meter.EnergyRest: // see divide
		default:
			if !s.Node.Total.Has.Has(r) {
				t.System[i] = root.share.Amount[r]
				t.Whole[i] = t.System[i] + sum[i]
				continue
			}
			t.Whole[i] = s.Node.Total.Value[r] - b.node0.Total.Value[r]
			if b.now == meter.First || t.Whole[i] < 0 { // a device went away
				t.Whole[i] = sum[i]
			}
			t.System[i], t.Skew[i] = settle(t.Whole[i]-sum[i], &b.carry[i])
			root.share.Put(r, t.System[i], meter.Measured)
		}
	}
}

// holdMemory books the memory of system and idle, and their present levels.
func (b *Books) holdMemory(root *account, s *meter.Snapshot, system, idle int64) {
	held := int64(0)
	for _, a := range b.order {
		if a != root {
			held += a.level[lasting[meter.Memory]]
		}
	}
	q := meter.Measured
	if b.now == meter.Resumed {
		q = meter.Apportioned
	}
	root.level[lasting[meter.Memory]] = max(0, s.Node.MemTotal-s.Node.MemFree-held)
	root.share.Put(meter.Memory, system, q)
	root.share.Put(meter.MemoryPeak, root.level[lasting[meter.Memory]], meter.Measured)
	b.idle.level[lasting[meter.Memory]] = s.Node.MemFree
	b.idle.share.Put(meter.Memory, idle, q)
	b.idle.share.Put(meter.MemoryPeak, s.Node.MemFree, meter.Measured)
}

// holdTasks books the tasks that are in no workload's group to system, where the
// machine says how many there are.
func (b *Books) holdTasks(root *account, s *meter.Snapshot) {
	if s.Node.Tasks == 0 {
		return
	}
	left := s.Node.Tasks
	for _, a := range b.order {
		if a != root && !a.final && a.reading.Has.Has(meter.PIDs) {
			left -= a.level[lasting[meter.PIDs]]
		}
	}
	left = max(0, left)
	from, ns, q := root.level[lasting[meter.PIDs]], b.elapsed, meter.Measured
	switch {
	case b.node0.Tasks == 0 && b.now != meter.Continues:
		ns = 0 // nobody saw them
	case b.node0.Tasks == 0:
		from = left
	case b.now == meter.Resumed:
		q = meter.Apportioned
	}
	root.level[lasting[meter.PIDs]] = left
	root.share.Put(meter.PIDs, root.rest[lasting[meter.PIDs]].Add(from, left, ns), q)
	root.share.Put(meter.PIDsPeak, left, meter.Measured)
}

// sumShares adds up what workloads other than system were booked.
func (b *Books) sumShares() (sum meter.Shares) {
	for _, a := range b.order[1:] {
		for i, r := range meter.Wholes {
			sum[i] += a.share.Amount[r]
		}
	}
	return sum
}

// settle returns what is left, less skew carried from before; where the parts
// showed more than there was, nothing is left and the excess is carried on. The
// second result is the change of what is carried: left = rest + change.
func settle(rest int64, carry *int64) (left, change int64) {
	before := *carry
	rest -= before
	left = max(0, rest)
	*carry = left - rest
	return left, *carry - before
}

// Close closes the window and opens the next: a row for every workload that is
// there or ended in it, system and idle last. It checks the books: rows that do
// not sum to the window's balance are counted as violations. w is overwritten;
// its Rows and Handovers are reused, but not their Shares.
func (b *Books) Close(w *meter.Window) {
	rows, handovers := w.Rows[:0], w.Handovers[:0]
	b.failed()
	*w = meter.Window{Boot: b.boot, Start: b.start, End: b.at, Offset: b.offset, Opening: b.opening, Gaps: b.gaps,
		CPUs: b.node0.CPUs, Total: b.machine, Balance: b.window}
	var sum meter.Shares
	emit := func(a *account) {
		rows = append(rows, meter.Row{Workload: a.w, Life: a.life, Usage: a.window, Ended: a.final})
		row := &rows[len(rows)-1]
		if a.parent != nil && a.parent.parent != nil {
			row.Parent = a.parent.w.ID
		}
		for i, r := range meter.Wholes {
			sum[i] += a.window.Amount[r]
		}
		if a.total.add(&a.window) {
			a.dirty.sets = true
		}
		a.total.row(&row.Total)
		a.window = meter.Usage{}
		if a.guest != nil {
			b.handOver(a)
		}
	}
	for _, a := range b.ended {
		emit(a)
	}
	for i := len(b.order) - 1; i >= 0; i-- {
		if a := b.order[i]; !a.final {
			emit(a)
		}
	}
	emit(b.idle)
	clear(b.ended)
	b.ended = b.ended[:0]

	for i := range meter.Wholes {
		if sum[i] != b.window.Whole[i]+b.window.Skew[i] {
			w.Balance.Violations++
		}
	}
	w.Rows, w.Handovers = rows, b.handovers(handovers)
	b.window, b.start = meter.Balance{}, b.at
	b.machine, b.opening, b.gaps = meter.Usage{}, meter.Continues, nil
}

// totals books what the machine did as a whole. A total that goes back, as a
// device was taken away, counts on from there. It covers all of the tick, also
// of one that was late or in which the meter was away, as the machine's CPU time
// and memory are booked for all of it: averages are over that time. Only of the
// memory before the first tick of a boot nothing is known.
func (b *Books) totals(s *meter.Snapshot) {
	use := meter.Usage{Covered: time.Duration(b.elapsed)}
	if b.now == meter.Booted {
		use.Covered = 0
	}
	for set := s.Node.Total.Has; set != 0; set &= set - 1 {
		r := meter.Resource(bits.TrailingZeros64(uint64(set)))
		switch {
		case b.now == meter.First:
			use.Put(r, 0, meter.Measured)
		case b.now == meter.Booted || b.node0.Total.Has.Has(r):
			use.Put(r, max(0, s.Node.Total.Value[r]-b.node0.Total.Value[r]), meter.Measured)
		}
	}
	b.machine.Add(&use)
}

// covered is for how much of the tick there were readings: all of it, unless
// it is a few times longer than a tick is.
func (b *Books) covered() time.Duration {
	span := time.Duration(b.elapsed)
	if b.now == meter.Resumed || b.now == meter.Booted || b.pace > 0 && span > 4*b.pace {
		return 0
	}
	return span
}

package attribute

import (
	"math/bits"
	"time"

	"mete.dev/mete/internal/model/usage"
)

// balance books system and idle, so that the tick's parts sum to its whole.
//
// The root's account holds what the root's CPU counter shows beyond all other
// workloads: that is system, and what is left of the machine's CPU time is
// idle. Memory and disk have no root counter that holds everything, so there
// system is what is left of the whole: of memory less what is free, of disk
// what the devices did.
func (b *Books) balance(s *usage.Snapshot) {
	root := b.order[0]
	b.idle.share = usage.Usage{Covered: b.covered()}
	sum := b.sumShares()
	b.holdTasks(root, s)
	t := &b.tick
	t.Workloads = sum

	for i, r := range usage.Wholes {
		switch r {
		case usage.CPU:
			t.System[i] = root.share.Amount[r]
			t.Whole[i] = max(0, int64(s.Node.CPUs)*(s.Mono-b.mono)-(s.Node.Steal-b.node0.Steal))
			if b.now == usage.First {
				t.Whole[i] = 0
			}
			t.Idle[i], t.Skew[i] = settle(t.Whole[i]-t.System[i]-sum[i], &b.carry[i])
			b.idle.share.Put(r, t.Idle[i], usage.Measured)
		case usage.Memory:
			if b.now != usage.Booted { // else nobody saw it
				t.Whole[i] = b.whole.Add(b.node0.MemTotal, s.Node.MemTotal, b.elapsed)
				t.Idle[i] = b.free.Add(b.node0.MemFree, s.Node.MemFree, b.elapsed)
			}
			t.System[i], t.Skew[i] = settle(t.Whole[i]-t.Idle[i]-sum[i], &b.carry[i])
			b.holdMemory(root, s, t.System[i], t.Idle[i])
		case usage.EnergyPackage, usage.EnergyDRAM, usage.EnergyGPU, usage.EnergyRest: // see divide
		default:
			if !s.Node.Total.Has.Has(r) {
				t.System[i] = root.share.Amount[r]
				t.Whole[i] = t.System[i] + sum[i]
				continue
			}
			t.Whole[i] = s.Node.Total.Value[r] - b.node0.Total.Value[r]
			if b.now == usage.First || t.Whole[i] < 0 { // a device went away
				t.Whole[i] = sum[i]
			}
			t.System[i], t.Skew[i] = settle(t.Whole[i]-sum[i], &b.carry[i])
			root.share.Put(r, t.System[i], usage.Measured)
		}
	}
}

// holdMemory books the memory of system and idle, and their present levels.
func (b *Books) holdMemory(root *account, s *usage.Snapshot, system, idle int64) {
	held := int64(0)
	for _, a := range b.order {
		if a != root {
			held += a.level[lasting[usage.Memory]]
		}
	}
	q := usage.Measured
	if b.now == usage.Resumed {
		q = usage.Apportioned
	}
	root.level[lasting[usage.Memory]] = max(0, s.Node.MemTotal-s.Node.MemFree-held)
	root.share.Put(usage.Memory, system, q)
	root.share.Put(usage.MemoryPeak, root.level[lasting[usage.Memory]], usage.Measured)
	b.idle.level[lasting[usage.Memory]] = s.Node.MemFree
	b.idle.share.Put(usage.Memory, idle, q)
	b.idle.share.Put(usage.MemoryPeak, s.Node.MemFree, usage.Measured)
}

// holdTasks books the tasks that are in no workload's group to system, where the
// machine says how many there are.
func (b *Books) holdTasks(root *account, s *usage.Snapshot) {
	if s.Node.Tasks == 0 {
		return
	}
	left := s.Node.Tasks
	for _, a := range b.order {
		if a != root && !a.final && a.reading.Has.Has(usage.PIDs) {
			left -= a.level[lasting[usage.PIDs]]
		}
	}
	left = max(0, left)
	from, ns, q := root.level[lasting[usage.PIDs]], b.elapsed, usage.Measured
	switch {
	case b.node0.Tasks == 0 && b.now != usage.Continues:
		ns = 0 // nobody saw them
	case b.node0.Tasks == 0:
		from = left
	case b.now == usage.Resumed:
		q = usage.Apportioned
	}
	root.level[lasting[usage.PIDs]] = left
	root.share.Put(usage.PIDs, root.rest[lasting[usage.PIDs]].Add(from, left, ns), q)
	root.share.Put(usage.PIDsPeak, left, usage.Measured)
}

// sumShares adds up what workloads other than system were booked.
func (b *Books) sumShares() (sum usage.Shares) {
	for _, a := range b.order[1:] {
		for i, r := range usage.Wholes {
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
func (b *Books) Close(w *usage.Window) {
	rows, handovers := w.Rows[:0], w.Handovers[:0]
	b.failed()
	*w = usage.Window{Boot: b.boot, Start: b.start, End: b.at, Offset: b.offset, Opening: b.opening, Gaps: b.gaps,
		CPUs: b.node0.CPUs, Total: b.machine, Balance: b.window}
	var sum usage.Shares
	emit := func(a *account) {
		rows = append(rows, usage.Row{Workload: a.w, Life: a.life, Usage: a.window, Ended: a.final})
		row := &rows[len(rows)-1]
		if a.parent != nil && a.parent.parent != nil {
			row.Parent = a.parent.w.ID
		}
		for i, r := range usage.Wholes {
			sum[i] += a.window.Amount[r]
		}
		if a.total.add(&a.window) {
			a.dirty.sets = true
		}
		a.total.row(&row.Total)
		a.window = usage.Usage{}
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

	for i := range usage.Wholes {
		if sum[i] != b.window.Whole[i]+b.window.Skew[i] {
			w.Balance.Violations++
		}
	}
	w.Rows, w.Handovers = rows, b.handovers(handovers)
	b.window, b.start = usage.Balance{}, b.at
	b.machine, b.opening, b.gaps = usage.Usage{}, usage.Continues, nil
}

// totals books what the machine did as a whole. A total that goes back, as a
// device was taken away, counts on from there. It covers all of the tick, also
// of one that was late or in which the meter was away, as the machine's CPU time
// and memory are booked for all of it: averages are over that time. Only of the
// memory before the first tick of a boot nothing is known.
func (b *Books) totals(s *usage.Snapshot) {
	use := usage.Usage{Covered: time.Duration(b.elapsed)}
	if b.now == usage.Booted {
		use.Covered = 0
	}
	for set := s.Node.Total.Has; set != 0; set &= set - 1 {
		r := usage.Resource(bits.TrailingZeros64(uint64(set)))
		switch {
		case b.now == usage.First:
			use.Put(r, 0, usage.Measured)
		case b.now == usage.Booted || b.node0.Total.Has.Has(r):
			use.Put(r, max(0, s.Node.Total.Value[r]-b.node0.Total.Value[r]), usage.Measured)
		}
	}
	b.machine.Add(&use)
}

// covered is for how much of the tick there were readings: all of it, unless
// it is a few times longer than a tick is.
func (b *Books) covered() time.Duration {
	span := time.Duration(b.elapsed)
	if b.now == usage.Resumed || b.now == usage.Booted || b.pace > 0 && span > 4*b.pace {
		return 0
	}
	return span
}

package attribute

import (
	"math"
	"time"

	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// balanceTick books system and idle so that the tick's parts sum to its whole.
//
// The root's account holds what the root's CPU counter shows beyond all other workloads: that is
// system; the rest of the machine's CPU time is idle. Memory and disk have no root counter that
// includes everything, so there system is the rest of the whole: memory that is neither free nor
// used, and disk traffic of the devices that no workload caused.
func (acc *Accounts) balanceTick(s *usage.Snapshot) {
	root := acc.current[0]
	acc.idle.share = usage.GroupUsage{Covered: acc.coveredTime()}
	sum := acc.sumShares()
	unseen := acc.unseenSet()
	acc.bookTasks(root, s)
	t := &acc.tick
	t.Workloads = sum

	for i, r := range usage.Wholes {
		switch r {
		case usage.CPU:
			var q usage.Quality
			t.Whole[i], q = acc.wholeCPU(s, root.share.Amount[r]+sum[i])
			if s.Node.Partial {
				acc.bookUnseen(root, s, t.Whole[i]-root.share.Amount[r]-sum[i])
				q = usage.Apportioned
			}
			t.System[i] = root.share.Amount[r]
			t.Idle[i], t.Skew[i] = carrySkew(t.Whole[i]-t.System[i]-sum[i], &acc.skew[i])
			acc.idle.share.Put(r, t.Idle[i], q)
		case usage.Memory:
			if acc.knowsMemory() {
				t.Whole[i] = acc.memoryTotal.Add(acc.lastNode.MemTotal, s.Node.MemTotal, acc.elapsed)
				t.Idle[i] = acc.memoryFree.Add(acc.lastNode.MemFree, s.Node.MemFree, acc.elapsed)
			} else {
				acc.memoryTotal, acc.memoryFree = unit.Integral{}, unit.Integral{}
				t.Whole[i] = sum[i]
			}
			t.System[i], t.Skew[i] = carrySkew(t.Whole[i]-t.Idle[i]-sum[i], &acc.skew[i])
			acc.bookMemory(root, s, t.System[i], t.Idle[i])
		case usage.EnergyPackage, usage.EnergyDRAM, usage.EnergyGPU, usage.EnergyRest: // see divideEnergy
		default:
			if !s.Node.Total.Has.Has(r) {
				t.System[i] = root.share.Amount[r]
				t.Whole[i] = t.System[i] + sum[i]
				continue
			}
			t.Whole[i] = s.Node.Total.Value[r] - acc.lastNode.Total.Value[r]
			q := usage.Measured
			if unseen.Has(r) {
				q = usage.Apportioned
			}
			switch {
			case acc.tickStart == usage.StartFirst:
				t.Whole[i] = sum[i]
			case t.Whole[i] < 0: // a device was removed while measuring was interrupted
				t.Whole[i], q = sum[i], usage.Apportioned
			}
			t.System[i], t.Skew[i] = carrySkew(t.Whole[i]-sum[i], &acc.skew[i])
			root.share.Put(r, t.System[i], q)
		}
	}
}

// knowsMemory reports whether the integral of the machine's memory over the tick is known: not before
// the first tick of a boot, and not if it is too large.
func (acc *Accounts) knowsMemory() bool { return acc.tickStart != usage.StartBooted && !acc.tooLong }

// canIntegrate reports whether an integral between two levels over the tick fits into an int64. Twice
// the level has to fit, so that the sum over a window does too.
func (acc *Accounts) canIntegrate(from, to int64) bool {
	most := max(from, to)
	return most <= math.MaxInt64/2 && unit.Fits(2*most, acc.elapsed)
}

// wholeCPU returns the CPU time of the machine in the tick, of which used was booked. If the number
// of CPUs changed in a gap of the readings, the time of the change is unknown: the smaller number
// counts, but at least what was used.
func (acc *Accounts) wholeCPU(s *usage.Snapshot, used int64) (whole int64, q usage.Quality) {
	if acc.tickStart == usage.StartFirst {
		return 0, usage.Measured
	}
	var least int64
	cpus, before := s.Node.CPUs, acc.lastNode.CPUs
	if acc.coveredTime() == 0 && before > 0 && before != cpus {
		cpus, least, q = min(cpus, before), used, usage.Apportioned
	} else {
		q = usage.Measured
	}
	return max(least, int64(cpus)*(s.Mono-acc.mono)-(s.Node.Steal-acc.lastNode.Steal)), q
}

// idleStep is the step in which the kernel shows idle time, in ns.
const idleStep = 10_000_000

// bookUnseen books to system what was used outside of the groups, where these are a part of the
// machine: of rest, which no group used, what the kernel does not show as idle. It shows that in
// steps, so what was booked too early is made up, up to two steps of each CPU.
func (acc *Accounts) bookUnseen(root *account, s *usage.Snapshot, rest int64) {
	idle := s.Node.Idle - acc.lastNode.Idle
	if acc.tickStart == usage.StartResumed && acc.lastNode.Idle == 0 {
		idle = rest // a checkpoint of before knows no idle time
	}
	used := rest - max(0, idle) + acc.unseen
	acc.unseen = max(min(0, used), -2*idleStep*int64(s.Node.CPUs))
	root.share.Put(usage.CPU, max(0, used), usage.Apportioned)
	root.share.Amount[usage.CPUUser], root.share.Amount[usage.CPUSystem] = 0, 0
	root.splitCPU()
}

func (acc *Accounts) bookMemory(root *account, s *usage.Snapshot, system, idle int64) {
	held := int64(0)
	for _, a := range acc.current {
		if a != root {
			held += a.level[levelSlot[usage.Memory]]
		}
	}
	q := usage.Measured
	if acc.tickStart == usage.StartResumed {
		q = usage.Apportioned
	}
	root.level[levelSlot[usage.Memory]] = max(0, s.Node.MemTotal-s.Node.MemFree-held)
	root.share.Put(usage.Memory, system, q)
	root.share.Put(usage.MemoryPeak, root.level[levelSlot[usage.Memory]], usage.Measured)
	acc.idle.level[levelSlot[usage.Memory]] = s.Node.MemFree
	acc.idle.share.Put(usage.Memory, idle, q)
	acc.idle.share.Put(usage.MemoryPeak, s.Node.MemFree, usage.Measured)
}

// bookTasks books tasks outside all workloads to system, if the machine shows the number of tasks.
func (acc *Accounts) bookTasks(root *account, s *usage.Snapshot) {
	if s.Node.Tasks == 0 {
		return
	}
	left := s.Node.Tasks
	for _, a := range acc.current {
		if a != root && !a.final && a.reading.Has.Has(usage.PIDs) {
			left -= a.level[levelSlot[usage.PIDs]]
		}
	}
	left = max(0, left)
	from, ns, q := root.level[levelSlot[usage.PIDs]], acc.elapsed, usage.Measured
	switch {
	case acc.lastNode.Tasks == 0 && acc.tickStart != usage.StartContinued:
		ns = 0 // their number before is unknown
	case acc.lastNode.Tasks == 0:
		from = left
	case acc.tickStart == usage.StartResumed:
		q = usage.Apportioned
	}
	root.level[levelSlot[usage.PIDs]] = left
	root.share.Put(usage.PIDs, root.remainders[levelSlot[usage.PIDs]].Add(from, left, ns), q)
	root.share.Put(usage.PIDsPeak, left, usage.Measured)
}

// sumShares sums what was booked to workloads other than system.
func (acc *Accounts) sumShares() (sum usage.Shares) {
	for _, a := range acc.current[1:] {
		for i, r := range usage.Wholes {
			sum[i] += a.share.Amount[r]
		}
	}
	return sum
}

// unseenSet returns the resources of which system, as the rest of the machine's, includes use of groups
// that were not seen: no counter between them and the root includes it.
func (acc *Accounts) unseenSet() (s usage.Set) {
	for i, a := range acc.current {
		switch {
		case !a.uncertain:
		case i == 0:
			return usage.All
		default:
			s |= a.reading.Own | ^a.reading.Has
		}
	}
	return s
}

// carrySkew returns rest less the skew carried so far, but at least 0, and carries on the excess.
// The second result is the change of the carry: left = rest + change.
func carrySkew(rest int64, carry *int64) (left, change int64) {
	before := *carry
	rest -= before
	left = max(0, rest)
	*carry = left - rest
	return left, *carry - before
}

// CloseWindow closes the window and opens the next. w gets a row for every workload that exists or
// ended in it, with system and idle last. Rows that do not sum to the window's balance count as
// violations. CloseWindow overwrites w and reuses its Rows and Handovers, but not their Shares.
func (acc *Accounts) CloseWindow(w *usage.Window) {
	rows, handovers := w.Rows[:0], w.Handovers[:0]
	acc.addMeterGaps()
	*w = usage.Window{Boot: acc.boot, Start: acc.start, End: acc.at, Offset: acc.offset, StartReason: acc.windowStart, Gaps: acc.gaps,
		CPUs: acc.lastNode.CPUs, Total: acc.machine, Balance: acc.window, Volumes: acc.volumes}
	var sum usage.Shares
	emit := func(a *account) {
		rows = append(rows, usage.Row{Workload: a.identify(), ShortID: a.short, Usage: a.use(), Ended: a.final})
		row := &rows[len(rows)-1]
		limitClasses(&row.Usage)
		if a.apart != nil {
			row.Connections = limitConnections(a.apart.connections, &row.Usage)
		}
		for i, r := range usage.Wholes {
			sum[i] += row.Usage.Amount[r]
		}
		if a.total.add(&row.Usage) {
			a.dirty.sets = true
		}
		if row.Usage.Amount[usage.Storage] != 0 {
			a.dirty.set |= 1 << usage.Storage
		}
		row.Has = a.total.row(&row.Total)
		a.window, a.repeated = usage.GroupUsage{}, false
		if a.apart != nil {
			a.apart.classes, a.apart.connections = nil, nil
		}
		if a.guest != nil {
			acc.closeHandover(a)
		}
	}
	for _, a := range acc.ended {
		emit(a)
	}
	for i := len(acc.current) - 1; i >= 0; i-- {
		if a := acc.current[i]; !a.final {
			emit(a)
		}
	}
	emit(acc.idle)
	clear(acc.ended)
	acc.ended, acc.endsSaved = acc.ended[:0], 0

	for i := range usage.Wholes {
		if sum[i] != acc.window.Whole[i]+acc.window.Skew[i] {
			w.Balance.Violations++
		}
	}
	w.Rows, w.Handovers = rows, acc.appendHandovers(handovers)
	acc.window, acc.start = usage.Balance{}, acc.at
	acc.machine, acc.windowStart, acc.gaps = usage.Usage{}, usage.StartContinued, nil
	acc.volumes = nil
}

// identify returns the identity that rows refer to. It makes a new one if the workload, its life or
// its parent changed, as rows of earlier windows share the old one.
func (a *account) identify() *usage.Identity {
	is := usage.Identity{Workload: a.w, Life: a.life}
	if a.parent != nil && a.parent.parent != nil {
		is.Parent = a.parent.w.ID
	}
	if a.identity == nil || *a.identity != is {
		a.identity = new(usage.Identity)
		*a.identity = is
		a.short, _ = workload.ShortIDOf(a.w.ID)
	}
	return a.identity
}

// addMachineTotals books what the machine did as a whole. A total that falls because a device was
// removed while measuring was interrupted continues from there. Totals cover the whole tick, even a late one or one after a pause,
// since CPU time and memory are booked for all of it too, unless memory is unknown.
func (acc *Accounts) addMachineTotals(s *usage.Snapshot) {
	use := usage.Usage{Covered: time.Duration(acc.elapsed)}
	if !acc.knowsMemory() {
		use.Covered = 0
	}
	for r := range s.Node.Total.Has.All() {
		switch {
		case acc.tickStart == usage.StartFirst:
			use.Put(r, 0, usage.Measured)
		case acc.tickStart == usage.StartBooted || acc.lastNode.Total.Has.Has(r):
			use.Put(r, max(0, s.Node.Total.Value[r]-acc.lastNode.Total.Value[r]), usage.Measured)
		}
	}
	acc.machine.Add(&use)
}

// coveredTime returns how much of the tick is covered by readings: all of it, unless the tick is
// several times longer than usual.
func (acc *Accounts) coveredTime() time.Duration {
	span := time.Duration(acc.elapsed)
	if acc.tickStart == usage.StartResumed || acc.tickStart == usage.StartBooted || acc.interval > 0 && span > 4*acc.interval {
		return 0
	}
	return span
}

package attribute

import (
	"time"

	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// Live returns what every workload did in the latest tick, as a tree: parents before children in
// the order of the snapshot, groups that ended in the tick marked, system and idle last. The caller
// adds host name, reader, notes and mete's own cost.
func (acc *Accounts) Live() *live.Machine {
	m := &live.Machine{
		Time: time.Unix(0, acc.at+acc.offset).UTC(), Boot: acc.boot, Tick: time.Duration(acc.elapsed),
		CPUs: acc.lastNode.CPUs, Balance: acc.tick,
	}
	cpu := indexOf(usage.CPU)
	m.CPU = live.CPUParts{
		Whole:     acc.cores(acc.tick.Whole[cpu]),
		Workloads: acc.cores(acc.tick.Workloads[cpu]),
		System:    acc.cores(acc.tick.System[cpu]),
		Idle:      acc.cores(acc.tick.Idle[cpu]),
		Steal:     acc.cores(acc.stolen),
		Skew:      acc.cores(acc.tick.Skew[cpu]),
	}
	m.Memory = live.MemoryParts{Whole: acc.lastNode.MemTotal, Idle: acc.lastNode.MemFree, Available: acc.lastNode.MemAvail}
	m.Disk = acc.trafficRate(usage.DiskRead, usage.DiskWritten)
	m.Network = acc.trafficRate(usage.NetworkRx, usage.NetworkTx)
	m.Energy = acc.powerDraw()

	children := map[*account][]*account{}
	for _, a := range acc.current[1:] {
		children[a.parent] = append(children[a.parent], a)
	}
	var walk func(a *account, depth int)
	walk = func(a *account, depth int) {
		for _, c := range children[a] {
			m.Memory.Workloads += c.level[levelSlot[usage.Memory]]
			m.Rows = append(m.Rows, acc.row(c, depth))
			walk(c, depth+1)
		}
	}
	root := acc.current[0]
	walk(root, 0)
	m.Memory.System = root.level[levelSlot[usage.Memory]]
	m.Memory.Skew = m.Memory.Workloads + m.Memory.System + m.Memory.Idle - m.Memory.Whole
	m.Rows = append(m.Rows, acc.row(root, 0), acc.row(acc.idle, 0))
	return m
}

// trafficRate returns the machine's traffic in the latest tick, or nil if it is not counted.
// EachLiving calls f for each workload of the latest tick that has not ended.
func (acc *Accounts) EachLiving(f func(*workload.Workload)) {
	for _, a := range acc.current {
		if !a.final {
			f(&a.w)
		}
	}
}

func (acc *Accounts) trafficRate(in, out usage.Resource) *live.Flow {
	now, before := &acc.lastNode.Total, &acc.lastTotal
	if !now.Has.Has(in) || !before.Has.Has(in) {
		return nil
	}
	rate := func(r usage.Resource) float64 { return acc.perSecond(max(0, now.Value[r]-before.Value[r])) }
	return &live.Flow{In: rate(in), Out: rate(out)}
}

// powerDraw returns the machine's power in the latest tick, or nil if no meter shows it. Its error
// is that of the rows, as in the ledger: the sum of theirs.
func (acc *Accounts) powerDraw() *live.Energy {
	meters := acc.energy.meters
	if meters == nil || acc.elapsed <= 0 {
		return nil
	}
	watts := func(uJ int64) float64 { return acc.perSecond(uJ) / 1e6 }
	e := &live.Energy{}
	tick := meters.Latest()
	for d := power.Package; d < power.DomainLimit; d++ {
		a := &tick.Domain[d]
		if a.Quality == usage.Absent {
			continue
		}
		p := live.Domain{Name: d.String(), Watts: watts(a.Energy), Error: watts(a.Error), Quality: a.Quality,
			Idle: watts(acc.energy.idlePower[d]), Source: meters.Source(d)}
		e.Domains = append(e.Domains, p)
		e.Watts, e.Idle = e.Watts+p.Watts, e.Idle+p.Idle
		e.Quality = max(e.Quality, p.Quality)
	}
	if e.Domains == nil {
		return nil
	}
	off := acc.idle.share.Amount[usage.EnergyError]
	for _, a := range acc.current {
		off += a.share.Amount[usage.EnergyError]
	}
	e.Error = watts(off)
	for l := power.Board; l < power.LevelLimit; l++ {
		if r, ok := meters.Ratio(l); ok {
			if e.Ratios == nil {
				e.Ratios = map[string]float64{}
			}
			e.Ratios[l.String()] = float64(r) / power.PPM
		}
	}
	return e
}

func indexOf(r usage.Resource) int {
	for i, w := range usage.Wholes {
		if w == r {
			return i
		}
	}
	panic("attribute: " + r.String() + " has no whole")
}

// cores converts CPU ns of the tick to a number of CPUs in use.
func (acc *Accounts) cores(ns int64) float64 { return acc.perSecond(ns) / 1e9 }

func (acc *Accounts) perSecond(v int64) float64 {
	if acc.elapsed <= 0 {
		return 0
	}
	return float64(v) * 1e9 / float64(acc.elapsed)
}

func (acc *Accounts) row(a *account, depth int) live.Row {
	row := live.Row{ID: a.w.ID, Kind: a.w.Kind, Key: a.w.Key, Name: a.w.Name, Path: a.w.Path, Depth: depth, Ended: a.final,
		Total: map[string]string{}, Quality: map[string]usage.Quality{}}
	if a.parent != nil && a.parent.parent != nil {
		row.Parent = a.parent.w.ID
	}
	rate := func(r usage.Resource, scale float64) *float64 {
		if !a.share.Present.Has(r) {
			return nil
		}
		v := acc.perSecond(a.share.Amount[r]) / scale
		return &v
	}
	level := func(r usage.Resource) *int64 {
		if !a.share.Present.Has(r) {
			return nil
		}
		v := a.level[levelSlot[r]]
		return &v
	}
	row.CPU = rate(usage.CPU, 1e9)
	row.Memory = level(usage.Memory)
	row.DiskRead, row.DiskWritten = rate(usage.DiskRead, 1), rate(usage.DiskWritten, 1)
	row.NetworkRx, row.NetworkTx = rate(usage.NetworkRx, 1), rate(usage.NetworkTx, 1)
	if n := level(usage.PIDs); n != nil {
		tasks := float64(*n)
		row.PIDs = &tasks
	}
	row.PressureCPU = rate(usage.PressureCPU, 1e9)
	row.PressureMemory = rate(usage.PressureMemory, 1e9)
	row.PressureIO = rate(usage.PressureIO, 1e9)
	acc.putRowPower(&row, a)
	if a.cpuLimit > 0 {
		limit := float64(a.cpuLimit) / 1e9
		row.CPULimit = &limit
	}
	if a.memoryLimit > 0 {
		limit := a.memoryLimit
		row.MemoryLimit = &limit
	}
	total, window := a.total.clone(), a.use()
	limitClasses(&window)
	total.add(&window)
	total.present.Each(func(r usage.Resource) {
		row.Total[r.String()] = total.sum(r).Decimal(r.Detail().Unit)
		row.Quality[r.String()] = total.quality.Get(r)
	})
	return row
}

// putRowPower sets a row's power in the latest tick, if any domain has energy.
func (acc *Accounts) putRowPower(row *live.Row, a *account) {
	var uJ int64
	var quality usage.Quality
	for _, r := range usage.Energies {
		if a.share.Present.Has(r) {
			uJ += a.share.Amount[r]
			quality = max(quality, a.share.Quality.Get(r))
		}
	}
	if quality == usage.Absent {
		return
	}
	watts, off := acc.perSecond(uJ)/1e6, acc.perSecond(a.share.Amount[usage.EnergyError])/1e6
	row.Power, row.PowerError = &watts, &off
	row.Quality[live.Power.String()] = quality
}

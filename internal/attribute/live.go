package attribute

import (
	"time"

	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// Live returns what every workload did in the latest tick, as a tree: parents
// before children, in the order of the snapshot; groups that ended in the tick
// are marked; system and idle are last. The caller adds what the books do not
// know: host name, reader, notes, mete's own cost.
func (b *Books) Live() *live.Machine {
	m := &live.Machine{
		Time: time.Unix(0, b.at+b.offset).UTC(), Boot: b.boot, Tick: time.Duration(b.elapsed),
		CPUs: b.node0.CPUs, Balance: b.tick,
	}
	cpu := indexOf(usage.CPU)
	m.CPU = live.CPU{
		Whole:     b.cores(b.tick.Whole[cpu]),
		Workloads: b.cores(b.tick.Workloads[cpu]),
		System:    b.cores(b.tick.System[cpu]),
		Idle:      b.cores(b.tick.Idle[cpu]),
		Steal:     b.cores(b.stolen),
	}
	m.Memory = live.Memory{Whole: b.node0.MemTotal, Idle: b.node0.MemFree, Available: b.node0.MemAvail}
	m.Disk = b.flow(usage.DiskRead, usage.DiskWritten)
	m.Network = b.flow(usage.NetworkRx, usage.NetworkTx)
	m.Energy = b.power()

	children := map[*account][]*account{}
	for _, a := range b.order[1:] {
		children[a.parent] = append(children[a.parent], a)
	}
	var walk func(a *account, depth int)
	walk = func(a *account, depth int) {
		for _, c := range children[a] {
			m.Memory.Workloads += c.level[lasting[usage.Memory]]
			m.Rows = append(m.Rows, b.row(c, depth))
			walk(c, depth+1)
		}
	}
	root := b.order[0]
	walk(root, 0)
	m.Memory.System = root.level[lasting[usage.Memory]]
	m.Rows = append(m.Rows, b.row(root, 0), b.row(b.idle, 0))
	return m
}

// flow is the machine's traffic of the latest tick, nil where nobody counts it.
func (b *Books) flow(in, out usage.Resource) *live.Flow {
	now, before := &b.node0.Total, &b.total0
	if !now.Has.Has(in) || !before.Has.Has(in) {
		return nil
	}
	rate := func(r usage.Resource) float64 { return b.perSecond(max(0, now.Value[r]-before.Value[r])) }
	return &live.Flow{In: rate(in), Out: rate(out)}
}

// power is what the machine drew in the latest tick, nil where nothing shows it.
func (b *Books) power() *live.Energy {
	meters := b.energy.meters
	if meters == nil || b.elapsed <= 0 {
		return nil
	}
	watts := func(uJ int64) float64 { return b.perSecond(uJ) / 1e6 }
	e := &live.Energy{}
	tick := meters.Latest()
	for d := power.Package; d < power.DomainLimit; d++ {
		a := &tick.Domain[d]
		if a.Quality == usage.Absent {
			continue
		}
		p := live.Domain{Name: d.String(), Watts: watts(a.Energy), Error: watts(a.Error), Quality: a.Quality,
			Idle: watts(b.energy.idle[d]), Source: meters.Source(d)}
		e.Domains = append(e.Domains, p)
		e.Watts, e.Error, e.Idle = e.Watts+p.Watts, e.Error+p.Error, e.Idle+p.Idle
		e.Quality = max(e.Quality, p.Quality)
	}
	if e.Domains == nil {
		return nil
	}
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

// cores is CPU ns of the tick as a number of CPUs in use.
func (b *Books) cores(ns int64) float64 { return b.perSecond(ns) / 1e9 }

func (b *Books) perSecond(v int64) float64 {
	if b.elapsed <= 0 {
		return 0
	}
	return float64(v) * 1e9 / float64(b.elapsed)
}

func (b *Books) row(a *account, depth int) live.Row {
	row := live.Row{ID: a.w.ID, Kind: a.w.Kind, Name: a.w.Name, Path: a.w.Path, Depth: depth, Ended: a.final,
		Total: map[string]string{}, Quality: map[string]usage.Quality{}}
	if a.parent != nil && a.parent.parent != nil {
		row.Parent = a.parent.w.ID
	}
	rate := func(r usage.Resource, scale float64) *float64 {
		if !a.share.Present.Has(r) {
			return nil
		}
		v := b.perSecond(a.share.Amount[r]) / scale
		return &v
	}
	level := func(r usage.Resource) *int64 {
		if !a.share.Present.Has(r) {
			return nil
		}
		v := a.level[lasting[r]]
		return &v
	}
	row.CPU = rate(usage.CPU, 1e9)
	row.Memory = level(usage.Memory)
	row.DiskRead, row.DiskWritten = rate(usage.DiskRead, 1), rate(usage.DiskWritten, 1)
	row.NetworkRx, row.NetworkTx = rate(usage.NetworkRx, 1), rate(usage.NetworkTx, 1)
	row.PIDs = level(usage.PIDs)
	row.PressureCPU = rate(usage.PressureCPU, 1e9)
	row.PressureMemory = rate(usage.PressureMemory, 1e9)
	row.PressureIO = rate(usage.PressureIO, 1e9)
	b.rowPower(&row, a)
	if a.cpuLimit > 0 {
		limit := float64(a.cpuLimit) / 1e9
		row.CPULimit = &limit
	}
	if a.memoryLimit > 0 {
		limit := a.memoryLimit
		row.MemoryLimit = &limit
	}
	total := a.total
	total.add(&a.window)
	total.present.Each(func(r usage.Resource) {
		row.Total[r.String()] = total.amount[r].Decimal(r.Detail().Unit)
		row.Quality[r.String()] = total.quality.Get(r)
	})
	return row
}

// rowPower puts a row's power of the latest tick, where any domain shows it.
func (b *Books) rowPower(row *live.Row, a *account) {
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
	watts, off := b.perSecond(uJ)/1e6, b.perSecond(a.share.Amount[usage.EnergyError])/1e6
	row.Power, row.PowerError = &watts, &off
	row.Quality[live.Power] = quality
}

package sources

import (
	"cmp"
	"context"
	"slices"

	"mete.dev/mete/internal/collect/perprocess"
	"mete.dev/mete/internal/collect/proc"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A processWatch breaks one workload down by process.
type processWatch struct {
	id      workload.ID
	procs   *proc.Table
	account *perprocess.Account // nil until the first reading
}

// Watch makes the next ticks break the CPU time of a workload down by process; "" stops
// that. Any goroutine may call it.
func (m *Machine) Watch(id workload.ID) { m.watchID.Store(&id) }

// breakDown returns the breakdown of the watched workload, nil if there is none yet.
func (m *Machine) breakDown(ctx context.Context) *live.Breakdown {
	want := m.watchID.Load()
	if want == nil || *want == "" {
		m.watch.account = nil
		return nil
	}
	if m.watch.id != *want {
		m.watch.id, m.watch.account = *want, nil
	}
	if m.watch.procs == nil {
		t, err := proc.Open(m.host, m.kernel, proc.Default())
		if err != nil {
			m.log.Debug("processes", "err", err)
			return nil
		}
		m.watch.procs = t
		m.closers = append(m.closers, t.Close)
	}
	if err := m.watch.procs.Read(ctx); err != nil {
		m.log.Debug("processes", "err", err)
		return nil
	}
	for _, g := range m.Snapshot().Groups {
		if g.Workload.ID == *want {
			return m.breakDownGroup(g)
		}
	}
	return nil
}

// breakDownGroup divides what was booked to g in the latest tick.
func (m *Machine) breakDownGroup(g *usage.Group) *live.Breakdown {
	procs := map[perprocess.ID]proc.Process{}
	var mine []perprocess.Process
	for _, p := range m.watch.procs.All() {
		if owner := m.table.Owner(p.Group); owner != nil && owner.Slot == g.Slot {
			procs[p.ID] = p
			mine = append(mine, p.Process)
		}
	}
	if m.watch.account == nil {
		m.watch.account = perprocess.New(mine)
		return nil
	}
	share, ok := m.Accounts().Share(g.Slot)
	if !ok || !share.Present.Has(usage.CPU) || share.Covered <= 0 {
		return nil
	}
	out := &live.Breakdown{Workload: g.Workload.ID, Unreadable: m.watch.procs.Unreadable}
	for _, l := range m.watch.account.Split(share.Amount[usage.CPU], mine) {
		line := live.Process{PID: l.ID.PID, Name: "(ended)", CPU: float64(l.CPU) / float64(share.Covered)}
		if p, ok := procs[l.ID]; ok {
			line.Name, line.Threads, line.RSS = p.Name, p.Threads, &p.RSS
		}
		out.Processes = append(out.Processes, line)
	}
	slices.SortStableFunc(out.Processes, func(a, b live.Process) int {
		if (a.PID == 0) != (b.PID == 0) {
			return cmp.Compare(b.PID, a.PID)
		}
		return cmp.Compare(b.CPU, a.CPU)
	})
	return out
}

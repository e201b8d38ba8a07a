package cgroup

import (
	"errors"
	"fmt"
	"log/slog"
	"path"

	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// kernel reads groups by BPF: one walk over each hierarchy, and the births and deaths
// recorded by tracepoints.
//
// A tick walks first and drains the events afterwards, so that each row's birth is known
// and each death's final value is at least what the walk saw in its parent: nothing is
// booked to both an ended group and its parent.
type kernel struct {
	k       *bpf.Kernel
	log     *slog.Logger
	walkers [maxTrees]*bpf.Walker
	rows    [maxTrees][]bpf.Row
	lost    uint64
	full    uint32
	tick    int

	unknownSince int // tick since which walks show unknown groups, 0 if none
	searchedAt   int // tick of the latest search
}

// FollowedByBPF returns the numbers of the hierarchies that a table with the BPF reader
// follows, chosen when it is opened: it does not use the events of others, which would only
// fill the kernel's ring.
func FollowedByBPF(h *hostfs.FS) (ids []uint32, err error) {
	src, err := findSources(h)
	if err != nil {
		return nil, err
	}
	for _, role := range (&kernel{}).roles() {
		if y := src[role]; y != nil {
			ids = append(ids, y.ID)
		}
	}
	return ids, nil
}

// OpenBPF returns a table with the BPF reader, which needs the events of the hierarchies
// returned by [FollowedByBPF]. The caller still owns the kernel and closes it after the
// table.
func OpenBPF(h *hostfs.FS, k *bpf.Kernel, cfg Config, log *slog.Logger) (*Table, error) {
	if err := errors.Join(k.Err(bpf.Walks), k.Err(bpf.Events)); err != nil {
		return nil, err
	}
	r := &kernel{k: k, log: log, lost: k.Lost()}
	t, err := newTable(h, r, cfg, log)
	if err != nil {
		return nil, err
	}
	for _, role := range []role{roleCPU, roleMemory, rolePIDs} {
		tr := t.byRole[role]
		if tr == nil || r.walkers[tr.index] != nil {
			continue
		}
		if err := r.open(h, tr, role == roleCPU && tr.V2); err != nil {
			return nil, errors.Join(err, r.Close())
		}
	}
	t.disk = chooseDisk(t, k.Err(bpf.Disk) == nil)
	if err := k.Err(bpf.Forks); err != nil {
		t.note("processes started: %v", err)
	}
	return t.findAllOrClose()
}

func (r *kernel) open(h *hostfs.FS, tr *tree, flush bool) error {
	dir, err := h.Open(tr.Mount)
	if err != nil {
		return err
	}
	w, err := r.k.NewWalker(dir.Fd(), flush)
	if err != nil {
		err = fmt.Errorf("%s: %w", tr.Mount, err)
	}
	r.walkers[tr.index] = w
	return errors.Join(err, dir.Close())
}

func (r *kernel) roles() []role        { return []role{roleCPU, roleMemory, rolePIDs, roleIO} }
func (r *kernel) identifiesByID() bool { return true }

// countsRoot does a walk: its first row is the root's.
func (r *kernel) countsRoot() bool {
	for _, w := range r.walkers {
		if w == nil {
			continue
		}
		rows, err := w.Read()
		return err == nil && len(rows) > 0 && rows[0].Has&bpf.HasCPU != 0
	}
	return false
}

func (r *kernel) Close() (err error) {
	for i, w := range r.walkers {
		if w != nil {
			err = errors.Join(err, w.Close())
			r.walkers[i] = nil
		}
	}
	return err
}

// followChanges walks all hierarchies, then applies births and deaths.
func (r *kernel) followChanges(t *Table) error {
	if err := r.walk(t); err != nil {
		return err
	}
	r.drain(t)
	return nil
}

func (r *kernel) walk(t *Table) (err error) {
	r.tick++
	for i, w := range r.walkers {
		if w == nil {
			continue
		}
		r.rows[i] = nil
		if t.trees[i] == t.byRole[rolePIDs] && r.walksPIDsSeldom(t) && t.ticks%max(1, t.cfg.Every) != 0 {
			continue
		}
		if r.rows[i], err = w.Read(); err != nil {
			return err
		}
	}
	return nil
}

func (r *kernel) drain(t *Table) {
	r.k.Drain(func(e *bpf.Event) {
		for _, tr := range t.trees {
			if tr.ID == e.Hierarchy {
				r.applyEvent(t, tr, e)
			}
		}
	})
}

// walksPIDsSeldom reports whether tasks are counted in a hierarchy of their own. That is
// walked once a window only, because a walk costs as much as one for CPU time.
func (r *kernel) walksPIDsSeldom(t *Table) bool {
	pids := t.byRole[rolePIDs]
	return pids != t.byRole[roleCPU] && pids != t.byRole[roleMemory]
}

func (r *kernel) applyEvent(t *Table, tr *tree, e *bpf.Event) {
	if e.Born {
		r.applyBirth(t, tr, e)
		return
	}
	n := tr.byID[e.ID]
	if n == nil { // outside the mount, or its birth was lost
		r.missChild(tr, e.Parent)
		return
	}
	exact := false
	switch {
	case tr != t.byRole[roleCPU]:
	case n.dead: // a search ended it, without its final CPU time
		r.missChild(tr, e.Parent)
	default:
		exact = r.setFinalCPU(tr, n, e)
	}
	t.removeGroup(tr, n, exact)
}

func (r *kernel) applyBirth(t *Table, tr *tree, e *bpf.Event) {
	p, ok := tr.pathOf(e)
	if e.Cut {
		t.lost++
	}
	if e.Cut || !ok || isOutdated(tr, p, e.ID, e.Parent) {
		r.missChild(tr, e.Parent)
		return
	}
	if n := tr.byID[e.ID]; n != nil && !n.removed[tr.index] && n.paths[tr.index] != p {
		if err := t.renameGroup(tr, n, p); err != nil {
			r.log.Warn("renamed group", "path", p, "err", err)
		}
		return
	}
	isNew := tr.byID[e.ID] == nil && (tr.byPath[p] == nil || tr.byPath[p].id[tr.index] < fakeID)
	n := t.addGroup(tr, p, e.ID)
	if isNew && tr == t.byRole[roleCPU] {
		n.knowsChildren, n.lostBefore = true, r.lost
	}
}

// missChild notes that a group had a child whose final CPU time is unknown.
func (r *kernel) missChild(tr *tree, parent uint64) {
	if n := tr.byID[parent]; n != nil {
		n.knowsChildren = false
	}
}

// isOutdated reports whether a newer group has replaced the one of a birth event: a search
// found a later id under its path, since ids of a hierarchy rise, or another group as its
// parent, or no parent. The use of the outdated group is in its ancestors, not in the
// groups that exist now.
func isOutdated(tr *tree, p string, id, parent uint64) bool {
	if n := tr.byPath[p]; n != nil && n.id[tr.index] < fakeID && id < n.id[tr.index] {
		return true
	}
	up := tr.byPath[path.Dir(p)]
	return up == nil || up.id[tr.index] < fakeID && up.id[tr.index] != parent
}

// setFinalCPU sets the final CPU time of a group and reports whether it is exact.
//
// Version 1 provides it. Version 2 provides what the group itself used, and a sum with all
// groups below it that is as old as the latest flush. At its end nothing is below the group,
// so its final CPU time is its own plus that of all groups that ever were directly below it:
// exact if all of these ends are known. Otherwise the largest amount that is certain counts.
func (r *kernel) setFinalCPU(tr *tree, n *node, e *bpf.Event) (exact bool) {
	last := n.walked
	cpu := last + n.endedCPU
	if e.Has&bpf.HasCPU != 0 {
		cpu = max(cpu, int64(e.CPU))
		exact = !tr.V2
	}
	if e.Has&bpf.HasOwnCPU != 0 {
		cpu = max(cpu, int64(e.OwnCPU)+n.childrenCPU)
		exact = n.knowsChildren && n.lostBefore == r.k.Lost()
	}
	n.walked = cpu
	up := n.parent
	up.endedCPU += cpu - last
	up.childrenCPU += cpu
	up.knowsChildren = up.knowsChildren && exact
	if n.owner == n {
		n.group.Put(usage.CPU, cpu)
	}
	return exact
}

// pathOf returns the path below the mount of a group that was born. The kernel names it from the
// machine's root, wherever this process is; where the mount shows a part of the hierarchy, the
// group's parent shows whether it belongs there.
func (tr *tree) pathOf(e *bpf.Event) (string, bool) {
	if tr.whole {
		return string(e.Path), true
	}
	parent := tr.byID[e.Parent]
	if parent == nil {
		return "", false
	}
	return path.Join(parent.paths[tr.index], path.Base(string(e.Path))), true
}

// read applies the rows of the walks and the counts.
func (r *kernel) read(t *Table) error {
	unknown := r.applyRows(t)
	r.applyCounts(t)
	r.releaseRemoved(t)
	switch {
	case !unknown:
		r.unknownSince = 0
	case r.unknownSince == 0:
		r.unknownSince = r.tick
	}
	if lost := r.k.Lost() - r.lost; lost > 0 || unknown && (r.searchedAt == 0 || r.tick >= r.searchedAt+t.cfg.Every) {
		if lost > 0 {
			r.log.Warn("missed births or deaths of groups; searching", "lost", lost)
		}
		t.lost += int64(lost)
		r.lost += lost
		r.searchedAt = r.tick
		if err := r.search(t); err != nil {
			return err
		}
		// The rows of their parents include their use, which would otherwise be booked
		// there.
		r.applyRows(t)
	}
	r.startUnwalked(t)
	return nil
}

// applyRows applies the rows not applied yet. It reports whether some belong to unknown
// groups.
func (r *kernel) applyRows(t *Table) (unknown bool) {
	for i, tr := range t.trees {
		rows := r.rows[i]
		for j := range rows {
			n := tr.byID[rows[j].ID]
			if n == nil {
				unknown = true
				continue
			}
			if n.lastSeen[i] != uint32(r.tick) && !n.dead {
				r.applyRow(t, tr, n, &rows[j])
			}
			n.lastSeen[i] = uint32(r.tick)
		}
	}
	return unknown
}

// startUnwalked sets the CPU time of groups that were created after the walk, and have no
// row, to zero, where they began. So the use of groups below them that have ended by now is
// subtracted from theirs at the next tick, not booked twice.
func (r *kernel) startUnwalked(t *Table) {
	cpu := t.byRole[roleCPU]
	for _, n := range t.workloads {
		if id := n.id[cpu.index]; n.group.New && !n.dead && id != 0 && id < fakeID && n != t.root && !n.group.Has.Has(usage.CPU) {
			n.group.Put(usage.CPU, 0)
		}
	}
}

func (r *kernel) applyRow(t *Table, tr *tree, n *node, row *bpf.Row) {
	g := &n.group.Reading
	if tr == t.byRole[roleCPU] && row.Has&bpf.HasCPU != 0 {
		n.walked, n.endedCPU = int64(row.CPU), 0
		if n.owner == n {
			g.Put(usage.CPU, n.walked)
		}
	}
	if n.owner != n || n == t.root {
		return
	}
	if tr == t.byRole[roleMemory] {
		putLevel(g, usage.Memory, row.Memory, row.Has&bpf.HasMemory != 0)
	}
	if tr == t.byRole[rolePIDs] {
		putLevel(g, usage.PIDs, uint64(row.PIDs), row.Has&bpf.HasPIDs != 0)
	}
}

// putLevel sets a level, or makes it absent: its controller may be disabled for a group at any time.
func putLevel(g *usage.Reading, r usage.Resource, v uint64, has bool) {
	if !has {
		g.Has &^= usage.SetOf(r)
		return
	}
	g.Put(r, int64(v))
}

// applyCounts adds each group's counts since the previous tick to the workload that it
// counts for.
func (r *kernel) applyCounts(t *Table) {
	disk := t.disk == diskBPF
	forks := r.k.Err(bpf.Forks) == nil
	for _, n := range t.workloads { // nothing counted means zero, not absent
		if n == t.root {
			continue
		}
		if forks && t.byRole[roleCPU] != nil && n.id[t.byRole[roleCPU].index] != 0 {
			n.group.Has |= usage.SetOf(usage.Processes)
			n.group.Counted |= usage.SetOf(usage.Processes)
		}
		// A group removed there may have existed for part of the tick.
		if io := t.byRole[roleIO]; disk && io != nil && (n.id[io.index] != 0 || n.removed[io.index]) {
			n.group.Has |= diskSet
			n.group.Own |= diskSet
			n.group.Counted |= diskSet
		}
	}
	for c := range r.k.Counts() {
		for _, tr := range t.trees {
			if tr.ID != c.Hierarchy {
				continue
			}
			if n := tr.byID[c.ID]; n != nil && n != t.root && n.owner != t.root {
				v := &n.owner.group.Value
				if forks && tr == t.byRole[roleCPU] {
					v[usage.Processes] += int64(c.Forks - n.counts.Forks)
				}
				if disk && tr == t.byRole[roleIO] {
					v[usage.DiskRead] += int64(c.ReadBytes - n.counts.ReadBytes)
					v[usage.DiskWritten] += int64(c.WrittenBytes - n.counts.WrittenBytes)
					v[usage.DiskReads] += int64(c.Reads - n.counts.Reads)
					v[usage.DiskWrites] += int64(c.Writes - n.counts.Writes)
				}
				n.rememberCounts(tr, t, &c.Counts)
			}
		}
	}
	if full := r.k.Full(); full != r.full {
		r.full = full
		r.log.Warn("too many groups to count processes and block I/O separately: some of it counts for system")
	}
}

var diskSet = usage.SetOf(usage.DiskRead, usage.DiskWritten, usage.DiskReads, usage.DiskWrites)

// rememberCounts stores the counts that were applied, by tree.
func (n *node) rememberCounts(tr *tree, t *Table, c *bpf.Counts) {
	if tr == t.byRole[roleCPU] {
		n.counts.Forks = c.Forks
	}
	if tr == t.byRole[roleIO] {
		n.counts.ReadBytes, n.counts.WrittenBytes = c.ReadBytes, c.WrittenBytes
		n.counts.Reads, n.counts.Writes = c.Reads, c.Writes
	}
}

// releaseRemoved frees the slots of groups that ended two ticks ago.
func (r *kernel) releaseRemoved(t *Table) {
	kept := t.removed[:0]
	for _, g := range t.removed {
		if t.ticks-g.tick < 2 {
			kept = append(kept, g)
			continue
		}
		if g.tr.byID[g.id] != g.n {
			continue // it has another path now
		}
		delete(g.tr.byID, g.id)
		if g.id < fakeID {
			r.k.Forget(g.tr.ID, g.id)
		}
	}
	clear(t.removed[len(kept):])
	t.removed = kept
}

// search finds births and deaths by comparing the known groups with the existing ones. A
// walk shows most of them; a group missing in the walk may be newer than it.
func (r *kernel) search(t *Table) error {
	for i, tr := range t.trees {
		walked := r.rows[i] != nil
		for id, n := range tr.byID {
			if n.removed[i] || n == t.root || walked && n.lastSeen[i] == uint32(r.tick) {
				continue
			}
			now, err := t.host.ID(tr.dir(n.paths[i]))
			if errors.Is(err, fault.ErrNotFound) || err == nil && now != id && id < fakeID {
				t.removeGroup(tr, n, false)
			}
		}
	}
	t.foundLate = r.unknownSince > 0 && r.unknownSince < r.tick
	defer func() { t.foundLate = false }()
	for _, tr := range t.trees {
		if err := t.scan(tr, "/"); err != nil {
			return err
		}
	}
	return nil
}

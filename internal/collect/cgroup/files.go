package cgroup

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// files reads groups through their files, with kept descriptors: that costs a fifteenth of
// opening the file each time.
type files struct {
	host *hostfs.FS
	log  *slog.Logger
	dirs *watches // nil if the kernel provides no directory events
	// incomplete is true if not all directories can be watched, so that none is.
	incomplete      bool
	maxPasses       int // how often at most a reading looks for groups created meanwhile
	maxDescriptors  int // descriptors that may be kept
	openDescriptors int
	tick            int
	buf             [4096]byte
}

func newFiles(h *hostfs.FS, cfg Config, log *slog.Logger) (*files, error) {
	f := &files{host: h, log: log, maxPasses: 4, maxDescriptors: cfg.Files}
	w, err := newWatches(h)
	switch {
	case errors.Is(err, fault.ErrUnavailable):
		log.Warn("no directory events: searching for groups every window", "err", err)
	case err != nil:
		return nil, err
	}
	f.dirs = w
	return f, nil
}

func (f *files) roles() []role        { return []role{roleCPU, roleMemory} }
func (f *files) identifiesByID() bool { return false }

func (f *files) countsRoot() bool { return false }

func (f *files) Close() error {
	if f.dirs == nil {
		return nil
	}
	return f.dirs.Close()
}

// watch watches a directory that the table found.
func (f *files) watch(t *Table, tr *tree, path string) {
	if f.dirs == nil || f.incomplete {
		return
	}
	if err := f.dirs.add(tr, path); err != nil && !errors.Is(err, fault.ErrNotFound) {
		f.log.Warn("no more directory events: searching for groups every window", "path", path, "err", err)
		f.incomplete = true
	}
}

// unwatch ends the watch of a removed directory.
func (f *files) unwatch(tr *tree, path string) {
	if f.dirs != nil {
		f.dirs.remove(tr, path)
	}
}

// followChanges applies the creation and removal of groups.
func (f *files) followChanges(t *Table) error {
	if f.tick == 0 && f.dirs != nil { // changes before the watch of the root
		for _, tr := range t.trees {
			f.watch(t, tr, "/")
			if err := t.scan(tr, "/"); err != nil {
				return err
			}
		}
	}
	if f.dirs == nil {
		if f.tick%max(1, t.cfg.Every) != 0 {
			return nil
		}
		t.foundLate = true // or at the previous tick, after its search
		defer func() { t.foundLate = false }()
		return f.search(t)
	}
	overflow, err := f.dirs.drain(func(tr *tree, path string, what change) error {
		if f.incomplete {
			return nil
		}
		return f.applyChange(t, tr, path, what)
	})
	if err != nil {
		return err
	}
	if overflow {
		t.lost++
	}
	if overflow || f.incomplete {
		err = f.search(t)
	}
	if f.incomplete {
		err = errors.Join(err, f.dirs.Close())
		f.dirs = nil
	}
	return err
}

// applyChange applies one event. It may be outdated: the current state of the directory
// decides.
func (f *files) applyChange(t *Table, tr *tree, path string, what change) error {
	id, err := f.host.ID(tr.dir(path))
	if what == removed || what == movedAway {
		if n := tr.byPath[path]; n != nil && (err != nil || id != n.id[tr.index]) {
			if what == movedAway {
				t.removeBelow(tr, path)
			}
			t.removeGroup(tr, n, false)
		}
		return nil
	}
	if what == movedHere { // its life began before
		t.foundLate = true
		defer func() { t.foundLate = false }()
	}
	if err != nil && f.host.Live() {
		return nil // removed again: its use is in its parent
	}
	if t.isParentReplaced(tr, path) {
		return nil // of the previous life of the parent, whose end is a later event
	}
	t.addGroup(tr, path, id)
	f.watch(t, tr, path)
	return t.scan(tr, path) // groups created in it before the watch
}

// search compares the known groups with the existing ones.
func (f *files) search(t *Table) error {
	for _, tr := range t.trees {
		for _, n := range tr.byPath {
			if n != t.root && f.isGone(n, tr) {
				t.removeGroup(tr, n, false)
			}
		}
	}
	for _, tr := range t.trees {
		if err := t.scan(tr, "/"); err != nil {
			return err
		}
	}
	return nil
}

// read reads CPU time and memory of every workload.
//
// The readings of a parent include the use of groups created since the last search. Such
// groups are found and read too; otherwise their use would be booked to the parent now, and
// to themselves at the next tick. A group found in the last pass starts with the next tick:
// until then its use counts for its parent.
func (f *files) read(t *Table) error {
	f.tick++
	done := 0
	for look := 0; done < len(t.workloads) && look < f.maxPasses; look++ {
		fresh := t.workloads[done:]
		done = len(t.workloads)
		f.readAll(t, fresh)
		if f.dirs == nil {
			break
		}
		if err := f.followChanges(t); err != nil {
			return err
		}
	}
	for _, n := range t.workloads[done:] {
		n.group.Born = false
	}
	if f.tick%max(1, t.cfg.Every) == 0 {
		f.assignDescriptors(t)
	}
	return nil
}

func (f *files) readAll(t *Table, nodes []*node) {
	cpu, memory := t.byRole[roleCPU], t.byRole[roleMemory]
	for _, n := range nodes {
		if n.group.Final {
			continue
		}
		if n.id[cpu.index] != 0 && !(n == t.root && cpu.V2 && cpu.whole) {
			f.readCPU(t, n, cpu)
		}
		if memory != nil && n.id[memory.index] != 0 && n != t.root && !n.dead {
			f.readMemory(t, n, memory)
		}
	}
}

func (f *files) readCPU(t *Table, n *node, tr *tree) {
	name := "/cpuacct.usage"
	if tr.V2 {
		name = "/cpu.stat"
	}
	b, err := f.pread(n, cpuFile, tr, name)
	if err == nil && tr.V2 {
		var c procfmt.CPU
		if c, err = procfmt.CPUStat(b); err == nil && !c.HasUsage {
			err = fmt.Errorf("%s: no usage_usec: %w", name, fault.ErrUnsupported)
		}
		if err == nil {
			putCPU(&n.group.Reading, c, true)
		}
	} else if err == nil {
		var v int64
		if v, err = procfmt.Int(b); err == nil {
			n.group.Put(usage.CPU, v)
		}
	}
	f.handleReadError(t, n, tr, usage.CPU, err)
	if v := n.group.Value[usage.CPU]; v != n.cpu {
		n.recentCPU += v - n.cpu
		n.cpu = v
	}
}

// putCPU stores the values of cpu.stat.
func putCPU(r *usage.Reading, c procfmt.CPU, used bool) {
	if used && c.HasUsage {
		r.Put(usage.CPU, c.Usage)
	}
	if c.HasUser && c.HasSystem {
		r.Put(usage.CPUUser, c.User)
		r.Put(usage.CPUSystem, c.System)
	}
	if c.HasThrottledTime {
		r.Put(usage.CPUThrottled, c.ThrottledTime)
	}
	if c.HasPeriods && c.HasThrottled {
		r.Put(usage.CPUPeriods, c.Periods)
		r.Put(usage.CPUThrottledPeriods, c.Throttled)
	}
}

func (f *files) readMemory(t *Table, n *node, tr *tree) {
	name := "/memory.usage_in_bytes"
	if tr.V2 {
		name = "/memory.current"
	}
	b, err := f.pread(n, memoryFile, tr, name)
	if err == nil {
		var v int64
		if v, err = procfmt.Int(b); err == nil {
			n.group.Put(usage.Memory, v)
		}
	}
	f.handleReadError(t, n, tr, usage.Memory, err)
}

// handleReadError handles the error of reading one group: ENODEV and the like end the
// group, any other error makes the resource absent.
func (f *files) handleReadError(t *Table, n *node, tr *tree, r usage.Resource, err error) {
	switch {
	case err == nil:
	case errors.Is(err, fault.ErrNotFound) && n != t.root && f.isGone(n, tr):
		t.removeGroup(tr, n, false)
	default:
		if n.group.Has.Has(r) || n.slowUnread {
			f.log.Debug("reading", "path", n.path, "resource", r.String(), "err", err)
		}
		n.group.Has &^= usage.SetOf(r)
		if r == usage.CPU {
			n.group.Born = false // its use until then counts for its parent
		}
	}
}

// isGone reports whether the group was removed from the tree or replaced.
func (f *files) isGone(n *node, tr *tree) bool {
	dir := tr.dir(n.paths[tr.index])
	if n.id[tr.index] >= fakeID {
		_, err := f.host.ReadDir(dir)
		return errors.Is(err, fault.ErrNotFound)
	}
	id, err := f.host.ID(dir)
	return errors.Is(err, fault.ErrNotFound) || err == nil && id != n.id[tr.index]
}

// pread reads one of a node's files, through a kept descriptor if allowed.
func (f *files) pread(n *node, which int, tr *tree, name string) ([]byte, error) {
	file := n.files[which]
	if file == nil {
		if f.dirs == nil && f.isGone(n, tr) {
			// Without events, the path may belong to another group already.
			return nil, fmt.Errorf("%s: %w", n.path, fault.ErrNotFound)
		}
		var err error
		if file, err = f.host.Open(tr.dir(n.paths[tr.index]) + name); err != nil {
			return nil, err
		}
		if n.noDescriptors || f.openDescriptors >= f.maxDescriptors {
			n.noDescriptors = true
			defer func() { _ = file.Close() }() // nothing was written
		} else {
			f.openDescriptors++
			n.files[which] = file
		}
	}
	k, err := file.Pread(f.buf[:])
	if err != nil {
		// The file may come back as a different one.
		n.closeFile(which)
		return nil, hostfs.Kind(name, err)
	}
	return f.buf[:k], nil
}

// assignDescriptors gives the descriptors to the busiest groups if there are not enough.
func (f *files) assignDescriptors(t *Table) {
	f.openDescriptors = 0
	short := false
	for _, n := range t.workloads {
		short = short || n.noDescriptors
		f.openDescriptors += countOpen(n)
	}
	if !short {
		return
	}
	byUse := slices.Clone(t.workloads)
	slices.SortFunc(byUse, func(a, b *node) int { return int(min(1, max(-1, b.recentCPU-a.recentCPU))) })
	for i, n := range byUse {
		n.recentCPU = 0
		if n.noDescriptors = 2*i+2 > f.maxDescriptors; n.noDescriptors {
			f.openDescriptors -= countOpen(n)
			n.closeFiles()
		}
	}
}

// countOpen returns how many descriptors n holds.
func countOpen(n *node) (k int) {
	for _, f := range n.files {
		if f != nil {
			k++
		}
	}
	return k
}

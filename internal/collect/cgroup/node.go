package cgroup

import (
	"errors"
	"path"

	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// maxTrees is how many hierarchies a table follows at once: one for each
// controller that it counts by.
const maxTrees = 4

// A tree is one hierarchy that is followed.
type tree struct {
	hostfs.Hierarchy
	index  int
	byPath map[string]*node
	byID   map[uint64]*node // nil where the reader goes by path
}

// dir is the directory of a group.
func (tr *tree) dir(path string) string {
	return joinPath(tr.Mount, path)
}

// joinPath is path.Join for a clean mount and a clean group path.
func joinPath(mount, group string) string {
	if group == "/" {
		return mount
	}
	return mount + group
}

// fakeID marks the id of a group whose real one is not known: of a captured
// machine without ids, or of a group that is only known as a parent. Ids of the
// kernel stay below.
const fakeID = 1 << 63

// A node is one life of a group, joined over hierarchies by its path, or by its
// key where the hierarchies are used at different depths.
type node struct {
	path           string           // in the primary tree
	parent         *node            // there
	paths          [maxTrees]string // its path in each tree, "" where it is not there
	id             [maxTrees]uint64 // its kernfs id in each tree, 0 where it is not there
	removed        [maxTrees]bool   // it was removed from the tree
	lastSeen       [maxTrees]int    // tick of the latest walk that saw it there
	primary        int              // the tree whose rmdir ends it
	owner          *node            // the workload that it counts for: itself, or one above
	parentWorkload *node            // of an owner, the workload that has it among its children
	children       int              // workloads directly below
	dead           bool
	reported       bool // it was in a snapshot, as it is now

	group       usage.Group // of an owner
	walked      int64       // CPU of the group and all below at the latest walk
	endedCPU    int64       // CPU of groups below that ended since
	hadChildren bool        // groups were below it
	counts      bpf.Counts

	cpu           int64 // latest cumulative CPU, for what moves
	slowMark      int64 // CPU plus memory when the slow set was read: what moves changes
	slowUnread    bool  // the slow set was never read
	files         [2]*hostfs.File
	noDescriptors bool // may not keep descriptors: others are busier
	recentCPU     int64
}

// workloadAbove is the nearest living workload above n.
func (n *node) workloadAbove() *node {
	p := n.parent
	for p.parent != nil && p.owner.dead {
		p = p.parent
	}
	return p.owner
}

// depth is how many groups are above n.
func (n *node) depth() (d int) {
	for ; n.parent != nil; n = n.parent {
		d++
	}
	return d
}

// findAll finds the groups that are there, the root first.
func (t *Table) findAll() error {
	t.root = &node{path: "/"}
	t.root.group = usage.Group{Slot: t.slot(t.root), Parent: usage.NoSlot, MemoryParent: usage.NoSlot, New: true}
	t.root.owner = t.root
	t.root.group.Workload = workload.Workload{ID: workload.NewID(t.cfg.Node, workload.System, ""),
		Kind: workload.System, Name: "system", Path: "/"}
	t.workloads = append(t.workloads, t.root)
	for i := len(t.trees) - 1; i >= 0; i-- {
		tr := t.trees[i]
		id, err := t.host.ID(tr.Mount)
		if err != nil && !errors.Is(err, fault.ErrNotFound) {
			return err
		}
		t.attach(t.root, tr, "/", id)
		t.root.primary = tr.index
	}
	t.root.group.Life = t.life(t.root)
	for _, tr := range t.trees {
		if err := t.scan(tr, "/"); err != nil {
			return err
		}
	}
	return nil
}

// scan finds the groups below path that are not known yet. One that vanishes
// meanwhile is no error.
func (t *Table) scan(tr *tree, at string) error {
	entries, err := t.host.ReadDir(tr.dir(at))
	switch {
	case errors.Is(err, fault.ErrNotFound):
		return nil
	case errors.Is(err, fault.ErrDenied) && at != "/":
		t.log.Debug("group cannot be listed", "path", at, "err", err)
		return nil
	case err != nil:
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		p := path.Join(at, e.Name())
		id, err := t.host.ID(tr.dir(p))
		if err != nil && t.host.Live() {
			continue // it has just gone
		}
		t.addGroup(tr, p, id)
		if w, ok := t.reader.(watcher); ok {
			w.watch(t, tr, p)
		}
		if err := t.scan(tr, p); err != nil {
			return err
		}
	}
	return nil
}

// A watcher wants to know each directory that is found, and that is gone.
type watcher interface {
	watch(t *Table, tr *tree, path string)
	unwatch(tr *tree, path string)
}

// addGroup takes note of a group in a tree. It returns the node.
func (t *Table) addGroup(tr *tree, p string, id uint64) *node {
	n := tr.byPath[p]
	switch {
	case n == nil:
	case id == 0 || n.id[tr.index] == id:
		return n
	case n.id[tr.index] >= fakeID:
		t.identify(n, tr, id)
		return n
	default:
		// Another life under the old path: the end of the one before was missed.
		t.lost++
		t.log.Debug("life replaced", "path", p, "tree", tr.Mount, "had", n.id[tr.index], "now", id)
		t.removeGroup(tr, n, false)
	}
	parent := tr.byPath[path.Dir(p)]
	if parent == nil {
		// Its birth was missed, or it is being removed already.
		parent = t.addGroup(tr, path.Dir(p), 0)
	}
	if n = t.findInOtherTree(tr, p); n != nil {
		t.attach(n, tr, p, id)
		return n
	}
	n = &node{path: p, parent: parent, primary: tr.index, slowUnread: true}
	t.attach(n, tr, p, id)
	t.identifyWorkload(n)
	return n
}

// identify gives a node the real id for a fake one.
func (t *Table) identify(n *node, tr *tree, id uint64) {
	if tr.byID != nil {
		delete(tr.byID, n.id[tr.index])
		tr.byID[id] = n
	}
	n.id[tr.index] = id
	if n.owner == n && n.group.New {
		n.group.Life = t.life(n)
	}
}

// findInOtherTree finds the node of the group that is at p in a tree, if it is known
// from another one: under the same path, or as the same keyed workload.
func (t *Table) findInOtherTree(tr *tree, p string) *node {
	for _, other := range t.trees {
		if n := other.byPath[p]; n != nil && !n.dead && n.id[tr.index] == 0 {
			return n
		}
	}
	if name, ok := workload.Recognize(p); ok && name.Key != "" {
		if n := t.byKey[key{name.Kind, name.Key}]; n != nil && n.id[tr.index] == 0 {
			return n
		}
	}
	return nil
}

// A key tells a workload whose maker gave it a name of its own.
type key struct {
	kind workload.Kind
	key  string
}

// attach gives n a life in a tree. Of several trees the first, by role, names the
// life and says when it ends.
func (t *Table) attach(n *node, tr *tree, p string, id uint64) {
	if id == 0 {
		t.fakeIDs++
		id = fakeID | t.fakeIDs
	}
	n.id[tr.index], n.paths[tr.index], n.removed[tr.index] = id, p, false
	tr.byPath[p] = n
	if tr.byID != nil {
		tr.byID[id] = n
	}
	if tr.index < n.primary && n != t.root {
		n.primary, n.path, n.parent = tr.index, p, tr.byPath[path.Dir(p)]
		if n.group.New {
			n.group.Life = t.life(n)
		}
		t.needsSort = true
	}
	if n.owner == n && n != t.root {
		t.setParents(n)
	}
}

// setParents tells the group where it stands: below what in the tree that names it,
// and below what in the memory hierarchy, where that is used at another depth.
func (t *Table) setParents(n *node) {
	up := n.workloadAbove()
	if n.parentWorkload != up {
		if n.parentWorkload != nil {
			n.parentWorkload.children--
		}
		up.children++
		n.parentWorkload = up
	}
	n.group.Parent, n.group.MemoryParent = up.group.Slot, up.group.Slot
	if mem := t.byRole[roleMemory]; mem != nil && n.paths[mem.index] != "" {
		p := mem.byPath[path.Dir(n.paths[mem.index])]
		switch {
		case p == nil:
		case p.owner.dead:
			n.group.MemoryParent = p.workloadAbove().group.Slot
		case p.owner != n:
			n.group.MemoryParent = p.owner.group.Slot
		}
	}
}

// identifyWorkload finds out which workload n counts for.
func (t *Table) identifyWorkload(n *node) {
	name, ok := workload.Recognize(n.path)
	if !ok {
		if up := n.workloadAbove(); up.group.Workload.Kind != workload.System && up.group.Workload.Kind != workload.Path {
			n.owner = up
			return
		}
		name = workload.NameFromPath(n.path)
	}
	n.owner = n
	n.group = usage.Group{Slot: t.slot(n), New: true, Born: !t.first && !t.foundLate, Life: t.life(n),
		Workload: name.Workload(t.cfg.Node, t.cfg.Boot, n.path)}
	t.setParents(n)
	if name.Key != "" {
		t.byKey[key{name.Kind, name.Key}] = n
	}
	t.workloads = append(t.workloads, n)
}

func (t *Table) life(n *node) workload.Life {
	return workload.Life{Hierarchy: t.trees[n.primary].ID, ID: n.id[n.primary]}
}

// slot gives n a free slot.
func (t *Table) slot(n *node) usage.Slot {
	if k := len(t.free) - 1; k >= 0 {
		s := t.free[k]
		t.free = t.free[:k]
		t.bySlot[s] = n
		return s
	}
	t.bySlot = append(t.bySlot, n)
	return usage.Slot(len(t.bySlot) - 1)
}

// removeGroup takes note that a group of a tree was removed.
func (t *Table) removeGroup(tr *tree, n *node, exact bool) {
	if n.removed[tr.index] || n == t.root {
		return
	}
	n.removed[tr.index] = true
	if p := n.paths[tr.index]; tr.byPath[p] == n {
		delete(tr.byPath, p)
		if w, ok := t.reader.(watcher); ok {
			w.unwatch(tr, p)
		}
	}
	if tr.byID != nil {
		t.removed = append(t.removed, removedGroup{tr, n, n.id[tr.index], t.ticks})
	}
	switch {
	case n.dead:
	case tr.index == n.primary:
		t.endNode(n, exact)
	default:
		n.id[tr.index], n.paths[tr.index] = 0, ""
		n.clearReadings(t, tr)
	}
}

// clearReadings makes absent what a node's group in a tree showed.
func (n *node) clearReadings(t *Table, tr *tree) {
	if tr == t.byRole[roleMemory] {
		n.group.Has &^= usage.SetOf(usage.Memory)
		n.closeFile(memoryFile)
	}
	if tr == t.byRole[rolePIDs] {
		n.group.Has &^= usage.SetOf(usage.PIDs)
	}
}

// endNode closes a node's life. Its group is in the coming snapshot for the last
// time. What is left of it in other trees goes in its own time.
func (t *Table) endNode(n *node, exact bool) {
	n.dead, n.reported = true, false
	n.closeFiles()
	if n.owner != n {
		return
	}
	n.group.Final, n.group.Exact = true, exact
	n.parentWorkload.children--
	if name, ok := workload.Recognize(n.path); ok && t.byKey[key{name.Kind, name.Key}] == n {
		delete(t.byKey, key{name.Kind, name.Key})
	}
}

// A removedGroup is a group that was removed, kept a little for what is counted for it
// after its end.
type removedGroup struct {
	tr   *tree
	n    *node
	id   uint64
	tick int
}

// The places of a node's descriptors.
const (
	cpuFile = iota
	memoryFile
)

func (n *node) closeFiles() {
	n.closeFile(cpuFile)
	n.closeFile(memoryFile)
}

func (n *node) closeFile(which int) {
	if f := n.files[which]; f != nil {
		_ = f.Close() // it was only read
		n.files[which] = nil
	}
}

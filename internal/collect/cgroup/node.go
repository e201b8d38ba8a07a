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
	return join(tr.Mount, path)
}

// join is path.Join for a clean mount and a clean group path.
func join(mount, group string) string {
	if group == "/" {
		return mount
	}
	return mount + group
}

// fake marks the id of a group whose real one is not known: of a captured
// machine without ids, or of a group that is only known as a parent. Ids of the
// kernel stay below.
const fake = 1 << 63

// A node is one life of a group, joined over hierarchies by its path, or by its
// key where the hierarchies are used at different depths.
type node struct {
	path    string           // in the primary tree
	parent  *node            // there
	at      [maxTrees]string // its path in each tree, "" where it is not there
	id      [maxTrees]uint64 // its kernfs id in each tree, 0 where it is not there
	left    [maxTrees]bool   // it was removed from the tree
	stamp   [maxTrees]int    // tick of the latest walk that saw it there
	primary int              // the tree whose rmdir ends it
	owner   *node            // the workload that it counts for: itself, or one above
	under   *node            // of an owner, the workload that has it among its kids
	kids    int              // workloads directly below
	dead    bool
	told    bool // it was in a snapshot, as it is now

	group  usage.Group // of an owner
	walked int64       // CPU of the group and all below at the latest walk
	tail   int64       // CPU of groups below that ended since
	had    bool        // groups were below it
	counts bpf.Counts

	cpu   int64 // latest cumulative CPU, for what moves
	slow  int64 // CPU plus memory when the slow set was read: what moves changes
	fresh bool  // the slow set was never read
	files [2]*hostfs.File
	spare bool // may not keep descriptors: others are busier
	busy  int64
}

// over is the nearest living workload above n.
func (n *node) over() *node {
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

// seed finds the groups that are there, the root first.
func (t *Table) seed() error {
	t.root = &node{path: "/"}
	t.root.group = usage.Group{Slot: t.slot(t.root), Parent: usage.NoSlot, MemoryParent: usage.NoSlot, New: true}
	t.root.owner = t.root
	t.root.group.Workload = workload.Workload{ID: workload.NewID(t.cfg.Node, workload.System, ""),
		Kind: workload.System, Name: "system", Path: "/"}
	t.live = append(t.live, t.root)
	for i := len(t.trees) - 1; i >= 0; i-- {
		tr := t.trees[i]
		id, err := t.host.ID(tr.Mount)
		if err != nil && !errors.Is(err, fault.ErrNotFound) {
			return err
		}
		t.join(t.root, tr, "/", id)
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
		t.born(tr, p, id)
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

// born takes note of a group in a tree. It returns the node.
func (t *Table) born(tr *tree, p string, id uint64) *node {
	n := tr.byPath[p]
	switch {
	case n == nil:
	case id == 0 || n.id[tr.index] == id:
		return n
	case n.id[tr.index] >= fake:
		t.identify(n, tr, id)
		return n
	default:
		// Another life under the old path: the end of the one before was missed.
		t.lost++
		t.log.Debug("life replaced", "path", p, "tree", tr.Mount, "had", n.id[tr.index], "now", id)
		t.died(tr, n, false)
	}
	parent := tr.byPath[path.Dir(p)]
	if parent == nil {
		// Its birth was missed, or it is being removed already.
		parent = t.born(tr, path.Dir(p), 0)
	}
	if n = t.elsewhere(tr, p); n != nil {
		t.join(n, tr, p, id)
		return n
	}
	n = &node{path: p, parent: parent, primary: tr.index, fresh: true}
	t.join(n, tr, p, id)
	t.name(n)
	return n
}

// identify gives a node the real id for a faked one.
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

// elsewhere finds the node of the group that is at p in a tree, if it is known
// from another one: under the same path, or as the same keyed workload.
func (t *Table) elsewhere(tr *tree, p string) *node {
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

// join gives n a life in a tree. Of several trees the first, by role, names the
// life and says when it ends.
func (t *Table) join(n *node, tr *tree, p string, id uint64) {
	if id == 0 {
		t.faked++
		id = fake | t.faked
	}
	n.id[tr.index], n.at[tr.index], n.left[tr.index] = id, p, false
	tr.byPath[p] = n
	if tr.byID != nil {
		tr.byID[id] = n
	}
	if tr.index < n.primary && n != t.root {
		n.primary, n.path, n.parent = tr.index, p, tr.byPath[path.Dir(p)]
		if n.group.New {
			n.group.Life = t.life(n)
		}
		t.moved = true
	}
	if n.owner == n && n != t.root {
		t.place(n)
	}
}

// place tells the group where it stands: below what in the tree that names it,
// and below what in the memory hierarchy, where that is used at another depth.
func (t *Table) place(n *node) {
	up := n.over()
	if n.under != up {
		if n.under != nil {
			n.under.kids--
		}
		up.kids++
		n.under = up
	}
	n.group.Parent, n.group.MemoryParent = up.group.Slot, up.group.Slot
	if mem := t.byRole[roleMemory]; mem != nil && n.at[mem.index] != "" {
		p := mem.byPath[path.Dir(n.at[mem.index])]
		switch {
		case p == nil:
		case p.owner.dead:
			n.group.MemoryParent = p.over().group.Slot
		case p.owner != n:
			n.group.MemoryParent = p.owner.group.Slot
		}
	}
}

// name finds out which workload n counts for.
func (t *Table) name(n *node) {
	name, ok := workload.Recognize(n.path)
	if !ok {
		if up := n.over(); up.group.Workload.Kind != workload.System && up.group.Workload.Kind != workload.Path {
			n.owner = up
			return
		}
		name = workload.ByPath(n.path)
	}
	n.owner = n
	n.group = usage.Group{Slot: t.slot(n), New: true, Born: !t.first && !t.late, Life: t.life(n),
		Workload: name.Workload(t.cfg.Node, t.cfg.Boot, n.path)}
	t.place(n)
	if name.Key != "" {
		t.byKey[key{name.Kind, name.Key}] = n
	}
	t.live = append(t.live, n)
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

// died takes note that a group of a tree was removed.
func (t *Table) died(tr *tree, n *node, exact bool) {
	if n.left[tr.index] || n == t.root {
		return
	}
	n.left[tr.index] = true
	if p := n.at[tr.index]; tr.byPath[p] == n {
		delete(tr.byPath, p)
		if w, ok := t.reader.(watcher); ok {
			w.unwatch(tr, p)
		}
	}
	if tr.byID != nil {
		t.graves = append(t.graves, grave{tr, n, n.id[tr.index], t.ticks})
	}
	switch {
	case n.dead:
	case tr.index == n.primary:
		t.end(n, exact)
	default:
		n.id[tr.index], n.at[tr.index] = 0, ""
		n.lose(t, tr)
	}
}

// lose makes absent what a node's group in a tree showed.
func (n *node) lose(t *Table, tr *tree) {
	if tr == t.byRole[roleMemory] {
		n.group.Has &^= usage.SetOf(usage.Memory)
		n.closeFile(memoryFile)
	}
	if tr == t.byRole[rolePIDs] {
		n.group.Has &^= usage.SetOf(usage.PIDs)
	}
}

// end closes a node's life. Its group is in the coming snapshot for the last
// time. What is left of it in other trees goes in its own time.
func (t *Table) end(n *node, exact bool) {
	n.dead, n.told = true, false
	n.closeFiles()
	if n.owner != n {
		return
	}
	n.group.Final, n.group.Exact = true, exact
	n.under.kids--
	if name, ok := workload.Recognize(n.path); ok && t.byKey[key{name.Kind, name.Key}] == n {
		delete(t.byKey, key{name.Kind, name.Key})
	}
}

// A grave is a group that was removed, kept a little for what is counted for it
// after its end.
type grave struct {
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

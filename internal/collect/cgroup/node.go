package cgroup

import (
	"errors"
	"path"
	"slices"
	"strings"

	"mete.dev/mete/internal/collect/disk"
	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// maxTrees is how many hierarchies a table follows at most: one for each controller in use.
const maxTrees = 4

// A tree is one followed hierarchy.
type tree struct {
	hostfs.Hierarchy
	index  int
	whole  bool // it is mounted from the machine's root group
	byPath map[string]*node
	byID   map[uint64]*node // nil if the reader identifies groups by path
}

// dir returns the directory of a group.
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

// fakeID marks the id of a group whose real id is unknown: on a captured machine without
// ids, or of a group known as a parent only. Kernel ids are lower.
const fakeID = 1 << 63

// A node is one life of a group, matched across hierarchies by its path, or by its key if
// the hierarchies are used at different depths. There is one for each group, so its size counts: what takes
// a byte stands together.
type node struct {
	path       string           // in the primary tree
	parent     *node            // there
	paths      [maxTrees]string // its path in each tree, "" if it is not in the tree
	id         [maxTrees]uint64 // its kernfs id in each tree, 0 if it is not in the tree
	removed    [maxTrees]bool   // it was removed from the tree
	dead       bool
	reported   bool // it was in a booked snapshot in its current state
	slowUnread bool // the slow set was never read
	// knowsChildren is whether childrenCPU is complete, unless the kernel has dropped events
	// since it had dropped lostBefore of them.
	knowsChildren  bool
	lastSeen       [maxTrees]uint32 // tick of the latest walk that saw it in the tree
	owner          *node            // the workload that it counts for: itself or an ancestor
	parentWorkload *node            // of an owner, its parent among the workloads
	children       int32            // workloads directly below
	primary        int8             // the tree whose rmdir ends it
	noDescriptors  bool             // others are busier and get the descriptors

	group  usage.Group // of an owner
	walked int64       // CPU of the group and all groups below it at the latest walk
	// Of ended groups directly below it: endedCPU is what they used between the latest walk
	// and their ends, and childrenCPU is all that they ever used.
	endedCPU, childrenCPU int64
	lostBefore            uint64 // see knowsChildren
	counts                bpf.Counts
	disk                  disk.Totals

	cpu       int64 // latest cumulative CPU, to detect activity
	slowMark  int64 // CPU plus memory when the slow set was read, to detect activity
	files     [2]*hostfs.File
	recentCPU int64
}

// workloadAbove returns the nearest living workload above n.
func (n *node) workloadAbove() *node {
	p := n.parent
	for p.parent != nil && p.owner.dead {
		p = p.parent
	}
	return p.owner
}

// depth returns how many groups are above n.
func (n *node) depth() (d int) {
	for ; n.parent != nil; n = n.parent {
		d++
	}
	return d
}

// findAll finds the existing groups, the root first.
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
		t.root.primary = int8(tr.index)
	}
	t.root.group.Life = t.life(t.root)
	for _, tr := range t.trees {
		if err := t.scan(tr, "/"); err != nil {
			return err
		}
	}
	return nil
}

// scan finds unknown groups below path. A group that vanishes meanwhile is not an error.
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
			continue // it was just removed
		}
		if n := tr.byPath[p]; (n == nil || n.id[tr.index] != id) && t.isParentReplaced(tr, p) {
			return nil // a later event or search finds the new life with its groups
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

// isParentReplaced reports whether another life has the path of the known parent of the group
// at p. A group that was read at p belongs to that life: below the known one its use would
// count twice.
func (t *Table) isParentReplaced(tr *tree, p string) bool {
	at := path.Dir(p)
	n := tr.byPath[at]
	if n == nil || n == t.root || n.id[tr.index] >= fakeID {
		return false
	}
	id, err := t.host.ID(tr.dir(at))
	return err != nil || id != n.id[tr.index]
}

// A watcher is notified of each directory that is found or gone.
type watcher interface {
	watch(t *Table, tr *tree, path string)
	unwatch(tr *tree, path string)
}

// addGroup adds a group of a tree and returns its node.
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
		// A new life under an old path: the end of the previous one was missed.
		t.lost++
		t.log.Debug("life replaced", "path", p, "tree", tr.Mount, "had", n.id[tr.index], "now", id)
		t.removeGroup(tr, n, false)
	}
	parent := tr.byPath[path.Dir(p)]
	if parent == nil {
		// The parent's birth was missed, or its removal has begun.
		parent = t.addGroup(tr, path.Dir(p), 0)
	}
	if n = t.findInOtherTree(tr, p); n != nil {
		t.attach(n, tr, p, id)
		return n
	}
	n = &node{path: p, parent: parent, primary: int8(tr.index), slowUnread: true}
	t.attach(n, tr, p, id)
	t.identifyWorkload(n)
	return n
}

// identify replaces a node's fake id by the real one.
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

// findInOtherTree finds the node of the group at path p of tr if another tree has it: under
// the same path, or as the same keyed workload.
func (t *Table) findInOtherTree(tr *tree, p string) *node {
	for _, other := range t.trees {
		if n := other.byPath[p]; n != nil && !n.dead && n.id[tr.index] == 0 {
			return n
		}
	}
	if len(t.trees) == 1 {
		return nil
	}
	if name, ok := t.recognize(tr, p); ok && name.Key != "" {
		if n := t.byKey[key{name.Kind, name.Key}]; n != nil && n.id[tr.index] == 0 {
			return n
		}
	}
	return nil
}

// A key identifies a workload that its maker named.
type key struct {
	kind workload.Kind
	key  string
}

// attach gives n a life in a tree. Of several trees the first, by role, identifies the life
// and its end.
func (t *Table) attach(n *node, tr *tree, p string, id uint64) {
	if id == 0 {
		t.fakeIDs++
		id = fakeID | t.fakeIDs
	}
	t.uncountedStale = true
	n.id[tr.index], n.paths[tr.index], n.removed[tr.index] = id, p, false
	tr.byPath[p] = n
	if tr.byID != nil {
		tr.byID[id] = n
	}
	if tr.index < int(n.primary) && n != t.root {
		n.primary, n.path, n.parent = int8(tr.index), p, tr.byPath[path.Dir(p)]
		if n.group.New {
			n.group.Life, n.group.Workload.Path = t.life(n), p
		}
		t.needsSort = true
	}
	if n.owner == n && n != t.root {
		t.setParents(n)
	}
	if tr == t.byRole[roleCPU] { // from now on the kernel counts it, see AddCPU
		n.group.Apportioned &^= usage.SetOf(usage.CPU)
		n.group.Counted &^= usage.SetOf(usage.CPU)
	}
}

// setParents sets the group's parent in its primary tree, and in the memory hierarchy if
// that has another structure.
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

// identifyWorkload determines the workload that n counts for.
func (t *Table) identifyWorkload(n *node) {
	name, ok := t.recognize(t.trees[n.primary], n.path)
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

// removeGroup handles the removal of a group from a tree.
func (t *Table) removeGroup(tr *tree, n *node, exact bool) {
	if n.removed[tr.index] || n == t.root {
		return
	}
	t.uncountedStale = true
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
	case tr.index == int(n.primary):
		t.endNode(n, exact)
	default:
		n.id[tr.index], n.paths[tr.index] = 0, ""
		n.clearReadings(t, tr)
	}
}

// renameGroup gives a group of a tree, and so those below it, another path: for the accounts
// they end, and others are found. Their use since the latest tick stays above them.
func (t *Table) renameGroup(tr *tree, n *node, p string) error {
	id := n.id[tr.index]
	t.removeBelow(tr, n.paths[tr.index])
	t.removeGroup(tr, n, false)
	t.foundLate = true
	defer func() { t.foundLate = false }()
	t.addGroup(tr, p, id)
	return t.scan(tr, p)
}

// removeBelow handles the removal of all groups below a path from a tree.
func (t *Table) removeBelow(tr *tree, p string) {
	var below []*node
	for at, n := range tr.byPath {
		if strings.HasPrefix(at, p+"/") {
			below = append(below, n)
		}
	}
	slices.SortFunc(below, func(a, b *node) int { return len(b.paths[tr.index]) - len(a.paths[tr.index]) })
	for _, n := range below {
		t.removeGroup(tr, n, false)
	}
}

// clearReadings makes the readings of a node's group in a tree absent.
func (n *node) clearReadings(t *Table, tr *tree) {
	if tr == t.byRole[roleMemory] {
		n.group.Has &^= usage.SetOf(usage.Memory)
		n.closeFile(memoryFile)
	}
	if tr == t.byRole[rolePIDs] {
		n.group.Has &^= usage.SetOf(usage.PIDs)
	}
}

// endNode ends a node's life. Its group is in the next snapshot for the last time. Its
// groups in other trees are removed on their own.
func (t *Table) endNode(n *node, exact bool) {
	n.dead, n.reported = true, false
	n.closeFiles()
	if n.owner != n {
		return
	}
	n.group.Final, n.group.Exact = true, exact
	n.parentWorkload.children--
	if k := (key{n.group.Workload.Kind, n.group.Workload.Key}); t.byKey[k] == n {
		delete(t.byKey, k)
	}
}

// A removedGroup is a removed group, kept for a while for late counts.
type removedGroup struct {
	tr   *tree
	n    *node
	id   uint64
	tick int
}

// Indexes of a node's descriptors.
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
		_ = f.Close() // nothing was written
		n.files[which] = nil
	}
}

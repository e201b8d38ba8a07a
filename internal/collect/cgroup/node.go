package cgroup

import (
	"errors"
	"path"

	"mete.dev/mete/internal/bpf"
	"mete.dev/mete/internal/fault"
	"mete.dev/mete/internal/host"
	"mete.dev/mete/internal/meter"
	"mete.dev/mete/internal/workload"
)

// maxTrees is how many hierarchies a table follows at once: one for each
// controller that it counts by.
const maxTrees = 4

// A tree is one hierarchy that is followed.
type tree struct {
	host.Hierarchy
	index int
	byID  map[uint64]*node // nil where the reader goes by path
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

// A node is one life of a group, joined over hierarchies by its path.
type node struct {
	path    string
	parent  *node
	id      [maxTrees]uint64 // kernfs id in each tree, 0 where it is not there
	primary int              // the tree whose rmdir ends it
	owner   *node            // the workload that it counts for: itself, or one above
	kids    int              // workloads directly below
	dead    bool

	group  meter.Group // of an owner
	walked int64       // CPU of the group and all below at the latest walk
	tail   int64       // CPU of groups below that ended since
	had    bool        // groups were below it
	stamp  int         // tick of the latest walk that saw it
	counts bpf.Counts

	cpu   int64 // latest cumulative CPU, for what moves
	slow  int64 // CPU plus memory when the slow set was read: what moves changes
	fresh bool  // the slow set was never read
	files [2]*host.File
	spare bool // may not keep descriptors: others are busier
	busy  int64
}

// seed finds the groups that are there, the root first.
func (t *Table) seed() error {
	t.root = &node{path: "/", group: meter.Group{Slot: t.slot(), Parent: meter.NoSlot, New: true}}
	t.root.owner = t.root
	t.root.group.Workload = workload.Workload{ID: workload.NewID(t.cfg.Node, workload.System, ""),
		Kind: workload.System, Name: "system", Path: "/"}
	t.byPath["/"] = t.root
	t.live = append(t.live, t.root)
	for i := len(t.trees) - 1; i >= 0; i-- {
		tr := t.trees[i]
		id, err := t.host.ID(tr.Mount)
		if err != nil && !errors.Is(err, fault.ErrNotFound) {
			return err
		}
		t.join(t.root, tr, id)
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

// A watcher wants to know each directory that is found.
type watcher interface {
	watch(t *Table, tr *tree, path string)
}

// born takes note of a group in a tree. It returns the node.
func (t *Table) born(tr *tree, p string, id uint64) *node {
	n := t.byPath[p]
	if n != nil && n.id[tr.index] != 0 {
		if n.id[tr.index] == id || id == 0 {
			return n
		}
		// Another life under the old path: the end of the one before was missed.
		if n.primary == tr.index {
			t.lost++
			t.end(n, false)
			n = nil
		} else {
			n.id[tr.index] = 0
		}
	}
	if n != nil {
		t.join(n, tr, id)
		return n
	}
	parent := t.byPath[path.Dir(p)]
	if parent == nil {
		// Its birth was missed, or it is being removed already.
		parent = t.born(tr, path.Dir(p), 0)
	}
	n = &node{path: p, parent: parent, primary: tr.index, fresh: true}
	t.byPath[p] = n
	t.join(n, tr, id)
	t.name(n)
	return n
}

// join gives n a life in a tree. Of several trees the first, by role, names the
// life and says when it ends.
func (t *Table) join(n *node, tr *tree, id uint64) {
	if id == 0 {
		// A captured machine without ids: any number that is not used twice.
		t.faked++
		id = 1<<63 | t.faked
	}
	n.id[tr.index] = id
	if tr.byID != nil {
		tr.byID[id] = n
	}
	if tr.index < n.primary {
		n.primary = tr.index
		if n.group.New {
			n.group.Life = t.life(n)
		}
	}
}

// name finds out which workload n counts for.
func (t *Table) name(n *node) {
	name, ok := workload.Recognize(n.path)
	if !ok {
		if up := n.parent.owner; up.group.Workload.Kind != workload.System && up.group.Workload.Kind != workload.Path {
			n.owner = up
			return
		}
		name = workload.ByPath(n.path)
	}
	n.owner = n
	n.group = meter.Group{Slot: t.slot(), Parent: n.parent.owner.group.Slot, New: true, Born: !t.first,
		Workload: name.Workload(t.cfg.Node, t.cfg.Boot, n.path)}
	n.group.Life = t.life(n)
	t.live = append(t.live, n)
	n.parent.owner.kids++
}

func (t *Table) life(n *node) workload.Life {
	return workload.Life{Hierarchy: t.trees[n.primary].ID, ID: n.id[n.primary]}
}

// slot returns a free slot.
func (t *Table) slot() meter.Slot {
	if k := len(t.free) - 1; k >= 0 {
		s := t.free[k]
		t.free = t.free[:k]
		return s
	}
	t.slots++
	return t.slots - 1
}

// died takes note that a group of a tree was removed.
func (t *Table) died(tr *tree, n *node, exact bool) {
	if n.dead {
		return
	}
	if tr.index == n.primary {
		t.end(n, exact)
		return
	}
	n.id[tr.index] = 0
	if n.owner == n && tr == t.byRole[roleMemory] {
		n.group.Has &^= meter.SetOf(meter.Memory)
	}
}

// end closes a node's life. Its group is in the coming snapshot for the last
// time.
func (t *Table) end(n *node, exact bool) {
	n.dead = true
	if t.byPath[n.path] == n {
		delete(t.byPath, n.path)
	}
	n.closeFiles()
	if n.owner == n {
		n.group.Final, n.group.Exact = true, exact
		n.parent.owner.kids--
	}
}

func (n *node) closeFiles() {
	for i, f := range n.files {
		if f != nil {
			_ = f.Close()
			n.files[i] = nil
		}
	}
}

package cgroup

import "strings"

// Entries counts what a table holds of the groups below a path: workloads,
// entries by path, id and key, removed groups and watches.
func (t *Table) Entries(below string) (k int) {
	in := func(path string) {
		if strings.HasPrefix(path, below+"/") {
			k++
		}
	}
	for _, n := range t.workloads {
		in(n.path)
	}
	for _, n := range t.bySlot {
		if n != nil {
			in(n.path)
		}
	}
	for _, n := range t.byKey {
		in(n.path)
	}
	for _, g := range t.removed {
		in(g.n.path)
	}
	for _, tr := range t.trees {
		for p := range tr.byPath {
			in(p)
		}
		for _, n := range tr.byID {
			in(n.path)
		}
	}
	if f, ok := t.reader.(*files); ok && f.dirs != nil {
		for _, at := range f.dirs.dirOf {
			in(at.path)
		}
		for at := range f.dirs.watchOf {
			in(at.path)
		}
	}
	return k
}

// SlotsLost is how many slots are neither taken nor free.
func (t *Table) SlotsLost() int { return len(t.bySlot) - len(t.workloads) - len(t.free) - len(t.freed) }

// ByName says whether what a group used up to its end is booked to itself.
func (t *Table) ByName() bool { return t.reader.identifiesByID() }

// Kept is how many descriptors are kept for each group.
func (t *Table) Kept() map[string]int {
	kept := map[string]int{}
	for _, n := range t.workloads {
		if k := countOpen(n); k > 0 {
			kept[n.path] = k
		}
	}
	return kept
}

// Blind takes the directory events away, as where the kernel has no more.
func (t *Table) Blind() { t.reader.(*files).incomplete = true }

// BeforeReading has f called after the first look for groups that were made,
// before those that are known are read. Each reading then looks so often again.
func (t *Table) BeforeReading(looks int, f func()) {
	r := t.reader.(*files)
	r.maxPasses = looks
	t.reader = &interrupted{r, f}
}

type interrupted struct {
	*files
	f func()
}

func (i *interrupted) read(t *Table) error {
	i.f()
	return i.files.read(t)
}

// AfterWalk has f called after each walk, before births and deaths are taken over.
func (t *Table) AfterWalk(f func()) { t.reader = &walked{t.reader.(*kernel), f} }

type walked struct {
	*kernel
	f func()
}

func (w *walked) followChanges(t *Table) error {
	if err := w.walk(t); err != nil {
		return err
	}
	w.f()
	w.drain(t)
	return nil
}

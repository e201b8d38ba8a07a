package cgroup

import (
	"fmt"
	"os"
	"strings"
)

// Entries counts what a table holds of the groups below a path: workloads, entries by path,
// id and key, removed groups and watches.
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

// Watches returns how many directories a table with the files reader watches, and how many the kernel watches for it.
func (t *Table) Watches() (known, watched int) {
	w := t.reader.(*files).dirs
	b, err := os.ReadFile(fmt.Sprint("/proc/self/fdinfo/", w.fd))
	if err != nil {
		panic(err)
	}
	return len(w.watchOf), strings.Count(string(b), "inotify wd:")
}

// SlotsLost returns how many slots are neither in use nor free.
func (t *Table) SlotsLost() int { return len(t.bySlot) - len(t.workloads) - len(t.free) - len(t.freed) }

// ByName reports whether the use of a group until its end is booked to itself.
func (t *Table) ByName() bool { return t.reader.identifiesByID() }

// Kept returns how many descriptors are kept for each group.
func (t *Table) Kept() map[string]int {
	kept := map[string]int{}
	for _, n := range t.workloads {
		if k := countOpen(n); k > 0 {
			kept[n.path] = k
		}
	}
	return kept
}

// Blind disables directory events, as when the kernel has no more watches.
func (t *Table) Blind() { t.reader.(*files).incomplete = true }

// BeforeReading makes each reading look for new groups at most looks times, and calls f
// after the first look, before the known groups are read.
func (t *Table) BeforeReading(looks int, f func()) {
	r := t.reader.(*files)
	r.maxPasses = looks
	t.reader = &beforeReading{r, f}
}

type beforeReading struct {
	*files
	f func()
}

func (b *beforeReading) read(t *Table) error {
	b.f()
	return b.files.read(t)
}

// AfterWalk calls f after each walk, before the events are drained.
func (t *Table) AfterWalk(f func()) { t.reader = &afterWalk{t.reader.(*kernel), f} }

type afterWalk struct {
	*kernel
	f func()
}

func (a *afterWalk) followChanges(t *Table) error {
	if err := a.walk(t); err != nil {
		return err
	}
	a.f()
	a.drain(t)
	return nil
}

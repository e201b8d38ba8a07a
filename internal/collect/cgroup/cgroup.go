// Package cgroup reads the control groups of a machine: it finds the hierarchies, follows
// the births and deaths of groups, and fills a snapshot with every workload's counters.
//
// There are two readers. bpf reads all groups in the kernel at once and receives their
// births and deaths, with their final CPU time. In version 2 that is exact for a group that
// was born after the reader was opened; of an older one, the use since the latest walk may
// stay in its parent's remainder, apportioned. files keeps descriptors and reads each group's files; what a
// group used after its last reading stays in its parent's remainder, where the kernel adds
// it.
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

// A Config configures a Table.
type Config struct {
	Node string // node id, part of workload ids
	Boot string // boot id
	// Every is the number of ticks over which reading the slow set is spread.
	Every int
	// Files is how many descriptors may stay open for groups.
	Files int
}

// A reader follows one machine's groups.
type reader interface {
	// followChanges applies the births and deaths since the last call to the table.
	followChanges(t *Table) error
	// read puts the fast set of all workloads into their readings.
	read(t *Table) error
	// roles returns the roles whose hierarchies the reader needs.
	roles() []role
	// identifiesByID reports whether it identifies groups by id instead of path.
	identifiesByID() bool
	// countsRoot reports whether its reading of a version 2 root includes all tasks.
	countsRoot() bool
	Close() error
}

// A role is a purpose for which a hierarchy is read.
type role uint8

const (
	roleCPU    role = iota // CPU time
	roleMemory             // memory charged
	rolePIDs               // tasks alive
	roleIO                 // block I/O
	roleLimit              // CPU limits and throttling
	rolePSI                // pressure
	roleCount
)

// sources is the hierarchy for each role, nil if there is none.
type sources [roleCount]*hostfs.Hierarchy

// chooseHierarchies selects the hierarchy for each role. A controller is in one hierarchy
// only: v1 if it is mounted there, else v2. CPU time and pressure are in every v2 group
// regardless of controllers. So a v2 hierarchy without controllers beside v1 serves
// pressure, and CPU time only if v1 has no cpuacct, because groups are commonly created in
// v1 only.
func chooseHierarchies(ys []hostfs.Hierarchy) (s sources, err error) {
	byController := func(name string) *hostfs.Hierarchy {
		for i := range ys {
			if ys[i].Has(name) {
				return &ys[i]
			}
		}
		return nil
	}
	var v2 *hostfs.Hierarchy
	for i := range ys {
		if ys[i].V2 {
			v2 = &ys[i]
		}
	}
	s[roleCPU] = byController("cpuacct")
	if s[roleCPU] == nil {
		s[roleCPU] = v2
	}
	if s[roleCPU] == nil {
		return s, fault.WithHint(fmt.Errorf("control groups: no cpuacct and no cgroup2 hierarchy is mounted: %w", fault.ErrUnsupported),
			"mount cgroup2 at /sys/fs/cgroup, or run mete outside the container that hides it")
	}
	s[roleMemory] = byController("memory")
	s[rolePIDs] = byController("pids")
	s[roleIO] = byController("io")
	if s[roleIO] == nil {
		s[roleIO] = byController("blkio")
	}
	s[roleLimit] = byController("cpu")
	s[rolePSI] = v2
	return s, nil
}

// findSources selects the hierarchy for each role on this machine.
func findSources(h *hostfs.FS) (s sources, err error) {
	ys, err := h.Hierarchies()
	if err != nil {
		return s, err
	}
	return chooseHierarchies(ys)
}

// A Table holds every group of a machine and its last readings. Only one goroutine may use
// it.
type Table struct {
	cfg    Config
	host   *hostfs.FS
	log    *slog.Logger
	src    sources
	reader reader
	disk   diskSource
	trees  []*tree // the hierarchies in use
	byRole [roleCount]*tree

	byKey     map[key]*node
	root      *node
	bySlot    []*node // of workloads
	workloads []*node // workloads, parents before children
	free      []usage.Slot
	freed     []usage.Slot // slots freed by the latest dropEnded, reusable one snapshot later
	removed   []removedGroup
	ticks     int
	first     bool
	foundLate bool  // groups found in this pass may have existed at earlier ticks
	needsSort bool  // workloads may hold a child before its parent
	lost      int64 // births and deaths missed since the latest booked snapshot
	fakeIDs   uint64

	uncounted      []*node // see EachUncounted
	uncountedStale bool    // a group was added or removed since

	buf      []byte
	devices  []deviceIO // of the group that is read
	leaves   map[procfmt.Dev]string
	leavesAt int // tick
	notes    []string
}

// newTable creates the table for a reader and finds the existing groups.
func newTable(h *hostfs.FS, r reader, cfg Config, log *slog.Logger) (*Table, error) {
	src, err := findSources(h)
	if err != nil {
		return nil, err
	}
	t := &Table{cfg: cfg, host: h, log: log, src: src, reader: r, byKey: map[key]*node{}, first: true}
	for _, role := range r.roles() {
		y := src[role]
		if y == nil {
			continue
		}
		for _, tr := range t.trees {
			if tr.Mount == y.Mount {
				t.byRole[role] = tr
			}
		}
		if t.byRole[role] == nil {
			tr := &tree{Hierarchy: *y, index: len(t.trees), byPath: map[string]*node{}}
			if tr.whole, err = h.ShowsRoot(*y); err != nil {
				return nil, err
			}
			if r.identifiesByID() {
				tr.byID = map[uint64]*node{}
			}
			t.trees = append(t.trees, tr)
			t.byRole[role] = tr
		}
	}
	if len(t.trees) > maxTrees {
		return nil, fmt.Errorf("%d hierarchies to follow, at most %d: %w", len(t.trees), maxTrees, fault.ErrUnsupported)
	}
	return t, nil
}

// OpenFiles returns a table with the files reader. The caller closes it.
func OpenFiles(h *hostfs.FS, cfg Config, log *slog.Logger) (*Table, error) {
	r, err := newFiles(h, cfg, log)
	if err != nil {
		return nil, err
	}
	t, err := newTable(h, r, cfg, log)
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	t.disk = chooseDisk(t, false)
	t.note("processes started: absent (the bpf reader counts them)")
	return t.findAllOrClose()
}

// findAllOrClose finds the existing groups and returns t.
func (t *Table) findAllOrClose() (*Table, error) {
	if err := t.findAll(); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// Close releases the table's kernel resources.
func (t *Table) Close() error {
	for _, n := range t.workloads {
		n.closeFiles()
	}
	return t.reader.Close()
}

// Hierarchy returns the hierarchy of a new workload's path: the one that counts CPU time, if it has the group.
func (t *Table) Hierarchy(slot usage.Slot) *hostfs.Hierarchy {
	return &t.trees[t.bySlot[slot].primary].Hierarchy
}

// UnifiedID returns the kernfs id of a workload's group in the cgroup v2 hierarchy, 0 if it
// has none there.
func (t *Table) UnifiedID(slot usage.Slot) uint64 {
	y := t.src[rolePSI]
	if y == nil || int(slot) >= len(t.bySlot) || t.bySlot[slot] == nil {
		return 0
	}
	n := t.bySlot[slot]
	for _, tr := range t.trees {
		if tr.Mount == y.Mount {
			return n.id[tr.index]
		}
	}
	id, err := t.host.ID(joinPath(y.Mount, n.path))
	if err != nil {
		return 0
	}
	return id
}

// HasUnified reports whether cgroup v2 is mounted, with or without controllers.
func (t *Table) HasUnified() bool { return t.src[rolePSI] != nil }

// IsWhole reports whether the table has all groups of the machine. In a container it may have
// those of the container only: then the root group is the container's.
func (t *Table) IsWhole() bool { return t.byRole[roleCPU].whole }

// CountsRoot reports whether the root group's CPU reading includes all tasks in it and below:
// version 1 has such a counter, version 2 for the machine's root group only inside the kernel.
func (t *Table) CountsRoot() bool {
	return !t.src[roleCPU].V2 || !t.IsWhole() || t.reader.countsRoot()
}

// CountsMergedRequests reports whether disk requests of groups count as they are submitted, before
// the kernel merges neighboring ones: its files count so.
func (t *Table) CountsMergedRequests() bool { return t.disk == diskV2 || t.disk == diskBlkio }

// Notes returns what is absent on this machine, and why.
func (t *Table) Notes() []string { return t.notes }

func (t *Table) note(format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}

// Read fills s.Groups with every workload that exists or has just ended, the root first.
// Births and ends are repeated in each snapshot until the caller calls Booked.
func (t *Table) Read(s *usage.Snapshot) error {
	t.dropEnded()
	if err := t.reader.followChanges(t); err != nil {
		return err
	}
	if err := t.reader.read(t); err != nil {
		return err
	}
	t.readWindow()
	t.readSlow(s.Ending)
	if t.needsSort {
		slices.SortStableFunc(t.workloads, func(a, b *node) int { return a.depth() - b.depth() })
		t.needsSort = false
	}
	s.Groups = s.Groups[:0]
	for _, n := range t.workloads {
		s.Groups = append(s.Groups, &n.group)
	}
	s.Lost = t.lost
	t.first = false
	t.ticks++
	return nil
}

// Booked says that the snapshot of the latest Read was booked. A snapshot that is not, as
// another source has failed, leaves births and ends to the next one.
func (t *Table) Booked() {
	for _, n := range t.workloads {
		n.reported = true
		if n.group.Removed != nil {
			n.group.Removed = nil
			n.disk.Booked()
		}
	}
	t.lost = 0
}

// dropEnded drops the groups that ended in the latest booked snapshot, and marks all others
// in it as known.
func (t *Table) dropEnded() {
	t.free = append(t.free, t.freed...)
	t.freed = t.freed[:0]
	kept := t.workloads[:0]
	for _, n := range t.workloads {
		if n.group.Final && n.reported {
			t.freed = append(t.freed, n.group.Slot)
			t.bySlot[n.group.Slot] = nil
			continue
		}
		if n.reported {
			n.group.New, n.group.Born = false, false
		}
		kept = append(kept, n)
	}
	clear(t.workloads[len(kept):])
	t.workloads = kept
	if len(t.freed) == 0 {
		return
	}
	for _, n := range t.workloads { // a group that outlives its parent moves below the next one up
		if n != t.root && !n.dead && (t.bySlot[n.group.Parent] == nil || t.bySlot[n.group.MemoryParent] == nil) {
			t.setParents(n)
		}
	}
}

// Package proc reads the processes of a machine: what each used, and its group. It is the
// breakdown of a workload; the use of the workload itself is its group's counter, never the
// sum of its processes.
//
// There are two readers. The BPF reader walks all tasks in the kernel. The files reader
// walks /proc: it reads the CPU clock of each process, which costs one system call and no
// descriptor, and reads files only of processes that ran, through kept descriptors as far
// as they suffice. A process that cannot be read is counted and does not affect the others.
package proc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"mete.dev/mete/internal/collect/perprocess"
	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
)

// Config limits the resources of a Table.
type Config struct {
	// Descriptors is how many files may stay open.
	Descriptors int
}

// Default returns a number of descriptors that fits most limits.
func Default() Config { return Config{Descriptors: 300} }

// Validate returns an error wrapping fault.ErrInvalid if c cannot work.
func (c Config) Validate() error {
	if c.Descriptors < 0 {
		return fmt.Errorf("proc: descriptors %d: %w", c.Descriptors, fault.ErrInvalid)
	}
	return nil
}

// A Process is a process at the time of the reading.
type Process struct {
	// Process holds its identity, its CPU time with all threads, ended ones included, and
	// its CPU time when it entered its group. The time is exact to the ns, or in steps of
	// 10 ms if only /proc/PID/stat has it.
	perprocess.Process
	Parent  int32  // PID
	Name    string // the kernel's name: 15 bytes at most
	Group   string // path in the table's hierarchy, as in kernel files
	Threads int
	// RSS is its resident memory in bytes, shared memory included. The kernel's file omits
	// what each CPU has not added up yet: dozens of pages each.
	RSS int64
	// Read and Written are bytes from and to block devices since it started, if HasIO: not
	// every process can be read.
	Read, Written int64
	HasIO         bool
}

// A reader reads all processes.
type reader interface {
	// read calls f for each process, with Entered 0. Strings in the process stay valid. It
	// returns how many could not be read.
	read(ctx context.Context, f func(Process)) (unreadable int, err error)
	close() error
}

// A Table holds the processes of a machine. Only one goroutine may use it.
type Table struct {
	h         *hostfs.FS
	hierarchy hostfs.Hierarchy
	reader    reader
	name      string
	known     map[perprocess.ID]state
	next      map[perprocess.ID]state
	procs     []Process // by group, then PID
	opened    int64     // ns of CLOCK_BOOTTIME
	last      int64     // time of the last Read; 0 before the first

	// Unreadable counts the processes that the last Read could not read.
	Unreadable int
}

// state is what the table keeps of a process between readings.
type state struct {
	cpu, entered int64
	group        string
}

// Open opens a table of the processes of h. It reads by k, or by files if k is nil or
// cannot walk tasks. The error wraps fault.ErrUnsupported if h has no groups.
func Open(h *hostfs.FS, k *bpf.Kernel, cfg Config) (*Table, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	y, err := Primary(h)
	if err != nil {
		return nil, err
	}
	now, err := h.Clocks()
	if err != nil {
		return nil, err
	}
	t := &Table{h: h, hierarchy: y, known: map[perprocess.ID]state{}, next: map[perprocess.ID]state{}, opened: now.Boottime}
	if t.reader, err = openBPF(h, k, y); err == nil {
		t.name = "bpf"
		return t, nil
	}
	if !errors.Is(err, fault.ErrUnsupported) && !errors.Is(err, fault.ErrDenied) {
		return nil, err
	}
	if t.reader, err = openFiles(h, y, cfg.Descriptors); err != nil {
		return nil, err
	}
	t.name = "files"
	return t, nil
}

// Primary returns the hierarchy that counts CPU time: that of cpuacct, else v2.
func Primary(h *hostfs.FS) (hostfs.Hierarchy, error) {
	ys, err := h.Hierarchies()
	if err != nil {
		return hostfs.Hierarchy{}, err
	}
	if i := slices.IndexFunc(ys, func(y hostfs.Hierarchy) bool { return !y.V2 && y.Has("cpuacct") }); i >= 0 {
		return ys[i], nil
	}
	if ys[0].V2 { // v2 comes first
		return ys[0], nil
	}
	return hostfs.Hierarchy{}, fmt.Errorf("proc: no hierarchy that counts CPU time: %w", fault.ErrUnsupported)
}

// Reader returns the name of the reader in use: "bpf" or "files".
func (t *Table) Reader() string { return t.name }

// Hierarchy returns the hierarchy of the paths in Process.Group.
func (t *Table) Hierarchy() hostfs.Hierarchy { return t.hierarchy }

// Close closes the descriptors.
func (t *Table) Close() error { return t.reader.close() }

// Read reads all processes. An error leaves the table unchanged.
func (t *Table) Read(ctx context.Context) error {
	now, err := t.h.Clocks()
	if err != nil {
		return err
	}
	var procs []Process
	if t.procs != nil {
		procs = make([]Process, 0, len(t.procs)+16)
	}
	clear(t.next)
	unreadable, err := t.reader.read(ctx, func(p Process) {
		p.Entered = t.enteredAt(p)
		t.next[p.ID] = state{p.CPU, p.Entered, p.Group}
		procs = append(procs, p)
	})
	if err != nil {
		return err
	}
	slices.SortFunc(procs, func(a, b Process) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), cmp.Compare(a.ID.PID, b.ID.PID))
	})
	t.known, t.next = t.next, t.known
	t.procs, t.Unreadable, t.last = procs, unreadable, now.Boottime
	return nil
}

// enteredAt returns the CPU time of p when it entered its group.
func (t *Table) enteredAt(p Process) int64 {
	// Start times are rounded down by up to this much.
	const step = 10_000_000
	s, ok := t.known[p.ID]
	switch {
	case ok && s.group == p.Group:
		return s.entered
	case ok:
		// It moved at an unknown time: all that it used since the last reading counts for
		// its present group.
		return s.cpu
	case p.ID.Start+step > max(t.last, t.opened):
		return 0
	}
	// It existed but was missed: what it used is past, or was counted elsewhere.
	return p.CPU
}

// All returns the processes sorted by group and PID. The caller must not modify them; the
// next Read does not change them.
func (t *Table) All() []Process { return t.procs }

// Processes returns the processes in the group itself.
func (t *Table) Processes(group string) []Process {
	from := sort.Search(len(t.procs), func(i int) bool { return t.procs[i].Group >= group })
	to := from + sort.Search(len(t.procs)-from, func(i int) bool { return t.procs[from+i].Group > group })
	return t.procs[from:to]
}

// ProcessesBelow returns the processes in groups below the group.
func (t *Table) ProcessesBelow(group string) []Process {
	prefix := strings.TrimSuffix(group, "/") + "/"
	from := sort.Search(len(t.procs), func(i int) bool { return t.procs[i].Group >= prefix })
	if prefix == "/" {
		from = sort.Search(len(t.procs), func(i int) bool { return t.procs[i].Group > prefix })
	}
	to := from
	for to < len(t.procs) && strings.HasPrefix(t.procs[to].Group, prefix) {
		to++
	}
	return t.procs[from:to]
}

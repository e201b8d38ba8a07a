// Package proc reads the processes of a machine: what each used, and in which
// group it is. It is the breakdown inside a workload; what the workload itself
// used is its group's counter, never the sum of these.
//
// There are two readers. The one of BPF walks all tasks in the kernel. The one
// of files walks /proc: it asks the CPU clock of each process, which costs one
// system call and no descriptor, and opens the files only of those that ran,
// through kept descriptors as far as its share of them goes. One process that
// cannot be read costs no more than itself, and is counted.
package proc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"mete.dev/mete/internal/collect/split"
	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
)

// Config is what the table may use.
type Config struct {
	// Descriptors is how many files may be kept open; 0 keeps none.
	Descriptors int
}

// Default returns a share of descriptors that fits most limits.
func Default() Config { return Config{Descriptors: 300} }

// Validate reports what is wrong with c.
func (c Config) Validate() error {
	if c.Descriptors < 0 {
		return fmt.Errorf("proc: descriptors %d: %w", c.Descriptors, fault.ErrInvalid)
	}
	return nil
}

// A Process is a process as it was when the table was read.
type Process struct {
	// Process holds its identity, its CPU time with all threads, the ended ones
	// too, and the CPU time with which it came into its group. The time is
	// exact to the ns, or in steps of 10 ms where only /proc/PID/stat shows it.
	split.Process
	Parent  int32  // PID
	Name    string // as the kernel keeps it: 15 bytes at most
	Group   string // path in the table's hierarchy, as kernel files write it
	Threads int
	// RSS is how many bytes it has in memory, shared ones too. The kernel's file
	// leaves out what each CPU has not added up yet: dozens of pages each.
	RSS int64
	// Read and Written are bytes from and to block devices since it started,
	// if HasIO: not every process may be asked.
	Read, Written int64
	HasIO         bool
}

// A reader reads all processes.
type reader interface {
	// read calls f for each process, with Entered left at 0. Strings in the
	// process stay valid. It returns how many could not be read.
	read(ctx context.Context, f func(Process)) (unreadable int, err error)
	close() error
}

// A Table holds the processes of a machine. Its owner is one goroutine.
type Table struct {
	h         *hostfs.FS
	hierarchy hostfs.Hierarchy
	reader    reader
	name      string
	known     map[split.ID]state
	next      map[split.ID]state
	procs     []Process // by group, then PID
	opened    int64     // ns of CLOCK_BOOTTIME
	last      int64     // when Read was called last; 0 before the first time

	// Unreadable counts the processes that the last Read could not read.
	Unreadable int
}

// state is what the table keeps of a process from one reading to the next.
type state struct {
	cpu, entered int64
	group        string
}

// Open opens a table of the processes of h. It reads by k, or files where k is
// nil or cannot walk tasks; an error wrapping fault.ErrUnsupported says that h
// has no groups.
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
	t := &Table{h: h, hierarchy: y, known: map[split.ID]state{}, next: map[split.ID]state{}, opened: now.Boottime}
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

// Primary returns the hierarchy by which CPU time is counted: that of cpuacct,
// else v2.
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

// Reader returns which reader the table uses: "bpf" or "files".
func (t *Table) Reader() string { return t.name }

// Hierarchy returns the hierarchy whose paths are in Process.Group.
func (t *Table) Hierarchy() hostfs.Hierarchy { return t.hierarchy }

// Close gives back the descriptors.
func (t *Table) Close() error { return t.reader.close() }

// Read reads all processes anew. An error leaves the table as it was.
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

// enteredAt returns the CPU time with which p came into its group.
func (t *Table) enteredAt(p Process) int64 {
	// Start times are rounded down by up to this much.
	const step = 10_000_000
	s, ok := t.known[p.ID]
	switch {
	case ok && s.group == p.Group:
		return s.entered
	case ok:
		// It moved since, nobody knows when: all that it used meanwhile goes
		// to where it is now.
		return s.cpu
	case p.ID.Start+step > max(t.last, t.opened):
		return 0
	}
	// It was there already and not seen: what it used is past, or was another
	// line's.
	return p.CPU
}

// All returns the processes sorted by group and PID. The caller does not change
// them; they stay as they are when the table is read again.
func (t *Table) All() []Process { return t.procs }

// Processes returns those of All that are in the group itself.
func (t *Table) Processes(group string) []Process {
	from := sort.Search(len(t.procs), func(i int) bool { return t.procs[i].Group >= group })
	to := from + sort.Search(len(t.procs)-from, func(i int) bool { return t.procs[from+i].Group > group })
	return t.procs[from:to]
}

// ProcessesBelow returns those of All that are in groups below the group.
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

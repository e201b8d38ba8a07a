package proc

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
)

// Members sums the CPU time of the processes in one group, for groups whose CPU time the kernel
// does not count. It misses what a process used between its last reading and its end.
//
// Only one goroutine may use it.
type Members struct {
	h                *hostfs.FS
	procs            string // the group's list of processes
	counts           func(pid int32) bool
	clock            bool
	tasks            map[int32]*task
	others           map[int32]other // for which counts returned false
	endedCPU         int64           // CPU ns of tasks that are gone
	last             int64           // ns of CLOCK_BOOTTIME when the list was read last
	due              bool            // to read the list again: a task ran or ended since then, or others are new
	spareDescriptors *int
	buf              []byte
	list             []byte

	// Unreadable counts the processes of the latest list that could not be read.
	Unreadable int
}

// task is a process in the group.
type task struct {
	pid     int32
	start   int64
	cpu     int64        // when it was last read
	before  int64        // when it was read before that
	entered int64        // CPU time when it entered the group
	stat    *hostfs.File // nil if it is not kept open
	seen    bool
}

// other is a process in the group for which counts returned false.
type other struct {
	checks int // how often it was checked, up to newChecks
	lists  int // for how many lists it is not checked again
	seen   bool
}

// A process enters the groups of other hierarchies one after the other, so it is checked in its first
// lists, and later in one of some.
const (
	newChecks    = 3
	recheckAfter = 8
)

// OpenRoot opens the root group of h's v2 hierarchy and reads its processes: kernel threads, and
// processes never put into a group. Without a v1 hierarchy with cpuacct, the machine used that plus
// the top-level groups: the root's own cpu.stat is sampled at clock ticks and 2 to 3 % low. Of the
// existing processes all counts that they used since their birth. It keeps at most the given number
// of descriptors. The error wraps fault.ErrUnsupported without a v2 hierarchy.
func OpenRoot(h *hostfs.FS, descriptors int) (*Members, error) {
	ys, err := h.Hierarchies()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(ys, func(y hostfs.Hierarchy) bool { return y.V2 })
	if i < 0 {
		return nil, fmt.Errorf("root group: no cgroup v2: %w", fault.ErrUnsupported)
	}
	root, ok := ys[i].Dir("/")
	if !ok {
		return nil, fmt.Errorf("root group: not below %s: %w", ys[i].Mount, fault.ErrUnsupported)
	}
	r := newMembers(h, root, &descriptors)
	return r, r.Refresh()
}

// NewMembers returns the processes for which counts returns true in the group with this directory,
// before the first [Members.Read]. Of processes that started before since, in ns of CLOCK_BOOTTIME,
// nothing counts that they used until they are first seen. It takes the descriptors that it keeps open
// from spareDescriptors.
func NewMembers(h *hostfs.FS, dir string, since int64, counts func(pid int32) bool, spareDescriptors *int) *Members {
	r := newMembers(h, dir, spareDescriptors)
	r.last, r.counts = max(1, since), counts
	return r
}

func newMembers(h *hostfs.FS, dir string, spareDescriptors *int) *Members {
	return &Members{h: h, procs: dir + "/cgroup.procs", counts: func(int32) bool { return true }, clock: CanReadCPUTime(h), tasks: map[int32]*task{}, others: map[int32]other{}, spareDescriptors: spareDescriptors, buf: make([]byte, 4096)}
}

// Close closes the descriptors.
func (r *Members) Close() error {
	for _, t := range r.tasks {
		r.closeKept(t)
	}
	return nil
}

// Refresh reads the tasks, and which processes are in the group. It misses processes that come and go
// between two calls; of the root group once a window is enough, since kernel threads live long.
func (r *Members) Refresh() error {
	now, err := r.h.Boottime()
	if err != nil {
		return err
	}
	r.updateAll()
	return r.readList(now)
}

// readList reads which processes are in the group, just after the known ones were read. now is a time
// before that.
func (r *Members) readList(now int64) (err error) {
	if r.list, err = r.h.ReadInto(r.procs, r.list); err != nil {
		return err
	}
	r.Unreadable = 0
	for b := r.list; len(b) > 0; {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte{'\n'})
		// Processes of an outer PID namespace are listed as 0.
		pid, ok := parsePID(line)
		if !ok {
			r.Unreadable++
			continue
		}
		if t := r.tasks[pid]; t != nil {
			t.seen = true
			continue
		}
		if o := r.others[pid]; o.lists > 0 {
			r.others[pid] = other{o.checks, o.lists - 1, true}
			continue
		}
		if err := r.add(pid); err != nil && !errors.Is(err, fault.ErrNotFound) {
			r.Unreadable++
		}
	}
	for _, t := range r.tasks {
		if !t.seen {
			t.cpu = t.before // it left the group since then
			r.remove(t)
		}
		t.seen = false
	}
	r.last, r.due = now, false
	for pid, o := range r.others {
		if !o.seen {
			delete(r.others, pid)
			continue
		}
		o.seen = false
		r.others[pid] = o
		r.due = r.due || o.checks < newChecks
	}
	return nil
}

// add adds a process that was not in the group when the list was read last.
func (r *Members) add(pid int32) error {
	if !r.counts(pid) {
		o := other{checks: min(r.others[pid].checks+1, newChecks), seen: true}
		if o.checks == newChecks {
			o.lists = recheckAfter
		}
		r.others[pid] = o
		return nil
	}
	t := &task{pid: pid, seen: true}
	p, err := r.read(t)
	if err == nil {
		t.start = p.Start
		t.cpu, err = r.cpu(t, p)
	}
	if err != nil {
		return err
	}
	t.before = t.cpu
	// Start times are rounded down to 10 ms. The first list of the root group includes everything: the
	// sum is that of the existing tasks since their birth.
	if r.last > 0 && t.start+10_000_000 <= r.last {
		t.entered = t.cpu
	}
	r.tasks[pid] = t
	return nil
}

// CPU reads the tasks and returns the CPU ns that they used in the group: existing ones since
// their start or entry, and those that left, until they were last seen. It never decreases. It
// detects reused PIDs.
func (r *Members) CPU() int64 {
	r.updateAll()
	return r.sum()
}

// Read returns what [Members.CPU] does, at now, in ns of CLOCK_BOOTTIME. With list, or if a task ran
// since the list was read last, it also reads which processes are in the group: if none ran, none has
// started another. After an error of that the CPU time is that of the known tasks.
func (r *Members) Read(now int64, list bool) (cpu int64, err error) {
	if r.updateAll(); r.due || list {
		err = r.readList(now)
	}
	return r.sum(), err
}

// updateAll reads the CPU times of all tasks.
func (r *Members) updateAll() {
	for _, t := range r.tasks {
		t.before = t.cpu
		r.due = r.update(t) || r.due
	}
}

// sum returns the CPU ns as of the latest reading.
func (r *Members) sum() int64 {
	sum := r.endedCPU
	for _, t := range r.tasks {
		sum += t.cpu - t.entered
	}
	return sum
}

// update reads t's CPU time, and removes t if it is gone. It reports whether t ran or is gone.
func (r *Members) update(t *task) (ran bool) {
	cpu := int64(-1)
	if r.clock {
		var err error
		if cpu, err = CPUTime(t.pid); err != nil {
			r.remove(t)
			return true
		}
		if cpu == t.cpu {
			return false // equal in ns: certainly the same process
		}
	}
	// The file, read after the clock, confirms the process.
	p, err := r.read(t)
	switch {
	case err == nil && p.Start != t.start, errors.Is(err, fault.ErrNotFound):
		r.remove(t)
		return true
	case err == nil && r.clock:
		t.cpu = max(t.cpu, cpu)
	case err == nil:
		t.cpu = max(t.cpu, p.User+p.System)
	}
	return t.cpu != t.before
}

// cpu returns the CPU time of t, whose stat is p.
func (r *Members) cpu(t *task, p procfmt.Process) (int64, error) {
	if !r.clock {
		return p.User + p.System, nil
	}
	cpu, err := CPUTime(t.pid)
	if err != nil {
		return 0, fmt.Errorf("%s: clock: %w", dir(t.pid), fault.ErrNotFound)
	}
	return cpu, nil
}

// read reads t's stat, and keeps its descriptor if one is left.
func (r *Members) read(t *task) (procfmt.Process, error) {
	name := dir(t.pid) + fileNames[statFile]
	f := t.stat
	if f == nil {
		var err error
		if f, err = r.h.Open(name); err != nil {
			return procfmt.Process{}, err
		}
		if *r.spareDescriptors > 0 && t.cpu > 0 {
			// It ran, so it will be read again.
			t.stat = f
			*r.spareDescriptors--
		} else {
			defer func() { _ = f.Close() }() // nothing was written
		}
	}
	n, err := f.Pread(r.buf)
	if err != nil {
		return procfmt.Process{}, hostfs.Kind(name, err)
	}
	return procfmt.ProcStat(r.buf[:n])
}

// remove removes t and keeps its CPU time.
func (r *Members) remove(t *task) {
	r.endedCPU += t.cpu - t.entered
	r.closeKept(t)
	delete(r.tasks, t.pid)
}

func (r *Members) closeKept(t *task) {
	if t.stat != nil {
		_ = t.stat.Close() // nothing was written
		t.stat = nil
		*r.spareDescriptors++
	}
}

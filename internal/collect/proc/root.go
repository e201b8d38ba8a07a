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
	endedCPU         int64 // CPU ns of tasks that are gone
	last             int64 // ns of CLOCK_BOOTTIME at the last Refresh
	spareDescriptors int
	buf              []byte
	list             []byte

	// Unreadable counts the processes that the last Refresh could not read.
	Unreadable int
}

// task is a process in the group.
type task struct {
	pid     int32
	start   int64
	cpu     int64        // when it was last read
	entered int64        // CPU time when it entered the group
	stat    *hostfs.File // nil if it is not kept open
	seen    bool
}

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
	r := newMembers(h, root, descriptors)
	return r, r.Refresh()
}

// NewMembers returns the processes for which counts returns true in the group with this directory,
// before the first [Members.Refresh]. Of processes that started before since, in ns of
// CLOCK_BOOTTIME, nothing counts that they used until they are first seen.
func NewMembers(h *hostfs.FS, dir string, since int64, counts func(pid int32) bool) *Members {
	r := newMembers(h, dir, 0)
	r.last, r.counts = max(1, since), counts
	return r
}

func newMembers(h *hostfs.FS, dir string, descriptors int) *Members {
	return &Members{h: h, procs: dir + "/cgroup.procs", counts: func(int32) bool { return true }, clock: CanReadCPUTime(h), tasks: map[int32]*task{}, spareDescriptors: descriptors, buf: make([]byte, 4096)}
}

// Close closes the descriptors.
func (r *Members) Close() error {
	for _, t := range r.tasks {
		r.closeKept(t)
	}
	return nil
}

// Refresh reads which processes are in the group. It misses processes that come and go between two
// calls; of the root group once a window is enough, since kernel threads live long.
func (r *Members) Refresh() error {
	now, err := r.h.Clocks()
	if err != nil {
		return err
	}
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
			if r.update(t); r.tasks[pid] != nil {
				t.seen = true
				continue
			}
		}
		if err := r.add(pid); err != nil && !errors.Is(err, fault.ErrNotFound) {
			r.Unreadable++
		}
	}
	for _, t := range r.tasks {
		if !t.seen {
			r.remove(t)
		}
		t.seen = false
	}
	r.last = now.Boottime
	return nil
}

// add adds a process that was not in the group at the last Refresh.
func (r *Members) add(pid int32) error {
	if !r.counts(pid) {
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
	// Start times are rounded down to 10 ms. The first Refresh includes everything: the sum
	// is that of the existing tasks since their birth.
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
	for _, t := range r.tasks {
		r.update(t)
	}
	return r.sum()
}

// Read returns what [Members.CPU] does. With list it does Refresh first, which reads all tasks; after
// an error of that the CPU time is as of the reading before.
func (r *Members) Read(list bool) (cpu int64, err error) {
	if !list {
		return r.CPU(), nil
	}
	err = r.Refresh()
	return r.sum(), err
}

// sum returns the CPU ns as of the latest reading.
func (r *Members) sum() int64 {
	sum := r.endedCPU
	for _, t := range r.tasks {
		sum += t.cpu - t.entered
	}
	return sum
}

// update reads t's CPU time, and removes t if it is gone.
func (r *Members) update(t *task) {
	cpu := int64(-1)
	if r.clock {
		var err error
		if cpu, err = CPUTime(t.pid); err != nil {
			r.remove(t)
			return
		}
		if cpu == t.cpu {
			return // equal in ns: certainly the same process
		}
	}
	// The file, read after the clock, confirms the process.
	p, err := r.read(t)
	switch {
	case err == nil && p.Start != t.start, errors.Is(err, fault.ErrNotFound):
		r.remove(t)
	case err == nil && r.clock:
		t.cpu = max(t.cpu, cpu)
	case err == nil:
		t.cpu = max(t.cpu, p.User+p.System)
	}
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
		if r.spareDescriptors > 0 && t.cpu > 0 {
			// It ran, so it will be read again.
			t.stat = f
			r.spareDescriptors--
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
		r.spareDescriptors++
	}
}

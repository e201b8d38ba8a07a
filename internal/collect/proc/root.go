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

// Root adds up the CPU time of the tasks in the root group of v2: kernel
// threads, and whatever was never put into a group. Where there is no v1
// hierarchy with cpuacct, that and the top-level groups are all that was used:
// the root's own cpu.stat is sampled at clock ticks and 2 to 3 % low.
//
// Its owner is one goroutine.
type Root struct {
	h                *hostfs.FS
	procs            string // the root group's list of processes
	clock            bool
	tasks            map[int32]*task
	endedCPU         int64 // CPU ns of those that are not there any more
	last             int64 // ns of CLOCK_BOOTTIME at the last Refresh
	spareDescriptors int
	buf              []byte
	list             []byte

	// Unreadable counts the processes that the last Refresh could not read.
	Unreadable int
}

// task is a process in the root group.
type task struct {
	pid     int32
	start   int64
	cpu     int64        // as it was last seen
	entered int64        // with which it came in
	stat    *hostfs.File // nil where it is not kept
	seen    bool
}

// OpenRoot opens the root group of h's v2 hierarchy and reads which processes
// are in it. It keeps at most that many descriptors. Without a v2 hierarchy
// the error wraps fault.ErrUnsupported.
func OpenRoot(h *hostfs.FS, descriptors int) (*Root, error) {
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
	r := &Root{h: h, procs: root + "/cgroup.procs", clock: CanReadCPUTime(h), tasks: map[int32]*task{}, spareDescriptors: descriptors, buf: make([]byte, 4096)}
	return r, r.Refresh()
}

// Close gives back the descriptors.
func (r *Root) Close() error {
	for _, t := range r.tasks {
		r.closeKept(t)
	}
	return nil
}

// Refresh reads which processes are in the root group now: once a window is
// enough, since kernel threads live long. What came and went between two calls
// was seen by nobody.
func (r *Root) Refresh() error {
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
		// Processes of an outer PID namespace are written 0.
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

// add takes in a process that was not in the root group at the last Refresh.
func (r *Root) add(pid int32) error {
	t := &task{pid: pid, seen: true}
	p, err := r.read(t)
	if err == nil {
		t.start = p.Start
		t.cpu, err = r.cpu(t, p)
	}
	if err != nil {
		return err
	}
	// Start times are in steps of 10 ms, rounded down. At the first Refresh all
	// is taken in: the sum is that of the tasks there are since their birth.
	if r.last > 0 && t.start+10_000_000 <= r.last {
		t.entered = t.cpu
	}
	r.tasks[pid] = t
	return nil
}

// CPU returns the CPU ns that tasks in the root group used: those that are there
// since they were started or came in, and those that left, until they were last
// seen. It never goes back. A process whose PID was given to another is noticed.
func (r *Root) CPU() int64 {
	sum := int64(0)
	for _, t := range r.tasks {
		r.update(t)
		if r.tasks[t.pid] == t {
			sum += t.cpu - t.entered
		}
	}
	return sum + r.endedCPU
}

// update reads t's CPU time, or lets t leave if it is gone.
func (r *Root) update(t *task) {
	cpu := int64(-1)
	if r.clock {
		var err error
		if cpu, err = CPUTime(t.pid); err != nil {
			r.remove(t)
			return
		}
		if cpu == t.cpu {
			return // to the ns: no other process ran for as long
		}
	}
	// Read after the clock, the file proves whose it was.
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
func (r *Root) cpu(t *task, p procfmt.Process) (int64, error) {
	if !r.clock {
		return p.User + p.System, nil
	}
	cpu, err := CPUTime(t.pid)
	if err != nil {
		return 0, fmt.Errorf("%s: clock: %w", dir(t.pid), fault.ErrNotFound)
	}
	return cpu, nil
}

// read reads t's stat, and keeps its descriptor while there is one to spare.
func (r *Root) read(t *task) (procfmt.Process, error) {
	name := dir(t.pid) + fileNames[statFile]
	f := t.stat
	if f == nil {
		var err error
		if f, err = r.h.Open(name); err != nil {
			return procfmt.Process{}, err
		}
		if r.spareDescriptors > 0 && t.cpu > 0 {
			// It ran, since it is read again.
			t.stat = f
			r.spareDescriptors--
		} else {
			defer func() { _ = f.Close() }() // only read from
		}
	}
	n, err := f.Pread(r.buf)
	if err != nil {
		return procfmt.Process{}, hostfs.Kind(name, err)
	}
	return procfmt.ProcStat(r.buf[:n])
}

// remove keeps what t used and forgets t.
func (r *Root) remove(t *task) {
	r.endedCPU += t.cpu - t.entered
	r.closeKept(t)
	delete(r.tasks, t.pid)
}

func (r *Root) closeKept(t *task) {
	if t.stat != nil {
		_ = t.stat.Close() // only read from
		t.stat = nil
		r.spareDescriptors++
	}
}

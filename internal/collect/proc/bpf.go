package proc

import (
	"context"
	"errors"
	"fmt"
	"os"

	"mete.dev/mete/internal/collect/perprocess"
	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
)

// tasks reads processes by the kernel's task iterator, which has one row per thread.
type tasks struct {
	h         *hostfs.FS
	k         *bpf.Kernel
	hierarchy hostfs.Hierarchy
	clock     bool
	index     map[uint32]int // process to its index in sums
	sums      []sum
	known     map[perprocess.ID]cpuReading
	next      map[perprocess.ID]cpuReading
	groups    map[uint64]*path
	round     uint32
	buf       []byte
}

// sum is a process whose threads are being added up.
type sum struct {
	Process
	group  uint64
	leader bool // its first thread was seen
}

// cpuReading is the sum of a process's tasks and its CPU clock.
type cpuReading struct{ tasks, clock int64 }

// path is a group's path and when it was used last.
type path struct {
	path  string
	round uint32
}

// openBPF returns a reader by k. The error wraps fault.ErrUnsupported or fault.ErrDenied if
// k is nil or cannot walk tasks, or if its PIDs differ from those of h's /proc.
func openBPF(h *hostfs.FS, k *bpf.Kernel, y hostfs.Hierarchy) (reader, error) {
	if k == nil || !h.Live() {
		return nil, fmt.Errorf("proc: bpf: not opened: %w", fault.ErrUnsupported)
	}
	if err := k.Err(bpf.Tasks); err != nil {
		return nil, err
	}
	// If this process does not have the same PID in both lists, they belong to two PID
	// namespaces.
	b, err := h.ReadFile("/proc/self/stat")
	if err != nil {
		return nil, err
	}
	self, err := procfmt.ProcStat(b)
	if err != nil {
		return nil, fmt.Errorf("/proc/self/stat: %w", err)
	}
	const step = 10_000_000 // start times in /proc are rounded down to 10 ms
	found := false
	err = k.Tasks(func(t *bpf.Task) bool {
		found = int(t.PID) == self.PID && int64(t.Start)/step == self.Start/step
		return !found
	})
	if err != nil {
		return nil, err
	}
	if !found || self.PID != os.Getpid() {
		return nil, fmt.Errorf("proc: bpf: /proc is of another PID namespace: %w", fault.ErrUnsupported)
	}
	return &tasks{
		h: h, k: k, hierarchy: y, clock: CanReadCPUTime(h), index: map[uint32]int{}, groups: map[uint64]*path{},
		known: map[perprocess.ID]cpuReading{}, next: map[perprocess.ID]cpuReading{},
	}, nil
}

func (r *tasks) close() error { return nil }

func (r *tasks) read(ctx context.Context, f func(Process)) (unreadable int, err error) {
	clear(r.index)
	clear(r.next)
	r.sums = r.sums[:0]
	r.round++
	err = r.k.Tasks(func(t *bpf.Task) bool {
		r.add(t)
		return ctx.Err() == nil
	})
	if err := errors.Join(ctx.Err(), err); err != nil {
		return 0, err
	}
	for i := range r.sums {
		s := &r.sums[i]
		if !s.leader {
			unreadable++ // it ended during the walk
			continue
		}
		s.CPU = r.cpu(s.ID, s.CPU, s.Threads)
		g, err := r.path(s)
		switch {
		case err == nil:
			s.Group = g
			f(s.Process)
		case !errors.Is(err, fault.ErrNotFound):
			unreadable++
		}
	}
	r.known, r.next = r.next, r.known
	for id, g := range r.groups {
		if g.round != r.round {
			delete(r.groups, id)
		}
	}
	return unreadable, nil
}

// add adds a thread to its process.
func (r *tasks) add(t *bpf.Task) {
	i, ok := r.index[t.TGID]
	if !ok {
		i = len(r.sums)
		r.index[t.TGID] = i
		s := sum{}
		// Take the use of ended threads from the first row only: a thread that ends between
		// two rows would be counted twice.
		s.CPU, s.Read, s.Written = int64(t.DeadCPU), int64(t.DeadReadBytes), int64(t.DeadWrittenBytes)
		s.HasIO = true
		r.sums = append(r.sums, s)
	}
	s := &r.sums[i]
	s.CPU += int64(t.CPU)
	s.Read += int64(t.ReadBytes)
	s.Written += int64(t.WrittenBytes)
	s.Threads++
	if t.HasRSS != 0 {
		s.RSS = int64(t.RSS)
	}
	if t.PID == t.TGID {
		s.leader, s.group = true, t.Group
		s.ID = perprocess.ID{PID: int32(t.PID), Start: int64(t.Start)}
		s.Parent, s.Name = int32(t.PPID), t.Comm()
	}
}

// cpu returns the CPU time of a process, given the sum of its tasks. The value of a running
// task is as old as the last clock tick, so cpu reads the process's clock if the process
// ran.
func (r *tasks) cpu(id perprocess.ID, tasks int64, threads int) int64 {
	last, ok := r.known[id]
	now := cpuReading{tasks, tasks}
	switch {
	case ok && last.tasks == tasks:
		now.clock = last.clock
	case r.clock:
		// Two clock ticks of 10 ms for each thread: more means that another process has the
		// PID by now.
		const most = 20_000_000
		if c, err := CPUTime(id.PID); err == nil && c >= tasks && c-tasks <= most*int64(threads) {
			now.clock = c
		}
	}
	// A thread that ended during the walk is in no row.
	now.clock = max(now.clock, last.clock)
	r.next[id] = now
	return now.clock
}

// path returns the path of a process's group. The kernel never reuses a group id, so each
// path is looked up once.
func (r *tasks) path(s *sum) (string, error) {
	if g := r.groups[s.group]; g != nil {
		g.round = r.round
		return g.path, nil
	}
	name := dir(s.ID.PID) + fileNames[cgroupFile]
	var err error
	if r.buf, err = r.h.ReadInto(name, r.buf); err != nil {
		return "", err
	}
	b, ok := parseGroup(r.buf, r.hierarchy.ID)
	if !ok {
		return "", fmt.Errorf("%s: hierarchy %d: %w", name, r.hierarchy.ID, fault.ErrInvalid)
	}
	at := r.hierarchy.Absolute(string(b))
	d, ok := r.hierarchy.Dir(at)
	if !ok {
		return at, nil
	}
	// It may have moved since, so check the id of the path.
	if id, err := r.h.ID(d); err == nil && id == s.group {
		r.groups[s.group] = &path{at, r.round}
	}
	return at, nil
}

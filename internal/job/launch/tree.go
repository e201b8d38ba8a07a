package launch

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/usage"
)

// A Tree is a job without groups: its processes are the command and its descendants. This process
// becomes their subreaper (prctl(2)), so that orphans become its children and it can wait for all.
// It is not safe for concurrent use.
type Tree struct {
	h      *hostfs.FS
	before map[int]bool // children that this process had before
	root   int          // the command; 0 before it starts and after it is reaped
	ended  usage.Reading
}

// OpenTree makes this process a subreaper, which requires no privileges.
func OpenTree(h *hostfs.FS) (*Tree, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, os.NewSyscallError("prctl", err)
	}
	t := &Tree{h: h, before: map[int]bool{}}
	for _, pid := range t.children(unix.Getpid(), t.parents()) {
		t.before[pid] = true
	}
	return t, nil
}

// Start starts the command. The error is a *[StartError] if the command is at fault.
func (t *Tree) Start(c Command) (*Process, error) {
	if c.Before != nil {
		if err := c.Before(); err != nil {
			return nil, err
		}
	}
	p, err := c.exec(t.h, -1)
	if err != nil {
		return nil, c.failed(err)
	}
	t.root = p.PID
	return p, nil
}

// AddExit adds the use of the command, and of descendants it waited for, to later readings.
func (t *Tree) AddExit(e Exit) {
	t.root = 0
	t.addRusage(e.Rusage)
}

func (t *Tree) addRusage(u syscall.Rusage) {
	user, sys := u.Utime.Nano(), u.Stime.Nano()
	addValue(&t.ended, usage.CPU, user+sys)
	addValue(&t.ended, usage.CPUUser, user)
	addValue(&t.ended, usage.CPUSystem, sys)
	// In blocks of 512 bytes (getrusage(2)), independent of the device.
	addValue(&t.ended, usage.DiskRead, u.Inblock*512)
	addValue(&t.ended, usage.DiskWritten, u.Oublock*512)
}

func addValue(r *usage.Reading, res usage.Resource, v int64) { r.Put(res, r.Value[res]+v) }

// reap reaps orphaned descendants that have ended.
func (t *Tree) reap() {
	for _, pid := range t.children(unix.Getpid(), t.parents()) {
		if pid == t.root || t.before[pid] {
			continue
		}
		var s syscall.WaitStatus
		var u syscall.Rusage
		if got, err := syscall.Wait4(pid, &s, syscall.WNOHANG, &u); err == nil && got == pid {
			t.addRusage(u)
		}
	}
}

// Read adds the job's use so far to r; all of it is apportioned.
func (t *Tree) Read(r *usage.Reading) {
	t.reap()
	*r = t.ended
	r.Put(usage.CPU, r.Value[usage.CPU]) // zero is known even before anything ended
	ms := t.Members()
	for _, m := range ms {
		t.addProcess(m.PID, r)
	}
	addMemory(t.h, ms, r)
	r.Put(usage.PIDs, int64(len(ms)))
	r.Apportioned = r.Has
}

// ReadLevels is Read: reading the processes shows everything at once.
func (t *Tree) ReadLevels(r *usage.Reading) { t.Read(r) }

// addProcess adds the use of a living process and of the children that it waited for.
func (t *Tree) addProcess(pid int, r *usage.Reading) {
	b, err := t.h.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return
	}
	s, err := procfmt.ProcStat(b)
	if err != nil {
		return
	}
	user, sys := s.User+s.ChildUser, s.System+s.ChildSystem
	addValue(r, usage.CPU, user+sys)
	addValue(r, usage.CPUUser, user)
	addValue(r, usage.CPUSystem, sys)
	b, err = t.h.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return // owned by another user
	}
	if io, err := procfmt.ProcIO(b); err == nil {
		addValue(r, usage.DiskRead, io.Read)
		addValue(r, usage.DiskWritten, io.Written)
	}
}

// LeftGroups returns nil: a tree has no groups.
func (t *Tree) LeftGroups(int, bool) []string { return nil }

// IsGone returns false: a tree has no groups.
func (t *Tree) IsGone() bool { return false }

// Members lists the living processes of the job.
func (t *Tree) Members() []Member { return livingOf(t.h, t.pids) }

// listed is called after the processes of a tree were listed. Tests replace it.
var listed = func() {}

// pids lists the descendants of this process that are of the job.
func (t *Tree) pids() map[int]bool {
	parents := t.parents()
	pids := map[int]bool{}
	var follow func(pid int)
	follow = func(pid int) {
		for _, c := range t.children(pid, parents) {
			if !pids[c] && !t.before[c] {
				pids[c] = true
				follow(c)
			}
		}
	}
	follow(unix.Getpid())
	listed()
	return pids
}

// parents returns the parent of each process if the kernel does not list children
// (CONFIG_PROC_CHILDREN); nil if it does.
func (t *Tree) parents() map[int]int {
	if _, err := t.h.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", unix.Getpid())); err == nil {
		return nil
	}
	parents := map[int]int{}
	es, err := t.h.ReadDir("/proc")
	if err != nil {
		return parents
	}
	for _, e := range es {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if b, err := t.h.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
			if s, err := procfmt.ProcStat(b); err == nil {
				parents[pid] = s.Parent
			}
		}
	}
	return parents
}

// children lists the children of all threads of a process.
func (t *Tree) children(pid int, parents map[int]int) []int {
	var pids []int
	if parents != nil {
		for c, p := range parents {
			if p == pid {
				pids = append(pids, c)
			}
		}
		return pids
	}
	dir := fmt.Sprintf("/proc/%d/task", pid)
	es, err := t.h.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range es {
		b, err := t.h.ReadFile(dir + "/" + e.Name() + "/children")
		if err != nil {
			continue
		}
		for f := range bytes.FieldsSeq(b) {
			if c, err := strconv.Atoi(string(f)); err == nil && !slices.Contains(pids, c) {
				pids = append(pids, c)
			}
		}
	}
	return pids
}

// addMemory adds the memory of the processes to r, as if no page were shared, and marks it
// apportioned. If all processes have ended it adds nothing: what remains is not what the job had.
func addMemory(h *hostfs.FS, ms []Member, r *usage.Reading) {
	page := int64(os.Getpagesize())
	var all, shared int64
	for _, m := range ms {
		b, err := h.ReadFile(fmt.Sprintf("/proc/%d/statm", m.PID))
		if err != nil {
			continue
		}
		// Fields are size, resident and shared, in pages (proc_pid_statm(5)); shared counts mapped
		// files and shared memory.
		f := bytes.Fields(b)
		if len(f) < 3 {
			continue
		}
		resident, err1 := strconv.ParseInt(string(f[1]), 10, 64)
		file, err2 := strconv.ParseInt(string(f[2]), 10, 64)
		// An exiting process has released its memory.
		if err1 == nil && err2 == nil && resident > 0 {
			all, shared = all+resident*page, shared+file*page
		}
	}
	if all == 0 {
		return
	}
	for res, v := range map[usage.Resource]int64{usage.Memory: all, usage.MemoryAnon: all - shared, usage.MemoryFile: shared} {
		r.Put(res, v)
		r.Apportioned |= usage.SetOf(res)
	}
}

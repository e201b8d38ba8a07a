package launch

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
)

// Start starts the command in the groups. The error is a *[StartError] if the command is at fault.
//
// In v1 one thread of this process joins the groups, starts the command, which inherits them, and
// exits: its time in between, some tens of microseconds, is subtracted from the job's CPU time.
// Memory is charged by process, not by thread, so nothing of this process is charged. In v2, where
// threads cannot leave their process's group, the kernel starts the command directly in the group
// (clone3 with CLONE_INTO_CGROUP, Linux 5.7).
func (g *Group) Start(c Command) (*Process, error) {
	groups, err := g.openEntries()
	if err != nil {
		return nil, err
	}
	defer groups.close()
	type result struct {
		p   *Process
		err error
	}
	done := make(chan result)
	var run func()
	run = func() {
		// The goroutine ends locked, which ends its thread.
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread of a process cannot exit before it, and would stay in the groups.
			// Hold it and use another thread.
			held := make(chan struct{})
			go func() { defer close(held); run() }()
			<-held
			runtime.UnlockOSThread()
			return
		}
		p, err := g.start(groups, c)
		done <- result{p, err}
	}
	go run()
	r := <-done
	return r.p, r.err
}

// entries are open descriptors for joining a job's groups. They are opened before any group is
// joined, since after that opening counts as the job's memory.
type openGroups struct {
	v2    int // descriptor of the v2 group, or -1
	tasks []tasksFile
	home  int // descriptor of the tasks file to which the thread returns from cpuacct, or -1
}

type tasksFile struct {
	p  *part
	fd int
}

func (g *Group) openEntries() (d *openGroups, err error) {
	d = &openGroups{v2: -1, home: -1}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	for _, p := range slices.Clone(g.parts) {
		name, flags := p.dir+"/tasks", unix.O_WRONLY
		if p.y.V2 {
			name, flags = p.entry, unix.O_RDONLY|unix.O_DIRECTORY
		}
		fd, err := unix.Open(g.h.Path(name), flags|unix.O_CLOEXEC, 0)
		switch {
		case err != nil:
			if err := g.dropPart(p, fmt.Errorf("%s: %w", name, err)); err != nil {
				return d, err
			}
		case p.y.V2:
			d.v2 = fd
		default:
			d.tasks = append(d.tasks, tasksFile{p, fd})
		}
	}
	// cpuacct comes last, so that it does not count joining the others, and memory before it.
	slices.SortStableFunc(d.tasks, func(a, b tasksFile) int { return a.p.rank() - b.p.rank() })
	if n := len(d.tasks); n > 0 && d.tasks[n-1].p.y.Has("cpuacct") && d.v2 < 0 {
		// Without the way back the end of the thread counts for the job, which is little.
		d.home, err = unix.Open(g.h.Path(d.tasks[n-1].p.parent+"/tasks"), unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			d.home = -1
		}
	}
	return d, nil
}

func (p *part) rank() int {
	switch {
	case p.y.Has("cpuacct"):
		return 2
	case p.y.Has("memory"):
		return 1
	}
	return 0
}

func (g *openGroups) close() {
	for _, t := range g.tasks {
		_ = unix.Close(t.fd)
	}
	for _, fd := range []int{g.v2, g.home} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// start joins the groups with the calling thread and starts the command.
func (g *Group) start(d *openGroups, c Command) (*Process, error) {
	tid := []byte(strconv.Itoa(unix.Gettid()))
	var before, joined int64
	for _, t := range d.tasks {
		before = threadCPU()
		if _, err := unix.Write(t.fd, tid); err != nil {
			if err := g.dropPart(t.p, fmt.Errorf("%s/tasks: %w", t.p.dir, err)); err != nil {
				return nil, err
			}
		}
		joined = threadCPU()
	}
	if !g.hasCPUTime() {
		return nil, fmt.Errorf("%s: %w", g.notes[len(g.notes)-1], fault.ErrDenied)
	}
	if c.Before != nil {
		if err := c.Before(); err != nil {
			return nil, err
		}
	}
	p, err := c.exec(g.h, d.v2)
	if err != nil && d.v2 >= 0 && isGroupRefusal(err) {
		v2 := g.parts[slices.IndexFunc(g.parts, func(p *part) bool { return p.y.V2 })]
		err = g.dropPart(v2, fmt.Errorf("%s: clone3: %w", v2.entry, err))
		if err == nil && !g.hasCPUTime() {
			err = fmt.Errorf("clone3 into %s: %w", v2.entry, fault.ErrUnsupported)
		}
		if err != nil {
			return nil, err
		}
		p, err = c.exec(g.h, -1)
	}
	if d.home >= 0 {
		// Leave again, so that the end of the thread does not count for the job. Joining and
		// leaving are counted from about their middle on. With a v2 group, which counts the job
		// alone, leaving is not worth the wait.
		leaving := threadCPU()
		_, _ = unix.Write(d.home, tid)
		g.own = (leaving - joined + threadCPU() - before) / 2
	}
	if err != nil {
		return nil, c.failed(err)
	}
	return p, nil
}

// isGroupRefusal distinguishes errors of clone3 with a group from those of exec: an old kernel, a
// seccomp filter, or a group that accepts no processes.
func isGroupRefusal(err error) bool {
	switch err {
	case syscall.ENOSYS, syscall.EPERM, syscall.EOPNOTSUPP, syscall.EBUSY, syscall.EINVAL, syscall.ENODEV:
		return true
	}
	return false
}

// dropPart drops a part, unless a limit may depend on it.
func (g *Group) dropPart(p *part, err error) error {
	if g.limits != (Limits{}) {
		return &LimitError{"the job", err}
	}
	g.addNote(err)
	p.close()
	g.parts = slices.DeleteFunc(g.parts, func(o *part) bool { return o == p })
	g.abandoned = append(g.abandoned, p)
	return nil
}

func threadCPU() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic("launch: thread clock: " + err.Error()) // every kernel has this clock
	}
	return ts.Nano()
}

// IsGroupError reports whether err, of [Open] or [Run], means that groups are unavailable and a
// [Tree] is needed.
func IsGroupError(err error) bool {
	_, limit := errors.AsType[*LimitError](err)
	_, command := errors.AsType[*StartError](err)
	return err != nil && !limit && !command && !errors.Is(err, fault.ErrUnavailable)
}

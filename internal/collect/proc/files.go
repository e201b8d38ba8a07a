package proc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
)

// idleReadings is for how many readings an idle process keeps its descriptors, and how
// often its files are read although it did not run, since its memory may change anyway.
const idleReadings = 16

// files reads /proc.
//
// A descriptor of a file in /proc/PID is bound to the process: after its end it reads
// ESRCH, even if the PID is reused. Everything read of a process, its CPU clock too, is
// valid only if its descriptor is still readable afterwards.
type files struct {
	h                *hostfs.FS
	hierarchy        hostfs.Hierarchy
	page             int64
	clock            bool // PIDs are those of this namespace, so that CPU clocks can be read
	proc             *hostfs.File
	known            map[int32]*entry
	spareDescriptors int // descriptors that may still be opened to keep
	round            uint32
	buf              []byte
	names            []byte
}

// entry is a process that was read before.
type entry struct {
	Process
	round    uint32          // round in which it was listed last
	quiet    int             // readings since it ran
	kept     [3]*hostfs.File // stat, cgroup, io; nil if they are not kept
	ioDenied bool            // its io cannot be read
}

const (
	statFile = iota
	cgroupFile
	ioFile
)

var fileNames = [...]string{"/stat", "/cgroup", "/io"}

func openFiles(h *hostfs.FS, y hostfs.Hierarchy, descriptors int) (*files, error) {
	proc, err := h.Open("/proc")
	if err != nil {
		return nil, err
	}
	return &files{
		h: h, hierarchy: y, page: int64(os.Getpagesize()), clock: CanReadCPUTime(h), proc: proc,
		known: map[int32]*entry{}, spareDescriptors: descriptors, buf: make([]byte, 16<<10), names: make([]byte, 32<<10),
	}, nil
}

func (r *files) close() error {
	for _, e := range r.known {
		r.closeKept(e)
	}
	return r.proc.Close()
}

func (r *files) read(ctx context.Context, f func(Process)) (unreadable int, err error) {
	r.round++
	err = list(r.proc, r.names, func(pid int32) {
		if ctx.Err() != nil {
			return
		}
		switch e, err := r.readProcess(pid); {
		case e != nil:
			e.round = r.round
			f(e.Process)
		case err != nil && !errors.Is(err, fault.ErrNotFound):
			unreadable++
		}
	})
	if err := errors.Join(ctx.Err(), err); err != nil {
		return 0, err
	}
	for pid, e := range r.known {
		if e.round != r.round {
			r.closeKept(e)
			delete(r.known, pid)
		}
	}
	return unreadable, nil
}

// readProcess reads a process. It returns nil without an error if the process is gone.
func (r *files) readProcess(pid int32) (*entry, error) {
	e := r.known[pid]
	if e != nil {
		e.quiet++
		if r.isUnchanged(e) {
			return e, nil
		}
		err := r.refresh(e)
		if err == nil {
			return e, nil
		}
		r.closeKept(e)
		delete(r.known, pid)
		if !errors.Is(err, fault.ErrNotFound) {
			return nil, err
		}
		// The PID was listed, so it may have been reused.
	}
	e = &entry{}
	e.ID.PID = pid
	if err := r.refresh(e); err != nil {
		r.closeKept(e)
		return nil, err
	}
	r.known[pid] = e
	return e, nil
}

// isDue reports whether to read e's files although it did not run.
func (e *entry) isDue() bool { return e.quiet%idleReadings == 0 }

// isUnchanged reports whether e's clock shows that it did not run since it was read, so
// that its values are still valid. An equal value in ns is certain not to be that of
// another process.
func (r *files) isUnchanged(e *entry) bool {
	if e.isDue() {
		r.closeKept(e)
		return false
	}
	if !r.clock {
		return false
	}
	cpu, err := CPUTime(e.ID.PID)
	return err == nil && cpu == e.CPU
}

// refresh reads e again. It must be the same process.
func (r *files) refresh(e *entry) error {
	var opened [3]*hostfs.File
	next, ran, err := r.collect(e, &opened)
	for which, f := range opened {
		switch {
		case f == nil:
		case err == nil && ran && r.spareDescriptors > 0:
			e.kept[which] = f
			r.spareDescriptors--
		default:
			_ = f.Close() // nothing was written
		}
	}
	if err != nil {
		return err
	}
	if ran {
		e.quiet = 0
	}
	e.Process = next
	return nil
}

// collect reads e and reports whether it ran since the last reading. The files that it
// opened are in opened.
func (r *files) collect(e *entry, opened *[3]*hostfs.File) (p Process, ran bool, err error) {
	p = e.Process
	pid, fresh := p.ID.PID, p.ID.Start == 0
	cpu := int64(-1)
	if r.clock && !fresh {
		// Read the clock first; the files then confirm the process. An error here recurs
		// there.
		if c, err := CPUTime(pid); err == nil {
			cpu = c
		}
	}
	b, err := r.file(e, statFile, opened)
	if err != nil {
		return p, false, err
	}
	st, err := procfmt.ProcStat(b)
	if err != nil {
		return p, false, fmt.Errorf("%s/stat: %w", dir(pid), err)
	}
	if int32(st.PID) != pid || !fresh && p.ID.Start != st.Start {
		return p, false, fmt.Errorf("%s: another process: %w", dir(pid), fault.ErrNotFound)
	}
	p.ID.Start, p.Parent, p.Threads = st.Start, int32(st.Parent), st.Threads
	p.RSS = min(st.RSSPages, 1<<40) * r.page
	if p.Name != string(st.Comm) {
		p.Name = string(st.Comm)
	}
	if r.clock && cpu < 0 {
		if cpu, err = CPUTime(pid); err != nil {
			return p, false, fmt.Errorf("%s: clock: %w", dir(pid), fault.ErrNotFound)
		}
	}
	if p.CPU = cpu; !r.clock {
		p.CPU = st.User + st.System
	}
	ran = !fresh && p.CPU != e.CPU
	if !fresh && !ran && !e.isDue() {
		return p, false, nil
	}
	if err := r.group(e, &p, opened); err != nil {
		return p, false, err
	}
	r.io(e, &p, opened)
	if *opened != [3]*hostfs.File{} {
		// Files were opened by PID: they belong to this process if it still exists.
		if _, err := r.file(e, statFile, opened); err != nil {
			return p, false, err
		}
	}
	return p, ran, nil
}

func (r *files) group(e *entry, p *Process, opened *[3]*hostfs.File) error {
	b, err := r.file(e, cgroupFile, opened)
	if err != nil {
		return err
	}
	g, ok := parseGroup(b, r.hierarchy.ID)
	switch {
	case !ok:
		return fmt.Errorf("%s/cgroup: hierarchy %d: %w", dir(p.ID.PID), r.hierarchy.ID, fault.ErrInvalid)
	case r.hierarchy.Namespace != "":
		p.Group = r.hierarchy.Absolute(string(g))
	case p.Group != string(g):
		p.Group = string(g)
	}
	return nil
}

// io reads the block I/O of the process, if allowed.
func (r *files) io(e *entry, p *Process, opened *[3]*hostfs.File) {
	if e.ioDenied {
		return
	}
	p.HasIO = false
	b, err := r.file(e, ioFile, opened)
	if err != nil {
		e.ioDenied = errors.Is(err, fault.ErrDenied) || errors.Is(err, fault.ErrNotFound)
		return
	}
	if c, err := procfmt.ProcIO(b); err == nil {
		p.Read, p.Written, p.HasIO = c.Read, c.Written, true
	}
}

// file reads a file of e's process, through a kept or opened descriptor, else through a new
// one, which it adds to opened.
func (r *files) file(e *entry, which int, opened *[3]*hostfs.File) ([]byte, error) {
	f := cmp.Or(e.kept[which], opened[which])
	if f == nil {
		var err error
		if f, err = r.h.Open(dir(e.ID.PID) + fileNames[which]); err != nil {
			return nil, err
		}
		opened[which] = f
	}
	n, err := f.Pread(r.buf)
	if err != nil {
		return nil, hostfs.Kind(dir(e.ID.PID)+fileNames[which], err)
	}
	return r.buf[:n], nil
}

// closeKept closes the kept descriptors of e.
func (r *files) closeKept(e *entry) {
	for which, f := range e.kept {
		if f != nil {
			_ = f.Close() // nothing was written
			r.spareDescriptors++
			e.kept[which] = nil
		}
	}
}

func dir(pid int32) string { return "/proc/" + strconv.Itoa(int(pid)) }

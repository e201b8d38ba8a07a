package storage

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
)

// Limits of what is read of a workload's groups and processes, which it may make long.
const (
	maxProcs     = 16 << 10  // bytes of a group's list of processes
	maxTried     = 64        // processes that are compared
	maxSubgroups = 16        // groups that are looked into
	maxMountinfo = 256 << 10 // bytes
	maxStat      = 16 << 10  // bytes of /proc/PID/stat and cgroup
)

var (
	errNoProcess = fmt.Errorf("no process is in the group: %w", fault.ErrNotFound)
	errNoOverlay = fmt.Errorf("the root of the container is not one overlay with a writable layer: %w", fault.ErrUnsupported)
	errRelative  = fmt.Errorf("the mount table has a relative path of the writable layer: %w", fault.ErrUnsupported)
	errNotLayer  = fmt.Errorf("the directory of the writable layer is not found, or not certain: %w", fault.ErrUnsupported)
	errNotYet    = fmt.Errorf("the container has the root of its parent still: %w", fault.ErrUnavailable)
	errTooLong   = fmt.Errorf("longer than what is read: %w", fault.ErrUnsupported)
	errUsers     = fmt.Errorf("the container has a user namespace of its own, in which it may mount what it likes: %w", fault.ErrUnsupported)
	errOtherDisk = fmt.Errorf("not on a file system of a local disk: %w", fault.ErrUnsupported)
	errReplaced  = fmt.Errorf("the container was replaced while it was measured: %w", fault.ErrConflict)
)

// A process is a process of a container. All that is read through its descriptor is of this process, also if its number is
// used again: after its end nothing is read.
type process struct {
	fd     int // of /proc/PID
	parent int
	start  int64
}

func (p *process) close() error { return unix.Close(p.fd) }

func (l *locator) openProcess(pid int) (*process, error) {
	fd, err := unix.Open(l.host.Path("/proc/"+strconv.Itoa(pid)), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, hostfs.Kind("process", err)
	}
	p := &process{fd: fd}
	b, err := p.read("stat", maxStat)
	if err == nil {
		var st procfmt.Process
		st, err = procfmt.ProcStat(b)
		p.parent, p.start = st.Parent, st.Start
	}
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// read returns a file of the process, which has at most that many bytes.
func (p *process) read(name string, limit int) ([]byte, error) {
	fd, err := unix.Openat(p.fd, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, hostfs.Kind(name, err)
	}
	defer func() { _ = unix.Close(fd) }() // it was only read
	var all []byte
	for {
		all = slices.Grow(all, 4096)
		n, err := unix.Read(fd, all[len(all):cap(all)])
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return nil, hostfs.Kind(name, err)
		case n == 0:
			return all, nil
		}
		if all = all[:len(all)+n]; len(all) > limit {
			return nil, fmt.Errorf("%s: %w", name, errTooLong)
		}
	}
}

// isIn reports whether the process is in the group of a workload, or below it.
func (p *process) isIn(x *Target) (bool, error) {
	b, err := p.read("cgroup", maxStat)
	if err != nil {
		return false, err
	}
	ms, err := procfmt.Cgroups(b)
	if err != nil {
		return false, err
	}
	for _, m := range ms {
		if m.Hierarchy == int(x.Hierarchy.ID) && !m.Deleted {
			rest, ok := strings.CutPrefix(x.Hierarchy.Absolute(m.Path), x.Path)
			return ok && (rest == "" || rest[0] == '/'), nil
		}
	}
	return false, nil
}

// sharesUsers reports whether the process is in the user namespace of this one. A process that is was never in another one:
// none leaves its own for one above. It may mount file systems only with the rights of the machine's administrator.
func (p *process) sharesUsers(host *hostfs.FS) (bool, error) {
	const name = "ns/user"
	var own, its [64]byte
	n, err := unix.Readlink(host.Path("/proc/self/"+name), own[:])
	if err != nil {
		return false, hostfs.Kind(name, err)
	}
	m, err := unix.Readlinkat(p.fd, name, its[:])
	return err == nil && bytes.Equal(own[:n], its[:m]), hostfs.Kind(name, err)
}

// root returns the identity of the process's root directory.
func (p *process) root() (fileID, error) {
	st, err := status(p.fd, "root", 0)
	return idOf(&st), hostfs.Kind("root", err)
}

// A layer is the writable layer of a container by the mount table of one of its processes.
type layer struct {
	upper string
	mount int // id of the mount
	root  fileID
}

// layer returns the writable layer of the overlay that is the root of the process. The mount table is believed only in the user
// namespace of this process: in one of its own a container can mount an overlay whose path and numbers are those of another one.
func (p *process) layer(host *hostfs.FS) (layer, error) {
	switch same, err := p.sharesUsers(host); {
	case err != nil:
		return layer{}, err
	case !same:
		return layer{}, errUsers
	}
	b, err := p.read("mountinfo", maxMountinfo)
	if err != nil {
		return layer{}, err
	}
	var found []byte
	for line := range bytes.Lines(b) {
		if f := bytes.SplitN(line, []byte(" "), 6); len(f) == 6 && string(f[4]) == "/" {
			if found != nil {
				return layer{}, errNoOverlay // one hides the other
			}
			found = line
		}
	}
	ms, err := procfmt.Mountinfo(found)
	if err != nil || len(ms) != 1 {
		return layer{}, errors.Join(errNoOverlay, err)
	}
	const option = "upperdir="
	m := ms[0]
	// A path with a comma looks like several options.
	if m.Type != "overlay" || m.Root != "/" || strings.Count(m.Super, option) != 1 {
		return layer{}, errNoOverlay
	}
	_, upper, _ := strings.Cut(","+m.Super, ","+option)
	upper, _, _ = strings.Cut(upper, ",")
	if !path.IsAbs(upper) || path.Clean(upper) != upper {
		return layer{}, errRelative
	}
	root, err := p.root()
	return layer{upper, m.ID, root}, err
}

// firstProcess returns the oldest process of a container's group, as far as a look at some of them tells: its first one.
func (l *locator) firstProcess(x *Target) (first *process, err error) {
	top, ok := x.Hierarchy.Dir(x.Path)
	if !ok {
		return nil, errNoProcess
	}
	if id, err := l.host.ID(top); err != nil || id != x.ID {
		return nil, errReplaced
	}
	err = errNoProcess
	for dirs, n := []string{top}, 0; n < len(dirs) && n < maxSubgroups && first == nil; n++ {
		for _, pid := range l.processes(dirs[n]) {
			p, openErr := l.openProcess(pid)
			if openErr != nil {
				err = openErr
				continue
			}
			switch in, inErr := p.isIn(x); {
			case inErr != nil:
				err = errors.Join(inErr, p.close())
			case !in, first != nil && first.start <= p.start:
				_ = p.close() // it was only read
			default:
				if first != nil {
					_ = first.close()
				}
				first = p
			}
		}
		dirs = append(dirs, l.subgroups(dirs[n])...)
	}
	if first == nil {
		return nil, err
	}
	return first, nil
}

// processes returns some processes of a group, those with the lowest numbers if there are many.
func (l *locator) processes(dir string) (pids []int) {
	b, err := l.host.ReadStart(dir+"/cgroup.procs", nil, maxProcs)
	if err != nil {
		return nil
	}
	if len(b) == maxProcs {
		b = b[:bytes.LastIndexByte(b, '\n')+1]
	}
	for line := range bytes.Lines(b) {
		if pid, err := strconv.Atoi(string(bytes.TrimSpace(line))); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids[:min(len(pids), maxTried)]
}

// subgroups returns some of the groups below a group.
func (l *locator) subgroups(dir string) (dirs []string) {
	f, err := os.Open(l.host.Path(dir))
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()          // it was only read
	entries, _ := f.ReadDir(8 * maxSubgroups) // files of the group come first
	for _, e := range entries {
		if e.IsDir() && len(dirs) < maxSubgroups {
			dirs = append(dirs, dir+"/"+e.Name())
		}
	}
	return dirs
}

// openLayer opens the directory of a container's writable layer. Its path in the mount table is that of the runtime, whose root
// directory may be that of this process, of the machine or of the process's parent. An overlay whose layers are on one file system
// shows the inode number of its layer's top directory, so no program can name another directory in a mount table of its own than
// one that has it. The directories on the way to a layer in use are in the kernel's cache: nothing else is looked up, as the path
// may lead to a file system that does not answer.
func (l *locator) openLayer(x *Target, p *process, y layer) (fd int, err error) {
	if strings.HasPrefix(y.upper, path.Clean(l.cfg.Kubelet)+"/") {
		return -1, errNotLayer // a volume
	}
	roots := l.roots()
	trusted := len(roots)
	defer func() {
		for _, r := range roots {
			_ = unix.Close(r) // it was only read
		}
	}()
	if parent, err := l.openProcess(p.parent); err == nil {
		id, rootErr := parent.root()
		r, openErr := unix.Openat(parent.fd, "root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		inside, inErr := parent.isIn(x)
		shares, usersErr := parent.sharesUsers(l.host)
		isRuntime := errors.Join(inErr, usersErr) == nil && !inside && shares
		_ = parent.close() // it was only read
		switch {
		case openErr == nil && isRuntime:
			roots = append(roots, r)
		case openErr == nil:
			_ = unix.Close(r)
		}
		if rootErr == nil && id == y.root && isRuntime {
			return -1, errNotYet
		}
	}
	at := -1
	var is fileID
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | resolveCached}
	for i, r := range roots {
		one, openErr := openat2(r, y.upper, &how)
		if openErr != nil {
			err = errors.Join(err, hostfs.Kind(y.upper, openErr))
			continue
		}
		st, statErr := status(one, "", unix.AT_EMPTY_PATH)
		switch {
		case statErr != nil, st.Ino != y.root.ino, at >= 0 && idOf(&st) == is:
			_ = unix.Close(one)
		case i >= trusted && st.Dev_major == 0:
			_ = unix.Close(one) // it may be on a file system that a program serves
		case at >= 0:
			return -1, errors.Join(errNotLayer, unix.Close(one), unix.Close(at))
		default:
			at, is = one, idOf(&st)
		}
	}
	if at < 0 {
		return -1, errors.Join(errNotLayer, err)
	}
	open := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: stayBelow}
	fd, err = openat2(at, ".", &open)
	return fd, errors.Join(hostfs.Kind(y.upper, err), unix.Close(at))
}

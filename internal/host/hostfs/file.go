package hostfs

import (
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
)

// A File is an open file or directory of a machine. It is a bare descriptor:
// the runtime's poller, which costs kernel memory and a system call for each
// file of a cgroup file system, does not know of it.
type File struct {
	fd       int
	captured bool
}

// Open opens a file or directory to read. It waits for nobody: a pipe opens
// although nobody writes to it, and cannot be read. The caller closes it.
func (h *FS) Open(p string) (*File, error) {
	fd, err := h.open(p, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, wrap(p, err)
	}
	return &File{fd, h.captured != nil}, nil
}

func (h *FS) open(p string, flags int) (int, error) {
	if h.captured == nil {
		return openAt(h.real(p), flags)
	}
	f, err := h.captured.OpenFile(local(p), flags, 0o644)
	if err != nil {
		return -1, err
	}
	defer func() { _ = f.Close() }()
	return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
}

func openAt(p string, flags int) (int, error) {
	for {
		fd, err := unix.Open(p, flags|unix.O_CLOEXEC, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// Fd returns the descriptor, which stays f's.
func (f *File) Fd() int { return f.fd }

// Close closes the descriptor.
func (f *File) Close() error { return unix.Close(f.fd) }

// Pread reads from the start of the file into buf, once. A file of a cgroup
// file system that is shorter than buf is read whole by that, except those
// that list processes. The error is the operating system's own, a bare
// errno that [Kind] tells apart: ENODEV where the group is gone.
func (f *File) Pread(buf []byte) (int, error) {
	if f.captured {
		return f.replay(buf)
	}
	return pread(f.fd, buf, 0)
}

// replay reads a captured file, and makes a removed one fail as the kernel's
// would.
func (f *File) replay(buf []byte) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return 0, err
	}
	if st.Nlink == 0 {
		return 0, unix.ENODEV
	}
	return pread(f.fd, buf, 0)
}

func pread(fd int, buf []byte, offset int64) (int, error) {
	for {
		n, err := unix.Pread(fd, buf, offset)
		if err == unix.EINTR {
			continue
		}
		return max(n, 0), err
	}
}

// Kind wraps an error of [File.Pread] with its kind, as other errors of this
// package have it, and with the path.
func Kind(path string, err error) error { return wrap(path, err) }

// ReadInto reads the whole file from its start into buf[:0], in a larger
// array where buf is too small, and returns what it read. The error is bare,
// as of [File.Pread].
func (f *File) ReadInto(buf []byte) ([]byte, error) {
	if f.captured {
		if _, err := f.replay(nil); err != nil {
			return buf[:0], err
		}
	}
	return readInto(f.fd, buf)
}

func readInto(fd int, buf []byte) ([]byte, error) {
	buf = buf[:0]
	for {
		if cap(buf) == len(buf) {
			// Kernel files have no size to ask for. Half full is then the
			// least that is wasted.
			grown := make([]byte, len(buf), max(1024, 2*cap(buf)))
			copy(grown, buf)
			buf = grown
		}
		n, err := pread(fd, buf[len(buf):cap(buf)], int64(len(buf)))
		buf = buf[:len(buf)+n]
		if err != nil || n == 0 {
			return buf, err
		}
	}
}

// ReadFile reads a whole file.
func (h *FS) ReadFile(p string) ([]byte, error) { return h.ReadInto(p, nil) }

// ReadInto reads a whole file into buf[:0], in a larger array where buf is too
// small, and returns what it read.
func (h *FS) ReadInto(p string, buf []byte) ([]byte, error) {
	fd, err := h.open(p, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return buf[:0], wrap(p, err)
	}
	buf, err = readInto(fd, buf)
	// A descriptor that was only read from has nothing to lose in closing.
	_ = unix.Close(fd)
	return buf, wrap(p, err)
}

// ReadDir lists a directory, sorted by name.
func (h *FS) ReadDir(p string) ([]fs.DirEntry, error) {
	if h.captured == nil {
		es, err := os.ReadDir(h.real(p))
		return es, wrap(p, err)
	}
	es, err := fs.ReadDir(h.captured.FS(), local(p))
	return es, wrap(p, err)
}

// Readlink returns where a link points to.
func (h *FS) Readlink(p string) (string, error) {
	if h.captured == nil {
		s, err := os.Readlink(h.real(p))
		return s, wrap(p, err)
	}
	s, err := h.captured.Readlink(local(p))
	return s, wrap(p, err)
}

// WriteFile writes data to a file that exists, in one write, as control files
// want it.
func (h *FS) WriteFile(p string, data []byte) error {
	flags := unix.O_WRONLY
	if h.captured != nil {
		flags |= unix.O_TRUNC // what kernel files do by themselves
	}
	fd, err := h.open(p, flags)
	if err != nil {
		return wrap(p, err)
	}
	n, err := unix.Write(fd, data)
	for err == unix.EINTR {
		n, err = unix.Write(fd, data)
	}
	if cerr := unix.Close(fd); err == nil {
		err = cerr
	}
	if err == nil && n != len(data) {
		err = fmt.Errorf("wrote %d of %d bytes", n, len(data))
	}
	return wrap(p, err)
}

// Mkdir makes a directory: in a cgroup file system, a group.
func (h *FS) Mkdir(p string) error {
	if h.captured == nil {
		return wrap(p, unix.Mkdir(h.real(p), 0o755))
	}
	return wrap(p, h.captured.Mkdir(local(p), 0o755))
}

// Rmdir removes an empty directory: in a cgroup file system, a group without
// processes and children.
func (h *FS) Rmdir(p string) error {
	if h.captured == nil {
		return wrap(p, unix.Rmdir(h.real(p)))
	}
	return wrap(p, h.captured.Remove(local(p)))
}

// ID returns the number that tells a file of a kernel file system from all
// others: of a group, its 64-bit kernfs id; of a namespace link under
// /proc/PID/ns, the namespace's. A captured machine keeps them in /mete/ids;
// what is not in there has none.
func (h *FS) ID(p string) (uint64, error) {
	if h.captured != nil {
		return h.capturedID(p)
	}
	// On 64-bit machines the inode number of kernfs is the whole id
	// (fs/kernfs, kernfs_ino), generation included.
	var st unix.Stat_t
	if err := unix.Stat(h.real(p), &st); err != nil {
		return 0, wrap(p, err)
	}
	return st.Ino, nil
}

// Leaf reports whether a directory of a kernel file system certainly has no
// directories in it: its link count tells, for the price of one call. On a
// captured machine nothing is certain.
func (h *FS) Leaf(p string) bool {
	if h.captured != nil {
		return false
	}
	_, leaf := h.Dir(p)
	return leaf
}

// Dir returns what ID and Leaf tell of a directory for the price of one call; an
// id of 0 where it has none.
func (h *FS) Dir(p string) (id uint64, leaf bool) {
	var st unix.Stat_t
	switch {
	case h.captured != nil:
		id, _ = h.capturedID(p) // 0 with an error
	case unix.Stat(h.real(p), &st) == nil:
		id, leaf = st.Ino, st.Nlink == 2
	}
	return id, leaf
}

// capturedID looks p up in lines of number and path.
func (h *FS) capturedID(p string) (uint64, error) {
	if _, err := h.captured.Lstat(local(p)); err != nil {
		return 0, wrap(p, err)
	}
	b, err := h.ReadFile("/mete/ids")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		n, at, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if at == "/"+local(p) {
			id, err := strconv.ParseUint(n, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("/mete/ids: %q: %w", line, fault.ErrInvalid)
			}
			return id, nil
		}
	}
	return 0, fmt.Errorf("%s: no id in /mete/ids: %w", p, fault.ErrNotFound)
}

package hostfs

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
)

// A File is an open file or directory of a machine. It is a bare descriptor: the runtime's
// poller would cost kernel memory and a system call for each file of a cgroup file system.
type File struct {
	fd       int
	captured bool
}

// Open opens a file or directory for reading. It does not block: a pipe opens without a
// writer, and cannot be read. The caller closes the file.
func (h *FS) Open(p string) (*File, error) {
	fd, err := h.open(p, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, wrap(p, err)
	}
	return &File{fd, h.captured != nil}, nil
}

func (h *FS) open(p string, flags int) (int, error) {
	if h.captured == nil {
		return openAt(h.livePath(p), flags)
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

// Fd returns the descriptor, which f still owns.
func (f *File) Fd() int { return f.fd }

// Close closes the descriptor.
func (f *File) Close() error { return unix.Close(f.fd) }

// Pread reads once from the start of the file into buf. That reads a whole file of a cgroup
// file system if it is shorter than buf, except files that list processes. The error is a
// bare errno, which [Kind] classifies: ENODEV if the group is gone.
func (f *File) Pread(buf []byte) (int, error) {
	if f.captured {
		return f.replay(buf)
	}
	return pread(f.fd, buf, 0)
}

// replay reads a captured file. A removed one fails with ENODEV, as in the kernel.
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

// Kind wraps an error of [File.Pread] with its fault kind and the path, like other errors
// of this package.
func Kind(path string, err error) error { return wrap(path, err) }

// ReadInto reads the whole file from its start into buf[:0], growing it if needed, and
// returns the data. The error is bare, as of [File.Pread].
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
			// Kernel files report no size; doubling wastes half at most.
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

// ReadInto reads a whole file into buf[:0], growing it if needed, and returns the data.
func (h *FS) ReadInto(p string, buf []byte) ([]byte, error) {
	fd, err := h.open(p, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return buf[:0], wrap(p, err)
	}
	buf, err = readInto(fd, buf)
	// Nothing was written, so closing cannot lose data.
	_ = unix.Close(fd)
	return buf, wrap(p, err)
}

// ReadStart reads the first bytes of a file, at most limit, into buf, which it extends if it is too small.
func (h *FS) ReadStart(p string, buf []byte, limit int) ([]byte, error) {
	fd, err := h.open(p, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, wrap(p, err)
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	const piece = 16 << 10
	b := buf[:0]
	for {
		b = slices.Grow(b, min(piece, limit-len(b)))
		n, err := pread(fd, b[len(b):min(cap(b), limit)], int64(len(b)))
		if b = b[:len(b)+n]; err != nil || n == 0 || len(b) == limit {
			return b, wrap(p, err)
		}
	}
}

// ReadDir lists a directory, sorted by name.
func (h *FS) ReadDir(p string) ([]fs.DirEntry, error) {
	if h.captured == nil {
		es, err := os.ReadDir(h.livePath(p))
		return es, wrap(p, err)
	}
	es, err := fs.ReadDir(h.captured.FS(), local(p))
	return es, wrap(p, err)
}

// Readlink returns the target of a link.
func (h *FS) Readlink(p string) (string, error) {
	if h.captured == nil {
		s, err := os.Readlink(h.livePath(p))
		return s, wrap(p, err)
	}
	s, err := h.captured.Readlink(local(p))
	return s, wrap(p, err)
}

// WriteFile writes data to an existing file in one write, as control files require.
func (h *FS) WriteFile(p string, data []byte) error {
	flags := unix.O_WRONLY
	if h.captured != nil {
		flags |= unix.O_TRUNC // kernel files are replaced anyway
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
		return wrap(p, unix.Mkdir(h.livePath(p), 0o755))
	}
	return wrap(p, h.captured.Mkdir(local(p), 0o755))
}

// Rmdir removes an empty directory: in a cgroup file system, a group without
// processes and children.
func (h *FS) Rmdir(p string) error {
	if h.captured == nil {
		return wrap(p, unix.Rmdir(h.livePath(p)))
	}
	return wrap(p, h.captured.Remove(local(p)))
}

// ID returns the unique number of a file of a kernel file system: the 64-bit kernfs id of a
// group, the number of a namespace link under /proc/PID/ns. A captured machine keeps them
// in /mete/ids; files not in there have none.
func (h *FS) ID(p string) (uint64, error) {
	if h.captured != nil {
		return h.capturedID(p)
	}
	// On 64-bit machines the inode number of kernfs is the whole id
	// (fs/kernfs, kernfs_ino), generation included.
	var st unix.Stat_t
	if err := unix.Stat(h.livePath(p), &st); err != nil {
		return 0, wrap(p, err)
	}
	return st.Ino, nil
}

// Leaf reports whether a directory of a kernel file system certainly has no subdirectories,
// by its link count, in one system call. It is always false on a captured machine.
func (h *FS) Leaf(p string) bool {
	if h.captured != nil {
		return false
	}
	_, leaf := h.Dir(p)
	return leaf
}

// Dir returns ID and Leaf of a directory in one system call; id is 0 if it has none.
func (h *FS) Dir(p string) (id uint64, leaf bool) {
	var st unix.Stat_t
	switch {
	case h.captured != nil:
		id, _ = h.capturedID(p) // 0 with an error
	case unix.Stat(h.livePath(p), &st) == nil:
		id, leaf = st.Ino, st.Nlink == 2
	}
	return id, leaf
}

// capturedID looks p up in /mete/ids, whose lines are a number and a path.
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

package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
)

// Limits of a tree: a container may make it deep, or give many names to many inodes.
const (
	maxDepth = 2048 // directories below each other
	maxLinks = 1024 // inodes with several names that are remembered
)

// stayBelow keeps the opening of a file below a directory, on its mount and away from links.
const stayBelow = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// resolveCached is RESOLVE_CACHED of openat2(2): what is not in the kernel's cache is not looked up.
const resolveCached = 0x20

// A fileID identifies a file while it exists.
type fileID struct{ dev, ino uint64 }

// A tree sums the blocks of a directory and of all below it on the same mount, in several steps. It has one descriptor, for
// the directory that it reads, whatever the depth, and returns to the one above by "..", which must be the one that it came
// from. Files that change between steps may be missed, or counted as they were.
type tree struct {
	fd       int     // of the latest one of path
	path     []place // from the top down
	logs     bool    // only the logs in the directory itself count
	noAccess int     // O_NOATIME, if it is allowed
	links    map[fileID]struct{}
	maxLinks int
	bytes    int64
}

// A place is a directory, and how far it is read.
type place struct {
	fileID
	offset int64
}

// newTree returns the tree of an open directory, whose descriptor it takes over.
func newTree(fd int, logs bool) (*tree, error) {
	t := &tree{fd: fd, logs: logs, noAccess: unix.O_NOATIME, maxLinks: maxLinks}
	st, err := status(fd, "", unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	if !logs {
		t.bytes = int64(st.Blocks) * 512
	}
	t.path = []place{{fileID: idOf(&st)}}
	return t, nil
}

func (t *tree) close() error {
	if t.fd < 0 {
		return nil
	}
	fd := t.fd
	t.fd = -1
	return unix.Close(fd)
}

// step looks at up to n files, or a few more, and returns at how many. At the end it returns done.
func (t *tree) step(n int, buf []byte) (looked int, done bool, err error) {
	for looked < n {
		here := &t.path[len(t.path)-1]
		var size int
		_, err := unix.Seek(t.fd, here.offset, unix.SEEK_SET)
		if err == nil {
			size, err = unix.Getdents(t.fd, buf)
		}
		if err != nil && !t.isRemoved() {
			return looked, false, err
		}
		looked++ // so that each step ends
		if size <= 0 {
			if len(t.path) == 1 {
				return looked, true, nil
			}
			if err := t.up(); err != nil {
				return looked, false, err
			}
			continue
		}
		some, err := t.read(buf[:size])
		looked += some
		if err != nil {
			return looked, false, err
		}
	}
	return looked, false, nil
}

// isRemoved reports whether the present directory was removed: it has no entries then.
func (t *tree) isRemoved() bool {
	st, err := status(t.fd, "", unix.AT_EMPTY_PATH)
	return err == nil && st.Nlink == 0
}

// read adds the entries of a directory up to the first directory among them, which it enters.
func (t *tree) read(entries []byte) (looked int, err error) {
	here := len(t.path) - 1
	for len(entries) > 0 {
		// struct linux_dirent64: inode, offset of the next entry, length, type, name.
		const header = 19
		if len(entries) < header {
			return looked, errEntries
		}
		next := int64(binary.NativeEndian.Uint64(entries[8:]))
		length := int(binary.NativeEndian.Uint16(entries[16:]))
		if length < header || length > len(entries) {
			return looked, errEntries
		}
		kind := entries[18]
		name, _, _ := strings.Cut(string(entries[header:length]), "\x00")
		entries = entries[length:]
		t.path[here].offset = next
		if name == "." || name == ".." {
			continue
		}
		looked++
		if t.logs && (kind == unix.DT_DIR || !strings.Contains(name, ".log")) {
			continue
		}
		if kind == unix.DT_DIR || kind == unix.DT_UNKNOWN {
			switch entered, err := t.enter(name); {
			case err != nil:
				return looked, err
			case entered:
				return looked, nil
			case kind == unix.DT_DIR:
				continue
			}
		}
		if err := t.add(name); err != nil {
			return looked, err
		}
	}
	return looked, nil
}

var (
	errEntries = fmt.Errorf("the entries of a directory cannot be read: %w", fault.ErrInvalid)
	errMoved   = fmt.Errorf("a directory was moved while it was read: %w", fault.ErrConflict)
	errDeep    = fmt.Errorf("more than %d directories below each other: %w", maxDepth, fault.ErrUnsupported)
)

// enter goes on in a directory of the present one. It does not if that is another mount, or not there any more.
func (t *tree) enter(name string) (entered bool, err error) {
	if len(t.path) == maxDepth {
		return false, errDeep
	}
	fd, err := t.open(name, stayBelow)
	switch err {
	case nil:
	case unix.EXDEV, unix.ENOENT, unix.ENOTDIR, unix.ELOOP:
		return false, nil
	default:
		return false, err
	}
	st, err := status(fd, "", unix.AT_EMPTY_PATH)
	if err != nil {
		return false, errors.Join(err, unix.Close(fd))
	}
	t.bytes += int64(st.Blocks) * 512
	t.path = append(t.path, place{fileID: idOf(&st)})
	old := t.fd
	t.fd = fd
	return true, unix.Close(old)
}

// up returns to the directory above.
func (t *tree) up() error {
	fd, err := t.open("..", stayBelow&^unix.RESOLVE_BENEATH)
	if err != nil {
		return err
	}
	old := t.fd
	t.fd = fd
	if err := unix.Close(old); err != nil {
		return err
	}
	st, err := status(fd, "", unix.AT_EMPTY_PATH)
	if err != nil {
		return err
	}
	if t.path = t.path[:len(t.path)-1]; t.path[len(t.path)-1].fileID != idOf(&st) {
		return errMoved
	}
	return nil
}

// open opens a directory for reading. The time of its last access does not change if the file system allows that.
func (t *tree) open(name string, resolve uint64) (int, error) {
	how := unix.OpenHow{Flags: uint64(unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | t.noAccess), Resolve: resolve}
	fd, err := openat2(t.fd, name, &how)
	if err == unix.EPERM && t.noAccess != 0 { // it takes the owner, or CAP_FOWNER
		t.noAccess = 0
		return t.open(name, resolve)
	}
	return fd, err
}

// add adds the blocks of a file that is not a directory. An inode with several names counts once; beyond maxLinks of them each
// name has its part, which is the same where all names are in the tree.
func (t *tree) add(name string) error {
	st, err := status(t.fd, name, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 || st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return nil
	}
	bytes := int64(st.Blocks) * 512
	if st.Nlink > 1 && bytes > 0 {
		id := idOf(&st)
		_, counted := t.links[id]
		switch {
		case counted:
			return nil
		case len(t.links) < t.maxLinks:
			if t.links == nil {
				t.links = map[fileID]struct{}{}
			}
			t.links[id] = struct{}{}
		default:
			bytes /= int64(st.Nlink)
		}
	}
	t.bytes += bytes
	return nil
}

// status returns what is known of a file without a request to a server.
func status(dir int, name string, flags int) (st unix.Statx_t, err error) {
	for {
		err = unix.Statx(dir, name, flags|unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE|unix.STATX_INO|unix.STATX_NLINK|unix.STATX_BLOCKS, &st)
		if err != unix.EINTR {
			return st, err
		}
	}
}

func idOf(st *unix.Statx_t) fileID { return fileID{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino} }

func openat2(dir int, name string, how *unix.OpenHow) (int, error) {
	for range 100 {
		fd, err := unix.Openat2(dir, name, how)
		if err != unix.EINTR && err != unix.EAGAIN { // EAGAIN: something on the way was moved
			return fd, err
		}
	}
	return -1, unix.EAGAIN
}

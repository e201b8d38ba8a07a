package cgroup

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"path"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
)

// A change is what happened to a directory.
type change uint8

const (
	created change = iota
	removed
	movedAway // to another name
	movedHere
)

// watches reports the creation, removal and renaming of directories, by inotify.
type watches struct {
	host    *hostfs.FS
	fd      int
	dirOf   map[int32]watchedDir
	watchOf map[watchedDir]int32
	buf     []byte
}

type watchedDir struct {
	tr   *tree
	path string
}

func newWatches(h *hostfs.FS) (*watches, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w: %w", err, fault.ErrUnavailable)
	}
	return &watches{host: h, fd: fd, dirOf: map[int32]watchedDir{}, watchOf: map[watchedDir]int32{}, buf: make([]byte, 64<<10)}, nil
}

func (w *watches) Close() error { return unix.Close(w.fd) }

// add watches one group's directory. The error is fault.ErrNotFound if it is gone.
func (w *watches) add(tr *tree, group string) error {
	dir := tr.dir(group)
	wd, err := unix.InotifyAddWatch(w.fd, w.host.Path(dir), unix.IN_CREATE|unix.IN_DELETE|unix.IN_MOVE|unix.IN_ONLYDIR)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%s: %w", dir, fault.ErrNotFound)
	case err != nil:
		return fmt.Errorf("inotify: %s: %w (fs.inotify.max_user_watches?)", dir, err)
	}
	w.dirOf[int32(wd)] = watchedDir{tr, group}
	w.watchOf[watchedDir{tr, group}] = int32(wd)
	return nil
}

// remove ends the watch of a removed group: the kernel keeps the directory of a cgroup file
// system while it is watched.
func (w *watches) remove(tr *tree, group string) {
	at := watchedDir{tr, group}
	wd, ok := w.watchOf[at]
	if !ok {
		return
	}
	delete(w.watchOf, at)
	delete(w.dirOf, wd)
	// EINVAL: the kernel has removed the watch already.
	_, _ = unix.InotifyRmWatch(w.fd, uint32(wd))
}

// drain calls f for each directory that changed since the last call, in order. It reports whether the kernel dropped events.
func (w *watches) drain(f func(tr *tree, path string, what change) error) (overflow bool, err error) {
	for {
		n, err := unix.Read(w.fd, w.buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EAGAIN) || n <= 0 {
			return overflow, nil
		}
		if err != nil {
			return overflow, fmt.Errorf("inotify: %w", err)
		}
		for b := w.buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			wd := int32(binary.NativeEndian.Uint32(b))
			mask := binary.NativeEndian.Uint32(b[4:])
			size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
			name := string(bytes.TrimRight(b[unix.SizeofInotifyEvent:size], "\x00"))
			b = b[size:]
			at, known := w.dirOf[wd]
			switch {
			case mask&unix.IN_Q_OVERFLOW != 0:
				overflow = true
			case mask&unix.IN_IGNORED != 0:
				delete(w.dirOf, wd)
				if known && w.watchOf[at] == wd {
					delete(w.watchOf, at)
				}
			case known && mask&unix.IN_ISDIR != 0:
				if err := f(at.tr, path.Join(at.path, name), changeOf(mask)); err != nil {
					return overflow, err
				}
			}
		}
	}
}

func changeOf(mask uint32) change {
	switch {
	case mask&unix.IN_CREATE != 0:
		return created
	case mask&unix.IN_MOVED_FROM != 0:
		return movedAway
	case mask&unix.IN_MOVED_TO != 0:
		return movedHere
	}
	return removed
}

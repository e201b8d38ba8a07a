// Package hostfs is the only access to /proc, /sys and the cgroup file systems.
//
// An [FS] opens them at a root: this machine's, another view of this machine (the host's
// files mounted into a container), or the directory of a captured machine with its links
// and clocks. Code that reads through an FS works the same on all three. Paths are those of
// the machine, "/proc/stat", and cannot leave the root of a captured one.
//
// Errors name the path and wrap the operating system's error and its kind, if it has one:
// fault.ErrNotFound for what does not exist or was removed, fault.ErrDenied,
// fault.ErrUnsupported, and fault.ErrConflict for what exists already or is in use.
package hostfs

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// clocksFile holds the clocks of a captured machine; only captured machines have it.
const clocksFile = "/mete/clocks"

// An FS is the files of a machine. It is safe for concurrent use.
type FS struct {
	root     string   // without a slash at its end; "" for this machine
	captured *os.Root // nil for a live machine

	shown map[string]shownRoot // by key of the hierarchy; nil without ShowRoots
}

// Open opens the machine whose /proc and /sys are below root: "/" or "" for this machine as
// the process sees it.
func Open(root string) (*FS, error) {
	root = path.Clean("/" + root)
	if root == "/" {
		return &FS{}, nil
	}
	h := &FS{root: root}
	var st unix.Statfs_t
	if err := unix.Statfs(root+"/proc", &st); err != nil {
		return nil, wrap(root+"/proc", err)
	}
	if st.Type == unix.PROC_SUPER_MAGIC {
		return h, nil
	}
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil, wrap(root, err)
	}
	h.captured = r
	if _, err := h.Clocks(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: neither a live nor a captured machine: %w", root, err), r.Close())
	}
	return h, nil
}

// Close releases the root. Files opened through h stay open.
func (h *FS) Close() error {
	var err error
	for _, r := range h.shown {
		if r.dir != nil {
			err = errors.Join(err, r.dir.Close())
		}
	}
	h.shown = nil
	if h.captured != nil {
		err = errors.Join(err, h.captured.Close())
	}
	return err
}

// Live reports whether h is a running machine, not a captured one.
func (h *FS) Live() bool { return h.captured == nil }

// Path returns the path of the machine's file p for this process.
func (h *FS) Path(p string) string { return h.root + path.Clean("/"+p) }

// livePath is Path without path.Clean, for live machines.
func (h *FS) livePath(p string) string {
	if strings.HasPrefix(p, "/") {
		return h.root + p
	}
	return h.root + "/" + p
}

// local returns p in the form that os.Root takes.
func local(p string) string {
	if p = strings.TrimPrefix(path.Clean("/"+p), "/"); p == "" {
		return "."
	}
	return p
}

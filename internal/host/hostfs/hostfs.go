// Package hostfs is the only door to /proc, /sys and the cgroup file systems.
//
// A [FS] opens them at a root: this machine's, another view of this machine
// (the host's files mounted into a container), or a directory in which a
// machine was captured, links, clocks and all. What reads through an FS runs
// the same on all three. Paths are those of the machine, "/proc/stat", and
// cannot leave the root of a captured one.
//
// Errors name the path, wrap the operating system's error and, where it is one
// of these, the kind of it: fault.ErrNotFound for what does not exist or no
// longer does, fault.ErrDenied, fault.ErrUnsupported, fault.ErrConflict for
// what is there already or in use.
package hostfs

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// clocksFile, in a captured machine, holds what its clocks showed; its being
// there is what tells a captured machine from a living one.
const clocksFile = "/mete/clocks"

// A FS is a machine's files. It is safe for concurrent use.
type FS struct {
	root     string   // without a slash at its end; "" for this machine
	captured *os.Root // nil for a living machine
}

// Open opens the machine whose /proc and /sys are below root: "/" or "" for
// this machine as the process sees it.
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
		return nil, errors.Join(fmt.Errorf("%s: neither a living nor a captured machine: %w", root, err), r.Close())
	}
	return h, nil
}

// Close gives back what Open holds. Files opened through h stay open.
func (h *FS) Close() error {
	if h.captured == nil {
		return nil
	}
	return h.captured.Close()
}

// Live reports whether h is a running machine and not a captured one.
func (h *FS) Live() bool { return h.captured == nil }

// Path returns where the machine's file p is for this process.
func (h *FS) Path(p string) string { return h.root + path.Clean("/"+p) }

// real is Path without the cost of cleaning, for living machines.
func (h *FS) real(p string) string {
	if strings.HasPrefix(p, "/") {
		return h.root + p
	}
	return h.root + "/" + p
}

// local is p as os.Root wants it.
func local(p string) string {
	if p = strings.TrimPrefix(path.Clean("/"+p), "/"); p == "" {
		return "."
	}
	return p
}

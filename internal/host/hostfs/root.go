package hostfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
)

const (
	// rootID is the kernfs id of the root group of every hierarchy: the kernel numbers the
	// directories of each, beginning with its root.
	rootID = 1
	// kernfsHandle is the type of a file handle that holds a kernfs id, FILEID_KERNFS of
	// include/linux/exportfs.h.
	kernfsHandle = 0xfe
	// initialNamespace is the number of the machine's own control group namespace,
	// PROC_CGROUP_INIT_INO of include/linux/proc_ns.h.
	initialNamespace = 0xEFFFFFFB
)

// A shownRoot is the directory from which a hierarchy is read, in place of its usual mount.
type shownRoot struct {
	mount     string
	namespace string
	dir       *File // nil if mount is a mount point
}

// ShowRoots makes [FS.Hierarchies] return hierarchies from the machine's root groups, also in a
// container that sees only a part of them: from a mount of the root, else by a file handle, which
// needs CAP_DAC_READ_SEARCH. If a mount shows more than the control group namespace of this
// process, but not the root, it is used as it is. Call ShowRoots before h is shared.
//
// The error says why some of the machine's groups remain invisible; h can be used anyway.
func (h *FS) ShowRoots() error {
	if h.captured != nil || h.root != "" {
		return nil
	}
	ms, err := h.mounts()
	if err != nil {
		return err
	}
	self, err := h.memberships()
	if err != nil {
		return err
	}
	known := h.controllers(self)
	type choice struct {
		Hierarchy
		whole bool
	}
	best := map[string]choice{}
	own := map[string]uint64{} // ids of the groups that the namespace shows as "/"
	for _, m := range ms {
		if m.Type != "cgroup" && m.Type != "cgroup2" || hidden(m, ms) {
			continue
		}
		y, err := h.hierarchy(m, known, self)
		if err != nil {
			return err
		}
		id, err := h.ID(y.Mount)
		if err != nil {
			continue
		}
		key := y.key()
		if y.Root == "/" {
			own[key] = id
		}
		b, ok := best[key]
		if c := (choice{y, id == rootID}); !ok || c.whole && (!b.whole || c.Root == "/") || !b.whole && above(c.Root) > above(b.Root) {
			best[key] = c
		}
	}
	private := false
	if id, err := h.ID("/proc/self/ns/cgroup"); err == nil {
		private = id != initialNamespace
	}
	var errs []error
	h.shown = map[string]shownRoot{}
	for key, y := range best {
		if y.whole && y.Root == "/" {
			continue
		}
		r := shownRoot{mount: y.Mount}
		if !y.whole && above(y.Root) == 0 {
			if r.dir, err = openGroup(y.Mount, rootID); err != nil {
				errs = append(errs, err)
				continue
			}
			r.mount = "/proc/self/fd/" + strconv.Itoa(r.dir.Fd())
		}
		if private && y.Self != "" {
			r.namespace = h.findNamespace(r.mount, own[key], y.Self)
		}
		h.shown[key] = r
	}
	return errors.Join(errs...)
}

// above returns how many levels above the control group namespace of this process a mount's root
// is.
func above(root string) int {
	n := strings.Count(root, "/..")
	if len(root) != n*len("/..") {
		return 0
	}
	return n
}

// key identifies a hierarchy among the mounted ones.
func (y Hierarchy) key() string {
	if y.V2 {
		return "v2"
	}
	return y.Name + "=" + strings.Join(y.Controllers, ",")
}

// show returns y as ShowRoots has it.
func (h *FS) show(y Hierarchy) Hierarchy {
	r, ok := h.shown[y.key()]
	if !ok {
		return y
	}
	y.Mount, y.Root, y.Namespace = r.mount, "/", r.namespace
	if y.Self != "" {
		y.Self = y.Absolute(y.Self)
	}
	return y
}

// Absolute returns the path below the mount's root of a group that a kernel file, such as
// /proc/PID/cgroup, names relative to the control group namespace of this process. Without
// [FS.ShowRoots] it returns the path as it is.
func (y Hierarchy) Absolute(group string) string {
	if y.Namespace == "" {
		return group
	}
	return path.Join(y.Namespace, group)
}

// ShowsRoot reports whether the mount of a hierarchy shows the machine's root group, and so all
// groups.
func (h *FS) ShowsRoot(y Hierarchy) (bool, error) {
	id, err := h.ID(y.Mount)
	if err != nil && !h.Live() {
		return y.Root == "/", nil // most captured machines have no ids
	}
	return id == rootID, err
}

// openGroup opens the directory of the group with this id, wherever it is in the hierarchy that is
// mounted there.
func openGroup(mount string, id uint64) (*File, error) {
	at, err := openAt(mount, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, wrap(mount, err)
	}
	fd, err := unix.OpenByHandleAt(at, unix.NewFileHandle(kernfsHandle, binary.NativeEndian.AppendUint64(nil, id)), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC)
	_ = unix.Close(at) // nothing was written
	switch {
	case errors.Is(err, unix.EPERM):
		return nil, fault.WithHint(fmt.Errorf("%s shows only a part of the machine's control groups: open their root: %w: %w", mount, err, fault.ErrDenied),
			"give the container CAP_DAC_READ_SEARCH, or mount the machine's /sys/fs/cgroup into it")
	case err != nil:
		return nil, fmt.Errorf("%s shows only a part of the machine's control groups: open their root: %w: %w", mount, err, fault.ErrUnsupported)
	}
	return &File{fd: fd}, nil
}

// findNamespace returns the path below root of the group that the control group namespace of this
// process shows as "/": the one with this id, or if that is 0 the one in which this process is, at
// self below it. It returns "" if it cannot be found.
func (h *FS) findNamespace(root string, id uint64, self string) string {
	pid := strconv.Itoa(os.Getpid())
	var find func(p string) string
	find = func(p string) string {
		now, leaf := h.Dir(root + p)
		switch {
		case id != 0 && now == id:
			return path.Join("/", p)
		case id == 0 && strings.HasSuffix(p, strings.TrimSuffix(self, "/")) && h.holdsProcess(root+p, pid):
			return path.Join("/", strings.TrimSuffix(p, strings.TrimSuffix(self, "/")))
		case leaf:
			return ""
		}
		entries, err := h.ReadDir(root + p)
		if err != nil {
			return ""
		}
		for _, e := range entries {
			if e.IsDir() {
				if at := find(p + "/" + e.Name()); at != "" {
					return at
				}
			}
		}
		return ""
	}
	return find("")
}

// holdsProcess reports whether a process is in the group with this directory.
func (h *FS) holdsProcess(dir, pid string) bool {
	b, err := h.ReadFile(dir + "/cgroup.procs")
	return err == nil && strings.Contains("\n"+string(b), "\n"+pid+"\n")
}

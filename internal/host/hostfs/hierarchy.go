package hostfs

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
)

// A Hierarchy is a mounted hierarchy of control groups.
type Hierarchy struct {
	ID uint32 // the kernel's; 0 is v2
	V2 bool
	// Controllers are sorted. For v2 they are those of its root group: none if all are in
	// v1 hierarchies.
	Controllers []string
	Name        string // of a named v1 hierarchy, such as systemd
	// Mount is the mount point on the machine, and Root the path of the group mounted
	// there: "/" except in some containers.
	Mount, Root string
	ReadOnly    bool
	// Self is the path of this process's group as in kernel files; [Hierarchy.Dir] turns it
	// into a directory. It is empty if unknown.
	Self string
	// Namespace is the path of the group that the control group namespace of this process
	// shows as "/", where [FS.ShowRoots] shows more than that; else empty.
	Namespace string
}

// Has reports whether the controller is in the hierarchy.
func (y Hierarchy) Has(controller string) bool { return slices.Contains(y.Controllers, controller) }

// Dir returns the directory of the group with the kernel's path group, and false if the
// mount does not show it.
func (y Hierarchy) Dir(group string) (string, bool) {
	group = path.Clean("/" + group)
	if y.Root == "/" {
		return path.Join(y.Mount, group), true
	}
	rest, ok := strings.CutPrefix(group, y.Root)
	if !ok || rest != "" && rest[0] != '/' || strings.HasPrefix(y.Root, "/..") {
		return "", false
	}
	return path.Join(y.Mount, rest), true
}

// GroupIDs returns the ids of the group with this directory, and of the groups above it that the mount
// shows, from the innermost one outward.
func (h *FS) GroupIDs(y Hierarchy, dir string) (ids []uint64, err error) {
	for {
		id, err := h.ID(dir)
		if err != nil {
			return nil, err
		}
		if ids = append(ids, id); dir == y.Mount || !isBelow(dir, y.Mount) {
			return ids, nil
		}
		dir = path.Dir(dir)
	}
}

// Hierarchies lists the mounted hierarchies of control groups: v2 first, then by the
// kernel's id. Of several mounts of one it uses the one that shows most, writable before
// read-only. The error is fault.ErrUnsupported if there is none.
func (h *FS) Hierarchies() ([]Hierarchy, error) {
	mounts, err := h.mounts()
	if err != nil {
		return nil, err
	}
	self, err := h.memberships()
	if err != nil {
		return nil, err
	}
	known := h.controllers(self)
	var ys []Hierarchy
	for _, m := range mounts {
		if m.Type != "cgroup" && m.Type != "cgroup2" || hidden(m, mounts) {
			continue
		}
		y, err := h.hierarchy(m, known, self)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(ys, func(o Hierarchy) bool { return o.isSameAs(y) })
		switch {
		case i < 0:
			ys = append(ys, y)
		case y.isBetterThan(ys[i]):
			ys[i] = y
		}
	}
	if len(ys) == 0 {
		return nil, fmt.Errorf("control groups: none mounted: %w", fault.ErrUnsupported)
	}
	for i, y := range ys {
		ys[i] = h.show(y)
	}
	slices.SortStableFunc(ys, func(a, b Hierarchy) int { return int(a.ID) - int(b.ID) })
	return ys, nil
}

// mounts reads the mounts of this process or, at another root, those of the machine's
// process 1.
func (h *FS) mounts() ([]procfmt.Mount, error) {
	names := []string{"/proc/self/mountinfo", "/proc/1/mountinfo"}
	if h.captured == nil && h.root != "" {
		slices.Reverse(names)
	}
	b, err := h.ReadFile(names[0])
	p := names[0]
	if errors.Is(err, fault.ErrNotFound) {
		p = names[1]
		b, err = h.ReadFile(p)
	}
	if err != nil {
		return nil, err
	}
	ms, err := procfmt.Mountinfo(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p, err)
	}
	return ms, nil
}

// memberships reads the groups of this process; a captured machine may lack them.
func (h *FS) memberships() ([]procfmt.Membership, error) {
	const p = "/proc/self/cgroup"
	b, err := h.ReadFile(p)
	if errors.Is(err, fault.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	ms, err := procfmt.Cgroups(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p, err)
	}
	return ms, nil
}

// controllers returns the names of all v1 controllers, to tell them from other mount
// options. Kernels without v1 may lack /proc/cgroups.
func (h *FS) controllers(self []procfmt.Membership) map[string]bool {
	known := map[string]bool{}
	if b, err := h.ReadFile("/proc/cgroups"); err == nil {
		cs, err := procfmt.ProcCgroups(b)
		if err == nil {
			for _, c := range cs {
				known[c.Name] = true
			}
		}
	}
	for _, m := range self {
		for _, c := range m.Controllers {
			known[c] = true
		}
	}
	return known
}

// hierarchy returns the hierarchy of a mount.
func (h *FS) hierarchy(m procfmt.Mount, known map[string]bool, self []procfmt.Membership) (Hierarchy, error) {
	y := Hierarchy{
		V2:       m.Type == "cgroup2",
		Mount:    m.Point,
		Root:     m.Root,
		ReadOnly: procfmt.Has(m.Options, "ro") || procfmt.Has(m.Super, "ro"),
	}
	if y.V2 {
		b, err := h.ReadFile(path.Join(m.Point, "cgroup.controllers"))
		if err != nil && !errors.Is(err, fault.ErrNotFound) && !errors.Is(err, fault.ErrDenied) {
			return Hierarchy{}, err
		}
		y.Controllers = strings.Fields(string(b))
	} else {
		for o := range strings.SplitSeq(m.Super, ",") {
			if name, ok := strings.CutPrefix(o, "name="); ok {
				y.Name = name
			} else if known[o] {
				y.Controllers = append(y.Controllers, o)
			}
		}
	}
	slices.Sort(y.Controllers)
	for _, s := range self {
		slices.Sort(s.Controllers)
		if y.V2 != (s.Hierarchy == 0) || !y.V2 && (y.Name != s.Name || !slices.Equal(y.Controllers, s.Controllers)) {
			continue
		}
		y.ID, y.Self = uint32(s.Hierarchy), s.Path
	}
	return y, nil
}

// isSameAs reports whether both are mounts of one hierarchy.
func (y Hierarchy) isSameAs(o Hierarchy) bool {
	if y.V2 || o.V2 {
		return y.V2 == o.V2
	}
	return y.Name == o.Name && slices.Equal(y.Controllers, o.Controllers)
}

// isBetterThan reports whether to prefer y's mount over o's.
func (y Hierarchy) isBetterThan(o Hierarchy) bool {
	if a, b := len(path.Clean(y.Root)), len(path.Clean(o.Root)); a != b && (a == 1 || b == 1) {
		return a == 1
	}
	if y.ReadOnly != o.ReadOnly {
		return !y.ReadOnly
	}
	return len(y.Mount) < len(o.Mount)
}

// hidden reports whether another mount covers m, so that m's path leads elsewhere.
func hidden(m procfmt.Mount, all []procfmt.Mount) bool {
	for _, n := range all {
		if n.Parent == m.ID && n.Point == m.Point && n.ID != m.ID {
			return true
		}
	}
	// Follow the parents of m; the bound ends a cycle in a malformed file.
	for range len(all) {
		parent := -1
		for i, n := range all {
			if n.ID == m.ID {
				continue
			}
			// The root file system is its own parent and covers nothing.
			if n.ID != n.Parent && n.Parent == m.Parent && m.Point != n.Point && isBelow(m.Point, n.Point) {
				return true
			}
			if n.ID == m.Parent {
				parent = i
			}
		}
		if parent < 0 {
			return false
		}
		m = all[parent]
	}
	return false
}

// isBelow reports whether p is dir or below it.
func isBelow(p, dir string) bool {
	return dir == "/" || p == dir || strings.HasPrefix(p, dir) && p[len(dir)] == '/'
}

package launch

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
)

// neededControllers are the controllers from which a job's figures and limits come.
var neededControllers = []string{"cpuacct", "cpu", "memory", "blkio", "pids", "io"}

// isUseful reports whether a group in the hierarchy would show anything: every
// v2 group does, as it counts CPU time without any controller.
func isUseful(y hostfs.Hierarchy) bool {
	return y.V2 || slices.ContainsFunc(neededControllers, y.Has)
}

// parentDir returns the directory in which the job's group goes in hierarchy y.
//
// It is the caller's own group, so that all its limits hold for the job. In v2
// that can be improved upon: the kernel lets no group but the root hold both
// processes and children with controllers ("no internal processes",
// Documentation/admin-guide/cgroup-v2.rst), and the caller is in its group, so
// a child of it counts CPU time and nothing else. Moving the caller's other
// processes out of the way is not mete's to do. A sibling has the controllers
// that the parent gives to the caller's group too. It is taken where the parent
// is delegated to the caller, nobody else manages it (with systemd a scope is
// the right way) and the caller's own group sets no limit that a sibling would
// escape.
func parentDir(h *hostfs.FS, y hostfs.Hierarchy) (string, error) {
	if y.Self == "" {
		return "", fmt.Errorf("%s: the own group is not known: %w", y.Mount, fault.ErrUnsupported)
	}
	own, ok := y.Dir(y.Self)
	if !ok {
		return "", fmt.Errorf("%s: does not show the own group %s: %w", y.Mount, y.Self, fault.ErrUnsupported)
	}
	if y.ReadOnly {
		return "", fmt.Errorf("%s: mounted read-only: %w", y.Mount, fault.ErrDenied)
	}
	if !y.V2 || own == y.Mount || hasController(h, own) || isSystemdManaged(h) {
		return own, nil
	}
	parent := path.Dir(own)
	if hasController(h, parent) && isWritable(h, parent+"/cgroup.procs") && isUnlimited(h, own) {
		return parent, nil
	}
	return own, nil
}

// hasController reports whether children of the v2 group have a controller.
func hasController(h *hostfs.FS, dir string) bool {
	b, err := h.ReadFile(dir + "/cgroup.subtree_control")
	return err == nil && slices.ContainsFunc(strings.Fields(string(b)), func(c string) bool { return slices.Contains(neededControllers, c) })
}

// isSystemdManaged reports whether systemd owns the tree (sd_booted(3)).
func isSystemdManaged(h *hostfs.FS) bool {
	_, err := h.ReadDir("/run/systemd/system")
	return err == nil
}

// isUnlimited reports whether the v2 group sets no limit of its own.
func isUnlimited(h *hostfs.FS, dir string) bool {
	for _, f := range []string{"memory.max", "memory.high", "memory.swap.max", "cpu.max", "pids.max", "io.max", "cpuset.cpus", "cpuset.mems"} {
		b, err := h.ReadFile(dir + "/" + f)
		// A file that is not there is a controller that is not, or a limit
		// that this kernel does not know.
		if w := strings.Fields(string(b)); err == nil && len(w) > 0 && w[0] != "max" {
			return false
		}
	}
	return true
}

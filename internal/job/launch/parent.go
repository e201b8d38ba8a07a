package launch

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/model/fault"
)

// neededControllers are the controllers of a job's readings and limits.
var neededControllers = []string{"cpuacct", "cpu", "memory", "blkio", "pids", "io"}

// isUseful reports whether a group in the hierarchy would show anything: every v2 group does, as it
// counts CPU time without a controller.
func isUseful(y hostfs.Hierarchy) bool {
	return y.V2 || slices.ContainsFunc(neededControllers, y.Has)
}

// parentDir returns the parent directory of the job's group in hierarchy y.
//
// It is the caller's own group, so that all its limits apply to the job. For v2 there may be a
// better one: only the root may have both processes and children with controllers ("no internal
// processes", Documentation/admin-guide/cgroup-v2.rst), and the caller is in its group, so a child
// group counts only CPU time. mete does not move other processes. A sibling has the controllers
// that the parent gives to the caller's group. It is used if the parent is delegated to the caller,
// is not managed by systemd (which has scopes for this), and the caller's group sets no limit that
// a sibling would escape.
//
// A caller within a job stays within it: the job's processes are in a leaf of its group, see
// [Group.addLeaf], and a sibling of the leaf counts for the job too.
func parentDir(h *hostfs.FS, y hostfs.Hierarchy) (string, error) {
	if y.Self == "" {
		return "", fmt.Errorf("%s: own group unknown: %w", y.Mount, fault.ErrUnsupported)
	}
	own, ok := y.Dir(y.Self)
	if !ok {
		return "", fmt.Errorf("%s: own group %s is not visible: %w", y.Mount, y.Self, fault.ErrUnsupported)
	}
	if y.ReadOnly {
		return "", fmt.Errorf("%s: mounted read-only: %w", y.Mount, fault.ErrDenied)
	}
	if !y.V2 || own == y.Mount || hasController(h, own) || isJob(path.Base(own)) || isSystemdManaged(h) && !InJob(y.Self) {
		return own, nil
	}
	parent := path.Dir(own)
	if hasController(h, parent) && isWritable(h, parent+"/cgroup.procs") && isUnlimited(h, own) {
		return parent, nil
	}
	return own, nil
}

// InJob reports whether a group is one of a job, or within one.
func InJob(group string) bool { return slices.ContainsFunc(strings.Split(group, "/"), isJob) }

// isJob reports whether a group with the name is one of a job.
func isJob(name string) bool {
	_, ok := jobOf(name)
	return ok
}

// jobOf returns the ID of the job that has a group with the name, or false if none has.
func jobOf(name string) (id string, ok bool) {
	id, ok = strings.CutPrefix(name, Prefix)
	return id, ok && report.ValidID(id)
}

// hasController reports whether children of the v2 group have a controller.
func hasController(h *hostfs.FS, dir string) bool {
	b, err := h.ReadFile(dir + "/cgroup.subtree_control")
	return err == nil && slices.ContainsFunc(strings.Fields(string(b)), func(c string) bool { return slices.Contains(neededControllers, c) })
}

// isSystemdManaged reports whether systemd manages the tree (sd_booted(3)).
func isSystemdManaged(h *hostfs.FS) bool {
	_, err := h.ReadDir("/run/systemd/system")
	return err == nil
}

// isUnlimited reports whether the v2 group sets no limits.
func isUnlimited(h *hostfs.FS, dir string) bool {
	for _, f := range []string{"memory.max", "memory.high", "memory.swap.max", "cpu.max", "pids.max", "io.max", "cpuset.cpus", "cpuset.mems"} {
		b, err := h.ReadFile(dir + "/" + f)
		// A missing file means a missing controller or a limit unknown to this kernel.
		if w := strings.Fields(string(b)); err == nil && len(w) > 0 && w[0] != "max" {
			return false
		}
	}
	return true
}

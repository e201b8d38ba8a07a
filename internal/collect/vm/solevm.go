package vm

import (
	"fmt"
	"slices"
	"strings"
)

// A groupProcess is a process in a workload's groups.
type groupProcess struct {
	pid, parent int32
	name        string
	qemu        bool
	kernel      bool // a kernel thread
}

// helpers are the names of programs that serve one virtual machine each, cut to the 15
// bytes of the kernel.
var helpers = []string{"virtiofsd", "swtpm", "passt", "passt.avx2", "qemu-pr-helper", "qemu-storage-da", "slirp4netns", "vhost-user-"}

func isHelper(name string) bool {
	return slices.ContainsFunc(helpers, func(h string) bool {
		return name == h || strings.HasSuffix(h, "-") && strings.HasPrefix(name, h)
	}) || strings.HasPrefix(name, "vhost-device-")
}

// soleVM returns the virtual machine to which all processes of a workload belong: one QEMU,
// kernel threads, helpers, QEMU's children and its ancestors. why is the reason if there is
// none.
func soleVM(them []groupProcess) (pid int32, why string) {
	by := map[int32]groupProcess{}
	for _, p := range them {
		by[p.pid] = p
	}
	var machines []groupProcess
	for _, p := range them {
		if p.qemu && !hasAncestor(by, p, func(up groupProcess) bool { return up.qemu }) {
			machines = append(machines, p)
		}
	}
	switch {
	case len(machines) == 0:
		return 0, "no virtual machine is in it"
	case len(machines) > 1:
		return 0, fmt.Sprintf("%d virtual machines are in one group: %s; give each its own", len(machines), listNames(machines))
	}
	qemu := machines[0]
	var others []groupProcess
	for _, p := range them {
		switch {
		case p.qemu, p.kernel, isHelper(p.name):
		case hasAncestor(by, p, func(up groupProcess) bool { return up.pid == qemu.pid }):
		case hasAncestor(by, qemu, func(up groupProcess) bool { return up.pid == p.pid }):
		default:
			others = append(others, p)
		}
	}
	if len(others) > 0 {
		return 0, fmt.Sprintf("it shares its group with %s; give it its own", listNames(others))
	}
	return qemu.pid, ""
}

// hasAncestor reports whether f holds for an ancestor of p.
func hasAncestor(by map[int32]groupProcess, p groupProcess, f func(groupProcess) bool) bool {
	for range len(by) { // after reused PIDs, parents may form a cycle
		up, ok := by[p.parent]
		if !ok {
			return false
		}
		if f(up) {
			return true
		}
		p = up
	}
	return false
}

// maxNamed is how many processes a reason names.
const maxNamed = 4

func listNames(them []groupProcess) string {
	var b strings.Builder
	for i, p := range them {
		if i == maxNamed {
			fmt.Fprintf(&b, " and %d more", len(them)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s (PID %d)", printable(p.name), p.pid)
	}
	return b.String()
}

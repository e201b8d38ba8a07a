package doctor

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
)

// Numbers of the machine's own namespaces, of include/linux/proc_ns.h.
const (
	initialPIDs   = 0xEFFFFFFC
	initialGroups = 0xEFFFFFFB
)

// A right is a capability that the agent uses.
type right struct {
	bits    []int
	name    string
	figures string // what follows without it
}

// rights are the capabilities of mete-up.service, with the reasons of docs/guide/container.md.
var rights = []right{
	{[]int{unix.CAP_BPF, unix.CAP_PERFMON}, "CAP_BPF CAP_PERFMON", "no reader bpf: groups that end between two readings are not named"},
	{[]int{unix.CAP_NET_ADMIN}, "CAP_NET_ADMIN", "network of workloads in the machine's own network namespace is absent"},
	{[]int{unix.CAP_DAC_READ_SEARCH}, "CAP_DAC_READ_SEARCH", "energy counters, which only root may read, are not read; in a container only its own groups are seen"},
	{[]int{unix.CAP_SYS_PTRACE}, "CAP_SYS_PTRACE", "network and disk space of pods and containers are absent"},
	{[]int{unix.CAP_NET_BIND_SERVICE}, "CAP_NET_BIND_SERVICE", "virtual machines of this machine get no energy by vsock"},
}

// rights is about the user of this process, which is that of an agent that it starts.
func (d *doctor) rights() []Check {
	var out []Check
	user := of("user", OK, "root")
	if d.uid != 0 {
		user = of("user", Limited, "uid %d: what follows is what an agent of this user can measure", d.uid).do("sudo mete doctor shows what root can measure")
	}
	out = append(out, user)
	b, err := d.host.ReadFile("/proc/self/status")
	if err != nil {
		out = append(out, failed("capabilities", err))
	} else {
		out = append(out, capabilities(string(b))...)
	}
	return append(out, d.namespaces()...)
}

// capabilities returns the check of the effective capabilities in a file /proc/PID/status.
func capabilities(status string) []Check {
	var set uint64
	found := false
	for line := range strings.Lines(status) {
		if text, ok := strings.CutPrefix(line, "CapEff:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			set, found = n, err == nil
		}
	}
	if !found {
		return []Check{of("capabilities", Failed, "/proc/self/status does not list them")}
	}
	var out []Check
	var have []string
	for _, r := range rights {
		all := true
		for _, bit := range r.bits {
			all = all && set&(1<<bit) != 0
		}
		if all {
			have = append(have, r.name)
			continue
		}
		out = append(out, of("capability", Limited, "without %s", strings.ReplaceAll(r.name, " ", " and ")).figures(r.figures).
			do("run the agent as root, or give its unit or container "+r.name))
	}
	if len(have) > 0 {
		out = append([]Check{of("capabilities", OK, "%s", strings.Join(have, " "))}, out...)
	}
	return out
}

// namespaces says which parts of the machine this process is confined to.
func (d *doctor) namespaces() (out []Check) {
	for _, n := range []struct {
		file, name, what string
		machine          uint64
		figures, do      string
	}{
		{"pid", "pids", "PID", initialPIDs, "no virtual machines, processes and network of pods", "give the container the machine's: docker run --pid host, hostPID: true"},
		{"cgroup", "cgroups", "control group", initialGroups, "only the container's groups are seen, unless the agent may open the machine's: see scope", "docker run --cgroupns host, or give the container CAP_DAC_READ_SEARCH"},
	} {
		id, err := d.host.ID("/proc/self/ns/" + n.file)
		switch {
		case err != nil:
			out = append(out, of(n.name, Limited, "the %s namespace is not known: %s", n.what, err))
		case id == n.machine:
			out = append(out, of(n.name, OK, "the machine's own %s namespace", n.what))
		default:
			out = append(out, of(n.name, Limited, "a private %s namespace, as in a container", n.what).figures(n.figures).do(n.do))
		}
	}
	if b, err := d.host.ReadFile("/proc/self/uid_map"); err == nil {
		if f := strings.Fields(string(b)); len(f) != 3 || f[0] != "0" || f[1] != "0" || f[2] != "4294967295" {
			out = append(out, of("users", Limited, "a user namespace: the root in it has no rights on the machine").
				figures("no BPF, no energy counters").do("run the agent outside of it"))
		}
	}
	return out
}

// kernel is about the kernel, and what the agent can use of it.
func (d *doctor) kernel(m *facts) []Check {
	var out []Check
	release, err := d.host.Release()
	if err != nil {
		out = append(out, failed("version", err))
	} else {
		out = append(out, versionCheck(release))
	}
	if f, err := d.host.Open("/sys/kernel/btf/vmlinux"); err != nil {
		out = append(out, of("BTF", Missing, "%s", err).figures("no reader bpf").do("use a kernel with CONFIG_DEBUG_INFO_BTF=y, as those of distributions are"))
	} else {
		_ = f.Close() // nothing was written
		out = append(out, of("BTF", OK, "/sys/kernel/btf/vmlinux"))
	}
	out = append(out, readerCheck(m))
	if c, ok := scopeCheck(m); ok {
		out = append(out, c)
	}
	out = append(out, groupsCheck(d.host))
	if _, err := d.host.ReadFile("/proc/pressure/cpu"); err != nil {
		out = append(out, of("pressure", Missing, "no pressure information: %s", err).figures("pressure of workloads is absent").do("boot with psi=1, on a kernel with CONFIG_PSI=y"))
	} else {
		out = append(out, of("pressure", OK, "/proc/pressure"))
	}
	return out
}

// oldest is the first version of the kernel that the reader bpf needs.
var oldest = [2]int{6, 1}

// versionCheck compares the version of the kernel with what BPF needs.
func versionCheck(release string) Check {
	var major, minor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n == 2 && (major < oldest[0] || major == oldest[0] && minor < oldest[1]) {
		return of("version", Limited, "Linux %s; the reader bpf needs %d.%d", release, oldest[0], oldest[1]).figures("what only BPF counts is absent: see reader").do("use a newer kernel")
	}
	return of("version", OK, "Linux %s", release)
}

// groupsCheck says which control groups are mounted, and with which controllers.
func groupsCheck(h *hostfs.FS) Check {
	ys, err := h.Hierarchies()
	if err != nil {
		c := failed("cgroups", err).figures("none: control groups are what is measured")
		if c.Do == "" && errors.Is(err, fault.ErrUnsupported) {
			c.Do = "mount cgroup2 at /sys/fs/cgroup"
		}
		return c
	}
	var v1, v2 []string
	unified := false
	for _, y := range ys {
		if y.V2 {
			unified, v2 = true, y.Controllers
		} else {
			v1 = append(v1, y.Controllers...)
		}
	}
	switch {
	case unified && len(v1) > 0:
		return of("cgroups", OK, "version 1 (%s), and version 2 (%s) beside it", strings.Join(v1, " "), strings.Join(append([]string{}, v2...), " "))
	case unified:
		return missingControllers(v2, "memory", "io", "pids")
	}
	c := of("cgroups", Limited, "version 1 (%s)", strings.Join(v1, " ")).
		figures("pressure, and network of workloads in the machine's own network namespace, are absent").do("mount cgroup2 beside it: mount -t cgroup2 none /sys/fs/cgroup/unified; or boot with systemd.unified_cgroup_hierarchy=1")
	return c
}

// missingControllers is the check of version 2 with these controllers.
func missingControllers(have []string, want ...string) Check {
	var missing []string
	for _, w := range want {
		if !strings.Contains(" "+strings.Join(have, " ")+" ", " "+w+" ") {
			missing = append(missing, w)
		}
	}
	if len(missing) > 0 {
		return of("cgroups", Limited, "version 2 (%s), without %s", strings.Join(have, " "), strings.Join(missing, " ")).
			figures("what these controllers count is absent, or counted by BPF").do("boot without cgroup_disable= on the kernel's command line")
	}
	return of("cgroups", OK, "version 2 (%s)", strings.Join(have, " "))
}

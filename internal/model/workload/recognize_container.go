package workload

import (
	"slices"
	"strings"
)

// kubernetes recognizes QoS classes and pods of the kubelet, with its cgroupfs and systemd drivers
// (pkg/kubelet/cm/cgroup_manager_linux.go and pod_container_manager_linux.go), below any
// --cgroup-root.
func kubernetes(g group) (Name, bool) {
	last, parent := g.up(0), g.up(1)
	switch {
	case last == "kubepods":
		return Name{Kind: Slice, Name: last, Runtime: "kubernetes"}, true
	case parent == "kubepods" && (last == "burstable" || last == "besteffort"):
		return Name{Kind: Slice, Name: "kubepods/" + last, Runtime: "kubernetes"}, true
	case parent == "kubepods", parent == "burstable", parent == "besteffort":
		uid, ok := strings.CutPrefix(last, "pod")
		if !ok {
			return Name{}, false
		}
		return pod(uid)
	}
	// A slice's name repeats all slices above it: kubelet-kubepods-burstable-podUID.slice.
	unit, ok := strings.CutSuffix(last, ".slice")
	class, uid, ok2 := cutLast(unit, "-pod")
	if !ok || !ok2 {
		return Name{}, false
	}
	class = strings.TrimSuffix(strings.TrimSuffix(class, "-burstable"), "-besteffort")
	if class != "kubepods" && !strings.HasSuffix(class, "-kubepods") {
		return Name{}, false
	}
	return pod(uid)
}

// pod returns the name of the Kubernetes pod of a UID, if valid.
func pod(uid string) (Name, bool) {
	key, ok := canonicalUUID(uid)
	if !ok {
		return Name{}, false
	}
	return Name{Kind: Pod, Key: key, Name: "pod " + key[:8], Runtime: "kubernetes"}, true
}

// canonicalUUID normalizes the three forms of pod UIDs in paths: with dashes, with the underscores
// of the systemd driver, and the bare 32 digits of a static pod.
func canonicalUUID(s string) (string, bool) {
	switch len(s) {
	case 32:
		s = s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
	case 36:
		s = strings.ReplaceAll(s, "_", "-")
	default:
		return "", false
	}
	for i := range len(s) {
		if dash := i == 8 || i == 13 || i == 18 || i == 23; dash && s[i] != '-' || !dash && !isHex(s[i]) {
			return "", false
		}
	}
	return s, true
}

// A prefix is what a runtime writes before a container's id in a group's name.
type prefix struct{ text, runtime string }

// prefixes are the prefixes of runtimes.
//
// cri-containerd- is containerd's for Kubernetes, nerdctl- that of its own command; libpod-payload-
// is Podman's with --cgroups=split, inside the unit that started it.
var prefixes = []prefix{
	{"cri-containerd-", "containerd"},
	{"crio-", "cri-o"},
	{"docker-", "docker"},
	{"libpod-payload-", "podman"},
	{"libpod-", "podman"},
	{"nerdctl-", "containerd"},
}

// parents maps the group in which a runtime creates containers with the cgroupfs driver to the
// runtime. containerd has one for each namespace; those of Kubernetes, nerdctl and Docker are
// listed.
var parents = map[string]string{
	"docker":  "docker",
	"default": "containerd",
	"k8s.io":  "containerd",
	"moby":    "docker",
}

// container recognizes containers of OCI runtimes anywhere: a scope or a group named by a prefix
// and the id, or by the id alone; and Podman's pods.
func container(g group) (Name, bool) {
	last, parent := g.up(0), g.up(1)
	name := strings.TrimSuffix(last, ".scope")
	if strings.HasPrefix(name, "crio-conmon-") || strings.HasPrefix(name, "libpod-conmon-") {
		// The monitor of a container is a part of the pod.
		return Name{}, true
	}
	if id, ok := podmanPod(last, parent); ok {
		return Name{Kind: Pod, Key: id, Name: "pod " + id[:12], Runtime: "podman"}, true
	}
	if IsContainerID(last) {
		return containerName(last, parents[parent]), true
	}
	// If the kubelet uses the systemd driver and containerd cgroupfs, the three parts of a scope
	// become one element with colons.
	if i := strings.LastIndexByte(name, ':'); i >= 0 {
		_, kind, _ := cutLast(name[:i], ":")
		name = kind + "-" + name[i+1:]
	}
	for _, p := range prefixes {
		if id, ok := strings.CutPrefix(name, p.text); ok && IsContainerID(id) {
			return containerName(id, p.runtime), true
		}
	}
	return Name{}, false
}

func containerName(id, runtime string) Name {
	return Name{Kind: Container, Key: id, Name: id[:12], Runtime: runtime}
}

// podmanPod recognizes a Podman pod: machine-libpod_pod_<id>.slice, for users
// user-libpod_pod_<id>.slice, with cgroupfs libpod_parent/<id>.
func podmanPod(last, parent string) (id string, ok bool) {
	if parent == "libpod_parent" && IsContainerID(last) {
		return last, true
	}
	unit, ok := strings.CutSuffix(last, ".slice")
	_, id, ok2 := cutLast(unit, "libpod_pod_")
	return id, ok && ok2 && IsContainerID(id)
}

// lxc recognizes containers of LXC, LXD and Incus by name: lxc.payload.NAME, lxc.payload/NAME or
// lxc/NAME (src/lxc/cgroups, DEFAULT_PAYLOAD_CGROUP_PREFIX, and lxc.cgroup.pattern before it). The
// sibling lxc.monitor.NAME is not part of the container.
func lxc(g group) (Name, bool) {
	last, parent := g.up(0), g.up(1)
	if strings.HasPrefix(last, "lxc.monitor.") || parent == "lxc.monitor" {
		return Name{}, true
	}
	depth := 1
	name, ok := strings.CutPrefix(last, "lxc.payload.")
	if !ok && (parent == "lxc" || parent == "lxc.payload") {
		name, ok, depth = last, true, 2
	}
	if !ok || name == "" {
		return Name{}, false
	}
	n := Name{Kind: Container, Name: readable(name), Runtime: "lxc"}
	if len(g) == depth {
		n.Key = name
	}
	return n, true
}

// machine recognizes groups of systemd-machined and libvirt: containers of systemd-nspawn, and
// libvirt domains, whose UUIDs are not in their paths; and the virtual machines of Proxmox,
// qemu.slice/VMID.scope.
func machine(g group) (Name, bool) {
	last, parent := g.up(0), g.up(1)
	if name, ok := between(last, "systemd-nspawn@", ".service"); ok && name != "" {
		n := Name{Kind: Container, Name: unescape(name), Runtime: "systemd-nspawn"}
		if slices.Equal(g[:len(g)-1], group{"machine.slice"}) {
			n.Key = name
		}
		return n, true
	}
	if name, ok := between(last, "machine-", ".scope"); ok {
		return domain(unescape(name))
	}
	if name, ok := strings.CutSuffix(last, ".libvirt-qemu"); ok && name != "" {
		return domain("qemu-" + strings.TrimPrefix(name, "qemu-"))
	}
	if name, ok := strings.CutSuffix(last, ".libvirt-lxc"); ok && name != "" {
		return domain("lxc-" + strings.TrimPrefix(name, "lxc-"))
	}
	// libvirt before 1.0.5 used libvirt/qemu/NAME.
	if g.up(2) == "libvirt" && (parent == "qemu" || parent == "lxc") {
		return domain(parent + "-" + last)
	}
	if id, ok := strings.CutSuffix(last, ".scope"); ok && parent == "qemu.slice" && allBytes(id, isDigit) {
		return Name{Kind: VM, Name: id, Runtime: "qemu"}, true
	}
	return Name{}, false
}

// domain returns the name of a libvirt domain from its machine name: DRIVER-ID-NAME, or DRIVER-NAME
// before 1.3 (src/hypervisor/domain_driver.c, virDomainDriverGenerateMachineName).
func domain(machine string) (Name, bool) {
	driver, name, _ := strings.Cut(machine, "-")
	if id, rest, ok := strings.Cut(name, "-"); ok && rest != "" && allBytes(id, isDigit) {
		name = rest
	}
	switch {
	case name == "":
		return Name{}, false
	case driver == "qemu":
		return Name{Kind: VM, Name: readable(name), Runtime: "qemu"}, true
	case driver == "lxc":
		return Name{Kind: Container, Name: readable(name), Runtime: "libvirt-lxc"}, true
	}
	return Name{}, false
}

// cutLast cuts s around the last sep.
func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return "", s, false
}

package workload

import (
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// Ids in the paths below.
const (
	cid   = "4cc818a75eb691c5efb9c943b0c3a26ec8e0a05acb60bef4717315e65d671774"
	cid2  = "c46bafd57b2ef55a23c1319893c8aa5bfca24872bd95258700a51059941fb69e"
	uid   = "12fdc709-933e-41d0-917f-cd84de9afa94"
	uidSd = "12fdc709_933e_41d0_917f_cd84de9afa94"
	// A static pod's UID is an MD5 sum, written without dashes.
	static    = "a1b2c3d4e5f60718293a4b5c6d7e8f90"
	staticKey = "a1b2c3d4-e5f6-0718-293a-4b5c6d7e8f90"
	jobID     = "01k5x3v7qz8r9s0t1v2w3x4y5z"
)

func ctr(id, runtime string) Name {
	return Name{Kind: Container, Key: id, Name: id[:12], Runtime: runtime}
}

func kubePod(key string) Name {
	return Name{Kind: Pod, Key: key, Name: "pod " + key[:8], Runtime: "kubernetes"}
}

func sl(name string) Name { return Name{Kind: Slice, Name: name} }

// folds is the result for a group that no recognizer names.
var folds = Name{}

var recognizeCases = []struct {
	from, path string
	want       Name
}{
	// kubelet, systemd driver: pkg/kubelet/cm/cgroup_manager_linux.go (ToSystemd),
	// pod names by pod_container_manager_linux.go (GetPodCgroupNameSuffix).
	{"kubelet systemd", "/kubepods.slice", sl("kubepods.slice")},
	{"kubelet systemd", "/kubepods.slice/kubepods-burstable.slice", sl("kubepods-burstable.slice")},
	{"guaranteed", "/kubepods.slice/kubepods-pod" + uidSd + ".slice", kubePod(uid)},
	{"burstable", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uidSd + ".slice", kubePod(uid)},
	{"besteffort", "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + uidSd + ".slice", kubePod(uid)},
	{"dashes kept, as old kubelets", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uid + ".slice", kubePod(uid)},
	{"static pod", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + static + ".slice", kubePod(staticKey)},
	{"no UID", "/kubepods.slice/kubepods-podfoo.slice", sl("kubepods-podfoo.slice")},
	{"not the kubelet's", "/my.slice/my-pod" + uidSd + ".slice", sl("my-pod" + uidSd + ".slice")},
	// kubelet, cgroupfs driver.
	{"kubelet cgroupfs", "/kubepods", Name{Kind: Slice, Name: "kubepods", Runtime: "kubernetes"}},
	{"kubelet cgroupfs", "/kubepods/besteffort", Name{Kind: Slice, Name: "kubepods/besteffort", Runtime: "kubernetes"}},
	{"guaranteed", "/kubepods/pod" + uid, kubePod(uid)},
	{"burstable", "/kubepods/burstable/pod" + uid, kubePod(uid)},
	{"static pod", "/kubepods/burstable/pod" + static, kubePod(staticKey)},
	{"no UID", "/kubepods/burstable/podfoo", folds},
	{"not the kubelet's", "/home/pod" + uid, folds},
	// kind and minikube: --cgroup-root=/kubelet inside a Docker container.
	{"kind systemd", "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod" + uidSd + ".slice", kubePod(uid)},
	{"kind systemd", "/system.slice/docker-" + cid + ".scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + uidSd + ".slice/cri-containerd-" + cid2 + ".scope", ctr(cid2, "containerd")},
	{"kind cgroupfs", "/docker/" + cid + "/kubelet/kubepods/besteffort/pod" + uid, kubePod(uid)},
	{"kind cgroupfs", "/docker/" + cid + "/kubelet/kubepods/besteffort/pod" + uid + "/" + cid2, ctr(cid2, "")},
	{"kind", "/docker/" + cid + "/kubelet", folds},

	// containerd: internal/cri/server/helpers_linux.go, getCgroupsPath.
	{"containerd systemd", "/kubepods.slice/kubepods-pod" + uidSd + ".slice/cri-containerd-" + cid + ".scope", ctr(cid, "containerd")},
	{"containerd cgroupfs", "/kubepods/burstable/pod" + uid + "/" + cid, ctr(cid, "")},
	{"containerd cgroupfs, kubelet systemd", "/system.slice/containerd.service/kubepods-burstable-pod" + uidSd + ".slice:cri-containerd:" + cid, ctr(cid, "containerd")},
	{"the same on k3s", "/kubepods-burstable-pod" + uidSd + ".slice:cri-containerd:" + cid, ctr(cid, "containerd")},
	{"containerd namespaces", "/k8s.io/" + cid, ctr(cid, "containerd")},
	{"nerdctl cgroupfs", "/default/" + cid, ctr(cid, "containerd")},
	{"nerdctl systemd", "/system.slice/nerdctl-" + cid + ".scope", ctr(cid, "containerd")},
	{"ctr run, any name", "/default/redis", folds},
	// CRI-O: internal/config/cgmgr (crioPrefix, containerCgroupPath).
	{"cri-o systemd", "/kubepods.slice/kubepods-pod" + uidSd + ".slice/crio-" + cid + ".scope", ctr(cid, "cri-o")},
	{"cri-o cgroupfs", "/kubepods/pod" + uid + "/crio-" + cid, ctr(cid, "cri-o")},
	{"cri-o's monitor", "/kubepods.slice/kubepods-pod" + uidSd + ".slice/crio-conmon-" + cid + ".scope", folds},
	{"cri-o's monitor", "/kubepods/pod" + uid + "/crio-conmon-" + cid, folds},
	{"crun's sub-group", "/kubepods.slice/kubepods-pod" + uidSd + ".slice/crio-" + cid + ".scope/container", folds},
	// Docker: daemon/oci_linux.go (withCgroups).
	{"docker under kubelet", "/kubepods.slice/kubepods-pod" + uidSd + ".slice/docker-" + cid + ".scope", ctr(cid, "docker")},
	{"docker cgroupfs", "/docker/" + cid, ctr(cid, "docker")},
	{"docker systemd", "/system.slice/docker-" + cid + ".scope", ctr(cid, "docker")},
	{"docker in docker", "/docker/" + cid + "/docker/" + cid2, ctr(cid2, "docker")},
	{"docker rootless", "/user.slice/user-1000.slice/user@1000.service/user.slice/docker-" + cid + ".scope", ctr(cid, "docker")},
	{"docker's own", "/docker", folds},
	{"docker buildkit", "/docker/buildkit/0yn3dzvlc1kzmdbtqjmspsxqn", folds},
	{"a unit in a container", "/docker/" + cid + "/system.slice/nginx.service", Name{Kind: Service, Name: "nginx.service"}},
	{"init in a container", "/system.slice/docker-" + cid + ".scope/init.scope", Name{Kind: Scope, Name: "init.scope"}},
	{"short id", "/system.slice/docker-4cc818a75eb6.scope", Name{Kind: Scope, Name: "docker-4cc818a75eb6.scope"}},
	// Podman: libpod/container_internal_linux.go (getOCICgroupPath),
	// libpod/runtime_pod_linux.go, pod names by pkg/cgroups.
	{"podman", "/machine.slice/libpod-" + cid + ".scope", ctr(cid, "podman")},
	{"podman, crun on v2", "/machine.slice/libpod-" + cid + ".scope/container", folds},
	{"podman's monitor", "/machine.slice/libpod-conmon-" + cid + ".scope", folds},
	{"podman rootless", "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + cid + ".scope", ctr(cid, "podman")},
	{"podman cgroupfs", "/libpod_parent/libpod-" + cid, ctr(cid, "podman")},
	{"podman cgroupfs", "/libpod_parent/libpod-conmon-" + cid, folds},
	{"podman --cgroups=split", "/system.slice/web.service/libpod-payload-" + cid, ctr(cid, "podman")},
	{"its monitor", "/system.slice/web.service/runtime", folds},
	{"podman pod", "/machine.slice/machine-libpod_pod_" + cid + ".slice", Name{Kind: Pod, Key: cid, Name: "pod " + cid[:12], Runtime: "podman"}},
	{"podman pod rootless", "/user.slice/user-1000.slice/user@1000.service/user.slice/user-libpod_pod_" + cid + ".slice", Name{Kind: Pod, Key: cid, Name: "pod " + cid[:12], Runtime: "podman"}},
	{"podman pod cgroupfs", "/libpod_parent/" + cid, Name{Kind: Pod, Key: cid, Name: "pod " + cid[:12], Runtime: "podman"}},
	{"in a podman pod", "/machine.slice/machine-libpod_pod_" + cid + ".slice/libpod-" + cid2 + ".scope", ctr(cid2, "podman")},

	// LXC, LXD, Incus, Proxmox: src/lxc/cgroups.
	{"lxc 4", "/lxc.payload.web", Name{Kind: Container, Key: "web", Name: "web", Runtime: "lxc"}},
	{"incus project", "/lxc.payload.proj_web", Name{Kind: Container, Key: "proj_web", Name: "proj_web", Runtime: "lxc"}},
	{"lxc 3", "/lxc/web", Name{Kind: Container, Key: "web", Name: "web", Runtime: "lxc"}},
	{"lxc 3.1", "/lxc.payload/web", Name{Kind: Container, Key: "web", Name: "web", Runtime: "lxc"}},
	{"lxc's monitor", "/lxc.monitor.web", folds},
	{"lxc's monitor", "/lxc.monitor/web", folds},
	{"lxc's own", "/lxc", folds},
	{"proxmox", "/lxc/101", Name{Kind: Container, Key: "101", Name: "101", Runtime: "lxc"}},
	{"proxmox", "/lxc/101/ns", folds},
	{"lxc nested", "/lxc.payload.web/lxc.payload.web", Name{Kind: Container, Name: "web", Runtime: "lxc"}},
	{"lxc of a user", "/user.slice/user-1000.slice/user@1000.service/lxc.payload.web", Name{Kind: Container, Name: "web", Runtime: "lxc"}},
	{"lxc, a unit inside", "/lxc.payload.web/system.slice/ssh.service", Name{Kind: Service, Name: "ssh.service"}},
	// systemd-nspawn@.service.
	{"nspawn", "/machine.slice/systemd-nspawn@deb\\x2d12.service", Name{Kind: Container, Key: "deb\\x2d12", Name: "deb-12", Runtime: "systemd-nspawn"}},
	{"nspawn", "/machine.slice/systemd-nspawn@deb.service/payload", folds},
	{"nspawn, a unit inside", "/machine.slice/systemd-nspawn@deb.service/payload/system.slice/cron.service", Name{Kind: Service, Name: "cron.service"}},
	{"nspawn nested", "/lxc.payload.a/machine.slice/systemd-nspawn@deb.service", Name{Kind: Container, Name: "deb", Runtime: "systemd-nspawn"}},
	{"nspawn by hand", "/machine.slice/machine-deb.scope", Name{Kind: Scope, Name: "machine-deb.scope"}},

	// libvirt: src/hypervisor/domain_driver.c, src/util/vircgroup.c; and
	// https://libvirt.org/cgroups.html.
	{"libvirt", `/machine.slice/machine-qemu\x2d1\x2ddebian12\x2d1.scope`, Name{Kind: VM, Name: "debian12-1", Runtime: "qemu"}},
	{"libvirt partition", `/machine.slice/machine-test.slice/machine-qemu\x2d16\x2dtest14.scope`, Name{Kind: VM, Name: "test14", Runtime: "qemu"}},
	{"libvirt before 1.3", `/machine.slice/machine-qemu\x2dlegacy.scope`, Name{Kind: VM, Name: "legacy", Runtime: "qemu"}},
	{"libvirt v2", `/machine.slice/machine-qemu\x2d1\x2dvm1.scope/libvirt`, folds},
	{"libvirt v2", `/machine.slice/machine-qemu\x2d1\x2dvm1.scope/libvirt/emulator`, folds},
	{"libvirt v1", `/machine.slice/machine-qemu\x2d1\x2dvm1.scope/vcpu0`, folds},
	{"libvirt v1, no systemd", "/machine/qemu-1-vm1.libvirt-qemu", Name{Kind: VM, Name: "vm1", Runtime: "qemu"}},
	{"libvirt v1, no systemd", "/machine/qemu-1-vm1.libvirt-qemu/emulator", folds},
	{"libvirt 1.0.5, partition", "/machine/openstack.partition/instance-00000005.libvirt-qemu", Name{Kind: VM, Name: "instance-00000005", Runtime: "qemu"}},
	{"libvirt RHEL 6", "/libvirt/qemu/rhel6", Name{Kind: VM, Name: "rhel6", Runtime: "qemu"}},
	{"libvirt lxc", `/machine.slice/machine-lxc\x2d812\x2dbox.scope`, Name{Kind: Container, Name: "box", Runtime: "libvirt-lxc"}},
	{"libvirt lxc", "/machine/lxc-812-box.libvirt-lxc", Name{Kind: Container, Name: "box", Runtime: "libvirt-lxc"}},
	{"proxmox", "/qemu.slice/100.scope", Name{Kind: VM, Name: "100", Runtime: "qemu"}},

	// Slurm v1: src/plugins/cgroup/v1/cgroup_v1.c; the prefix is slurm_NODE where
	// configured with --enable-multiple-slurmd.
	{"slurm v1", "/slurm", folds},
	{"slurm v1", "/slurm/system", folds},
	{"slurm v1", "/slurm/uid_1000", Name{Kind: User, Name: "user 1000"}},
	{"slurm v1", "/slurm/uid_1000/job_123", Name{Kind: SlurmJob, Key: "/123", Name: "job 123"}},
	{"slurm v1", "/slurm/uid_1000/job_123/step_0", Name{Kind: SlurmStep, Key: "/123/0", Name: "job 123 step 0"}},
	{"slurm v1", "/slurm/uid_1000/job_123/step_0/task_0", folds},
	{"slurm v1", "/slurm/uid_1000/job_123/step_batch", Name{Kind: SlurmStep, Key: "/123/batch", Name: "job 123 step batch"}},
	{"slurm v1", "/slurm/uid_1000/job_123/step_extern", Name{Kind: SlurmStep, Key: "/123/extern", Name: "job 123 step extern"}},
	{"slurm v1, heterogeneous", "/slurm/uid_1000/job_123/step_0+1", Name{Kind: SlurmStep, Key: "/123/0+1", Name: "job 123 step 0+1"}},
	{"slurm v1, many slurmd", "/slurm_node1/uid_0/job_1/step_batch", Name{Kind: SlurmStep, Key: "/1/batch", Name: "job 1 step batch"}},
	{"slurm v1 in docker", "/docker/" + cid + "/slurm/uid_0/job_1", Name{Kind: SlurmJob, Name: "job 1"}},
	{"slurm v1 in docker", "/docker/" + cid + "/slurm/uid_0/job_1/step_0", Name{Kind: SlurmStep, Name: "job 1 step 0"}},
	// Slurm v2: src/plugins/cgroup/v2/cgroup_v2.c.
	{"slurm v2", "/system.slice/slurmstepd.scope", Name{Kind: Scope, Name: "slurmstepd.scope"}},
	{"slurm v2", "/system.slice/slurmstepd.scope/system", folds},
	{"slurm v2", "/system.slice/slurmstepd.scope/job_123", Name{Kind: SlurmJob, Key: "/123", Name: "job 123"}},
	{"slurm v2", "/system.slice/slurmstepd.scope/job_123/step_0", Name{Kind: SlurmStep, Key: "/123/0", Name: "job 123 step 0"}},
	{"slurm v2", "/system.slice/slurmstepd.scope/job_123/step_0/slurm", folds},
	{"slurm v2", "/system.slice/slurmstepd.scope/job_123/step_0/user", folds},
	{"slurm v2", "/system.slice/slurmstepd.scope/job_123/step_0/user/task_0", folds},
	{"slurm v2", "/system.slice/slurmstepd.scope/job_123/step_interactive/user/task_special", folds},
	{"slurm v2, many slurmd", "/system.slice/node1_slurmstepd.scope/job_7/step_extern", Name{Kind: SlurmStep, Key: "/7/extern", Name: "job 7 step extern"}},
	{"a container in a step", "/system.slice/slurmstepd.scope/job_123/step_0/user/task_0/libpod-" + cid, ctr(cid, "podman")},
	{"not slurm", "/home/job_123", folds},
	{"not slurm", "/home/job_123/step_0", folds},

	// systemd: systemd.slice(5), systemd.special(7), XDG desktop environments
	// (https://systemd.io/DESKTOP_ENVIRONMENTS).
	{"systemd", "/init.scope", Name{Kind: Scope, Name: "init.scope"}},
	{"systemd", "/system.slice", sl("system.slice")},
	{"systemd", "/system.slice/nginx.service", Name{Kind: Service, Name: "nginx.service"}},
	{"systemd", "/system.slice/systemd-udevd.service/udev", folds},
	{"systemd", "/system.slice/dev-hugepages.mount", folds},
	{"systemd", "/system.slice/docker.socket", folds},
	{"template", "/system.slice/system-getty.slice/getty@tty1.service", Name{Kind: Service, Name: "getty@tty1.service"}},
	{"escaped", `/system.slice/system-serial\x2dgetty.slice/serial-getty@ttyS0.service`, Name{Kind: Service, Name: "serial-getty@ttyS0.service"}},
	{"escaped", `/system.slice/system-serial\x2dgetty.slice`, sl("system-serial-getty.slice")},
	{"escaped", `/system.slice/systemd-fsck@dev-disk-by\x2duuid-1234\x2dABCD.service`, Name{Kind: Service, Name: "systemd-fsck@dev-disk-by-uuid-1234-ABCD.service"}},
	{"escaped UTF-8", `/system.slice/caf\xc3\xa9.service`, Name{Kind: Service, Name: "café.service"}},
	{"escaped control", `/system.slice/a\x1b[31m.service`, Name{Kind: Service, Name: `a\x1b[31m.service`}},
	{"half an escape", `/system.slice/a\x2.service`, Name{Kind: Service, Name: `a\x2.service`}},
	{"user", "/user.slice", sl("user.slice")},
	{"user", "/user.slice/user-1000.slice", Name{Kind: User, Name: "user 1000"}},
	{"session", "/user.slice/user-1000.slice/session-3.scope", Name{Kind: Session, Name: "session 3"}},
	{"session", "/user.slice/user-0.slice/session-c2.scope", Name{Kind: Session, Name: "session c2"}},
	{"no session", "/system.slice/session-3.scope", Name{Kind: Scope, Name: "session-3.scope"}},
	{"user manager", "/user.slice/user-1000.slice/user@1000.service", Name{Kind: Service, Name: "user@1000.service"}},
	{"user manager", "/user.slice/user-1000.slice/user@1000.service/init.scope", Name{Kind: Scope, Name: "init.scope"}},
	{"app slice", "/user.slice/user-1000.slice/user@1000.service/app.slice", sl("app.slice")},
	{"app", `/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome-org.gnome.Terminal-1234.scope`, Name{Kind: Scope, Name: "app-gnome-org.gnome.Terminal-1234.scope"}},
	{"app", `/user.slice/user-1000.slice/user@1000.service/app.slice/app-dbus\x2d:1.2\x2dorg.gnome.Shell.slice`, sl("app-dbus-:1.2-org.gnome.Shell.slice")},
	{"no stem", "/.slice", folds},
	{"no unit", "/openrc.sshd", folds},

	// mete run.
	{"mete run", "/mete-run-" + jobID, Name{Kind: Job, Key: jobID, Name: "run 3x4y5z"}},
	{"mete run", "/user.slice/user-1000.slice/user@1000.service/app.slice/mete-run-" + jobID + ".scope", Name{Kind: Job, Key: jobID, Name: "run 3x4y5z"}},
	{"mete run in a container", "/docker/" + cid + "/mete-run-" + jobID, Name{Kind: Job, Key: jobID, Name: "run 3x4y5z"}},
	{"no id", "/mete-run-abc", folds},
	{"a letter that ids lack", "/mete-run-" + strings.Replace(jobID, "v", "u", 1), folds},

	{"root", "/", folds},
	{"nothing", "", folds},
	{"plain", "/a/b", folds},
	{"a namespace below ours", "/../../system.slice/cron.service", Name{Kind: Service, Name: "cron.service"}},
	{"trailing slash", "/system.slice/", sl("system.slice")},
}

func TestRecognize(t *testing.T) {
	for _, c := range recognizeCases {
		got, ok := Recognize(c.path)
		if ok != (c.want != folds) {
			t.Errorf("%s: Recognize(%q) = %+v, %t; want %+v", c.from, c.path, got, ok, c.want)
			continue
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: Recognize(%q) (-want +got):\n%s", c.from, c.path, d)
		}
	}
}

// TestRecognizeSameInAllForms checks that a manager's key gives one identity in all forms of paths.
func TestRecognizeSameInAllForms(t *testing.T) {
	forms := [][]string{
		{
			"/kubepods/burstable/pod" + uid + "/" + cid,
			"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uidSd + ".slice/cri-containerd-" + cid + ".scope",
			"/kubepods-burstable-pod" + uidSd + ".slice:cri-containerd:" + cid,
			"/kubepods.slice/kubepods-pod" + uidSd + ".slice/crio-" + cid + ".scope",
			"/docker/" + cid,
			"/system.slice/docker-" + cid + ".scope",
			"/machine.slice/libpod-" + cid + ".scope",
		},
		{
			"/kubepods/pod" + uid,
			"/kubepods.slice/kubepods-pod" + uidSd + ".slice",
			"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" + uidSd + ".slice",
			"/kubepods/burstable/pod" + strings.ReplaceAll(uid, "-", ""),
		},
		{"/slurm/uid_1/job_5/step_0", "/slurm_n/uid_1/job_5/step_0", "/system.slice/slurmstepd.scope/job_5/step_0", "/system.slice/n_slurmstepd.scope/job_5/step_0"},
		{"/slurm/uid_1/job_5", "/system.slice/slurmstepd.scope/job_5"},
		{"/lxc/web", "/lxc.payload/web", "/lxc.payload.web"},
		{"/mete-run-" + jobID, "/user.slice/mete-run-" + jobID + ".scope"},
	}
	for _, paths := range forms {
		first, _ := Recognize(paths[0])
		want := first.Workload("node", "boot", paths[0]).ID
		for _, path := range paths[1:] {
			n, ok := Recognize(path)
			if got := n.Workload("node", "boot", path).ID; !ok || got != want {
				t.Errorf("%q is %v %q, %q is %v %q", path, n.Kind, n.Key, paths[0], first.Kind, first.Key)
			}
		}
	}
}

func TestNameWorkload(t *testing.T) {
	n, _ := Recognize("/system.slice/cron.service")
	got := n.Workload("n1", "b1", "/system.slice/cron.service")
	want := Workload{
		ID: NewID("n1", Service, "b1/system.slice/cron.service"), Kind: Service,
		Key: "b1/system.slice/cron.service", Name: "cron.service", Path: "/system.slice/cron.service",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("a unit (-want +got):\n%s", d)
	}
	if other := n.Workload("n1", "b2", "/system.slice/cron.service"); other.ID == got.ID {
		t.Error("a unit has one ID over two boots, want two")
	}
	c, _ := Recognize("/docker/" + cid)
	if a, b := c.Workload("n1", "b1", "/docker/"+cid), c.Workload("n1", "b2", "/x"); a.ID != b.ID || a.Key != cid {
		t.Errorf("a container is %+v, then %+v; want one ID and the key %s", a, b, cid)
	}
	if p := NameFromPath("/a\x1b[2Jb"); p.Kind != Path || p.Name != `/a\x1b[2Jb` || p.Key != "" {
		t.Errorf("ByPath = %+v, want a path with its name made readable", p)
	}
}

var uuid = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

func FuzzRecognize(f *testing.F) {
	for _, c := range recognizeCases {
		f.Add(c.path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		n, ok := Recognize(path)
		if ok != (n.Kind != Unknown) {
			t.Errorf("Recognize(%q) = %+v, %t", path, n, ok)
		}
		if !ok {
			return
		}
		if n.Name == "" || !utf8.ValidString(n.Name) || strings.ContainsFunc(n.Name, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("Recognize(%q) is named %q, want something printable", path, n.Name)
		}
		if n.Kind == Pod && n.Runtime == "kubernetes" && !uuid.MatchString(n.Key) {
			t.Errorf("Recognize(%q): key %q of a pod is not a canonical UUID", path, n.Key)
		}
		// Trailing and doubled slashes are insignificant.
		if m, _ := Recognize(strings.ReplaceAll(path, "/", "//") + "/"); m != n {
			t.Errorf("Recognize(%q) = %+v, with more slashes %+v", path, n, m)
		}
	})
}

func BenchmarkRecognize(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		for _, c := range recognizeCases {
			Recognize(c.path)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(recognizeCases)), "ns/path")
}

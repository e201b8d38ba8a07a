package hosttest_test

import (
	"fmt"
	"strings"
)

const (
	mib = int64(1) << 20
	gib = int64(1) << 30
)

// constructed returns the machines that were not available for capturing.
func constructed() []*machine {
	ms := []*machine{v2SystemdContainerd(), v1Kubelet(), hybrid(), slurmV1(), slurmV2()}
	for _, m := range ms {
		m.root.place(nil)
	}
	return ms
}

// separateV1 returns v1 controllers as mounted by systemd, in hierarchies with ids from 2.
func separateV1(names ...[]string) []hierarchy {
	var ys []hierarchy
	for i, n := range names {
		var at strings.Builder
		at.WriteString(n[0])
		for _, c := range n[1:] {
			at.WriteString("," + c)
		}
		ys = append(ys, hierarchy{id: i + 2, controllers: n, mount: "/sys/fs/cgroup/" + at.String()})
	}
	return append(ys, hierarchy{id: 1, name: "systemd", mount: "/sys/fs/cgroup/systemd"})
}

func service(name string, age int64, l load, pids ...int) *group {
	return &group{name: name, age: age, load: l, pids: pids}
}

var kernelThreads = []process{
	{pid: 2, comm: "kthreadd", kernel: true},
	{pid: 14, parent: 2, comm: "ksoftirqd/0", kernel: true},
	{pid: 35, parent: 2, comm: "kworker/u8:1-ext4-rsv-conversion", state: 'I', kernel: true},
}

// users returns systemd's groups of a logged-in user.
func users(session int, inner ...*group) *group {
	return &group{name: "user.slice", kids: []*group{{name: "user-1000.slice", ctl: "memory pids", kids: append([]*group{
		{name: fmt.Sprintf("session-%d.scope", session), load: load{user: 900, system: 300, anon: 12 * mib, file: 3 * mib, kernel: mib}, pids: []int{2100, 2101}},
	}, inner...)}}}
}

var userProcesses = []process{
	{pid: 2100, parent: 800, comm: "sshd", uid: 1000},
	{pid: 2101, parent: 2100, comm: "bash) (1", uid: 1000}, // a name that imitates the end of a name
}

// pod returns a pod's group with its containers, the first of which is the pause container.
func pod(name, key string, containers ...*group) *group {
	return &group{name: fmt.Sprintf(name, key), kids: containers}
}

func v2SystemdContainerd() *machine {
	burstable, besteffort, guaranteed := uid("web", "_"), uid("batch", "_"), uid("db", "_")
	scope := func(name string, age int64, l load, pids ...int) *group {
		return service("cri-containerd-"+id64(name)+".scope", age, l, pids...)
	}
	pause := load{anon: 64 << 10, file: 256 << 10, kernel: 128 << 10}
	web := scope("web", 1_800_000, load{user: 420_000, system: 60_000, anon: 180 * mib, file: 40 * mib, kernel: 9 * mib, read: 20_000, written: 90_000, throttled: 12_000, ooms: 1}, 3101, 3102)
	web.quota, web.limit = 50_000, fmt.Sprint(256*mib)
	ended := scope("batch-1", 40_000, load{user: 700_000, system: 40_000, anon: 90 * mib, file: 5 * mib, kernel: 2 * mib, written: 400_000}, 3301)
	ended.gone = true
	backup := service("cron.service", 600_000, load{user: 15_000, system: 9_000, anon: 9 * mib, file: 2 * mib, kernel: mib, read: 300_000}, 901)
	backup.again = 300
	return &machine{
		name: "v2-systemd-containerd", release: "6.8.0-45-generic", cpus: 8, memory: 16 * gib, uptime: 90_000, pressure: true,
		header: `Constructed, not captured: a Kubernetes 1.30 node with systemd 255, containerd 1.7
and the systemd cgroup driver on Linux 6.8, as the kernel's and systemd's
documentation describe them. At the second tick a container of the batch pod is
gone and another is born, and cron.service was recreated.`,
		hierarchies: []hierarchy{{v2: true, controllers: []string{"cpuset", "cpu", "io", "memory", "hugetlb", "pids", "rdma", "misc"}, mount: "/sys/fs/cgroup"}},
		root: &group{ctl: "cpuset cpu io memory pids", age: 90_000_000, load: load{user: 0, system: 3_000, anon: 0, file: 6 * mib, kernel: 20 * mib}, pids: []int{2, 14, 35}, kids: []*group{
			service("init.scope", 90_000_000, load{user: 400, system: 300, anon: 6 * mib, file: 5 * mib, kernel: 2 * mib, read: 900}, 1),
			{name: "system.slice", kids: []*group{
				service("containerd.service", 89_000_000, load{user: 30_000, system: 12_000, anon: 60 * mib, file: 200 * mib, kernel: 12 * mib, read: 9_000, written: 30_000}, 700, 3090, 3190, 3290),
				service("kubelet.service", 89_000_000, load{user: 50_000, system: 25_000, anon: 80 * mib, file: 30 * mib, kernel: 6 * mib, written: 4_000}, 750),
				service("ssh.service", 89_000_000, load{anon: mib, file: mib, kernel: mib / 2}, 800),
				service("systemd-journald.service", 89_900_000, load{user: 2_000, system: 1_000, anon: 3 * mib, file: 60 * mib, kernel: 2 * mib, written: 12_000}, 400),
				backup,
				{name: "system-getty.slice", kids: []*group{service("getty@tty1.service", 89_000_000, load{anon: mib / 4}, 810)}},
			}},
			users(3, &group{name: "user@1000.service", kids: []*group{
				service("init.scope", 3_000_000, load{user: 10, anon: 2 * mib, kernel: mib}, 2050),
				{name: "app.slice", kids: []*group{service("dbus.service", 3_000_000, load{anon: mib}, 2060)}},
			}}),
			{name: "kubepods.slice", kids: []*group{
				pod("kubepods-pod%s.slice", guaranteed,
					scope("db-pause", 3_600_000, pause, 3291),
					scope("db", 3_600_000, load{user: 900_000, system: 200_000, anon: 900 * mib, file: 2 * gib, kernel: 40 * mib, read: 3_000_000, written: 5_000_000}, 3292, 3293)),
				{name: "kubepods-burstable.slice", kids: []*group{
					pod("kubepods-burstable-pod%s.slice", burstable, scope("web-pause", 1_800_000, pause, 3100), web)}},
				{name: "kubepods-besteffort.slice", kids: []*group{
					pod("kubepods-besteffort-pod%s.slice", besteffort, scope("batch-pause", 60_000, pause, 3300), ended,
						scope("batch-2", -600, load{user: 500_000, system: 30_000, anon: 20 * mib, kernel: mib}, 3302))}},
			}},
		}},
		processes: append(append([]process{{pid: 1, comm: "systemd"}}, kernelThreads...), append([]process{
			{pid: 400, parent: 1, comm: "systemd-journal"}, {pid: 700, parent: 1, comm: "containerd", threads: 22}, {pid: 750, parent: 1, comm: "kubelet", threads: 18},
			{pid: 800, parent: 1, comm: "sshd"}, {pid: 810, parent: 1, comm: "agetty"}, {pid: 901, parent: 1, comm: "cron"},
			{pid: 2050, parent: 1, comm: "systemd", uid: 1000}, {pid: 2060, parent: 2050, comm: "dbus-daemon", uid: 1000},
			{pid: 3090, parent: 1, comm: "containerd-shim", threads: 11}, {pid: 3190, parent: 1, comm: "containerd-shim", threads: 11}, {pid: 3290, parent: 1, comm: "containerd-shim", threads: 11},
			{pid: 3100, parent: 3090, comm: "pause", uid: 65535, net: 4026532201}, {pid: 3101, parent: 3090, comm: "nginx", net: 4026532201, threads: 2}, {pid: 3102, parent: 3101, comm: "nginx", state: 'Z', net: 4026532201},
			{pid: 3291, parent: 3290, comm: "pause", uid: 65535, net: 4026532301}, {pid: 3292, parent: 3290, comm: "postgres", uid: 999, net: 4026532301}, {pid: 3293, parent: 3292, comm: "postgres", uid: 999, net: 4026532301, hidden: true},
			{pid: 3300, parent: 3190, comm: "pause", uid: 65535, net: 4026532401}, {pid: 3301, parent: 3190, comm: "python3", state: 'R', net: 4026532401}, {pid: 3302, parent: 3190, comm: "python3", state: 'R', net: 4026532401},
		}, userProcesses...)...),
		disks: []disk{{name: "dm-0", major: 253, slaves: []string{"nvme0n1p3"}, io: true}, {name: "loop0", major: 7},
			{name: "nvme0n1", major: 259, parts: []string{"nvme0n1p1", "nvme0n1p2", "nvme0n1p3"}, io: true}},
		devices: []string{"  7 loop", "  9 md", "253 device-mapper", "254 mdp", "259 blkext"},
	}
}

func v1Kubelet() *machine {
	container := func(name string, age int64, l load, pids ...int) *group { return service(id64(name), age, l, pids...) }
	pause := load{anon: 64 << 10, file: 256 << 10, kernel: 128 << 10}
	web := container("v1 web", 900_000, load{user: 310_000, system: 50_000, anon: 120 * mib, file: 30 * mib, kernel: 7 * mib, read: 8_000, written: 40_000, throttled: 9_000, ooms: 2}, 4101)
	web.quota, web.limit = 40_000, fmt.Sprint(200*mib)
	return &machine{
		name: "v1-kubelet", release: "5.4.17-2136.el8.x86_64", cpus: 4, memory: 8 * gib, uptime: 40_000,
		header: `Constructed, not captured: a Kubernetes node with cgroup v1, systemd 239, Docker and
the cgroupfs driver on Linux 5.4, as the documentation of the kernel and of these
programs describes them: cpu and cpuacct, and net_cls and net_prio, are mounted
together, and there is no cgroup v2 and no PSI.`,
		hierarchies: separateV1([]string{"cpu", "cpuacct"}, []string{"cpuset"}, []string{"memory"}, []string{"blkio"}, []string{"pids"}, []string{"devices"},
			[]string{"freezer"}, []string{"net_cls", "net_prio"}, []string{"perf_event"}, []string{"hugetlb"}),
		root: &group{age: 40_000_000, load: load{system: 2_500, file: 4 * mib, kernel: 16 * mib}, pids: []int{2, 14, 35}, kids: []*group{
			{name: "init.scope", age: 40_000_000, only: []string{"systemd"}, load: load{user: 300, system: 200, anon: 5 * mib, file: 4 * mib}, pids: []int{1}},
			{name: "system.slice", kids: []*group{
				service("docker.service", 39_000_000, load{user: 20_000, system: 9_000, anon: 50 * mib, file: 90 * mib, kernel: 8 * mib, written: 20_000}, 710, 4090),
				service("kubelet.service", 39_000_000, load{user: 45_000, system: 21_000, anon: 70 * mib, file: 25 * mib, kernel: 5 * mib}, 760),
				service("sshd.service", 39_000_000, load{anon: mib, kernel: mib / 2}, 800),
			}},
			users(2),
			{name: "kubepods", kids: []*group{
				pod("pod%s", uid("v1 db", "-"), container("v1 db pause", 3_000_000, pause, 4290),
					container("v1 db", 3_000_000, load{user: 500_000, system: 90_000, anon: 700 * mib, file: gib, kernel: 30 * mib, read: 900_000, written: 2_000_000}, 4291)),
				{name: "burstable", kids: []*group{pod("pod%s", uid("v1 web", "-"), container("v1 web pause", 900_000, pause, 4100), web)}},
				{name: "besteffort", kids: []*group{pod("pod%s", uid("v1 batch", "-"), container("v1 batch pause", 50_000, pause, 4300),
					&group{name: id64("v1 batch 1"), age: 30_000, gone: true, load: load{user: 600_000, system: 20_000, anon: 40 * mib}, pids: []int{4301}},
					&group{name: id64("v1 batch 2"), age: -400, load: load{user: 600_000, system: 20_000, anon: 30 * mib}, pids: []int{4302}})}},
			}},
		}},
		processes: append(append([]process{{pid: 1, comm: "systemd"}}, kernelThreads...), append([]process{
			{pid: 710, parent: 1, comm: "dockerd", threads: 30}, {pid: 760, parent: 1, comm: "kubelet", threads: 20}, {pid: 800, parent: 1, comm: "sshd"}, {pid: 4090, parent: 710, comm: "docker-proxy"},
			{pid: 4100, parent: 710, comm: "pause", net: 4026532501}, {pid: 4101, parent: 710, comm: "java", threads: 40, net: 4026532501},
			{pid: 4290, parent: 710, comm: "pause", net: 4026532601}, {pid: 4291, parent: 710, comm: "mysqld", uid: 27, threads: 33, net: 4026532601},
			{pid: 4300, parent: 710, comm: "pause", net: 4026532701}, {pid: 4301, parent: 710, comm: "python3", state: 'R', net: 4026532701}, {pid: 4302, parent: 710, comm: "python3", state: 'R', net: 4026532701},
		}, userProcesses...)...),
		disks:   []disk{{name: "sda", major: 8, parts: []string{"sda1", "sda2"}, io: true}, {name: "sr0", major: 11}},
		devices: []string{"  8 sd", " 11 sr", " 65 sd", "253 device-mapper"},
	}
}

package hosttest_test

import "fmt"

func hybrid() *machine {
	ys := separateV1([]string{"cpu", "cpuacct"}, []string{"memory"}, []string{"blkio"}, []string{"pids"}, []string{"cpuset"}, []string{"freezer"}, []string{"devices"})
	ys = append(ys, hierarchy{v2: true, mount: "/sys/fs/cgroup/unified"})
	// systemd creates groups in its own hierarchies and, for units with limits or
	// accounting, in those of the controllers.
	tracking := []string{"systemd", "v2"}
	return &machine{
		name: "hybrid", release: "5.4.0-190-generic", cpus: 4, memory: 8 * gib, uptime: 70_000, pressure: true,
		header: `Constructed, not captured: a host of containers and virtual machines with systemd 245
in hybrid mode on Linux 5.4, as the documentation of the kernel and of systemd
describes it: all controllers are v1, and cgroup v2 is mounted beside them without
any, so that it has only CPU times and pressure.`,
		hierarchies: ys,
		root: &group{age: 70_000_000, load: load{system: 2_000, file: 4 * mib, kernel: 12 * mib}, pids: []int{2, 14, 35}, kids: []*group{
			{name: "init.scope", age: 70_000_000, only: tracking, load: load{user: 300, system: 250, anon: 6 * mib, file: 4 * mib}, pids: []int{1}},
			{name: "system.slice", kids: []*group{
				service("docker.service", 69_000_000, load{user: 9_000, system: 4_000, anon: 45 * mib, file: 60 * mib, kernel: 5 * mib, written: 9_000}, 720),
				service("libvirtd.service", 69_000_000, load{user: 1_000, system: 800, anon: 20 * mib, file: 9 * mib, kernel: 3 * mib}, 730),
				{name: "ssh.service", age: 69_000_000, only: append([]string{"memory", "pids"}, tracking...), load: load{anon: mib}, pids: []int{800}},
			}},
			users(7),
			{name: "docker", only: []string{"cpu", "memory", "blkio", "pids", "cpuset", "freezer", "devices", "systemd"}, kids: []*group{
				service(id64("hybrid redis"), 800_000, load{user: 100_000, system: 30_000, anon: 64 * mib, file: 8 * mib, kernel: 3 * mib, written: 120_000}, 5100, 5101)}},
			{name: "machine.slice", kids: []*group{{name: `machine-qemu\x2d1\x2dvm.scope`, age: 2_000_000, load: load{}, pids: []int{}, kids: []*group{
				{name: "libvirt", age: 2_000_000, only: []string{"cpu", "cpuset"}, kids: []*group{
					service("emulator", 2_000_000, load{user: 20_000, system: 30_000, anon: 2 * gib, file: 30 * mib, kernel: 20 * mib, read: 50_000, written: 70_000}, 5200),
					service("vcpu0", 2_000_000, load{user: 500_000, system: 90_000}),
				}}}}}},
		}},
		processes: append(append([]process{{pid: 1, comm: "systemd"}}, kernelThreads...), append([]process{
			{pid: 720, parent: 1, comm: "dockerd", threads: 14}, {pid: 730, parent: 1, comm: "libvirtd", threads: 17}, {pid: 800, parent: 1, comm: "sshd"},
			{pid: 5100, parent: 720, comm: "redis-server", uid: 999, threads: 5, net: 4026532801}, {pid: 5101, parent: 5100, comm: "redis-server", state: 'Z', uid: 999},
			{pid: 5200, parent: 1, comm: "qemu-system-x86", uid: 64055, threads: 6},
		}, userProcesses...)...),
		disks: []disk{{name: "md0", major: 9, slaves: []string{"sda2", "sdb2"}}, {name: "sda", major: 8, parts: []string{"sda1", "sda2"}, io: true},
			{name: "sdb", major: 8, minor: 16, parts: []string{"sdb1", "sdb2"}}},
		devices: []string{"  7 loop", "  8 sd", "  9 md", "254 mdp"},
	}
}

// steps returns the groups of a Slurm job: a batch script, and a step of two tasks, the
// first of which ends.
func steps(inner func(tasks ...*group) []*group) []*group {
	task := func(n int, cores int64, gone bool, pids ...int) *group {
		return &group{name: fmt.Sprintf("task_%d", n), age: 20_000, gone: gone, pids: pids,
			load: load{user: cores * 10_000, system: cores * 100, anon: 300 * mib, file: 2 * mib, kernel: 4 * mib, written: 50_000}}
	}
	return []*group{
		{name: "step_extern", age: 25_000, kids: inner(task(0, 0, false, 6000))},
		{name: "step_batch", age: 25_000, kids: inner(task(0, 1, false, 6100))},
		{name: "step_0", age: 20_000, kids: inner(task(0, 99, true, 6200), task(1, 98, false, 6300))},
	}
}

var slurmProcesses = []process{
	{pid: 800, parent: 1, comm: "sshd"}, {pid: 850, parent: 1, comm: "slurmd", threads: 3}, {pid: 5990, parent: 1, comm: "slurmstepd", threads: 4},
	{pid: 5991, parent: 1, comm: "slurmstepd", threads: 4}, {pid: 5992, parent: 1, comm: "slurmstepd", threads: 5},
	{pid: 6000, parent: 5990, comm: "sleep"}, {pid: 6100, parent: 5991, comm: "slurm_script", uid: 1000},
	{pid: 6200, parent: 5992, comm: "lmp", state: 'R', uid: 1000}, {pid: 6300, parent: 5992, comm: "lmp", state: 'R', uid: 1000, threads: 2},
}

func slurmV1() *machine {
	base := &group{name: "slurm", only: []string{"cpuacct", "cpuset", "memory", "freezer", "devices"}, kids: []*group{{name: "uid_1000", kids: []*group{{name: "job_123",
		limit: fmt.Sprint(4 * gib), kids: steps(func(tasks ...*group) []*group { return tasks })}}}}}
	return &machine{
		name: "slurm-v1", release: "5.4.17-2136.el8.x86_64", cpus: 4, memory: 16 * gib, uptime: 50_000,
		header: `Constructed, not captured: a node of Slurm 21.08 with its cgroup/v1 plugins and
jobacct_gather/cgroup on Linux 5.4, as Slurm's cgroup guide describes it. At the
second tick one task of step 0 is gone.`,
		hierarchies: separateV1([]string{"cpu", "cpuacct"}, []string{"cpuset"}, []string{"memory"}, []string{"blkio"}, []string{"pids"}, []string{"devices"}, []string{"freezer"}),
		root: &group{age: 50_000_000, load: load{system: 2_000, file: 4 * mib, kernel: 12 * mib}, pids: []int{2, 14, 35}, kids: []*group{
			{name: "init.scope", age: 50_000_000, only: []string{"systemd"}, load: load{user: 300, anon: 5 * mib}, pids: []int{1}},
			{name: "system.slice", kids: []*group{
				service("slurmd.service", 49_000_000, load{user: 700, system: 900, anon: 9 * mib, file: 12 * mib, kernel: 2 * mib}, 850, 5990, 5991, 5992),
				service("sshd.service", 49_000_000, load{anon: mib}, 800)}},
			users(4),
			base,
		}},
		processes: append(append([]process{{pid: 1, comm: "systemd"}}, kernelThreads...), append(userProcesses, slurmProcesses...)...),
		disks:     []disk{{name: "sda", major: 8, parts: []string{"sda1"}, io: true}},
		devices:   []string{"  8 sd"},
	}
}

func slurmV2() *machine {
	stepds := []int{5990, 5991, 5992}
	inner := func(tasks ...*group) []*group {
		pid := stepds[0]
		stepds = stepds[1:]
		return []*group{
			service("slurm", 25_000, load{user: 400, system: 600, anon: 5 * mib, kernel: mib}, pid),
			{name: "user", age: 20_000, kids: tasks},
		}
	}
	job := &group{name: "job_123", age: 25_000, limit: fmt.Sprint(4 * gib), kids: steps(inner)}
	return &machine{
		name: "slurm-v2", release: "6.1.0-25-amd64", cpus: 4, memory: 16 * gib, uptime: 50_000, pressure: true,
		header: `Constructed, not captured: a node of Slurm 23.02 with its cgroup/v2 plugin on
Linux 6.1, as Slurm's cgroup v2 page describes it. At the second tick one task of
step 0 is gone.`,
		hierarchies: []hierarchy{{v2: true, controllers: []string{"cpuset", "cpu", "io", "memory", "pids"}, mount: "/sys/fs/cgroup"}},
		root: &group{ctl: "cpuset cpu io memory pids", age: 50_000_000, load: load{system: 2_000, file: 4 * mib, kernel: 12 * mib}, pids: []int{2, 14, 35}, kids: []*group{
			service("init.scope", 50_000_000, load{user: 300, anon: 5 * mib}, 1),
			{name: "system.slice", kids: []*group{
				service("slurmd.service", 49_000_000, load{user: 700, system: 900, anon: 9 * mib, file: 12 * mib, kernel: 2 * mib}, 850),
				{name: "slurmstepd.scope", age: 49_000_000, ctl: "cpuset cpu memory", kids: []*group{
					service("system", 49_000_000, load{anon: mib / 4}), job}},
				service("ssh.service", 49_000_000, load{anon: mib}, 800)}},
			users(4),
		}},
		processes: append(append([]process{{pid: 1, comm: "systemd"}}, kernelThreads...), append(userProcesses, slurmProcesses...)...),
		disks:     []disk{{name: "sda", major: 8, parts: []string{"sda1"}, io: true}},
		devices:   []string{"  8 sd"},
	}
}

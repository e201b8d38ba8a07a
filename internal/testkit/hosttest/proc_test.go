package hosttest_test

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// system writes the files of the whole machine.
func (m *machine) system(s state, tick int) {
	now := m.uptime + int64(tick)
	const suspended, epoch = 5e9, 1760000000 // ns; s
	s.put("mete/clocks", "boottime %d\nmonotonic %d\nrealtime %d\n", now*1e9+suspended, now*1e9, (epoch+now)*1e9+suspended)
	s.put("etc/machine-id", "%s\n", id64("machine " + m.name)[:32])
	s.put("proc/sys/kernel/hostname", "machine\n")
	s.put("proc/sys/kernel/osrelease", "%s\n", m.release)
	s.put("proc/sys/kernel/random/boot_id", "%s\n", uid("boot "+m.name, "-"))
	s.put("sys/devices/system/cpu/online", "0-%d\n", m.cpus-1)
	s.put("sys/devices/system/cpu/possible", "0-%d\n", m.cpus-1)
	s.put("proc/loadavg", "1.20 1.10 1.00 2/%d 9000\n", 10*len(m.processes))

	c := m.root.all(tick)
	user, system := c.user/10000, c.system/10000
	idle := now*100*int64(m.cpus) - user - system
	s.put("proc/uptime", "%d.00 %d.%02d\n", now+suspended/1e9, idle/100, idle%100)
	var stat strings.Builder
	fmt.Fprintf(&stat, "cpu  %d 0 %d %d 0 0 0 0 0 0\n", user, system, idle)
	for i := range int64(m.cpus) {
		part := func(v int64) int64 { return v*(i+1)/int64(m.cpus) - v*i/int64(m.cpus) }
		fmt.Fprintf(&stat, "cpu%d %d 0 %d %d 0 0 0 0 0 0\n", i, part(user), part(system), part(idle))
	}
	fmt.Fprintf(&stat, "ctxt %d\nbtime %d\nprocesses %d\nprocs_running 2\nprocs_blocked 0\n", now*1000, epoch, 9000+3*tick)
	s.put("proc/stat", "%s", stat.String())

	// The kernel itself uses 400 MiB; nine tenths of the page cache can be reclaimed.
	free := m.memory - c.anon - c.file - c.kernel - 400<<20
	s.put("proc/meminfo", "MemTotal:       %8d kB\nMemFree:        %8d kB\nMemAvailable:   %8d kB\nBuffers:               0 kB\nCached:         %8d kB\nSwapCached:            0 kB\nSwapTotal:             0 kB\nSwapFree:              0 kB\nShmem:                 0 kB\nSlab:           %8d kB\nSReclaimable:   %8d kB\n",
		m.memory>>10, free>>10, (free+c.file/10*9)>>10, c.file>>10, c.kernel>>11, c.kernel>>12)
	if m.pressure {
		pressure(s, "proc/pressure/cpu", c.some)
		pressure(s, "proc/pressure/memory", c.some/10)
		pressure(s, "proc/pressure/io", c.some/5)
	}
	netDev(s, "proc/net/dev", "eth0", now)

	var cgroups strings.Builder
	cgroups.WriteString("#subsys_name\thierarchy\tnum_cgroups\tenabled\n")
	for _, y := range m.hierarchies {
		n := 0
		m.root.each(tick, func(g *group) {
			if g.isIn(y) {
				n++
			}
		})
		for _, name := range y.controllers {
			if y.v2 && name == "io" {
				name = "blkio" // its name in /proc/cgroups even then
			}
			fmt.Fprintf(&cgroups, "%s\t%d\t%d\t1\n", name, y.id, n)
		}
	}
	s.put("proc/cgroups", "%s", cgroups.String())
	s.put("proc/self/cgroup", "%s", m.memberships(m.groupOf(1)))
	for _, p := range m.processes {
		if p.comm == "sshd" {
			s.put("proc/self/cgroup", "%s", m.memberships(m.groupOf(p.pid)))
		}
	}
}

func netDev(s state, p, name string, seconds int64) {
	s.put(p, "Inter-|   Receive                                                |  Transmit\n"+
		" face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n"+
		"    lo: %7d %7d    0    0    0     0          0         0 %8d %7d    0    0    0     0       0          0\n"+
		"%6s: %7d %7d    0    0    0     0          0         0 %8d %7d    0    0    0     0       0          0\n",
		seconds*100, seconds, seconds*100, seconds, name, seconds*15000, seconds*20, seconds*9000, seconds*15)
}

// groupOf returns the group of a process.
func (m *machine) groupOf(pid int) *group {
	found := m.root
	for tick := range 2 {
		m.root.each(tick, func(g *group) {
			if slices.Contains(g.pids, pid) {
				found = g
			}
		})
	}
	return found
}

// memberships formats /proc/PID/cgroup.
func (m *machine) memberships(g *group) string {
	var b strings.Builder
	ys := slices.Clone(m.hierarchies)
	slices.SortFunc(ys, func(a, b hierarchy) int { return b.id - a.id })
	for _, y := range ys {
		names := strings.Join(y.controllers, ",")
		if y.v2 {
			names = ""
		} else if y.name != "" {
			names = "name=" + y.name
		}
		fmt.Fprintf(&b, "%d:%s:%s\n", y.id, names, m.nearest(g, y).path)
	}
	return b.String()
}

func (p process) namespace() uint64 {
	if p.net == 0 {
		return hostNet
	}
	return p.net
}

// process writes the files of a process: fewer if they cannot be read, and without memory
// for a zombie.
func (m *machine) process(s state, p process, tick int) {
	dir := fmt.Sprintf("/proc/%d", p.pid)
	g := m.groupOf(p.pid)
	c, n := g.own(tick), int64(max(len(g.pids), 1))
	user, system := c.user/n, c.system/n // us
	age := g.age + 1000*int64(tick)
	if tick == 1 && g.again > 0 {
		age = g.again
	}
	start := ((m.uptime+int64(tick))*1000-age)/10 + 500 // clocks count from boot, suspend included
	flags, rss, threads, state := 0x400100, (c.anon+c.file/4)/4096/n, max(p.threads, 1), max(p.state, 'S')
	if p.kernel {
		flags, rss = 0x208040, 0
	}
	if p.state == 'Z' {
		flags, rss = 0x40010c, 0
	}
	s.put(dir+"/stat", "%d (%s) %c %d %d %d 0 -1 %d 0 0 0 0 %d %d 0 0 20 0 %d 0 %d %d %d 18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 %d 0 0 0 0 0 0 0 0 0 0 0 0 0\n",
		p.pid, p.comm, state, p.parent, p.pid, p.pid, flags, user/10000, system/10000, threads, start, rss*4096*3, rss, p.pid%m.cpus)
	s.put(dir+"/cgroup", "%s", m.memberships(g))
	var vm string
	if rss > 0 {
		vm = fmt.Sprintf("VmHWM:\t%8d kB\nVmRSS:\t%8d kB\n", rss*4+40, rss*4)
	}
	s.put(dir+"/status", "Name:\t%s\nTgid:\t%d\nPid:\t%d\nPPid:\t%d\nUid:\t%d\t%d\t%d\t%d\nNStgid:\t%d\n%sThreads:\t%d\n",
		p.comm, p.pid, p.pid, p.parent, p.uid, p.uid, p.uid, p.uid, p.pid, vm, threads)
	s.put(dir+"/schedstat", "%d %d %d\n", (user+system)*1000, user*10, user/4000+1)
	if p.hidden {
		return
	}
	s.put(dir+"/io", "rchar: %d\nwchar: %d\nsyscr: 9\nsyscw: 9\nread_bytes: %d\nwrite_bytes: %d\ncancelled_write_bytes: 0\n",
		c.read/n+1000, c.written/n+100, c.read/n, c.written/n)
	if p.state == 'Z' {
		return // its namespaces are gone
	}
	s[fmt.Sprintf("proc/%d/ns/net -> net:[%d]", p.pid, p.namespace())] = ""
	first := slices.IndexFunc(m.processes, func(o process) bool {
		return o.namespace() == p.namespace() && !o.hidden && m.groupOf(o.pid).existsAt(tick)
	})
	if m.processes[first].pid == p.pid {
		netDev(s, dir+"/net/dev", "eth0", (m.uptime+int64(tick))/int64(1+first))
	}
}

// mounts writes mountinfo.
func (m *machine) mounts(s state) {
	var b strings.Builder
	b.WriteString("21 27 0:20 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc none rw\n22 27 0:21 / /sys rw,nosuid,nodev,noexec,relatime shared:2 - sysfs none rw\n27 1 8:2 / / rw,relatime shared:1 - ext4 none rw\n")
	parent := 22
	if m.hierarchies[0].mount != "/sys/fs/cgroup" {
		parent = 30
		b.WriteString("30 22 0:25 / /sys/fs/cgroup ro,nosuid,nodev,noexec shared:4 - tmpfs none ro\n")
	}
	for i, y := range m.hierarchies {
		kind, super := "cgroup", "rw,"+strings.Join(y.controllers, ",")
		switch {
		case y.v2:
			kind, super = "cgroup2", "rw,nsdelegate"
		case y.name != "":
			super = "rw,xattr,name=" + y.name
		}
		fmt.Fprintf(&b, "%d %d 0:%d / %s rw,nosuid,nodev,noexec,relatime shared:%d - %s %s %s\n", 31+i, parent, 26+i, y.mount, 5+i, kind, kind, super)
	}
	s.put("proc/self/mountinfo", "%s", b.String())
}

// blocks writes the block devices.
func (m *machine) blocks(s state, tick int) {
	s.put("proc/devices", "Character devices:\n  1 mem\n  5 /dev/tty\n 10 misc\n\nBlock devices:\n%s\n", strings.Join(m.devices, "\n"))
	c := m.root.all(tick)
	var stats strings.Builder
	line := func(d disk, minor int, name string) {
		var r, rs, w, ws int64
		if d.io {
			r, rs, w, ws = c.reads, c.read/512, c.writes, c.written/512
		}
		fmt.Fprintf(&stats, "%4d %7d %s %d 0 %d %d %d 0 %d %d 0 %d %d 0 0 0 0\n", d.major, minor, name, r, rs, r/2, w, ws, w/2, r+w, r/2+w/2)
	}
	for _, d := range m.disks {
		dir := path.Join("/sys/block", d.name)
		s.put(dir+"/dev", "%d:%d\n", d.major, d.minor)
		s.put(dir+"/size", "976773168\n")
		s.put(dir+"/queue/rotational", "0\n")
		line(d, d.minor, d.name)
		for i, p := range d.parts {
			s.put(path.Join(dir, p, "dev"), "%d:%d\n", d.major, d.minor+i+1)
			line(d, d.minor+i+1, p)
		}
		for _, below := range d.slaves {
			s["sys/block/"+d.name+"/slaves/"+below+" -> ../../"+below] = ""
		}
	}
	s.put("proc/diskstats", "%s", stats.String())
}

package hosttest_test

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

const hostNet = 4026531840

// A state is the files and links of a machine at a tick, by path; a link has the path "path
// -> target".
type state map[string]string

func (s state) put(p, format string, args ...any) {
	s[strings.TrimPrefix(p, "/")] = fmt.Sprintf(format, args...)
}

// state returns the machine's files at a tick.
func (m *machine) state(tick int) state {
	s := state{}
	var ids []string
	for _, y := range m.hierarchies {
		m.root.each(tick, func(g *group) {
			if !g.isIn(y) {
				return
			}
			dir := path.Join(y.mount, g.path)
			ids = append(ids, fmt.Sprintf("%d %s\n", g.id(y, tick), dir))
			m.group(s, y, g, dir, tick)
		})
	}
	for _, p := range m.processes {
		if !m.groupOf(p.pid).existsAt(tick) {
			continue
		}
		m.process(s, p, tick)
		if !p.hidden && p.state != 'Z' {
			ids = append(ids, fmt.Sprintf("%d /proc/%d/ns/net\n", p.namespace(), p.pid))
		}
	}
	slices.Sort(ids)
	s["mete/ids"] = strings.Join(ids, "")
	m.system(s, tick)
	m.mounts(s)
	m.blocks(s, tick)
	return s
}

// group writes the files of one group in one hierarchy.
func (m *machine) group(s state, y hierarchy, g *group, dir string, tick int) {
	var procs strings.Builder
	g.each(tick, func(k *group) {
		if k == g || !k.isIn(y) && m.nearest(k, y) == g {
			for _, pid := range k.pids {
				fmt.Fprintf(&procs, "%d\n", pid)
			}
		}
	})
	s.put(dir+"/cgroup.procs", "%s", procs.String())
	if y.v2 {
		m.groupV2(s, y, g, dir, tick)
		return
	}
	for _, c := range y.controllers {
		groupV1(s, m, g, dir, tick, c)
	}
}

func (m *machine) nearest(g *group, y hierarchy) *group {
	for !g.isIn(y) {
		g = g.parent
	}
	return g
}

func (m *machine) groupV2(s state, y hierarchy, g *group, dir string, tick int) {
	c, own := g.all(tick), g.own(tick)
	has := func(name string) bool {
		return slices.Contains(y.controllers, name) && (g.parent == nil || slices.Contains(strings.Fields(g.ctl), name))
	}
	s.put(dir+"/cgroup.controllers", "%s\n", strings.Join(slices.DeleteFunc(slices.Clone(y.controllers), func(n string) bool { return !has(n) }), " "))
	enabled := ""
	if len(g.kids) > 0 && len(y.controllers) > 0 {
		enabled = g.kids[0].ctl
	}
	s.put(dir+"/cgroup.subtree_control", "%s\n", enabled)
	s.put(dir+"/cgroup.stat", "nr_descendants %d\nnr_dying_descendants 0\n", g.count(tick))
	cpu := fmt.Sprintf("usage_usec %d\nuser_usec %d\nsystem_usec %d\n", c.user+c.system, c.user, c.system)
	root := g.parent == nil
	if has("cpu") && !root {
		cpu += fmt.Sprintf("nr_periods %d\nnr_throttled %d\nthrottled_usec %d\n", own.periods, own.periods/2, own.throttled)
	}
	s.put(dir+"/cpu.stat", "%s", cpu)
	if m.pressure {
		pressure(s, dir+"/cpu.pressure", c.some)
		pressure(s, dir+"/memory.pressure", c.some/10)
		pressure(s, dir+"/io.pressure", c.some/5)
	}
	if has("io") {
		s.put(dir+"/io.stat", "%s", m.ioStat(c))
	}
	if has("memory") {
		s.put(dir+"/memory.stat", "anon %d\nfile %d\nkernel %d\nkernel_stack %d\npagetables %d\nshmem 0\nfile_mapped %d\ninactive_anon 0\nactive_anon %d\ninactive_file %d\nactive_file %d\nunevictable 0\nslab %d\npgfault %d\npgmajfault 0\n",
			c.anon, c.file, c.kernel, c.kernel/8, c.kernel/4, c.file/4, c.anon, c.file/4*3, c.file-c.file/4*3, c.kernel/2, c.anon/2048)
	}
	if root {
		return
	}
	s.put(dir+"/cgroup.type", "domain\n")
	s.put(dir+"/cgroup.events", "populated %d\nfrozen 0\n", min(c.pids, 1))
	if has("cpu") {
		quota := "max"
		if g.quota > 0 {
			quota = fmt.Sprint(g.quota)
		}
		s.put(dir+"/cpu.max", "%s 100000\n", quota)
		s.put(dir+"/cpu.weight", "100\n")
	}
	if has("memory") {
		s.put(dir+"/memory.current", "%d\n", c.anon+c.file+c.kernel)
		s.put(dir+"/memory.peak", "%d\n", (c.anon+c.file+c.kernel)*5/4&^4095)
		s.put(dir+"/memory.max", "%s\n", orDefault(g.limit, "max"))
		s.put(dir+"/memory.events", "low 0\nhigh 0\nmax %d\noom %d\noom_kill %d\noom_group_kill 0\n", 10*c.ooms, c.ooms, c.ooms)
	}
	if has("pids") {
		s.put(dir+"/pids.current", "%d\n", c.pids)
		s.put(dir+"/pids.peak", "%d\n", c.pids+3)
		s.put(dir+"/pids.max", "max\n")
		s.put(dir+"/pids.events", "max 0\n")
	}
}

// groupV1 writes the files of one v1 controller.
func groupV1(s state, m *machine, g *group, dir string, tick int, controller string) {
	c, own := g.all(tick), g.own(tick)
	switch controller {
	case "cpu":
		s.put(dir+"/cpu.stat", "nr_periods %d\nnr_throttled %d\nthrottled_time %d\n", own.periods, own.periods/2, own.throttled*1000)
		s.put(dir+"/cpu.shares", "1024\n")
		if g.parent != nil {
			quota := g.quota
			if quota == 0 {
				quota = -1
			}
			s.put(dir+"/cpu.cfs_quota_us", "%d\n", quota)
			s.put(dir+"/cpu.cfs_period_us", "100000\n")
		}
	case "cpuacct":
		s.put(dir+"/cpuacct.usage", "%d\n", (c.user+c.system)*1000+c.extra)
		s.put(dir+"/cpuacct.stat", "user %d\nsystem %d\n", c.user/10000, c.system/10000)
	case "memory":
		usage := c.anon + c.file + c.kernel
		s.put(dir+"/memory.usage_in_bytes", "%d\n", usage)
		s.put(dir+"/memory.max_usage_in_bytes", "%d\n", usage*5/4&^4095)
		s.put(dir+"/memory.limit_in_bytes", "%s\n", orDefault(g.limit, "9223372036854771712"))
		s.put(dir+"/memory.failcnt", "%d\n", 10*own.ooms)
		s.put(dir+"/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill %d\n", own.ooms)
		s.put(dir+"/memory.stat", "%s", memoryStat("", own)+"hierarchical_memory_limit "+orDefault(g.limit, "9223372036854771712")+"\n"+memoryStat("total_", c))
	case "blkio":
		s.put(dir+"/blkio.throttle.io_service_bytes", "%s", m.blkio(own.read, own.written))
		s.put(dir+"/blkio.throttle.io_serviced", "%s", m.blkio(own.reads, own.writes))
		s.put(dir+"/blkio.throttle.io_service_bytes_recursive", "%s", m.blkio(c.read, c.written))
		s.put(dir+"/blkio.throttle.io_serviced_recursive", "%s", m.blkio(c.reads, c.writes))
	case "pids":
		if g.parent != nil {
			s.put(dir+"/pids.current", "%d\n", c.pids)
			s.put(dir+"/pids.max", "max\n")
			s.put(dir+"/pids.events", "max 0\n")
		}
	}
}

func memoryStat(prefix string, c counts) string {
	var b strings.Builder
	for _, l := range []struct {
		key string
		v   int64
	}{{"cache", c.file}, {"rss", c.anon}, {"rss_huge", 0}, {"shmem", 0}, {"mapped_file", c.file / 4}, {"dirty", 0}, {"writeback", 0}, {"swap", 0},
		{"pgpgin", (c.anon + c.file) / 4096}, {"pgpgout", 0}, {"pgfault", c.anon / 2048}, {"pgmajfault", 0}, {"inactive_anon", 0},
		{"active_anon", c.anon}, {"inactive_file", c.file / 4 * 3}, {"active_file", c.file - c.file/4*3}, {"unevictable", 0}} {
		fmt.Fprintf(&b, "%s%s %d\n", prefix, l.key, l.v)
	}
	return b.String()
}

func orDefault(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// pressure writes a pressure file; some is in us.
func pressure(s state, p string, some int64) {
	const averages = "avg10=0.00 avg60=0.00 avg300=0.00"
	s.put(p, "some %s total=%d\nfull %s total=%d\n", averages, some, averages, some/2)
}

// ioStat formats io.stat: the I/O of a stacked device is repeated for the device below it.
func (m *machine) ioStat(c counts) string {
	var b strings.Builder
	for _, d := range m.disks {
		if d.io && c.read+c.written > 0 {
			fmt.Fprintf(&b, "%d:%d rbytes=%d wbytes=%d rios=%d wios=%d dbytes=0 dios=0\n", d.major, d.minor, c.read, c.written, c.reads, c.writes)
		}
	}
	return b.String()
}

func (m *machine) blkio(read, written int64) string {
	var b strings.Builder
	var sum int64
	for _, d := range m.disks {
		if d.io && read+written > 0 {
			sum += read + written
			for _, l := range []struct {
				key string
				v   int64
			}{{"Read", read}, {"Write", written}, {"Sync", read}, {"Async", written}, {"Discard", 0}, {"Total", read + written}} {
				fmt.Fprintf(&b, "%d:%d %s %d\n", d.major, d.minor, l.key, l.v)
			}
		}
	}
	fmt.Fprintf(&b, "Total %d\n", sum)
	return b.String()
}

package capture

import (
	"path"

	"mete.dev/mete/internal/host/hostfs"
)

// groupFiles are the files of a group that mete reads; a hierarchy has those of its controllers.
var groupFiles = []string{
	"cgroup.procs",
	// v2
	"cgroup.controllers", "cgroup.subtree_control", "cgroup.type", "cgroup.events", "cgroup.stat",
	"cpu.stat", "cpu.max", "cpu.weight", "cpu.pressure",
	"memory.current", "memory.peak", "memory.stat", "memory.events", "memory.max", "memory.high", "memory.pressure", "memory.swap.current",
	"io.stat", "io.pressure",
	"pids.current", "pids.peak", "pids.max", "pids.events",
	// v1; cpu.stat and pids are above
	"cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us",
	"cpuacct.usage", "cpuacct.stat",
	"memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.limit_in_bytes", "memory.oom_control", "memory.failcnt",
	"blkio.throttle.io_service_bytes", "blkio.throttle.io_service_bytes_recursive",
	"blkio.throttle.io_serviced", "blkio.throttle.io_serviced_recursive",
}

// hierarchies captures the groups of every hierarchy.
func (m *machine) hierarchies() error {
	ys, err := m.host.Hierarchies()
	if err != nil {
		return err
	}
	for _, y := range ys {
		if err := m.groups(y); err != nil {
			return err
		}
		m.counts["hierarchies"]++
	}
	return nil
}

// groups captures the groups of one hierarchy, those near the root first, up to the limit.
func (m *machine) groups(y hostfs.Hierarchy) error {
	queue := []string{y.Mount}
	for taken := 0; len(queue) > 0; taken++ {
		if taken == m.limit.groups {
			m.counts["groups left out, at least"] += len(queue)
			return nil
		}
		dir := queue[0]
		queue = queue[1:]
		es, err := m.host.ReadDir(dir)
		if err != nil {
			if taken == 0 {
				return err
			}
			continue // gone meanwhile
		}
		to := m.redact.path(dir)
		for _, e := range es {
			if e.IsDir() {
				queue = append(queue, path.Join(dir, e.Name()))
			}
		}
		for _, f := range groupFiles {
			m.fileAs(path.Join(dir, f), path.Join(to, f), nil)
		}
		if id, err := m.host.ID(dir); err == nil {
			m.ids[to] = id
		}
		m.counts["groups"]++
	}
	return nil
}

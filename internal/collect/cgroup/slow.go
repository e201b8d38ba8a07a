package cgroup

import (
	"errors"
	"slices"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// readSlow reads the slow set: values that change slowly or cost much to read. Each group
// has its turn once in Every ticks, and is skipped while it is inactive; a new one is read
// at once, and an ending job for the last time.
func (t *Table) readSlow(ending []string) {
	every := max(1, t.cfg.Every)
	for _, n := range t.workloads {
		if n.group.Final || n.dead {
			continue
		}
		if len(ending) > 0 && n.isOfJob(ending) {
			t.readSlowOf(n)
			continue
		}
		mark := n.group.Value[usage.CPU] + n.group.Value[usage.Memory]
		turn := int(n.group.Slot)%every == t.ticks%every
		if n.slowUnread && !t.first && n.group.New || turn && (n.slowUnread || mark != n.slowMark) {
			t.readSlowOf(n)
			n.slowMark, n.slowUnread = mark, false
		}
	}
}

// isOfJob reports whether n is the group of a job with one of these keys, or below it.
func (n *node) isOfJob(keys []string) bool {
	for w := n; w != nil; w = w.parentWorkload {
		if w.group.Workload.Kind == workload.Job && slices.Contains(keys, w.group.Workload.Key) {
			return true
		}
	}
	return false
}

func (t *Table) readSlowOf(n *node) {
	r := &n.group.Reading
	cpu, limit, memory := t.src[roleCPU], t.src[roleLimit], t.src[roleMemory]
	if !cpu.V2 {
		t.slowFile(n, cpu, "/cpuacct.stat", func(b []byte) error {
			user, system, err := procfmt.CPUAcctStat(b)
			if err == nil {
				r.Put(usage.CPUUser, user)
				r.Put(usage.CPUSystem, system)
			}
			return err
		})
	}
	if n == t.root {
		return // limits, tasks and memory of the root are those of the machine
	}
	t.slowFile(n, limit, "/cpu.stat", func(b []byte) error {
		c, err := procfmt.CPUStat(b)
		if err == nil {
			putCPU(r, c, false)
		}
		return err
	})
	// With children, its file includes theirs, which are read at other times.
	if n.children > 0 || !t.slowMemory(n, memory) {
		r.Has &^= usage.SetOf(usage.MemoryAnon, usage.MemoryFile, usage.MemoryWorking)
	}
	t.slowMark(n, memory)
	t.slowEvents(n, memory)
	t.slowPressure(n)
	t.slowLimits(n)
}

// readWindow reads, once in Every ticks, the inclusive values outside the fast set. It
// reads all groups at once, since parents' remainders are differences.
func (t *Table) readWindow() {
	if t.ticks%max(1, t.cfg.Every) != 0 {
		return
	}
	for _, n := range t.workloads {
		if n.dead || n == t.root {
			continue
		}
		if t.byRole[rolePIDs] == nil {
			ok := t.slowFile(n, t.src[rolePIDs], "/pids.current", func(b []byte) error {
				v, err := procfmt.Int(b)
				if err == nil {
					n.group.Put(usage.PIDs, v)
				}
				return err
			})
			if !ok {
				n.group.Has &^= usage.SetOf(usage.PIDs)
			}
		}
		t.disk.read(t, n)
	}
}

func (t *Table) slowMemory(n *node, memory *hostfs.Hierarchy) bool {
	r := &n.group.Reading
	return t.slowFile(n, memory, "/memory.stat", func(b []byte) error {
		m, err := procfmt.MemoryStat(b)
		if err != nil {
			return err
		}
		if m.HasAnon {
			r.Put(usage.MemoryAnon, m.Anon)
		}
		if m.HasFile {
			r.Put(usage.MemoryFile, m.File)
		}
		if m.HasInactiveFile && r.Has.Has(usage.Memory) {
			r.Put(usage.MemoryWorking, max(0, r.Value[usage.Memory]-m.InactiveFile))
		}
		return nil
	})
}

// slowMark reads the high-water mark of the memory that is charged to the group. Between two readings
// it shows a rise that no tick saw. cgroup v2 has it since Linux 5.19.
func (t *Table) slowMark(n *node, memory *hostfs.Hierarchy) {
	name := "/memory.max_usage_in_bytes"
	if memory != nil && memory.V2 {
		name = "/memory.peak"
	}
	if v, ok := t.slowInt(n, memory, name); ok {
		n.group.Put(usage.MemoryPeak, v)
	}
}

// memoryEvents are the keys of memory.events.local; memory.oom_control of v1 has the first.
var memoryEvents = [...]struct {
	key      string
	resource usage.Resource
}{
	{"oom_kill", usage.OOMKills},
	{"high", usage.MemoryHighEvents},
	{"max", usage.MemoryMaxEvents},
}

// slowEvents reads how often limits of memory took effect. v1 has the memory limit in a file of its
// own, and no memory.high.
func (t *Table) slowEvents(n *node, memory *hostfs.Hierarchy) {
	if memory == nil {
		return
	}
	name := "/memory.oom_control"
	if memory.V2 {
		name = "/memory.events.local"
	} else if v, ok := t.slowInt(n, memory, "/memory.failcnt"); ok {
		n.group.Put(usage.MemoryMaxEvents, v)
	}
	t.slowFile(n, memory, name, func(b []byte) error {
		for _, e := range memoryEvents {
			v, ok, err := procfmt.KeyValue(b, e.key)
			if err != nil {
				return err
			}
			if ok {
				n.group.Put(e.resource, v)
			}
		}
		return nil
	})
}

var pressures = [...]struct {
	file     string
	resource usage.Resource
}{
	{"/cpu.pressure", usage.PressureCPU},
	{"/memory.pressure", usage.PressureMemory},
	{"/io.pressure", usage.PressureIO},
}

func (t *Table) slowPressure(n *node) {
	for _, p := range pressures {
		ok := t.slowFile(n, t.src[rolePSI], p.file, func(b []byte) error {
			some, _, err := procfmt.Pressure(b)
			if err == nil {
				n.group.Put(p.resource, some)
			}
			return err
		})
		if !ok {
			return
		}
	}
}

// slowFile reads one file of a group, if it exists, and reports whether it does. If the
// file cannot be read or parsed, its values are absent and the error is logged.
func (t *Table) slowFile(n *node, y *hostfs.Hierarchy, name string, take func([]byte) error) bool {
	if y == nil {
		return false
	}
	at := n.path
	for _, tr := range t.trees {
		if tr.Mount == y.Mount {
			at = n.paths[tr.index]
		}
	}
	if at == "" {
		return false
	}
	var err error
	t.buf, err = t.host.ReadInto(joinPath(y.Mount, at)+name, t.buf)
	if err == nil {
		err = take(t.buf)
	}
	switch {
	case err == nil:
		return true
	case errors.Is(err, fault.ErrNotFound), errors.Is(err, fault.ErrUnsupported):
	default:
		t.log.Debug("reading", "path", n.path, "file", name, "err", err)
	}
	return false
}

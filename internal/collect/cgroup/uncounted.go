package cgroup

import "mete.dev/mete/internal/model/usage"

// An Uncounted is a group whose CPU time no hierarchy counts: it exists in the memory hierarchy and
// not in the one for CPU time, which has its processes in the group of a workload above, with those
// of others.
type Uncounted struct{ node *node }

// Memory returns the latest reading of the memory that is charged to the group's workload, in bytes.
func (u Uncounted) Memory() int64 { return u.node.owner.group.Value[usage.Memory] }

// EachUncounted calls f for the groups that the kernel counts no CPU time of. counter is the
// workload that their CPU time is counted with, and dir the directory that lists their processes.
// An Uncounted is comparable, and equal for one life of a group.
func (t *Table) EachUncounted(f func(u Uncounted, dir string, counter *usage.Group)) {
	cpu, mem := t.byRole[roleCPU], t.byRole[roleMemory]
	if mem == nil || mem == cpu {
		return
	}
	if t.uncountedStale {
		t.uncountedStale, t.uncounted = false, t.uncounted[:0]
		for _, n := range mem.byPath {
			if n.id[cpu.index] == 0 && !n.dead && n.owner.id[cpu.index] == 0 { // no part of a counted workload either
				t.uncounted = append(t.uncounted, n)
			}
		}
	}
	for _, n := range t.uncounted {
		f(Uncounted{n}, mem.dir(n.paths[mem.index]), &t.counterOf(n).group)
	}
}

// counterOf returns the workload above n with which the kernel counts n's CPU time.
func (t *Table) counterOf(n *node) *node {
	for n.id[t.byRole[roleCPU].index] == 0 && n.parent != nil {
		n = n.parent
	}
	return n.owner
}

// AddCPU adds CPU time, in ns, that the processes of a group used, to the group's workload and those
// above it that have no counter either. It is apportioned: the kernel counts it elsewhere.
func (t *Table) AddCPU(u Uncounted, ns int64) {
	cpu := t.byRole[roleCPU]
	var last *node
	for n := u.node; n.parent != nil && n.id[cpu.index] == 0; n = n.parent {
		if o := n.owner; o != last && o.id[cpu.index] == 0 && o != t.root {
			r := &o.group.Reading
			r.Put(usage.CPU, r.Value[usage.CPU]+ns)
			r.Apportioned |= usage.SetOf(usage.CPU)
			r.Counted |= usage.SetOf(usage.CPU)
			last = o
		}
	}
}

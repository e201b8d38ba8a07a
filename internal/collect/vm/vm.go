// Package vm finds the virtual machines of a machine: QEMU's processes, what
// their command lines say, in which workload each runs, and what its threads use.
//
// [Table.Read] belongs into each tick, behind the groups. It looks at all
// processes every ten seconds, and each second at those of a virtual machine's
// group that is new. Where a workload is there for one virtual machine alone, its
// group gets a [usage.Guest]; else the [VM] says why not.
//
// [Table.Times] and [Ask] read what a virtual machine does now: the CPU time of its
// threads by role, and how often it left guest mode.
package vm

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"mete.dev/mete/internal/collect/proc"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A Config says how often to look.
type Config struct {
	// Every is the number of ticks between two looks at all processes.
	Every int
}

// Default is a look every ten ticks.
func Default() Config { return Config{Every: 10} }

// Validate reports what is wrong with c.
func (c Config) Validate() error {
	if c.Every < 1 {
		return fmt.Errorf("virtual machines: a look every %d ticks: %w", c.Every, fault.ErrInvalid)
	}
	return nil
}

// A VM is a virtual machine: a QEMU process, and what is known of it. It does not
// change once it was given out.
type VM struct {
	PID   int32
	Start int64 // ns after boot
	Domain
	// VCPUs is how many CPUs it has now where the names of its threads tell, else
	// with how many it was started.
	VCPUs int
	// Named says that the names of its threads tell what they do.
	Named bool
	Group string // its path in the hierarchy that counts CPU time
	// Workload is what its CPU time counts for; zero where that is not known.
	Workload workload.Workload
	// Refused says why its workload is not the virtual machine's alone, so that
	// it is booked like any other; "" where it is.
	Refused string

	cmdline string
	vhosts  []int32 // kernel threads of its own, outside the process
}

// An Owner returns the workload that processes in a group count for, given the
// group's path as kernel files write it; nil where it is not known. It is
// cgroup.Table.Owner.
type Owner func(group string) *usage.Group

// A Table holds the virtual machines of a machine. Its owner is one goroutine.
type Table struct {
	cfg       Config
	h         *hostfs.FS
	hierarchy hostfs.Hierarchy
	clock     bool // the processes' CPU clocks can be read
	log       *slog.Logger

	ticks int
	looks int
	seen  map[int32]glance     // processes that are no QEMU
	vms   map[int32]*VM        // by PID
	young map[usage.Slot]int   // groups of virtual machines in which none is found yet: for how many ticks to look
	given map[*usage.Group]*VM // whose Guest is set
	told  map[int32]int        // how often each was refused, up to telling

	// Unreadable counts the processes that the last look at all could not read,
	// but for those that had ended.
	Unreadable int
}

// Open opens a table of the virtual machines of h; nothing is found yet. An error
// wrapping fault.ErrUnsupported says that h has no groups.
func Open(h *hostfs.FS, cfg Config, log *slog.Logger) (*Table, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	y, err := proc.Primary(h)
	if err != nil {
		return nil, err
	}
	return &Table{cfg: cfg, h: h, hierarchy: y, clock: proc.HasClock(h), log: log, seen: map[int32]glance{}, vms: map[int32]*VM{},
		young: map[usage.Slot]int{}, given: map[*usage.Group]*VM{}, told: map[int32]int{}}, nil
}

// All returns the virtual machines that are there, by PID. They stay as they are
// when the table is read again.
func (t *Table) All() []*VM {
	all := make([]*VM, 0, len(t.vms))
	for _, v := range t.vms {
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b *VM) int { return int(a.PID) - int(b.PID) })
	return all
}

// youth is for how many ticks a new group of a virtual machine is looked into:
// it is made a moment before QEMU is in it.
const youth = 10

// Read finds what came and went, and sets the Guest of each group in s that is
// there for one virtual machine alone.
func (t *Table) Read(s *usage.Snapshot, owner Owner) error {
	t.leave()
	for _, g := range s.Groups {
		switch {
		case g.Final:
			delete(t.young, g.Slot)
		case g.New && g.Workload.Kind == workload.VM && g.Guest == nil:
			t.young[g.Slot] = youth
		}
	}
	due := t.ticks%t.cfg.Every == 0
	t.ticks++
	switch {
	case due:
		if err := t.look(); err != nil {
			return err
		}
	case len(t.young) > 0:
		t.lookInto(s, owner)
	default:
		return nil
	}
	t.match(owner)
	return nil
}

// leave forgets the virtual machines whose process is gone, which costs one
// system call each. A group that ends with its own keeps its Guest to the last.
func (t *Table) leave() {
	for g, v := range t.given {
		if g.Final {
			delete(t.given, g)
			continue
		}
		if !t.clock {
			continue
		}
		if _, err := proc.Clock(v.PID); err != nil {
			g.Guest = nil
			delete(t.given, g)
			t.forget(v.PID)
		}
	}
}

func (t *Table) forget(pid int32) {
	delete(t.vms, pid)
	delete(t.told, pid)
}

// lookInto looks at the processes of new groups of virtual machines.
func (t *Table) lookInto(s *usage.Snapshot, owner Owner) {
	for _, g := range s.Groups {
		left, ok := t.young[g.Slot]
		if !ok || g.Final {
			continue
		}
		if t.young[g.Slot] = left - 1; left <= 1 {
			delete(t.young, g.Slot)
		}
		pids, err := t.members(g, owner)
		if err != nil {
			t.log.Debug("virtual machine's group", "path", g.Workload.Path, "err", err)
			continue
		}
		for _, pid := range pids {
			if _, err := t.take(pid); err != nil && !errors.Is(err, fault.ErrNotFound) {
				t.log.Debug("process of a virtual machine", "pid", pid, "err", err)
			}
		}
	}
}

// take finds out whether the process is a virtual machine, and keeps it.
func (t *Table) take(pid int32) (g glance, err error) {
	v, g, err := t.identify(pid)
	switch {
	case v != nil:
		delete(t.seen, pid)
		t.vms[pid] = v
	case t.vms[pid] != nil && (err == nil || errors.Is(err, fault.ErrNotFound)):
		t.forget(pid)
	}
	return g, err
}

// match gives groups to virtual machines, and says of the others why not.
func (t *Table) match(owner Owner) {
	by := map[*usage.Group][]*VM{}
	for pid, v := range t.vms {
		next := *v
		next.Workload, next.Refused = workload.Workload{}, ""
		switch g := owner(v.Group); {
		case g == nil:
			next.Refused = "its group is not known yet, or no longer"
		case g.Slot == usage.Root:
			next.Workload = g.Workload
			next.Refused = "it is in the root group, which is no workload; give it a group of its own"
		default:
			next.Workload = g.Workload
			by[g] = append(by[g], &next)
		}
		t.vms[pid] = &next
	}
	for g, v := range t.given {
		if len(by[g]) == 0 {
			g.Guest = nil
			delete(t.given, g)
			t.log.Info("virtual machine left", "workload", g.Workload.Name, "vm", v.Name)
		}
	}
	for g, them := range by {
		pid, why := t.alone(g, owner)
		for _, v := range them {
			if v.Refused = why; why == "" && v.PID != pid {
				v.Refused = fmt.Sprintf("it is a part of the virtual machine with PID %d", pid)
			}
		}
		t.give(g, t.vms[pid])
	}
	t.tell()
}

// alone says which virtual machine g is there for alone, or why there is none.
func (t *Table) alone(g *usage.Group, owner Owner) (pid int32, why string) {
	pids, err := t.members(g, owner)
	if err != nil {
		return 0, "who else is in its group cannot be read: " + err.Error()
	}
	if len(pids) > crowd {
		return 0, fmt.Sprintf("it shares its group with more than %d processes; give it its own", crowd)
	}
	var them []inhabitant
	for _, pid := range pids {
		if p, ok := t.inhabitant(pid); ok {
			them = append(them, p)
		}
	}
	return alone(them)
}

// give makes v the guest of g; nil takes away the one that it has.
func (t *Table) give(g *usage.Group, v *VM) {
	if v == nil {
		g.Guest = nil
		delete(t.given, g)
		return
	}
	guest := usage.Guest{UUID: v.UUID, Name: v.Name, CID: v.CID, VCPUs: v.VCPUs}
	if g.Guest == nil {
		t.log.Info("virtual machine", "vm", v.Name, "uuid", v.UUID, "vcpus", v.VCPUs, "workload", g.Workload.Name)
	}
	if g.Guest == nil || *g.Guest != guest {
		g.Guest = &guest // readers may have the one before
	}
	t.given[g] = v
	delete(t.young, g.Slot)
}

// telling is at which refusal it is told of: while QEMU starts, others come and go.
const telling = 2

// tell logs why a virtual machine is booked like any other workload, once.
func (t *Table) tell() {
	for pid, v := range t.vms {
		if v.Refused == "" || t.told[pid] == telling {
			continue
		}
		if t.told[pid]++; t.told[pid] == telling {
			t.log.Info("virtual machine is booked as any workload", "vm", v.Name, "pid", pid, "why", v.Refused)
		}
	}
}

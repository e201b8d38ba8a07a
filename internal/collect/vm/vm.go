// Package vm finds the virtual machines of a machine: QEMU's processes, what
// their command lines say, in which workload each runs, and what its threads use.
//
// [Table.Read] belongs into each tick, behind the groups. It looks at all
// processes every ten seconds, and each second at those of a virtual machine's
// group that is new. Where a workload is there for one virtual machine alone, its
// group gets a [usage.Guest]; else the [VM] says why not.
//
// [Table.Times] and [QueryExits] read what a virtual machine does now: the CPU time of its
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
	// RejectReason says why its workload is not the virtual machine's alone, so that
	// it is booked like any other; "" where it is.
	RejectReason string

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

	ticks      int
	scans      int
	seen       map[int32]otherProcess // processes that are no QEMU
	vms        map[int32]*VM          // by PID
	newGroups  map[usage.Slot]int     // groups of virtual machines in which none is found yet: for how many ticks to look
	assigned   map[*usage.Group]*VM   // whose Guest is set
	rejections map[int32]int          // how often each was refused, up to logAtRejection

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
	return &Table{cfg: cfg, h: h, hierarchy: y, clock: proc.CanReadCPUTime(h), log: log, seen: map[int32]otherProcess{}, vms: map[int32]*VM{},
		newGroups: map[usage.Slot]int{}, assigned: map[*usage.Group]*VM{}, rejections: map[int32]int{}}, nil
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

// newGroupTicks is for how many ticks a new group of a virtual machine is looked into:
// it is made a moment before QEMU is in it.
const newGroupTicks = 10

// Read finds what came and went, and sets the Guest of each group in s that is
// there for one virtual machine alone.
func (t *Table) Read(s *usage.Snapshot, owner Owner) error {
	t.dropGone()
	for _, g := range s.Groups {
		switch {
		case g.Final:
			delete(t.newGroups, g.Slot)
		case g.New && g.Workload.Kind == workload.VM && g.Guest == nil:
			t.newGroups[g.Slot] = newGroupTicks
		}
	}
	due := t.ticks%t.cfg.Every == 0
	t.ticks++
	switch {
	case due:
		if err := t.scanAll(); err != nil {
			return err
		}
	case len(t.newGroups) > 0:
		t.scanNewGroups(s, owner)
	default:
		return nil
	}
	t.assignGuests(owner)
	return nil
}

// dropGone forgets the virtual machines whose process is gone, which costs one
// system call each. A group that ends with its own keeps its Guest to the last.
func (t *Table) dropGone() {
	for g, v := range t.assigned {
		if g.Final {
			delete(t.assigned, g)
			continue
		}
		if !t.clock {
			continue
		}
		if _, err := proc.CPUTime(v.PID); err != nil {
			g.Guest = nil
			delete(t.assigned, g)
			t.forget(v.PID)
		}
	}
}

func (t *Table) forget(pid int32) {
	delete(t.vms, pid)
	delete(t.rejections, pid)
}

// scanNewGroups looks at the processes of new groups of virtual machines.
func (t *Table) scanNewGroups(s *usage.Snapshot, owner Owner) {
	for _, g := range s.Groups {
		left, ok := t.newGroups[g.Slot]
		if !ok || g.Final {
			continue
		}
		if t.newGroups[g.Slot] = left - 1; left <= 1 {
			delete(t.newGroups, g.Slot)
		}
		pids, err := t.groupPIDs(g, owner)
		if err != nil {
			t.log.Debug("virtual machine's group", "path", g.Workload.Path, "err", err)
			continue
		}
		for _, pid := range pids {
			if _, err := t.inspect(pid); err != nil && !errors.Is(err, fault.ErrNotFound) {
				t.log.Debug("process of a virtual machine", "pid", pid, "err", err)
			}
		}
	}
}

// inspect finds out whether the process is a virtual machine, and keeps it.
func (t *Table) inspect(pid int32) (g otherProcess, err error) {
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

// assignGuests gives groups to virtual machines, and says of the others why not.
func (t *Table) assignGuests(owner Owner) {
	by := map[*usage.Group][]*VM{}
	for pid, v := range t.vms {
		next := *v
		next.Workload, next.RejectReason = workload.Workload{}, ""
		switch g := owner(v.Group); {
		case g == nil:
			next.RejectReason = "its group is not known yet, or no longer"
		case g.Slot == usage.Root:
			next.Workload = g.Workload
			next.RejectReason = "it is in the root group, which is no workload; give it a group of its own"
		default:
			next.Workload = g.Workload
			by[g] = append(by[g], &next)
		}
		t.vms[pid] = &next
	}
	for g, v := range t.assigned {
		if len(by[g]) == 0 {
			g.Guest = nil
			delete(t.assigned, g)
			t.log.Info("virtual machine left", "workload", g.Workload.Name, "vm", v.Name)
		}
	}
	for g, them := range by {
		pid, why := t.findSoleVM(g, owner)
		for _, v := range them {
			if v.RejectReason = why; why == "" && v.PID != pid {
				v.RejectReason = fmt.Sprintf("it is a part of the virtual machine with PID %d", pid)
			}
		}
		t.setGuest(g, t.vms[pid])
	}
	t.logRejected()
}

// findSoleVM says which virtual machine g is there for alone, or why there is none.
func (t *Table) findSoleVM(g *usage.Group, owner Owner) (pid int32, why string) {
	pids, err := t.groupPIDs(g, owner)
	if err != nil {
		return 0, "who else is in its group cannot be read: " + err.Error()
	}
	if len(pids) > maxGroupProcesses {
		return 0, fmt.Sprintf("it shares its group with more than %d processes; give it its own", maxGroupProcesses)
	}
	var them []groupProcess
	for _, pid := range pids {
		if p, ok := t.readGroupProcess(pid); ok {
			them = append(them, p)
		}
	}
	return soleVM(them)
}

// setGuest makes v the guest of g; nil takes away the one that it has.
func (t *Table) setGuest(g *usage.Group, v *VM) {
	if v == nil {
		g.Guest = nil
		delete(t.assigned, g)
		return
	}
	guest := usage.Guest{UUID: v.UUID, Name: v.Name, CID: v.CID, VCPUs: v.VCPUs}
	if g.Guest == nil {
		t.log.Info("virtual machine", "vm", v.Name, "uuid", v.UUID, "vcpus", v.VCPUs, "workload", g.Workload.Name)
	}
	if g.Guest == nil || *g.Guest != guest {
		g.Guest = &guest // readers may have the one before
	}
	t.assigned[g] = v
	delete(t.newGroups, g.Slot)
}

// logAtRejection is at which refusal it is told of: while QEMU starts, others come and go.
const logAtRejection = 2

// logRejected logs why a virtual machine is booked like any other workload, once.
func (t *Table) logRejected() {
	for pid, v := range t.vms {
		if v.RejectReason == "" || t.rejections[pid] == logAtRejection {
			continue
		}
		if t.rejections[pid]++; t.rejections[pid] == logAtRejection {
			t.log.Info("virtual machine is booked as any workload", "vm", v.Name, "pid", pid, "why", v.RejectReason)
		}
	}
}

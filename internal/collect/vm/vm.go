// Package vm finds the virtual machines of a machine: QEMU's processes, their command
// lines, the workload in which each runs, and the use of its threads.
//
// Call [Table.Read] in each tick after the groups were read. It scans all processes every
// ten seconds, and every second those of a new group of a virtual machine. If a workload
// contains only one virtual machine, its group gets a [usage.Guest]; otherwise the [VM] has
// the reason.
//
// [Table.Times] and [QueryExits] read the present activity of a virtual machine: the CPU
// time of its threads by role, and how often it left guest mode.
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

// A Config sets how often to scan.
type Config struct {
	// Every is the number of ticks between scans of all processes.
	Every int
}

// Validate returns an error wrapping fault.ErrInvalid if c cannot work.
func (c Config) Validate() error {
	if c.Every < 1 {
		return fmt.Errorf("virtual machines: scan every %d ticks: %w", c.Every, fault.ErrInvalid)
	}
	return nil
}

// A VM is a virtual machine: a QEMU process and its configuration. It is immutable once it
// was returned.
type VM struct {
	PID   int32
	Start int64 // ns after boot
	Domain
	// VCPUs is its present number of CPUs if the names of its threads show it, else the
	// number at start.
	VCPUs int
	// Named means that the names of its threads show their roles.
	Named bool
	Group string // its path in the hierarchy that counts CPU time
	GID   int    // effective group of the process; that of this process if unknown
	// Workload is what its CPU time counts for; zero if unknown.
	Workload workload.Workload
	// RejectReason is why its workload contains more than the virtual machine, so that it
	// is booked like any other; "" if it does not.
	RejectReason string

	cmdline string
	// believed is what the command line says, as far as it is believed; UUID and CID are those that
	// no other virtual machine had before.
	believed Domain
	vhosts   []int32 // its kernel threads, outside the process
}

// An Owner returns the workload that processes in a group count for, given the group's path
// as in kernel files; nil if unknown. It is cgroup.Table.Owner.
type Owner func(group string) *usage.Group

// A Table holds the virtual machines of a machine. Only one goroutine may use it.
type Table struct {
	cfg       Config
	h         *hostfs.FS
	hierarchy hostfs.Hierarchy
	clock     bool // CPU clocks of processes can be read
	log       *slog.Logger

	ticks      int
	scans      int
	seen       map[int32]otherProcess // processes that are not QEMU
	spare      map[int32]otherProcess // empty, for the next scan
	vms        map[int32]*VM          // by PID
	newGroups  map[usage.Slot]int     // groups of virtual machines without a known one: ticks for which to scan
	assigned   map[*usage.Group]*VM   // groups whose Guest is set
	rejections map[int32]int          // how often each was rejected, up to logAtRejection

	// Unreadable counts the processes that the last full scan could not read, except ended
	// ones.
	Unreadable int
}

// Open opens an empty table of the virtual machines of h. The error wraps
// fault.ErrUnsupported if h has no groups.
func Open(h *hostfs.FS, cfg Config, log *slog.Logger) (*Table, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	y, err := proc.Primary(h)
	if err != nil {
		return nil, err
	}
	return &Table{cfg: cfg, h: h, hierarchy: y, clock: proc.CanReadCPUTime(h), log: log, seen: map[int32]otherProcess{}, spare: map[int32]otherProcess{}, vms: map[int32]*VM{},
		newGroups: map[usage.Slot]int{}, assigned: map[*usage.Group]*VM{}, rejections: map[int32]int{}}, nil
}

// All returns the existing virtual machines, by PID. The next Read does not change them.
func (t *Table) All() []*VM {
	all := make([]*VM, 0, len(t.vms))
	for _, v := range t.vms {
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b *VM) int { return int(a.PID) - int(b.PID) })
	return all
}

// newGroupTicks is for how many ticks a new group of a virtual machine is scanned: it is
// created a moment before QEMU enters it.
const newGroupTicks = 10

// Read finds started and ended virtual machines, and sets the Guest of each group in s that
// contains only one virtual machine.
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

// dropGone drops the virtual machines whose process is gone, at the cost of one system call
// each. A group that ends with its virtual machine keeps its Guest to the end.
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

// scanNewGroups scans the processes of new groups of virtual machines.
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

// inspect identifies a process and stores the result.
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

// assignGuests assigns virtual machines to groups, or sets the reason why not.
func (t *Table) assignGuests(owner Owner) {
	by := map[*usage.Group][]*VM{}
	all := make([]*VM, 0, len(t.vms))
	for _, v := range t.vms {
		next := *v
		next.UUID, next.CID = v.believed.UUID, v.believed.CID
		all = append(all, &next)
	}
	keepFirst(all)
	for _, v := range all {
		pid, next := v.PID, v
		next.Workload, next.RejectReason = workload.Workload{}, ""
		switch g := owner(v.Group); {
		case g == nil:
			next.RejectReason = "its group is not known yet, or no longer"
		case g.Slot == usage.Root:
			next.Workload = g.Workload
			next.RejectReason = "it is in the root group, which is not a workload; give it a group of its own"
		default:
			next.Workload = g.Workload
			by[g] = append(by[g], next)
		}
		t.vms[pid] = next
	}
	for g, v := range t.assigned {
		if len(by[g]) == 0 {
			g.Guest = nil
			delete(t.assigned, g)
			t.log.Info("virtual machine left", "workload", g.Workload.Name, "vm", v.Name)
		}
	}
	for g, vms := range by {
		pid, why := t.findSoleVM(g, owner)
		for _, v := range vms {
			if v.RejectReason = why; why == "" && v.PID != pid {
				v.RejectReason = fmt.Sprintf("it is a part of the virtual machine with PID %d", pid)
			}
		}
		t.setGuest(g, t.vms[pid])
	}
	t.logRejected()
}

// findSoleVM returns the only virtual machine in g, or why there is none.
func (t *Table) findSoleVM(g *usage.Group, owner Owner) (pid int32, why string) {
	pids, err := t.groupPIDs(g, owner)
	if err != nil {
		return 0, "cannot read the processes of its group: " + err.Error()
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

// setGuest makes v the guest of g; nil removes the guest.
func (t *Table) setGuest(g *usage.Group, v *VM) {
	if v == nil {
		g.Guest = nil
		delete(t.assigned, g)
		return
	}
	guest := usage.Guest{UUID: v.UUID, Name: v.Name, CID: v.CID, GID: v.GID, VCPUs: v.VCPUs}
	if g.Guest == nil {
		t.log.Info("virtual machine", "vm", v.Name, "uuid", v.UUID, "vcpus", v.VCPUs, "workload", g.Workload.Name)
	}
	if g.Guest == nil || *g.Guest != guest {
		g.Guest = &guest // readers may hold the previous one
	}
	t.assigned[g] = v
	delete(t.newGroups, g.Slot)
}

// logAtRejection is the rejection at which to log: while QEMU starts, other processes come
// and go.
const logAtRejection = 2

// logRejected logs once why a virtual machine is booked like any other workload.
func (t *Table) logRejected() {
	for pid, v := range t.vms {
		if v.RejectReason == "" || t.rejections[pid] == logAtRejection {
			continue
		}
		if t.rejections[pid]++; t.rejections[pid] == logAtRejection {
			t.log.Info("virtual machine is booked like any workload", "vm", v.Name, "pid", pid, "why", v.RejectReason)
		}
	}
}

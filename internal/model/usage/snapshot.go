package usage

import (
	"time"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/workload"
)

// A Slot is a group's place in the tables of one process. It stays the group's
// own for its life, and may go to another group two snapshots later.
type Slot int32

// NoSlot is no slot: the parent of the root.
const NoSlot Slot = -1

// Root is the slot of the machine's root group. What it shows beyond all other
// groups belongs to the workload "system". Where the kernel's root counts CPU
// (v1), its reading is inclusive; elsewhere (v2) the reading is Own and holds
// the tasks in the root group.
const Root Slot = 0

// A Reading is what a group shows at an instant: cumulative values since its
// life began for counters, present levels for integrals and peaks, in the
// resource's unit (a level in its Level unit). Where the resource is Inclusive
// the reading holds all descendants, dead ones too for counters.
type Reading struct {
	Has Set
	// Own marks inclusive resources that this reading nevertheless shows
	// without descendants, as some sources count by the group alone.
	Own Set
	// Apportioned marks values that were divided by a rule before they came.
	Apportioned Set
	// Counted marks counters that the meter itself counts, from when it was
	// started: with each start of the meter they begin anew, at zero.
	Counted Set
	// Value is that of each resource below EnergyPackage: no group shows energy.
	Value [EnergyPackage]int64
}

// Put sets the value of r.
func (g *Reading) Put(r Resource, v int64) {
	g.Has |= 1 << r
	g.Value[r] = v
}

// A Group is one workload's group in a snapshot. The source owns it and changes
// it only between ticks.
type Group struct {
	Slot   Slot
	Parent Slot // the nearest group above that is a workload, or Root
	// MemoryParent is the same in the hierarchy that charges memory: another
	// one where hierarchies are used at different depths.
	MemoryParent Slot
	Life         workload.Life
	Workload     workload.Workload
	// CPULimit is the most CPU time that the group may use, in ns a second, and
	// MemoryLimit the most bytes that may be charged to it; 0 is no limit of its
	// own, or none that can be seen.
	CPULimit, MemoryLimit int64
	// Guest is the virtual machine that runs in the group; nil where there is
	// none. It does not change once it is set.
	Guest *Guest
	// New says that the group was not in the snapshot before.
	New bool
	// Born says of a new group that its life began after the snapshot before,
	// so that all it shows is to be booked; a new group that is not Born
	// starts at its present values.
	Born bool
	// Final says that the group is gone and these are its last values.
	Final bool
	// Exact says of a Final group that its CPU was read as it went, not at
	// the tick before.
	Exact bool
	Reading
}

// A Guest is a virtual machine of this machine.
type Guest struct {
	UUID  string // in lower case with dashes; "" where it has none
	Name  string // of the domain
	CID   uint32 // its address by vsock; 0 where it has none
	VCPUs int
}

// A Node is what the machine as a whole shows at an instant.
type Node struct {
	CPUs     int   // online
	Steal    int64 // CPU ns taken by the hypervisor since boot, all CPUs
	MemTotal int64 // bytes
	MemFree  int64 // bytes that nobody uses
	MemAvail int64 // bytes that could be had without swapping
	Tasks    int64 // alive, threads and kernel threads included; 0 is not known
	// Total holds what the machine did as a whole since boot: disk over leaf
	// devices, network over the interfaces of the host's namespace without lo.
	Total Reading
}

// A Snapshot is one reading of a machine, as close to one instant as the
// kernel allows.
type Snapshot struct {
	Boot string // boot id
	// At is when the reading began: nanoseconds of CLOCK_BOOTTIME. Mono is the
	// same instant in CLOCK_MONOTONIC, which stands still during suspend.
	At, Mono int64
	// Offset is wall clock minus CLOCK_BOOTTIME, in nanoseconds.
	Offset int64
	// Took is how long the reading lasted.
	Took time.Duration
	Node Node
	// Groups holds every workload's group, parents before children; the first
	// is the root's. A Final group is in one snapshot and then no more.
	Groups []*Group
	// Lost counts births and deaths that the source knows it did not see.
	Lost int64
	// Before and After are what the energy meters showed just before the first
	// group was read and just after the last.
	Before, After []power.Reading
}

// Wall returns the snapshot's time in wall time.
func (s *Snapshot) Wall() time.Time { return time.Unix(0, s.At+s.Offset).UTC() }

package usage

import (
	"time"

	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/workload"
)

// A Slot is a group's place in the tables of one process. It stays the group's
// own for its life, and may go to another group two snapshots later.
type Slot int32

// NoSlot stands for a missing group: the parent of the root.
const NoSlot Slot = -1

// Root is the slot of the machine's root group. Its values beyond those of all other groups belong
// to the workload "system". If the kernel's root counts CPU (v1), its reading is inclusive;
// otherwise (v2) the reading is Own and holds the tasks in the root group.
const Root Slot = 0

// A Reading holds the values of a group at an instant, in the resource's unit (a level in its Level
// unit): cumulative values since its life began for counters, present levels for integrals and
// peaks. If the resource is Inclusive, the reading includes all descendants, for counters dead ones
// too.
type Reading struct {
	Has Set
	// Own marks inclusive resources whose values in this reading exclude descendants, as some
	// sources count by the group alone.
	Own Set
	// Apportioned marks values that the source divided by a rule.
	Apportioned Set
	// Counted marks counters that the agent itself counts: they start at zero each time it starts.
	Counted Set
	// Value holds the value of each metered resource but those of Apart, see Group.Classes and Group.Storage; no group
	// shows energy.
	Value [ReadingLimit]int64
}

// Put sets the value of r, which is in Metered and not in Apart.
func (g *Reading) Put(r Resource, v int64) {
	g.Has |= 1 << r
	g.Value[r] = v
}

// A Group is one workload's group in a snapshot. The source owns it and changes
// it only between ticks. Fields of one byte stand together, as there are thousands of groups.
type Group struct {
	Slot   Slot
	Parent Slot // the nearest group above that is a workload, or Root
	// MemoryParent is the same in the hierarchy that charges memory. It is another group if the
	// hierarchies are used at different depths.
	MemoryParent Slot
	// New says that the group was not in the previous snapshot.
	New bool
	// Born says of a new group that its life began after the previous snapshot, so that all its
	// values are booked; a new group that is not Born starts at its present values.
	Born bool
	// Final says that the group is gone and these are its last values.
	Final bool
	// Exact says of a Final group that its CPU time was read as the group ended, not at the
	// previous tick.
	Exact    bool
	Life     workload.Life
	Workload workload.Workload
	// Storage is the disk space in bytes that the group itself took when it was measured last. It holds until it is measured
	// again.
	Storage Level
	// CPULimit is the largest CPU time that the group may use, in ns per second, and MemoryLimit
	// the largest number of bytes that may be charged to it; 0 means that the group has no limit of
	// its own, or that none can be seen.
	CPULimit, MemoryLimit int64
	// Guest is the virtual machine that runs in the group, or nil. It does not change once it is
	// set.
	Guest *Guest
	// Held are integrals of levels since the latest booked snapshot, from a source that samples levels
	// between snapshots; nil if the levels of the two snapshots are all that is known.
	Held map[Resource]int64
	// Removed is by how much counters of the reading fell since the latest booked snapshot, as
	// block devices and their counters were removed; nil if none were.
	Removed map[Resource]int64
	// Classes is the network traffic by class since the latest booked snapshot, as far as it is known; nil if
	// none is.
	Classes *ClassBytes
	// Connections is with whom that traffic was exchanged since the latest booked snapshot, as far as it is known; nil if
	// nothing is. It does not change once a group refers to it.
	Connections *connection.Sketch
	Reading
}

// A Level is an amount that may be unknown, which is its zero value: it is one more than the amount, which is not negative.
type Level int64

// KnownLevel returns a known level.
func KnownLevel(v int64) Level { return Level(v + 1) }

// Get returns the level, and false if it is unknown.
func (l Level) Get() (v int64, ok bool) { return max(int64(l)-1, 0), l != 0 }

// A Guest is a virtual machine of this machine.
type Guest struct {
	UUID  string // in lower case with dashes; "" if it has none
	Name  string // of the domain
	CID   uint32 // vsock address; 0 if it has none
	GID   int    // group of the hypervisor's process
	VCPUs int
}

// A Node holds the values of the machine as a whole at an instant.
type Node struct {
	CPUs     int   // online
	Steal    int64 // CPU ns taken by the hypervisor since boot, all CPUs
	MemTotal int64 // bytes
	MemFree  int64 // bytes, not in use
	MemAvail int64 // bytes that are available without swapping
	Tasks    int64 // alive, threads and kernel threads included; 0 if not known
	Idle     int64 // CPU ns in which the CPUs had nothing to run, since boot, in steps of 10 ms
	// Partial says that the groups are a part of the machine only: its CPUs were used by others
	// too, as far as they were not idle.
	Partial bool
	// Total holds the use of the machine as a whole since boot: disk over leaf devices, network
	// over the interfaces of the host's namespace without lo.
	Total Reading
	// Removed is the same as in Group, of Total.
	Removed map[Resource]int64
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
	// Closing says that a window is closed at this snapshot.
	Closing bool
	// Took is how long the reading lasted.
	Took time.Duration
	Node Node
	// Groups holds every workload's group, parents before children; the first
	// is the root's. A Final group is in one snapshot and then no more.
	Groups []*Group
	// Lost counts births and deaths that the source knows it did not see.
	Lost int64
	// Ending holds the keys of jobs that are about to end, so that their groups are
	// removed: sources read all of their figures for the last time.
	Ending []string
	// Before and After are what the energy meters showed just before the first
	// group was read and just after the last.
	Before, After []power.Reading
	// Volumes are the figures of persistent volumes that were measured since the previous snapshot.
	Volumes []VolumeUse
}

// Wall returns the snapshot's time in wall time.
func (s *Snapshot) Wall() time.Time { return time.Unix(0, s.At+s.Offset).UTC() }

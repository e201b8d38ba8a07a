// Package usage holds the types of measuring: the resources (Resource), the
// reliability of a figure (Quality), the readings of a machine at an instant
// (Snapshot), and the use of its workloads over a span (Usage, Window).
package usage

import (
	"iter"
	"math/bits"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/unit"
)

// A Resource is a thing that workloads use. Its number is part of stored and
// sent data: it is never changed and never given to another resource.
type Resource uint8

// The one list of resources. Columns, metric names, JSON keys and docs follow
// from it; details stands beside it.
const (
	CPU              Resource = 1  // CPU time
	CPUUser          Resource = 2  // CPU time in user mode; with CPUSystem it is CPU
	CPUSystem        Resource = 3  // CPU time in kernel mode
	CPUThrottled     Resource = 4  // time that a CPU limit held runnable tasks back
	Memory           Resource = 5  // memory charged, over time
	MemoryPeak       Resource = 6  // highest memory charged
	MemoryAnon       Resource = 7  // anonymous memory, over time
	MemoryFile       Resource = 8  // page cache, over time
	MemoryWorking    Resource = 9  // memory less inactive page cache, over time
	DiskRead         Resource = 10 // bytes read from leaf block devices
	DiskWritten      Resource = 11 // bytes written to leaf block devices
	DiskReads        Resource = 12 // read requests to leaf block devices
	DiskWrites       Resource = 13 // write requests to leaf block devices
	NetworkRx        Resource = 14 // bytes received, IP headers and up
	NetworkTx        Resource = 15 // bytes sent, IP headers and up
	NetworkRxPackets Resource = 16 // packets received
	NetworkTxPackets Resource = 17 // packets sent
	Processes        Resource = 18 // processes started
	PIDs             Resource = 19 // tasks alive, over time
	PIDsPeak         Resource = 20 // most tasks alive
	OOMKills         Resource = 21 // processes killed for want of memory
	PressureCPU      Resource = 22 // time in which some task waited for a CPU
	PressureMemory   Resource = 23 // time in which some task waited for memory
	PressureIO       Resource = 24 // time in which some task waited for I/O
	EnergyPackage    Resource = 25 // energy of CPU packages
	EnergyDRAM       Resource = 26 // energy of memory
	EnergyGPU        Resource = 27 // energy of accelerators
	EnergyRest       Resource = 28 // energy that no finer meter shows; all energy if there is no finer meter
	EnergyError      Resource = 29 // by how much the energy may be off
	EnergyIdle       Resource = 30 // how much of the energy the machine draws anyway

	CPUPeak             Resource = 31 // highest CPU time of one tick, as CPUs
	CPUPeriods          Resource = 32 // periods of a CPU limit in which the workload ran
	CPUThrottledPeriods Resource = 33 // periods in which the limit held tasks back
	MemoryHighEvents    Resource = 34 // times that tasks were slowed down above memory.high
	MemoryMaxEvents     Resource = 35 // times that the memory limit was reached

	CPUReserved       Resource = 36 // CPU time reserved
	CPULimit          Resource = 37 // CPU time that limits allow
	MemoryReserved    Resource = 38 // memory reserved, over time
	MemoryLimit       Resource = 39 // memory that limits allow, over time
	StorageReserved   Resource = 40 // storage reserved, over time
	GPUReserved       Resource = 41 // accelerators reserved, over time
	ReservedTime      Resource = 42 // time for which it is known what is reserved
	CPULimitedTime    Resource = 43 // time with a limit of CPU time
	MemoryLimitedTime Resource = 44 // time with a limit of memory

	// Network traffic by class, see NetworkClass. The rest of NetworkRx and NetworkTx is not classified.
	NetworkRxNode     Resource = 45 // bytes received from the same machine
	NetworkTxNode     Resource = 46 // bytes sent to the same machine
	NetworkRxBox      Resource = 47 // bytes received from the same box
	NetworkTxBox      Resource = 48 // bytes sent to the same box
	NetworkRxInternal Resource = 49 // bytes received from the same zone
	NetworkTxInternal Resource = 50 // bytes sent to the same zone
	NetworkRxZone     Resource = 51 // bytes received from other zones
	NetworkTxZone     Resource = 52 // bytes sent to other zones
	NetworkRxPeering  Resource = 53 // bytes received from peered networks
	NetworkTxPeering  Resource = 54 // bytes sent to peered networks
	NetworkRxInternet Resource = 55 // bytes received from the internet
	NetworkTxInternet Resource = 56 // bytes sent to the internet

	Storage Resource = 57 // disk space used, over time

	// Limit is one more than the highest resource number.
	Limit = 58

	// ReadingLimit is one more than the highest number of the resources that a Reading holds.
	ReadingLimit = 36
)

// Kind says how a resource adds up.
type Kind uint8

const (
	// Counter amounts are increments of a counter; they add.
	Counter Kind = iota + 1
	// Integral amounts are a level held over time; they add.
	Integral
	// Peak amounts are the highest level seen; the larger one stays.
	Peak
)

// A Detail describes one resource.
type Detail struct {
	Name string    // in Go, JSON, SQL and metric names
	Unit unit.Unit // of a Usage amount
	Kind Kind
	// Level is the unit of the momentary reading that an Integral or a Peak
	// is made of; Unknown for counters.
	Level unit.Unit
	// Inclusive says that a group's reading holds its children's too, so that
	// what the group itself used is the difference.
	Inclusive bool
	Help      string
}

var details = [Limit]Detail{
	CPU:              {"cpu", unit.Nanosecond, Counter, 0, true, "CPU time"},
	CPUUser:          {"cpu_user", unit.Nanosecond, Counter, 0, false, "CPU time in user mode"},
	CPUSystem:        {"cpu_system", unit.Nanosecond, Counter, 0, false, "CPU time in kernel mode"},
	CPUThrottled:     {"cpu_throttled", unit.Nanosecond, Counter, 0, false, "time in which a CPU limit held runnable tasks back"},
	Memory:           {"memory", unit.ByteSecond, Integral, unit.Byte, true, "memory charged, page cache included, over time"},
	MemoryPeak:       {"memory_peak", unit.Byte, Peak, unit.Byte, true, "highest memory charged"},
	MemoryAnon:       {"memory_anon", unit.ByteSecond, Integral, unit.Byte, false, "anonymous memory over time"},
	MemoryFile:       {"memory_file", unit.ByteSecond, Integral, unit.Byte, false, "page cache over time"},
	MemoryWorking:    {"memory_working", unit.ByteSecond, Integral, unit.Byte, false, "memory less inactive page cache over time"},
	DiskRead:         {"disk_read", unit.Byte, Counter, 0, true, "bytes read from leaf block devices"},
	DiskWritten:      {"disk_written", unit.Byte, Counter, 0, true, "bytes written to leaf block devices"},
	DiskReads:        {"disk_reads", unit.Count, Counter, 0, true, "read requests to leaf block devices"},
	DiskWrites:       {"disk_writes", unit.Count, Counter, 0, true, "write requests to leaf block devices"},
	NetworkRx:        {"network_rx", unit.Byte, Counter, 0, false, "bytes received"},
	NetworkTx:        {"network_tx", unit.Byte, Counter, 0, false, "bytes sent"},
	NetworkRxPackets: {"network_rx_packets", unit.Count, Counter, 0, false, "packets received"},
	NetworkTxPackets: {"network_tx_packets", unit.Count, Counter, 0, false, "packets sent"},
	Processes:        {"processes", unit.Count, Counter, 0, false, "processes started"},
	PIDs:             {"pids", unit.Count, Integral, unit.Count, true, "tasks alive, over time (task-seconds)"},
	PIDsPeak:         {"pids_peak", unit.Count, Peak, unit.Count, true, "most tasks alive"},
	OOMKills:         {"oom_kills", unit.Count, Counter, 0, false, "processes killed for want of memory"},
	PressureCPU:      {"pressure_cpu", unit.Nanosecond, Counter, 0, false, "time in which some task waited for a CPU"},
	PressureMemory:   {"pressure_memory", unit.Nanosecond, Counter, 0, false, "time in which some task waited for memory"},
	PressureIO:       {"pressure_io", unit.Nanosecond, Counter, 0, false, "time in which some task waited for I/O"},
	EnergyPackage:    {"energy_package", unit.Microjoule, Counter, 0, false, "energy of CPU packages"},
	EnergyDRAM:       {"energy_dram", unit.Microjoule, Counter, 0, false, "energy of memory"},
	EnergyGPU:        {"energy_gpu", unit.Microjoule, Counter, 0, false, "energy of accelerators"},
	EnergyRest:       {"energy_rest", unit.Microjoule, Counter, 0, false, "energy that no finer meter shows: of the whole machine where nothing else is metered"},
	EnergyError:      {"energy_error", unit.Microjoule, Counter, 0, false, "by how much the energy may be off, either way"},
	EnergyIdle:       {"energy_idle", unit.Microjoule, Counter, 0, false, "how much of the energy is what the machine draws anyway"},

	CPUPeak:             {"cpu_peak", unit.Millicore, Peak, unit.Millicore, false, "highest CPU time of one tick, divided by its length"},
	CPUPeriods:          {"cpu_periods", unit.Count, Counter, 0, false, "periods of the CPU limit in which some task ran"},
	CPUThrottledPeriods: {"cpu_throttled_periods", unit.Count, Counter, 0, false, "periods in which the CPU limit held runnable tasks back"},
	MemoryHighEvents:    {"memory_high_events", unit.Count, Counter, 0, false, "times that tasks were slowed down because memory exceeded memory.high"},
	MemoryMaxEvents:     {"memory_max_events", unit.Count, Counter, 0, false, "times that memory reached its limit, so that some had to be reclaimed first"},

	CPUReserved:       {"cpu_reserved", unit.Nanosecond, Integral, unit.Millicore, false, "CPU time reserved: the CPUs that were requested, over time"},
	CPULimit:          {"cpu_limit", unit.Nanosecond, Integral, unit.Millicore, false, "CPU time that limits allowed, of containers that had one"},
	MemoryReserved:    {"memory_reserved", unit.ByteSecond, Integral, unit.Byte, false, "memory reserved: the bytes that were requested, over time"},
	MemoryLimit:       {"memory_limit", unit.ByteSecond, Integral, unit.Byte, false, "memory that limits allowed, over time, of containers that had one"},
	StorageReserved:   {"storage_reserved", unit.ByteSecond, Integral, unit.Byte, false, "storage reserved: local storage that was requested and the capacity of volumes, over time"},
	GPUReserved:       {"gpu_reserved", unit.Nanosecond, Integral, unit.Millicore, false, "accelerators reserved: those that were requested, over time"},
	ReservedTime:      {"reserved_time", unit.Nanosecond, Counter, 0, false, "for how long it is known what was reserved, summed over containers"},
	CPULimitedTime:    {"cpu_limited_time", unit.Nanosecond, Counter, 0, false, "for how long CPU time was limited, summed over containers"},
	MemoryLimitedTime: {"memory_limited_time", unit.Nanosecond, Counter, 0, false, "for how long memory was limited, summed over containers"},

	NetworkRxNode:     {"network_rx_node", unit.Byte, Counter, 0, false, "bytes received from the same machine"},
	NetworkTxNode:     {"network_tx_node", unit.Byte, Counter, 0, false, "bytes sent to the same machine"},
	NetworkRxBox:      {"network_rx_box", unit.Byte, Counter, 0, false, "bytes received from other machines in the same box"},
	NetworkTxBox:      {"network_tx_box", unit.Byte, Counter, 0, false, "bytes sent to other machines in the same box"},
	NetworkRxInternal: {"network_rx_internal", unit.Byte, Counter, 0, false, "bytes received from the same zone"},
	NetworkTxInternal: {"network_tx_internal", unit.Byte, Counter, 0, false, "bytes sent to the same zone"},
	NetworkRxZone:     {"network_rx_zone", unit.Byte, Counter, 0, false, "bytes received from other zones"},
	NetworkTxZone:     {"network_tx_zone", unit.Byte, Counter, 0, false, "bytes sent to other zones"},
	NetworkRxPeering:  {"network_rx_peering", unit.Byte, Counter, 0, false, "bytes received from peered networks"},
	NetworkTxPeering:  {"network_tx_peering", unit.Byte, Counter, 0, false, "bytes sent to peered networks"},
	NetworkRxInternet: {"network_rx_internet", unit.Byte, Counter, 0, false, "bytes received from the internet"},
	NetworkTxInternet: {"network_tx_internet", unit.Byte, Counter, 0, false, "bytes sent to the internet"},

	Storage: {"storage", unit.ByteSecond, Integral, unit.Byte, false, "disk space used over time: of containers the writable layer and logs, of pods the emptyDir volumes, of persistent volumes their file systems"},
}

// Specified are the resources that follow from the specification of a workload and not from its use: a server books them.
const Specified Set = 1<<CPUReserved | 1<<CPULimit | 1<<MemoryReserved | 1<<MemoryLimit | 1<<StorageReserved | 1<<GPUReserved |
	1<<ReservedTime | 1<<CPULimitedTime | 1<<MemoryLimitedTime

// Metered are the resources that agents measure.
const Metered = All &^ Specified

// Apart are the metered resources that no [Reading] holds, as few groups have them: a Group has them in fields of their own.
const Apart = Classified | 1<<Storage

// Detail describes r. It panics on a number that is not in the list.
func (r Resource) Detail() Detail {
	if r == 0 {
		panic("usage: no such resource")
	}
	return details[r]
}

// String returns the resource's name.
func (r Resource) String() string { return r.Detail().Name }

// A Set is a set of resources, one bit each.
type Set uint64

// All holds every resource of the list.
const All Set = 1<<Limit - 2

// EnergyOf returns the resource that the energy of a domain is.
func EnergyOf(d power.Domain) Resource { return EnergyPackage + Resource(d-power.Package) }

// Energies are the resources whose sum is all energy.
var Energies = [...]Resource{EnergyPackage, EnergyDRAM, EnergyGPU, EnergyRest}

// SetOf returns the set of the given resources.
func SetOf(rs ...Resource) (s Set) {
	for _, r := range rs {
		s |= 1 << r
	}
	return s
}

// Has reports whether r is in s.
func (s Set) Has(r Resource) bool { return s>>r&1 != 0 }

// Len returns how many resources are in s.
func (s Set) Len() int { return bits.OnesCount64(uint64(s)) }

// All iterates over the resources in s, in the order of the list.
func (s Set) All() iter.Seq[Resource] {
	return func(yield func(Resource) bool) {
		for ; s != 0; s &= s - 1 {
			if !yield(Resource(bits.TrailingZeros64(uint64(s)))) {
				return
			}
		}
	}
}

// Each calls f for every resource in s, in the order of the list.
func (s Set) Each(f func(Resource)) {
	for r := range s.All() {
		f(r)
	}
}

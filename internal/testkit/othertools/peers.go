// Package othertools computes what other tools, Kepler and Scaphandre, would report for the same
// machine, for comparisons in tests.
package othertools

import "math/bits"

// A Scan is the data of a tool that scans all processes at intervals. Values are
// cumulative, without those of ended processes.
type Scan struct {
	Energy    int64 // uJ of the meter, unwrapped
	Used      int64 // CPU time used by the machine, ns
	Whole     int64 // CPU time available, ns
	Processes map[int]Process
}

// A Process is a process that exists at a scan; the key is its PID.
type Process struct {
	Workload int   // index of its workload
	CPU      int64 // ns since its start
}

// Kepler adds to each workload, in uJ, what the rewrite of Kepler (0.10 and later) gives it
// for the time between two scans, five seconds by default. Active energy is the meter's
// energy times the machine's CPU utilization; each process that exists at the scan gets its
// share by the CPU time of all those processes; the rest of the energy is not attributed.
// So a workload of short-lived processes gets too little, and others get its energy.
// others get what was its.
//
// Source: github.com/sustainable-computing-io/kepler, internal/monitor/node.go
// (calculateNodePower) and internal/monitor/process.go (calculateProcessPower).
func Kepler(before, now *Scan, out []int64) {
	active := mulDiv(max(0, now.Energy-before.Energy), max(0, now.Used-before.Used), max(1, now.Whole-before.Whole))
	divideByProcess(before, now, active, 0, true, out)
}

// Scaphandre adds to each workload, in uJ, what Scaphandre gives it between two scans: the
// total energy of the meter, idle included, by each process's share of the machine's busy
// CPU time. A process needs two readings, so one that started since the previous scan gets
// nothing. Scans are seven seconds apart, and energy and times are read one after the
// other.
//
// Source: github.com/hubblo-org/scaphandre,
// docs_src/explanations/how-scaph-computes-per-process-power-consumption.md, and
// src/sensors/mod.rs (get_process_power_consumption_microwatts).
func Scaphandre(before, now *Scan, out []int64) {
	divideByProcess(before, now, max(0, now.Energy-before.Energy), max(1, now.Used-before.Used), false, out)
}

// divideByProcess adds energy to each workload by the CPU time of its processes: relative
// to that of all existing processes if of is 0, else relative to of. Processes that did not
// exist at the previous scan count only if young is set.
func divideByProcess(before, now *Scan, energy, of int64, young bool, out []int64) {
	used := make([]int64, len(out))
	sum := int64(0)
	for pid, p := range now.Processes {
		was, old := before.Processes[pid]
		if old || young {
			used[p.Workload] += max(0, p.CPU-was.CPU)
			sum += max(0, p.CPU-was.CPU)
		}
	}
	if of == 0 {
		of = max(1, sum)
	}
	for i, u := range used {
		out[i] += mulDiv(energy, u, of)
	}
}

// mulDiv returns amount x part / whole, rounded down. None is negative, whole is not 0, and
// the result must fit.
func mulDiv(amount, part, whole int64) int64 {
	hi, lo := bits.Mul64(uint64(amount), uint64(part))
	q, _ := bits.Div64(hi, lo, uint64(whole))
	return int64(q)
}

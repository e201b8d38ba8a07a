// Package peers computes what other tools would report of the same machine, for
// comparisons in tests: Kepler and Scaphandre.
package peers

import "math/bits"

// A Scan is what a tool knows that looks at all processes now and then. Values
// are cumulative, but for what ended.
type Scan struct {
	Energy    int64 // uJ that the meter showed, unwrapped
	Used      int64 // CPU time that the machine used, ns
	Whole     int64 // CPU time that there was, ns
	Processes map[int]Process
}

// A Process is one that lives at a scan, by its pid.
type Process struct {
	Workload int   // index of its workload
	CPU      int64 // ns since it began
}

// Kepler gives each workload, in uJ, what the rewrite of Kepler (0.10 and later)
// gives it for the time between two scans, five seconds by default. Active
// energy is the meter's times the machine's CPU use; each process that lives at
// the scan gets its share of the CPU time of all of those; the rest of the
// energy is nobody's. So a workload whose processes are short gets little, and
// others get what was its.
//
// Source: github.com/sustainable-computing-io/kepler, internal/monitor/node.go
// (calculateNodePower) and internal/monitor/process.go (calculateProcessPower).
func Kepler(before, now *Scan, out []int64) {
	active := mulDiv(max(0, now.Energy-before.Energy), max(0, now.Used-before.Used), max(1, now.Whole-before.Whole))
	divideByProcess(before, now, active, 0, true, out)
}

// Scaphandre gives each workload, in uJ, what Scaphandre gives it between two
// scans: the whole energy of the meter, idle included, by each process's share of
// the CPU time that the machine spent doing something. A process needs two
// readings, so one that began since the scan before gets nothing. Scans were
// seven seconds apart, and energy and times are read one after the other.
//
// Source: github.com/hubblo-org/scaphandre,
// docs_src/explanations/how-scaph-computes-per-process-power-consumption.md, and
// src/sensors/mod.rs (get_process_power_consumption_microwatts).
func Scaphandre(before, now *Scan, out []int64) {
	divideByProcess(before, now, max(0, now.Energy-before.Energy), max(1, now.Used-before.Used), false, out)
}

// divideByProcess adds to each workload energy by the CPU time of its processes:
// of all that live where of is 0, else of that. Young ones, which were not there
// at the scan before, count where young says so.
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

// mulDiv returns amount x part / whole, rounded down. None is negative, whole is not
// 0, and the result fits.
func mulDiv(amount, part, whole int64) int64 {
	hi, lo := bits.Mul64(uint64(amount), uint64(part))
	q, _ := bits.Div64(hi, lo, uint64(whole))
	return int64(q)
}

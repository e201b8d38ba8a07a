// Package live holds the present. An agent makes a [Machine] of each tick, which mete top
// and the page of mete up show. A server makes [NodeRates] and a [Summary] of the latest
// window of each node, which are the JSON of /v1/rates and /v1/summary; mete top --server
// makes a [Machine] of the first. Both have the figures of a workload as [Rates] with the
// quality of each, and reckon with them as [Figures].
package live

import (
	"time"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A Machine is one machine in its latest tick.
type Machine struct {
	Time    time.Time     `json:"time"`
	Host    string        `json:"host"`
	Boot    string        `json:"boot"`
	Reader  string        `json:"reader"`       // bpf or files
	Tick    time.Duration `json:"tick_ns"`      // between the two readings
	CPUs    int           `json:"cpus"`         // online
	CPU     CPUParts      `json:"cpu_cores"`    // where the whole went
	Memory  MemoryParts   `json:"memory_bytes"` // where the whole is
	Disk    *Flow         `json:"disk"`         // leaf devices; nil is absent
	Network *Flow         `json:"network"`      // host interfaces without lo; nil is absent
	Energy  *Energy       `json:"energy"`       // what power it drew; nil is absent
	Self    Self          `json:"self"`         // what mete itself costs
	Balance usage.Balance `json:"balance"`      // of the tick
	Notes   []string      `json:"notes"`        // what cannot be seen here, and why
	// Simulated is what its meters are called where nobody measures what they show.
	Simulated string `json:"simulated,omitempty"`
	// Breakdown is of the workload that is watched; nil without.
	Breakdown *Breakdown `json:"breakdown,omitempty"`
	// Fleet says that it is many machines put together; nil is one.
	Fleet *Fleet `json:"fleet,omitempty"`
	Rows  []Row  `json:"workloads"` // parents before children; idle and system last
}

// CPUParts is where the CPU time of the machine went, in cores.
type CPUParts struct {
	Whole     float64 `json:"whole"`
	Workloads float64 `json:"workloads"`
	System    float64 `json:"system"`
	Idle      float64 `json:"idle"`
	Steal     float64 `json:"steal"`
}

// MemoryParts is where the memory of the machine is, in bytes.
type MemoryParts struct {
	Whole     int64 `json:"whole"`
	Workloads int64 `json:"workloads"`
	System    int64 `json:"system"`
	Idle      int64 `json:"idle"`
	Available int64 `json:"available"`
}

// Flow is traffic in bytes per second, in and out of the machine's memory.
type Flow struct {
	In  float64 `json:"in_bytes_per_second"`
	Out float64 `json:"out_bytes_per_second"`
}

// Energy is the power that the machine drew in the tick, all of it. Idle power is
// what it would have drawn had nothing run: it is in the row idle, undivided but for
// the part that virtual machines have by their CPUs, so that rows add up to the
// machine. A row's power is what its activity added.
type Energy struct {
	Watts float64 `json:"watts"`
	// Error is by how much Watts may be off, either way.
	Error   float64       `json:"error_watts"`
	Idle    float64       `json:"idle_watts"`
	Quality usage.Quality `json:"quality"` // the worst of the domains
	Domains []Domain      `json:"domains"` // those that are not absent
	// Ratios say for each level of meters (board, box) how much of what they
	// show was seen by the meters inside; none where there is nothing to compare.
	Ratios map[string]float64 `json:"inside_ratio,omitempty"`
}

// A Domain is the power of one part of the machine; all power is in exactly one.
type Domain struct {
	Name    string        `json:"domain"`
	Watts   float64       `json:"watts"`
	Error   float64       `json:"error_watts"`
	Idle    float64       `json:"idle_watts"`
	Quality usage.Quality `json:"quality"` // measured or modelled
	Source  string        `json:"source"`  // the meters, or where the curve is from
}

// Self is what the meter itself costs.
type Self struct {
	CPUSecondsPerMinute float64 `json:"cpu_seconds_per_minute"`
	RSSBytes            int64   `json:"rss_bytes"`
	TickMicroseconds    float64 `json:"tick_us"`
}

// A Row is one workload in the latest tick.
type Row struct {
	ID     workload.ID   `json:"id"`
	Parent workload.ID   `json:"parent,omitempty"`
	Kind   workload.Kind `json:"kind"`
	Name   string        `json:"name"`
	Path   string        `json:"path,omitempty"`
	Depth  int           `json:"depth"` // workloads above it
	Ended  bool          `json:"ended,omitempty"`

	// Of a fleet only: what a row stands for that has nothing of its own, Cluster or
	// Node; what is the matter with it; and of a workload the name of its node.
	Group string `json:"group,omitempty"`
	State string `json:"state,omitempty"`
	Node  string `json:"node,omitempty"`

	Rates

	// Limits of the group itself; nil is none, or none that can be seen.
	CPULimit    *float64 `json:"cpu_limit_cores,omitempty"`
	MemoryLimit *int64   `json:"memory_limit_bytes,omitempty"`

	// Total is what it used since it was first seen, in base units as decimals,
	// by resource name.
	Total map[string]string `json:"total"`
	// Quality of each resource that is present, by resource name, and of the
	// power in this tick: the keys are those of [Field.String].
	Quality map[string]usage.Quality `json:"quality"`
}

// Package live holds the types of present use. An agent makes a [Machine] of each tick, which
// mete top and the page of mete up show. A server makes [NodeRates] and a [Summary] of the
// latest window of each node, which are the JSON of /v1/rates and /v1/summary; mete top
// --server makes a [Machine] of the rates. In these types the figures of a workload are
// [Rates], with the quality of each; sums of them are computed as [Figures].
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
	CPU     CPUParts      `json:"cpu_cores"`    // by part
	Memory  MemoryParts   `json:"memory_bytes"` // by part
	Disk    *Flow         `json:"disk"`         // leaf devices; nil is absent
	Network *Flow         `json:"network"`      // host interfaces without lo; nil is absent
	Energy  *Energy       `json:"energy"`       // power drawn; nil is absent
	Self    Self          `json:"self"`         // mete's own cost
	Balance usage.Balance `json:"balance"`      // of the tick
	Notes   []string      `json:"notes"`        // what is missing here, and why
	// Simulated is the name of the machine's meters if they are simulated.
	Simulated string `json:"simulated,omitempty"`
	// Breakdown is of the watched workload; nil without one.
	Breakdown *Breakdown `json:"breakdown,omitempty"`
	// Fleet is set if this represents several machines; nil for one.
	Fleet *Fleet `json:"fleet,omitempty"`
	Rows  []Row  `json:"workloads"` // parents before children; idle and system last
}

// CPUParts is the machine's CPU time by part, in cores. Whole and Skew are the sum of workloads, system
// and idle: Skew is by how much they exceed the whole in this tick, as the kernel cannot be read at one
// instant.
type CPUParts struct {
	Whole     float64 `json:"whole"`
	Workloads float64 `json:"workloads"`
	System    float64 `json:"system"`
	Idle      float64 `json:"idle"`
	Steal     float64 `json:"steal"`
	Skew      float64 `json:"skew"`
}

// MemoryParts is the machine's memory by part, in bytes. Whole and Skew are the sum of workloads, system
// and idle: memory that a group showed and that was free when the machine's was read counts twice.
type MemoryParts struct {
	Whole     int64 `json:"whole"`
	Workloads int64 `json:"workloads"`
	System    int64 `json:"system"`
	Idle      int64 `json:"idle"`
	Available int64 `json:"available"`
	Skew      int64 `json:"skew"`
}

// Flow is traffic in bytes per second.
type Flow struct {
	In  float64 `json:"in_bytes_per_second"`
	Out float64 `json:"out_bytes_per_second"`
}

// Energy is the power that the machine drew in the tick. Idle is what it would have drawn without
// load: it is in the row idle, undivided except for the part of virtual machines, so that rows sum
// to the machine. A row's power is that of its activity.
type Energy struct {
	Watts float64 `json:"watts"`
	// Error is the error of Watts, either way: the sum of the errors of the rows, as in the ledger.
	Error   float64       `json:"error_watts"`
	Idle    float64       `json:"idle_watts"`
	Quality usage.Quality `json:"quality"` // the worst of the domains
	Domains []Domain      `json:"domains"` // those that are present
	// Ratios are, by level of meters (board, box), how much of their power the meters inside showed
	// too; empty if there is nothing to compare.
	Ratios map[string]float64 `json:"inside_ratio,omitempty"`
}

// A Domain is the power of one part of the machine. All power is in exactly one domain.
type Domain struct {
	Name    string        `json:"domain"`
	Watts   float64       `json:"watts"`
	Error   float64       `json:"error_watts"`
	Idle    float64       `json:"idle_watts"`
	Quality usage.Quality `json:"quality"` // measured or modelled
	Source  string        `json:"source"`  // the meters, or the source of the curve
}

// Self is the cost of mete itself.
type Self struct {
	CPUSecondsPerMinute float64 `json:"cpu_seconds_per_minute"`
	RSSBytes            int64   `json:"rss_bytes"`
	TickMicroseconds    float64 `json:"tick_us"`
}

// A Row is one workload in the latest tick. Amounts are exclusive; nil is absent, which is not
// zero.
type Row struct {
	ID     workload.ID   `json:"id"`
	Parent workload.ID   `json:"parent,omitempty"`
	Kind   workload.Kind `json:"kind"`
	Key    string        `json:"-"` // see workload.Workload; "" in a fleet
	Name   string        `json:"name"`
	Path   string        `json:"path,omitempty"`
	Depth  int           `json:"depth"` // number of workloads above it
	Ended  bool          `json:"ended,omitempty"`

	// Values that a job of mete run registered at the agent; "" without.
	User    string `json:"user,omitempty"`
	Project string `json:"project,omitempty"`

	// For a fleet only: the kind of a row that groups others, Cluster or Node; its state; and for a
	// workload the name of its node.
	Group string `json:"group,omitempty"`
	State string `json:"state,omitempty"`
	Node  string `json:"node,omitempty"`

	Rates

	// Limits of the group itself; nil is none or not visible.
	CPULimit    *float64 `json:"cpu_limit_cores,omitempty"`
	MemoryLimit *int64   `json:"memory_limit_bytes,omitempty"`

	// Total is what it used since it was first seen, as decimals in base units, by resource name.
	Total map[string]string `json:"total"`
	// Quality of each resource that is present, by resource name, and of the
	// power in this tick: the keys are those of [Field.String].
	Quality map[string]usage.Quality `json:"quality"`
}

package live

import (
	"time"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// Rates are the figures of one workload, without those of its children. Nil is absent, which
// is not zero. In a tick memory and tasks are those at its end; in a window all figures are
// averages.
type Rates struct {
	CPU            *float64 `json:"cpu_cores"`
	Memory         *int64   `json:"memory_bytes" doc:"average over the window"`
	DiskRead       *float64 `json:"disk_read_bytes_per_second"`
	DiskWritten    *float64 `json:"disk_written_bytes_per_second"`
	NetworkRx      *float64 `json:"network_rx_bytes_per_second"`
	NetworkTx      *float64 `json:"network_tx_bytes_per_second"`
	PIDs           *float64 `json:"pids"`
	PressureCPU    *float64 `json:"pressure_cpu_ratio" doc:"share of time in which some task waited for a CPU"` // 0 to 1
	PressureMemory *float64 `json:"pressure_memory_ratio" doc:"share of time in which some task waited for memory"`
	PressureIO     *float64 `json:"pressure_io_ratio" doc:"share of time in which some task waited for a disk"`

	// Power is what the activity of the workload makes the machine draw, of all
	// domains. The row idle has what the machine draws anyway, less the part that
	// virtual machines have of it, which is in their power.
	Power      *float64 `json:"power_watts"`
	PowerError *float64 `json:"power_error_watts" doc:"by how much that may be off"` // either way
}

// NodeRates are the rates of the workloads of one node in its latest window: an element of the
// list at /v1/rates.
type NodeRates struct {
	Node    string          `json:"node" doc:"id"`
	Name    string          `json:"name"`
	Cluster string          `json:"cluster"`
	From    time.Time       `json:"from" nullable:"true" doc:"start of its latest window"`
	To      time.Time       `json:"to" nullable:"true" doc:"end of that window"`
	CPUs    int             `json:"cpus"`
	Rows    []WorkloadRates `json:"workloads"`
}

// ListKey is the key of the list in JSON.
func (NodeRates) ListKey() string { return "nodes" }

// WorkloadRates are the rates of one workload in the latest window of its node.
type WorkloadRates struct {
	ID     workload.ID   `json:"id" doc:"of the workload"`
	Kind   workload.Kind `json:"kind"`
	Name   string        `json:"name"`
	Job    string        `json:"job"`
	Parent workload.ID   `json:"parent,omitempty" doc:"id of the workload in which it is, and which does not count it"`

	Rates
	Quality map[string]usage.Quality `json:"quality" doc:"of each figure that is not absent, by resource"`
}

package live

import "mete.dev/mete/internal/model/workload"

// A Breakdown is the CPU time of one workload in the latest tick by process. Its lines sum to the
// workload's CPU time.
type Breakdown struct {
	Workload workload.ID `json:"workload"`
	// Unreadable is the number of processes that could not be read; their use is in the line of
	// ended processes.
	Unreadable int       `json:"unreadable"`
	Processes  []Process `json:"processes"` // busiest first, ended ones last
}

// A Process is one line of a breakdown.
type Process struct {
	PID     int32   `json:"pid"` // 0 for all that ended in the tick
	Name    string  `json:"name"`
	CPU     float64 `json:"cpu_cores"`
	RSS     *int64  `json:"rss_bytes"` // including shared pages; nil is absent
	Threads int     `json:"threads,omitempty"`
}

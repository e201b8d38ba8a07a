package v1

import (
	"strconv"
	"time"

	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

type latestJSON struct {
	Node    string     `json:"node" doc:"id"`
	Name    string     `json:"name"`
	Cluster string     `json:"cluster"`
	From    *time.Time `json:"from" doc:"start of its latest window"`
	To      *time.Time `json:"to" doc:"end of that window"`
	CPUs    int        `json:"cpus"`
	Rows    []rateJSON `json:"workloads"`
}

// rateJSON is one workload at present, with the keys of the snapshot of a live
// machine.
type rateJSON struct {
	ID   workload.ID   `json:"id" doc:"of the workload"`
	Kind workload.Kind `json:"kind"`
	Name string        `json:"name"`
	Job  string        `json:"job"`
	// Parent is the workload in which it is, and which does not count it.
	Parent workload.ID `json:"parent,omitempty" doc:"id of the workload in which it is, and which does not count it"`

	CPU            *float64 `json:"cpu_cores"`
	Memory         *int64   `json:"memory_bytes" doc:"average over the window"`
	DiskRead       *float64 `json:"disk_read_bytes_per_second"`
	DiskWritten    *float64 `json:"disk_written_bytes_per_second"`
	NetworkRx      *float64 `json:"network_rx_bytes_per_second"`
	NetworkTx      *float64 `json:"network_tx_bytes_per_second"`
	PIDs           *float64 `json:"pids"`
	PressureCPU    *float64 `json:"pressure_cpu_ratio" doc:"share of time in which some task waited for a CPU"`
	PressureMemory *float64 `json:"pressure_memory_ratio" doc:"share of time in which some task waited for memory"`
	PressureIO     *float64 `json:"pressure_io_ratio" doc:"share of time in which some task waited for a disk"`

	Power      *float64 `json:"power_watts"`
	PowerError *float64 `json:"power_error_watts" doc:"by how much that may be off"`

	Quality map[string]usage.Quality `json:"quality" doc:"of each figure that is there, by resource"`
}

// RatesJSON writes what every workload uses at present, by the latest window of
// its node, under the key nodes.
func RatesJSON(list []query.LatestWindow) []byte {
	return marshalList("nodes", mapSlice(list, func(l query.LatestWindow) latestJSON {
		length := l.To.Sub(l.From).Seconds()
		return latestJSON{l.Node, l.Name, l.Cluster, timeOrNil(l.From), timeOrNil(l.To), l.CPUs,
			mapSlice(l.Rows, func(r query.LatestRow) rateJSON { return rate(&r, length) })}
	}))
}

func rate(r *query.LatestRow, length float64) rateJSON {
	out := rateJSON{ID: r.ID, Kind: r.Kind, Name: r.Name.Name, Job: r.Job, Parent: r.Parent, Quality: map[string]usage.Quality{}}
	get := func(res usage.Resource) *float64 {
		amount, ok := r.Usage.Get(res)
		if !ok || length <= 0 {
			return nil
		}
		out.Quality[res.String()] = r.Usage.Quality.Get(res)
		v := round(res.Detail().Unit.Float(amount) / length)
		return &v
	}
	out.CPU = get(usage.CPU)
	if get(usage.Memory) != nil {
		amount, _ := r.Usage.Get(usage.Memory)
		level := int64(float64(amount) / length) // a size is shown to the byte
		out.Memory = &level
	}
	out.DiskRead, out.DiskWritten = get(usage.DiskRead), get(usage.DiskWritten)
	out.NetworkRx, out.NetworkTx = get(usage.NetworkRx), get(usage.NetworkTx)
	out.PIDs = get(usage.PIDs)
	out.PressureCPU, out.PressureMemory, out.PressureIO = get(usage.PressureCPU), get(usage.PressureMemory), get(usage.PressureIO)
	if watts, q, ok := TopValue("power", &r.Usage, length); ok {
		watts = round(watts)
		out.Power, out.Quality[live.Power] = &watts, q
		if amount, ok := r.Usage.Get(usage.EnergyError); ok {
			off := round(usage.EnergyError.Detail().Unit.Float(amount) / length)
			out.PowerError = &off
		}
	}
	return out
}

// round keeps six significant digits: a rate is no more exact than its window.
func round(v float64) float64 {
	w, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 6, 64), 64)
	if err != nil {
		return v
	}
	return w
}

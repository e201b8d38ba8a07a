package metric

import (
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A Part is where the use of a machine goes: all of it is in exactly one part.
type Part uint8

// The parts.
const (
	Workloads Part = iota // use of workloads
	System                // the kernel and what is in no group
	Idle                  // what was not used
	PartLimit
)

var partNames = [PartLimit]string{"workloads", "system", "idle"}

// String returns the part's name in labels and JSON.
func (p Part) String() string { return partNames[p] }

// Parts is the use of each part.
type Parts [PartLimit]usage.Usage

// PartsOf sums the rows of a node's window by part.
func PartsOf(node string, w *usage.Window) (p Parts) {
	system, _ := workload.ShortIDOf(workload.NewID(node, workload.System, ""))
	idle, _ := workload.ShortIDOf(workload.NewID(node, workload.Idle, ""))
	for i := range w.Rows {
		at := Workloads
		switch w.Rows[i].ShortID {
		case system:
			at = System
		case idle:
			at = Idle
		}
		p[at].Add(&w.Rows[i].Usage)
	}
	return p
}

// Energy returns the energy of all domains in uJ, and the worst quality; Absent if there is none.
func Energy(u *usage.Usage) (sum int64, q usage.Quality) {
	for _, r := range usage.Energies {
		if v, ok := u.Get(r); ok {
			sum, q = sum+v, max(q, u.Quality.Get(r))
		}
	}
	return sum, q
}

// A Level is a series of a node's average in its latest window, so that a machine can be shown
// without summing thousands of workloads.
type Level struct {
	Name, Label, Value string // Label and Value are "" if it has none
	Unit, Help         string

	of func(p *Parts, total *usage.Usage) (amount int64, ok bool)
	by float64 // amount units per base unit
}

// Average returns the level in a window of length ns, from its parts and its machine's total; false
// if it is absent.
func (l *Level) Average(p *Parts, total *usage.Usage, length int64) (float64, bool) {
	v, ok := l.of(p, total)
	if !ok || length <= 0 {
		return 0, false
	}
	return float64(v) / l.by / (float64(length) / 1e9), true
}

// Levels are all levels.
var Levels = levels()

func levels() (list []Level) {
	for part := range PartLimit {
		// If one part has an amount all have one, even if zero: otherwise an average over time
		// would skip times without use, and the parts would exceed the whole.
		amount := func(get func(*usage.Usage) (int64, bool)) func(*Parts, *usage.Usage) (int64, bool) {
			return func(p *Parts, _ *usage.Usage) (int64, bool) {
				some := false
				for i := range p {
					_, ok := get(&p[i])
					some = some || ok
				}
				v, _ := get(&p[part])
				return v, some
			}
		}
		list = append(list,
			Level{"mete_node_cpu_cores", "part", part.String(), "cores", "CPUs that a part of the machine kept busy, or idle",
				amount(func(u *usage.Usage) (int64, bool) { return u.Get(usage.CPU) }), 1e9},
			Level{"mete_node_memory_held_bytes", "part", part.String(), "bytes", "memory that a part of the machine held, or that was free",
				amount(func(u *usage.Usage) (int64, bool) { return u.Get(usage.Memory) }), 1},
			Level{"mete_node_power_watts", "part", part.String(), "watts", "power by what it was drawn for; idle is what the machine draws anyway",
				amount(func(u *usage.Usage) (int64, bool) {
					v, q := Energy(u)
					return v, q != usage.Absent
				}), 1e6})
	}
	whole := func(r usage.Resource) func(*Parts, *usage.Usage) (int64, bool) {
		return func(_ *Parts, total *usage.Usage) (int64, bool) { return total.Get(r) }
	}
	return append(list,
		Level{"mete_node_power_error_watts", "", "", "watts", "by how much the power may be off, either way", func(p *Parts, _ *usage.Usage) (sum int64, some bool) {
			for i := range p {
				v, ok := p[i].Get(usage.EnergyError)
				sum, some = sum+v, some || ok
			}
			return sum, some
		}, 1e6},
		Level{"mete_node_disk_bytes_per_second", "direction", "read", "bytes_per_second", "bytes that the leaf disks read or wrote", whole(usage.DiskRead), 1},
		Level{"mete_node_disk_bytes_per_second", "direction", "written", "bytes_per_second", "bytes that the leaf disks read or wrote", whole(usage.DiskWritten), 1},
		Level{"mete_node_network_bytes_per_second", "direction", "received", "bytes_per_second", "bytes at the host's interfaces", whole(usage.NetworkRx), 1},
		Level{"mete_node_network_bytes_per_second", "direction", "sent", "bytes_per_second", "bytes at the host's interfaces", whole(usage.NetworkTx), 1})
}

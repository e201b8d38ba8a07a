// Package report holds what a job of mete run used, and formats it as text, JSON and CSV.
//
// It is pure: it neither measures nor stores. Every figure has a quality; an unknown one is absent:
// null in JSON, an empty field in CSV, a dash in text, never zero.
package report

import (
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// A Figure is an amount in the fine unit of its Key, and its quality. The amount of an absent
// figure is undefined.
type Figure struct {
	Amount  int64
	Quality usage.Quality
}

// A Key names a figure of a report.
type Key uint8

// The figures in output order.
const (
	Wall            Key = iota // from just before the start of the command to the end of the job
	CPU                        // CPU time of all processes of the job
	CPUUser                    // in user mode
	CPUSystem                  // in the kernel
	CPUThrottled               // time that a CPU limit delayed runnable tasks
	MemoryAverage              // memory charged, page cache included, over the wall time
	MemoryPeak                 // highest memory charged
	AnonAverage                // anonymous memory
	AnonPeak                   //
	FileAverage                // page cache
	FilePeak                   //
	DiskRead                   // bytes from leaf block devices
	DiskWritten                // bytes to leaf block devices
	NetworkRx                  // bytes received, IP headers and up
	NetworkTx                  // bytes sent, IP headers and up
	Processes                  // processes started, including the command
	PIDsPeak                   // most tasks alive at once
	OOMKills                   // processes killed by the OOM killer
	MachineCPU                 // CPU time of the machine in the wall time
	Energy                     // energy of the job's activity
	EnergyError                // error of it, either way
	EnergyIdle                 // the job's part of the machine's idle energy, by CPU time
	EnergyIdleError            // error of it, either way

	limit
)

type detail struct {
	name string // the key in JSON and CSV
	unit unit.Unit
}

var details = [limit]detail{
	Wall:          {"wall_seconds", unit.Nanosecond},
	CPU:           {"cpu_seconds", unit.Nanosecond},
	CPUUser:       {"cpu_user_seconds", unit.Nanosecond},
	CPUSystem:     {"cpu_system_seconds", unit.Nanosecond},
	CPUThrottled:  {"cpu_throttled_seconds", unit.Nanosecond},
	MemoryAverage: {"memory_average_bytes", unit.Byte},
	MemoryPeak:    {"memory_peak_bytes", unit.Byte},
	AnonAverage:   {"memory_anon_average_bytes", unit.Byte},
	AnonPeak:      {"memory_anon_peak_bytes", unit.Byte},
	FileAverage:   {"memory_file_average_bytes", unit.Byte},
	FilePeak:      {"memory_file_peak_bytes", unit.Byte},
	DiskRead:      {"disk_read_bytes", unit.Byte},
	DiskWritten:   {"disk_written_bytes", unit.Byte},
	NetworkRx:     {"network_rx_bytes", unit.Byte},
	NetworkTx:     {"network_tx_bytes", unit.Byte},
	Processes:     {"processes", unit.Count},
	PIDsPeak:      {"pids_peak", unit.Count},
	OOMKills:      {"oom_kills", unit.Count},
	MachineCPU:    {"machine_cpu_seconds", unit.Nanosecond},

	Energy:          {"energy_joules", unit.Microjoule},
	EnergyError:     {"energy_error_joules", unit.Microjoule},
	EnergyIdle:      {"energy_idle_joules", unit.Microjoule},
	EnergyIdleError: {"energy_idle_error_joules", unit.Microjoule},
}

func (k Key) String() string { return details[k].name }

// A Process is a process that outlived its job.
type Process struct {
	PID  int    `json:"pid"`
	Name string `json:"name"`
}

// A Report is what one job used.
type Report struct {
	ID      string            // 26 characters, ordered by time
	Name    string            // from --name, else the command's base name
	Labels  map[string]string // from --label
	Command []string          // argument vector
	// Started and Ended are wall time, for display. Durations are from the monotonic clock, so that
	// they are right when the wall clock is set.
	Started, Ended time.Time
	ExitCode       int    // as shown by a shell: 128 + n after signal n
	Signal         string // that ended the command, or ""
	CPUs           int    // online in the machine
	MemoryLimit    int64  // bytes that --memory allowed the job; 0 is none

	Figures [limit]Figure

	// EnergySource says what showed the machine's energy or how it was computed; "" if absent.
	EnergySource string

	Reader string   // source of the figures: bpf, files or tree
	Group  string   // the job's group within its hierarchies, or ""
	Notes  []string // what is missing, and why
	// LivesOn are processes of the job that were alive when the command ended or, if it has not,
	// when the report was made.
	LivesOn []Process
	// InLedgerByName says whether this machine's agent has the job's end on disk, with its name: then
	// the ledger gets its use under its name. Otherwise a restart of the agent may book it without.
	// It is nil if no agent measured the job.
	InLedgerByName *bool
	Meter          Meter
}

// NotInLedger is what a report says where InLedgerByName is false.
const NotInLedger = "not in the ledger by name"

// Meter is mete's own use for measuring the job.
type Meter struct {
	CPU        int64 // ns
	MemoryPeak int64 // bytes resident
}

// Put sets figure k.
func (r *Report) Put(k Key, amount int64, q usage.Quality) { r.Figures[k] = Figure{amount, q} }

// Get returns figure k's amount, and whether it is present.
func (r *Report) Get(k Key) (int64, bool) {
	f := r.Figures[k]
	return f.Amount, f.Quality != usage.Absent
}

// Share returns the job's fraction of the machine's CPU time, 0 to 1, and its quality; absent if
// either is.
func (r *Report) Share() (float64, usage.Quality) {
	cpu, ok := r.Get(CPU)
	whole, had := r.Get(MachineCPU)
	if !ok || !had || whole <= 0 {
		return 0, usage.Absent
	}
	return float64(cpu) / float64(whole), max(r.Figures[CPU].Quality, r.Figures[MachineCPU].Quality)
}

// Power returns the mean power of the job's activity in W, and its quality; absent if energy or
// time is.
func (r *Report) Power() (float64, usage.Quality) {
	uJ, ok := r.Get(Energy)
	wall, had := r.Get(Wall)
	if !ok || !had || wall <= 0 {
		return 0, usage.Absent
	}
	return float64(uJ) * 1e3 / float64(wall), max(r.Figures[Energy].Quality, r.Figures[Wall].Quality)
}

// NewID makes a job's ID from its start, in milliseconds since 1970, and ten
// random bytes: a ULID in lower case. IDs sort as their starts do.
func NewID(ms int64, random [10]byte) string {
	id := ulid.ULID{}
	_ = id.SetTime(uint64(ms) & ulid.MaxTime()) // it fails only above that
	copy(id[6:], random[:])
	return strings.ToLower(id.String())
}

// Time returns the start of the job with this ID, to the millisecond. If id is invalid, it returns
// the beginning of 1970.
func Time(id string) time.Time {
	u, err := ulid.ParseStrict(id)
	if err != nil {
		return time.UnixMilli(0).UTC()
	}
	return u.Timestamp().UTC()
}

// ValidID reports whether s is a possible job ID, and so safe in a file name.
func ValidID(s string) bool {
	_, err := ulid.ParseStrict(s)
	return err == nil && s == strings.ToLower(s)
}

package query

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"

	"mete.dev/mete/internal/model/outlier"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A RunState says how much is known of the end of a run.
type RunState string

// The states of runs.
const (
	Running    RunState = "running" // it has use up to the latest window of its node, which sends
	Ended      RunState = "ended"   // its end was reported
	EndUnknown RunState = "unknown" // it has no use any more, and no end was reported
)

// RunStates returns all states.
func RunStates() []RunState { return []RunState{Running, Ended, EndUnknown} }

// A RunQuery requests runs that used something in a range. By, Top, Idle, Nested and Resources have no
// effect.
type RunQuery struct {
	Query
	Failed bool   // only those whose exit code is known and not 0
	ID     string // only those whose id begins with it
}

// RunResources are the resources that a run's use has.
var RunResources = usage.SetOf(usage.CPU, usage.Memory, usage.MemoryPeak, usage.DiskRead, usage.DiskWritten, usage.NetworkRx, usage.NetworkTx,
	usage.Processes, usage.OOMKills, usage.EnergyError) | usage.SetOf(usage.Energies[:]...)

// A Run is one execution of a job: a workload of a kind that is a run, see [workload.Kind.IsRun], or a [workload.Run],
// whose kind is [workload.KubeJob]. Its use is that of all its life, whatever the range of the query, and includes the
// workloads below it or its parts.
type Run struct {
	Workload // First and Last are the first minute with use and the last one in all its life; Node is "" if it has several
	NodeID   string
	Nodes    int // on which it ran
	State    RunState
	// Length is how long it ran. Of a run that goes on it is the time up to the latest window of its
	// node; where the end or the start was not reported, the time that it was measured.
	Length time.Duration
	Usage  Total // of [RunResources]
	// Comparisons compare it with the runs of its job before it.
	Comparisons []Comparison
}

// A Comparison compares a figure of a run with the same figure of the latest successful runs of its job
// before it, at most outlier.MaxSample.
type Comparison struct {
	Figure RunFigure
	Value  float64 // of the run, in the base unit
	outlier.Result
}

// A RunFigure is a figure by which runs are compared.
type RunFigure uint8

// The figures by which runs are compared.
const (
	RunCPU    RunFigure = iota // CPU time, s
	RunPeak                    // peak memory, bytes
	RunLength                  // s
	RunEnergy                  // J
	numRunFigures
)

// value returns a figure in its base unit; false if it is absent.
func (r *Run) value(f RunFigure) (float64, bool) {
	switch f {
	case RunCPU:
		return r.Usage.Sum[usage.CPU].Float(unit.Nanosecond), r.Usage.Present.Has(usage.CPU)
	case RunPeak:
		return r.Usage.Sum[usage.MemoryPeak].Float(unit.Byte), r.Usage.Present.Has(usage.MemoryPeak)
	case RunLength:
		return r.Length.Seconds(), r.Length > 0
	}
	sum, q := r.Usage.Energy()
	return sum.Float(unit.Microjoule), q != usage.Absent
}

// Compare sets the comparisons of a run that has ended with the runs before it, the latest first. A figure
// that is absent in it, or in too many of the others, is not compared.
func (r *Run) Compare(before []*Run) {
	if r.State != Ended {
		return
	}
	for f := range numRunFigures {
		x, ok := r.value(f)
		var sample []float64
		for _, b := range before {
			if v, ok := b.value(f); ok {
				sample = append(sample, v)
			}
		}
		if got, enough := outlier.Compare(x, sample); ok && enough {
			r.Comparisons = append(r.Comparisons, Comparison{f, x, got})
		}
	}
}

// RunKey returns the unique text by which the runs of a list are ordered: the latest start first, and
// last those without a reported start, of which the one that the ledger knew last is first.
func (w *Workload) RunKey() string {
	page := w.PageKey()
	if w.Kind == workload.KubeJob { // its nodes are found later
		page = w.Cluster + "\x00\x00" + string(w.ID)
	}
	if w.Started.IsZero() && w.Row < 0 { // numbers of runs that are not workloads have no order
		return fmt.Sprintf("%019d\x00~\x00%s", math.MaxInt64, page)
	}
	if w.Started.IsZero() {
		return fmt.Sprintf("%019d\x00%019d\x00%s", math.MaxInt64, math.MaxInt64-w.Row, page)
	}
	return fmt.Sprintf("%019d\x00%s", math.MaxInt64-max(0, w.Started.UnixNano()), page)
}

// JobKey returns the text that is the same for the runs of one job: its cluster, name, user and project.
func (w *Workload) JobKey() string {
	return strings.Join([]string{w.Cluster, cmp.Or(w.Job, w.Name.Name), w.User, w.Project}, "\x00")
}

// IsSuccess reports whether it ended with exit code 0.
func (r *Run) IsSuccess() bool { return r.State == Ended && r.Exit != nil && *r.Exit == 0 }

package table

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/ui/top"
)

// shortRun is how many characters of a run's id a table shows; compare takes them.
const shortRun = 10

// RunsText writes runs as a table, the latest first as they come.
func RunsText(list []v1.Run, s Style) string {
	if len(list) == 0 {
		return "no run used anything in this range\n"
	}
	var seen qualityMarks
	s = s.energyIn(known(list, func(r *v1.Run) *json.Number { return r.Energy }))
	cols := []column[v1.Run]{
		{"START", false, func(r *v1.Run) string { return s.time(r.Started) }},
		{"RUN", false, func(r *v1.Run) string { return s.sentence(string(r.ID[:min(shortRun, len(r.ID))])) }},
		{"JOB", false, func(r *v1.Run) string { return s.text(r.Job) }},
		{"NODE", false, func(r *v1.Run) string { return s.runNode(r) }},
		{"LENGTH", true, func(r *v1.Run) string { return s.runLength(r) }},
		{"EXIT", false, func(r *v1.Run) string { return RunExit(r) }},
	}
	if slices.ContainsFunc(list, hasOwnName) {
		cols = slices.Insert(cols, 3, column[v1.Run]{"NAME", false, func(r *v1.Run) string {
			if !hasOwnName(*r) {
				return s.absent()
			}
			return s.text(r.Name)
		}})
	}
	for _, f := range runFigures() {
		if f.table {
			cols = append(cols, column[v1.Run]{f.title, true, func(r *v1.Run) string {
				seen.note(r.Quality[f.key])
				return s.runFigure(&f, r)
			}})
		}
	}
	cols = append(cols, column[v1.Run]{"MARKS", false, func(r *v1.Run) string { return runMarks(r) }})
	text := write(each(list), cols)
	if slices.ContainsFunc(list, func(r v1.Run) bool { return r.Marks != "" }) {
		text += "marks: change against the median of the latest successful runs of the job before it (5 to 20),\n" +
			"of which the modified z-score exceeds its limit; 1 % of runs have one without a change\n"
	}
	return text + s.legend(&seen)
}

// hasOwnName reports whether a run has another name than its job.
func hasOwnName(r v1.Run) bool { return r.Kind == workload.KubeJob }

// runNode writes where a run ran.
func (s Style) runNode(r *v1.Run) string {
	if r.Nodes > 1 {
		return fmt.Sprintf("%d nodes", r.Nodes)
	}
	return s.text(r.Node)
}

// runMarks are the marks of a run in short.
func runMarks(r *v1.Run) string {
	var marks []string
	for i := range r.Comparisons {
		if c := &r.Comparisons[i]; c.Marked {
			marks = append(marks, c.Short())
		}
	}
	return strings.Join(marks, ", ")
}

// signals are the names of the signals that end most processes, the same on all of Linux's machines.
var signals = map[int]string{1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM"}

// RunExit says how a run ended: first what is known of the cause.
func RunExit(r *v1.Run) string {
	switch {
	case r.State == query.Running:
		return "running"
	case r.Exit == nil:
		return "unknown"
	case *r.Exit != 0 && r.OOMKills != nil && *r.OOMKills != "0":
		return fmt.Sprintf("out of memory (%d)", *r.Exit)
	case *r.Exit > 128:
		if name := signals[*r.Exit-128]; name != "" {
			return fmt.Sprintf("%s (%d)", name, *r.Exit)
		}
	}
	return strconv.Itoa(*r.Exit)
}

// runLength writes the length of a run.
func (s Style) runLength(r *v1.Run) string {
	if r.Length == nil {
		return s.absent()
	}
	return cpuTime(floatOf(r.Length))
}

// floatOf returns a number of JSON; 0 if it is none.
func floatOf(n *json.Number) float64 {
	v, err := n.Float64()
	if err != nil {
		return 0
	}
	return v
}

// A runFigure is a figure of runs.
type runFigure struct {
	title, key string
	of         func(*v1.Run) *json.Number
	text       func(float64) string
	table      bool // it is in the table of runs
}

func runFigures() []runFigure {
	cores := func(v float64) string { return strconv.FormatFloat(v, 'f', 3, 64) }
	count := func(v float64) string { return whole(int64(min(v, 1<<62))) }
	return []runFigure{
		{"CPU TIME", "cpu_seconds", func(r *v1.Run) *json.Number { return r.CPU }, cpuTime, true},
		{"CORES", "cpu_average_cores", func(r *v1.Run) *json.Number { return r.Cores }, cores, true},
		{"MEMORY", "memory_average_bytes", func(r *v1.Run) *json.Number { return r.Memory }, unit.Bytes, false},
		{"PEAK", "memory_peak_bytes", func(r *v1.Run) *json.Number { return r.Peak }, unit.Bytes, true},
		{"READ", "disk_read_bytes", func(r *v1.Run) *json.Number { return r.DiskRead }, unit.Bytes, true},
		{"WRITTEN", "disk_written_bytes", func(r *v1.Run) *json.Number { return r.DiskWritten }, unit.Bytes, true},
		{"RECEIVED", "network_rx_bytes", func(r *v1.Run) *json.Number { return r.Received }, unit.Bytes, false},
		{"SENT", "network_tx_bytes", func(r *v1.Run) *json.Number { return r.Sent }, unit.Bytes, false},
		{"PROCESSES", "processes", func(r *v1.Run) *json.Number { return r.Processes }, count, false},
		{"ENERGY", "energy_joules", func(r *v1.Run) *json.Number { return r.Energy }, unit.Joules, true},
		{"POWER", "energy_average_watts", func(r *v1.Run) *json.Number { return r.Power }, unit.Watts, false},
	}
}

// runFigure writes a figure of a run with the mark of its quality, and energy with its error.
func (s Style) runFigure(f *runFigure, r *v1.Run) string {
	n := f.of(r)
	if n == nil {
		return s.absent()
	}
	text := f.text(floatOf(n))
	if f.key == "energy_joules" {
		text = s.energy(energyOf(n, usage.Measured), v1.Amount{}, energyOf(r.EnergyError, usage.Measured), v1.Amount{})
	}
	return top.Mark(r.Quality[f.key], s.ASCII) + text
}

// CompareText writes runs side by side: a line for each figure, and of each run after the first the
// difference to the first.
func CompareText(c *v1.RunsCompared, s Style) string {
	type line struct {
		title string
		cells []string
	}
	lines := []line{{title: "RUN"}, {title: "JOB"}, {title: "NODE"}, {title: "START"}, {title: "EXIT"}, {title: "LENGTH"}}
	for _, f := range runFigures() {
		lines = append(lines, line{title: f.title})
	}
	lines = append(lines, line{title: "MARKS"})
	var seen qualityMarks
	s = s.energyIn(known(c.Runs, func(r *v1.Run) *json.Number { return r.Energy }))
	for i := range c.Runs {
		r := &c.Runs[i]
		cells := []string{s.sentence(string(r.ID[:min(shortRun, len(r.ID))])), s.text(r.Job), s.runNode(r), s.time(r.Started), RunExit(r), s.runLength(r) + c.ChangeText("length_seconds", i)}
		for _, f := range runFigures() {
			seen.note(r.Quality[f.key])
			cells = append(cells, s.runFigure(&f, r)+c.ChangeText(f.key, i))
		}
		cells = append(cells, runMarks(r))
		for k := range lines {
			lines[k].cells = append(lines[k].cells, cells[k])
		}
	}
	cols := []column[line]{{"", false, func(l *line) string { return l.title }}}
	for i := range c.Runs {
		title := "FIRST"
		if i > 0 {
			title = fmt.Sprintf("%d (AGAINST THE FIRST)", i+1)
		}
		cols = append(cols, column[line]{title, true, func(l *line) string { return l.cells[i] }})
	}
	return write(each(lines), cols) + s.legend(&seen)
}

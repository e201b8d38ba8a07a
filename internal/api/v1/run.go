package v1

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A Run is one execution of a job, with what it used in all its life.
type Run struct {
	ID      workload.ID       `json:"run" doc:"id of the run: 26 characters of base32"`
	Kind    workload.Kind     `json:"kind"`
	Job     string            `json:"job" doc:"name of its job"`
	Name    string            `json:"name" doc:"name of the run itself, which a Job of Kubernetes has; else that of its workload"`
	User    string            `json:"user"`
	Project string            `json:"project"`
	Node    string            `json:"node" doc:"name of its node; empty if it ran on several"`
	NodeID  string            `json:"node_id"`
	Nodes   int               `json:"nodes" doc:"number of nodes on which it ran, or 0 if it used nothing yet"`
	Cluster string            `json:"cluster"`
	Labels  map[string]string `json:"labels"`
	State   query.RunState    `json:"state" doc:"running; ended: its end was reported; unknown: it has no use any more, and no end was reported"`
	Started *time.Time        `json:"started_at" doc:"null if it was not reported"`
	Ended   *time.Time        `json:"ended_at" doc:"null while it runs, or if it was not reported"`
	First   *time.Time        `json:"first_at" doc:"start of the first minute with use; null until use is booked"`
	Last    *time.Time        `json:"last_at" doc:"end of the last minute with use, so far"`
	Length  *json.Number      `json:"length_seconds" doc:"how long it ran, so far; where start or end were not reported, the time that it was measured"`
	Exit    *int              `json:"exit_code" doc:"null while it runs, or if it was not reported; above 128 it was ended by the signal of that number less 128"`
	RunFigures
	Quality     map[string]usage.Quality `json:"quality" nullable:"false" doc:"quality of each figure, by its key"`
	Comparisons []Comparison             `json:"comparisons" csv:"-" nullable:"false" doc:"with the latest successful runs of the job before it, at most 20; none if it has not ended, or with fewer than 5"`
	Marks       string                   `json:"marks" doc:"the comparisons that are marked, in words, separated by semicolons"`
}

// RunFigures are the figures of a run: of the workload and those below it, over all its life. One that is
// absent is null.
type RunFigures struct {
	CPU         *json.Number `json:"cpu_seconds" doc:"CPU time"`
	Cores       *json.Number `json:"cpu_average_cores" doc:"CPU time divided by the length"`
	Memory      *json.Number `json:"memory_average_bytes" doc:"memory charged, page cache included, averaged over the length"`
	Peak        *json.Number `json:"memory_peak_bytes" doc:"highest memory charged to its workload, or to one of its parts"`
	DiskRead    *json.Number `json:"disk_read_bytes"`
	DiskWritten *json.Number `json:"disk_written_bytes"`
	Received    *json.Number `json:"network_rx_bytes"`
	Sent        *json.Number `json:"network_tx_bytes"`
	Processes   *json.Number `json:"processes" doc:"processes started"`
	OOMKills    *json.Number `json:"oom_kills" doc:"processes killed for want of memory"`
	Energy      *json.Number `json:"energy_joules" doc:"energy of all domains, without that of idle machines"`
	EnergyError *json.Number `json:"energy_error_joules" doc:"by how much the energy may be off, either way"`
	Power       *json.Number `json:"energy_average_watts" doc:"energy divided by the length"`
}

// A Comparison compares a figure of a run with those of the successful runs of its job before it, by the
// modified z-score of Iglewicz and Hoaglin.
type Comparison struct {
	Figure string   `json:"figure" doc:"key of the figure"`
	Value  float64  `json:"value" doc:"of this run"`
	Median float64  `json:"median" doc:"of the runs before it"`
	Runs   int      `json:"runs" doc:"number of runs before it: the latest 20, or fewer"`
	Change *float64 `json:"change" doc:"from the median, as a part of it; null if the median is 0"`
	Score  *float64 `json:"score" doc:"modified z-score: distance from the median by 1.4826 times the median absolute deviation; null where the runs before it have 0"`
	Limit  float64  `json:"limit" doc:"limit of the absolute score, which 1 % of runs exceed without a change, if they are normally distributed"`
	Marked bool     `json:"marked" doc:"the score is beyond the limit, and the change is 10 % or more"`
	Text   string   `json:"text" doc:"change and test in words"`
}

// ListKey implements [Element].
func (Run) ListKey() string { return "runs" }

// runFigures are the keys and names of the figures by which runs are compared.
var runFigures = map[query.RunFigure]struct{ key, name string }{
	query.RunCPU: {"cpu_seconds", "CPU time"}, query.RunPeak: {"memory_peak_bytes", "peak memory"},
	query.RunLength: {"length_seconds", "length"}, query.RunEnergy: {"energy_joules", "energy"},
}

// RunOf makes a Run.
func RunOf(r *query.Run) Run {
	out := Run{ID: r.ID, Kind: r.Kind, Job: r.Job, Name: r.Name.Name, User: r.User, Project: r.Project, Node: r.Node, NodeID: r.NodeID, Nodes: r.Nodes, Cluster: r.Cluster, Labels: orEmpty(r.Labels),
		State: r.State, Started: timeOrNil(r.Started), Ended: timeOrNil(r.Ended), First: timeOrNil(r.First), Last: timeOrNil(r.Last), Exit: r.Exit,
		Quality: map[string]usage.Quality{}, Comparisons: []Comparison{}}
	if out.Job == "" {
		out.Job = r.Name.Name
	}
	if r.Length > 0 {
		n := json.Number(seconds(r.Length))
		out.Length = &n
	}
	u := &r.Usage
	for _, f := range []struct {
		to  **json.Number
		key string
		res usage.Resource
	}{
		{&out.CPU, "cpu_seconds", usage.CPU}, {&out.Peak, "memory_peak_bytes", usage.MemoryPeak},
		{&out.DiskRead, "disk_read_bytes", usage.DiskRead}, {&out.DiskWritten, "disk_written_bytes", usage.DiskWritten},
		{&out.Received, "network_rx_bytes", usage.NetworkRx}, {&out.Sent, "network_tx_bytes", usage.NetworkTx},
		{&out.Processes, "processes", usage.Processes}, {&out.OOMKills, "oom_kills", usage.OOMKills}, {&out.EnergyError, "energy_error_joules", usage.EnergyError},
	} {
		out.put(f.to, f.key, u.Sum[f.res], f.res.Detail().Unit, u.Quality.Get(f.res))
	}
	energy, q := u.Energy()
	out.put(&out.Energy, "energy_joules", energy, unit.Microjoule, q)
	average := func(to **json.Number, key string, amount unit.Sum, q usage.Quality, of unit.Unit) {
		if r.Length <= 0 {
			q = usage.Absent
		}
		out.put(to, key, perSecond(amount.Float(unit.Count), max(r.Length, 1)), of, q)
	}
	average(&out.Cores, "cpu_average_cores", u.Sum[usage.CPU], u.Quality.Get(usage.CPU), unit.Nanosecond)
	average(&out.Memory, "memory_average_bytes", u.Sum[usage.Memory], u.Quality.Get(usage.Memory), unit.Byte)
	average(&out.Power, "energy_average_watts", energy, q, unit.Microjoule)
	var marks []string
	for i := range r.Comparisons {
		c := comparisonOf(&r.Comparisons[i])
		if out.Comparisons = append(out.Comparisons, c); c.Marked {
			marks = append(marks, c.Text)
		}
	}
	out.Marks = strings.Join(marks, "; ")
	return out
}

// put sets a figure and its quality.
func (r *Run) put(to **json.Number, key string, v unit.Sum, u unit.Unit, q usage.Quality) {
	r.Quality[key] = q
	if q != usage.Absent {
		n := json.Number(v.Decimal(u))
		*to = &n
	}
}

// comparisonOf makes a Comparison.
func comparisonOf(c *query.Comparison) Comparison {
	f := runFigures[c.Figure]
	out := Comparison{Figure: f.key, Value: c.Value, Median: c.Median, Runs: c.Sample, Limit: c.Limit, Marked: c.Marked, Change: finite(c.Change), Score: finite(c.Score)}
	out.Text = fmt.Sprintf("%s %s against the median of the last %d runs", f.name, percentText(out.Change), out.Runs)
	if out.Score != nil {
		out.Text += fmt.Sprintf(" (modified z-score %.1f, limit %.1f)", *out.Score, out.Limit)
	}
	return out
}

// finite returns a pointer to v, or nil, which is null in JSON, if v is infinite.
func finite(v float64) *float64 {
	if math.IsInf(v, 0) {
		return nil
	}
	return &v
}

// percentText writes a change in percent with its sign.
func percentText(change *float64) string {
	if change == nil {
		return "from 0"
	}
	percent := 100 * *change
	digits := 0
	if math.Abs(percent) < 9.95 {
		digits = 1
	}
	text := strconv.FormatFloat(percent, 'f', digits, 64) + " %"
	if percent >= 0 {
		text = "+" + text
	}
	return text
}

// ParseRunID reads the beginning of a run's id, "" where it is not given.
func ParseRunID(given map[string][]string) (string, error) {
	s, err := singleValue(given, ParamRun, "")
	if err == nil && given[ParamRun] != nil && (s == "" || len(s) > 26 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz234567") != "") {
		err = invalid("give the id of a run, of 26 letters and digits from 2 to 7, or its beginning", "parameter %s=%q", ParamRun, s)
	}
	return s, err
}

// ParseFlag reads a parameter that is 0 or 1, false where it is not given.
func ParseFlag(given map[string][]string, name string) (bool, error) {
	n, err := ParseNumber(given, name, 1)
	return n > 0, err
}

// FormatRunQuery writes a query of runs as the server reads it.
func FormatRunQuery(q query.RunQuery) map[string][]string {
	p := FormatQuery(query.Query{From: q.From, To: q.To, Where: q.Where, Limit: q.Limit})
	if q.Failed {
		p[ParamFailed] = []string{"1"}
	}
	if q.ID != "" {
		p[ParamRun] = []string{q.ID}
	}
	return p
}

// Short writes figure and change.
func (c *Comparison) Short() string {
	for _, f := range runFigures {
		if f.key == c.Figure {
			return f.name + " " + percentText(c.Change)
		}
	}
	return c.Figure + " " + percentText(c.Change)
}

package v1

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

type nodeJSON struct {
	Node     string      `json:"node" doc:"id: a ULID that it got when it enrolled"`
	Name     string      `json:"name" doc:"what the machine calls itself"`
	Cluster  string      `json:"cluster" doc:"of the token that it enrolled with"`
	State    string      `json:"state" doc:"live: booked up to the last minute; behind: sends, and is not; silent: sends nothing; revoked: may not send"`
	Machine  string      `json:"machine_id" doc:"of the operating system"`
	Boot     string      `json:"boot" doc:"id of its latest boot"`
	CPUs     int         `json:"cpus" doc:"online CPUs; 0 where only jobs are measured"`
	Streams  int         `json:"streams" doc:"streams that are open"`
	Enrolled *time.Time  `json:"enrolled_at" doc:"null where it never did itself"`
	Through  *time.Time  `json:"booked_through" doc:"up to when it is booked; null before the first batch"`
	Revoked  *time.Time  `json:"revoked_at" doc:"null where it is not"`                                             // null where it is not
	Source   string      `json:"source" doc:"id of the server below that tells of it; empty where it sends itself"` // the server below that tells of it
	Nested   *nestedJSON `json:"nested_in" doc:"the node in which it is a guest now; null where it is in none that can be seen"`
}

type nestedJSON struct {
	Node     string      `json:"node" doc:"id of the host"`
	Name     string      `json:"name" doc:"name of the host"`
	Workload workload.ID `json:"workload" doc:"id of what the guest is there; empty where that has no name yet"`
	As       string      `json:"workload_name" doc:"what that workload is called"`
	Since    *time.Time  `json:"since" doc:"the first equal share of energy; null where that is not known here"`
	Seen     *time.Time  `json:"seen_at" doc:"the latest equal share"`
}

type gapJSON struct {
	Node    string     `json:"node" doc:"id"`
	Name    string     `json:"name" doc:"name of the node"`
	From    *time.Time `json:"from"`
	To      *time.Time `json:"to"`
	Seconds float64    `json:"seconds" doc:"length, in seconds"`
	Reason  string     `json:"reason" doc:"the word for why, or clock-shifted"`
	Why     string     `json:"why" doc:"what happened, for people"`
	Meaning string     `json:"meaning" doc:"what that means for the figures, for people"`
	Detail  string     `json:"detail"`
	Booked  *time.Time `json:"booked_at" doc:"when the server learned of it"`
	// Shift is what was added to a clock that was wrong: then from and to are when
	// that began, and there is no gap.
	Shift json.RawMessage `json:"shift_seconds,omitempty" doc:"what was added to a clock that was wrong, in seconds: then from and to are when that began, and there is no gap"`
}

type workloadJSON struct {
	ID      workload.ID       `json:"workload" doc:"id: 26 characters of base32"`
	Kind    workload.Kind     `json:"kind"`
	Name    string            `json:"name"`
	Job     string            `json:"job" doc:"empty where it is of none"`
	User    string            `json:"user"`
	Project string            `json:"project"`
	Node    string            `json:"node" doc:"id"`
	Cluster string            `json:"cluster"`
	Key     string            `json:"key" doc:"what the id is made of: a container id, a pod UID, a path"`
	Path    string            `json:"path" doc:"its control group"`
	Parent  workload.ID       `json:"parent" doc:"id of the workload around it; empty is none"`
	Labels  map[string]string `json:"labels"`
	Started *time.Time        `json:"started_at" doc:"null where nobody told"`
	Ended   *time.Time        `json:"ended_at" doc:"null while it runs, or where nobody told"`
	Exit    *int              `json:"exit_code" doc:"null where nobody told"`
	First   *time.Time        `json:"first_at" doc:"start of the first minute with use in the range"`
	Last    *time.Time        `json:"last_at" doc:"end of the last one"`
}

// timeOrNil is an instant as JSON has it: null where there is none.
func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// timeOrZero is the instant of some.
func timeOrZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

// marshalList writes a list under its name, one element a line.
func marshalList[T any](name string, list []T) []byte {
	b := []byte("{\"" + name + "\":[")
	for i, v := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, '\n'), marshal(v)...)
	}
	return append(b, "\n]}\n"...)
}

// unmarshalList reads what marshalList wrote.
func unmarshalList[T any](name string, body []byte) ([]T, error) {
	var m map[string]json.RawMessage
	var list []T
	err := json.Unmarshal(body, &m)
	if err == nil {
		err = json.Unmarshal(m[name], &list)
	}
	if err != nil {
		return nil, fmt.Errorf("%w list of %s: %w", fault.ErrInvalid, name, err)
	}
	return list, nil
}

// mapSlice makes one list of another.
func mapSlice[A, B any](list []A, f func(A) B) []B {
	out := make([]B, 0, len(list))
	for _, v := range list {
		out = append(out, f(v))
	}
	return out
}

// NodesJSON writes nodes under the key nodes.
func NodesJSON(list []query.Node) []byte {
	return marshalList("nodes", mapSlice(list, func(n query.Node) nodeJSON {
		return nodeJSON{n.ID, n.Name, n.Cluster, n.State, n.MachineID, n.Boot, n.CPUs, n.Streams, timeOrNil(n.Enrolled), timeOrNil(n.Through), timeOrNil(n.Revoked), n.Source, nestedOf(n.Nested)}
	}))
}

func nestedOf(n *query.Nesting) *nestedJSON {
	if n == nil {
		return nil
	}
	return &nestedJSON{n.Host, n.HostName, n.Workload, n.Name, timeOrNil(n.Since), timeOrNil(n.Seen)}
}

// ParseNodes reads what NodesJSON wrote.
func ParseNodes(body []byte) ([]query.Node, error) {
	list, err := unmarshalList[nodeJSON]("nodes", body)
	return mapSlice(list, func(n nodeJSON) query.Node {
		out := query.Node{ID: n.Node, Name: n.Name, Cluster: n.Cluster, MachineID: n.Machine, Boot: n.Boot, CPUs: n.CPUs,
			Enrolled: timeOrZero(n.Enrolled), Through: timeOrZero(n.Through), Streams: n.Streams, State: n.State, Revoked: timeOrZero(n.Revoked), Source: n.Source}
		if in := n.Nested; in != nil {
			out.Nested = &query.Nesting{Host: in.Node, HostName: in.Name, Workload: in.Workload, Name: in.As, Since: timeOrZero(in.Since), Seen: timeOrZero(in.Seen)}
		}
		return out
	}), err
}

// NodesCSV writes nodes with the keys of the JSON form.
func NodesCSV(list []query.Node) []byte {
	rows := [][]string{{"node", "name", "cluster", "state", "machine_id", "boot", "cpus", "streams", "enrolled_at", "booked_through", "revoked_at", "source", "nested_in", "nested_in_name", "nested_in_workload"}}
	for _, n := range list {
		var in query.Nesting
		if n.Nested != nil {
			in = *n.Nested
		}
		rows = append(rows, []string{n.ID, n.Name, n.Cluster, n.State, n.MachineID, n.Boot, strconv.Itoa(n.CPUs), strconv.Itoa(n.Streams),
			formatTime(n.Enrolled), formatTime(n.Through), formatTime(n.Revoked), n.Source, in.Host, in.HostName, string(in.Workload)})
	}
	return writeCSV(rows)
}

// A Cause is what a reason for a gap means to people.
type Cause struct{ Why, Meaning string }

var causes = map[usage.Reason]Cause{
	usage.UnknownReason: {"the reason is not known", "figures of that time may be too low"},
	usage.Rebooted: {"the machine went down or started anew",
		"what was used after the last reading before it is lost: figures are too low by that"},
	usage.Unwatched: {"no meter was running",
		"CPU is complete, disk and network where the kernel counts them by itself; memory is not known for that time, and what ended meanwhile is in the group above it"},
	usage.Overflow: {"the agent's disk space for unsent figures was full",
		"figures of that time are lost: sums are too low by them"},
	usage.Corrupt: {"the agent's stored figures were damaged",
		"figures of that time are lost: sums are too low by them"},
	usage.Forgotten: {"the server missed figures that the agent no longer kept",
		"figures of that time are lost: sums are too low by them"},
	usage.StateLost: {"the agent lost its state and began anew",
		"what was used in that time is not known: sums are too low by it"},
	usage.Refused: {"the server refused what the agent sent",
		"figures of that time are not booked; the agent has put them aside"},
	usage.Killed: {"the meter of a job was killed",
		"what that job used afterwards is not known: its sums are too low by it"},
	usage.MeterFailed: {"an energy meter could not be used",
		"energy of that time is what other meters of the machine show, or a model; nothing else is missing"},
}

// clockShifted is instead of a reason where a clock was corrected.
const clockShifted = "clock-shifted"

// GapCause is the word for why there is a gap, and what it means.
func GapCause(g *query.Gap) (reason string, c Cause) {
	if g.Shift != 0 {
		return clockShifted, Cause{"the clock was wrong and is shifted by " + formatShift(g.Shift) + " from here on",
			"nothing is missing: what was measured from then on is booked at the time of the server's clock"}
	}
	c, ok := causes[g.Reason]
	if !ok {
		c = causes[usage.UnknownReason]
	}
	return g.Reason.String(), c
}

// GapsJSON writes gaps under the key gaps.
func GapsJSON(list []query.Gap) []byte {
	return marshalList("gaps", mapSlice(list, func(g query.Gap) gapJSON {
		reason, c := GapCause(&g)
		j := gapJSON{g.Node, g.Name, timeOrNil(g.From), timeOrNil(g.To), g.To.Sub(g.From).Seconds(), reason, c.Why, c.Meaning, g.Detail, timeOrNil(g.Booked), nil}
		if g.Shift != 0 {
			j.Shift = seconds(g.Shift)
		}
		return j
	}))
}

// ParseGaps reads what GapsJSON wrote.
func ParseGaps(body []byte) ([]query.Gap, error) {
	list, err := unmarshalList[gapJSON]("gaps", body)
	return mapSlice(list, func(g gapJSON) query.Gap {
		shift, _ := time.ParseDuration(string(g.Shift) + "s") // what is none is 0
		return query.Gap{Node: g.Node, Name: g.Name, Booked: timeOrZero(g.Booked), Shift: shift,
			Gap: usage.Gap{From: timeOrZero(g.From), To: timeOrZero(g.To), Reason: usage.ParseReason(g.Reason), Detail: g.Detail}}
	}), err
}

// GapsCSV writes gaps with the keys of the JSON form.
func GapsCSV(list []query.Gap) []byte {
	rows := [][]string{{"node", "name", "from", "to", "seconds", "reason", "why", "meaning", "detail", "booked_at", "shift_seconds"}}
	for _, g := range list {
		reason, c := GapCause(&g)
		var shift string
		if g.Shift != 0 {
			shift = string(seconds(g.Shift))
		}
		rows = append(rows, []string{g.Node, g.Name, formatTime(g.From), formatTime(g.To), string(seconds(g.To.Sub(g.From))), reason,
			c.Why, c.Meaning, g.Detail, formatTime(g.Booked), shift})
	}
	return writeCSV(rows)
}

// WorkloadsJSON writes workloads under the key workloads.
func WorkloadsJSON(list []query.Workload) []byte {
	return marshalList("workloads", mapSlice(list, func(w query.Workload) workloadJSON {
		return workloadJSON{w.ID, w.Kind, w.Name.Name, w.Job, w.User, w.Project, w.Node, w.Cluster, w.Key, w.Path, w.Parent, orEmpty(w.Labels),
			timeOrNil(w.Started), timeOrNil(w.Ended), w.Exit, timeOrNil(w.First), timeOrNil(w.Last)}
	}))
}

// ParseWorkloads reads what WorkloadsJSON wrote.
func ParseWorkloads(body []byte) ([]query.Workload, error) {
	list, err := unmarshalList[workloadJSON]("workloads", body)
	return mapSlice(list, func(w workloadJSON) query.Workload {
		out := query.Workload{Node: w.Node, Cluster: w.Cluster, First: timeOrZero(w.First), Last: timeOrZero(w.Last)}
		out.ID, out.Kind, out.Name.Name, out.Key, out.Path, out.Parent = w.ID, w.Kind, w.Name, w.Key, w.Path, w.Parent
		out.Job, out.User, out.Project, out.Exit = w.Job, w.User, w.Project, w.Exit
		out.Started, out.Ended = timeOrZero(w.Started), timeOrZero(w.Ended)
		if len(w.Labels) > 0 {
			out.Labels = w.Labels
		}
		return out
	}), err
}

// WorkloadsCSV writes workloads with the keys of the JSON form.
func WorkloadsCSV(list []query.Workload) []byte {
	rows := [][]string{{"workload", "kind", "name", "job", "user", "project", "node", "cluster", "key", "path", "parent", "labels",
		"started_at", "ended_at", "exit_code", "first_at", "last_at"}}
	for _, w := range list {
		exit := ""
		if w.Exit != nil {
			exit = strconv.Itoa(*w.Exit)
		}
		rows = append(rows, []string{string(w.ID), w.Kind.String(), w.Name.Name, w.Job, w.User, w.Project, w.Node, w.Cluster, w.Key, w.Path,
			string(w.Parent), formatLabels(w.Labels), formatTime(w.Started), formatTime(w.Ended), exit, formatTime(w.First), formatTime(w.Last)})
	}
	return writeCSV(rows)
}

package table

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/query"
)

// NodesText formats nodes as a table for people.
func NodesText(list []query.Node, s Style) string {
	if len(list) == 0 {
		return "no machine has enrolled yet\n"
	}
	var rows [][]string
	for _, n := range list {
		cpus := s.absent() // of a machine on which only jobs are measured
		if n.CPUs > 0 {
			cpus = strconv.Itoa(n.CPUs)
		}
		rows = append(rows, []string{s.text(n.Name), s.text(n.ID), s.text(n.Cluster), s.text(n.State), s.time(n.Through),
			cpus, strconv.Itoa(n.Streams), s.nested(n.Nested)})
	}
	return render(slices.Concat(textColumns("NAME", "NODE", "CLUSTER", "STATE", "BOOKED THROUGH"), numberColumns("CPUS", "STREAMS"), textColumns("NESTED IN")), rows)
}

// nested names the node in which a node is a guest, and its workload there.
func (s Style) nested(n *query.Nesting) string {
	switch {
	case n == nil:
		return ""
	case n.Name == "":
		return s.text(n.HostName)
	}
	return s.text(n.HostName) + " as " + s.text(n.Name)
}

// GapsText formats gaps and clock corrections as a table for people, followed by what each
// reason means for the figures.
func GapsText(list []query.Gap, s Style) string {
	if len(list) == 0 {
		return "no gaps: what is booked in this range is complete\n"
	}
	var rows [][]string
	meanings := map[string]string{}
	for _, g := range list {
		name := g.Name
		if name == "" {
			name = g.Node
		}
		reason, c := v1.GapCause(&g)
		why, to, length := c.Why, s.time(g.To), strconv.FormatFloat(g.To.Sub(g.From).Seconds(), 'f', 1, 64)
		if g.Shift != 0 {
			to, length = s.absent(), s.absent()
		}
		if g.Detail != "" {
			why += " (" + s.text(g.Detail) + ")"
		}
		rows = append(rows, []string{s.text(name), s.time(g.From), to, length, reason, why})
		meanings[reason] = c.Meaning
	}
	cols := slices.Concat(textColumns("NODE", "FROM", "TO"), numberColumns("SECONDS"), textColumns("REASON", "WHAT HAPPENED"))
	var b strings.Builder
	b.WriteString(render(cols, rows))
	b.WriteString("\nWhat it means for the figures:\n")
	for _, r := range slices.Sorted(maps.Keys(meanings)) {
		fmt.Fprintf(&b, "  %s: %s\n", r, meanings[r])
	}
	return b.String()
}

// WorkloadsText formats workloads as a table for people.
func WorkloadsText(list []query.Workload, s Style) string {
	if len(list) == 0 {
		return "no workload used anything in this range\n"
	}
	var rows [][]string
	for _, w := range list {
		ended := s.absent()
		if !w.Ended.IsZero() {
			ended = s.time(w.Ended)
		}
		exit := ""
		if w.Exit != nil {
			exit = strconv.Itoa(*w.Exit)
		}
		name := w.Name.Name
		if name == "" {
			name = w.Path
		}
		rows = append(rows, []string{s.text(name), w.Kind.String(), s.text(w.Job), s.text(w.Node), s.time(w.First), s.time(w.Last), ended, exit, string(w.ID)})
	}
	cols := slices.Concat(textColumns("NAME", "KIND", "JOB", "NODE", "FIRST", "LAST", "ENDED"), numberColumns("EXIT"), textColumns("WORKLOAD"))
	return render(cols, rows)
}

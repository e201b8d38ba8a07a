package table

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/unit"
)

// NodesText writes nodes as a table.
func NodesText(list []v1.Node, s Style) string {
	if len(list) == 0 {
		return "no machine has enrolled yet\n"
	}
	return write(each(list), []column[v1.Node]{
		{"NAME", false, func(n *v1.Node) string { return s.text(n.Name) }},
		{"NODE", false, func(n *v1.Node) string { return s.text(n.ID) }},
		{"CLUSTER", false, func(n *v1.Node) string { return s.text(n.Cluster) }},
		{"STATE", false, func(n *v1.Node) string { return s.text(n.State) }},
		{"BOOKED THROUGH", false, func(n *v1.Node) string { return s.time(n.Through) }},
		{"CPUS", true, func(n *v1.Node) string {
			if n.CPUs == 0 { // only jobs are measured there
				return s.absent()
			}
			return strconv.Itoa(n.CPUs)
		}},
		{"STREAMS", true, func(n *v1.Node) string { return strconv.Itoa(n.Streams) }},
		{"NESTED IN", false, func(n *v1.Node) string {
			switch {
			case n.Nested == nil:
				return ""
			case n.Nested.Name == "":
				return s.text(n.Nested.HostName)
			}
			return s.text(n.Nested.HostName) + " as " + s.text(n.Nested.Name)
		}},
	})
}

// UptimesText writes for how long machines were up, as a table.
func UptimesText(list []v1.Uptime, s Style) string {
	if len(list) == 0 {
		return "no machine was known in this range\n"
	}
	return write(each(list), []column[v1.Uptime]{
		{"NAME", false, func(u *v1.Uptime) string { return s.text(u.Name) }},
		{"CLUSTER", false, func(u *v1.Uptime) string { return s.text(u.Cluster) }},
		{"UP %", true, func(u *v1.Uptime) string {
			if u.Share == nil {
				return s.absent()
			}
			return formatShare(*u.Share)
		}},
		{"UP", true, func(u *v1.Uptime) string { return length(time.Duration(u.Up)) }},
		{"DOWN", true, func(u *v1.Uptime) string { return length(time.Duration(u.Down)) }},
		{"UNKNOWN", true, func(u *v1.Uptime) string { return length(time.Duration(u.Unknown)) }},
		{"TIMES DOWN", true, func(u *v1.Uptime) string { return strconv.Itoa(u.Downs) }},
		{"LAST DOWN", false, func(u *v1.Uptime) string {
			if u.LastDown == nil {
				return s.absent()
			}
			return s.time(u.LastDown)
		}},
	})
}

// formatShare writes a share as percent, never as 100 if it is less.
func formatShare(share float64) string {
	return strconv.FormatFloat(math.Floor(share*100_000)/1000, 'f', 3, 64)
}

// SourcesText writes servers below as a table. LAG is the time since the latest booked
// window of any of a server's nodes.
func SourcesText(list []v1.Source, now time.Time, s Style) string {
	if len(list) == 0 {
		return "no server below sends its rows here; mete token create --role upstream lets one\n"
	}
	return write(each(list), []column[v1.Source]{
		{"NAME", false, func(b *v1.Source) string { return s.text(b.Name) }},
		{"SOURCE", false, func(b *v1.Source) string { return s.text(b.ID) }},
		{"CLUSTER", false, func(b *v1.Source) string { return s.text(b.Cluster) }},
		{"STATE", false, func(b *v1.Source) string { return s.text(b.State) }},
		{"SEEN", false, func(b *v1.Source) string { return s.time(b.Seen) }},
		{"BOOKED THROUGH", false, func(b *v1.Source) string { return s.time(b.Through) }},
		{"EPOCH", false, func(b *v1.Source) string { return s.text(b.Epoch) }},
		{"LAG", true, func(b *v1.Source) string {
			if b.Through == nil {
				return s.absent()
			}
			return length(max(now.Sub(*b.Through), 0))
		}},
		{"PAGES", true, func(b *v1.Source) string { return strconv.FormatUint(b.Pages, 10) }},
		{"NODES", true, func(b *v1.Source) string { return strconv.Itoa(b.Nodes) }},
	})
}

// GapsText writes gaps and corrections of clocks as a table, and below it what each
// reason means for the figures.
func GapsText(list []v1.Gap, s Style) string {
	if len(list) == 0 {
		return "no gaps: what is booked in this range is complete\n"
	}
	var b strings.Builder
	b.WriteString(write(each(list), []column[v1.Gap]{
		{"NODE", false, func(g *v1.Gap) string {
			if g.Name == "" {
				return s.text(g.Node)
			}
			return s.text(g.Name)
		}},
		{"FROM", false, func(g *v1.Gap) string { return s.time(g.From) }},
		{"TO", false, func(g *v1.Gap) string {
			if g.Shift != nil {
				return s.absent()
			}
			return s.time(g.To)
		}},
		{"SECONDS", true, func(g *v1.Gap) string {
			if g.Shift != nil {
				return s.absent()
			}
			return strconv.FormatFloat(time.Duration(g.Seconds).Seconds(), 'f', 1, 64)
		}},
		{"REASON", false, func(g *v1.Gap) string { return s.text(g.Reason) }},
		{"WHAT HAPPENED", false, func(g *v1.Gap) string {
			if g.Detail == "" {
				return s.sentence(g.Why)
			}
			return s.sentence(g.Why) + " (" + s.text(g.Detail) + ")"
		}},
	}))
	b.WriteString("\nWhat it means for the figures:\n")
	meanings := map[string]string{}
	for i := range list {
		meanings[list[i].Reason] = list[i].Meaning
	}
	for _, r := range slices.Sorted(maps.Keys(meanings)) {
		fmt.Fprintf(&b, "  %s: %s\n", s.text(r), s.sentence(meanings[r]))
	}
	return b.String()
}

// WorkloadsText writes workloads as a table.
func WorkloadsText(list []v1.Workload, s Style) string {
	if len(list) == 0 {
		return "no workload used anything in this range\n"
	}
	return write(each(list), []column[v1.Workload]{
		{"NAME", false, func(w *v1.Workload) string {
			if w.Name == "" {
				return s.text(w.Path)
			}
			return s.text(w.Name)
		}},
		{"KIND", false, func(w *v1.Workload) string { return w.Kind.String() }},
		{"JOB", false, func(w *v1.Workload) string { return s.text(w.Job) }},
		{"NODE", false, func(w *v1.Workload) string { return s.text(w.Node) }},
		{"FIRST", false, func(w *v1.Workload) string { return s.time(w.First) }},
		{"LAST", false, func(w *v1.Workload) string { return s.time(w.Last) }},
		{"ENDED", false, func(w *v1.Workload) string { return s.time(w.Ended) }},
		{"EXIT", true, func(w *v1.Workload) string {
			if w.Exit == nil {
				return ""
			}
			return strconv.Itoa(*w.Exit)
		}},
		{"WORKLOAD", false, func(w *v1.Workload) string { return s.sentence(string(w.ID)) }},
	})
}

// SilencesText writes silences as a table.
func SilencesText(list []v1.Silence, s Style) string {
	if len(list) == 0 {
		return "there are no silences; mete silence create makes one\n"
	}
	return write(each(list), []column[v1.Silence]{
		{"ID", false, func(o *v1.Silence) string { return s.text(o.ID) }},
		{"STATE", false, func(o *v1.Silence) string { return s.text(o.State) }},
		{"STARTS", false, func(o *v1.Silence) string { return s.time(o.Starts) }},
		{"ENDS", false, func(o *v1.Silence) string { return s.time(o.Ends) }},
		{"BY", false, func(o *v1.Silence) string { return s.text(o.By) }},
		{"MATCHERS", false, func(o *v1.Silence) string { return s.text(o.Matchers) }},
		{"COMMENT", false, func(o *v1.Silence) string { return s.text(o.Comment) }},
	})
}

// AuditText writes entries of the audit log as a table.
func AuditText(list []v1.AuditEntry, s Style) string {
	if len(list) == 0 {
		return "the audit log has no such entries\n"
	}
	return write(each(list), []column[v1.AuditEntry]{
		{"TIME", false, func(a *v1.AuditEntry) string { return s.time(a.At) }},
		{"ACTOR", false, func(a *v1.AuditEntry) string { return s.text(a.Actor) }},
		{"ACTION", false, func(a *v1.AuditEntry) string { return s.text(a.Action) }},
		{"OBJECT", false, func(a *v1.AuditEntry) string { return s.text(a.Object) }},
		{"DETAIL", false, func(a *v1.AuditEntry) string { return s.sentence(a.Detail) }},
	})
}

// TokensText writes tokens as a table.
func TokensText(list []v1.Token, s Style) string {
	if len(list) == 0 {
		return "there are no tokens; mete token create makes one\n"
	}
	return write(each(list), []column[v1.Token]{
		{"ID", false, func(t *v1.Token) string { return s.text(t.ID) }},
		{"ROLE", false, func(t *v1.Token) string { return s.text(string(t.Role)) }},
		{"CLUSTER", false, func(t *v1.Token) string {
			if t.Cluster == "" && t.Role == registry.Viewer {
				return "(all)"
			}
			return s.text(t.Cluster)
		}},
		{"STATE", false, func(t *v1.Token) string { return s.text(t.State) }},
		{"USES LEFT", true, func(t *v1.Token) string {
			if t.Uses == nil || t.Role.IsBearer() {
				return "any"
			}
			return strconv.Itoa(*t.Uses)
		}},
		{"CREATED", false, func(t *v1.Token) string { return s.time(t.Created) }},
		{"EXPIRES", false, func(t *v1.Token) string {
			if t.Expires == nil {
				return "never"
			}
			return s.time(t.Expires)
		}},
	})
}

// TokenText says in a sentence what a new token permits.
func TokenText(t v1.Token, s Style) string {
	cluster := "cluster " + s.text(t.Cluster)
	if t.Cluster == "" {
		cluster = "all clusters"
		if t.Role != registry.Viewer {
			cluster = "the server's cluster"
		}
	}
	what := "lets its holder read " + cluster
	if t.Role == registry.Writer {
		what = "lets its holder write series into " + cluster
	}
	if !t.Role.IsBearer() {
		things := map[registry.Role]string{registry.Agent: "machine", registry.Job: "user", registry.Upstream: "server"}[t.Role]
		many := "any number of " + things + "s"
		if t.Uses != nil {
			many = plural(*t.Uses, things)
		}
		what = "enrolls " + many + " into " + cluster
		if t.Node != "" {
			what = "enrolls a machine as node " + s.text(t.Node) + " again"
		}
	}
	end := "without expiry"
	if t.Expires != nil {
		end = "until " + s.time(t.Expires)
	}
	return fmt.Sprintf("token %s %s, %s; it is shown only once", s.text(t.ID), what, end)
}

// BackupText says in a line what was copied.
func BackupText(b v1.Backup) string {
	ledger := "no ledger, which is in PostgreSQL: copy it now, with pg_dump"
	if b.Ledger != nil {
		ledger = "ledger " + unit.Bytes(float64(*b.Ledger))
	}
	return fmt.Sprintf("%s: metrics %s, %s, in %.1f s\n", b.Dir, unit.Bytes(float64(b.Metrics)), ledger, b.Seconds)
}

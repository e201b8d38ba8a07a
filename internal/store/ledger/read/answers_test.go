package read_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/outlier"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/testkit/ledgertest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// A scribe writes down what a ledger answers.
type scribe struct {
	t    *testing.T
	l    *ledger.Ledger
	text strings.Builder
}

// ask writes down the lines of one answer. Before, each step of the database fails once.
func (s *scribe) ask(title string, call func(ctx context.Context, line func(format string, args ...any)) error) {
	s.t.Helper()
	var lines strings.Builder
	err := ledgertest.Try(s.t, func() error {
		lines.Reset()
		return call(s.t.Context(), func(format string, args ...any) { fmt.Fprintf(&lines, "  "+format+"\n", args...) })
	})
	fmt.Fprintf(&s.text, "%s\n%s", title, &lines)
	if err != nil {
		s.t.Errorf("%s: %v", title, err)
	}
}

// at returns a time as days after the first, and the time of day.
func at(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	d := t.Sub(ledgertest.Day)
	days := d / (24 * time.Hour)
	return strings.TrimSuffix(fmt.Sprintf("%dd%v", days, d-days*24*time.Hour), "0s")
}

// amounts returns what a total has, with the quality of each. It leaves out what is measured to be zero.
func amounts(u *query.Total) string {
	var all []string
	u.Present.Each(func(r usage.Resource) {
		if q := u.Quality.Get(r); q != usage.Measured || u.Sum[r] != (unit.Sum{}) {
			all = append(all, fmt.Sprintf("%v %v %.3s", r, u.Sum[r], q))
		}
	})
	if u.IdleQuality != usage.Absent {
		all = append(all, fmt.Sprintf("idle %v±%v %.3s", u.Idle, u.IdleError, u.IdleQuality))
	}
	return fmt.Sprintf("%v ns: %s", u.Covered, strings.Join(all, ", "))
}

// labels returns the labels of a workload that has some.
func labels(of map[string]string) string {
	if len(of) == 0 {
		return ""
	}
	return fmt.Sprintf(" with %v", of)
}

func groups(line func(string, ...any), title string, all []query.Group) {
	for i := range all {
		g := &all[i]
		line("%s%q on %d, %s to %s, %s", title, g.Keys, g.Nodes, at(g.First), at(g.Last), amounts(&g.Usage))
	}
}

func answer(line func(string, ...any), a *query.Answer) {
	line("%s to %s, %d gaps, averaged over %v, nested %q %d, capacity %s", at(a.From), at(a.To), a.Gaps, a.AveragedOver, a.Nested, a.NestedNodes, amounts(&a.Capacity))
	groups(line, "", a.Groups)
	groups(line, "nested ", a.NestedGroups)
	if a.OtherGroups > 0 {
		line("%d others, %s", a.OtherGroups, amounts(&a.Other))
	}
}

// various fills a ledger with two clusters, hosts and guests, jobs and their steps.
func various(t *testing.T, l *ledger.Ledger) *ledgertest.Full {
	t.Helper()
	f := ledgertest.Fill(t, l)
	for _, n := range []registry.Node{{ID: "other", Cluster: "d", Name: "other", MachineID: "9"}, {ID: "empty", Cluster: "d", Name: "empty", MachineID: "8"}} {
		n.At = ledgertest.Day
		if err := l.PutNode(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	m := ledgertest.Day.Unix() / 60
	e := f.Entry("other", "b", m, m+1, m+1450, m+2881, m+2941, m+2942)
	// Of the last minute, the idle energy of the same hour is larger, and modelled.
	last := &e.Minutes[len(e.Minutes)-1]
	last.Usage.Put(usage.EnergyPackage, 25e6, usage.Modelled)
	last.Usage.Put(usage.EnergyError, 3e6, usage.Modelled)
	code := []int{0, 3}
	add := func(n batch.Name, minutes ...int64) {
		n.ID = workload.NewID(e.Node, n.Kind, n.Key)
		short, _ := workload.ShortIDOf(n.ID)
		e.Names = append(e.Names, n)
		for i, minute := range minutes {
			u := usage.Usage{Covered: time.Duration(i+1) * 7 * time.Second}
			u.Put(usage.CPU, int64(i+2)*1e9, usage.Measured)
			u.Put(usage.Memory, int64(i+1)*1e6, usage.Quality(1+i%3))
			u.Put(usage.MemoryPeak, int64(9-i)*1e3, usage.Measured)
			u.Put(usage.EnergyDRAM, int64(i+3)*1e5, []usage.Quality{usage.Apportioned, usage.Modelled}[i%2])
			u.Put(usage.EnergyError, int64(i+1)*1e3, usage.Modelled)
			e.Minutes = append(e.Minutes, batch.Minute{Workload: short, Minute: minute, Usage: u})
		}
	}
	begin := ledgertest.Day.Add(48*time.Hour + time.Minute)
	add(batch.Name{Kind: workload.Job, Key: "1", Name: "make", Job: "build", User: "ann", Project: "p", Started: begin, Ended: begin.Add(61 * time.Minute), Exit: &code[1], Labels: map[string]string{"app": "y"}}, m+2881, m+2900, m+2941)
	parent := workload.NewID("other", workload.Job, "1")
	add(batch.Name{Kind: workload.Container, Key: "s", Name: "step", Parent: parent, Project: "p", Labels: map[string]string{batch.LabelNamespace: "ns", batch.LabelPod: "pod", batch.LabelContainer: "con"}}, m+2881)
	add(batch.Name{Kind: workload.Job, Key: "2", Name: "make", Job: "build", User: "ann", Project: "p", Started: ledgertest.Day, Ended: ledgertest.Day.Add(2 * time.Minute), Exit: &code[0]}, m, m+1)
	add(batch.Name{Kind: workload.Job, Key: "3", Name: "endless", User: "bob", Project: "q", Started: ledgertest.Day.Add(time.Hour)}, m+60, m+1450, m+2941, m+2943)
	add(batch.Name{Kind: workload.Container, Key: "i", Name: "inner", Parent: workload.NewID("other", workload.Container, "s")}, m+2882)
	add(batch.Name{Kind: workload.Service, Key: "4", Name: "mete-agent.service"}, m+1, m+2882)
	for i := range e.Nodes {
		e.Nodes[i].CPUs, e.Nodes[i].Covered = 4+i, time.Duration(40+i)*time.Second
		e.Nodes[i].Total.Covered = e.Nodes[i].Covered
		e.Nodes[i].Total.Put(usage.NetworkRx, int64(i+1)*100, usage.Modelled)
	}
	for i := range outlier.MaxSample + 2 {
		start := begin.Add(time.Duration(i) * time.Second)
		add(batch.Name{Kind: workload.Job, Key: fmt.Sprint("test", i), Name: "test", Started: start, Ended: start.Add(time.Duration(i+10) * time.Second), Exit: &code[0]}, m+2884)
		e.Minutes[len(e.Minutes)-1].Usage.Amount[usage.CPU] = int64(i*i) * 1e8
	}
	only := batch.NodeMinute{Minute: m + 2883, Covered: time.Minute} // of a machine of which only jobs are measured
	only.Whole[0] = 5
	e.Nodes = append(e.Nodes, only)
	e.Gaps = []usage.Gap{{From: ledgertest.Day, To: begin, Reason: usage.Rebooted}}
	// Of project p, the guest runs within its host.
	host, guest := f.Entry("host", "b1", m+2944), f.Entry("guest", "b2", m+2944)
	host.Names[0].Project, guest.Names[0].Project = "p", "p"
	f.Book(e, host, guest)
	return f
}

// TestAnswers checks the answers about one history, with rows of minutes, hours and days, against those
// in testdata, which both databases give. Each fault of the database is an error.
func TestAnswers(t *testing.T) {
	l := ledgertest.Open(t, ledgertest.SQLite(t))
	l.SetMinQuiet(0)
	checkAnswers(t, l)
}

// TestAnswersPostgreSQL is TestAnswers for PostgreSQL.
func TestAnswersPostgreSQL(t *testing.T) {
	checkAnswers(t, ledgertest.Open(t, ledgertest.PostgreSQL(t)))
}

func checkAnswers(t *testing.T, l *ledger.Ledger) {
	t.Helper()
	f := various(t, l)
	s := &scribe{t: t, l: l}
	s.askUsage("")
	s.askLists()
	f.Fold(ledgertest.Day.AddDate(0, 0, 20))
	s.askUsage("folded: ")
	s.askRows("folded: ")
	file := filepath.Join("testdata", "answers.txt")
	if *update {
		if err := os.WriteFile(file, []byte(s.text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(s.text.String(), "\n")); d != "" {
		t.Errorf("answers (-want +got), see -update:\n%s", d)
	}
}

// askUsage asks for sums and workloads.
func (s *scribe) askUsage(when string) {
	s.t.Helper()
	day := ledgertest.Day
	all := query.Scope{All: true}
	byNode, byKind := []query.Dimension{query.ByNode}, []query.Dimension{query.ByKind}
	ranges := [][2]time.Duration{{0, 72 * time.Hour}, {time.Minute, 48*time.Hour + 2*time.Minute}, {24 * time.Hour, 26 * time.Hour}, {49 * time.Hour, 49*time.Hour + 4*time.Minute}}
	for i, q := range []query.Query{
		{By: byNode, Scope: all},
		{By: byNode, Scope: query.Scope{Clusters: []string{"c"}}, Limit: 1},
		{By: byNode, Scope: query.Scope{Projects: []string{"p"}}, Nested: query.NestedAlso},
		{By: byKind, Scope: query.Scope{Clusters: []string{"d"}, Projects: []string{"p", "q"}}},
		{By: byKind, Scope: all, Nested: query.NestedOnly},
		{By: byKind, Scope: query.Scope{Clusters: []string{"d"}}, Nested: query.NestedOnly, Idle: "used"},
		{By: byKind, Scope: all, Idle: "equal", OmitOwn: true},
		{By: []query.Dimension{query.ByCluster, query.ByUser}, Scope: all, Idle: "used"},
		{By: []query.Dimension{query.ByJob}, Scope: all, Idle: "used", Where: map[query.Dimension][]string{query.ByNode: {"other", "host"}}},
		{By: []query.Dimension{query.ByWorkload}, Scope: query.Scope{Clusters: []string{"d"}}, Idle: "equal", Where: map[query.Dimension][]string{query.ByKind: {"job"}}},
		{By: []query.Dimension{query.ByLabel + "app", query.ByLabel + "tier", query.ByProject}, Scope: all, Where: map[query.Dimension][]string{query.ByCluster: {"d"}}},
		{By: []query.Dimension{query.ByNamespace, query.ByPod, query.ByContainer}, Scope: query.Scope{Clusters: []string{"d"}}, Resources: usage.SetOf(usage.Memory)},
		{By: byKind, Scope: all, Nested: query.NestedAlso, Limit: 2},
		{By: []query.Dimension{query.ByWorkload}, Scope: all, Top: &query.Top{Limit: 2, AlwaysKept: func(keys []string) bool { return keys[0] == "idle" },
			Rank: func(keys []string, u *query.Total, _ time.Duration) query.Rank {
				return query.Rank{Amount: u.Sum[usage.CPU], Keys: keys}
			}}},
		{By: byKind, Scope: query.Scope{}},
		{By: byKind, Scope: all, Nested: query.NestedOnly, Idle: "used"},
		{By: byKind, Scope: query.Scope{Projects: []string{"p"}}, Idle: "equal", Resources: usage.SetOf(usage.Memory)},
		{By: []query.Dimension{query.ByJob}, Scope: all, Where: map[query.Dimension][]string{query.ByKind: {"job"}},
			Top: &query.Top{Limit: 1, AlwaysKept: func([]string) bool { return false }, Rank: func(keys []string, u *query.Total, _ time.Duration) query.Rank {
				return query.Rank{Amount: u.Sum[usage.CPU], Keys: keys}
			}}},
	} {
		for _, r := range ranges {
			q := q
			q.From, q.To = day.Add(r[0]), day.Add(r[1])
			s.ask(fmt.Sprintf("%susage %d from %v to %v", when, i, r[0], r[1]), func(ctx context.Context, line func(string, ...any)) error {
				a, err := s.l.Usage(ctx, q)
				if err == nil {
					answer(line, a)
				}
				return err
			})
		}
		q.From, q.To = day.Add(time.Minute), day.Add(49*time.Hour)
		if i%6 == 1 || q.Top != nil {
			s.ask(fmt.Sprintf("%sdays of usage %d", when, i), func(ctx context.Context, line func(string, ...any)) error {
				return s.l.EachPeriod(ctx, q, query.Daily, func(a *query.Answer) error { answer(line, a); return nil })
			})
		}
		s.ask(fmt.Sprintf("%sworkloads %d", when, i), func(ctx context.Context, line func(string, ...any)) error {
			list, err := s.l.Workloads(ctx, q)
			for _, w := range list {
				line("%s %s %s %s %s to %s%s", w.Cluster, w.Node, w.Kind, w.Name.Name, at(w.First), at(w.Last), labels(w.Labels))
			}
			return err
		})
	}
	for i, q := range []query.RunQuery{
		{Query: query.Query{Scope: all}},
		{Query: query.Query{Scope: query.Scope{Clusters: []string{"d"}}}, Failed: true},
		{Query: query.Query{Scope: query.Scope{Clusters: []string{"d"}}, Limit: 1}}, // compared with others that are not listed
		{Query: query.Query{Scope: query.Scope{Projects: []string{"p"}}}},
		{Query: query.Query{Scope: all}, ID: string(workload.NewID("other", workload.Job, "1"))[:9]},
		{Query: query.Query{Scope: query.Scope{}}},
	} {
		q.From, q.To = day.Add(time.Hour), day.Add(72*time.Hour)
		s.ask(fmt.Sprintf("%sruns %d", when, i), func(ctx context.Context, line func(string, ...any)) error {
			list, err := s.l.Runs(ctx, q)
			for i := range list {
				r := &list[i]
				line("%s %s %s %v of %s, %s to %s%s, %s", r.Cluster, r.NodeID, r.State, r.Length, r.Name.Name, at(r.First), at(r.Last), labels(r.Labels), amounts(&r.Usage))
				if c := r.Comparisons; len(c) > 0 {
					line("  %v compared: %v of %d with median %v", len(c), c[0].Value, c[0].Sample, c[0].Median)
				}
			}
			return err
		})
	}
}

// askLists asks for lists and rows.
func (s *scribe) askLists() {
	s.t.Helper()
	day := ledgertest.Day
	for _, scope := range []query.Scope{{All: true}, {Clusters: []string{"c"}}, {Clusters: []string{"d"}}, {Projects: []string{"p"}}} {
		for _, to := range []time.Duration{72 * time.Hour, 0} {
			s.ask(fmt.Sprintf("virtual machines of %+v from -24h to %v", scope, to), func(ctx context.Context, line func(string, ...any)) error {
				list, err := s.l.VMs(ctx, day.Add(-24*time.Hour), day.Add(to), scope)
				for i := range list {
					v := &list[i]
					line("%s %q on %s %s as %s: %s %s, %d %d %d %d %s, %s", v.Guest, v.Name, v.Host, v.HostName, v.Workload, v.Node, v.NodeName, v.Compared, v.Differing, v.Largest, v.N, at(v.Last), amounts(&v.Usage))
				}
				return err
			})
		}
		s.ask(fmt.Sprintf("dimensions of %+v", scope), func(ctx context.Context, line func(string, ...any)) error {
			list, err := s.l.Dimensions(ctx, scope)
			line("%v", list)
			return err
		})
		s.ask(fmt.Sprintf("gaps of %+v", scope), func(ctx context.Context, line func(string, ...any)) error {
			list, err := s.l.Gaps(ctx, day, day.Add(72*time.Hour), "", scope)
			for _, g := range list {
				line("%s %s to %s: %v %s", g.Node, at(g.From), at(g.To), g.Reason, g.Detail)
			}
			return err
		})
	}
	s.ask("times of gaps", func(ctx context.Context, line func(string, ...any)) error {
		all, err := s.l.GapTimes(ctx)
		for _, n := range slices.Sorted(maps.Keys(all)) {
			line("%s %v", n, all[n])
		}
		return err
	})
	for _, id := range []workload.ID{workload.NewID("other", workload.Job, "1"), workload.NewID("other", workload.Job, "3"), workload.NewID("other", workload.Job, "9")} {
		s.ask("all of workload "+string(id), func(ctx context.Context, line func(string, ...any)) error {
			w, err := s.l.Self(ctx, "other", id)
			if err == nil {
				line("%s %s %s, %s to %s, through %s, %d gaps, %s", w.NodeName, w.Cluster, w.Name.Name, at(w.First), at(w.Last), at(w.Through), w.Gaps, amounts(&w.Usage))
			}
			return err
		})
	}
	s.askRows("")
}

// askRows asks for rows of minutes.
func (s *scribe) askRows(when string) {
	s.t.Helper()
	nodes := []string{"other", "unknown", "host"}
	for _, nodes := range [][]string{nodes, nodes[:1], nodes[1:2], nil} {
		for _, r := range [][2]time.Duration{{-100 * 365 * 24 * time.Hour, 100 * 365 * 24 * time.Hour}, {time.Minute, 61 * time.Minute}} {
			from, to := ledgertest.Day.Add(r[0]), ledgertest.Day.Add(r[1])
			title := fmt.Sprintf("%sminutes of %v from %v to %v", when, nodes, r[0], r[1])
			used := func(u *usage.Usage) (text string) {
				text = u.Covered.String()
				u.Present.Each(func(r usage.Resource) { text += fmt.Sprintf(", %v %d %.3s", r, u.Amount[r], u.Quality.Get(r)) })
				return text
			}
			s.ask(title, func(ctx context.Context, line func(string, ...any)) error {
				var rows []string
				err := s.l.Minutes(ctx, nodes, from, to, func(node int, m *batch.Minute) error {
					rows = append(rows, fmt.Sprintf("%06d %s %x: %s", m.Minute-ledgertest.Day.Unix()/60, nodes[node], m.Workload, used(&m.Usage)))
					return nil
				})
				slices.Sort(rows)
				for _, r := range rows {
					line("%s", r)
				}
				return err
			})
			s.ask(title+", whole", func(ctx context.Context, line func(string, ...any)) error {
				var rows []string
				err := s.l.Wholes(ctx, nodes, from, to, func(node int, m *batch.NodeMinute) error {
					rows = append(rows, fmt.Sprintf("%06d %s %v %d CPUs %v: %s", m.Minute-ledgertest.Day.Unix()/60, nodes[node], m.Covered, m.CPUs, m.Whole, used(&m.Total)))
					return nil
				})
				slices.Sort(rows)
				for _, r := range rows {
					line("%s", r)
				}
				return err
			})
		}
	}
}

// TestNodesOfDay checks that a group does not have the node of a workload that ran before and after the
// day of the query.
func TestNodesOfDay(t *testing.T) {
	l := ledgertest.Open(t, ledgertest.SQLite(t))
	f := ledgertest.NewFull(t, l)
	const day = 24 * 60
	m := ledgertest.Day.Unix() / 60
	entry := func(node string, minutes ...int64) *batch.Entry {
		f.Must(l.PutNode(t.Context(), registry.Node{ID: node, Cluster: "c", Name: node, MachineID: node, At: ledgertest.Day}))
		return f.Entry(node, "b", minutes...)
	}
	f.Book(entry("through", m+1, m+day+1, m+2*day+1, m+3*day+1), entry("away", m+1, m+2*day, m+3*day+1))
	f.Fold(ledgertest.Day.AddDate(0, 0, 20))
	for i, want := range []int{2, 1, 2} {
		from := ledgertest.Day.AddDate(0, 0, i)
		a, err := l.Usage(t.Context(), query.Query{From: from, To: from.AddDate(0, 0, 1), By: []query.Dimension{query.ByKind}, Scope: query.Scope{All: true}})
		f.Must(err)
		for _, g := range a.Groups {
			if g.Nodes != want {
				t.Errorf("day %d: %v ran on %d nodes, want %d", i, g.Keys, g.Nodes, want)
			}
		}
		if len(a.Groups) != 3 {
			t.Errorf("day %d: %d kinds", i, len(a.Groups))
		}
	}
}

package ledgertest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// drawLife draws times and the exit code of a workload, within which it has all rows.
func (r *queryRound) drawLife(n *batch.Name) {
	if rapid.Bool().Draw(r.T, "started") {
		n.Started = time.Unix(60*r.day-int64(rapid.IntRange(0, 3).Draw(r.T, "start")), 5).UTC()
	}
	if rapid.Bool().Draw(r.T, "ended") {
		n.Ended = time.Unix(60*(r.day+queryDays*dayMinutes), 0).UTC()
	}
	if code := rapid.IntRange(-1, 2).Draw(r.T, "exit"); code >= 0 {
		n.Exit = &code
	}
}

// run returns the run that a workload is a part of, or nil.
func (b *ledgerBook) run(w *bookWorkload, all []*bookWorkload) *bookWorkload {
	for w != nil && !w.told.Kind.IsRun() {
		at := slices.IndexFunc(all, func(o *bookWorkload) bool { return o.node == w.node && o.told.ID == w.told.Parent })
		if w.told.Parent == "" || at < 0 {
			return nil
		}
		w = all[at]
	}
	return w
}

// checkRuns compares the list of a query's runs.
func (r *queryRound) checkRuns() {
	q := query.RunQuery{Query: r.query(), Failed: rapid.IntRange(0, 2).Draw(r.T, "failed") == 0}
	q.Limit = 0
	from, to := r.minutes(&q.Query)
	var got []query.Run
	err := Try(r, func() (err error) {
		got, err = r.l.Runs(r.t.Context(), q)
		return err
	})
	if err != nil {
		r.Fatalf("runs of %+v: %v", q, err)
	}
	totals := map[*bookWorkload]*query.Total{}
	last := map[*bookWorkload]int64{}
	var want []*bookWorkload
	for i := range r.book.rows {
		row := &r.book.rows[i]
		run := r.book.run(row.workload, r.workloads)
		if run == nil {
			continue
		}
		u := query.Total{Present: row.usage.Present & query.RunResources, Covered: unit.Sum{}.Add(int64(row.usage.Covered.Round(time.Millisecond)))}
		u.Present.Each(func(res usage.Resource) {
			u.Sum[res] = u.Sum[res].Add(row.usage.Amount[res])
			u.Quality.Set(res, row.usage.Quality.Get(res))
		})
		if totals[run] == nil {
			totals[run] = &query.Total{}
		}
		totals[run].Add(&u)
		last[run] = max(last[run], row.minute)
		failed := run.told.Exit != nil && *run.told.Exit != 0
		if row.workload == run && row.minute >= from && row.minute < to && r.book.includes(run, &q.Query) && (failed || !q.Failed) && !slices.Contains(want, run) {
			want = append(want, run)
		}
	}
	rows := map[string]int64{} // which only the ledger knows
	for i := range got {
		rows[fmt.Sprint(got[i].NodeID, got[i].ID)] = got[i].Row
	}
	key := func(w *bookWorkload) string {
		k := query.Workload{Row: rows[fmt.Sprint(w.node.id, w.told.ID)], Node: w.node.name, Cluster: w.node.cluster, Name: w.told}
		return k.RunKey()
	}
	slices.SortFunc(want, func(a, b *bookWorkload) int { return strings.Compare(key(a), key(b)) })
	var names, wanted []string
	for i := range got {
		names = append(names, fmt.Sprint(got[i].NodeID, got[i].ID))
	}
	for _, w := range want {
		wanted = append(wanted, fmt.Sprint(w.node.id, w.told.ID))
	}
	if !slices.Equal(names, wanted) {
		r.Fatalf("runs of %+v: %v, want %v", q, names, wanted)
	}
	for i, w := range want {
		g, u := &got[i], totals[w]
		if g.Usage.Present != u.Present || g.Usage.Sum != u.Sum || g.Usage.Quality != u.Quality || g.Usage.Covered != u.Covered {
			r.Fatalf("runs of %+v: %s used %+v, want %+v", q, names[i], g.Usage, u)
		}
		ended := !w.told.Ended.IsZero()
		if g.Node != w.node.name || g.State != map[bool]query.RunState{true: query.Ended, false: query.EndUnknown}[ended] || g.Last.Unix()/60 <= last[w] {
			r.Fatalf("runs of %+v: %+v", q, g)
		}
		if d := w.told.Ended.Sub(w.told.Started); ended && !w.told.Started.IsZero() && g.Length != d {
			r.Fatalf("runs of %+v: length %v, want %v", q, g.Length, d)
		}
	}
	// Pages are the same list.
	q.Limit = max(1, len(got)/2)
	var pages []query.Run
	for {
		page, err := r.l.Runs(r.t.Context(), q)
		if err != nil || len(page) > q.Limit {
			r.Fatalf("page of %+v: %d runs, %v", q, len(page), err)
		}
		if len(page) == 0 {
			break
		}
		pages = append(pages, page...)
		q.After = page[len(page)-1].RunKey()
	}
	if d := cmp.Diff(got, pages, sums); d != "" {
		r.Fatalf("pages of %+v (-list +pages):\n%s", q, d)
	}
}

// sums compares sums of amounts.
var sums = cmp.Comparer(func(a, b unit.Sum) bool { return a == b })

// A runBook books runs of node a, one entry each.
type runBook struct {
	t     *testing.T
	query func(query.RunQuery) []query.Run
	send  func(names []batch.Name, rows ...batch.Minute)
}

// openRuns opens a ledger of runs.
func openRuns(t *testing.T, dsn string) *runBook {
	l := Open(t, dsn)
	Node(t, l, "a")
	mark := batch.Mark{Next: 1}
	return &runBook{t, func(q query.RunQuery) []query.Run {
		t.Helper()
		if q.To.IsZero() {
			q.From, q.To, q.Scope.All = Day.AddDate(0, 0, -1), time.Now().Add(time.Hour), true
		}
		list, err := l.Runs(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}, func(names []batch.Name, rows ...batch.Minute) {
		t.Helper()
		e := Entry("a", batch.Stream{1}, mark, 0, 0)
		e.Names, e.Minutes = names, rows
		for _, m := range rows {
			if end := time.Unix(60*(m.Minute+1), 0); end.After(e.Through) {
				e.Through = end
			}
		}
		book(t, l, batch.Accepted, e)
		mark = batch.Mark{Next: mark.Next + 1, Last: e.Hash}
	}}
}

// cpuRow is a minute in which a workload used CPU time.
func cpuRow(n *batch.Name, at time.Time, ns, peak int64) batch.Minute {
	u := usage.Usage{Covered: 10 * time.Second}
	u.Put(usage.CPU, ns, usage.Measured)
	u.Put(usage.MemoryPeak, peak, usage.Apportioned)
	short, _ := workload.ShortIDOf(n.ID)
	return batch.Minute{Workload: short, Minute: minuteOf(at), Usage: u}
}

// testRuns: a run has the use of all its life and of the workloads below it, whatever the range is; other
// kinds of workloads are not in the list, and a run below another one is on its own.
func testRuns(t *testing.T, dsn string) {
	b := openRuns(t, dsn)
	one := 1
	name := func(kind workload.Kind, key string, parent workload.ID) batch.Name {
		return batch.Name{ID: workload.NewID("a", kind, key), Kind: kind, Key: key, Name: key, Parent: parent, Job: "j", Project: "p"}
	}
	job := name(workload.SlurmJob, "job", "")
	job.Started, job.Ended, job.Exit = Day.Add(time.Hour), Day.Add(3*time.Hour), &one
	step := name(workload.SlurmStep, "step", job.ID)
	inner := name(workload.Container, "inner", step.ID)
	other := name(workload.Job, "other", inner.ID)
	other.Started, other.Ended = Day.Add(2*time.Hour), Day.Add(2*time.Hour+100*time.Millisecond)
	slice := name(workload.Slice, "slice", "")
	b.send([]batch.Name{job, step, inner, other, slice},
		cpuRow(&job, job.Started, 1, 5), cpuRow(&step, job.Started, 20, 7), cpuRow(&step, job.Ended, 300, 6), cpuRow(&inner, job.Started, 4000, 9),
		cpuRow(&job, job.Ended, 50000, 1), cpuRow(&other, other.Started, 600000, 2), cpuRow(&slice, job.Started, 7, 7))
	list := b.query(query.RunQuery{})
	if len(list) != 2 || list[0].ID != other.ID || list[1].ID != job.ID {
		t.Fatalf("runs: %+v", list)
	}
	o, j := list[0], list[1]
	if o.Usage.Sum[usage.CPU].String() != "600000" || o.Length != 100*time.Millisecond || o.IsSuccess() {
		t.Errorf("the inner run: %+v", o)
	}
	if j.Usage.Sum[usage.CPU].String() != "54321" || j.Usage.Sum[usage.MemoryPeak].String() != "9" || j.Usage.Quality.Get(usage.MemoryPeak) != usage.Apportioned ||
		j.Length != 2*time.Hour || j.State != query.Ended || j.Exit == nil || *j.Exit != 1 || j.Node != "name-a" || j.NodeID != "a" {
		t.Errorf("the outer run: %+v", j)
	}
	// Of a range in which it used a part, it is the same.
	part := query.Query{From: job.Ended, To: job.Ended.Add(time.Minute), Scope: query.Scope{Projects: []string{"p"}}}
	if got := b.query(query.RunQuery{Query: part}); len(got) != 1 || cmp.Diff(got[0], j, sums) != "" {
		t.Errorf("in a range of one minute: %s", cmp.Diff(got, list[1:], sums))
	}
	for want, q := range map[string]query.RunQuery{
		string(job.ID):   {Failed: true},
		string(other.ID): {ID: string(other.ID[:7])},
		"":               {ID: string(other.ID[:7]), Failed: true},
	} {
		var ids []string
		for _, r := range b.query(q) {
			ids = append(ids, string(r.ID))
		}
		if strings.Join(ids, " ") != want {
			t.Errorf("%+v: %v, want %s", q, ids, want)
		}
	}
	for _, s := range []query.Scope{{}, {Projects: []string{"q"}}, {Clusters: []string{"d"}}} {
		part.Scope = s
		if got := b.query(query.RunQuery{Query: part}); len(got) > 0 {
			t.Errorf("scope %+v sees %+v", s, got)
		}
	}
}

// testRunOrder: runs are in descending order of their starts, those without one last, and a run that
// goes on is measured up to the latest window.
func testRunOrder(t *testing.T, dsn string) {
	b := openRuns(t, dsn)
	now := time.Now().UTC().Truncate(time.Minute)
	var names []batch.Name
	var rows []batch.Minute
	for i, c := range []struct{ start, end time.Duration }{{0, 0}, {-50 * time.Minute, 0}, {-90 * time.Minute, -80 * time.Minute}, {-40 * time.Minute, -30 * time.Minute}, {-20 * time.Minute, 0}} {
		n := named(fmt.Sprint(i))
		if c.start < 0 {
			n.Started = now.Add(c.start)
		}
		if c.end < 0 {
			n.Ended = now.Add(c.end)
		}
		last := now.Add(-time.Minute)
		if i == 1 {
			last = now.Add(-25 * time.Minute)
		}
		names, rows = append(names, n), append(rows, cpuRow(&n, last, 5, 5))
	}
	b.send(names, rows...)
	var got []string
	for _, r := range b.query(query.RunQuery{}) {
		got = append(got, fmt.Sprint(r.Key, " ", r.State, " ", r.Length))
	}
	want := []string{"4 running 20m0s", "3 ended 10m0s", "1 unknown 10s", "2 ended 10m0s", "0 running 10s"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("runs (-want +got):\n%s", d)
	}
}

// testRunMarks: a run is compared with the 20 successful runs of its job before it, wherever the page
// begins and whatever its filters are; runs that failed, of other jobs, users and projects, and later ones
// are not compared with.
func testRunMarks(t *testing.T, dsn string) {
	b := openRuns(t, dsn)
	base := Day.AddDate(0, 0, 1)
	var names []batch.Name
	var rows []batch.Minute
	add := func(key string, start, length time.Duration, exit int, cpu int64, change func(*batch.Name)) batch.Name {
		n := named(key)
		n.Job, n.User, n.Started, n.Ended, n.Exit = "j", "u", base.Add(start), base.Add(start+length), &exit
		if change != nil {
			change(&n)
		}
		names, rows = append(names, n), append(rows, cpuRow(&n, n.Started, cpu, 100))
		return n
	}
	for i := range 30 { // of 1 s of CPU time, the older ones of 9 s
		cpu := int64(1e9) + int64(i%5)*1e7
		if i < 10 {
			cpu = 9e9
		}
		add(fmt.Sprint("ok", i), time.Duration(i)*time.Minute, time.Second, 0, cpu, nil)
		add(fmt.Sprint("failed", i), time.Duration(i)*time.Minute, time.Minute, 1, 5e9, nil)
		add(fmt.Sprint("user", i), time.Duration(i)*time.Minute, time.Hour, 0, 5e9, func(n *batch.Name) { n.User = "v" })
		add(fmt.Sprint("job", i), time.Duration(i)*time.Minute, time.Hour, 0, 5e9, func(n *batch.Name) { n.Job = "k" })
	}
	late := add("late", 40*time.Minute, time.Second, 3, 14e8, nil)
	add("later", 50*time.Minute, time.Second, 0, 20e9, nil)
	add("running", 60*time.Minute, 0, 0, 1, func(n *batch.Name) { n.Ended, n.Exit = time.Time{}, nil })
	few := add("few", 4*time.Minute+30*time.Second, time.Second, 0, 1, nil)
	b.send(names, rows...)
	byID := map[workload.ID]query.Run{}
	all := b.query(query.RunQuery{})
	for _, r := range all {
		byID[r.ID] = r
	}
	q := query.RunQuery{Failed: true}
	q.From, q.To, q.Scope.All, q.Limit = base.Add(40*time.Minute), base.Add(41*time.Minute), true, 1
	one := b.query(q)
	if len(one) != 1 || one[0].ID != late.ID || cmp.Diff(one[0], byID[late.ID], sums) != "" {
		t.Fatalf("alone: %+v, in the list %+v", one, byID[late.ID])
	}
	got := map[query.RunFigure]query.Comparison{}
	for _, c := range one[0].Comparisons {
		got[c.Figure] = c
	}
	if c := got[query.RunCPU]; len(got) != 3 || c.Sample != 20 || c.Median != 1.02 || !c.Marked || c.Value != 1.4 {
		t.Errorf("CPU time: %+v", got)
	}
	if c := got[query.RunPeak]; c.Marked || c.Median != 100 {
		t.Errorf("peak: %+v", c)
	}
	if c := got[query.RunLength]; c.Marked || c.Median != 1 {
		t.Errorf("length: %+v", c)
	}
	for _, r := range all {
		if n := len(r.Comparisons); (r.Key == "running" || r.ID == few.ID || r.Key == "ok4") && (n > 0) != (r.ID == few.ID) {
			t.Errorf("%s has %d comparisons", r.Key, n)
		}
	}
}

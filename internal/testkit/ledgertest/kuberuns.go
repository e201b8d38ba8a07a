package ledgertest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
)

// A kubeRunBook books pods of Jobs, and what they use.
type kubeRunBook struct {
	t     *testing.T
	l     *ledger.Ledger
	marks map[string]batch.Mark
}

func openKubeRuns(t *testing.T, dsn string) *kubeRunBook {
	b := &kubeRunBook{t, Open(t, dsn), map[string]batch.Mark{}}
	for id, cluster := range map[string]string{"a": "c", "b": "c", "x": "d"} {
		if err := b.l.PutNode(t.Context(), registry.Node{ID: id, Cluster: cluster, Name: "name-" + id, MachineID: id, Boot: "boot", At: Day}); err != nil {
			t.Fatal(err)
		}
		b.marks[id] = batch.Mark{Next: 1}
	}
	return b
}

// podOf returns a pod of a Job, with one container.
func podOf(uid, node, namespace, job string) pod.Pod {
	return pod.Pod{UID: uid, Namespace: namespace, Name: "pod-" + uid, Job: namespace + "/cronjob/report", RunUID: job, RunName: "report-" + job, Node: node,
		Containers: map[string]string{"id-" + uid: "main"}, Created: Day}
}

// pods books pods of a cluster, and runs Jobs of it.
func (b *kubeRunBook) pods(cluster string, pods ...pod.Pod) {
	b.t.Helper()
	if err := Try(b.t, func() error { return b.l.BookPods(b.t.Context(), pod.Lease{Cluster: cluster}, pods, Day) }); err != nil {
		b.t.Fatal(err)
	}
}

func (b *kubeRunBook) runs(cluster string, runs ...pod.Run) {
	b.t.Helper()
	if err := Try(b.t, func() error { return b.l.BookRuns(b.t.Context(), pod.Lease{Cluster: cluster}, runs) }); err != nil {
		b.t.Fatal(err)
	}
}

// uses books CPU time of a pod and of its container, and returns the name of the container.
func (b *kubeRunBook) uses(node, uid string, at time.Time, ns int64, others ...func(container *batch.Name) (batch.Name, int64)) batch.Name {
	b.t.Helper()
	p := batch.Name{ID: workload.NewID(node, workload.Pod, uid), Kind: workload.Pod, Key: uid}
	c := batch.Name{ID: workload.NewID(node, workload.Container, "id-"+uid), Kind: workload.Container, Key: "id-" + uid, Parent: p.ID}
	mark := b.marks[node]
	e := Entry(node, batch.Stream(fmt.Appendf(nil, "%-16s", node)), mark, 0, 0)
	e.Names = []batch.Name{p, c}
	e.Minutes = []batch.Minute{cpuRow(&p, at, 1, 1), cpuRow(&c, at, ns, ns)}
	for _, other := range others {
		n, ns := other(&c)
		e.Names, e.Minutes = append(e.Names, n), append(e.Minutes, cpuRow(&n, at, ns, 2))
	}
	e.Through = at.Truncate(time.Minute).Add(time.Minute)
	book(b.t, b.l, batch.Accepted, e)
	b.marks[node] = batch.Mark{Next: mark.Next + 1, Last: e.Hash}
	return c
}

// list returns the runs by name, those without one by job.
func (b *kubeRunBook) list(change func(*query.RunQuery)) map[string]query.Run {
	b.t.Helper()
	q := query.RunQuery{Query: query.Query{From: Day.AddDate(0, 0, -1), To: time.Now(), Scope: query.Scope{All: true}}}
	if change != nil {
		change(&q)
	}
	list, err := b.l.Runs(b.t.Context(), q)
	if err != nil {
		b.t.Fatal(err)
	}
	got := map[string]query.Run{}
	for _, r := range list {
		if _, twice := got[r.Name.Name]; twice {
			b.t.Errorf("run %q is in the list twice", r.Name.Name)
		}
		got[r.Name.Name] = r
	}
	return got
}

// testKubeRuns: a Job of Kubernetes is one run with the use of all its pods, whatever comes first, and of no other ones.
func testKubeRuns(t *testing.T, dsn string) {
	b := openKubeRuns(t, dsn)
	began := Day.Add(time.Hour)
	job := pod.Run{UID: "1", Namespace: "shop", Started: began}
	b.pods("c", podOf("p1", "a", "shop", "1"))
	b.uses("a", "p1", began, 20, func(c *batch.Name) (batch.Name, int64) {
		return batch.Name{ID: workload.NewID("a", workload.Path, "inner"), Kind: workload.Path, Key: "inner", Parent: c.ID}, 300
	}, func(c *batch.Name) (batch.Name, int64) { // of mete run in the container: a run of its own
		return batch.Name{ID: workload.NewID("a", workload.Job, "own"), Kind: workload.Job, Key: "own", Name: "own", Job: "own", Parent: c.ID}, 5000
	})
	b.uses("b", "p2", began.Add(30*time.Minute), 40000)
	b.runs("c", job)
	b.pods("c", podOf("p2", "b", "shop", "1"), podOf("p3", "b", "shop", "2"))
	b.uses("b", "p3", began.Add(40*time.Minute), 7)
	// Pods of another namespace, and of another cluster, that say they are of this Job.
	b.pods("c", podOf("p4", "b", "evil", "1"))
	b.pods("d", podOf("p5", "x", "shop", "1"))
	b.uses("b", "p4", began.Add(41*time.Minute), 8)
	b.uses("x", "p5", began.Add(50*time.Minute), 9)
	in := func(cluster, namespace string) func(*query.RunQuery) {
		return func(q *query.RunQuery) {
			q.Scope = query.Scope{Clusters: []string{cluster}}
			q.Where = map[query.Dimension][]string{query.ByNamespace: {namespace}}
		}
	}
	checkSum := func(when string, got map[string]query.Run, want map[string]string) {
		t.Helper()
		sums := map[string]string{}
		for name, r := range got {
			sums[name] = r.Usage.Sum[usage.CPU].String()
		}
		if !maps.Equal(sums, want) {
			t.Errorf("%s: %v, want %v", when, sums, want)
		}
	}
	const whole = "40322" // of p1 and p2, with what is in p1's container
	checkSum("in the namespace", b.list(in("c", "shop")), map[string]string{"report-1": whole, "report-2": "8"})
	checkSum("in another namespace", b.list(in("c", "evil")), map[string]string{"report-1": "9"})
	checkSum("in another cluster", b.list(in("d", "shop")), map[string]string{"report-1": "10"})
	checkSum("of mete run", b.list(func(q *query.RunQuery) { q.Where = map[query.Dimension][]string{query.ByJob: {"own"}} }), map[string]string{"own": "5000"})
	checkSum("on one of its nodes", b.list(func(q *query.RunQuery) { q.Where = map[query.Dimension][]string{query.ByNode: {"name-a"}} }), map[string]string{"report-1": whole, "own": "5000"})
	checkSum("in a minute of it", b.list(func(q *query.RunQuery) { q.From, q.To = began, began.Add(time.Minute) }), map[string]string{"report-1": whole, "own": "5000"})
	checkSum("of the kind", b.list(func(q *query.RunQuery) {
		in("c", "shop")(q)
		q.Where[query.ByKind] = []string{"kube-job"}
	}), map[string]string{"report-1": whole, "report-2": "8"})
	r := b.list(in("c", "shop"))["report-1"]
	if r.ID != workload.NewRunID("c", "shop", "1") || r.Kind != workload.KubeJob || r.Job != "shop/cronjob/report" || r.Nodes != 2 || r.Node != "" || r.NodeID != "" ||
		!r.Started.Equal(began) || r.State != query.EndUnknown || r.Exit != nil {
		t.Errorf("the run: %+v", r)
	}
	if one := b.list(in("c", "shop"))["report-2"]; one.Nodes != 1 || one.Node != "name-b" || one.NodeID != "b" || !one.Started.IsZero() || one.Length != time.Minute {
		t.Errorf("the run on one node: %+v", one)
	}
	checkSum("by its id", b.list(func(q *query.RunQuery) { q.ID = string(r.ID[:9]) }), map[string]string{"report-1": whole})

	// A server below of another cluster that sends workloads as parts of this run.
	if _, err := DB(t, dsn).ExecContext(t.Context(), "UPDATE workload SET run = (SELECT max(run) FROM workload WHERE run_name = 'report-1' AND namespace = 'shop' AND node = (SELECT id FROM node WHERE node_id = 'a')) "+
		"WHERE run <> '' AND node = (SELECT id FROM node WHERE node_id = 'x')"); err != nil {
		t.Fatal(err)
	}
	checkSum("with the id in another cluster", b.list(in("c", "shop")), map[string]string{"report-1": whole, "report-2": "8"})
	checkSum("in that cluster", b.list(in("d", "shop")), map[string]string{"report-1": "10"})

	// It fails: so it is in the list of these.
	job.Ended, job.Exit, job.Failed = began.Add(35*time.Minute), new(3), began.Add(34*time.Minute)
	b.runs("c", job)
	failed := func(q *query.RunQuery) { q.Failed = true }
	checkSum("failed", b.list(failed), map[string]string{"report-1": whole})
	if r := b.list(failed)["report-1"]; r.State != query.Ended || r.Length != 35*time.Minute || r.Exit == nil || *r.Exit != 3 {
		t.Errorf("the run that failed: %+v", r)
	}
	// The pod that had the exit code is gone, and one that failed earlier is not; rows are folded. An API server that is behind
	// says that it runs, and one pod was left by its Job.
	for _, exit := range []struct {
		code   int
		failed time.Time
	}{{1, time.Time{}}, {2, began.Add(33 * time.Minute)}} {
		job.Exit, job.Failed = &exit.code, exit.failed
		b.runs("c", job)
	}
	b.runs("c", pod.Run{UID: "1", Namespace: "shop", Started: began.Add(time.Minute)})
	left := podOf("p2", "b", "shop", "")
	left.RunName = ""
	b.pods("c", left)
	fold(t, b.l, Day.Add(50*time.Hour))
	checkSum("folded", b.list(failed), map[string]string{"report-1": whole})
	if r := b.list(failed)["report-1"]; *r.Exit != 3 {
		t.Errorf("the exit code became %d", *r.Exit)
	}
	// The same again changes nothing, and another end what workloads say of it.
	db := reader{t, DB(t, dsn)}
	rev := db.number("SELECT max(rev) FROM workload")
	b.runs("c", job)
	if again := db.number("SELECT max(rev) FROM workload"); again != rev {
		t.Errorf("revision %d after the same Job again, want %d", again, rev)
	}
	job.Ended, job.Exit = job.Ended.Add(time.Minute), new(0)
	b.runs("c", job)
	if r := b.list(in("c", "shop"))["report-1"]; r.Length != 36*time.Minute || !r.IsSuccess() {
		t.Errorf("with another end: %+v", r)
	}
	live, err := b.l.LiveRuns(t.Context(), "c")
	if err != nil || len(live) != 1 || live[0].UID != "1" {
		t.Errorf("live Jobs: %+v, %v", live, err)
	}
	if err := b.l.RunsGone(t.Context(), pod.Lease{Cluster: "c"}, live, Day.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if live, err := b.l.LiveRuns(t.Context(), "c"); err != nil || len(live) != 0 {
		t.Errorf("live Jobs after they were deleted: %+v, %v", live, err)
	}
	stale := pod.Lease{Cluster: "c", Number: 7}
	for what, err := range map[string]error{"booking": b.l.BookRuns(t.Context(), stale, []pod.Run{job}), "deleted": b.l.RunsGone(t.Context(), stale, live, Day)} {
		if what == "booking" && !errors.Is(err, fault.ErrConflict) {
			t.Errorf("%s with another server's lease: %v", what, err)
		}
	}
}

// testKubeRunMarks: runs of Jobs are compared with earlier ones, and pages of them are the same list.
func testKubeRunMarks(t *testing.T, dsn string) {
	b := openKubeRuns(t, dsn)
	var runs []pod.Run
	for i := range 9 {
		uid, at := fmt.Sprint(i), Day.Add(time.Duration(i)*time.Hour)
		cpu, exit := int64(1e9)+int64(i)*1e6, 0
		switch i {
		case 7:
			cpu, exit = 8e9, 1 // it is not compared with
		case 8:
			cpu = 2e9
		}
		b.pods("c", podOf("p"+uid, "a", "shop", uid))
		b.uses("a", "p"+uid, at, cpu)
		runs = append(runs, pod.Run{UID: uid, Namespace: "shop", Started: at, Ended: at.Add(50 * time.Second), Exit: &exit})
	}
	b.runs("c", runs...)
	all := b.list(nil)
	var marks []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		r := all[name]
		for _, c := range r.Comparisons {
			if c.Marked {
				marks = append(marks, fmt.Sprintf("%s %d %d", name, c.Figure, c.Sample))
			}
		}
	}
	if want := []string{"report-7 0 7", "report-7 1 7", "report-8 0 7", "report-8 1 7"}; !slices.Equal(marks, want) {
		t.Errorf("marks %v, want %v", marks, want)
	}
	q := query.RunQuery{Query: query.Query{From: Day, To: time.Now(), Scope: query.Scope{All: true}, Limit: 2}}
	var pages []query.Run
	for {
		page, err := b.l.Runs(t.Context(), q)
		if err != nil || len(page) > 2 {
			t.Fatalf("a page of %d runs, %v", len(page), err)
		}
		if len(page) == 0 {
			break
		}
		pages = append(pages, page...)
		q.After = page[len(page)-1].RunKey()
	}
	var order []string
	for _, r := range pages {
		order = append(order, strings.TrimPrefix(r.Name.Name, "report-"))
		if d := cmp.Diff(all[r.Name.Name], r, sums); d != "" {
			t.Errorf("on a page of two (-list +page):\n%s", d)
		}
	}
	if got := strings.Join(order, ""); got != "876543210" {
		t.Errorf("pages have the runs %s", got)
	}
}

// testKubeRunLarge: the end of a Job with more pods than one transaction writes is in the workloads of all of them, also if the
// writing stopped between two transactions.
func testKubeRunLarge(t *testing.T, dsn string) {
	b := openKubeRuns(t, dsn)
	const count = 1010
	var pods []pod.Pod
	for i := range count {
		p := podOf(fmt.Sprintf("p%04d", i), "a", "shop", "1")
		p.Containers = nil
		pods = append(pods, p)
	}
	b.pods("c", pods...)
	at := Day.Add(time.Hour)
	for _, i := range []int{0, 499, 500, 999, count - 1} {
		b.uses("a", pods[i].UID, at, 1)
	}
	db := reader{t, DB(t, dsn)}
	const without = "SELECT count(*) FROM workload WHERE kind = 'pod' AND run_ended_ns = 0"
	job := pod.Run{UID: "1", Namespace: "shop", Started: at, Ended: at.Add(time.Minute), Exit: new(0)}
	b.runs("c", job)
	if n := db.number(without); n != 0 {
		t.Errorf("%d workloads of pods do not know that their Job ended", n)
	}
	// A server that stopped after 500 pods: another one goes on.
	for _, do := range []string{"UPDATE workload SET run_ended_ns = 0 WHERE kind = 'pod'", "UPDATE kube_job SET placed = (SELECT id FROM workload WHERE kind = 'pod' AND key = 'p0499')"} {
		if _, err := db.db.ExecContext(t.Context(), do); err != nil {
			t.Fatal(err)
		}
	}
	b.runs("c", job)
	if n := db.number(without); n != 2 {
		t.Errorf("%d workloads do not know it after the rest was written, want the 2 of the first 500 pods", n)
	}
}

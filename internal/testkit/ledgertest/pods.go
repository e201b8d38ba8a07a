package ledgertest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
)

// testPods: workloads are named by the pods of their cluster, whichever come first, and by nothing else.
func testPods(t *testing.T, dsn string) {
	l := Open(t, dsn)
	uid, known, other := "3f0e0d5a-2f2c-4b8e-9d0a-5a1e4f6b7c8d", strings.Repeat("a", 64), strings.Repeat("b", 64)
	web := pod.Pod{UID: uid, Namespace: "shop", Name: "web-1", Job: "shop/deployment/web", Node: "n1",
		Labels: map[string]string{"team": "x"}, Containers: map[string]string{known: "app"}, Created: Day}
	m := minuteOf(Day)
	db := reader{t, DB(t, dsn)}
	// send books what a pod and its containers used on a node.
	send := func(node string) {
		p := batch.Name{ID: workload.NewID(node, workload.Pod, uid), Kind: workload.Pod, Key: uid}
		names := []batch.Name{p}
		for _, id := range []string{known, other} {
			names = append(names, batch.Name{ID: workload.NewID(node, workload.Container, id), Kind: workload.Container, Key: id, Parent: p.ID})
		}
		// A job that says it has the key of the container.
		names = append(names, batch.Name{ID: workload.NewID(node, workload.Job, known), Kind: workload.Job, Key: known, Parent: p.ID})
		if node == "late" {
			slices.Reverse(names) // containers may be named before their pod
		}
		mark := batch.Mark{Next: 1}
		for _, n := range names {
			short, _ := workload.ShortIDOf(n.ID)
			e := Entry(node, batch.Stream(fmt.Appendf(nil, "%-16s", node)), mark, short, 1e9, m+1)
			e.Names = []batch.Name{n}
			mark = batch.Mark{Next: mark.Next + 1, Last: e.Hash}
			book(t, l, batch.Accepted, e)
		}
	}
	put := func(id, cluster, machine string) {
		if err := l.PutNode(t.Context(), registry.Node{ID: id, Cluster: cluster, Name: id, MachineID: machine, Boot: "boot", At: Day}); err != nil {
			t.Fatal(err)
		}
	}
	at := Day
	bookPods := func(cluster string, pods ...pod.Pod) {
		t.Helper()
		if err := Try(t, func() error { return l.BookPods(t.Context(), pod.Lease{Cluster: cluster}, pods, at) }); err != nil {
			t.Fatal(err)
		}
	}
	// places returns where the workloads of a node belong, by kind and key.
	places := func(node string) map[string]string {
		got := map[string]string{}
		db.rows(func(row map[string]any) {
			place := fmt.Sprintf("%v %v %v %v", row["namespace"], row["pod"], row["container"], row["job"])
			id := row["id"].(int64)
			db.rows(func(row map[string]any) { place += fmt.Sprintf(" %v=%v", row["key"], row["value"]) }, fmt.Sprintf("SELECT key, value FROM workload_label WHERE workload = %d ORDER BY key", id))
			got[fmt.Sprintf("%v %.1s", row["kind"], row["key"])] = place
		}, fmt.Sprintf("SELECT w.* FROM workload w JOIN node n ON n.id = w.node WHERE n.node_id = '%s'", node))
		return got
	}
	check := func(when, node string, want map[string]string) {
		t.Helper()
		if got := places(node); !maps.Equal(got, want) {
			t.Errorf("%s: node %s has %v, want %v", when, node, got, want)
		}
	}
	nothing := map[string]string{"pod 3": "   ", "container a": "   ", "container b": "   ", "job a": "   "}
	named := map[string]string{"pod 3": "shop web-1  shop/deployment/web team=x", "container a": "shop web-1 app shop/deployment/web team=x",
		"container b": "shop web-1  shop/deployment/web team=x", "job a": "   "}

	put("first", "c", "1") // its rows come before the pod
	put("late", "c", "2")  // after it
	put("elsewhere", "d", "3")
	put("jobs", "c", registry.JobsMachineID("4"))
	send("first")
	send("elsewhere")
	send("jobs")
	fold(t, l, Day.Add(25*time.Hour))
	check("before the pod", "first", nothing)
	bookPods("c", web)
	send("late")
	put("remote", "d", "5")
	send("remote")
	put("later jobs", "c", registry.JobsMachineID("6"))
	send("later jobs")
	for node, want := range map[string]map[string]string{"first": named, "late": named, "elsewhere": nothing, "remote": nothing, "jobs": nothing, "later jobs": nothing} {
		check("with the pod", node, want)
	}
	sums := func() map[string]string {
		t.Helper()
		fold(t, l, Day.Add(26*time.Hour))
		a, err := l.Usage(t.Context(), query.Query{From: Day, To: Day.Add(24 * time.Hour), By: []query.Dimension{query.ByNamespace, query.ByJob}, Scope: query.Scope{All: true}})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for i := range a.Groups {
			g := &a.Groups[i]
			got[fmt.Sprint(g.Keys)] = g.Usage.Sum[usage.CPU].String()
		}
		return got
	}
	if got, want := sums(), map[string]string{"[shop shop/deployment/web]": "6000000000", "[ ]": "18000000000"}; !maps.Equal(got, want) {
		t.Errorf("by namespace and job %v, want %v", got, want)
	}
	testPlaced(t, l, named)
	// Names that agents repeat change nothing.
	rev := db.number("SELECT max(rev) FROM workload WHERE namespace <> ''")
	bookPods("c", web)
	if again := db.number("SELECT max(rev) FROM workload WHERE namespace <> ''"); again != rev {
		t.Errorf("rows are of revision %d after the same pod again, want %d", again, rev)
	}
	// A status names the other container, and a label changes.
	web.Job, web.Labels, web.Containers = "shop/checkout", nil, map[string]string{other: "proxy"}
	bookPods("c", web)
	moved := map[string]string{"pod 3": "shop web-1  shop/checkout", "container a": "shop web-1 app shop/checkout",
		"container b": "shop web-1 proxy shop/checkout", "job a": "   "}
	check("changed", "first", moved)
	check("changed", "late", moved)
	if got, want := sums(), map[string]string{"[shop shop/checkout]": "6000000000", "[ ]": "18000000000"}; !maps.Equal(got, want) {
		t.Errorf("by namespace and job after a change %v, want %v", got, want)
	}
	if n := db.number("SELECT sum(cpu_lo) FROM group_day WHERE job = 'shop/checkout'"); n != 6e9 {
		t.Errorf("the groups of the day have %d ns, want 6e9", n)
	}
	testHostilePods(t, l, web, func(when string) {
		t.Helper()
		check(when, "first", moved)
	})
	testPodEnds(t, l, db, web)
	testRestarts(t, l, db)
}

// testRestarts: the containers of a pod that crashes again and again do not fill the ledger.
func testRestarts(t *testing.T, l *ledger.Ledger, db reader) {
	p := pod.Pod{UID: "00000000-0000-0000-0000-000000000099", Namespace: "shop", Name: "crash", Job: "shop/pod/crash", Node: "n1"}
	count := func() int64 {
		return db.number("SELECT count(*) FROM pod_container c JOIN pod p ON p.id = c.pod WHERE p.name = 'crash'")
	}
	for n := range 410 {
		p.Containers = map[string]string{fmt.Sprintf("%064d", n): "app", fmt.Sprintf("%064d", n+1): "app"}
		if err := l.BookPods(t.Context(), pod.Lease{Cluster: "restarts"}, []pod.Pod{p}, Day); err != nil {
			t.Fatal(err)
		}
		if n == 100 && count() != 102 {
			t.Errorf("%d containers after 101 restarts, want 102", count())
		}
	}
	last := db.number(fmt.Sprintf("SELECT count(*) FROM pod_container WHERE container = '%064d'", 410))
	if n := count(); n > 202 || last != 1 {
		t.Errorf("%d containers after 410 restarts, and %d of the last one", n, last)
	}
}

// testHostilePods: no pod takes the names of another one by its UID, ends it, or takes its containers. A pod
// whose owner is gone keeps its job.
func testHostilePods(t *testing.T, l *ledger.Ledger, web pod.Pod, check func(when string)) {
	ctx := t.Context()
	thief := web
	thief.Namespace, thief.Name, thief.Job = "evil", "thief", "evil/pod/thief"
	if err := l.BookPods(ctx, pod.Lease{Cluster: "c"}, []pod.Pod{thief}, Day); err != nil {
		t.Fatal(err)
	}
	check("another pod with the UID")
	if err := l.EndPods(ctx, pod.Lease{Cluster: "c"}, []pod.Pod{thief}, Day); err != nil {
		t.Fatal(err)
	}
	if live, err := l.LivePods(ctx, "c"); err != nil || len(live) != 1 || live[0].Name != web.Name {
		t.Errorf("after another pod with its UID ended, %v live, %v", live, err)
	}
	thief.UID = "00000000-0000-0000-0000-000000000002"
	if err := l.BookPods(ctx, pod.Lease{Cluster: "c"}, []pod.Pod{thief}, Day); err != nil {
		t.Fatal(err)
	}
	check("another pod with the containers")
	orphan := web
	orphan.Job, orphan.OwnerGone = "shop/replicaset/web-5f", true
	if err := errors.Join(l.BookPods(ctx, pod.Lease{Cluster: "c"}, []pod.Pod{orphan}, Day), l.EndPods(ctx, pod.Lease{Cluster: "c"}, []pod.Pod{thief}, Day)); err != nil {
		t.Fatal(err)
	}
	check("without its owner")
}

// testPlaced: the names of pods' parts are found by node, as those that changed and one by one.
func testPlaced(t *testing.T, l *ledger.Ledger, want map[string]string) {
	names, rev, err := l.Placed(t.Context(), 0)
	if err != nil || len(names) != 2 || len(names["first"]) != 3 || len(names["late"]) != 3 {
		t.Fatalf("names of pods: %v, %v", names, err)
	}
	uids := map[workload.ID]string{} // by pod
	for _, n := range names["late"] {
		if n.Kind == workload.Pod {
			uids[n.ID] = n.Key
		}
	}
	for _, n := range names["late"] {
		short, _ := workload.ShortIDOf(n.ID)
		alone, err := l.Names(t.Context(), "late", []workload.ShortID{short})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []batch.Name{n, alone[short]} {
			place := fmt.Sprintf("%s %s %s %s team=x", n.Labels[batch.LabelNamespace], n.Labels[batch.LabelPod], n.Labels[batch.LabelContainer], n.Job)
			if what := fmt.Sprintf("%v %.1s", n.Kind, n.Key); place != want[what] {
				t.Errorf("%s is %q, want %q", what, place, want[what])
			}
			if uid := uids[n.ID] + uids[n.Parent]; n.Labels[batch.LabelPodUID] != uid {
				t.Errorf("%v %.1s is of pod %q, want %q", n.Kind, n.Key, n.Labels[batch.LabelPodUID], uid)
			}
			if shown := map[string]string{"pod 3": "web-1", "container a": "web-1/app", "container b": ""}[fmt.Sprintf("%v %.1s", n.Kind, n.Key)]; n.Name != shown {
				t.Errorf("%v %.1s is shown as %q, want %q", n.Kind, n.Key, n.Name, shown)
			}
		}
	}
	for _, after := range []int64{-1, rev, rev + 1} {
		if names, now, err := l.Placed(t.Context(), after); err != nil || len(names) != 0 || now != rev {
			t.Errorf("after %d: %v of revision %d, %v; want none of %d", after, names, now, err, rev)
		}
	}
}

// testPodEnds: pods that ended are dropped with their containers, but names stay.
func testPodEnds(t *testing.T, l *ledger.Ledger, db reader, web pod.Pod) {
	ctx := t.Context()
	more := web
	more.UID, more.Containers = "00000000-0000-0000-0000-000000000001", nil
	// Text that no database or terminal takes.
	more.Name, more.Labels = "x\x00\xff", map[string]string{"a\x00": "b\x00"}
	if err := l.BookPods(ctx, pod.Lease{Cluster: "c"}, []pod.Pod{more}, Day); err != nil {
		t.Fatal(err)
	}
	live := func() []string {
		pods, err := l.LivePods(ctx, "c")
		if err != nil {
			t.Fatal(err)
		}
		var uids []string
		for i := range pods {
			uids = append(uids, pods[i].UID)
		}
		return uids
	}
	if got, want := live(), []string{more.UID, web.UID}; !slices.Equal(got, want) {
		t.Errorf("live pods %v, want %v", got, want)
	}
	if err := Try(t, func() error { return l.EndPods(ctx, pod.Lease{Cluster: "c"}, []pod.Pod{web, {UID: "unknown"}}, Day) }); err != nil {
		t.Fatal(err)
	}
	if got, want := live(), []string{more.UID}; !slices.Equal(got, want) {
		t.Errorf("live pods %v, want %v", got, want)
	}
	thief := web
	thief.Namespace, thief.Name, thief.Job = "evil", "thief", "evil/pod/thief"
	if err := l.BookPods(ctx, pod.Lease{Cluster: "c"}, []pod.Pod{thief}, Day); err != nil {
		t.Fatal(err)
	}
	if n := db.number("SELECT count(*) FROM workload WHERE namespace = 'evil'"); n != 0 {
		t.Errorf("a pod with the UID of one that ended has %d of its workloads", n)
	}
	for _, c := range []struct {
		age              time.Duration
		pods, containers int64
	}{{7 * 24 * time.Hour, 3, 2}, {9 * 24 * time.Hour, 1, 0}} {
		if err := l.Retain(ctx, Day.Add(c.age)); err != nil {
			t.Fatal(err)
		}
		if pods, containers := db.number("SELECT count(*) FROM pod"), db.number("SELECT count(*) FROM pod_container"); pods != c.pods || containers != c.containers {
			t.Errorf("after %v %d pods and %d containers are kept, want %d and %d", c.age, pods, containers, c.pods, c.containers)
		}
	}
	if n := db.number("SELECT count(*) FROM workload WHERE namespace = 'shop'"); n != 6 {
		t.Errorf("%d workloads are named, want 6", n)
	}
}

// testPodLease: one server at a time writes pods of a cluster. One that was stopped for longer than its lease lasts
// writes nothing afterwards.
func testPodLease(t *testing.T, dsn string) {
	ctx := t.Context()
	l := Open(t, dsn)
	lease := func(cluster, holder string, number int64, now, until time.Duration) pod.Lease {
		t.Helper()
		got, err := l.LeasePods(ctx, pod.Lease{Cluster: cluster, Holder: holder, Number: number}, Day.Add(now), Day.Add(until))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for i, c := range []struct {
		cluster, holder string
		number          int64
		now, until      time.Duration
		want            pod.Lease
	}{
		{"c", "a", 0, 0, 45, pod.Lease{Cluster: "c", Holder: "a", Number: 1}},
		{"c", "b", 0, 44, 90, pod.Lease{Cluster: "c", Holder: "a"}},            // it has not ended
		{"d", "b", 0, 44, 90, pod.Lease{Cluster: "d", Holder: "b", Number: 1}}, // another cluster
		{"c", "a", 1, 44, 60, pod.Lease{Cluster: "c", Holder: "a", Number: 1}}, // extended
		{"c", "b", 0, 59, 90, pod.Lease{Cluster: "c", Holder: "a"}},
		{"c", "a", 0, 59, 90, pod.Lease{Cluster: "c", Holder: "a", Number: 2}}, // started again
		{"c", "b", 0, 90, 99, pod.Lease{Cluster: "c", Holder: "b", Number: 3}}, // it has ended
		{"c", "a", 2, 91, 99, pod.Lease{Cluster: "c", Holder: "b"}},
		{"c", "b", 3, 95, 95, pod.Lease{Cluster: "c", Holder: "b", Number: 3}}, // given back
		{"c", "a", 0, 95, 200, pod.Lease{Cluster: "c", Holder: "a", Number: 4}},
		{"e", "s\x00\xff", 0, 0, 45, pod.Lease{Cluster: "e", Holder: "s\uFFFD", Number: 1}}, // text that no database takes
		{"e", "s\x00\xff", 0, 1, 45, pod.Lease{Cluster: "e", Holder: "s\uFFFD", Number: 2}},
	} {
		if got := lease(c.cluster, c.holder, c.number, c.now*time.Second, c.until*time.Second); got != c.want {
			t.Errorf("step %d: %+v, want %+v", i, got, c.want)
		}
	}
	web := []pod.Pod{{UID: "u", Namespace: "shop", Name: "web-1", Job: "shop/pod/web-1"}}
	for number := range int64(6) {
		held := pod.Lease{Cluster: "c", Holder: "a", Number: number}
		err := errors.Join(l.BookPods(ctx, held, web, Day), l.EndPods(ctx, held, []pod.Pod{{UID: "other"}}, Day))
		if (err == nil) != (number == 4) || err != nil && !errors.Is(err, fault.ErrConflict) {
			t.Errorf("with lease %d: %v", number, err)
		}
	}
	if live, err := l.LivePods(ctx, "c"); err != nil || len(live) != 1 {
		t.Errorf("%v, %v", live, err)
	}
}

// testPodNamedTwice: a pod's container that its node's container daemon names too, again and again, has the names
// of the pod, and one version.
func testPodNamedTwice(t *testing.T, dsn string) {
	l := Open(t, dsn)
	Node(t, l, "a")
	key := strings.Repeat("a", 64)
	web := []pod.Pod{{UID: "u", Namespace: "shop", Name: "web-1", Job: "shop/pod/web-1", Labels: map[string]string{"team": "x"}, Containers: map[string]string{key: "app"}}}
	if err := l.BookPods(t.Context(), pod.Lease{Cluster: "c"}, web, Day); err != nil {
		t.Fatal(err)
	}
	n := batch.Name{ID: workload.NewID("a", workload.Container, key), Kind: workload.Container, Key: key, Name: "k8s_app", Job: "compose", Labels: map[string]string{"image": "x"}}
	short, _ := workload.ShortIDOf(n.ID)
	mark := batch.Mark{Next: 1}
	for _, minute := range []int64{1, 100, 200} {
		e := Entry("a", batch.Stream{1}, mark, short, 1, minuteOf(Day)+minute)
		e.Names = []batch.Name{n}
		mark = batch.Mark{Next: mark.Next + 1, Last: e.Hash}
		book(t, l, batch.Accepted, e)
	}
	db := reader{t, DB(t, dsn)}
	if n := db.number("SELECT count(*) FROM workload WHERE name = 'web-1/app' AND job = 'shop/pod/web-1'"); n != 1 || db.number("SELECT count(*) FROM workload") != 1 {
		t.Errorf("%d workloads have the name of the pod, of %d", n, db.number("SELECT count(*) FROM workload"))
	}
	if n := db.number("SELECT count(*) FROM workload_label WHERE key = 'team' AND value = 'x'"); n != 1 || db.number("SELECT count(*) FROM workload_label") != 1 {
		t.Errorf("%d labels are the pod's, of %d", n, db.number("SELECT count(*) FROM workload_label"))
	}
}

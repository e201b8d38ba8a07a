package ledgertest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
)

// A reservedCase is a cluster with one node, "worker", and a pod that is scheduled at the start of Day.
type reservedCase struct {
	*testing.T
	l     *ledger.Ledger
	db    reader
	lease pod.Lease
	pod   pod.Pod
}

// testReserved: what pods reserve, in cases that were wrong once or that a user may bring about.
func testReserved(t *testing.T, dsn string) {
	cfg := ledger.Default()
	cfg.Minutes = 24 * time.Hour
	cfg.Quota.Workloads = 50
	l := OpenWith(t, dsn, cfg)
	for i, c := range []struct {
		name string
		run  func(*reservedCase)
	}{
		{"own part", reservedOwnPart}, {"static pod", reservedStatic}, {"settled", reservedSettled}, {"coarse", reservedCoarse}, {"clock behind", reservedBehind}, {"clock back", reservedBack},
		{"quota", reservedQuota}, {"resizes", reservedResizes}, {"name", reservedName}, {"many pods", reservedMany}, {"path", reservedPath},
		{"nodes", reservedNodes}, {"comes again", reservedAgain}, {"without minutes", reservedFloor}, {"gone before", reservedGone},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &reservedCase{T: t, l: l, db: reader{t, DB(t, dsn)}, lease: pod.Lease{Cluster: fmt.Sprint("cluster-", i), Holder: "s"}}
			r.enroll("worker", "worker")
			var err error
			if r.lease, err = l.LeasePods(t.Context(), r.lease, Day, Day); err != nil {
				t.Fatal(err)
			}
			r.pod = pod.Pod{UID: fmt.Sprintf("3f0e0d5a-2f2c-4b8e-9d0a-%012d", i), Namespace: "shop", Name: "web-0", Job: "shop/deployment/web", Node: "worker", Scheduled: Day,
				Reserved: []pod.Reservation{{Container: "app", Levels: pod.Levels{CPU: 1000, CPULimit: pod.NoLimit, MemoryLimit: pod.NoLimit}}}}
			c.run(r)
			findings, err := l.Check(t.Context())
			for _, f := range findings {
				if !strings.HasPrefix(f, "balance") { // what agents send here is less than a machine
					t.Errorf("check: %v", f)
				}
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// id is the id of a node of the case.
func (r *reservedCase) id(node string) string { return r.lease.Cluster + "-" + node }

func (r *reservedCase) enroll(node, name string) {
	r.Helper()
	if err := r.l.PutNode(r.Context(), registry.Node{ID: r.id(node), Name: name, Cluster: r.lease.Cluster, MachineID: r.id(node), At: Day}); err != nil {
		r.Fatal(err)
	}
}

// book books the pod at a time of the day, and end ends it.
func (r *reservedCase) book(at time.Duration) {
	r.Helper()
	r.try(func() error { return r.l.BookPods(r.Context(), r.lease, []pod.Pod{r.pod}, Day.Add(at)) })
}

func (r *reservedCase) end(since, at time.Duration) {
	r.Helper()
	r.pod.Since = Day.Add(since)
	r.try(func() error { return r.l.EndPods(r.Context(), r.lease, []pod.Pod{r.pod}, Day.Add(at)) })
}

// try makes a call, with faults before.
func (r *reservedCase) try(call func() error) {
	r.Helper()
	if err := Try(r.T, call); err != nil {
		r.Fatal(err)
	}
}

// put puts all rows before a time of the day.
func (r *reservedCase) put(until time.Duration) {
	r.Helper()
	r.try(func() error { return putReserved(r.l, r.lease, Day.Add(until), Day.Add(until)) })
}

// want checks for how many CPU seconds the groups of the case reserve in a part of time, as "KEY=SECONDS ...", with "~" after
// what is not known exactly.
func (r *reservedCase) want(when string, from, to time.Duration, by query.Dimension, want string) {
	r.Helper()
	a, err := r.l.Usage(r.Context(), query.Query{From: Day.Add(from), To: Day.Add(to), By: []query.Dimension{by},
		Where: map[query.Dimension][]string{query.ByCluster: {r.lease.Cluster}}, Scope: query.Scope{All: true}})
	if err != nil {
		r.Fatal(err)
	}
	var got []string
	for i := range a.Groups {
		if u := &a.Groups[i].Usage; u.Present.Has(usage.CPUReserved) {
			rough := map[usage.Quality]string{usage.Measured: "", usage.Apportioned: "~"}[u.Quality.Get(usage.CPUReserved)]
			got = append(got, fmt.Sprintf("%s=%d%s", a.Groups[i].Keys[0], u.Sum[usage.CPUReserved].Int64()/1e9, rough))
		}
	}
	slices.Sort(got)
	if text := strings.Join(got, " "); text != want {
		r.Errorf("%s: %s, want %s", when, text, want)
	}
}

// The part that a pod reserves beyond its containers is gone after a resize, and comes again after the next one.
func reservedOwnPart(r *reservedCase) {
	own := pod.Reservation{Levels: pod.Levels{CPU: 900, CPULimit: pod.NoLimit, MemoryLimit: pod.NoLimit}}
	both := []pod.Reservation{{Container: "app", Levels: pod.Levels{CPU: 100, CPULimit: pod.NoLimit, MemoryLimit: pod.NoLimit}}, own}
	alone := r.pod.Reserved
	r.pod.Reserved = both
	r.book(0)
	r.pod.Reserved = alone
	r.book(10 * time.Minute)
	r.put(20 * time.Minute)
	r.want("without the part", 0, 20*time.Minute, query.ByPod, "web-0=1200")
	r.pod.Reserved = both
	r.book(20 * time.Minute)
	r.put(30 * time.Minute)
	r.want("with it again", 0, 30*time.Minute, query.ByPod, "web-0=1800")
}

// A static pod comes again with its UID. A mirror that is deleted is not a pod that ends.
func reservedStatic(r *reservedCase) {
	r.book(0)
	r.end(time.Hour, time.Hour)
	r.book(time.Hour + time.Second)
	r.put(2 * time.Hour)
	r.want("its mirror was deleted", 0, 2*time.Hour, query.ByPod, "web-0=7200")
	r.end(2*time.Hour, 2*time.Hour)
	r.put(20 * time.Hour)
	r.pod.Scheduled = Day.Add(20 * time.Hour)
	r.book(20 * time.Hour)
	r.put(21 * time.Hour)
	r.want("its manifest was put back", 0, 21*time.Hour, query.ByPod, "web-0=10800")
}

// The node of a pod that vanished tells when it ended, and no other one does.
func reservedSettled(r *reservedCase) {
	r.enroll("evil", "evil")
	r.book(0)
	r.put(time.Hour)
	r.end(time.Hour, 11*time.Hour)
	r.put(12 * time.Hour)
	r.want("vanished", 0, 24*time.Hour, query.ByPod, "web-0=21600~") // the middle
	r.want("while it was seen", 0, time.Hour, query.ByPod, "web-0=3600")
	for _, c := range []struct {
		node  string
		ended time.Duration
	}{{"evil", 10 * time.Hour}, {"worker", 2 * time.Hour}} {
		n := batch.Name{ID: workload.NewID(r.id(c.node), workload.Pod, r.pod.UID), Kind: workload.Pod, Key: r.pod.UID, Ended: Day.Add(c.ended)}
		short, _ := workload.ShortIDOf(n.ID)
		e := Entry(r.id(c.node), batch.Stream(fmt.Appendf(nil, "%-16s", r.id(c.node))[:16]), batch.Mark{Next: 1}, short, 1, minuteOf(Day.Add(10*time.Hour)))
		e.Names = []batch.Name{n}
		book(r.T, r.l, batch.Accepted, e)
		r.put(12 * time.Hour)
	}
	r.want("its node saw its end", 0, 24*time.Hour, query.ByPod, "web-0=7200~")
}

// An hour that was put as one row is put again by a server whose clock is behind.
func reservedCoarse(r *reservedCase) {
	r.book(0)
	r.put(4 * time.Hour)
	r.pod.Finished = Day.Add(90 * time.Minute)
	r.book(4 * time.Hour)
	r.put(3*time.Hour + 59*time.Minute)
	r.put(5 * time.Hour)
	r.want("ended at 01:30", 0, 4*time.Hour, query.ByPod, "web-0=5400")
	if n := r.db.number("SELECT count(*) FROM pod WHERE uid = '" + r.pod.UID + "' AND right_minute < 2147483648"); n != 0 {
		r.Error("a pod all whose rows are put is read again each minute")
	}
}

// Another server with a clock that is behind takes over.
func reservedBehind(r *reservedCase) {
	r.book(0)
	r.put(5 * time.Minute)
	r.put(16 * time.Minute)
	r.pod.Job = "shop/other"
	r.book(14 * time.Minute)
	r.put(30 * time.Minute)
	r.pod.Finished = Day.Add(14*time.Minute + 30*time.Second)
	r.book(30 * time.Minute)
	r.put(31 * time.Minute)
	r.want("ended before its job changed", 0, time.Hour, query.ByJob, "shop/deployment/web=870")
	if n := r.db.number("SELECT count(*) FROM " + table("", minuteOf(Day)) + " u JOIN workload w ON w.id = u.workload WHERE u.minute < w.from_minute"); n != 0 {
		r.Errorf("%d rows are of versions that begin later", n)
	}
}

// The clock goes back between two changes.
func reservedBack(r *reservedCase) {
	r.book(0)
	for _, c := range []struct {
		at  time.Duration
		cpu int64
	}{{100 * time.Second, 2000}, {50 * time.Second, 3000}} {
		r.pod.Reserved = []pod.Reservation{{Container: "app", Levels: pod.Levels{CPU: c.cpu, CPULimit: pod.NoLimit, MemoryLimit: pod.NoLimit}}}
		r.book(c.at)
	}
	r.put(3 * time.Minute)
	r.want("100 s of 1, 80 s of 3", 0, 3*time.Minute, query.ByPod, "web-0=340")
}

// Containers that never start take no quota from the workloads of their node, and have a quota.
func reservedQuota(r *reservedCase) {
	for n := range 60 {
		r.pod.Reserved = append(r.pod.Reserved, pod.Reservation{Container: fmt.Sprint("c", n), Levels: pod.Levels{CPU: 1, CPULimit: pod.NoLimit, MemoryLimit: pod.NoLimit}})
	}
	r.book(0)
	r.put(time.Minute)
	r.want("over its quota", 0, time.Hour, query.ByPod, "")
	n := batch.Name{ID: workload.NewID(r.id("worker"), workload.Path, "other"), Kind: workload.Path, Key: "other", Name: "other"}
	short, _ := workload.ShortIDOf(n.ID)
	e := Entry(r.id("worker"), batch.Stream(fmt.Appendf(nil, "%-16s", r.id("worker"))[:16]), batch.Mark{Next: 1}, short, 1e9, minuteOf(Day))
	e.Names = []batch.Name{n}
	book(r.T, r.l, batch.Accepted, e)
	names, err := r.l.Names(r.Context(), r.id("worker"), []workload.ShortID{short})
	if err != nil || names[short].Name != "other" {
		r.Errorf("the workload of an agent is %+v, %v", names[short], err)
	}
}

// A user resizes a pod all the time.
func reservedResizes(r *reservedCase) {
	for n := range 1000 {
		r.pod.Reserved = []pod.Reservation{{Container: "app", Levels: pod.Levels{CPU: int64(1000 + n%2), CPULimit: pod.NoLimit, MemoryLimit: pod.NoLimit}}}
		r.book(time.Duration(n) * time.Second)
	}
	r.put(20 * time.Minute)
	r.want("after 1000 resizes", 0, 20*time.Minute, query.ByPod, "web-0=1201")
	if n := r.db.number("SELECT count(*) FROM reservation r JOIN pod p ON p.id = r.pod WHERE p.uid = '" + r.pod.UID + "'"); n > 201 {
		r.Errorf("%d levels after 1000 resizes", n)
	}
}

// An agent says that it has a carrier.
func reservedName(r *reservedCase) {
	r.book(0)
	mark := batch.Mark{Next: 1}
	key := r.pod.UID + "/"
	n := batch.Name{ID: workload.NewID(r.id("worker"), workload.Container, key), Kind: workload.Container, Key: key}
	short, _ := workload.ShortIDOf(n.ID)
	for i := range 10 {
		e := Entry(r.id("worker"), batch.Stream(fmt.Appendf(nil, "%-16s", r.id("worker"))[:16]), mark, short, 1, minuteOf(Day)+int64(i))
		e.Names = []batch.Name{n}
		mark = batch.Mark{Next: mark.Next + 1, Last: e.Hash}
		book(r.T, r.l, batch.Accepted, e)
	}
	names, err := r.l.Names(r.Context(), r.id("worker"), []workload.ShortID{short})
	if err != nil || len(names[short].Name) > 20 {
		r.Errorf("its name is %q, %v", names[short].Name, err)
	}
}

// A container whose name an agent does not believe is listed: its key has a slash like that of a carrier, and it has a path.
func reservedPath(r *reservedCase) {
	r.book(0)
	const path = "/user.slice/docker-0123456789ab.scope"
	n := batch.Name{ID: workload.NewID(r.id("worker"), workload.Container, path), Kind: workload.Container, Key: r.id("worker") + path, Path: path}
	short, _ := workload.ShortIDOf(n.ID)
	e := Entry(r.id("worker"), batch.Stream(fmt.Appendf(nil, "%-16s", r.id("worker"))[:16]), batch.Mark{Next: 1}, short, 1, minuteOf(Day))
	e.Names = []batch.Name{n}
	book(r.T, r.l, batch.Accepted, e)
	list, err := r.l.Workloads(r.Context(), query.Query{From: Day, To: Day.Add(24 * time.Hour), Scope: query.Scope{All: true}})
	if err != nil || !slices.ContainsFunc(list, func(w query.Workload) bool { return w.Name.Path == path }) {
		r.Errorf("workloads are %+v, %v", list, err)
	}
}

// A pod of which the ledger dropped all but its use comes again.
func reservedAgain(r *reservedCase) {
	r.book(0)
	r.put(time.Hour)
	r.pod.Job = "shop/other"
	r.book(3 * time.Hour)
	r.put(6 * time.Hour)
	r.end(6*time.Hour, 6*time.Hour)
	r.put(7 * time.Hour)
	r.drop(100 * time.Hour)
	r.pod.Scheduled = Day.Add(101 * time.Hour)
	r.book(101 * time.Hour)
	r.put(102 * time.Hour)
	r.want("the first time", 0, 24*time.Hour, query.ByJob, "shop/deployment/web=10800 shop/other=10800")
}

// The server was away for longer than minutes are kept, and the pod ended in an hour with two versions.
func reservedFloor(r *reservedCase) {
	late := 200 * time.Hour
	r.pod.Scheduled = Day.Add(late)
	r.book(late)
	r.put(late + time.Minute)
	r.pod.Job = "shop/other"
	r.book(late + 20*time.Minute)
	r.put(late + time.Hour)
	r.want("with minutes", late, late+time.Hour, query.ByJob, "shop/deployment/web=1800 shop/other=1800")
	r.drop(late + 48*time.Hour)
	r.pod.Finished = Day.Add(late + 50*time.Minute)
	r.book(late + 48*time.Hour)
	r.put(late + 48*time.Hour)
	r.want("ended at 00:50", late, late+time.Hour, query.ByJob, "shop/deployment/web=1800 shop/other=1200")
}

// A pod is gone before a time up to which its rows are put already.
func reservedGone(r *reservedCase) {
	r.book(0)
	r.put(2 * time.Hour)
	r.end(90*time.Minute, 90*time.Minute)
	r.put(3 * time.Hour)
	r.want("gone at 01:30", 0, 3*time.Hour, query.ByPod, "web-0=5400")
}

// There are more pods than a transaction takes, with carriers to make and without, and more rows.
func reservedMany(r *reservedCase) {
	const pods, perNode = 520, 40
	var all []pod.Pod
	for n := range pods {
		p := r.pod
		if p.Node = fmt.Sprint("n", n/perNode); n%perNode == 0 {
			r.enroll(p.Node, p.Node)
		}
		p.UID, p.Name = fmt.Sprintf("%s-%d", p.UID, n), fmt.Sprint("web-", n)
		all = append(all, p)
	}
	if err := r.l.BookPods(r.Context(), r.lease, all, Day); err != nil {
		r.Fatal(err)
	}
	for _, until := range []time.Duration{time.Minute, 2 * time.Minute, 8 * time.Hour} {
		r.put(until)
		r.want("after "+until.String(), 0, 24*time.Hour, query.ByCluster, fmt.Sprintf("%s=%d", r.lease.Cluster, pods*until/time.Second))
	}
}

// The node of a pod is called so, or its agent has seen the pod or another one of the same node of the cluster.
func reservedNodes(r *reservedCase) {
	r.enroll("gone", "n2")
	if err := r.l.RevokeNode(r.Context(), r.id("gone"), Day); err != nil {
		r.Fatal(err)
	}
	for id, n := range map[string]registry.Node{"jobs": {Cluster: r.lease.Cluster, MachineID: registry.JobsMachineID("4")}, "far": {Cluster: r.lease.Cluster + "-far"}} {
		n.ID, n.Name, n.At = r.id(id), "n2", Day
		if err := r.l.PutNode(r.Context(), n); err != nil {
			r.Fatal(err)
		}
	}
	r.enroll("agent", "host2")
	uid := r.pod.UID
	pods := func(minutes time.Duration, want string) {
		r.Helper()
		for i, node := range []string{"n2", "n2", "n3"} {
			r.pod.UID, r.pod.Name, r.pod.Node = fmt.Sprint(uid, i), fmt.Sprint("web-", i), node
			r.book(0)
		}
		r.put(minutes * time.Minute)
		r.want(fmt.Sprint("after minutes: ", int(minutes)), 0, time.Hour, query.ByPod, want)
	}
	pods(1, "")
	mark := batch.Mark{Next: 1}
	for i, c := range []struct {
		pod  string
		want string
	}{{"0", "web-0=120 web-1=120"}, {"2", "web-0=180 web-1=180 web-2=180"}} {
		n := batch.Name{ID: workload.NewID(r.id("agent"), workload.Pod, uid+c.pod), Kind: workload.Pod, Key: uid + c.pod}
		short, _ := workload.ShortIDOf(n.ID)
		e := Entry(r.id("agent"), batch.Stream(fmt.Appendf(nil, "%-16s", r.id("agent"))[:16]), mark, short, 1, minuteOf(Day))
		e.Names = []batch.Name{n}
		mark = batch.Mark{Next: mark.Next + 1, Last: e.Hash}
		book(r.T, r.l, batch.Accepted, e)
		pods(time.Duration(2+i), c.want)
	}
	r.want("by node", 0, time.Hour, query.ByNode, "host2=540")
}

// drop folds all, and drops what is older than it is kept.
func (r *reservedCase) drop(now time.Duration) {
	r.Helper()
	if err := r.l.Fold(r.Context(), Day.Add(now)); err != nil {
		r.Fatal(err)
	}
	if err := r.l.Retain(r.Context(), Day.Add(now)); err != nil {
		r.Fatal(err)
	}
}

// testReservedGuest: the host of a virtual machine reserves nothing for the pods in it. Their reservations stay in all sums when
// use of the machine turns out to be within its host.
func testReservedGuest(t *testing.T, dsn string) {
	s := newHandoverTest(t, dsn)
	for _, id := range []string{"host", "guest"} {
		if err := s.l.PutNode(t.Context(), registry.Node{ID: id, Cluster: "c", Name: id, MachineID: id, At: Day}); err != nil {
			t.Fatal(err)
		}
	}
	lease, err := s.l.LeasePods(t.Context(), pod.Lease{Cluster: "c", Holder: "s"}, Day, Day)
	if err != nil {
		t.Fatal(err)
	}
	at := Day.Add(12 * time.Hour)
	r := &reservedCase{T: t, l: s.l, lease: lease, pod: pod.Pod{UID: "3f0e0d5a-2f2c-4b8e-9d0a-000000000000", Namespace: "shop", Name: "web-0", Job: "shop/deployment/web", Node: "guest", Scheduled: Day,
		Reserved: []pod.Reservation{{Container: "app", Levels: pod.Levels{CPU: 1000, CPULimit: pod.NoLimit, MemoryLimit: pod.NoLimit}}}}}
	r.book(0)
	s.book(s.window("guest", at, 10, handover(at, "", "e", 0, 3)))
	r.put(12 * time.Hour)
	r.want("before the host reports", 0, 24*time.Hour, query.ByCluster, "c=43200")
	s.book(s.window("host", at, 10, handover(at, vm("host"), "e", 0, 1, 2, 3)))
	r.want("after it", 0, 24*time.Hour, query.ByCluster, "c=43200")
	r.pod.Finished = at.Add(-3 * time.Second)
	r.book(12 * time.Hour)
	r.put(12*time.Hour + time.Minute)
	r.want("ended 3 s earlier", 0, 24*time.Hour, query.ByCluster, "c=43197")
}

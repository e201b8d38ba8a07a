package ledgertest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// testUnused: what was reserved and not used is summed over pods, whatever they are grouped by, and from rows of any level.
// Lists of workloads do not have what pods reserve.
func testUnused(t *testing.T, dsn string) {
	l, ctx := Open(t, dsn), t.Context()
	Node(t, l, "a")
	Node(t, l, "b")
	const minutes = 120
	m := minuteOf(Day)
	lease := pod.Lease{Cluster: "c"}
	entries := map[string]*batch.Entry{}
	use := func(node string, kind workload.Kind, key, parent string, milli, megabytes int64) {
		e := entries[node]
		if e == nil {
			e = &batch.Entry{Node: node, Stream: batch.Stream(fmt.Appendf(nil, "%-16s", node)), Number: 1, Hash: batch.Hash{1}, Through: Day.Add(minutes * time.Minute)}
			for at := range int64(minutes) {
				e.Nodes = append(e.Nodes, batch.NodeMinute{Minute: m + at, Covered: time.Minute, CPUs: 16})
			}
			entries[node] = e
		}
		n := batch.Name{ID: workload.NewID(node, kind, key), Kind: kind, Key: key, Name: key}
		if parent != "" {
			n.Parent = workload.NewID(node, workload.Pod, parent)
		}
		e.Names = append(e.Names, n)
		short, _ := workload.ShortIDOf(n.ID)
		for at := range int64(minutes) {
			u := usage.Usage{Covered: time.Minute}
			u.Put(usage.CPU, milli*60e6, usage.Measured)
			u.Put(usage.Memory, megabytes<<20*60, usage.Measured)
			e.Minutes = append(e.Minutes, batch.Minute{Workload: short, Minute: m + at, Usage: u})
		}
	}
	var pods []pod.Pod
	id := func(i int, c string) string { return fmt.Sprintf("%02d%s", i, strings.Repeat(c[:1], 62)) }
	// add adds a pod of containers with what they reserve and use, in thousandths of a CPU and MiB; "" is the pod itself.
	add := func(node, name, job string, containers map[string][4]int64) {
		i := len(pods)
		p := pod.Pod{UID: fmt.Sprintf("00000000-0000-0000-0000-%012d", i), Namespace: "shop", Name: name, Job: job, Node: node, Labels: map[string]string{"team": job},
			Containers: map[string]string{}, Created: Day, Scheduled: Day, Finished: Day.Add(minutes * time.Minute)}
		use(node, workload.Pod, p.UID, "", containers[""][2], containers[""][3])
		for c, v := range containers {
			if v[0] >= 0 {
				p.Reserved = append(p.Reserved, pod.Reservation{Container: c, Levels: pod.Levels{CPU: v[0], Memory: v[1] << 20, CPULimit: pod.NoLimit, MemoryLimit: pod.NoLimit}})
			}
			if c != "" {
				p.Containers[id(i, c)] = c
				use(node, workload.Container, id(i, c), p.UID, v[2], v[3])
			}
		}
		pods = append(pods, p)
	}
	// Reserved is 1 + 0.1 + 0.5 CPUs. The second container uses 0.4 more than it reserves, which the pod's own part covers.
	add("a", "web-1", "web", map[string][4]int64{"app": {1000, 100, 250, 60}, "side": {100, 10, 500, 10}, "": {500, 0, 0, 1}})
	// The CPU that it uses beyond 2 is not deducted from what others do not use. Its memory is.
	add("a", "web-2", "web", map[string][4]int64{"app": {2000, 100, 3000, 90}})
	add("b", "web-3", "web", map[string][4]int64{"app": {2000, 100, 500, 100}})
	add("b", "best-effort", "free", map[string][4]int64{"app": {0, 0, 1000, 100}})
	add("b", "unknown", "early", map[string][4]int64{"app": {-1, 0, 1000, 100}})
	use("b", workload.Service, "sshd.service", "", 5000, 500)
	if err := Try(t, func() error { return l.BookPods(ctx, lease, pods, Day.Add(minutes*time.Minute)) }); err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		book(t, l, batch.Accepted, e)
	}
	if err := Try(t, func() error { return putReserved(l, lease, Day.Add(minutes*time.Minute), Day) }); err != nil {
		t.Fatal(err)
	}
	// ask returns the thousandths of CPUs and MiB that are not used, by group.
	form := func(u *query.Total, seconds int64) (text string) {
		for i, unit := range []int64{1e6, 1 << 20} {
			if u.Unused[i].Quality == usage.Absent {
				text += " –"
			} else {
				text += fmt.Sprintf(" %g", float64(u.Unused[i].Sum.Int64())/float64(unit*seconds))
			}
		}
		return text[1:]
	}
	ask := func(q query.Query) map[string]string {
		t.Helper()
		if q.To.IsZero() {
			q.From, q.To = Day, Day.Add(minutes*time.Minute)
		}
		q.Scope.All, q.Unused = true, true
		a, err := l.Usage(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]string{}
		seconds := int64(a.To.Sub(a.From) / time.Second)
		if q.From.Before(Day) || q.To.After(Day.Add(minutes*time.Minute)) {
			seconds = minutes * 60
		}
		for i := range a.Groups {
			out[strings.Join(a.Groups[i].Keys, " ")] = form(&a.Groups[i].Usage, seconds)
		}
		if a.OtherGroups > 0 {
			out["other"] = form(&a.Other, seconds)
		}
		return out
	}
	compare := func(when string, got map[string]string, want ...string) {
		t.Helper()
		for i := 0; i < len(want); i += 2 {
			if got[want[i]] != want[i+1] {
				t.Errorf("%s: %q has unused %q, want %q, of %v", when, want[i], got[want[i]], want[i+1], got)
			}
		}
	}
	by := func(d ...query.Dimension) query.Query { return query.Query{By: d} }
	const web1, web2, web3, web = "850 40", "0 10", "1500 0", "2350 50"
	for _, age := range []time.Duration{0, 12 * time.Hour, 49 * time.Hour, 300 * time.Hour} {
		fold(t, l, Day.Add(age))
		when := fmt.Sprintf("folded up to %v", age)
		whole := func(q query.Query) query.Query {
			if age > 0 {
				q.From, q.To = Day, Day.Add(24*time.Hour)
			}
			return q
		}
		compare(when, ask(whole(by(query.ByJob))), "web", web, "free", "– –", "early", "– –", "sshd.service", "– –")
		compare(when, ask(whole(by(query.ByPod))), "web-1", web1, "web-2", web2, "web-3", web3)
		compare(when, ask(whole(by(query.ByPod, query.ByContainer))), "web-1 app", "750 40", "web-1 side", "0 0", "web-1 ", "100 –")
		compare(when, ask(whole(by(query.ByWorkload))), "web-1/app", "750 40", "web-1", "100 –", "web-2/app", web2)
		for _, d := range []query.Dimension{query.ByNamespace, query.ByLabel + "team", query.ByCluster, query.ByKind} {
			key := map[query.Dimension]string{query.ByNamespace: "shop", query.ByCluster: "c", query.ByKind: "container"}[d]
			want := web
			switch d {
			case query.ByLabel + "team":
				key = "web"
			case query.ByKind:
				want = "2250 50"
			}
			compare(when+" by "+string(d), ask(whole(by(d))), key, want)
		}
		compare(when, ask(whole(by(query.ByNode))), "name-a", "850 50", "name-b", web3)
		q := whole(by(query.ByPod))
		q.Idle = "used"
		compare(when+", idle divided", ask(q), "web-1", web1, "web-3", web3)
		q = whole(by(query.ByPod))
		q.Where = map[query.Dimension][]string{query.ByNode: {"name-a"}}
		compare(when+", of a node", ask(q), "web-1", web1, "web-2", web2, "web-3", "")
		q = whole(by(query.ByPod))
		q.Top = &query.Top{Limit: 1, AlwaysKept: func([]string) bool { return false }, Rank: func(keys []string, u *query.Total, _ time.Duration) query.Rank {
			return query.Rank{Amount: u.Unused[0].Sum, Absent: u.Unused[0].Quality == usage.Absent, Keys: keys}
		}}
		compare(when+", the first one", ask(q), "web-3", web3, "other", "850 50")
		list, err := l.Workloads(ctx, query.Query{Scope: query.Scope{All: true}, From: Day, To: Day.Add(24 * time.Hour)})
		if err != nil || len(list) != 12 {
			t.Errorf("%s: %d workloads are listed, want 12 without what is reserved; %v", when, len(list), err)
		}
	}
	dimensions, err := l.Dimensions(ctx, query.Scope{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dimensions {
		if want := map[query.Dimension]int64{query.ByContainer: 6}[d.Dimension]; d.Dimension == query.ByContainer && d.Workloads != want {
			t.Errorf("%d workloads have a container, want %d", d.Workloads, want)
		}
	}
	a, err := l.Usage(ctx, query.Query{From: Day, To: Day.Add(24 * time.Hour), By: []query.Dimension{query.ByPod}, Scope: query.Scope{All: true}})
	for i := range a.Groups {
		if a.Groups[i].Usage.Unused != [len(query.Reservable)]query.Unused{} || err != nil {
			t.Errorf("what is unused was not requested: %+v, %v", a.Groups[i].Usage.Unused, err)
		}
	}
}

package ledgertest

import (
	"errors"
	"fmt"
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
)

// testPodReserved: a pod reads what it itself reserves, is limited to and does not use, as the usage of that pod has it, and
// nothing of a pod with the same container names, in another namespace or with the same UID in another cluster.
func testPodReserved(t *testing.T, dsn string) {
	const uid, otherUID, idleUID, minutes = "3f0e0d5a-2f2c-4b8e-9d0a-5a1e4f6b7c8d", "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002", 120
	l, ctx, m, end := Open(t, dsn), t.Context(), minuteOf(Day), Day.Add(minutes*time.Minute)
	for node, cluster := range map[string]string{"a": "c", "b": "d"} {
		if err := l.PutNode(ctx, registry.Node{ID: node, Cluster: cluster, Name: "name-" + node, MachineID: node, Boot: "boot", At: Day}); err != nil {
			t.Fatal(err)
		}
	}
	containerID := func(uid, c string) string { return strings.ReplaceAll(uid, "-", "") + strings.Repeat(c[:1], 32) }
	entries := map[string]*batch.Entry{}
	// use books what a part of a pod uses from a minute on, in thousandths of a CPU and MiB.
	use := func(node, uid, c string, from, milli, megabytes int64) {
		e := entries[node]
		if e == nil {
			e = &batch.Entry{Node: node, Stream: batch.Stream(fmt.Appendf(nil, "%-16s", node)), Number: 1, Hash: batch.Hash{1}, Through: end}
			for at := range int64(minutes) {
				e.Nodes = append(e.Nodes, batch.NodeMinute{Minute: m + at, Covered: time.Minute, CPUs: 64})
			}
			entries[node] = e
		}
		n := batch.Name{Kind: workload.Pod, Key: uid}
		if c != "" {
			n = batch.Name{Kind: workload.Container, Key: containerID(uid, c), Parent: workload.NewID(node, workload.Pod, uid)}
		}
		n.ID = workload.NewID(node, n.Kind, n.Key)
		e.Names = append(e.Names, n)
		short, _ := workload.ShortIDOf(n.ID)
		for at := from; at < minutes; at++ {
			u := usage.Usage{Covered: time.Minute}
			u.Put(usage.CPU, milli*60e6, usage.Measured)
			u.Put(usage.Memory, megabytes<<20*60, usage.Measured)
			e.Minutes = append(e.Minutes, batch.Minute{Workload: short, Minute: m + at, Usage: u})
		}
	}
	podOf := func(uid, namespace string, milli, limit int64) pod.Pod {
		p := pod.Pod{UID: uid, Namespace: namespace, Name: "web-1", Job: namespace + "/deployment/web", Containers: map[string]string{}, Created: Day, Scheduled: Day}
		for _, c := range []string{"app", "side"} {
			p.Containers[containerID(uid, c)] = c
			p.Reserved = append(p.Reserved, pod.Reservation{Container: c, Levels: pod.Levels{CPU: milli, Memory: milli << 20, CPULimit: limit, MemoryLimit: pod.NoLimit}})
			limit = pod.NoLimit // the second one has none
		}
		p.Reserved = append(p.Reserved, pod.Reservation{Levels: pod.Levels{CPU: 50, CPULimit: pod.NoLimit, MemoryLimit: pod.NoLimit}}) // overhead
		return p
	}
	// Images are pulled for 20 minutes. In all, app uses 2 CPU minutes beyond what it reserves, of the pod's own 6.
	own := podOf(uid, "shop", 1000, 2000)
	use("a", uid, "", 20, 0, 1)
	use("a", uid, "app", 20, 1220, 500)
	use("a", uid, "side", 20, 250, 2000)
	other := podOf(otherUID, "evil", 7000, 9000)
	use("a", otherUID, "", 0, 0, 1)
	use("a", otherUID, "app", 0, 1, 1)
	elsewhere := podOf(uid, "shop", 13000, 17000)
	use("b", uid, "", 0, 0, 1)
	use("b", uid, "app", 0, 1, 1)
	idle := podOf(idleUID, "shop", 10, 20) // its node has seen nothing of it
	idle.Name = "web-2"
	pods := map[string][]pod.Pod{"c": {own, other, idle}, "d": {elsewhere}}
	bookPods := func(at time.Time) {
		t.Helper()
		for cluster, pods := range pods {
			for i := range pods {
				pods[i].Node = "worker-" + cluster
			}
			if err := Try(t, func() error { return l.BookPods(ctx, pod.Lease{Cluster: cluster}, pods, at) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	bookPods(Day)
	for _, e := range entries {
		book(t, l, batch.Accepted, e)
	}
	ref := pod.Ref{Cluster: "c", Namespace: "shop", Name: "web-1", UID: uid}
	self := func() *query.Self {
		t.Helper()
		s, err := l.PodSelf(ctx, ref)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := self(); s.Reserved != 0 || s.Usage.Present&usage.Specified != 0 || s.Usage.Unused != [len(query.Reservable)]query.Unused{} || s.Usage.Covered.Int64() != int64(100*time.Minute) {
		t.Errorf("before it is known what it reserves: %+v", s)
	}
	put := func(until time.Time) {
		t.Helper()
		for _, cluster := range []string{"c", "d"} {
			if err := Try(t, func() error { return putReserved(l, pod.Lease{Cluster: cluster}, until, until) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	put(Day.Add(10 * time.Minute))
	if s := self(); s.Reserved != 10*time.Minute || s.Usage.Sum[usage.CPUReserved].Int64() != int64(2050*time.Millisecond)*600 {
		t.Errorf("after ten minutes: %v, %+v", s.Reserved, s.Usage)
	}
	put(Day.Add(60 * time.Minute))
	// It is counted under another job from then on: its carriers have another version.
	pods["c"][0].Job = "shop/deployment/other"
	bookPods(Day.Add(time.Hour))
	for cluster := range pods {
		for i := range pods[cluster] {
			pods[cluster][i].Finished = end
		}
	}
	bookPods(end)
	put(end)
	for _, age := range []time.Duration{0, 2 * time.Hour, 49 * time.Hour, 300 * time.Hour} {
		fold(t, l, Day.Add(age))
		s := self()
		a, err := l.Usage(ctx, query.Query{From: Day, To: Day.Add(24 * time.Hour), By: []query.Dimension{query.ByCluster, query.ByNamespace, query.ByPod}, Scope: query.Scope{All: true}, Unused: true})
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for i := range a.Groups {
			if g := &a.Groups[i]; strings.Join(g.Keys, "/") == "c/shop/web-1" {
				found = true
				want, got := g.Usage, s.Usage
				want.Covered, got.Covered = want.Covered.Less(want.Covered), got.Covered.Less(got.Covered) // that of a pod is not a sum
				if d := cmp.Diff(fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", got)); d != "" || !g.First.Equal(s.First) || !g.Last.Equal(s.Last) {
					t.Errorf("folded up to %v, other than usage has it (-want +got): %s; from %v to %v, want %v to %v", age, d, s.First, s.Last, g.First, g.Last)
				}
			}
		}
		const second = int64(time.Second)
		const unused = 60 * (1000*minutes - 250*100 + 4000) * second / 1000 // of side and of the pod's own
		if got := s.Usage; !found || s.Reserved != minutes*time.Minute || got.Sum[usage.CPUReserved].Int64() != minutes*60*2050*second/1000 || got.Sum[usage.CPULimit].Int64() != minutes*60*2*second ||
			got.Sum[usage.ReservedTime].Int64() != 2*minutes*60*second || got.Sum[usage.CPULimitedTime].Int64() != minutes*60*second || got.Present.Has(usage.MemoryLimit) ||
			got.Unused[0].Sum.Int64() != unused || got.Covered.Int64() != int64(100*time.Minute) || len(s.Parts) != 3 || s.ID != workload.NewID("a", workload.Pod, uid) {
			t.Errorf("folded up to %v: %v, unused %v, want %v; %+v", age, s.Reserved, s.Usage.Unused[0].Sum, unused, s)
		}
	}
	ref = pod.Ref{Cluster: "c", Namespace: "shop", Name: "web-2", UID: idleUID}
	if s := self(); s.Reserved != minutes*time.Minute || s.Usage.Sum[usage.CPUReserved].Int64() != minutes*60*70e6 || s.Usage.Covered.Int64() != 0 || s.NodeName != "name-a" || len(s.Parts) != 0 || s.Name.Name != "web-2" || !s.First.Equal(Day) {
		t.Errorf("a pod that did not start: %+v", s)
	}
	ref.UID = otherUID
	if s, err := l.PodSelf(ctx, ref); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("with the UID of another pod: %+v, %v", s, err)
	}
}

package ledgertest

import (
	"errors"
	"fmt"
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
)

// testPodSelf: a pod's use is that of its workload and its containers on the nodes of its cluster, folded or not, and of
// nothing else.
func testPodSelf(t *testing.T, dsn string) {
	const uid, otherUID = "3f0e0d5a-2f2c-4b8e-9d0a-5a1e4f6b7c8d", "00000000-0000-0000-0000-000000000001"
	l := Open(t, dsn)
	id := func(digit string) string { return strings.Repeat(digit, 64) }
	ref := pod.Ref{Cluster: "c", Namespace: "shop", Name: "web-1", UID: uid}
	self := func(ref pod.Ref) *query.Self {
		t.Helper()
		s, err := l.PodSelf(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	marks := map[string]batch.Mark{}
	send := func(node string, n batch.Name, ns int64, minutes ...int64) {
		t.Helper()
		if n.ID == "" {
			n.ID = workload.NewID(node, n.Kind, n.Key)
		}
		mark, ok := marks[node]
		if !ok {
			mark.Next = 1
		}
		short, _ := workload.ShortIDOf(n.ID)
		e := Entry(node, batch.Stream(fmt.Appendf(nil, "%-16s", node)), mark, short, ns, minutes...)
		e.Names = []batch.Name{n}
		if n.Key == uid {
			e.Gaps = []usage.Gap{{From: Day.Add(time.Hour), To: Day.Add(2 * time.Hour), Reason: usage.Rebooted}, {From: Day.Add(-time.Hour), To: Day, Reason: usage.Rebooted}}
		}
		marks[node] = batch.Mark{Next: mark.Next + 1, Last: e.Hash}
		book(t, l, batch.Accepted, e)
	}
	for node, c := range map[string]struct{ cluster, machine string }{
		"first": {"c", "1"}, "second": {"c", "2"}, "elsewhere": {"d", "3"}, "jobs": {"c", registry.JobsMachineID("4")},
	} {
		if err := l.PutNode(t.Context(), registry.Node{ID: node, Cluster: c.cluster, Name: "name-" + node, MachineID: c.machine, Boot: "boot", At: Day}); err != nil {
			t.Fatal(err)
		}
	}

	// A pod that is not known, or of another name, has no use.
	m := minuteOf(Day)
	podOn := func(node, uid string) batch.Name { return batch.Name{Kind: workload.Pod, Key: uid} }
	containerOf := func(node, uid, id string) batch.Name {
		n := batch.Name{Kind: workload.Container, Key: id}
		if uid != "" {
			n.Parent = workload.NewID(node, workload.Pod, uid)
		}
		return n
	}
	unknown := func(when string, ref pod.Ref) {
		t.Helper()
		if s, err := l.PodSelf(t.Context(), ref); !errors.Is(err, fault.ErrNotFound) || fault.Hint(err) == "" {
			t.Errorf("%s: %+v, %v", when, s, err)
		}
	}
	unknown("before the pod is stored", ref)
	pods := []pod.Pod{
		{UID: uid, Namespace: "shop", Name: "web-1", Job: "shop/deployment/web", Containers: map[string]string{id("a"): "app", id("b"): "debug", id("c"): "stolen"}, Created: Day},
		{UID: otherUID, Namespace: "evil", Name: "thief", Job: "evil/pod/thief", Containers: map[string]string{id("e"): "app"}, Created: Day},
	}
	if err := Try(t, func() error { return l.BookPods(t.Context(), pod.Lease{Cluster: "c"}, pods, Day) }); err != nil {
		t.Fatal(err)
	}
	if s := self(ref); s.Name.Name != "web-1" || s.Kind != workload.Pod || s.Job != "shop/deployment/web" || s.Cluster != "c" || s.Node != "" || s.Usage.Present != 0 || !s.First.IsZero() {
		t.Errorf("before anything is booked: %+v", s)
	}

	// Each part of the pod adds to a digit of its own of the sum; all others are far larger.
	send("first", podOn("first", uid), 1, m, m+61, m+3*dayMinutes)
	send("first", containerOf("first", uid, id("a")), 10, m, m+61, m+3*dayMinutes)
	send("first", containerOf("first", uid, id("d")), 100, m+61) // its status has no id yet
	send("first", containerOf("first", "", id("b")), 1000, m+61) // its group is not below the pod's
	send("first", podOn("first", otherUID), 1e6, m, m+61)
	send("first", containerOf("first", otherUID, id("e")), 1e6, m, m+61)
	send("first", containerOf("first", otherUID, id("c")), 1e6, m, m+61) // the kernel has it in another pod
	send("first", batch.Name{Kind: workload.Job, Key: id("a"), Parent: workload.NewID("first", workload.Pod, uid)}, 1e6, m)
	send("first", batch.Name{Kind: workload.Service, Key: uid}, 1e6, m)
	send("elsewhere", podOn("elsewhere", uid), 1e6, m, m+5*dayMinutes)
	send("elsewhere", containerOf("elsewhere", uid, id("a")), 1e6, m)
	send("jobs", podOn("jobs", uid), 1e6, m, m+5*dayMinutes)
	send("jobs", containerOf("jobs", uid, id("a")), 1e6, m)

	for _, age := range []time.Duration{0, 2 * time.Hour, 49 * time.Hour, 300 * time.Hour} {
		fold(t, l, Day.Add(age))
		s := self(ref)
		if cpu := s.Usage.Sum[usage.CPU].String(); cpu != "1133" {
			t.Errorf("folded up to %v it used %s ns of CPU time, want 1133", age, cpu)
		}
		want := []workload.ID{workload.NewID("first", workload.Pod, uid), workload.NewID("first", workload.Container, id("a")), workload.NewID("first", workload.Container, id("b")), workload.NewID("first", workload.Container, id("d"))}
		slices.Sort(want[1:])
		slices.Sort(s.Parts[1:])
		if s.Node != "first" || s.NodeName != "name-first" || s.ID != want[0] || s.Name.Name != "web-1" || s.Job != "shop/deployment/web" || !slices.Equal(s.Parts, want) || s.Gaps != 1 ||
			!s.First.Equal(Day) || !s.Through.Equal(Day.Add(72*time.Hour+time.Minute)) || s.Usage.Covered.Int64() != int64(30*time.Second) {
			t.Errorf("folded up to %v: %+v", age, s)
		}
	}
	for when, wrong := range map[string]pod.Ref{
		"of another cluster": {Cluster: "d", Namespace: "shop", Name: "web-1", UID: uid}, "of another namespace": {Cluster: "c", Namespace: "evil", Name: "web-1", UID: uid},
		"of another name": {Cluster: "c", Namespace: "shop", Name: "web-2", UID: uid}, "of another UID": {Cluster: "c", Namespace: "shop", Name: "web-1", UID: otherUID},
		"without UID": {Cluster: "c", Namespace: "shop", Name: "web-1"},
	} {
		unknown(when, wrong)
	}
	if cpu := self(pod.Ref{Cluster: "c", Namespace: "evil", Name: "thief", UID: otherUID}).Usage.Sum[usage.CPU].String(); cpu != "6000000" {
		t.Errorf("another pod used %s ns", cpu)
	}

	// The machine lost its state and is another node since then.
	send("second", containerOf("second", uid, id("a")), 10_000, m+4*dayMinutes, m+4*dayMinutes+1)
	if s := self(ref); s.Usage.Sum[usage.CPU].String() != "21133" || s.Node != "second" || s.ID != workload.NewID("second", workload.Pod, uid) || s.Name.Name != "web-1" || s.Kind != workload.Pod ||
		!slices.Equal(s.Parts, []workload.ID{workload.NewID("second", workload.Container, id("a"))}) || !s.Through.Equal(Day.Add(96*time.Hour+2*time.Minute)) {
		t.Errorf("on two nodes: %+v", s)
	}
	// Without rows of the pod's own workload, the time is that of its container with the most.
	pods[0].UID, pods[0].Containers = "00000000-0000-0000-0000-000000000003", map[string]string{id("1"): "app", id("2"): "side"}
	if err := l.BookPods(t.Context(), pod.Lease{Cluster: "c"}, pods[:1], Day); err != nil {
		t.Fatal(err)
	}
	send("second", containerOf("second", "", id("1")), 1, m+4*dayMinutes, m+4*dayMinutes+1)
	send("second", containerOf("second", "", id("2")), 1, m+4*dayMinutes)
	ref.UID = pods[0].UID
	if s := self(ref); s.Usage.Sum[usage.CPU].String() != "3" || s.Usage.Covered.Int64() != int64(20*time.Second) {
		t.Errorf("without the pod's workload: %+v", s)
	}
}

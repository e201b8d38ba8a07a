package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/testkit/syncbuf"
)

func (l *failingLedger) BookTopology(ctx context.Context, lease pod.Lease, t pod.Topology, now time.Time) error {
	if l.topology != nil {
		return l.topology
	}
	err := l.Ledger.BookTopology(ctx, lease, t, now)
	if err == nil {
		l.topologies++
	}
	return err
}

// nodeOf returns a node with a zone, ranges of pods, and addresses as "TYPE ADDRESS", or those of type InternalIP.
func nodeOf(name, zone string, cidrs, addresses []string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: cidrs}}
	if zone != "" {
		n.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	}
	for _, a := range addresses {
		kind, address, ok := strings.Cut(a, " ")
		if !ok {
			kind, address = string(corev1.NodeInternalIP), a
		}
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeAddressType(kind), Address: address})
	}
	return n
}

// prefixes returns the prefixes that texts stand for.
func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// keepNode lets the informer of nodes see one, and dropNode that it is gone.
func (w *worker) keepNode(n *corev1.Node) {
	w.t.Helper()
	o, err := trimNode(n)
	if err != nil {
		w.t.Fatal(err)
	}
	old, ok, err := w.nodes.GetStore().Get(o)
	if err = errors.Join(err, w.nodes.GetStore().Update(o)); err != nil {
		w.t.Fatal(err)
	}
	if !ok {
		w.changeNode(nil, o)
	} else {
		w.changeNode(old, o)
	}
}

func (w *worker) dropNode(n *corev1.Node) {
	w.t.Helper()
	o, err := trimNode(n)
	if err = errors.Join(err, w.nodes.GetStore().Delete(o)); err != nil {
		w.t.Fatal(err)
	}
	w.changeNode(lastState(cache.DeletedFinalStateUnknown{Obj: o}), nil)
}

// TestTrimNode: what is kept of a node, whatever it says of itself.
func TestTrimNode(t *testing.T) {
	list := func(n int, format string) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf(format, i))
		}
		return all
	}
	long := strings.Repeat("x", 63)
	for name, c := range map[string]struct {
		zone             string
		cidrs, addresses []string
		wantZone         string
		want             []string
	}{
		"nothing":                {},
		"one family":             {"eu-1a", []string{"10.1.2.0/24"}, []string{"10.0.0.7"}, "eu-1a", []string{"10.0.0.7/32", "10.1.2.0/24"}},
		"two families":           {"eu-1a", []string{"fd00:1:2::/64", "10.1.2.0/24"}, []string{"fd00::7", "10.0.0.7"}, "eu-1a", []string{"10.0.0.7/32", "10.1.2.0/24", "fd00::7/128", "fd00:1:2::/64"}},
		"other addresses":        {"", nil, []string{"Hostname n1", "ExternalIP 203.0.113.7", "InternalDNS n1.local", "InternalIP 10.0.0.7"}, "", []string{"10.0.0.7/32"}},
		"twice":                  {"", []string{"10.0.0.7/32", "10.1.2.0/24", "10.1.2.3/24"}, []string{"10.0.0.7", "::ffff:10.0.0.7"}, "", []string{"10.0.0.7/32", "10.1.2.0/24"}},
		"longest zone":           {zone: long, wantZone: long},
		"zone too long":          {zone: long + "x", addresses: []string{"10.0.0.7"}, want: []string{"10.0.0.7/32"}},
		"not masked":             {"", []string{"10.1.2.3/24", "fd00:1:2::3/64"}, nil, "", []string{"10.1.2.0/24", "fd00:1:2::/64"}},
		"invalid":                {"", []string{"", "10.1.2.0", "10.1.2.0/33", "10.1.2.0/-1", "010.1.2.0/24", " 10.1.2.0/24", "fd00::/129", "fd00::%e/64", "x/24", "10.1.2/24"}, []string{"", "10.0.0", "10.0.0.7/32", "010.0.0.7", "n1", "[fd00::1]"}, "", nil},
		"mapped":                 {"", []string{"::ffff:10.1.2.3/120"}, []string{"::ffff:10.0.0.7"}, "", []string{"10.0.0.7/32", "10.1.2.0/24"}},
		"mapped and others":      {"", []string{"::ffff:10.1.2.3/95", "::ffff:0:0/96"}, nil, "", nil},
		"as short as may be":     {"", []string{"10.0.0.0/8", "fd00::/16"}, nil, "", []string{"10.0.0.0/8", "fd00::/16"}},
		"too short":              {"", []string{"0.0.0.0/0", "10.0.0.0/7", "::ffff:10.0.0.0/103", "::/0", "fd00::/15"}, nil, "", nil},
		"loopback":               {"", []string{"127.0.0.0/8", "127.1.0.0/16", "::1/128"}, []string{"127.0.0.1", "::1", "::ffff:127.0.0.1"}, "", nil},
		"link-local":             {"", []string{"169.254.1.0/24", "169.254.0.0/15", "169.0.0.0/8", "fe80::/64"}, []string{"169.254.169.254", "fe80::1", "fe80::1%eth0", "febf::1"}, "", nil},
		"multicast":              {"", []string{"224.0.0.0/8", "239.1.2.0/24", "ff02::/16"}, []string{"224.0.0.1", "ff02::1"}, "", nil},
		"unspecified":            {"", []string{"0.0.0.0/8", "::/16", "::/96"}, []string{"0.0.0.0", "::"}, "", nil},
		"next to these":          {"", []string{"126.0.0.0/8", "128.0.0.0/8", "169.253.0.0/16", "223.0.0.0/8", "fec0::/16"}, []string{"0.0.0.1", "::2"}, "", []string{"0.0.0.1/32", "126.0.0.0/8", "128.0.0.0/8", "169.253.0.0/16", "223.0.0.0/8", "::2/128", "fec0::/16"}},
		"as many as may be":      {"", list(8, "10.1.%d.0/24"), list(8, "10.0.0.%d"), "", append(list(8, "10.0.0.%d/32"), list(8, "10.1.%d.0/24")...)},
		"too many, first ranges": {"", list(17, "10.1.%02d.0/24")[10:], list(100, "10.0.0.%d"), "", append(list(9, "10.0.0.%d/32"), list(17, "10.1.%02d.0/24")[10:]...)},
	} {
		n := nodeOf("n1", c.zone, c.cidrs, c.addresses)
		n.Annotations, n.Status.NodeInfo.KernelVersion = map[string]string{"a": "b"}, "6.1"
		o, err := trimNode(n)
		kept, ok := o.(*keptNode)
		if err != nil || !ok {
			t.Fatalf("%s: %T, %v", name, o, err)
		}
		if want := (pod.NodeNetwork{Zone: c.wantZone, Prefixes: prefixes(c.want...)}); !reflect.DeepEqual(kept.network, want) {
			t.Errorf("%s: %v, want %v", name, kept.network, want)
		}
		if !reflect.DeepEqual(kept.ObjectMeta, metav1.ObjectMeta{Name: "n1"}) {
			t.Errorf("%s: more is kept than the name: %+v", name, kept.ObjectMeta)
		}
	}
	if o, err := trimNode("x"); o != "x" || err != nil {
		t.Errorf("%v, %v", o, err)
	}
}

// TestTopology: the topology is booked once nodes are listed, for each lease and for changes, which are collected, and not for heartbeats.
func TestTopology(t *testing.T) {
	withWorkers(t, func(t *testing.T, l *failingLedger) {
		listed := false
		begin := func(holder string) *worker {
			w := newWorker(t, l, holder)
			w.nodesListed = func() bool { return listed }
			w.health.listed(t.Context(), &corev1.Node{}, nil)
			return w
		}
		one, two := begin("one"), begin("two")
		both := func(f func(*worker)) { f(one); f(two) }
		var last int64 // epoch
		works := func(w *worker, when string, wantErr error, topologies int, want pod.Topology) {
			t.Helper()
			if err := w.work(t.Context()); !errors.Is(err, wantErr) {
				t.Errorf("%s: %v, want %v", when, err, wantErr)
			}
			before := l.topologies
			if before != topologies {
				t.Errorf("%s: %d were booked, want %d", when, before, topologies)
			}
			got, epoch, err := l.Topology(t.Context(), "c")
			if want == nil {
				if !errors.Is(err, fault.ErrNotFound) {
					t.Errorf("%s: %v, %v", when, got, err)
				}
				return
			}
			if !reflect.DeepEqual(got, want) || err != nil {
				t.Errorf("%s: %v, %v; want %v", when, got, err, want)
			}
			if epoch < last {
				t.Errorf("%s: the epoch is %d, and was %d", when, epoch, last)
			}
			last = epoch
		}
		n1, n2 := nodeOf("n1", "eu-1a", []string{"10.1.1.0/24"}, []string{"10.0.0.1"}), nodeOf("n2", "eu-1b", []string{"10.1.2.0/24"}, []string{"10.0.0.2"})
		long := nodeOf(strings.Repeat("n", 253), "", nil, nil)
		both(func(w *worker) {
			w.keepNode(n1)
			w.keepNode(nodeOf("", "eu-1a", nil, []string{"10.0.0.9"}))
			w.keepNode(nodeOf(long.Name+"n", "eu-1a", nil, []string{"10.0.0.9"}))
		})
		topology := func(zone1, zone2 string) pod.Topology {
			out := pod.Topology{"n1": {Zone: zone1, Prefixes: prefixes("10.0.0.1/32", "10.1.1.0/24")}}
			if zone2 != "" {
				out["n2"] = pod.NodeNetwork{Zone: zone2, Prefixes: prefixes("10.0.0.2/32", "10.1.2.0/24")}
			}
			return out
		}
		works(one, "not listed", nil, 0, nil)
		works(two, "another server has the lease", nil, 0, nil)
		listed = true
		one.health.lists(t.Context(), &corev1.Node{})
		works(one, "nodes are listed again", nil, 0, nil)
		one.health.listed(t.Context(), &corev1.Node{}, nil)
		l.topology = errDatabase
		works(one, "the database fails", errDatabase, 0, nil)
		l.topology = nil
		works(one, "listed", nil, 1, topology("eu-1a", ""))
		works(two, "another server still has the lease", nil, 1, topology("eu-1a", ""))

		// Heartbeats change nothing, at any time.
		for range 10 {
			time.Sleep(leaseEvery)
			both(func(w *worker) {
				beat := n1.DeepCopy()
				beat.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.Now()}}
				w.keepNode(beat)
				if w.nodesChanged.Load() && w == one {
					t.Error("a heartbeat counts as a change")
				}
			})
			works(one, "heartbeats", nil, 1, topology("eu-1a", ""))
		}

		// The first change is booked at once, those after it together.
		both(func(w *worker) { w.keepNode(n2) })
		works(one, "another node", nil, 2, topology("eu-1a", "eu-1b"))
		both(func(w *worker) { w.keepNode(nodeOf("n2", "eu-1c", n2.Spec.PodCIDRs, []string{"10.0.0.2"})) })
		time.Sleep(topologyEvery / 2)
		works(one, "another zone, soon after", nil, 2, topology("eu-1a", "eu-1b"))
		both(func(w *worker) { w.keepNode(nodeOf("n1", "eu-1c", n1.Spec.PodCIDRs, []string{"10.0.0.1"})) })
		time.Sleep(topologyEvery/2 - time.Nanosecond)
		works(one, "a moment before", nil, 2, topology("eu-1a", "eu-1b"))
		time.Sleep(time.Nanosecond)
		works(one, "both", nil, 3, topology("eu-1c", "eu-1c"))
		time.Sleep(topologyEvery)
		both(func(w *worker) {
			w.keepNode(n1)
			w.keepNode(nodeOf("n1", "eu-1c", n1.Spec.PodCIDRs, []string{"10.0.0.1"}))
		})
		works(one, "there and back", nil, 3, topology("eu-1c", "eu-1c"))
		both(func(w *worker) { w.keepNode(n1) })
		l.topology = errDatabase
		works(one, "the database fails", errDatabase, 3, topology("eu-1c", "eu-1c"))
		l.topology = nil
		works(one, "changed before it failed", nil, 4, topology("eu-1a", "eu-1c"))

		// Without an API server the last topology stays, whatever the informer has, and for another lease too.
		time.Sleep(topologyEvery)
		one.health.probed(t.Context(), errors.New("away"))
		one.dropNode(n1)
		works(one, "away", nil, 4, topology("eu-1a", "eu-1c"))
		one.lease.Number, one.leaseAt = 0, time.Time{}
		works(one, "away, with a new lease", nil, 4, topology("eu-1a", "eu-1c"))
		one.keepNode(n1)
		one.health.probed(t.Context(), nil)
		was := last
		works(one, "it is back", nil, 5, topology("eu-1a", "eu-1c"))
		if last <= was {
			t.Errorf("the epoch of a new lease is %d, and was %d", last, was)
		}
		works(one, "nothing more", nil, 5, topology("eu-1a", "eu-1c"))

		// Another server books it again, and at once, though nothing has changed.
		if err := one.release(t.Context()); err != nil {
			t.Fatal(err)
		}
		two.leaseAt, was = time.Time{}, last
		works(two, "another server", nil, 6, topology("eu-1a", "eu-1c"))
		if last <= was {
			t.Errorf("the epoch of another server is %d, and was %d", last, was)
		}
		// The first one believes that it has the lease, until it writes.
		one.leaseAt = time.Now().Add(time.Hour)
		time.Sleep(topologyEvery)
		both(func(w *worker) { w.dropNode(n2) })
		works(one, "it lost the lease", nil, 6, topology("eu-1a", "eu-1c"))
		if one.lease.Number != 0 {
			t.Errorf("lease %+v", one.lease)
		}
		works(two, "a node is gone", nil, 7, topology("eu-1a", ""))
		time.Sleep(topologyEvery)
		two.dropNode(n1)
		works(two, "the last node is gone", nil, 8, pod.Topology{})
		two.lease.Number, two.leaseAt = 0, time.Time{}
		works(two, "a new lease of a cluster without nodes", nil, 9, pod.Topology{})
		time.Sleep(topologyEvery)
		two.keepNode(long)
		works(two, "the longest name", nil, 10, pod.Topology{long.Name: {}})
	})
}

// TestNodesWatched: a watcher books the topology from the events of an API server, and books nothing for heartbeats.
func TestNodesWatched(t *testing.T) {
	withWorkers(t, func(t *testing.T, l *failingLedger) {
		node := func(name, zone, version string) string {
			return fmt.Sprintf(`{"kind": "Node", "apiVersion": "v1", "metadata": {"name": %q, "uid": %[1]q, "resourceVersion": %q, "labels": {"topology.kubernetes.io/zone": %q}},
				"spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]}, "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}}`, name, version, zone)
		}
		api := &memoryAPI{}
		api.lists(map[string]string{"nodes": node("n1", "eu-1a", "1")})
		w := newWorkerOf(t, l, "s", &rest.Config{Host: "http://api", Transport: api})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		after := func(when string, d time.Duration, want int, zones string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			topology, _, err := l.Topology(t.Context(), "c")
			if got := topology["n1"].Zone + " " + topology["n2"].Zone; got != zones || l.topologies != want || err != nil {
				t.Errorf("%s: %d were booked, want %d; zones %q, %v; want %q", when, l.topologies, want, got, err, zones)
			}
		}
		after("listed", 2*flushEvery, 1, "eu-1a ")
		if got, _, err := l.Topology(t.Context(), "c"); !reflect.DeepEqual(got["n1"].Prefixes, prefixes("10.0.0.1/32", "10.1.0.0/24")) || err != nil {
			t.Errorf("%v, %v", got, err)
		}
		for i := range 100 {
			api.send(t, "/api/v1/nodes", "MODIFIED", node("n1", "eu-1a", fmt.Sprint(i+2)))
			time.Sleep(time.Second)
		}
		after("heartbeats", time.Minute, 1, "eu-1a ")
		api.send(t, "/api/v1/nodes", "ADDED", node("n2", "eu-1b", "200"))
		after("another node", 2*flushEvery, 2, "eu-1a eu-1b")
		api.send(t, "/api/v1/nodes", "MODIFIED", node("n1", "eu-1c", "201"))
		after("a zone", 2*flushEvery, 2, "eu-1a eu-1b")
		api.send(t, "/api/v1/nodes", "DELETED", node("n2", "eu-1b", "202"))
		after("together with the end of a node", topologyEvery, 3, "eu-1c ")
		cancel()
		if err := <-ended; err != nil || strings.Count(w.log.String(), "nodes") > 0 {
			t.Errorf("%v\n%s", err, w.log)
		}
	})
}

// TestNodesRefused: the log says once that an account has no right to list nodes, and no errors are counted. All else works, and
// nothing is booked of nodes.
func TestNodesRefused(t *testing.T) {
	withWorkers(t, func(t *testing.T, l *failingLedger) {
		api := &memoryAPI{codes: map[string]int{"/api/v1/nodes": http.StatusForbidden}}
		api.lists(map[string]string{"pods": objectOf("v1", "Pod", "web-1", "", `, "spec": {"nodeName": "n1"}`), "nodes": `{"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1", "resourceVersion": "1"}}`})
		for _, resource := range []string{"persistentvolumes", "persistentvolumeclaims"} {
			api.answers["/api/v1/"+resource] = `{"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}`
		}
		w := newWorkerOf(t, l, "s", &rest.Config{Host: "http://api", Transport: api})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		time.Sleep(time.Hour)
		synctest.Wait()
		const said = "classes of network traffic do not follow from the nodes"
		if s := w.Stats(); s.Booked != 1 || !s.Holds || s.Failures != 0 || l.topologies != 0 || strings.Count(w.log.String(), said) != 1 {
			t.Errorf("%+v, %d topologies\n%s", s, l.topologies, w.log)
		}
		if !strings.Contains(w.log.String(), "mete-server-rbac.yaml") {
			t.Error(w.log)
		}
		api.set(func() { clear(api.codes) })
		time.Sleep(time.Minute)
		synctest.Wait()
		if topology, _, err := l.Topology(t.Context(), "c"); err != nil || len(topology) != 1 {
			t.Errorf("with the right: %v, %v\n%s", topology, err, w.log)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		log := &syncbuf.Buffer{}
		h := &health{log: slog.New(slog.NewTextHandler(log, nil)), now: time.Now, warned: map[string]time.Time{}}
		nodes, volumes := &corev1.Node{}, &corev1.PersistentVolume{}
		refused := apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", errors.New("no"))
		sees := func(when string, want bool, errs int64, lines int) {
			t.Helper()
			if got, n := h.seesNodes(), strings.Count(log.String(), "level=WARN"); got != want || h.stats.Errors != errs || n != lines {
				t.Errorf("%s: sees nodes %t, want %t; %d errors, want %d; %d warnings, want %d\n%s", when, got, want, h.stats.Errors, errs, n, lines, log)
			}
		}
		h.lists(t.Context(), nodes)
		sees("while they are listed", false, 0, 0)
		for range 10 {
			h.listed(t.Context(), nodes, refused)
			h.listed(t.Context(), volumes, refused)
		}
		sees("refused, as volumes", false, 0, 2)
		h.listed(t.Context(), nodes, nil)
		sees("listed", true, 0, 2)
		h.listed(t.Context(), volumes, refused)
		h.watched(t.Context(), nodes, refused)
		sees("the right was withdrawn", false, 0, 3)
		h.watched(t.Context(), nodes, nil)
		h.watched(t.Context(), nodes, errors.New("away"))
		sees("away", false, 1, 4)
		if !strings.Contains(log.String(), "does not list nodes") {
			t.Error(log)
		}
		h.watched(t.Context(), nodes, nil)
		h.probed(t.Context(), errors.New("away"))
		sees("the API server does not answer", false, 2, 5)
		h.probed(t.Context(), nil)
		sees("it answers", true, 2, 5)
	})
}

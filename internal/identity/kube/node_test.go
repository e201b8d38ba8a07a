package kube_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/identity/kube"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/syncbuf"
	"mete.dev/mete/internal/testkit/testbed"
)

// A topologyTrial makes nodes of a cluster without kubelets.
type topologyTrial struct {
	*named
	c *testbed.Cluster
}

// node creates a node as a kubelet and the controllers do: with its status apart.
func (r *topologyTrial) node(name, zone, cidrs, address string) {
	r.t.Helper()
	first, _, _ := strings.Cut(cidrs, ",")
	create(r.t, r.c, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": %q, "labels": {"topology.kubernetes.io/zone": %q, "other": "x"}}, "spec": {"podCIDR": %s, "podCIDRs": [%s]}}`, name, zone, first, cidrs))
	r.status(name, fmt.Sprintf(`{"addresses": [{"type": "Hostname", "address": %q}, {"type": "ExternalIP", "address": "203.0.113.9"}, {"type": "InternalIP", "address": %q}]}`, name, address))
}

func (r *topologyTrial) status(name, status string) {
	r.t.Helper()
	r.c.Kubectl(r.t, "", "patch", "node", name, "--subresource=status", "--type=merge", "-p", `{"status": `+status+`}`)
}

// booked waits until the ledger has a topology, and returns its epoch.
func (r *topologyTrial) booked(what string, want pod.Topology) (epoch int64) {
	r.t.Helper()
	testkit.Eventually(r.t, what, func() bool {
		got, e, err := r.Topology(r.t.Context(), "c")
		epoch = e
		return err == nil && reflect.DeepEqual(got, want)
	})
	return epoch
}

// networkOf returns the network of a node of a zone with these prefixes.
func networkOf(zone string, prefixes ...string) pod.NodeNetwork {
	n := pod.NodeNetwork{Zone: zone}
	for _, p := range prefixes {
		n.Prefixes = append(n.Prefixes, netip.MustParsePrefix(p))
	}
	return n
}

// TestTopologyOfCluster: the ledger has the nodes of a real API server with their zones and addresses, follows their changes, and has
// a newer epoch after a restart of the server and for changes only. Without the right to list nodes it keeps what it has.
func TestTopologyOfCluster(t *testing.T) {
	testkit.Stage(t, "kube", "runs etcd and an API server")
	c := testbed.Start(t, testbed.API, testbed.Options{})
	r := &topologyTrial{newNamed(t), c}
	cfg := kube.Config{Cluster: "c", Kubeconfig: account(t, c, ""), Holder: "server"}
	log := &syncbuf.Buffer{}
	r.node("n1", "eu-1a", `"10.1.1.0/24", "fd00:1:1::/64"`, "10.0.0.1")
	r.node("n2", "eu-1b", `"10.1.2.0/24"`, "10.0.0.2")
	n1, n2 := networkOf("eu-1a", "10.0.0.1/32", "10.1.1.0/24", "fd00:1:1::/64"), networkOf("eu-1b", "10.0.0.2/32", "10.1.2.0/24")
	_, stopFirst := r.watch(cfg, log)
	first := r.booked("both nodes", pod.Topology{"n1": n1, "n2": n2})

	// A node that comes, one that changes and one that goes.
	r.node("n3", "eu-1a", `"10.1.3.0/24"`, "169.254.1.1")
	r.status("n3", `{"addresses": [{"type": "InternalIP", "address": "10.0.0.3"}, {"type": "InternalIP", "address": "fd00::3"}]}`)
	c.Kubectl(t, "", "label", "node", "n2", "topology.kubernetes.io/zone=eu-1c", "--overwrite")
	c.Kubectl(t, "", "delete", "node", "n1", "--wait=false")
	now := pod.Topology{"n2": networkOf("eu-1c", "10.0.0.2/32", "10.1.2.0/24"), "n3": networkOf("eu-1a", "10.0.0.3/32", "10.1.3.0/24", "fd00::3/128")}
	changed := r.booked("the changes", now)

	// Writes of kubelets that change neither zones nor addresses are not booked.
	for i := range 3 {
		r.status("n2", fmt.Sprintf(`{"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:%02dZ"}], "nodeInfo": {"kernelVersion": "6.%[1]d"}}`, i))
	}
	c.Kubectl(t, "", "label", "node", "n2", "other=y", "--overwrite")
	time.Sleep(33 * time.Second) // a change would be booked within 30 s
	if got := r.booked("the same", now); first >= changed || got != changed {
		t.Errorf("epochs %d, %d, after heartbeats %d", first, changed, got)
	}

	// After a restart the same has a newer epoch.
	stopFirst()
	w, stop := r.watch(cfg, log)
	testkit.Eventually(t, "a newer epoch", func() bool {
		epochs, err := r.TopologyEpochs(t.Context())
		return err == nil && epochs["c"] > changed
	})
	r.booked("the same after a restart", now)
	if s := w.Stats(); s.Errors != 0 || strings.Contains(log.String(), "level=WARN") {
		t.Errorf("%+v\n%s", s, log)
	}
	stop()

	// An account of an earlier version.
	epochs, err := r.TopologyEpochs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rights := func(resources string) {
		c.Kubectl(t, "", "patch", "clusterrole", "mete-server", "--type=json", "-p", `[{"op": "replace", "path": "/rules/0/resources", "value": [`+resources+`]}]`)
	}
	rights(`"pods", "persistentvolumes", "persistentvolumeclaims"`)
	c.Kubectl(t, "", "delete", "node", "n3", "--wait=false")
	w, stop = r.watch(cfg, log)
	defer stop()
	testkit.Eventually(t, "the log says so", func() bool {
		return w.Stats().Holds && strings.Contains(log.String(), "classes of network traffic do not follow from the nodes")
	})
	time.Sleep(5 * time.Second) // it is refused again and again
	if s := w.Stats(); s.Errors != 0 || strings.Count(log.String(), "level=WARN") != 1 {
		t.Errorf("%+v\n%s", s, log)
	}
	if got := r.booked("as before", now); got != epochs["c"] {
		t.Errorf("without the right the epoch is %d, and was %d", got, epochs["c"])
	}
	rights(`"pods", "nodes", "persistentvolumes", "persistentvolumeclaims"`)
	delete(now, "n3")
	r.booked("with the right", now)
}

package net_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/testbed"
)

// TestKubeServices lets pods of one node of a cluster transfer to a service whose pods are on the other node. Without what the
// node translates, none of it has a class; with it, all of it has that of the pods that answered.
func TestKubeServices(t *testing.T) {
	testkit.Stage(t, "kube", "runs a cluster with two nodes")
	hosttest.Need(t, "root", "netns", "bpf", "cgroup2")
	c := testbed.Start(t, testbed.Real, testbed.Options{})
	pod := func(name string, node int, args string) string {
		return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q, "labels": {"app": %q}}, "spec": {"nodeName": "node%d", "restartPolicy": "Never",
			"terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": %q, "imagePullPolicy": "Never", "args": [%s]}]}}`, name, name[:6], node, testbed.PodImage, args)
	}
	for _, name := range []string{"server1", "server2"} {
		c.Kubectl(t, pod(name, 2, `"serve", "-clients", "100"`), "create", "-f", "-")
	}
	c.Kubectl(t, `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "server"}, "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 7000}]}}`, "create", "-f", "-")
	c.Kubectl(t, "", "wait", "--for=condition=Ready", "pod/server1", "pod/server2", "--timeout=2m")
	service := c.Kubectl(t, "", "get", "service", "server", "-o", "jsonpath={.spec.clusterIP}") + ":80"
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	unified, err := os.Open(v2(t, h).Mount)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unified.Close() }()
	for _, followed := range []bool{false, true} {
		cfg := bpf.Default()
		cfg.Parts = bpf.Net | bpf.Classes
		k, err := bpf.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		clients, servers := usage.ClassInternal, usage.ClassZone
		if err := k.SetClasses(map[netip.Prefix]uint8{netip.MustParsePrefix("10.244.1.0/24"): uint8(clients), netip.MustParsePrefix("10.244.2.0/24"): uint8(servers)}); err != nil {
			t.Fatal(err)
		}
		if followed {
			follow(t, k, "/run/netns/mete-tb-node1")
		}
		a, err := k.AttachNet(int(unified.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		const pods, sent, received = 6, 1_000_000, 2_000_000
		for i := range pods {
			name := fmt.Sprintf("client-%v-%d", followed, i)
			c.Kubectl(t, pod(name, 1, fmt.Sprintf(`"traffic", "-to", %q, "-send", "%d", "-receive", "%d", "-for", "1s"`, service, sent, received)), "create", "-f", "-")
			c.Kubectl(t, "", "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/"+name, "--timeout=2m")
		}
		sums := map[usage.Resource]int64{}
		err = k.ClassCounts(func(_ bpf.ClassKey, n *bpf.ClassCounts) {
			for i, b := range n {
				sums[usage.NetworkRxNode+usage.Resource(i)] += int64(b.Wire)
			}
		})
		if err := errors.Join(err, a.Close(), k.Close()); err != nil {
			t.Fatal(err)
		}
		t.Logf("followed: %v: %v", followed, sums)
		// One end received the bytes that the other one sent, but for segments that were lost or came after the end.
		for one, other := range map[usage.Resource]usage.Resource{servers.Tx(): clients.Rx(), servers.Rx(): clients.Tx()} {
			least := int64(pods * sent)
			if one == servers.Rx() {
				least = pods * received
			}
			if sums[other] < least {
				t.Errorf("the servers have %d bytes of %s, want at least %d", sums[other], other, least)
			}
			if got := float64(sums[one]); followed && (got < 0.99*float64(sums[other]) || got > 1.01*float64(sums[other])) || !followed && got != 0 {
				t.Errorf("followed: %v: the clients have %.0f bytes of %s, the servers %d of %s", followed, got, one, sums[other], other)
			}
		}
	}
}

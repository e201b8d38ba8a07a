package net_test

import (
	"strings"
	"testing"

	"mete.dev/mete/internal/collect/net"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit/hosttest"
)

// TestCapturedPods reads a Kubernetes node: pods with their own namespaces, and services in
// the machine's namespace.
func TestCapturedPods(t *testing.T) {
	h := hosttest.Open(t, "v2-systemd-containerd")
	tab, err := net.Open(h, nil, net.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tab.Close() }()
	pods := []struct {
		path string
		want net.Count
	}{
		{"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod5b325f33_e3ae_4695_a183_eebc09c504e2.slice",
			net.Count{RxBytes: 61350000, TxBytes: 36810000, RxPackets: 81800, TxPackets: 61350}},
		{"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podbffe67e5_1f39_42ee_a3a7_e1bfa4f81598.slice",
			net.Count{RxBytes: 84375000, TxBytes: 50625000, RxPackets: 112500, TxPackets: 84375}},
		{"/kubepods.slice/kubepods-pod1af5e6f8_3e4e_4855_aea2_49579c043389.slice",
			net.Count{RxBytes: 71040000, TxBytes: 42624000, RxPackets: 94720, TxPackets: 71040}},
	}
	for i, p := range pods {
		tab.Track(net.Target{Hierarchy: unified, Slot: usage.Slot(i + 1), Kind: workload.Pod, Path: p.path})
	}
	tab.Track(net.Target{Hierarchy: unified, Slot: 9, Kind: workload.Service, Path: "/system.slice/kubelet.service"})
	// A slice does not hold the namespaces of its members.
	tab.Track(net.Target{Hierarchy: unified, Slot: 10, Kind: workload.Slice, Path: "/kubepods.slice"})
	read(t, tab, true)
	read(t, tab, true)
	for i, p := range pods {
		got := tab.Reading(usage.Slot(i + 1))
		if got.Source != net.Interfaces || got.Count != p.want {
			t.Errorf("%s = %+v, want %+v", p.path, got, p.want)
		}
	}
	if got := tab.Reading(9); got.Source != net.Unseen || !strings.Contains(got.Reason, "machine's") {
		t.Errorf("kubelet = %+v, want none because of the machine's namespace", got)
	}
	if c, ok := tab.NodeTraffic(); !ok || c.RxBytes != 1350000000 || c.TxBytes != 810000000 {
		t.Errorf("NodeTraffic() = %+v, %v", c, ok)
	}
	hosttest.Step(t, h)
	read(t, tab, true)
	if c, _ := tab.NodeTraffic(); c.RxBytes != 1350015000 {
		t.Errorf("NodeTraffic() = %+v a tick later", c)
	}
	for i := range pods {
		if got := tab.Forget(usage.Slot(i + 1)); got.Source != net.Interfaces {
			t.Errorf("Forget(%d) = %+v", i+1, got)
		}
	}
}

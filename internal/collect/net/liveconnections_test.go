package net_test

import (
	"fmt"
	"net/netip"
	"testing"

	"mete.dev/mete/internal/collect/net"
	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/hosttest"
)

// wantSums checks that the edges of each class have the bytes of it.
func wantSums(t testing.TB, what string, got net.Reading) {
	t.Helper()
	if got.Connections == nil {
		return
	}
	if got.Connections.Missed != 0 {
		t.Errorf("%s: %d bytes missed", what, got.Connections.Missed)
	}
	var sums, classes usage.ClassBytes
	for _, e := range got.Connections.Entries {
		if class := usage.NetworkClass(e.Class); class != usage.Unclassified {
			sums.Add(class.Rx(), e.RxBytes)
			sums.Add(class.Tx(), e.TxBytes)
		}
	}
	if got.Classes != nil {
		classes = *got.Classes
	}
	if sums != classes {
		t.Errorf("%s: the edges have %v, the classes %v", what, sums, classes)
	}
}

// TestLiveConnections opens many connections to addresses of another workload, directly, by a service, and from the machine's own
// namespace: each end has one edge of them, with all of their traffic.
func TestLiveConnections(t *testing.T) {
	hosttest.LockExclusive(t, "interfaces")
	n := newServiceNet(t, bpf.Net|bpf.Classes|bpf.Connections, true, func(*classNet) {})
	for _, line := range []string{"tcp " + at(service4, 80) + " 1", "tcp " + at(service6, 80) + " 1"} {
		n.ask(n.a, line) // of the first flow ever, the first packet does not count for the real end
	}
	n.change()
	// edgeOf returns the traffic of the only edge.
	edgeOf := func(what string, got net.Reading, peer string, listens bool, class usage.NetworkClass) connection.Traffic {
		t.Helper()
		wantSums(t, what, got)
		want := connection.Edge{Port: 7000, Protocol: 6, Listens: listens, Class: uint8(class)}
		if peer != "" {
			want.Peer = netip.MustParseAddr(peer)
		}
		if got.Connections == nil {
			t.Fatalf("%s: no connections", what)
		}
		var sum connection.Traffic
		found := false
		for _, e := range got.Connections.Entries {
			if e.Protocol != 6 { // neighbor discovery
				continue
			}
			if peer == "" {
				e.Peer = netip.Addr{}
			}
			if e.Edge != want || found && peer != "" {
				t.Errorf("%s: %+v, want %+v alone", what, e, want)
			}
			sum, found = sum.Plus(e.Traffic), true
		}
		if !found {
			t.Errorf("%s: %+v, want %+v", what, got.Connections, want)
		}
		return sum
	}
	const flows, size = 200, 1000
	for _, c := range []struct {
		what, to, peer string
		class          usage.NetworkClass
	}{
		{"direct", join(zone4), zone4, usage.ClassZone},
		{"direct, IPv6", join(zone6), zone6, usage.ClassZone},
		{"without a class", join(unknown4), unknown4, usage.Unclassified},
		{"a service", at(service4, 80), zone4, usage.ClassZone},
		{"a service, IPv6", at(service6, 80), zone6, usage.ClassZone},
	} {
		n.ask(n.a, fmt.Sprintf("short %s %d %d", c.to, flows, size))
		got := n.change()
		client := edgeOf(c.what+": client", got[1], c.peer, false, c.class)
		server := edgeOf(c.what+": server", got[2], "", true, usage.Unclassified)
		// Nothing is lost between the two.
		if client.TxBytes != server.RxBytes || client.RxBytes != server.TxBytes || client.TxBytes < flows*size {
			t.Errorf("%s: the client has %+v, the server %+v", c.what, client, server)
		}
	}
	n.ask(n.c, fmt.Sprintf("short %s %d %d", at(service4, 80), flows, size))
	edgeOf("the machine", n.change()[3], zone4, false, usage.ClassZone)
	for _, p := range []*program{n.a, n.b, n.c} {
		p.end()
	}
}

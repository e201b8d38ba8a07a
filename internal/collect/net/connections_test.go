package net_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"mete.dev/mete/internal/collect/net"
	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// connected opens a table of a fake machine that counts by peer.
func connected(t testing.TB, f *fake) (*net.Table, *classFake) {
	t.Helper()
	tab, c := classified(t, f)
	tab.CountConnections()
	return tab, c
}

// services is such a table of services with groups from 11 on, in the given namespaces.
func services(t testing.TB, spaces ...uint64) (*net.Table, *classFake) {
	t.Helper()
	f := newFake(t)
	path := func(i int) string { return "/" + string(rune('a'+i)) }
	for i, space := range spaces {
		f.classified(path(i), uint64(11+i), 7+i, space)
	}
	tab, c := connected(t, f)
	for i := range spaces {
		tab.Track(net.Target{Hierarchy: unified, Slot: usage.Slot(i + 1), Kind: workload.Service, Path: path(i)})
	}
	read(t, tab, true)
	read(t, tab, true)
	return tab, c
}

// exchange counts packets of bytes received from a peer and twice as many sent, of a connection to its port 80.
func (c *classFake) exchange(group, space uint64, peer string, class usage.NetworkClass, packets, bytes uint64) {
	e := bpf.Edge{Of: bpf.ClassKey{Group: group, NetNS: space}, Peer: netip.MustParseAddr(peer), Port: 80, Protocol: 6}
	n := c.edges[e]
	if n == nil {
		n = &bpf.EdgeTraffic{Class: uint64(class)}
		c.edges[e] = n
	}
	for _, d := range []struct {
		to *bpf.PacketSize
		by uint64
	}{{&n.Received, 1}, {&n.Sent, 2}} {
		d.to.Wire += d.by * bytes
		d.to.Interface += d.by * (bytes + packets*perPacket)
		d.to.Packets += d.by * packets
		d.to.InterfacePackets += d.by * packets
	}
}

// exchanged is an edge that exchange makes, as it is read.
func exchanged(peer string, class usage.NetworkClass, packets, bytes int64) connection.Entry {
	return connection.Entry{
		Edge:    connection.Edge{Peer: netip.MustParseAddr(peer), Port: 80, Protocol: 6, Class: uint8(class)},
		Traffic: connection.Traffic{RxBytes: bytes, TxBytes: 2 * bytes, RxPackets: packets, TxPackets: 2 * packets},
	}
}

func wantConnections(t testing.TB, got net.Reading, want ...connection.Entry) {
	t.Helper()
	var sketch *connection.Sketch
	if want != nil {
		sketch = &connection.Sketch{Entries: want}
	}
	if d := cmp.Diff(sketch, got.Connections, cmpopts.EquateComparable(netip.Addr{})); d != "" {
		t.Errorf("connections of %+v (-want +got):\n%s", got, d)
	}
}

// TestConnectionOwners checks that a holder of a namespace gets what its interfaces count, of all groups in it, and a workload
// in the machine's namespace what its sockets count, with the classes.
func TestConnectionOwners(t *testing.T) {
	f := newFake(t)
	f.classified("/pod/a", 11, 7, 200)
	f.classified("/pod/b", 12, 8, 200)
	f.classified("/svc", 20, 9, hostSpace)
	tab, c := connected(t, f)
	tab.Track(net.Target{Hierarchy: unified, Slot: 1, Kind: workload.Pod, Path: "/pod"})
	tab.Track(net.Target{Hierarchy: unified, Slot: 2, Kind: workload.Container, Parent: 1, Path: "/pod/a"})
	tab.Track(net.Target{Hierarchy: unified, Slot: 3, Kind: workload.Service, Path: "/svc"})
	read(t, tab, true)
	read(t, tab, true)
	for slot := range usage.Slot(3) {
		wantConnections(t, tab.Reading(slot+1))
	}
	c.exchange(11, 200, "10.0.0.1", usage.ClassNode, 2, 1000)
	c.exchange(12, 200, "10.0.0.1", usage.ClassNode, 1, 100)
	c.exchange(11, 200, "10.0.0.2", usage.Unclassified, 1, 70)
	c.exchange(20, hostSpace, "10.0.0.1", usage.ClassZone, 4, 50)
	c.exchange(20, hostSpace, "9.9.9.9", usage.ClassInternet, 1, 5)
	c.exchange(99, hostSpace, "9.9.9.9", usage.ClassInternet, 1, 5) // of no workload
	read(t, tab, false)
	wantConnections(t, tab.Reading(1)) // between the edges of windows they are not read
	check := func() {
		t.Helper()
		wantConnections(t, tab.Reading(1), exchanged("10.0.0.1", usage.ClassNode, 3, 1100+3*perPacket), exchanged("10.0.0.2", usage.Unclassified, 1, 70+perPacket))
		wantClasses(t, tab.Reading(1), byClass{usage.ClassNode: 1100 + 3*perPacket})
		wantConnections(t, tab.Reading(2))
		wantConnections(t, tab.Reading(3), exchanged("9.9.9.9", usage.ClassInternet, 1, 5), exchanged("10.0.0.1", usage.ClassZone, 4, 50))
		wantClasses(t, tab.Reading(3), byClass{usage.ClassZone: 50, usage.ClassInternet: 5})
	}
	read(t, tab, true)
	check()
	read(t, tab, false)
	check()
	tab.Booked()
	for slot := range usage.Slot(3) {
		wantConnections(t, tab.Reading(slot+1))
		wantClasses(t, tab.Reading(slot+1), nil)
	}
}

// TestConnectionsBooked checks that only what was shown is booked, and that a reading does not change.
func TestConnectionsBooked(t *testing.T) {
	tab, c := services(t, hostSpace)
	c.exchange(11, hostSpace, "10.0.0.1", usage.ClassNode, 1, 100)
	read(t, tab, true)
	tab.Booked() // nothing was shown
	first := tab.Reading(1)
	wantConnections(t, first, exchanged("10.0.0.1", usage.ClassNode, 1, 100))
	c.exchange(11, hostSpace, "10.0.0.1", usage.ClassNode, 1, 7)
	read(t, tab, true)
	second := tab.Reading(1) // the first was not booked
	wantConnections(t, second, exchanged("10.0.0.1", usage.ClassNode, 2, 107))
	wantConnections(t, first, exchanged("10.0.0.1", usage.ClassNode, 1, 100))
	c.exchange(11, hostSpace, "10.0.0.2", usage.ClassNode, 1, 8)
	read(t, tab, true)
	tab.Booked() // the second
	wantConnections(t, second, exchanged("10.0.0.1", usage.ClassNode, 2, 107))
	wantConnections(t, tab.Reading(1), exchanged("10.0.0.2", usage.ClassNode, 1, 8))
	tab.Booked()
	wantConnections(t, tab.Reading(1))
}

// TestConnectionsWithoutOwner checks that traffic is given to a workload that is found later, as it counts, and forgotten if none is.
func TestConnectionsWithoutOwner(t *testing.T) {
	for ends, known := range map[int]bool{3: true, 4: false} {
		f := newFake(t)
		f.classified("/a", 11, 7, 200)
		f.classified("/b", 12, 8, hostSpace)
		tab, c := connected(t, f)
		c.exchange(11, 200, "10.0.0.1", usage.ClassNode, 1, 100)
		c.exchange(12, hostSpace, "10.0.0.1", usage.ClassNode, 1, 200)
		for range ends {
			read(t, tab, true)
		}
		tab.Track(net.Target{Hierarchy: unified, Slot: 1, Kind: workload.Service, Path: "/a"})
		tab.Track(net.Target{Hierarchy: unified, Slot: 2, Kind: workload.Service, Path: "/b"})
		read(t, tab, false)
		read(t, tab, false)
		c.exchange(11, 200, "10.0.0.1", usage.ClassNode, 1, 5)
		read(t, tab, true)
		if known {
			wantConnections(t, tab.Reading(1), exchanged("10.0.0.1", usage.ClassNode, 2, 105+2*perPacket))
			wantClasses(t, tab.Reading(1), byClass{usage.ClassNode: 105 + 2*perPacket})
			wantConnections(t, tab.Reading(2), exchanged("10.0.0.1", usage.ClassNode, 1, 200))
			wantClasses(t, tab.Reading(2), byClass{usage.ClassNode: 200})
		} else {
			wantConnections(t, tab.Reading(1), exchanged("10.0.0.1", usage.ClassNode, 1, 5+perPacket))
			wantConnections(t, tab.Reading(2))
		}
	}
}

// TestConnectionsOfEnded checks that the last reading of a workload that ends between two edges of windows has its connections, and that
// others keep theirs.
func TestConnectionsOfEnded(t *testing.T) {
	tab, c := services(t, 200, hostSpace)
	c.exchange(11, 200, "10.0.0.1", usage.ClassNode, 1, 100)
	c.exchange(12, hostSpace, "10.0.0.1", usage.ClassNode, 1, 200)
	read(t, tab, false)
	wantConnections(t, tab.Forget(1), exchanged("10.0.0.1", usage.ClassNode, 1, 100+perPacket))
	wantConnections(t, tab.Reading(2), exchanged("10.0.0.1", usage.ClassNode, 1, 200))
}

// TestConnectionsOfMany checks that the largest edges of very many stay, with what may be missing: a part of the edges, and what
// the kernel had no room for.
func TestConnectionsOfMany(t *testing.T) {
	tab, c := services(t, hostSpace)
	var whole int64
	for i := range 2000 {
		bytes := uint64(1 + i%7)
		if i%200 == 0 {
			bytes = 10_000 + uint64(i)
		}
		c.exchange(11, hostSpace, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String(), usage.ClassNode, 1, bytes)
		whole += 3 * int64(bytes)
	}
	c.receive(11, hostSpace, usage.ClassNode, 1, 11) // and twice as many sent
	read(t, tab, true)
	got := tab.Reading(1)
	const missed = 3 * 11
	if s := got.Connections; s == nil || len(s.Entries) != connection.Top || s.Missed < missed || s.Missed > missed+whole/(connection.Top+1) {
		t.Fatalf("%+v of %d bytes", s, whole)
	} else if s.Missed <= missed+3*7 { // the largest of the small ones
		t.Errorf("missed %d: all edges were kept until the end", s.Missed)
	}
	large := 0
	for _, e := range got.Connections.Entries {
		if e.RxBytes >= 10_000 {
			large++
		}
		if e.Error < missed || e.Error > got.Connections.Missed {
			t.Errorf("%+v: the error is not between %d and %d", e, missed, got.Connections.Missed)
		}
	}
	if large != 10 {
		t.Errorf("%d of the 10 large ones are there", large)
	}
	if sum := (*got.Classes)[0] + (*got.Classes)[1]; sum != whole+missed {
		t.Errorf("the classes have %d of %d", sum, whole+missed)
	}
}

// TestConnectionsOfStrangers checks that the traffic of very many namespaces without an owner waits too: by class alone.
func TestConnectionsOfStrangers(t *testing.T) {
	const spaces = 300 // of one workload that is found later
	f := newFake(t)
	f.classified("/a", 11, 7, hostSpace)
	tab, c := connected(t, f)
	for i := range uint64(spaces) {
		for edge := range uint64(connection.Top) {
			c.exchange(11, 1000+i, netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(edge)}).String(), usage.ClassNode, 1, 10)
		}
	}
	read(t, tab, true)
	tab.Track(net.Target{Hierarchy: unified, Slot: 1, Kind: workload.Service, Path: "/a"})
	read(t, tab, true)
	read(t, tab, true)
	got := tab.Reading(1)
	wantClasses(t, got, byClass{usage.ClassNode: spaces * connection.Top * 10})
	whole := int64(spaces * connection.Top * 30)
	s := got.Connections
	const strange = (spaces - 256) * connection.Top * 30 // of the namespaces beyond those whose edges are kept
	if s == nil || len(s.Entries) != connection.Top || s.Missed < strange || s.Missed > whole/3 {
		t.Fatalf("%+v of %d bytes", s, whole)
	} else if s.Missed <= strange+30 { // an edge
		t.Errorf("missed %d: all edges were kept until the end", s.Missed)
	}
	if cap(s.Entries) > 2*connection.Top {
		t.Errorf("there is room for %d edges", cap(s.Entries))
	}
}

// TestConnectionsOfMappedAddresses checks that an address that no packet may have, which any program can write into one, is not one of a peer: batches
// with it would be refused.
func TestConnectionsOfMappedAddresses(t *testing.T) {
	tab, c := services(t, hostSpace)
	c.exchange(11, hostSpace, "::ffff:10.0.0.1", usage.ClassZone, 1, 100)
	c.exchange(11, hostSpace, "10.0.0.1", usage.ClassZone, 1, 7)
	read(t, tab, true)
	got := tab.Reading(1)
	wantClasses(t, got, byClass{usage.ClassZone: 107})
	if s := got.Connections; s == nil || s.Validate() != nil || len(s.Entries) != 1 || s.Entries[0].RxBytes != 7 || s.Missed != 300 || s.Entries[0].Error != 300 {
		t.Errorf("%+v", s)
	}
}

// TestPacketsOfConnections checks that a holder of a namespace has the packets that its interfaces count, and a workload in the machine's
// those of the group.
func TestPacketsOfConnections(t *testing.T) {
	tab, c := services(t, 200, hostSpace)
	for i, space := range []uint64{200, hostSpace} {
		c.exchange(uint64(11+i), space, "10.0.0.1", usage.ClassNode, 9, 100)
	}
	for _, n := range c.edges {
		n.Received.InterfacePackets, n.Sent.InterfacePackets = 2, 3
	}
	read(t, tab, true)
	for slot, want := range map[usage.Slot][2]int64{1: {2, 3}, 2: {9, 18}} {
		if s := tab.Reading(slot).Connections; s == nil || len(s.Entries) != 1 || s.Entries[0].RxPackets != want[0] || s.Entries[0].TxPackets != want[1] {
			t.Errorf("%d: %+v, want %v packets", slot, s, want)
		}
	}
}

// TestPutConnections checks that a group has the classes and connections of a reading, and none of one without a source.
func TestPutConnections(t *testing.T) {
	r := net.Reading{Source: net.Sockets, Classes: &usage.ClassBytes{1}, Connections: &connection.Sketch{Missed: 1}}
	var g usage.Group
	if r.Put(&g); g.Classes != r.Classes || g.Connections != r.Connections {
		t.Errorf("%v and %v", g.Classes, g.Connections)
	}
	g = usage.Group{}
	r.Source = net.Unseen
	if r.Put(&g); g.Classes != nil || g.Connections != nil {
		t.Errorf("%v and %v without a source", g.Classes, g.Connections)
	}
}

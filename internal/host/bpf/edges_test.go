package bpf_test

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/testkit"
)

// TestLiveEdges opens a TCP connection over the loopback interface of a namespace, by a client with a lower and with a higher port than
// the server's: the server's edge is the one that listens, and both have all that the group has.
func TestLiveEdges(t *testing.T) {
	for _, c := range []struct{ name, server, client string }{
		{"IPv4", "127.0.0.1:0", ""}, {"IPv6", "[::1]:0", ""}, {"a lower port of the client", "127.0.0.1:20000", "127.0.0.1:10000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			k, dir := classifying(t, bpf.Connections)
			setClasses(t, k, prefixes(map[string]uint8{"127.0.0.1/32": 2, "::1/128": 2}))
			kid := spawn(t, []string{dir}, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}, "tcp", fmt.Sprint(8<<20), c.server, c.client)
			kid.start()
			kid.answer()
			group := kernfsID(t, dir)
			var total bpf.Counts
			testkit.Eventually(t, "all that was sent over the loopback is received", func() bool {
				total, _ = count(k, 0, group)
				return total.RxBytes == total.TxBytes
			})
			got := map[bool]bpf.EdgeTraffic{}
			var sum bpf.Counts
			var port uint16
			if err := k.DrainEdges(func(e bpf.Edge, n *bpf.EdgeTraffic) {
				server := netip.MustParseAddrPort(c.server)
				if _, twice := got[e.Listens]; twice || port != 0 && e.Port != port || e.Port != server.Port() && server.Port() != 0 || e.Peer != server.Addr() || e.Protocol != 6 || e.Of.Group != group ||
					e.Of.NetNS != kernfsID(t, fmt.Sprintf("/proc/%d/ns/net", kid.cmd.Process.Pid)) {
					t.Errorf("%+v, twice %v", e, twice)
				}
				got[e.Listens], port = *n, e.Port
				sum.RxBytes += n.Received.Wire
				sum.TxBytes += n.Sent.Wire
				sum.RxPackets += n.Received.Packets
				sum.TxPackets += n.Sent.Packets
			}); err != nil {
				t.Fatal(err)
			}
			if sum.RxBytes != total.RxBytes || sum.TxBytes != total.TxBytes || sum.RxPackets != total.RxPackets || sum.TxPackets != total.TxPackets {
				t.Errorf("the edges have %+v, the group %+v", sum, total)
			}
			client, server := got[false], got[true]
			if client.Sent != server.Received || client.Received != server.Sent || client.Sent.Wire < 8<<20 || client.Class != 2 || server.Class != 2 {
				t.Errorf("the client has %+v, the server %+v", client, server)
			}
			kid.end()
		})
	}
}

// TestLiveEdgesOfDatagrams sends from a connected socket: it is the end that does not listen.
func TestLiveEdgesOfDatagrams(t *testing.T) {
	k, dir := classifying(t, bpf.Connections)
	setClasses(t, k, prefixes(map[string]uint8{"127.0.0.0/8": 1}))
	s := newSender(t, dir)
	const sends = 8 // each from and to other ports
	for n := range sends {
		s.send("127.0.0.1", "127.0.0.2", n+1)
	}
	type one struct {
		Peer   string
		Of     bpf.ClassKey
		Amount bpf.PacketSize
	}
	var got []one
	if err := k.DrainEdges(func(e bpf.Edge, n *bpf.EdgeTraffic) {
		if e.Peer == netip.MustParseAddr("127.0.0.2") {
			if e.Listens || n.Received != (bpf.PacketSize{}) {
				t.Errorf("%+v: %+v", e, *n)
			}
			got = append(got, one{e.Peer.String(), e.Of, n.Sent})
		}
	}); err != nil {
		t.Fatal(err)
	}
	const size = 20 + 8 + datagram
	var want []one
	for n := uint64(1); n <= sends; n++ {
		want = append(want, one{"127.0.0.2", s.key, bpf.PacketSize{Wire: n * size, Interface: n * (size + 14), Packets: n, InterfacePackets: n}})
	}
	less := cmpopts.SortSlices(func(a, b one) bool { return a.Amount.Wire < b.Amount.Wire })
	if d := cmp.Diff(want, got, less); d != "" {
		t.Errorf("edges of the sender (-want +got):\n%s", d)
	}
}

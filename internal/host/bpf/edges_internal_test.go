package bpf

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
)

// drained returns the traffic by edge since the last call. The keys are those of this test.
func (k *Kernel) drained(t testing.TB) map[Edge]EdgeTraffic {
	t.Helper()
	all := map[Edge]EdgeTraffic{}
	if err := k.DrainEdges(func(e Edge, n *EdgeTraffic) {
		e.Of = ClassKey{}
		if _, twice := all[e]; twice {
			t.Errorf("%v twice", e)
		}
		all[e] = *n
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// amount is the traffic of a number of packets with a size from the IP header on.
func amount(packets, size uint64) PacketSize {
	return PacketSize{Wire: packets * size, Interface: packets * (size + 14), Packets: packets, InterfacePackets: packets}
}

// TestEdges counts packets by edge. The sockets of a test are of no protocol: the lower port is that of the end that listens.
func TestEdges(t *testing.T) {
	const here, there, tcp, udp = "10.1.0.9:4000", "10.2.0.7:443", 6, 17
	const syn, ack = 2, 16
	edge := func(peer string, protocol uint8, listens bool) Edge {
		p := port(peer)
		return Edge{Peer: p.Addr(), Port: p.Port(), Protocol: protocol, Listens: listens}
	}
	for _, c := range []struct {
		name string
		pass func(k *Kernel) map[Edge]EdgeTraffic
	}{
		{"both directions", func(k *Kernel) map[Edge]EdgeTraffic {
			n := k.packet(t, here, there, tcp, syn, true)
			k.packet(t, there, here, tcp, syn|ack, false)
			k.packet(t, here, there, tcp, ack, true)
			return map[Edge]EdgeTraffic{edge(there, tcp, false): {amount(1, n), amount(2, n), 4}}
		}},
		{"a port of its own", func(k *Kernel) map[Edge]EdgeTraffic {
			n := k.packet(t, "10.2.0.7:5000", "10.1.0.9:80", tcp, syn, false)
			k.packet(t, "10.2.0.7:5001", "10.1.0.9:80", tcp, syn, false)
			k.packet(t, "10.1.0.9:80", "10.2.0.7:5001", tcp, ack, true)
			return map[Edge]EdgeTraffic{edge("10.2.0.7:80", tcp, true): {amount(2, n), amount(1, n), 4}}
		}},
		{"other ports, protocols and peers", func(k *Kernel) map[Edge]EdgeTraffic {
			n := k.packet(t, here, there, tcp, syn, true)
			k.packet(t, here, there, udp, 0, true)
			k.packet(t, here, "10.2.0.7:444", tcp, syn, true)
			k.packet(t, here, "10.2.0.8:443", tcp, syn, true)
			k.packet(t, here, "10.3.0.8:443", tcp, syn, true) // without a class
			k.packet(t, here, "10.3.0.8:443", tcp, ack, true)
			k.packet(t, "10.3.0.8:443", here, tcp, ack, false)
			return map[Edge]EdgeTraffic{
				edge(there, tcp, false):          {PacketSize{}, amount(1, n), 4},
				edge(there, udp, false):          {PacketSize{}, amount(1, n), 4},
				edge("10.2.0.7:444", tcp, false): {PacketSize{}, amount(1, n), 4},
				edge("10.2.0.8:443", tcp, false): {PacketSize{}, amount(1, n), 4},
				edge("10.3.0.8:443", tcp, false): {amount(1, n), amount(2, n), 0},
			}
		}},
		{"IPv6", func(k *Kernel) map[Edge]EdgeTraffic {
			n := k.packet(t, "[fd00:1::9]:4000", "[fd00:2::7]:443", tcp, syn, true)
			k.packet(t, "[fd00:2::8]:5000", "[fd00:1::9]:80", udp, 0, false)
			return map[Edge]EdgeTraffic{
				edge("[fd00:2::7]:443", tcp, false): {PacketSize{}, amount(1, n), 5},
				edge("[fd00:2::8]:80", udp, true):   {amount(1, n), PacketSize{}, 5},
			}
		}},
		{"without ports", func(k *Kernel) map[Edge]EdgeTraffic {
			n := k.packet(t, here, there, 1, 0, true)
			k.packet(t, here, there, udp, 1, true) // the rest of a datagram
			return map[Edge]EdgeTraffic{
				edge("10.2.0.7:0", 1, false):   {PacketSize{}, amount(1, n), 4},
				edge("10.2.0.7:0", udp, false): {PacketSize{}, amount(1, n), 4},
			}
		}},
		{"a service", func(k *Kernel) map[Edge]EdgeTraffic {
			const service = "10.96.0.1:80"
			original, reply := translation(tcp, here, service, "10.2.0.7:8080")
			other, otherReply := translation(tcp, "10.1.0.9:4001", service, "9.9.9.9:8081")
			k.event(t, message(msgNew, other, otherReply, 0)) // the service is known from now on
			n := k.packet(t, here, service, tcp, syn, true)
			k.packet(t, here, service, tcp, syn, true)
			if got := k.drained(t); len(got) != 0 {
				t.Errorf("%v before the end is chosen", got)
			}
			k.event(t, message(msgNew, original, reply, 0))
			k.packet(t, service, here, tcp, syn|ack, false)
			k.packet(t, "10.1.0.9:4001", service, tcp, ack, true)
			k.packet(t, "10.1.0.9:9002", "10.2.0.7:8080", tcp, ack, true) // without the service
			return map[Edge]EdgeTraffic{
				edge("10.2.0.7:8080", tcp, false): {amount(1, n), amount(3, n), 4},
				edge("9.9.9.9:8081", tcp, false):  {PacketSize{}, amount(1, n), 6},
			}
		}},
		{"a service from a lower port", func(k *Kernel) map[Edge]EdgeTraffic {
			const low, service = "10.1.0.9:1000", "10.96.0.1:5353"
			original, reply := translation(udp, low, service, "10.2.0.7:6000")
			k.event(t, message(msgNew, original, reply, 0))
			n := k.packet(t, low, service, udp, 0, true)
			k.packet(t, service, low, udp, 0, false)
			k.packet(t, low, "10.96.0.2:5353", udp, 0, true) // no service
			return map[Edge]EdgeTraffic{
				edge("10.2.0.7:6000", udp, false): {amount(1, n), amount(1, n), 4},
				edge("10.96.0.2:1000", udp, true): {PacketSize{}, amount(1, n), 0},
			}
		}},
		{"a service before it is known", func(k *Kernel) map[Edge]EdgeTraffic {
			const service = "10.96.0.1:80"
			n := k.packet(t, here, service, tcp, syn, true)
			original, reply := translation(tcp, here, service, "10.2.0.7:8080")
			k.event(t, message(msgNew, original, reply, 0))
			k.packet(t, here, service, tcp, ack, true)
			return map[Edge]EdgeTraffic{
				edge(service, tcp, false):         {PacketSize{}, amount(1, n), 0},
				edge("10.2.0.7:8080", tcp, false): {PacketSize{}, amount(1, n), 4},
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := classifier(t, Connections)
			follow(t, k)
			if d := cmp.Diff(c.pass(k), k.drained(t), cmpopts.EquateComparable(netip.Addr{})); d != "" {
				t.Errorf("edges (-want +got):\n%s", d)
			}
			if got := k.drained(t); len(got) != 0 {
				t.Errorf("%v after they were drained", got)
			}
			if err := k.ClassCounts(func(of ClassKey, n *ClassCounts) { t.Errorf("%v without an edge: %v", of, *n) }); err != nil {
				t.Error(err)
			}
		})
	}
}

// follow makes the kernel take events as those of this namespace.
func follow(t testing.TB, k *Kernel) {
	t.Helper()
	var netns unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &netns); err != nil {
		t.Skip(err)
	}
	if err := k.count.maps["following"].Put(uint32(0), k.following(netns.Ino)); err != nil {
		t.Fatal(err)
	}
}

// TestEdgesWithoutRoom opens more connections than there is room for: what is missing counts by class alone, known edges
// count on, and there is room again once they are drained.
func TestEdgesWithoutRoom(t *testing.T) {
	for name, fill := range map[string]func(k *Kernel) (room int){
		"of a key": func(*Kernel) int { return MaxEdgesOf },
		"at all": func(k *Kernel) int {
			for i := range uint32(MaxEdges) {
				key := edgeKey{Group: 7, Peer: [16]byte(binary.BigEndian.AppendUint32(make([]byte, 12), i))}
				if err := k.count.maps["edges"].Put(&key, &EdgeTraffic{}); errors.Is(err, unix.E2BIG) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
			return 0
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := classifier(t, Connections)
			room := fill(k)
			const more = 10
			var size uint64
			for i := range uint32(room + more) {
				// Half of the peers beyond the room have a class.
				peer := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(2 + i%2), byte(i >> 8), byte(i)}), 80).String()
				size = k.packet(t, "10.1.0.9:4000", peer, 6, 2, true)
			}
			k.packet(t, "10.1.0.9:4000", "10.2.0.0:80", 6, 16, true) // the first one again
			want := map[int]uint64{sent(4): more / 2 * size, 2*(classLimit-1) + 1: more / 2 * size}
			if room == 0 {
				want[sent(4)] += size
			}
			got := map[int]uint64{}
			if err := k.ClassCounts(func(_ ClassKey, n *ClassCounts) {
				for i, b := range n {
					if b.Wire > 0 {
						got[i] += b.Wire
					}
				}
			}); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("bytes by place without an edge (-want +got):\n%s", d)
			}
			own, sum := 0, uint64(0)
			if err := k.DrainEdges(func(e Edge, n *EdgeTraffic) {
				if e.Of.Group != 7 {
					own, sum = own+1, sum+n.Sent.Packets
				}
			}); err != nil {
				t.Fatal(err)
			}
			if own != room || room > 0 && sum != uint64(room+1) {
				t.Errorf("%d edges with %d packets, want %d", own, sum, room)
			}
			k.packet(t, "10.1.0.9:4000", "10.2.200.1:80", 6, 2, true)
			if again := k.drained(t); len(again) != 1 {
				t.Errorf("%v after they were drained", again)
			}
		})
	}
}

// TestPendingWithoutEdges refuses the programs that count by edge: what a flow sends before its real end is known counts by class.
func TestPendingWithoutEdges(t *testing.T) {
	k := classifier(t, Connections)
	k.faults[len(k.faults)-1] = fault.ErrUnsupported
	follow(t, k)
	const here, service, udp = "10.1.0.9:4000", "10.96.0.1:80", 17
	original, reply := translation(udp, "10.1.0.8:4000", service, "9.9.9.9:80")
	k.event(t, message(msgNew, original, reply, 0))
	n := k.packet(t, here, service, udp, 0, true)
	original, reply = translation(udp, here, service, "10.2.0.7:8080")
	k.event(t, message(msgNew, original, reply, 0))
	if d := cmp.Diff(map[int]uint64{sent(4): n}, k.classBytes(t)); d != "" {
		t.Errorf("bytes by place (-want +got):\n%s", d)
	}
}

// TestServiceWithoutClass checks that without Connections, traffic to a service's real end that has no class is in no count.
func TestServiceWithoutClass(t *testing.T) {
	k := classifier(t, 0)
	follow(t, k)
	const here, service = "10.1.0.9:4000", "10.96.0.1:80"
	original, reply := translation(6, here, service, "10.3.0.8:8080") // no class
	k.event(t, message(msgNew, original, reply, 0))
	k.packet(t, here, service, 6, 16, true)
	if err := k.ClassCounts(func(of ClassKey, n *ClassCounts) { t.Errorf("%v: %v", of, *n) }); err != nil {
		t.Error(err)
	}
}

// TestOneDirectionByEdge lets the second one of the programs that count by edge fail: both directions count by class.
func TestOneDirectionByEdge(t *testing.T) {
	programs := programsOf[Connections]
	programsOf[Connections] = []string{programs[0], "connection"} // attaches to nothing
	t.Cleanup(func() { programsOf[Connections] = programs })
	k := openClassifier(t, Connections)
	if k.Err(Connections) == nil {
		t.Fatal("the programs are loaded")
	}
	n := k.packet(t, "10.1.0.9:4000", "10.2.0.7:80", 6, 16, true)
	k.packet(t, "10.2.0.7:80", "10.1.0.9:4000", 6, 16, false)
	if d := cmp.Diff(map[int]uint64{sent(4): n, received(4): n}, k.classBytes(t)); d != "" {
		t.Errorf("bytes by place (-want +got):\n%s", d)
	}
}

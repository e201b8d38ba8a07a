package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
)

// attribute returns a netlink attribute, padded.
func attribute(kind uint16, parts ...[]byte) []byte {
	b := make([]byte, 4)
	for _, p := range parts {
		b = append(b, p...)
	}
	binary.NativeEndian.PutUint16(b, uint16(len(b)))
	binary.NativeEndian.PutUint16(b[2:], kind)
	return append(b, make([]byte, -len(b)&3)...)
}

func nested(kind uint16, parts ...[]byte) []byte {
	return attribute(kind|unix.NLA_F_NESTED, parts...)
}

// A direction of a connection, with the zone of it alone if it is not 0.
type direction struct {
	from, to netip.AddrPort
	protocol uint8
	zone     uint16
}

func (d direction) tuple(kind uint16) []byte {
	source, dest := uint16(attrSource4), uint16(attrDest4)
	if d.from.Addr().Is6() {
		source, dest = attrSource6, attrDest6
	}
	first, second := uint16(attrSourcePort), uint16(attrDestPort)
	if d.protocol == 1 { // ICMP has an id, a type and a code
		first, second = 4, 5
	}
	port := func(p uint16) []byte { return binary.BigEndian.AppendUint16(nil, p) }
	parts := [][]byte{
		nested(attrAddresses, attribute(source, d.from.Addr().AsSlice()), attribute(dest, d.to.Addr().AsSlice())),
		nested(attrPorts, attribute(attrProtocol, []byte{d.protocol}), attribute(first, port(d.from.Port())), attribute(second, port(d.to.Port()))),
	}
	if d.zone != 0 {
		parts = append(parts, attribute(attrTupleZone, port(d.zone)))
	}
	return nested(kind, parts...)
}

// message returns a message about a connection, as the kernel makes it.
func message(kind uint16, original, reply direction, zone uint16) []byte {
	b := make([]byte, 20)
	binary.NativeEndian.PutUint16(b[4:], subsysConntrack<<8|kind)
	b[16] = unix.AF_INET
	if original.from.Addr().Is6() {
		b[16] = unix.AF_INET6
	}
	b = append(append(b, original.tuple(attrOriginal)...), reply.tuple(attrReply)...)
	if zone != 0 {
		b = append(b, attribute(attrZone, binary.BigEndian.AppendUint16(nil, zone))...)
	}
	b = append(b, attribute(12, make([]byte, 4))...) // CTA_ID
	b = append(b, attribute(3, make([]byte, 4))...)  // CTA_STATUS
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	return b
}

func port(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

// translation is a connection from and to an address, behind which is another.
func translation(protocol uint8, from, to, behind string) (original, reply direction) {
	return direction{port(from), port(to), protocol, 0}, direction{port(behind), port(from), protocol, 0}
}

// classifier opens a kernel that classifies all packets of tests, with a few rules, and has another part too.
func classifier(t testing.TB, more Part) *Kernel {
	t.Helper()
	k := openClassifier(t, more)
	if more != 0 && k.Err(more) != nil {
		t.Fatal(k.Err(more)) // a kernel that counts by class can do that too
	}
	return k
}

func openClassifier(t testing.TB, more Part) *Kernel {
	t.Helper()
	cfg := Default()
	cfg.Parts, cfg.Groups, cfg.Loopback = Net|Classes|more, 64, true // the packets of a test are of lo
	k, err := Open(cfg)
	if err == nil {
		t.Cleanup(func() { _ = k.Close() })
		err = errors.Join(k.Err(Classes), k.count.eventsErr)
	}
	if errors.Is(err, fault.ErrDenied) || errors.Is(err, fault.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := k.SetClasses(map[netip.Prefix]uint8{
		netip.MustParsePrefix("10.2.0.0/16"): 4, netip.MustParsePrefix("fd00:2::/32"): 5, netip.MustParsePrefix("9.0.0.0/8"): 6,
	}); err != nil {
		t.Fatal(err)
	}
	return k
}

// event lets the kernel take an event.
func (k *Kernel) event(t testing.TB, m []byte) {
	t.Helper()
	// The kernel takes the first 14 bytes for a header of Ethernet.
	got, _, err := k.count.events.Test(append(make([]byte, 14), m...))
	if err != nil {
		t.Fatal(err)
	}
	if got != 0 {
		t.Errorf("the event is kept for the socket: %d", got)
	}
}

// packet lets the kernel count a packet, and returns its size. The flags are those of TCP, or the place of a fragment of IPv4.
func (k *Kernel) packet(t testing.TB, from, to string, protocol uint8, flags byte, sent bool) uint64 {
	t.Helper()
	a, b := port(from), port(to)
	data := frame(a.Addr(), 100)
	ip := data[14:]
	at := 20
	if a.Addr().Is4() {
		copy(ip[16:], b.Addr().AsSlice())
		ip[9] = protocol
	} else {
		copy(ip[24:], b.Addr().AsSlice())
		ip[6], at = protocol, 40
	}
	binary.BigEndian.PutUint16(ip[at:], a.Port())
	binary.BigEndian.PutUint16(ip[at+2:], b.Port())
	if protocol == 6 {
		ip[at+12], ip[at+13] = 5<<4, flags
	} else if at == 20 {
		ip[7] = flags
	}
	program := k.count.net[0]
	if sent {
		program = k.count.net[1]
	}
	if _, _, err := program.Test(data); err != nil {
		t.Fatal(err)
	}
	return uint64(len(ip))
}

// classBytes returns the bytes of each class, from 1, received and sent, of all keys, and drains those that count by edge.
func (k *Kernel) classBytes(t testing.TB) map[int]uint64 {
	t.Helper()
	all := map[int]uint64{}
	add := func(place int, n uint64) {
		if n > 0 && place < received(classLimit) {
			all[place] += n
		}
	}
	err := k.ClassCounts(func(_ ClassKey, n *ClassCounts) {
		for i, b := range n {
			add(i, b.Wire)
		}
	})
	if k.Err(Connections) == nil {
		err = errors.Join(err, k.DrainEdges(func(_ Edge, n *EdgeTraffic) {
			if n.Class > 0 {
				add(received(int(n.Class)), n.Received.Wire)
				add(sent(int(n.Class)), n.Sent.Wire)
			}
		}))
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Places of ClassCounts.
func received(class int) int { return 2 * (class - 1) }
func sent(class int) int     { return 2*(class-1) + 1 }

// TestTranslated lets packets and events pass as they do with a service, and with what looks like one.
func TestTranslated(t *testing.T) {
	const client, service, tcp, udp = "10.1.0.9:4000", "10.96.0.1:53", 6, 17
	const syn, ack = 2, 16
	_, foreign := translation(udp, client, service, "9.9.9.9:53")
	original, reply := translation(udp, client, service, "10.2.0.7:5353")
	zoned := original
	zoned.zone = 7
	icmp, icmpReply := translation(1, client, service, "10.2.0.7:53")
	for _, c := range []struct {
		name string
		pass func(t *testing.T, k *Kernel) map[int]uint64
	}{
		{"UDP", func(t *testing.T, k *Kernel) map[int]uint64 {
			n := k.packet(t, client, service, udp, 0, true)
			k.event(t, message(msgNew, original, reply, 0))
			k.packet(t, client, service, udp, 0, true)
			k.packet(t, service, client, udp, 0, false)
			return map[int]uint64{sent(4): 2 * n, received(4): n}
		}},
		{"IPv6", func(t *testing.T, k *Kernel) map[int]uint64 {
			n := k.packet(t, "[fd00:1::9]:4000", "[fd00:96::1]:53", udp, 0, true)
			a, b := translation(udp, "[fd00:1::9]:4000", "[fd00:96::1]:53", "[fd00:2::7]:53")
			k.event(t, message(msgNew, a, b, 0))
			k.packet(t, "[fd00:96::1]:53", "[fd00:1::9]:4000", udp, 0, false)
			return map[int]uint64{sent(5): n, received(5): n}
		}},
		{"no event", func(t *testing.T, k *Kernel) map[int]uint64 {
			k.packet(t, client, service, udp, 0, true)
			k.packet(t, service, client, udp, 0, false)
			return map[int]uint64{}
		}},
		{"another port of the client", func(t *testing.T, k *Kernel) map[int]uint64 {
			k.event(t, message(msgNew, original, reply, 0))
			k.packet(t, "10.1.0.9:4001", service, udp, 0, true)
			k.packet(t, service, "10.1.0.9:4001", udp, 0, false)
			return map[int]uint64{}
		}},
		{"another protocol", func(t *testing.T, k *Kernel) map[int]uint64 {
			k.event(t, message(msgNew, original, reply, 0))
			k.packet(t, client, service, tcp, ack, true)
			return map[int]uint64{}
		}},
		{"the other direction", func(t *testing.T, k *Kernel) map[int]uint64 {
			k.event(t, message(msgNew, original, reply, 0))
			k.packet(t, service, client, udp, 0, true)
			k.packet(t, client, service, udp, 0, false)
			return map[int]uint64{}
		}},
		{"a later fragment", func(t *testing.T, k *Kernel) map[int]uint64 {
			k.event(t, message(msgNew, original, reply, 0))
			k.packet(t, client, service, udp, 1, true)
			return map[int]uint64{}
		}},
		{"no translation", func(t *testing.T, k *Kernel) map[int]uint64 {
			a, b := translation(udp, client, service, service)
			k.packet(t, client, service, udp, 0, true)
			k.event(t, message(msgNew, a, b, 0))
			k.packet(t, client, service, udp, 0, true)
			// It takes no room.
			var end realEnd
			if err := k.count.maps["real_ends"].Lookup(&flow{source: [16]byte{10, 1, 0, 9}, destination: [16]byte{10, 96, 0, 1}, ports: [4]byte{4000 >> 8, 4000 & 255, 0, 53}, protocol: udp}, &end); !errors.Is(err, ebpf.ErrKeyNotExist) {
				t.Errorf("%v, %v is known", end, err)
			}
			return map[int]uint64{}
		}},
		{"in a zone", func(t *testing.T, k *Kernel) map[int]uint64 {
			k.event(t, message(msgNew, original, reply, 7))
			k.event(t, message(msgNew, zoned, reply, 0))
			k.packet(t, client, service, udp, 0, true)
			return map[int]uint64{}
		}},
		{"ICMP", func(t *testing.T, k *Kernel) map[int]uint64 {
			k.event(t, message(msgNew, icmp, icmpReply, 0))
			k.packet(t, client, service, 1, 0, true)
			k.packet(t, client, service, udp, 0, true)
			return map[int]uint64{}
		}},
		{"an end without a class", func(t *testing.T, k *Kernel) map[int]uint64 {
			a, b := translation(udp, client, service, "10.3.0.7:53")
			k.packet(t, client, service, udp, 0, true)
			k.event(t, message(msgNew, a, b, 0))
			k.packet(t, client, service, udp, 0, true)
			return map[int]uint64{}
		}},
		{"itself", func(t *testing.T, k *Kernel) map[int]uint64 {
			a, b := translation(udp, client, service, "10.1.0.9:53")
			k.packet(t, client, service, udp, 0, true)
			k.event(t, message(msgNew, a, b, 0))
			n := k.packet(t, client, service, udp, 0, true)
			return map[int]uint64{sent(1): 2 * n}
		}},
		{"the loopback interface", func(t *testing.T, k *Kernel) map[int]uint64 {
			a, b := translation(udp, client, service, "127.0.0.1:53")
			k.event(t, message(msgNew, a, b, 0))
			n := k.packet(t, client, service, udp, 0, true)
			return map[int]uint64{sent(1): n}
		}},
		{"an address with a class", func(t *testing.T, k *Kernel) map[int]uint64 {
			a, b := translation(udp, client, "9.1.1.1:53", "10.2.0.7:53")
			k.event(t, message(msgNew, a, b, 0))
			n := k.packet(t, client, "9.1.1.1:53", udp, 0, true)
			return map[int]uint64{sent(6): n}
		}},
		{"the connection ends", func(t *testing.T, k *Kernel) map[int]uint64 {
			k.event(t, message(msgNew, original, reply, 0))
			n := k.packet(t, client, service, udp, 0, true)
			k.event(t, message(2, original, reply, 0))
			k.packet(t, client, service, udp, 0, true) // pending
			k.event(t, message(msgNew, original, foreign, 0))
			return map[int]uint64{sent(4): n, sent(6): n}
		}},
		{"ports that are used again", func(t *testing.T, k *Kernel) map[int]uint64 {
			a, b := translation(tcp, client, service, "10.2.0.7:53")
			other := b
			other.from = port("9.9.9.9:53")
			n := k.packet(t, client, service, tcp, syn, true)
			k.event(t, message(msgNew, a, b, 0))
			k.packet(t, service, client, tcp, syn|ack, false)
			k.packet(t, client, service, tcp, ack, true)
			k.packet(t, client, service, tcp, syn, true) // of the next connection
			k.event(t, message(msgNew, a, other, 0))
			k.packet(t, service, client, tcp, syn|ack, false)
			return map[int]uint64{sent(4): 2 * n, received(4): n, sent(6): n, received(6): n}
		}},
		{"no room", func(t *testing.T, k *Kernel) map[int]uint64 {
			for i := range maxTranslated {
				if err := k.count.maps["real_ends"].Put(&flow{protocol: udp, ports: [4]byte{byte(i), byte(i >> 8)}}, &realEnd{}); errors.Is(err, unix.E2BIG) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
			n := k.packet(t, client, service, udp, 0, true)
			k.event(t, message(msgNew, original, reply, 0))
			k.packet(t, service, client, udp, 0, false)
			k.event(t, message(msgNew, original, foreign, 0)) // an earlier event was lost
			k.packet(t, client, service, udp, 0, true)
			k.event(t, message(2, original, foreign, 0))
			k.packet(t, service, client, udp, 0, false)
			return map[int]uint64{sent(4): n, received(4): n, sent(6): n}
		}},
		{"truncated", func(t *testing.T, k *Kernel) map[int]uint64 {
			m := message(msgNew, original, reply, 0)
			for i := range 20 + 2*52 + 4 {
				if i > 0 {
					k.event(t, m[:i])
				}
			}
			k.packet(t, client, service, udp, 0, true)
			return map[int]uint64{}
		}},
		{"of another subsystem", func(t *testing.T, k *Kernel) map[int]uint64 {
			m := message(msgNew, original, reply, 0)
			m[5] = 2
			k.event(t, m)
			k.packet(t, client, service, udp, 0, true)
			return map[int]uint64{}
		}},
	} {
		for _, more := range []Part{0, Connections} {
			t.Run(fmt.Sprintf("%s/connections=%v", c.name, more != 0), func(t *testing.T) {
				k := classifier(t, more)
				follow(t, k)
				// The services are known.
				for _, s := range [][2]string{{service, "10.2.0.1:1"}, {"[fd00:96::1]:53", "[fd00:2::1]:1"}} {
					for _, protocol := range []uint8{tcp, udp} {
						from := "10.1.0.1:1"
						if port(s[0]).Addr().Is6() {
							from = "[fd00:1::1]:1"
						}
						a, b := translation(protocol, from, s[0], s[1])
						k.event(t, message(msgNew, a, b, 0))
					}
				}
				if d := cmp.Diff(c.pass(t, k), k.classBytes(t)); d != "" {
					t.Errorf("bytes by place (-want +got):\n%s", d)
				}
			})
		}
	}
}

// BenchmarkServicePacket measures what a packet costs whose address has a class, has none, and is that of a service.
func BenchmarkServicePacket(b *testing.B) {
	const classed, unclassed, service = "10.2.0.9", "10.3.0.9", "10.96.0.1"
	for _, more := range []Part{0, Connections} {
		k := classifier(b, more)
		if err := k.FollowTranslations(); err != nil {
			b.Skip(err)
		}
		original, reply := translation(17, service+":0", service+":0", "10.2.0.7:53")
		for _, translated := range []bool{false, true} {
			if translated {
				k.event(b, message(msgNew, original, reply, 0))
			}
			for _, to := range []string{classed, unclassed, service} {
				for i, direction := range []string{"received", "sent"} {
					b.Run(fmt.Sprintf("connections=%v/translated=%v/%s/%s", more != 0, translated, direction, to), func(b *testing.B) {
						in := frame(netip.MustParseAddr(to), 1000)
						var all time.Duration
						n := 0
						for b.Loop() {
							_, each, err := k.count.net[i].Benchmark(in, 20_000, nil)
							if err != nil {
								b.Skip(err)
							}
							all += each
							n++
						}
						b.ReportMetric(float64(all.Nanoseconds())/float64(n), "ns/packet")
					})
				}
			}
		}
	}
}

// TestConnections parses a dump as the kernel's program parses events.
func TestConnections(t *testing.T) {
	original, reply := translation(17, "10.1.0.9:4000", "10.96.0.1:53", "10.2.0.7:5353")
	six, sixReply := translation(6, "[fd00:1::9]:4000", "[fd00:96::1]:443", "[fd00:2::7]:8443")
	itself, itselfReply := translation(6, "10.1.0.9:4000", "10.96.0.1:80", "10.1.0.9:80")
	plain, plainReply := translation(6, "10.1.0.9:4000", "10.2.0.7:80", "10.2.0.7:80")
	icmp, icmpReply := translation(1, "10.1.0.9:4000", "10.96.0.1:80", "10.1.0.7:80")
	zoned := original
	zoned.zone = 3
	var dump []byte
	for _, m := range [][]byte{
		message(msgNew, original, reply, 0), message(msgNew, six, sixReply, 0), message(msgNew, itself, itselfReply, 0), message(msgNew, plain, plainReply, 0),
		message(msgNew, icmp, icmpReply, 0), message(msgNew, zoned, reply, 0), message(msgNew, original, reply, 9), message(msgNew, original, sixReply, 0), message(2, original, reply, 0),
	} {
		dump = append(dump, m...)
	}
	got := map[string]string{}
	take := func(f flow, e realEnd) {
		got[fmt.Sprint(f)] = fmt.Sprint(e)
	}
	if done, err := connections(dump, take); done || err != nil {
		t.Errorf("done %v, %v", done, err)
	}
	a4, a6 := func(text string) (b [16]byte) { copy(b[:], netip.MustParseAddr(text).AsSlice()); return b }, func(text string) [16]byte { return netip.MustParseAddr(text).As16() }
	want := map[string]string{
		fmt.Sprint(flow{a4("10.1.0.9"), a4("10.96.0.1"), [4]byte{4000 >> 8, 4000 & 255, 0, 53}, 17, 0, 0}):                fmt.Sprint(realEnd{a4("10.2.0.7"), [2]byte{5353 >> 8, 5353 & 255}, 0}),
		fmt.Sprint(flow{a6("fd00:1::9"), a6("fd00:96::1"), [4]byte{4000 >> 8, 4000 & 255, 443 >> 8, 443 & 255}, 6, 1, 0}): fmt.Sprint(realEnd{a6("fd00:2::7"), [2]byte{8443 >> 8, 8443 & 255}, 0}),
		fmt.Sprint(flow{a4("10.1.0.9"), a4("10.96.0.1"), [4]byte{4000 >> 8, 4000 & 255, 0, 80}, 6, 0, 0}):                 fmt.Sprint(realEnd{a4("10.1.0.9"), [2]byte{0, 80}, 1}),
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	end := make([]byte, 20)
	binary.NativeEndian.PutUint32(end, 20)
	binary.NativeEndian.PutUint16(end[4:], unix.NLMSG_DONE)
	if done, err := connections(append(message(msgNew, plain, plainReply, 0), end...), take); !done || err != nil {
		t.Errorf("at the end: done %v, %v", done, err)
	}
	binary.NativeEndian.PutUint16(end[4:], unix.NLMSG_ERROR)
	refused := unix.EPERM
	binary.NativeEndian.PutUint32(end[16:], uint32(-int32(refused)))
	if done, err := connections(end, take); !done || !errors.Is(err, refused) {
		t.Errorf("refused: done %v, %v", done, err)
	}
	if _, err := connections(make([]byte, 16), take); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("of no size: %v", err)
	}
}

// FuzzConnections parses anything.
func FuzzConnections(f *testing.F) {
	original, reply := translation(17, "10.1.0.9:4000", "10.96.0.1:53", "10.2.0.7:5353")
	f.Add(message(msgNew, original, reply, 0))
	f.Add(message(msgNew, original, reply, 9))
	six, sixReply := translation(6, "[fd00:1::9]:4000", "[fd00:96::1]:443", "[fd00:2::7]:8443")
	f.Add(append(message(msgNew, six, sixReply, 0), message(2, six, sixReply, 0)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = connections(b, func(one flow, end realEnd) {
			if one.destination == end.address {
				t.Errorf("%v is not translated", one)
			}
		})
	})
}

func TestFlowLayouts(t *testing.T) {
	for _, c := range []struct{ goType, cType any }{{flow{}, countFlow{}}, {realEnd{}, countRealEnd{}}, {service{}, countService{}}, {edgeKey{}, countEdgeKey{}}, {EdgeTraffic{}, countEdgeCounts{}}, {ClassCounts{}, countClassCounts{}}} {
		a, b := reflect.TypeOf(c.goType), reflect.TypeOf(c.cType)
		if a.Size() != b.Size() {
			t.Errorf("%T has %d bytes, in C %d", c.goType, a.Size(), b.Size())
		}
	}
}

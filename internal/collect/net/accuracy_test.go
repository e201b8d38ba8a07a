package net_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/collect/net"
	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// A classNet is a bridge of this namespace with peers behind it: a and b in namespaces of their own, c in this one and in a
// group of its own. The table tracks them in slots 1, 2 and 3.
type classNet struct {
	t       *testing.T
	tab     *net.Table
	bridge  string
	a, b, c *program
	ends    [2]string          // of a and b, in this namespace
	four    func(n int) string // an address of IPv4
	six     func(n int) string
	foreign string // an address of b that is not behind the bridge by any route of this namespace
	earlier map[usage.Slot]net.Reading
}

// classOf is which address of b has which class; all others behind the bridge are of the machine.
var classOf = map[int]usage.NetworkClass{3: usage.ClassZone, 4: usage.ClassInternal, 5: usage.ClassPeering, 6: usage.ClassBox}

// newClassNet counts with the given parts of the kernel's programs.
func newClassNet(t *testing.T, parts bpf.Part) *classNet {
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	pid := os.Getpid()
	n := &classNet{t: t, bridge: fmt.Sprintf("mtb%d", pid), earlier: map[usage.Slot]net.Reading{},
		four:    func(i int) string { return fmt.Sprintf("10.%d.%d.%d", pid>>8&255, pid&255, i) },
		six:     func(i int) string { return fmt.Sprintf("fd00:%x::%x", pid&0xffff, i) },
		foreign: fmt.Sprintf("9.%d.%d.9", pid>>8&255, pid&255)}
	ip(t, "link", "add", n.bridge, "type", "bridge")
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", n.bridge).Run() })
	ip(t, "addr", "add", n.four(1)+"/24", "dev", n.bridge)
	ip(t, "-6", "addr", "add", n.six(1)+"/64", "dev", n.bridge, "nodad")
	ip(t, "link", "set", n.bridge, "up")
	rules := net.Rules{}
	for i, class := range classOf {
		rules[netip.PrefixFrom(netip.MustParseAddr(n.four(i)), 32)] = class
		rules[netip.PrefixFrom(netip.MustParseAddr(n.six(i)), 128)] = class
	}
	name := func(p string) string { return fmt.Sprintf("mete-test-net-%d-%s", pid, p) }
	n.a, n.b = start(t, "peer", name("a"), true, groups(t, h, name("a"))), start(t, "peer", name("b"), true, groups(t, h, name("b")))
	n.c = start(t, "peer", name("c"), false, groups(t, h, name("c")))
	n.join(0, n.a, 2+10)
	n.join(1, n.b, 2, 3, 4, 5, 6)
	n.inside(n.b, "addr", "add", n.foreign+"/32", "dev", "eth0")
	n.inside(n.a, "route", "add", n.foreign, "dev", "eth0")
	n.tab = counting(t, h, parts, rules)
	for i, p := range []string{"a", "b", "c"} {
		n.tab.Track(net.Target{Hierarchy: processes(t, h), Slot: usage.Slot(i + 1), Path: "/" + name(p)})
	}
	for range 3 {
		read(t, n.tab, true)
	}
	for slot, source := range map[usage.Slot]net.Source{1: net.Interfaces, 2: net.Interfaces, 3: net.Sockets} {
		if got := n.tab.Reading(slot); got.Source != source {
			t.Fatalf("%d: %+v, want %s", slot, got, source)
		}
	}
	for i := range 6 {
		for _, addr := range []string{n.four(i + 1), n.six(i + 1)} {
			if i > 0 {
				n.ask(n.b, "listen "+join(addr))
			}
		}
	}
	n.ask(n.b, "listen "+join(n.foreign))
	return n
}

func join(addr string) string {
	if strings.Contains(addr, ":") {
		addr = "[" + addr + "]"
	}
	return addr + ":7000"
}

// inside runs ip in the namespace of a peer.
func (n *classNet) inside(p *program, args ...string) {
	n.t.Helper()
	if out, err := exec.Command("nsenter", append([]string{"-t", strconv.Itoa(p.cmd.Process.Pid), "-n", "ip"}, args...)...).CombinedOutput(); err != nil {
		n.t.Fatalf("nsenter ip %v: %v: %s", args, err, out)
	}
}

// join connects a peer to the bridge, with addresses.
func (n *classNet) join(i int, p *program, addrs ...int) {
	n.t.Helper()
	pid := p.cmd.Process.Pid
	n.ends[i] = fmt.Sprintf("mt%d", pid)
	ip(n.t, "link", "add", n.ends[i], "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(pid))
	n.t.Cleanup(func() { _ = exec.Command("ip", "link", "del", n.ends[i]).Run() })
	ip(n.t, "link", "set", n.ends[i], "master", n.bridge, "up")
	for _, a := range addrs {
		n.inside(p, "addr", "add", n.four(a)+"/24", "dev", "eth0")
		n.inside(p, "-6", "addr", "add", n.six(a)+"/64", "dev", "eth0", "nodad")
	}
	n.inside(p, "link", "set", "lo", "up")
	n.inside(p, "link", "set", "eth0", "up")
}

// ask lets a peer do something, and returns what it sent.
func (n *classNet) ask(p *program, line string) (s sentSum) {
	n.t.Helper()
	p.say(line)
	got, err := p.out.ReadString('\n')
	if err != nil {
		n.t.Fatalf("%s: %v", line, err)
	}
	if _, err := fmt.Sscan(got, &s.bytes, &s.segments, &s.again, &s.received); err != nil {
		n.t.Fatalf("%s: %q: %v", line, got, err)
	}
	return s
}

// change reads the table once no more packets come, as at the edge of a window, and returns what each workload
// transferred since the last call.
func (n *classNet) change() map[usage.Slot]net.Reading {
	n.t.Helper()
	out := map[usage.Slot]net.Reading{}
	var last [3]net.Count
	testkit.Eventually(n.t, "traffic ends", func() bool {
		time.Sleep(200 * time.Millisecond)
		read(n.t, n.tab, true)
		now := [3]net.Count{n.tab.Reading(1).Count, n.tab.Reading(2).Count, n.tab.Reading(3).Count}
		same := now == last
		last = now
		return same
	})
	for slot := range usage.Slot(4) {
		r := n.tab.Reading(slot)
		was := n.earlier[slot]
		n.earlier[slot] = r
		r.RxBytes, r.TxBytes = r.RxBytes-was.RxBytes, r.TxBytes-was.TxBytes
		r.RxPackets, r.TxPackets = r.RxPackets-was.RxPackets, r.TxPackets-was.TxPackets
		out[slot] = r
	}
	n.tab.Booked()
	return out
}

// unclassifiedLimit is how much of traffic may have no class where the path is known.
const unclassifiedLimit = 0.01

// expect checks what a workload transferred: in each class what it should have, within 1 %, and in all no more than as a
// whole. known says that every class of the path is.
func (n *classNet) expect(what string, got net.Reading, known bool, want map[usage.Resource][2]int64) {
	n.t.Helper()
	classes := usage.ClassBytes{}
	if got.Classes != nil {
		classes = *got.Classes
	}
	wantSums(n.t, what, got)
	for i, whole := range []int64{got.RxBytes, got.TxBytes} {
		sum := int64(0)
		for class := usage.ClassNode; class < usage.NetworkClassLimit; class++ {
			r := []usage.Resource{class.Rx(), class.Tx()}[i]
			v, bounds := classes[r-usage.NetworkRxNode], want[r]
			sum += v
			if low, high := float64(bounds[0])*0.99, float64(bounds[1])*1.01; float64(v) < low || float64(v) > high {
				n.t.Errorf("%s: %d of %s, want from %d to %d within 1 %%", what, v, r, bounds[0], bounds[1])
			}
		}
		direction := []string{"received", "sent"}[i]
		part := 0.0
		if whole > 0 {
			part = float64(whole-sum) / float64(whole)
		}
		n.t.Logf("%s: %s %d bytes, %.3f %% unclassified", what, direction, whole, 100*part)
		if sum > whole {
			n.t.Errorf("%s: %s %d in all classes, %d as a whole", what, direction, sum, whole)
		}
		// Neighbor discovery takes a kilobyte or so.
		if known && whole-sum > 4000 && part > unclassifiedLimit {
			n.t.Errorf("%s: %s %d of %d unclassified", what, direction, whole-sum, whole)
		}
	}
}

// Sizes of headers: of IP with TCP and its timestamps, of IP with UDP, and of Ethernet.
const (
	tcp4, tcp6, udp4, udp6 = 20 + 32, 40 + 32, 20 + 8, 40 + 8
	ethernet               = 14
)

// sizes returns the least and the most bytes of segments with headers: an interface counts those of a large packet once.
func sizes(payload, segments, header int64) [2]int64 {
	return [2]int64{payload + segments/45*header, payload + segments*header}
}

func exactly(v int64) [2]int64 { return [2]int64{v, v} }

// dropOf makes the end of a peer in this namespace drop one of n packets that come from the peer.
func dropOf(t *testing.T, name string, n int32) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "drop", Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.FnGetPrandomU32.Call(),
		asm.Mod.Imm32(asm.R0, n),
		asm.JEq.Imm32(asm.R0, 0, "drop"),
		asm.Mov.Imm(asm.R0, -1), // TCX_NEXT
		asm.Return(),
		asm.Mov.Imm(asm.R0, 2).WithSymbol("drop"), // TCX_DROP
		asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("/sys/class/net/" + name + "/ifindex")
	if err != nil {
		t.Fatal(err)
	}
	index, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: p, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, link.ErrNotSupported) {
		t.Skip(err) // Linux 6.6
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(l.Close(), p.Close()); err != nil {
			t.Error(err)
		}
	})
}

// programCost returns the time of the programs of these names, and how often they ran.
func programCost(names ...string) (spent time.Duration, runs uint64) {
	for id, err := ebpf.ProgramGetNextID(0); err == nil; id, err = ebpf.ProgramGetNextID(id) {
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // it is gone
		}
		info, err := p.Info()
		if err == nil && slices.Contains(names, info.Name) {
			if stats, err := p.Stats(); err == nil {
				spent, runs = spent+stats.Runtime, runs+stats.RunCount
			}
		}
		_ = p.Close()
	}
	return spent, runs
}

// TestAccuracyClasses transfers known amounts between namespaces on one bridge, and from the machine's namespace.
func TestAccuracyClasses(t *testing.T) {
	testkit.Stage(t, "accuracy", "transfers hundreds of megabytes")
	testAccuracyClasses(t, bpf.Net|bpf.Classes)
}

// TestAccuracyConnections is the same where traffic counts by peer: the edges of each class have all of it.
func TestAccuracyConnections(t *testing.T) {
	testkit.Stage(t, "accuracy", "transfers hundreds of megabytes")
	testAccuracyClasses(t, bpf.Net|bpf.Classes|bpf.Connections)
}

func testAccuracyClasses(t *testing.T, parts bpf.Part) {
	hosttest.Need(t, "root", "netns", "bpf", "cgroup2")
	hosttest.LockExclusive(t, "interfaces")
	n := newClassNet(t, parts)
	n.change()
	const size = 50_000_000
	type bounds = map[usage.Resource][2]int64
	// A connection of a to an address of b. Only acknowledgments come back.
	bulk := func(what, addr string, class usage.NetworkClass, header int64) {
		t.Helper()
		sum := n.ask(n.a, fmt.Sprintf("tcp %s %d", join(addr), size))
		got := n.change()
		back := [2]int64{0, (sum.received + 2) * (header + 24 + ethernet)}
		sent := sizes(sum.bytes, sum.segments, header+ethernet)
		received := sent
		received[0] = size
		n.expect(what+": a", got[1], true, bounds{class.Tx(): sent, class.Rx(): back})
		n.expect(what+": b", got[2], true, bounds{usage.ClassNode.Rx(): received, usage.ClassNode.Tx(): back})
		n.expect(what+": c", got[3], true, nil)
	}
	datagrams := func(what, addr string, class usage.NetworkClass, header int64) {
		t.Helper()
		const packets = 10_000 / burst * burst
		sum := n.ask(n.a, fmt.Sprintf("udp %s %d", join(addr), packets))
		got := n.change()
		there, back := exactly(packets*(datagram+header+ethernet)), exactly(sum.received*(1+header+ethernet))
		n.expect(what+": a", got[1], true, bounds{class.Tx(): there, class.Rx(): back})
		n.expect(what+": b", got[2], true, bounds{usage.ClassNode.Rx(): there, usage.ClassNode.Tx(): back})
	}
	t.Run("node", func(t *testing.T) {
		bulk("TCP over IPv4", n.four(2), usage.ClassNode, tcp4)
		bulk("TCP over IPv6", n.six(2), usage.ClassNode, tcp6)
		datagrams("UDP over IPv4", n.four(2), usage.ClassNode, udp4)
		datagrams("UDP over IPv6", n.six(2), usage.ClassNode, udp6)
	})
	t.Run("given", func(t *testing.T) {
		bulk("TCP over IPv4", n.four(3), usage.ClassZone, tcp4)
		bulk("TCP over IPv6", n.six(4), usage.ClassInternal, tcp6)
		datagrams("UDP over IPv4", n.four(5), usage.ClassPeering, udp4)
		datagrams("UDP over IPv6", n.six(6), usage.ClassBox, udp6)
	})
	t.Run("sockets", func(t *testing.T) {
		// Each segment counts with its headers here.
		for addr, header := range map[string]int64{n.four(3): tcp4, n.six(3): tcp6} {
			sum := n.ask(n.c, fmt.Sprintf("tcp %s %d", join(addr), size))
			got := n.change()[3]
			n.expect("TCP from the machine's namespace to "+addr, got, true, bounds{usage.ClassZone.Tx(): exactly(sum.bytes + sum.segments*header),
				usage.ClassZone.Rx(): {sum.received * header, sum.received*header + 1000}})
			if got.Classes == nil || got.Classes[usage.NetworkTxZone-usage.NetworkRxNode] != got.TxBytes || got.Classes[usage.NetworkRxZone-usage.NetworkRxNode] != got.RxBytes {
				t.Errorf("%v, want all of %+v", got.Classes, got.Count)
			}
		}
	})
	t.Run("change", func(t *testing.T) {
		first := n.ask(n.a, fmt.Sprintf("tcp %s %d", join(n.foreign), size))
		ip(t, "route", "add", n.foreign+"/32", "dev", n.bridge)
		read(t, n.tab, true) // the edge of a window
		second := n.ask(n.a, fmt.Sprintf("tcp %s %d", join(n.foreign), 2*size))
		got := n.change()[1]
		n.expect("a route is added: a", got, true, bounds{
			usage.ClassInternet.Tx(): sizes(first.bytes, first.segments, tcp4+ethernet), usage.ClassInternet.Rx(): {0, (first.received + 2) * (tcp4 + 24 + ethernet)},
			usage.ClassNode.Tx(): sizes(second.bytes, second.segments, tcp4+ethernet), usage.ClassNode.Rx(): {0, (second.received + 2) * (tcp4 + 24 + ethernet)},
		})
	})
	t.Run("short", func(t *testing.T) {
		const flows, each = 10_000, 1000
		sum := n.ask(n.a, fmt.Sprintf("short %s %d %d", join(n.four(3)), flows, each))
		got := n.change()
		// TCP_INFO does not count the last acknowledgment, and the two first segments have 8 bytes more.
		there, back := sum.bytes+(sum.segments+flows)*(tcp4+ethernet)+8*flows, sum.received*(tcp4+ethernet)+8*flows
		n.expect("short flows: a", got[1], false, bounds{usage.ClassZone.Tx(): {there - flows*(tcp4+ethernet), there}, usage.ClassZone.Rx(): {back - flows*(tcp4+ethernet), back}})
		n.expect("short flows: b", got[2], false, bounds{usage.ClassNode.Rx(): {there - flows*(tcp4+ethernet), there}, usage.ClassNode.Tx(): {back - flows*(tcp4+ethernet), back}})
		sum = n.ask(n.c, fmt.Sprintf("short %s %d %d", join(n.four(3)), flows, each))
		c := n.change()[3]
		n.expect("short flows: c", c, true, bounds{usage.ClassZone.Tx(): {sum.bytes, sum.bytes + (sum.segments+flows)*tcp4 + 8*flows}, usage.ClassZone.Rx(): {0, back}})
	})
	t.Run("left", func(t *testing.T) {
		const flows, each = 10_000, 1000
		n.ask(n.a, fmt.Sprintf("leave %s %d %d", join(n.four(3)), flows, each))
		got := n.change()
		// A segment that comes after the socket is closed may count for no group: at most the last one of the other end.
		n.expect("connections that are left: a", got[1], false, bounds{usage.ClassZone.Tx(): {flows * (each + 4*(tcp4+ethernet)), flows * (each + 6*(tcp4+ethernet))},
			usage.ClassZone.Rx(): {flows * 2 * (tcp4 + ethernet), flows * 5 * (tcp4 + ethernet)}})
		n.expect("connections that are left: b", got[2], false, bounds{usage.ClassNode.Rx(): {flows * (each + 4*(tcp4+ethernet)), flows * (each + 6*(tcp4+ethernet))},
			usage.ClassNode.Tx(): {flows * 2 * (tcp4 + ethernet), flows * 5 * (tcp4 + ethernet)}})
	})
	t.Run("lossy", func(t *testing.T) {
		dropOf(t, n.ends[0], 100)
		sum := n.ask(n.a, fmt.Sprintf("tcp %s %d", join(n.four(3)), size))
		got := n.change()
		if sum.again < size/1000 {
			t.Errorf("%d bytes were sent again: it tests nothing", sum.again)
		}
		t.Logf("%d bytes in %d segments, %d sent again", sum.bytes, sum.segments, sum.again)
		back := [2]int64{0, (sum.received + 2) * (tcp4 + 40 + ethernet)}
		n.expect("TCP with losses: a", got[1], true, bounds{usage.ClassZone.Tx(): sizes(sum.bytes, sum.segments, tcp4+ethernet), usage.ClassZone.Rx(): back})
		n.expect("TCP with losses: b", got[2], true, bounds{usage.ClassNode.Rx(): {size, sizes(sum.bytes, sum.segments, tcp4+ethernet)[1]}, usage.ClassNode.Tx(): back})
	})
	for _, p := range []*program{n.a, n.b, n.c} {
		p.end()
	}
}

// TestAccuracyClassCost logs what a packet costs in the programs that count it, by class, by peer and by neither, at the load
// that a transfer makes.
func TestAccuracyClassCost(t *testing.T) {
	testkit.Stage(t, "accuracy", "measures CPU time")
	hosttest.Need(t, "root", "netns", "bpf", "cgroup2")
	hosttest.LockExclusive(t, "interfaces")
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		t.Skip(err)
	}
	defer func() { _ = stats.Close() }()
	for range 3 {
		for _, parts := range append([]bpf.Part{bpf.Net}, byClassOrPeer...) {
			t.Run(parts.String(), func(t *testing.T) {
				n := newClassNet(t, parts)
				for _, line := range []string{"tcp %s 100000000", "udp %s 64000", "short %s 2000 1000"} {
					programs := []string{"edge_ingress", "edge_egress", "class_ingress", "class_egress", "net_ingress", "net_egress"}
					spent, runs := programCost(programs...)
					n.ask(n.a, fmt.Sprintf(line, join(n.four(3))))
					after, ran := programCost(programs...)
					if ran == runs {
						t.Skip("the kernel keeps no statistics")
					}
					t.Logf(line+": %d runs, %d ns each, with the time that measuring takes", n.four(3), ran-runs, uint64(after-spent)/(ran-runs))
				}
			})
		}
	}
}

package net_test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/collect/net"
	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// Addresses of a network of services. All of it is in namespaces that lead nowhere else.
const (
	a4, a6             = "10.213.1.2", "fd00:213:1::2"
	zone4, zone6       = "10.213.2.2", "fd00:213:2::2" // of b, as all below
	internal4          = "10.213.2.3"
	unknown4           = "10.213.2.4"
	outside4, outside6 = "9.213.2.5", "2a00:213:2::5" // of the internet
	service4, service6 = "10.213.96.1", "fd00:213:96::1"
	hidden4            = "10.213.97.1" // within a prefix of an operator
)

// translations are the ports of the services, and what is behind them.
var translations = map[int]string{80: zone4, 81: internal4, 82: a4, 83: unknown4, 84: outside4}

// newServiceNet makes c hold a namespace in the place of the machine's, which routes between the namespaces of a and of b and
// translates the addresses of services. It calls before when all is there but the table. With followed set, it follows what c translates.
func newServiceNet(t *testing.T, parts bpf.Part, followed bool, before func(*classNet)) *classNet {
	for _, name := range []string{"iptables", "ip6tables", "nsenter"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip(err)
		}
	}
	hosttest.Need(t, "root", "netns", "bpf", "cgroup2")
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	n := &classNet{t: t, earlier: map[usage.Slot]net.Reading{}}
	name := func(p string) string { return fmt.Sprintf("mete-test-net-%d-%s", os.Getpid(), p) }
	peers := []**program{&n.a, &n.b, &n.c}
	for i, p := range peers {
		group := name(string(rune('a' + i)))
		*p = start(t, "peer", group, true, groups(t, h, group))
		n.inside(*p, "link", "set", "lo", "up")
	}
	for i, p := range []*program{n.a, n.b} {
		end := fmt.Sprintf("end%d", i+1)
		n.inside(n.c, "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(p.cmd.Process.Pid))
		n.inside(n.c, "addr", "add", fmt.Sprintf("10.213.%d.1/24", i+1), "dev", end)
		n.inside(n.c, "addr", "add", fmt.Sprintf("fd00:213:%d::1/64", i+1), "dev", end, "nodad")
		n.inside(n.c, "link", "set", end, "up")
	}
	for p, addrs := range map[*program][]string{n.a: {a4 + "/24", a6 + "/64"}, n.b: {zone4 + "/24", internal4 + "/24", unknown4 + "/24", zone6 + "/64", outside4 + "/32", outside6 + "/128"}} {
		for _, addr := range addrs {
			n.inside(p, "addr", "add", addr, "dev", "eth0", "nodad")
		}
		n.inside(p, "link", "set", "eth0", "up")
		subnet := map[*program]int{n.a: 1, n.b: 2}[p]
		n.inside(p, "route", "add", "default", "via", fmt.Sprintf("10.213.%d.1", subnet))
		n.inside(p, "-6", "route", "add", "default", "via", fmt.Sprintf("fd00:213:%d::1", subnet))
	}
	n.inside(n.c, "route", "add", outside4, "dev", "end2")
	n.inside(n.c, "-6", "route", "add", outside6, "dev", "end2")
	n.inside(n.c, "route", "add", service4, "dev", "end2") // for what the namespace itself sends
	n.run(n.c, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding; echo 2 >/proc/sys/net/ipv4/conf/end1/rp_filter")
	for port, to := range translations {
		n.translate(n.c, service4, port, to)
	}
	n.translate(n.c, hidden4, 80, zone4)
	n.translate(n.c, service6, 80, zone6)
	// The answers of a to itself must come back the same way.
	n.run(n.c, "iptables", "-w", "-t", "nat", "-A", "POSTROUTING", "-s", a4, "-d", a4, "-j", "MASQUERADE")

	for _, addr := range []string{zone4, zone6, internal4, unknown4, outside4, outside6} {
		n.ask(n.b, "listen "+join(addr))
	}
	n.ask(n.a, "listen "+join(a4))
	before(n)

	rules := net.Rules{}
	for _, text := range []string{"zone=" + zone4 + "," + zone6, "internal=" + internal4 + ",10.213.97.0/24"} {
		if err := rules.Add(text); err != nil {
			t.Fatal(err)
		}
	}
	cfg := bpf.Default()
	cfg.Parts, cfg.Groups = parts, 64
	k, err := bpf.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	if followed {
		follow(t, k, fmt.Sprintf("/proc/%d/ns/net", n.c.cmd.Process.Pid))
	}
	network := net.Default()
	network.Classes, network.Connections = rules, parts&bpf.Connections != 0
	if n.tab, err = net.Open(h, k, network); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.tab.Close() })
	for i := range peers {
		n.tab.Track(net.Target{Hierarchy: processes(t, h), Slot: usage.Slot(i + 1), Path: "/" + name(string(rune('a'+i)))})
	}
	for range 3 {
		read(t, n.tab, true)
	}
	for slot := range usage.Slot(3) {
		if got := n.tab.Reading(slot + 1); got.Source != net.Interfaces {
			t.Fatalf("%d: %+v, want interfaces", slot+1, got)
		}
	}
	return n
}

// run runs a program in the namespace of a peer.
func (n *classNet) run(p *program, args ...string) {
	n.t.Helper()
	if out, err := exec.Command("nsenter", append([]string{"-t", strconv.Itoa(p.cmd.Process.Pid), "-n"}, args...)...).CombinedOutput(); err != nil {
		n.t.Fatalf("nsenter %v: %v: %s", args, err, out)
	}
}

// translate makes the namespace of a peer translate a port of an address.
func (n *classNet) translate(p *program, from string, port int, to string) {
	n.t.Helper()
	command := "iptables"
	if strings.Contains(from, ":") {
		command, to = "ip6tables", "["+to+"]"
	}
	for _, chain := range []string{"PREROUTING", "OUTPUT"} {
		for _, protocol := range []string{"tcp", "udp"} {
			n.run(p, command, "-w", "-t", "nat", "-A", chain, "-d", from, "-p", protocol, "--dport", strconv.Itoa(port), "-j", "DNAT", "--to-destination", to+":7000")
		}
	}
}

// follow makes a kernel follow what a namespace translates, which is given by its file.
func follow(t testing.TB, k *bpf.Kernel, namespace string) {
	t.Helper()
	done := make(chan error)
	var enter func()
	enter = func() {
		runtime.LockOSThread() // forever: the thread ends with this
		if unix.Gettid() == os.Getpid() {
			// The first thread has to stay: it is this process for others.
			go enter()
			<-t.Context().Done()
			return
		}
		ns, err := os.Open(namespace)
		if err == nil {
			if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err == nil {
				err = k.FollowTranslations()
			}
			_ = ns.Close()
		}
		done <- err
	}
	go enter()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// at is an address of a service with its port.
func at(addr string, port int) string {
	return strings.TrimSuffix(join(addr), ":7000") + ":" + strconv.Itoa(port)
}

// wantOnly checks the bytes of each class; those of classes that are not named are 0.
func (n *classNet) wantOnly(what string, got net.Reading, tx, rx map[usage.NetworkClass]int64) {
	n.t.Helper()
	classes := usage.ClassBytes{}
	if got.Classes != nil {
		classes = *got.Classes
	}
	wantSums(n.t, what, got)
	for class := usage.ClassNode; class < usage.NetworkClassLimit; class++ {
		if v := classes[class.Tx()-usage.NetworkRxNode]; v != tx[class] {
			n.t.Errorf("%s: %d bytes sent of class %s, want %d", what, v, class, tx[class])
		}
		if v := classes[class.Rx()-usage.NetworkRxNode]; v != rx[class] {
			n.t.Errorf("%s: %d bytes received of class %s, want %d", what, v, class, rx[class])
		}
	}
}

// take reads the table as at the edge of a window, and returns what each workload transferred by class since the last call. All packets
// of datagrams that were answered are counted by then.
func (n *classNet) take() map[usage.Slot]net.Reading {
	n.t.Helper()
	read(n.t, n.tab, true)
	out := map[usage.Slot]net.Reading{}
	for slot := range usage.Slot(4) {
		out[slot] = n.tab.Reading(slot)
	}
	n.tab.Booked()
	return out
}

// TestLiveServices sends to addresses that are translated: all of it has the class of the real end.
func TestLiveServices(t *testing.T) {
	for _, parts := range byClassOrPeer {
		t.Run(parts.String(), func(t *testing.T) { testServices(t, parts) })
	}
}

// byClassOrPeer are the parts that count by class, alone and with those that count by peer.
var byClassOrPeer = []bpf.Part{bpf.Net | bpf.Classes, bpf.Net | bpf.Classes | bpf.Connections}

func testServices(t *testing.T, parts bpf.Part) {
	n := newServiceNet(t, parts, true, func(*classNet) {})
	const packets = 2 * burst
	sent := func(header int64) int64 { return packets * (datagram + header + ethernet) }
	back := func(header int64) int64 { return 2 * (1 + header + ethernet) }
	// Of the first flow ever, the first packet is not known to be one to a service.
	for _, addr := range []string{at(service4, 80), at(service4, 81), at(service4, 82), at(service4, 83), at(service4, 84), at(service6, 80), at(hidden4, 80)} {
		n.ask(n.a, "udp "+addr+" 32")
	}
	n.take()
	for _, c := range []struct {
		what, addr string
		class      usage.NetworkClass
		header     int64
	}{
		{"IPv4", at(service4, 80), usage.ClassZone, udp4},
		{"IPv6", at(service6, 80), usage.ClassZone, udp6},
		{"another port", at(service4, 81), usage.ClassInternal, udp4},
		{"an end on the internet", at(service4, 84), usage.ClassInternet, udp4},
		{"in a prefix of an operator", at(hidden4, 80), usage.ClassZone, udp4},
		{"no service", zone4 + ":7000", usage.ClassZone, udp4},
	} {
		n.ask(n.a, fmt.Sprintf("udp %s %d", c.addr, packets))
		got := n.take()
		n.wantOnly(c.what, got[1], byClass{c.class: sent(c.header)}, byClass{c.class: back(c.header)})
	}
	n.ask(n.a, fmt.Sprintf("udp %s %d", at(service4, 83), packets))
	n.wantOnly("an end without a class", n.take()[1], nil, nil)

	// It is both ends, and what arrives comes from an address of the machine, which has no class here.
	n.ask(n.a, fmt.Sprintf("udp %s %d", at(service4, 82), packets))
	n.wantOnly("itself", n.take()[1], byClass{usage.ClassNode: sent(udp4)}, byClass{usage.ClassNode: back(udp4)})

	// From the machine's own namespace: the packets that leave are translated already.
	n.ask(n.c, fmt.Sprintf("udp %s %d", at(service4, 80), packets))
	n.wantOnly("the machine", n.take()[3], byClass{usage.ClassZone: sent(udp4)}, byClass{usage.ClassZone: back(udp4)})

	// An address with another translation from now on, with the ports of an earlier connection.
	n.run(n.c, "sh", "-c", "iptables -w -t nat -F PREROUTING && iptables -w -t nat -A PREROUTING -d "+service4+" -p udp --dport 80 -j DNAT --to-destination "+internal4+":7000")
	n.ask(n.a, fmt.Sprintf("udp %s %d", at(service4, 80), packets))
	n.wantOnly("another end", n.take()[1], byClass{usage.ClassInternal: sent(udp4)}, byClass{usage.ClassInternal: back(udp4)})

	for _, p := range []*program{n.a, n.b, n.c} {
		p.end()
	}
}

// TestLiveServicesOfOthers translates addresses in the namespace of a workload: what it receives from them has no class, whatever the
// machine translates.
func TestLiveServicesOfOthers(t *testing.T) {
	n := newServiceNet(t, bpf.Net|bpf.Classes, true, func(*classNet) {})
	const packets, port = 2 * burst, 5353
	sent := int64(packets * (datagram + udp4 + ethernet))
	n.ask(n.a, "udp "+at(service4, 80)+" 32")
	n.take()
	// The machine translates the connection with these ports.
	n.ask(n.a, fmt.Sprintf("udpfrom %s %d %d", at(service4, 80), packets, port))
	n.wantOnly("the machine's", n.take()[1], byClass{usage.ClassZone: sent}, byClass{usage.ClassZone: 2 * (1 + udp4 + ethernet)})
	n.translate(n.a, service4, 80, outside4)
	n.translate(n.a, "10.213.98.1", 80, outside4)
	for _, addr := range []string{at(service4, 80), "10.213.98.1:80"} {
		for range 2 {
			n.ask(n.a, fmt.Sprintf("udpfrom %s %d %d", addr, packets, port))
			n.wantOnly("its own for "+addr, n.take()[1], byClass{usage.ClassInternet: sent}, nil)
		}
	}
	for _, p := range []*program{n.a, n.b, n.c} {
		p.end()
	}
}

// TestLiveServicesBefore counts what passes over a connection that began before the table was opened. Where another namespace than
// the machine's translates, it has no class.
func TestLiveServicesBefore(t *testing.T) {
	const packets, port = 2 * burst, 5353
	sendFrom := func(n *classNet, port int) {
		n.ask(n.a, fmt.Sprintf("udpfrom %s %d %d", at(service4, 80), packets, port))
	}
	send := func(n *classNet) { sendFrom(n, port) }
	for followed, want := range map[bool][2]byClass{
		true: {{usage.ClassZone: packets * (datagram + udp4 + ethernet)}, {usage.ClassZone: 2 * (1 + udp4 + ethernet)}}, false: {},
	} {
		for _, parts := range byClassOrPeer {
			t.Run(fmt.Sprintf("followed=%v,%s", followed, parts), func(t *testing.T) {
				n := newServiceNet(t, parts, followed, send)
				n.take()
				send(n)
				n.wantOnly("after it", n.take()[1], want[0], want[1])
				sendFrom(n, port+1)
				wantSums(t, "another one", n.take()[1])
				for _, p := range []*program{n.a, n.b, n.c} {
					p.end()
				}
			})
		}
	}
}

// TestAccuracyServices transfers known amounts to addresses that are translated: all of it has the class of the real end.
func TestAccuracyServices(t *testing.T) {
	testkit.Stage(t, "accuracy", "transfers hundreds of megabytes")
	testAccuracyServices(t, bpf.Net|bpf.Classes)
}

// TestAccuracyServiceConnections is the same where traffic counts by peer.
func TestAccuracyServiceConnections(t *testing.T) {
	testkit.Stage(t, "accuracy", "transfers hundreds of megabytes")
	testAccuracyServices(t, bpf.Net|bpf.Classes|bpf.Connections)
}

func testAccuracyServices(t *testing.T, parts bpf.Part) {
	hosttest.LockExclusive(t, "interfaces")
	const size, flows, each = 50_000_000, 10_000, 1000
	type bounds = map[usage.Resource][2]int64
	// Each has a kernel of its own: it has room for a number of connections, and knows closed ones for minutes.
	begin := func(t *testing.T, addr string) *classNet {
		t.Helper()
		n := newServiceNet(t, parts, true, func(*classNet) {})
		for _, line := range []string{"udp " + addr + " 32", "tcp " + addr + " 1"} {
			n.ask(n.a, line) // of the first flow ever, the first packet has no class
		}
		n.change()
		return n
	}
	end := func(n *classNet) {
		for _, p := range []*program{n.a, n.b, n.c} {
			p.end()
		}
	}
	for _, c := range []struct {
		what, addr string
		class      usage.NetworkClass
		tcp, udp   int64
	}{
		{"IPv4", at(service4, 80), usage.ClassZone, tcp4, udp4},
		{"IPv6", at(service6, 80), usage.ClassZone, tcp6, udp6},
		{"itself", at(service4, 82), usage.ClassNode, tcp4, udp4},
	} {
		t.Run(c.what, func(t *testing.T) {
			n := begin(t, c.addr)
			header, known := c.tcp+ethernet, c.what != "itself" // it is the other end too, and sees the machine's address
			sum := n.ask(n.a, fmt.Sprintf("tcp %s %d", c.addr, size))
			got := n.change()
			want := bounds{c.class.Tx(): sizes(sum.bytes, sum.segments, header), c.class.Rx(): {0, (sum.received + 2) * (header + 24)}}
			n.expect("TCP: a", got[1], known, want)
			n.expect("TCP: b", got[2], false, nil)

			const packets = 10_000 / burst * burst
			sum = n.ask(n.a, fmt.Sprintf("udp %s %d", c.addr, packets))
			want = bounds{c.class.Tx(): exactly(packets * (datagram + c.udp + ethernet)), c.class.Rx(): exactly(sum.received * (1 + c.udp + ethernet))}
			n.expect("UDP: a", n.change()[1], known, want)

			n.ask(n.a, fmt.Sprintf("query %s %d", c.addr, flows))
			want = bounds{c.class.Tx(): exactly(flows * (datagram + 1 + c.udp + ethernet)), c.class.Rx(): exactly(flows * (datagram + 1 + c.udp + ethernet))}
			n.expect("queries: a", n.change()[1], known, want)

			sum = n.ask(n.a, fmt.Sprintf("short %s %d %d", c.addr, flows, each))
			// TCP_INFO does not count the last acknowledgment, and the two first segments have 8 bytes more.
			there, back := sum.bytes+(sum.segments+flows)*header+8*flows, sum.received*header+8*flows
			want = bounds{c.class.Tx(): {there - flows*header, there}, c.class.Rx(): {back - flows*header, back}}
			n.expect("short flows: a", n.change()[1], known, want)
			end(n)
		})
	}
	t.Run("two ends", func(t *testing.T) {
		// Every other connection has another end, and ports are in use again soon.
		n := begin(t, at(service4, 80))
		n.run(n.a, "sh", "-c", "echo 30000 38000 >/proc/sys/net/ipv4/ip_local_port_range; echo 1 >/proc/sys/net/ipv4/tcp_tw_reuse")
		n.run(n.c, "iptables", "-w", "-t", "nat", "-I", "PREROUTING", "-d", service4, "-p", "tcp", "--dport", "80", "-m", "statistic", "--mode", "nth", "--every", "2", "--packet", "0",
			"-j", "DNAT", "--to-destination", internal4+":7000")
		sum := n.ask(n.a, fmt.Sprintf("short %s %d %d", at(service4, 80), 2*flows, each))
		const header = tcp4 + ethernet
		there, back := (sum.bytes+(sum.segments+2*flows)*header+8*2*flows)/2, (sum.received*header+8*2*flows)/2
		n.expect("two ends: a", n.change()[1], true, bounds{
			usage.ClassZone.Tx(): {there - flows*header, there}, usage.ClassZone.Rx(): {back - flows*header, back},
			usage.ClassInternal.Tx(): {there - flows*header, there}, usage.ClassInternal.Rx(): {back - flows*header, back},
		})
		end(n)
	})
}

// TestAccuracyServiceCost logs what a packet to a service costs in the programs that count it, and a new connection in the one that
// takes events of connection tracking.
func TestAccuracyServiceCost(t *testing.T) {
	testkit.Stage(t, "accuracy", "measures CPU time")
	hosttest.LockExclusive(t, "interfaces")
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		t.Skip(err)
	}
	defer func() { _ = stats.Close() }()
	n := newServiceNet(t, bpf.Net|bpf.Classes, true, func(*classNet) {})
	n.ask(n.a, "udp "+at(service4, 80)+" 32")
	n.change()
	for range 3 {
		for _, addr := range []string{join(zone4), join(unknown4), at(service4, 80)} {
			for _, line := range []string{"tcp %s 100000000", "udp %s 64000", "short %s 2000 1000"} {
				spent, runs := programCost("class_ingress", "class_egress")
				events, connections := programCost("connection")
				n.ask(n.a, fmt.Sprintf(line, addr))
				after, ran := programCost("class_ingress", "class_egress")
				eventsAfter, connectionsAfter := programCost("connection")
				if ran == runs {
					t.Skip("the kernel keeps no statistics")
				}
				t.Logf(line+": %d runs, %d ns each, with the time that measuring takes; %d events, %d ns each", addr, ran-runs, uint64(after-spent)/(ran-runs),
					connectionsAfter-connections, uint64(eventsAfter-events)/max(connectionsAfter-connections, 1))
			}
		}
	}
}

package net_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/collect/net"
	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A classFake counts traffic by class as the kernel does.
type classFake struct {
	t       testing.TB
	counts  map[bpf.ClassKey]*bpf.ClassCounts
	rules   map[netip.Prefix]uint8
	sets    int
	fail    error                // of the next call of SetClasses
	sockets map[uint64]net.Count // by group

	edges      map[bpf.Edge]*bpf.EdgeTraffic
	services   []netip.Addr
	follows    int
	unfollowed error
}

func newClassFake(t testing.TB) *classFake {
	return &classFake{t: t, counts: map[bpf.ClassKey]*bpf.ClassCounts{}, edges: map[bpf.Edge]*bpf.EdgeTraffic{}, rules: map[netip.Prefix]uint8{}, sockets: map[uint64]net.Count{}}
}

func (c *classFake) SetClasses(rules map[netip.Prefix]uint8) error {
	if maps.Equal(c.rules, rules) {
		return nil
	}
	c.sets++
	if err := c.fail; err != nil {
		c.fail = nil
		for p, class := range rules {
			if p.Bits()%2 == 0 { // some are set
				c.rules[p] = class
			}
		}
		return err
	}
	c.rules = maps.Clone(rules)
	return nil
}

func (c *classFake) ClassCounts(f func(bpf.ClassKey, *bpf.ClassCounts)) error {
	for k, n := range c.counts {
		was := *n // the caller must not keep it
		f(k, &was)
		was = bpf.ClassCounts{}
	}
	return nil
}

func (c *classFake) DrainEdges(f func(bpf.Edge, *bpf.EdgeTraffic)) error {
	for e, n := range c.edges {
		f(e, n)
		*n = bpf.EdgeTraffic{} // the caller must not keep it
	}
	clear(c.edges)
	return nil
}

func (c *classFake) ForgetClasses(k bpf.ClassKey) { delete(c.counts, k) }

func (c *classFake) FollowTranslations() error { c.follows++; return c.unfollowed }

func (c *classFake) Services(f func(netip.Addr)) error {
	for _, a := range c.services {
		f(a)
	}
	return nil
}

// perPacket is how much more an interface counts than a group.
const perPacket = 14

// receive counts bytes received in as many packets, and twice as many sent.
func (c *classFake) receive(group, space uint64, class usage.NetworkClass, packets, bytes uint64) {
	k := bpf.ClassKey{Group: group, NetNS: space}
	n := c.counts[k]
	if n == nil {
		n = &bpf.ClassCounts{}
		c.counts[k] = n
	}
	rx, tx := &n[2*(class-1)], &n[2*(class-1)+1]
	rx.Wire += bytes
	rx.Interface += bytes + packets*perPacket
	tx.Wire += 2 * bytes
	tx.Interface += 2 * (bytes + packets*perPacket)
	if space == hostSpace {
		s := c.sockets[group]
		s.RxBytes += int64(bytes)
		s.TxBytes += int64(2 * bytes)
		c.sockets[group] = s
	}
}

// classified opens a table of a fake machine that counts by class. Each group has the id of its number, and is in
// the namespace that is given; hostSpace is the machine's.
func classified(t testing.TB, f *fake) (*net.Table, *classFake) {
	t.Helper()
	tab, c := open(t, f, net.Default()), newClassFake(t)
	tab.SetCounters(func(each func(uint64, net.Count)) {
		for group, n := range c.sockets {
			each(group, n)
		}
	}, c, nil)
	return tab, c
}

func (f *fake) classified(path string, id uint64, pid int, space uint64) {
	f.t.Helper()
	f.group(path, pid)
	f.id("/sys/fs/cgroup"+path, id)
	f.process(pid, space, path, dev("lo", 5, 5, "eth0", 1000, 2000))
}

// wantClasses checks what is read of a workload: bytes received and half of those sent, by class.
func wantClasses(t testing.TB, got net.Reading, want map[usage.NetworkClass]int64) {
	t.Helper()
	var all *usage.ClassBytes
	for class, n := range want {
		if all == nil {
			all = &usage.ClassBytes{}
		}
		all.Add(class.Rx(), n)
		all.Add(class.Tx(), 2*n)
	}
	if d := cmp.Diff(all, got.Classes); d != "" {
		t.Errorf("classes of %+v (-want +got):\n%s", got, d)
	}
}

type byClass = map[usage.NetworkClass]int64

// TestClassOwners checks that a holder of a namespace gets what its interfaces count, of all groups in it, and a workload in
// the machine's namespace what its sockets count.
func TestClassOwners(t *testing.T) {
	f := newFake(t)
	f.classified("/pod/a", 11, 7, 200)
	f.classified("/pod/b", 12, 8, 200)
	f.classified("/svc", 20, 9, hostSpace)
	f.classified("/other", 30, 10, 300)
	tab, c := classified(t, f)
	tab.Track(net.Target{Hierarchy: unified, Slot: 1, Kind: workload.Pod, Path: "/pod"})
	tab.Track(net.Target{Hierarchy: unified, Slot: 2, Kind: workload.Container, Parent: 1, Path: "/pod/a"})
	tab.Track(net.Target{Hierarchy: unified, Slot: 3, Kind: workload.Service, Path: "/svc"})
	tab.Track(net.Target{Hierarchy: unified, Slot: 4, Kind: workload.Service, Path: "/other"})
	read(t, tab, true)
	read(t, tab, true)
	for slot, source := range map[usage.Slot]net.Source{1: net.Interfaces, 2: net.Unseen, 3: net.Sockets, 4: net.Interfaces} {
		if got := tab.Reading(slot); got.Source != source || got.Classes != nil {
			t.Fatalf("%d: %+v, want %s without traffic", slot, got, source)
		}
	}
	c.receive(11, 200, usage.ClassNode, 2, 1000)
	c.receive(11, 200, usage.ClassInternet, 1, 70)
	c.receive(12, 200, usage.ClassNode, 1, 100)
	c.receive(20, 200, usage.ClassZone, 1, 10)       // of another group, within the pod's namespace
	c.receive(20, hostSpace, usage.ClassZone, 4, 50) //
	c.receive(11, hostSpace, usage.ClassZone, 1, 5)  // of the pod, outside of its namespace
	c.receive(30, hostSpace, usage.ClassZone, 1, 5)  // also
	c.receive(30, 300, usage.ClassBox, 1, 6)
	c.receive(99, hostSpace, usage.ClassNode, 1, 7) // of no workload
	// Between the edges of windows they are not read.
	read(t, tab, false)
	for slot := range usage.Slot(4) {
		wantClasses(t, tab.Reading(slot+1), nil)
	}
	check := func() {
		t.Helper()
		wantClasses(t, tab.Reading(1), byClass{usage.ClassNode: 1100 + 3*perPacket, usage.ClassInternet: 70 + perPacket, usage.ClassZone: 10 + perPacket})
		wantClasses(t, tab.Reading(2), nil)
		wantClasses(t, tab.Reading(3), byClass{usage.ClassZone: 50})
		wantClasses(t, tab.Reading(4), byClass{usage.ClassBox: 6 + perPacket})
	}
	read(t, tab, true)
	check()
	// They are shown until they are booked.
	read(t, tab, false)
	check()
	tab.Booked()
	for slot := range usage.Slot(4) {
		wantClasses(t, tab.Reading(slot+1), nil)
	}
	c.receive(12, 200, usage.ClassNode, 1, 3)
	read(t, tab, true)
	wantClasses(t, tab.Reading(1), byClass{usage.ClassNode: 3 + perPacket})
	wantClasses(t, tab.Reading(3), nil)
}

// TestClassesBooked checks that only what was shown is booked.
func TestClassesBooked(t *testing.T) {
	f := newFake(t)
	f.classified("/a", 11, 7, 200)
	f.classified("/b", 12, 8, hostSpace)
	tab, c := classified(t, f)
	for i, path := range []string{"/a", "/b"} {
		tab.Track(net.Target{Hierarchy: unified, Slot: usage.Slot(i + 1), Kind: workload.Service, Path: path})
	}
	read(t, tab, true)
	read(t, tab, true)
	c.receive(11, 200, usage.ClassNode, 1, 100)
	c.receive(12, hostSpace, usage.ClassNode, 1, 200)
	read(t, tab, true)
	tab.Booked() // nothing was shown
	first := tab.Reading(1)
	wantClasses(t, first, byClass{usage.ClassNode: 100 + perPacket})
	// More is read before it is booked.
	c.receive(11, 200, usage.ClassNode, 1, 7)
	c.receive(11, 200, usage.ClassBox, 1, 8)
	read(t, tab, true)
	wantClasses(t, first, byClass{usage.ClassNode: 100 + perPacket})
	tab.Booked()
	wantClasses(t, tab.Reading(1), byClass{usage.ClassNode: 7 + perPacket, usage.ClassBox: 8 + perPacket})
	wantClasses(t, tab.Reading(2), byClass{usage.ClassNode: 200})
	tab.Booked()
	tab.Booked()
	wantClasses(t, tab.Reading(1), nil)
	wantClasses(t, tab.Reading(2), nil)
}

// TestClassesWithoutOwner checks that traffic is given to a workload that is found later, and forgotten if none is.
func TestClassesWithoutOwner(t *testing.T) {
	for edges, known := range map[int]bool{2: true, 3: false} {
		f := newFake(t)
		f.classified("/a", 11, 7, 200)
		f.classified("/b", 12, 8, hostSpace)
		tab, c := classified(t, f)
		c.receive(11, 200, usage.ClassNode, 1, 100)
		c.receive(12, hostSpace, usage.ClassNode, 1, 200)
		for range 5 {
			read(t, tab, false) // does not count
		}
		for range edges {
			read(t, tab, true)
		}
		if len(c.counts) > 0 != known {
			t.Errorf("%v after %d edges", c.counts, edges)
		}
		tab.Track(net.Target{Hierarchy: unified, Slot: 1, Kind: workload.Service, Path: "/a"})
		tab.Track(net.Target{Hierarchy: unified, Slot: 2, Kind: workload.Service, Path: "/b"})
		read(t, tab, false)
		read(t, tab, false)
		read(t, tab, true)
		if known {
			wantClasses(t, tab.Reading(1), byClass{usage.ClassNode: 100 + perPacket})
			wantClasses(t, tab.Reading(2), byClass{usage.ClassNode: 200})
		} else {
			wantClasses(t, tab.Reading(1), nil)
			wantClasses(t, tab.Reading(2), nil)
		}
		tab.Booked()
		// The kernel counts from zero again where it forgot them, and on where it did not.
		c.receive(11, 200, usage.ClassNode, 1, 1)
		c.receive(12, hostSpace, usage.ClassNode, 1, 2)
		for range 4 {
			read(t, tab, true)
		}
		wantClasses(t, tab.Reading(1), byClass{usage.ClassNode: 1 + perPacket})
		wantClasses(t, tab.Reading(2), byClass{usage.ClassNode: 2})
	}
}

// TestClassesOfEnded checks that the last reading of a workload that ends between two edges has its classes, that the
// counts are forgotten then, and that others keep theirs.
func TestClassesOfEnded(t *testing.T) {
	f := newFake(t)
	f.classified("/a", 11, 7, 200)
	f.classified("/b", 12, 8, hostSpace)
	f.classified("/c", 13, 9, hostSpace)
	f.classified("/d", 14, 10, hostSpace)
	tab, c := classified(t, f)
	for i, path := range []string{"/a", "/b", "/c"} {
		tab.Track(net.Target{Hierarchy: unified, Slot: usage.Slot(i + 1), Kind: workload.Service, Path: path})
	}
	read(t, tab, true)
	read(t, tab, true)
	c.receive(11, 200, usage.ClassNode, 1, 100)
	c.receive(12, hostSpace, usage.ClassZone, 1, 200)
	c.receive(13, hostSpace, usage.ClassZone, 1, 300)
	c.receive(14, hostSpace, usage.ClassBox, 1, 400)
	read(t, tab, false)
	wantClasses(t, tab.Forget(1), byClass{usage.ClassNode: 100 + perPacket})
	wantClasses(t, tab.Forget(2), byClass{usage.ClassZone: 200})
	// One that ended before its namespace was seen.
	f.remove("proc/10/ns")
	tab.Track(net.Target{Hierarchy: unified, Slot: 4, Kind: workload.Service, Path: "/d", Born: true})
	read(t, tab, false)
	if got := tab.Forget(4); got.Source != net.Sockets {
		t.Errorf("%+v, want sockets", got)
	} else {
		wantClasses(t, got, byClass{usage.ClassBox: 400})
	}
	for k := range c.counts {
		if k.Group != 13 {
			t.Errorf("%v is not forgotten", k)
		}
	}
	wantClasses(t, tab.Reading(3), byClass{usage.ClassZone: 300})
	tab.Booked()
	wantClasses(t, tab.Reading(3), nil)
	read(t, tab, true)
	wantClasses(t, tab.Reading(3), nil)
	// The numbers of the group and of the namespace are used again: the kernel counts from zero.
	f.process(7, 250, "/a", dev("eth0", 1, 2))
	f.classified("/e", 11, 11, 200)
	tab.Track(net.Target{Hierarchy: unified, Slot: 5, Kind: workload.Service, Path: "/e"})
	c.receive(11, 200, usage.ClassNode, 1, 10)
	read(t, tab, true)
	wantClasses(t, tab.Reading(5), byClass{usage.ClassNode: 10 + perPacket})
}

// TestClassesOfMovedNamespace moves a namespace to another workload: each gets what was transferred while it held it.
func TestClassesOfMovedNamespace(t *testing.T) {
	f := newFake(t)
	f.classified("/a", 11, 7, 200)
	tab, c := classified(t, f)
	tab.Track(net.Target{Hierarchy: unified, Slot: 1, Kind: workload.Service, Path: "/a"})
	read(t, tab, true)
	c.receive(11, 200, usage.ClassNode, 1, 100)
	read(t, tab, true)
	wantClasses(t, tab.Reading(1), byClass{usage.ClassNode: 100 + perPacket})
	tab.Booked()

	f.process(7, 300, "/a", dev("eth0", 1, 2))
	f.classified("/b", 12, 8, 200)
	read(t, tab, true)
	tab.Track(net.Target{Hierarchy: unified, Slot: 2, Kind: workload.Service, Path: "/b"})
	read(t, tab, false)
	if got := tab.Reading(2); got.Source != net.Interfaces {
		t.Fatalf("%+v, want interfaces", got)
	}
	c.receive(11, 200, usage.ClassNode, 1, 7) // by a socket that is left there
	c.receive(12, 200, usage.ClassNode, 1, 20)
	c.receive(11, 300, usage.ClassZone, 1, 3)
	read(t, tab, true)
	wantClasses(t, tab.Reading(1), byClass{usage.ClassZone: 3 + perPacket})
	wantClasses(t, tab.Reading(2), byClass{usage.ClassNode: 27 + 2*perPacket})
	tab.Booked()

	tab.Forget(1)
	if _, ok := c.counts[bpf.ClassKey{Group: 11, NetNS: 200}]; !ok || len(c.counts) != 2 {
		t.Errorf("%v, want those of the other workload", c.counts)
	}
	read(t, tab, true)
	wantClasses(t, tab.Reading(2), nil)
}

// TestRulesChange checks that rules are set when they change, with the addresses of the machine, and again after an error.
func TestRulesChange(t *testing.T) {
	f := newFake(t)
	f.write("proc/1/net/fib_trie", "Main:\n  |-- 192.0.2.7\n     /32 host LOCAL\n")
	tab, c := open(t, f, net.Default()), newClassFake(t)
	operator := net.Rules{netip.MustParsePrefix("10.0.0.0/8"): usage.ClassInternal, netip.MustParsePrefix("192.0.2.9/32"): usage.ClassBox}
	tab.SetCounters(func(func(uint64, net.Count)) {}, c, operator)
	read(t, tab, false)
	if c.sets != 0 {
		t.Error("set between edges")
	}
	read(t, tab, true)
	first := maps.Clone(c.rules)
	for p, class := range map[string]usage.NetworkClass{
		"0.0.0.0/0": usage.ClassInternet, "2000::/3": usage.ClassInternet, "10.0.0.0/8": usage.ClassInternal, "172.16.0.0/12": usage.Unclassified,
		"192.0.2.0/24": usage.Unclassified, "192.0.2.7/32": usage.ClassNode, "192.0.2.9/32": usage.ClassBox, "2001:db8::/32": usage.Unclassified,
	} {
		if got, ok := first[netip.MustParsePrefix(p)]; !ok || got != uint8(class) {
			t.Errorf("%s is of class %d, %v, want %s", p, got, ok, class)
		}
	}
	read(t, tab, true)
	if c.sets != 1 {
		t.Errorf("set %d times without a change", c.sets)
	}
	// An address is replaced by others, one of which an operator named, and the kernel refuses some of it.
	f.write("proc/1/net/fib_trie", "Main:\n  |-- 192.0.2.8\n     /32 host LOCAL\n  |-- 192.0.2.9\n     /32 host LOCAL\n")
	f.write("proc/1/net/ipv6_route", "fd000007000000000000000000000009 7f 00000000000000000000000000000000 00 00000000000000000000000000000000 00000400 00000001 00000000 80200001    lo\n")
	refused := errors.New("no memory")
	c.fail = refused
	if err := tab.Read(t.Context(), true); !errors.Is(err, refused) {
		t.Errorf("%v, want %v", err, refused)
	}
	// Meanwhile the address has changed again.
	f.write("proc/1/net/fib_trie", "Main:\n  |-- 192.0.2.10\n     /32 host LOCAL\n")
	read(t, tab, true)
	want := maps.Clone(first)
	delete(want, netip.MustParsePrefix("192.0.2.7/32"))
	want[netip.MustParsePrefix("192.0.2.10/32")] = uint8(usage.ClassNode)
	want[netip.MustParsePrefix("fd00:7::8/127")] = uint8(usage.ClassNode)
	if d := cmp.Diff(want, c.rules, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
		t.Errorf("after an error (-want +got):\n%s", d)
	}
	n := c.sets
	read(t, tab, true)
	if c.sets != n {
		t.Error("set again without a change")
	}
	// The other rules hold even if a file cannot be read.
	f.write("proc/1/net/route", "Iface\nwhat\n")
	if err := tab.Read(t.Context(), true); err == nil {
		t.Error("garbage is read")
	}
	if c.rules[netip.MustParsePrefix("10.0.0.0/8")] != uint8(usage.ClassInternal) {
		t.Errorf("%v after garbage", c.rules)
	}
}

// TestRulesDirected checks the rules of a server: they precede the general ones, and the machine's own and an operator's precede
// them; one within an operator's prefix does not hold.
func TestRulesDirected(t *testing.T) {
	f := newFake(t)
	f.write("proc/1/net/fib_trie", "Main:\n  |-- 192.0.2.7\n     /32 host LOCAL\n")
	tab, c := open(t, f, net.Default()), newClassFake(t)
	prefix := netip.MustParsePrefix
	tab.SetDirected(net.Rules{}) // it counts no classes yet
	tab.SetCounters(func(func(uint64, net.Count)) {}, c, net.Rules{prefix("10.0.0.0/8"): usage.ClassBox})
	read(t, tab, true)
	first := maps.Clone(c.rules)
	tab.SetDirected(net.Rules{prefix("10.0.0.0/8"): usage.ClassZone, prefix("10.1.0.0/16"): usage.ClassInternal, prefix("11.1.0.0/16"): usage.ClassInternal, prefix("8.0.0.0/6"): usage.ClassZone, prefix("192.0.2.7/32"): usage.ClassZone,
		prefix("0.0.0.0/0"): usage.ClassPeering, prefix("203.0.113.0/24"): usage.ClassZone})
	if read(t, tab, false); !maps.Equal(c.rules, first) {
		t.Error("set between edges")
	}
	read(t, tab, true)
	want := maps.Clone(first)
	want[prefix("11.1.0.0/16")], want[prefix("8.0.0.0/6")] = uint8(usage.ClassInternal), uint8(usage.ClassZone)
	want[prefix("0.0.0.0/0")], want[prefix("203.0.113.0/24")] = uint8(usage.ClassPeering), uint8(usage.ClassZone)
	if d := cmp.Diff(want, c.rules, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
		t.Errorf("with a server's rules (-want +got):\n%s", d)
	}
	// The kernel refuses them once, as they expire.
	c.fail = errors.New("no memory")
	tab.SetDirected(nil)
	if err := tab.Read(t.Context(), true); err == nil {
		t.Error("no error")
	}
	if read(t, tab, true); !maps.Equal(c.rules, first) {
		t.Errorf("after they expired: %v", c.rules)
	}
}

// TestClassesOfLeftNamespace lets the last process of a namespace end before the edge of a window, while its group stays: what
// the namespace transferred until then is booked.
func TestClassesOfLeftNamespace(t *testing.T) {
	f := newFake(t)
	f.classified("/a", 11, 7, 200)
	tab, c := classified(t, f)
	tab.Track(net.Target{Hierarchy: unified, Slot: 1, Kind: workload.Service, Path: "/a"})
	read(t, tab, true)
	tab.Booked()
	c.receive(11, 200, usage.ClassNode, 1, 100)
	f.remove("proc/7")
	f.write("sys/fs/cgroup/a/cgroup.procs", "")
	read(t, tab, true)
	wantClasses(t, tab.Reading(1), byClass{usage.ClassNode: 100 + perPacket})
}

// TestClassesOfShort ends several workloads in one tick, which is the edge of a window too, before their source was certain.
func TestClassesOfShort(t *testing.T) {
	f := newFake(t)
	tab, c := classified(t, f)
	read(t, tab, true)
	for i := range 3 {
		path := fmt.Sprintf("/short%d", i)
		f.classified(path, uint64(20+i), 30+i, hostSpace)
		f.remove(fmt.Sprintf("proc/%d/ns", 30+i))
		tab.Track(net.Target{Hierarchy: unified, Slot: usage.Slot(i + 1), Kind: workload.Service, Path: path, Born: true})
		c.receive(uint64(20+i), hostSpace, usage.ClassBox, 1, uint64(100*(i+1)))
	}
	read(t, tab, true)
	for i := range 3 {
		wantClasses(t, tab.Forget(usage.Slot(i+1)), byClass{usage.ClassBox: int64(100 * (i + 1))})
	}
}

// TestClassesQuiet checks that counts without traffic for ten edges are forgotten, and count from zero when it goes on.
func TestClassesQuiet(t *testing.T) {
	f := newFake(t)
	f.classified("/a", 11, 7, 200)
	tab, c := classified(t, f)
	tab.Track(net.Target{Hierarchy: unified, Slot: 1, Kind: workload.Service, Path: "/a"})
	read(t, tab, true)
	for round := range 2 {
		c.receive(11, 200, usage.ClassNode, 1, 100)
		for edge := range 11 {
			read(t, tab, true)
			if _, ok := c.counts[bpf.ClassKey{Group: 11, NetNS: 200}]; ok != (edge < 10) {
				t.Errorf("round %d, edge %d: counts are kept: %t", round, edge, ok)
			}
		}
		wantClasses(t, tab.Reading(1), byClass{usage.ClassNode: 100 + perPacket})
		tab.Booked()
	}
}

// TestServices takes addresses that the machine translates out of an operator's prefixes. Rules for the address itself hold, and so
// do those of the internet.
func TestServices(t *testing.T) {
	f := newFake(t)
	f.write("proc/1/net/fib_trie", "Main:\n  |-- 10.0.0.7\n     /32 host LOCAL\n")
	tab, c := open(t, f, net.Default()), newClassFake(t)
	operator := net.Rules{}
	for _, text := range []string{"internal=10.0.0.0/8,fd00::/8,10.96.0.9", "zone=10.97.0.0/16", "node=10.98.0.0/16", "internet=10.99.0.0/16", "unclassified=10.100.0.0/16"} {
		if err := operator.Add(text); err != nil {
			t.Fatal(err)
		}
	}
	tab.SetCounters(func(func(uint64, net.Count)) {}, c, operator)
	read(t, tab, true)
	want := maps.Clone(c.rules)
	for _, a := range []string{"10.0.0.7", "10.96.0.1", "10.96.0.9", "10.97.0.1", "10.98.0.1", "10.99.0.1", "10.100.0.1", "172.16.0.1", "8.8.8.8", "fd00:96::1", "2a00::1", "fe80::1"} {
		c.services = append(c.services, netip.MustParseAddr(a), netip.MustParseAddr(a))
	}
	read(t, tab, true)
	for _, p := range []string{"10.96.0.1/32", "10.97.0.1/32", "fd00:96::1/128"} {
		want[netip.MustParsePrefix(p)] = uint8(usage.Unclassified)
	}
	same := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	if d := cmp.Diff(want, c.rules, same); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	c.services = nil
	read(t, tab, true)
	if _, ok := c.rules[netip.MustParsePrefix("10.96.0.1/32")]; ok {
		t.Error("an address is taken out that is not translated any more")
	}
}

// TestUnresolved follows what the machine translates as soon as that is possible, and only from its own namespace.
func TestUnresolved(t *testing.T) {
	f := newFake(t)
	tab, c := classified(t, f)
	read(t, tab, true)
	if why := tab.UnresolvedReason(); !strings.Contains(why, "not in the machine's network namespace") || c.follows != 0 {
		t.Errorf("%q from another namespace, followed %d times", why, c.follows)
	}
	f.link("proc/self/ns/net", fmt.Sprintf("net:[%d]", hostSpace))
	f.id("/proc/self/ns/net", hostSpace)
	tab, c = classified(t, f)
	c.unfollowed = errors.New("no connections are tracked")
	read(t, tab, true)
	if why := tab.UnresolvedReason(); why != c.unfollowed.Error() {
		t.Errorf("%q, want %v", why, c.unfollowed)
	}
	c.unfollowed = nil
	read(t, tab, false)
	read(t, tab, true)
	if why := tab.UnresolvedReason(); why != "" || c.follows != 2 {
		t.Errorf("%q in the machine's namespace, followed %d times", why, c.follows)
	}
}

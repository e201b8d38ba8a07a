package net_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"strconv"
	"testing"

	"mete.dev/mete/internal/collect/net"
	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/hosttest"
)

// liveClasses opens a table that counts by class with an operator's rules.
func liveClasses(t testing.TB, h *hostfs.FS, rules net.Rules) *net.Table {
	t.Helper()
	tab := counting(t, h, bpf.Net|bpf.Classes, rules)
	if why := tab.UnclassifiedReason(); why != "" {
		t.Fatal(why)
	}
	return tab
}

// counting opens a table that counts sockets with the given parts of the kernel's programs.
func counting(t testing.TB, h *hostfs.FS, parts bpf.Part, rules net.Rules) *net.Table {
	t.Helper()
	hosttest.Need(t, "root", "netns", "bpf", "cgroup2")
	cfg := bpf.Default()
	cfg.Parts, cfg.Groups = parts, 64
	k, err := bpf.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	network := net.Default()
	network.Classes, network.Connections = rules, parts&bpf.Connections != 0
	tab, err := net.Open(h, k, network)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(tab.Close(), k.Close()); err != nil {
			t.Error(err)
		}
	})
	return tab
}

// TestLiveClasses sends from a group in this namespace to one with a namespace of its own: the addresses of both are on this
// machine, unless an operator says otherwise.
func TestLiveClasses(t *testing.T) {
	hosttest.LockExclusive(t, "interfaces")
	for _, c := range []struct {
		name     string
		sent     usage.NetworkClass // of what the first one sends
		received usage.NetworkClass // of what the other one receives
	}{{"own", usage.ClassNode, usage.ClassNode}, {"given", usage.ClassZone, usage.ClassPeering}} {
		t.Run(c.name, func(t *testing.T) {
			h, err := hostfs.Open("/")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = h.Close() }()
			into, from := fmt.Sprintf("mete-test-net-%d-into", os.Getpid()), fmt.Sprintf("mete-test-net-%d-from", os.Getpid())
			to := start(t, "sink", into, true, groups(t, h, into))
			here, there, veth := wire(t, to.cmd.Process.Pid)
			rules := net.Rules{}
			if c.name == "given" {
				rules[netip.PrefixFrom(netip.MustParseAddr(there), 32)] = c.sent
				rules[netip.PrefixFrom(netip.MustParseAddr(here), 32)] = c.received
			}
			tab := liveClasses(t, h, rules)
			p := start(t, "send", from, false, groups(t, h, from))
			tab.Track(net.Target{Hierarchy: processes(t, h), Slot: 1, Path: "/" + into})
			tab.Track(net.Target{Hierarchy: processes(t, h), Slot: 2, Path: "/" + from, Born: true})
			read(t, tab, true)
			read(t, tab, true)
			want(t, tab, 2, net.Sockets, net.Count{}, "")
			before := tab.Reading(1)
			if before.Source != net.Interfaces {
				t.Fatalf("%+v, want interfaces", before)
			}
			tab.Booked()
			to.say(there + ":7000")
			to.hear("ready")
			p.say(there + ":7000")
			most := p.number()
			to.hear(strconv.Itoa(payload))
			read(t, tab, true)
			a, b := tab.Reading(1), tab.Reading(2)
			if a.Classes == nil || b.Classes == nil {
				t.Fatalf("%+v and %+v, want classes", a, b)
			}
			got := maps.Collect(b.Classes.All())
			if len(got) != 2 || got[c.sent.Tx()] != b.TxBytes || got[c.sent.Rx()] != b.RxBytes || b.TxBytes < payload || b.TxBytes > most {
				t.Errorf("sent %v, want all of %+v in class %s", got, b.Count, c.sent)
			}
			got = maps.Collect(a.Classes.All())
			// The interface counts neighbor discovery too, which has no class.
			const discovery = 2000
			rx, tx := a.RxBytes-before.RxBytes-got[c.received.Rx()], a.TxBytes-before.TxBytes-got[c.received.Tx()]
			if len(got) != 2 || rx < 0 || rx > discovery || tx < 0 || tx > discovery || got[c.received.Rx()] < payload {
				t.Errorf("received %v, want all of %+v since %+v in class %s; the wire has %d", got, a.Count, before.Count, c.received, counter(t, veth, "tx_bytes"))
			}
			tab.Booked()
			read(t, tab, true)
			if again := tab.Reading(2); again.Classes != nil {
				t.Errorf("%+v after it was booked", again.Classes)
			}
			p.end()
			to.end()
			if last := tab.Forget(2); last.Classes != nil {
				t.Errorf("%+v, want nothing more", last.Classes)
			}
		})
	}
}

// TestLiveClassesOfShort sends from a group that ends before the edge of a window, and receives in another one.
func TestLiveClassesOfShort(t *testing.T) {
	hosttest.LockExclusive(t, "interfaces")
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	tab := liveClasses(t, h, nil)
	read(t, tab, true)
	into, from := fmt.Sprintf("mete-test-net-%d-into", os.Getpid()), fmt.Sprintf("mete-test-net-%d-from", os.Getpid())
	to, p := start(t, "sink", into, true, groups(t, h, into)), start(t, "send", from, false, groups(t, h, from))
	_, there, _ := wire(t, to.cmd.Process.Pid)
	tab.Track(net.Target{Hierarchy: processes(t, h), Slot: 1, Path: "/" + into, Born: true})
	tab.Track(net.Target{Hierarchy: processes(t, h), Slot: 2, Path: "/" + from, Born: true})
	read(t, tab, false)
	read(t, tab, true) // the addresses of the new interface
	to.say(there + ":7000")
	to.hear("ready")
	p.say(there + ":7000")
	p.number()
	to.hear(strconv.Itoa(payload))
	p.end()
	to.end()
	read(t, tab, false)
	for slot, source := range map[usage.Slot]net.Source{1: net.Interfaces, 2: net.Sockets} {
		got := tab.Forget(slot)
		if got.Source != source || got.Classes == nil {
			t.Errorf("%d: %+v, want classes", slot, got)
			continue
		}
		for r, whole := range map[usage.Resource]int64{usage.NetworkRxNode: got.RxBytes, usage.NetworkTxNode: got.TxBytes} {
			rest := whole - got.Classes[r-usage.NetworkRxNode]
			if source == net.Sockets && rest != 0 || rest < 0 || rest > 2000 {
				t.Errorf("%d: %s %d of %d", slot, r, got.Classes[r-usage.NetworkRxNode], whole)
			}
		}
	}
}

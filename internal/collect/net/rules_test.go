package net_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/collect/net"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
)

func TestRulesAdd(t *testing.T) {
	rules := net.Rules{}
	for _, text := range []string{
		"internal=10.0.0.0/8,fd00::/8", "internal=10.0.0.0/8", "node=192.0.2.1", "box=fd00::1", "zone=0.0.0.0/0,::/0", "peering=::ffff:198.51.100.0/120", "internet=::ffff:203.0.113.9",
	} {
		if err := rules.Add(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	got := map[string]string{}
	for p, class := range rules {
		got[p.String()] = class.String()
	}
	want := map[string]string{"10.0.0.0/8": "internal", "fd00::/8": "internal", "192.0.2.1/32": "node", "fd00::1/128": "box", "0.0.0.0/0": "zone", "::/0": "zone",
		"198.51.100.0/24": "peering", "203.0.113.9/32": "internet"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for _, c := range []struct{ text, named string }{
		{"", "CLASS=PREFIX"}, {"10.0.0.0/8", "10.0.0.0/8"}, {"lan=10.0.0.0/8", `"lan"`}, {"unclassified=10.0.0.0/8", "unclassified"}, {"Node=10.0.0.0/8", "Node"},
		{"node=", `""`}, {"node=10.0.0.0/33", "10.0.0.0/33"}, {"node=10.0.0/8", "10.0.0/8"}, {"node=host.example.org", "host.example.org"}, {"node=fe80::1%eth0", "eth0"},
		{"node=fe80::%eth0/64", "eth0"}, {"node=198.51.101.0/24,", `""`}, {"node= 10.0.0.0/8", " 10.0.0.0/8"}, {"node=10.1.0.0/8", "10.0.0.0/8"}, {"node=fd00::1/64", "fd00::1/64"},
		{"node=::ffff:10.0.0.0/95", "both families"}, {"node=::ffff:10.0.0.1/104", "10.0.0.1/8"}, {"zone=10.0.0.0/8", "10.0.0.0/8 is of class internal and of class zone"},
		{"zone=::ffff:10.0.0.0/104", "internal and of class zone"}, {"node=" + strings.Repeat("1", 5000), "111"},
	} {
		err := maps.Clone(rules).Add(c.text)
		if !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%.80s: %v, want ErrInvalid", c.text, err)
		} else if text := err.Error() + fault.Hint(err); !strings.Contains(text, c.named) || len(text) > 300 {
			t.Errorf("%.80s: %q does not name %q", c.text, text, c.named)
		}
	}
}

func TestRulesLimit(t *testing.T) {
	rules := net.Rules{}
	for i := range net.MaxRules {
		if err := rules.Add(fmt.Sprintf("zone=10.%d.%d.%d", i>>16, i>>8&255, i&255)); err != nil {
			t.Fatal(err)
		}
	}
	if err := rules.Add("zone=10.0.0.0"); err != nil {
		t.Errorf("again: %v", err)
	}
	if err := rules.Add("zone=192.0.2.1"); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "10000") {
		t.Errorf("one more: %v", err)
	}
}

// An nic is a network interface in sysfs.
type nic struct {
	physical    bool
	index, link int
	kind        int    // 1 is Ethernet
	devtype     string // of uevent
	lower       string
	bridge      bool
	ports       []string
}

func (f *fake) nic(name string, n nic) {
	f.t.Helper()
	dir := "devices/virtual/net/" + name
	if n.physical {
		dir = "devices/pci0000:00/0000:00:03.0/net/" + name
	}
	f.link("sys/class/net/"+name, "../../"+dir)
	event := fmt.Sprintf("INTERFACE=%s\nIFINDEX=%d\n", name, n.index)
	if n.devtype != "" {
		event = "DEVTYPE=" + n.devtype + "\n" + event
	}
	dir = "sys/" + dir
	f.write(dir+"/uevent", event)
	f.write(dir+"/ifindex", fmt.Sprintln(n.index))
	f.write(dir+"/iflink", fmt.Sprintln(n.link))
	f.write(dir+"/type", fmt.Sprintln(n.kind))
	if n.lower != "" {
		f.link(dir+"/lower_"+n.lower, "../"+n.lower)
	}
	if n.bridge {
		f.write(dir+"/bridge/stp_state", "0\n")
		f.write(dir+"/brif/.keep", "")
		f.remove(dir + "/brif/.keep")
	}
	for _, p := range n.ports {
		f.link(dir+"/brif/"+p, "../../"+p+"/brport")
	}
}

// TestOwnPrefixes checks which routes of a machine lead to addresses on it.
func TestOwnPrefixes(t *testing.T) {
	f := newFake(t)
	for name, n := range map[string]nic{
		"eth0":  {physical: true, index: 2, link: 2, kind: 1},
		"eth1":  {physical: true, index: 3, link: 3, kind: 1},
		"veth1": {index: 10, link: 2, kind: 1}, // the number of its other end, in another namespace
		"veth2": {index: 11, link: 12, kind: 1},
		"cali1": {index: 20, link: 3, kind: 1},

		"cni0":    {index: 30, link: 30, kind: 1, devtype: "bridge", bridge: true, ports: []string{"veth1", "veth2"}},
		"docker0": {index: 31, link: 31, kind: 1, devtype: "bridge", bridge: true},
		"br0":     {index: 32, link: 32, kind: 1, devtype: "bridge", bridge: true, ports: []string{"veth1", "eth1"}},
		"br1":     {index: 33, link: 33, kind: 1, devtype: "bridge", bridge: true, ports: []string{"vxlan1"}},

		"vxlan1": {index: 40, link: 2, kind: 1, devtype: "vxlan"},
		"wg0":    {index: 41, link: 41, kind: 65534, devtype: "wireguard"},
		"eth0.5": {index: 42, link: 2, kind: 1, devtype: "vlan", lower: "eth0"},
		"mac0":   {index: 43, link: 2, kind: 1, lower: "eth0"},
		"tunl0":  {index: 44, link: 0, kind: 768},
		"gre1":   {index: 45, link: 2, kind: 778},
		"grenew": {index: 46, link: 0, kind: 1},
		"dummy0": {index: 47, link: 47, kind: 1},
		"tun0":   {index: 48, link: 48, kind: 65534},
	} {
		f.nic(name, n)
	}
	var route4, route6 strings.Builder
	route4.WriteString("Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n")
	want := map[string]bool{"192.0.2.2/32": true, "127.0.0.1/32": true, "fd00::2/128": true}
	i := 0
	add := func(at string, inside bool) {
		i++
		fmt.Fprintf(&route4, "%s\t00%02X0A0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n", at, i)
		fmt.Fprintf(&route6, "fd00%04x000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001 %s\n", i, at)
		if inside {
			want[fmt.Sprintf("10.10.%d.0/24", i)], want[fmt.Sprintf("fd00:%x::/64", i)] = true, true
		}
	}
	for at, inside := range map[string]bool{
		"eth0": false, "cni0": true, "docker0": true, "br0": false, "br1": false, "vxlan1": false, "wg0": false, "eth0.5": false, "mac0": false,
		"tunl0": false, "gre1": false, "grenew": false, "dummy0": false, "tun0": false, "veth1": true, "*": false, "gone": false,
	} {
		add(at, inside)
	}
	// A container behind an interface of its own, as Calico has it; and routes through it, or of no use.
	route4.WriteString("cali1\t0907A8C0\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0\n" +
		"cali1\t0008A8C0\t0907A8C0\t0003\t0\t0\t0\t00FFFFFF\t0\t0\t0\n" +
		"cali1\t00000000\t00000000\t0001\t0\t0\t0\t00000000\t0\t0\t0\n" +
		"cali1\t0000FEA9\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n" +
		"eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n")
	want["192.168.7.9/32"] = true
	const at, zero = " 00000400 00000001 00000000 ", "00000000000000000000000000000000"
	for _, r := range []string{
		"fd0000070000000000000000000000ff 80 " + zero + " 00 " + zero + at + "00000005 cali1",
		"fd000008000000000000000000000000 40 " + zero + " 00 fd0000070000000000000000000000ff" + at + "00000003 cali1",
		"fe800000000000000000000000000000 40 " + zero + " 00 " + zero + at + "00000001 cali1",
		"ff000000000000000000000000000000 08 " + zero + " 00 " + zero + at + "00000001 cali1",
		zero + " 00 " + zero + " 00 " + zero + at + "00000001 cali1",
		"fd000000000000000000000000000002 80 " + zero + " 00 " + zero + at + "80200001 eth0",
		"fd000009000000000000000000000000 40 " + zero + " 00 " + zero + at + "00200200 lo",
	} {
		route6.WriteString(r + "\n")
	}
	want["fd00:7::ff/128"] = true
	f.write("proc/1/net/route", route4.String())
	f.write("proc/1/net/ipv6_route", route6.String())
	f.write("proc/1/net/fib_trie", "Main:\n  |-- 127.0.0.0\n     /8 host LOCAL\n  |-- 127.0.0.1\n     /32 host LOCAL\n  |-- 192.0.2.2\n     /32 host LOCAL\n  |-- 192.0.2.255\n     /32 link BROADCAST\n")
	h, err := hostfs.Open(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	own, err := net.OwnPrefixes(h)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, p := range own {
		got[p.String()] = true
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	// A machine with an uplink that is one end of a pair, as a system container has, and with the addresses of services.
	f.write("proc/1/net/route", "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"+
		"veth1\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\nveth1\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n")
	f.nic("kube-ipvs0", nic{index: 50, link: 50, kind: 1})
	f.write("proc/1/net/fib_trie", "Local:\n  |-- 10.96.0.1\n     /32 host LOCAL\n  |-- 192.168.1.5\n     /32 host LOCAL\n")
	f.write("proc/1/net/ipv6_route", "fd000010000000000000000000000001 80 "+zero+" 00 "+zero+at+"80200001 kube-ipvs0\n")
	own, err = net.OwnPrefixes(h)
	if d := cmp.Diff("[192.168.1.5/32]", fmt.Sprint(own)); err != nil || d != "" {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	// A machine without IPv6, or without any of these files.
	f.remove("proc/1/net/ipv6_route")
	if own, err := net.OwnPrefixes(h); err != nil || slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Addr().Is6() }) || len(own) == 0 {
		t.Errorf("without IPv6: %v, %v", own, err)
	}
	f.remove("proc/1/net")
	if own, err := net.OwnPrefixes(h); err != nil || len(own) > 0 {
		t.Errorf("without files: %v, %v", own, err)
	}
}

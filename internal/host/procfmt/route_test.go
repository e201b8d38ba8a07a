package procfmt_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/host/procfmt"
)

// Files of a machine with a bridge of containers (cni0), a container behind an interface of its own (cali1), and
// a blackhole.
const (
	route4 = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT                                                       \n" +
		"eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0                                                                               \n" +
		"cni0\t0001F40A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0                                                                               \n" +
		"eth0\t0002F40A\t0B01A8C0\t0003\t0\t0\t0\t00FFFFFF\t0\t0\t0                                                                               \n" +
		"eth0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0                                                                               \n" +
		"*\t0007A8C0\t00000000\t0001\t0\t0\t0\tC0FFFFFF\t0\t0\t0                                                                                  \n" +
		"cali1\t0907A8C0\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0                                                                              \n"
	route6 = "20010db8000100000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0\n" +
		"fd000007000000000000000000000009 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000400 00000001 00000000 00000001    cali1\n" +
		"fd000007000000000000000000000000 7a 00000000000000000000000000000000 00 00000000000000000000000000000000 00000400 00000001 00000000 00200200       lo\n" +
		"fd000010024400010000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000003 00000000 00000001     cni0\n" +
		"fd000010024400020000000000000000 40 00000000000000000000000000000000 00 20010db8000100000000000000000011 00000400 00000001 00000000 00000003     eth0\n" +
		"fe800000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001    cali1\n" +
		"00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0\n" +
		"00000000000000000000000000000001 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 00000003 00000000 80200001       lo\n" +
		"20010db8000100000000000000000010 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 00000002 00000000 80200001     eth0\n" +
		"ff000000000000000000000000000000 08 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0\n" +
		"00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo\n"
	fibTrie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     +-- 0.0.0.0/4 2 0 2\n        |-- 0.0.0.0\n           /0 universe UNICAST\n" +
		"        +-- 10.244.0.0/22 2 1 2\n           +-- 10.244.1.0/24 2 0 2\n              +-- 10.244.1.0/31 1 0 0\n" +
		"                 |-- 10.244.1.0\n                    /24 link UNICAST\n                 |-- 10.244.1.1\n                    /32 host LOCAL\n" +
		"              |-- 10.244.1.255\n                 /32 link BROADCAST\n           |-- 10.244.2.0\n              /24 universe UNICAST\n" +
		"     +-- 127.0.0.0/8 2 0 2\n        +-- 127.0.0.0/31 1 0 0\n           |-- 127.0.0.0\n              /8 host LOCAL\n" +
		"           |-- 127.0.0.1\n              /32 host LOCAL\n        |-- 127.255.255.255\n           /32 link BROADCAST\n" +
		"     +-- 192.168.0.0/21 2 0 2\n        +-- 192.168.1.0/24 2 0 2\n           +-- 192.168.1.0/28 2 0 2\n              |-- 192.168.1.0\n" +
		"                 /24 link UNICAST\n              |-- 192.168.1.10\n                 /32 host LOCAL\n           |-- 192.168.1.255\n" +
		"              /32 link BROADCAST\n        +-- 192.168.7.0/28 2 0 2\n           |-- 192.168.7.0\n              /26 universe BLACKHOLE\n" +
		"           |-- 192.168.7.9\n              /32 link UNICAST\n" +
		"Local:\n  +-- 127.0.0.0/8 2 0 2\n        |-- 127.0.0.1\n           /32 host LOCAL\n"
)

// routes returns what a parser calls its function with.
func routes(b []byte, parse func([]byte, func(procfmt.Route)) error) (rs []procfmt.Route, err error) {
	err = parse(b, func(r procfmt.Route) { rs = append(rs, r) })
	return rs, err
}

var comparePrefix = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

func route(prefix, at string, gateway, local bool) procfmt.Route {
	return procfmt.Route{Prefix: netip.MustParsePrefix(prefix), Interface: at, Gateway: gateway, Local: local}
}

func TestRoutes4(t *testing.T) {
	got, err := routes([]byte(route4), procfmt.Routes4)
	want := []procfmt.Route{
		route("0.0.0.0/0", "eth0", true, false), route("10.244.1.0/24", "cni0", false, false), route("10.244.2.0/24", "eth0", true, false),
		route("192.168.1.0/24", "eth0", false, false), route("192.168.7.0/26", "*", false, false), route("192.168.7.9/32", "cali1", false, false),
	}
	if d := cmp.Diff(want, got, comparePrefix); d != "" || err != nil {
		t.Errorf("%v, %s", err, d)
	}
	// A route that refuses packets, and one with a mask that does not make a prefix.
	for _, line := range []string{"*\t0007A8C0\t00000000\t0201\t0\t0\t0\tC0FFFFFF\t0\t0\t0\n", "eth0\t0007A8C0\t00000000\t0001\t0\t0\t0\tFF00FFFF\t0\t0\t0\n"} {
		if got, err := routes([]byte("Iface\n"+line), procfmt.Routes4); len(got) > 0 || err != nil {
			t.Errorf("%q is %v, %v", line, got, err)
		}
	}
	if got, err := routes(nil, procfmt.Routes4); len(got) > 0 || err != nil {
		t.Errorf("nothing is %v, %v", got, err)
	}
	for _, line := range []string{"eth0\n", "\n", "eth0 0 00000000 0001 0 0 0 FFFFFFFF\n", "eth0 0001A8C0 00000000 x 0 0 0 FFFFFFFF\n", "eth0 0001A8C0 00000000 0001 0 0 0 FFFFFFF\n", "eth0 0001A8CX 00000000 0001 0 0 0 FFFFFFFF\n"} {
		got, err := routes([]byte("Iface\n"+line), procfmt.Routes4)
		if err == nil || len(got) > 0 {
			t.Errorf("%q is %v", line, got)
		}
		check(t, err)
	}
}

func TestRoutes6(t *testing.T) {
	got, err := routes([]byte(route6), procfmt.Routes6)
	want := []procfmt.Route{
		route("2001:db8:1::/64", "eth0", false, false), route("fd00:7::9/128", "cali1", false, false), route("fd00:10:244:1::/64", "cni0", false, false),
		route("fd00:10:244:2::/64", "eth0", true, false), route("fe80::/64", "cali1", false, false), route("::/0", "eth0", true, false),
		route("::1/128", "lo", false, true), route("2001:db8:1::10/128", "eth0", false, true), route("ff00::/8", "eth0", false, false),
	}
	if d := cmp.Diff(want, got, comparePrefix); d != "" || err != nil {
		t.Errorf("%v, %s", err, d)
	}
	fields := strings.Fields(strings.SplitN(route6, "\n", 2)[0])
	for i, bad := range map[int]string{0: "20010db80001000000000000000000", 1: "81", 8: "what", 9: ""} {
		line := slices.Clone(fields)
		line[i] = bad
		got, err := routes([]byte(strings.Join(line, " ")+"\n"), procfmt.Routes6)
		if err == nil || len(got) > 0 {
			t.Errorf("%q is %v", line, got)
		}
		check(t, err)
	}
}

func TestLocalAddresses(t *testing.T) {
	var got []string
	err := procfmt.LocalAddresses([]byte(fibTrie), func(a netip.Addr) { got = append(got, a.String()) })
	if want := []string{"10.244.1.1", "127.0.0.1", "192.168.1.10", "127.0.0.1"}; !slices.Equal(got, want) || err != nil {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	for _, bad := range []string{"|-- 10.0.0\n", "|-- fd00::1\n/32 host LOCAL\n"} {
		err := procfmt.LocalAddresses([]byte(bad), func(a netip.Addr) { t.Errorf("%q has %s", bad, a) })
		if err == nil {
			t.Errorf("%q is read", bad)
		}
		check(t, err)
	}
	if err := procfmt.LocalAddresses([]byte("/32 host LOCAL\n"), func(a netip.Addr) { t.Errorf("%s without a leaf", a) }); err != nil {
		t.Error(err)
	}
}

func FuzzRoutes(f *testing.F) {
	f.Add([]byte(route4))
	f.Add([]byte(route6))
	f.Fuzz(func(t *testing.T, b []byte) {
		for name, parse := range map[string]func([]byte, func(procfmt.Route)) error{"Routes4": procfmt.Routes4, "Routes6": procfmt.Routes6} {
			rs, err := routes(b, parse)
			check(t, err)
			for _, r := range rs {
				if !r.Prefix.IsValid() || r.Prefix != r.Prefix.Masked() || r.Interface == "" || r.Prefix.Addr().Is4() != (name == "Routes4") || r.Local && name == "Routes4" {
					t.Errorf("%s(%q): %+v", name, b, r)
				}
			}
		}
	})
}

func FuzzLocalAddresses(f *testing.F) {
	f.Add([]byte(fibTrie))
	f.Fuzz(func(t *testing.T, b []byte) {
		check(t, procfmt.LocalAddresses(b, func(a netip.Addr) {
			if !a.Is4() {
				t.Errorf("LocalAddresses(%q): %s", b, a)
			}
		}))
	})
}

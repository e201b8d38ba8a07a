package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"mete.dev/mete/internal/model/fault"
)

// TestClassCountsOfMany reads more keys than one call of the kernel returns, each once.
func TestClassCountsOfMany(t *testing.T) {
	cfg := Default()
	cfg.Parts = Net | Classes
	k, err := Open(cfg)
	if err == nil {
		defer func() { _ = k.Close() }()
		err = k.Err(Classes)
	}
	if errors.Is(err, fault.ErrDenied) || errors.Is(err, fault.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []uint64{0, 1, 256, 5000} {
		for i := range n {
			key, counts := ClassKey{i, i + 1}, ClassCounts{{Wire: i, Interface: 2 * i}}
			if err := k.count.maps["by_class"].Put(&key, &counts); err != nil {
				t.Fatal(err)
			}
		}
		seen := map[ClassKey]bool{}
		if err := k.ClassCounts(func(key ClassKey, c *ClassCounts) {
			if *c != (ClassCounts{{Wire: key.Group, Interface: 2 * key.Group}}) || key.NetNS != key.Group+1 || seen[key] {
				t.Errorf("%v has %v, seen before %v", key, *c, seen[key])
			}
			seen[key] = true
		}); err != nil {
			t.Fatal(err)
		}
		if len(seen) != int(n) {
			t.Errorf("%d keys, want %d", len(seen), n)
		}
	}
}

// frame returns an Ethernet frame with an IP packet of UDP from and to an address.
func frame(a netip.Addr, payload int) []byte {
	b := make([]byte, 14, 14+40+8+payload)
	if a.Is4() {
		binary.BigEndian.PutUint16(b[12:], 0x0800)
		ip := make([]byte, 20)
		ip[0], ip[8], ip[9] = 0x45, 64, 17
		binary.BigEndian.PutUint16(ip[2:], uint16(28+payload))
		copy(ip[12:], a.AsSlice())
		copy(ip[16:], a.AsSlice())
		b = append(b, ip...)
	} else {
		binary.BigEndian.PutUint16(b[12:], 0x86dd)
		ip := make([]byte, 40)
		ip[0], ip[6], ip[7] = 0x60, 17, 64
		binary.BigEndian.PutUint16(ip[4:], uint16(8+payload))
		copy(ip[8:], a.AsSlice())
		copy(ip[24:], a.AsSlice())
		b = append(b, ip...)
	}
	return append(b, make([]byte, 8+payload)...)
}

// BenchmarkPacket measures what a packet costs in the programs that count it, by class, by connection and by neither, with few
// prefixes and with as many as an operator may give. The kernel runs the programs with a packet, many times.
func BenchmarkPacket(b *testing.B) {
	for _, c := range []struct {
		name     string
		parts    Part
		prefixes int
	}{{"plain", Net, 0}, {"classes/prefixes=30", Net | Classes, 30}, {"classes/prefixes=10000", Net | Classes, 10_000}, {"connections/prefixes=30", Net | Classes | Connections, 30}} {
		cfg := Default()
		cfg.Parts, cfg.Groups, cfg.Loopback = c.parts, 64, true // the packets of a test are of lo
		k, err := Open(cfg)
		if err == nil && c.parts&Connections != 0 {
			err = k.Err(Connections)
		}
		if err != nil {
			b.Skip(err)
		}
		rules := map[netip.Prefix]uint8{netip.MustParsePrefix("0.0.0.0/0"): 6, netip.MustParsePrefix("::/0"): 6}
		for i := range c.prefixes / 2 {
			four := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0})
			rules[netip.PrefixFrom(four, 24)] = uint8(1 + i%6)
			six := netip.AddrFrom16([16]byte{0: 0xfd, 6: byte(i >> 8), 7: byte(i)})
			rules[netip.PrefixFrom(six, 64)] = uint8(1 + i%6)
		}
		if c.parts&Classes != 0 {
			if err := k.SetClasses(rules); err != nil {
				b.Fatal(err)
			}
		}
		for _, to := range []string{"10.0.7.9", "192.0.2.1", "fd00:0:0:7::9", "2001:db8::1"} {
			for i, direction := range []string{"received", "sent"} {
				b.Run(fmt.Sprintf("%s/%s/%s", c.name, direction, to), func(b *testing.B) {
					in := frame(netip.MustParseAddr(to), 1000)
					var all time.Duration
					n := 0
					for b.Loop() {
						const repeat = 20_000
						_, each, err := k.count.net[i].Benchmark(in, repeat, nil)
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
		if err := k.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

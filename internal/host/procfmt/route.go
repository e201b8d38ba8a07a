package procfmt

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"mete.dev/mete/internal/model/fault"
)

// A Route is a route of a network namespace.
type Route struct {
	Prefix    netip.Prefix
	Interface string
	// Gateway says that packets go through another machine; otherwise the prefix is at the interface.
	Gateway bool
	// Local says that the prefix is an address of the namespace itself.
	Local bool
}

// Flags of routes, of include/uapi/linux/route.h and ipv6_route.h.
const (
	routeGateway = 0x0002
	routeReject  = 0x0200
	routeLocal   = 0x80000000
)

// Routes4 calls f for the routes of net/route, which has those of the main table. None is Local: see LocalAddresses.
func Routes4(b []byte, f func(Route)) error {
	first := true
	for line := range bytes.Lines(b) {
		fields := bytes.Fields(line)
		if first { // the heading; empty without IPv4
			first = false
			continue
		}
		if len(fields) < 8 {
			return fmt.Errorf("route %.80q: %w", line, fault.ErrInvalid)
		}
		to, ok1 := address4(fields[1])
		mask, ok2 := address4(fields[7])
		flags, err := strconv.ParseUint(string(fields[3]), 16, 32)
		if !ok1 || !ok2 || err != nil {
			return fmt.Errorf("route %.80q: %w", line, fault.ErrInvalid)
		}
		bits, ok := maskBits(mask)
		if !ok || flags&routeReject != 0 {
			continue
		}
		f(Route{Prefix: netip.PrefixFrom(to, bits).Masked(), Interface: string(fields[0]), Gateway: flags&routeGateway != 0})
	}
	return nil
}

// address4 parses an IPv4 address as the kernel prints it: the bytes of memory as a number.
func address4(b []byte) (netip.Addr, bool) {
	var a [4]byte
	if len(b) != 8 {
		return netip.Addr{}, false
	}
	if _, err := hex.Decode(a[:], b); err != nil {
		return netip.Addr{}, false
	}
	slices.Reverse(a[:])
	return netip.AddrFrom4(a), true
}

// maskBits returns the length of a mask; false if its ones are not all at its beginning.
func maskBits(mask netip.Addr) (int, bool) {
	a := mask.As4()
	v := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3])
	n := 0
	for ; v&(1<<31) != 0; v <<= 1 {
		n++
	}
	return n, v == 0
}

// Routes6 calls f for the routes of net/ipv6_route, which has those of all tables.
func Routes6(b []byte, f func(Route)) error {
	for line := range bytes.Lines(b) {
		fields := bytes.Fields(line)
		var a [16]byte
		if len(fields) != 10 || len(fields[0]) != 32 {
			return fmt.Errorf("route %.80q: %w", line, fault.ErrInvalid)
		}
		_, err := hex.Decode(a[:], fields[0])
		length, err2 := strconv.ParseUint(string(fields[1]), 16, 8)
		flags, err3 := strconv.ParseUint(string(fields[8]), 16, 32)
		if err != nil || err2 != nil || err3 != nil || length > 128 {
			return fmt.Errorf("route %.80q: %w", line, fault.ErrInvalid)
		}
		if flags&routeReject != 0 {
			continue
		}
		f(Route{Prefix: netip.PrefixFrom(netip.AddrFrom16(a), int(length)).Masked(), Interface: string(fields[9]),
			Gateway: flags&routeGateway != 0, Local: flags&routeLocal != 0})
	}
	return nil
}

// LocalAddresses calls f for the IPv4 addresses of the namespace in net/fib_trie, some of them more than once.
func LocalAddresses(b []byte, f func(netip.Addr)) error {
	var leaf netip.Addr
	for line := range bytes.Lines(b) {
		fields := bytes.Fields(line)
		switch {
		case len(fields) == 2 && string(fields[0]) == "|--":
			a, err := netip.ParseAddr(string(fields[1]))
			if err != nil || !a.Is4() {
				return fmt.Errorf("address %.80q: %w", line, fault.ErrInvalid)
			}
			leaf = a
		case len(fields) >= 3 && string(fields[0]) == "/32" && string(fields[2]) == "LOCAL" && leaf.IsValid():
			f(leaf)
		}
	}
	return nil
}

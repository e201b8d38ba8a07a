package net

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

// Rules are the classes of prefixes. The longest prefix that has an address decides.
type Rules map[netip.Prefix]usage.NetworkClass

// maxRules is how many rules an operator may give. Addresses of this machine come on top.
const maxRules = 10_000

// Add parses rules such as internal=10.0.0.0/8,fd00::/8 and adds them to r. A single address is a prefix too. An error
// wraps fault.ErrInvalid.
func (r Rules) Add(text string) error {
	name, list, ok := strings.Cut(text, "=")
	if !ok {
		return fmt.Errorf("%.60q is not CLASS=PREFIX: %w", text, fault.ErrInvalid)
	}
	class, ok := usage.FindNetworkClass(name)
	if !ok {
		return fault.WithHint(fmt.Errorf("%.60q is not a class of network traffic: %w", name, fault.ErrInvalid), "classes are node, box, internal, zone, peering, internet and unclassified")
	}
	for part := range strings.SplitSeq(list, ",") {
		p, err := parsePrefix(part)
		if err != nil {
			return err
		}
		if was, ok := r[p]; ok && was != class {
			return fmt.Errorf("%s is of class %s and of class %s: %w", p, was, class, fault.ErrInvalid)
		}
		r[p] = class
		if len(r) > maxRules {
			return fmt.Errorf("more than %d prefixes have a class: %w", maxRules, fault.ErrInvalid)
		}
	}
	return nil
}

func parsePrefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if a, alone := netip.ParseAddr(text); err != nil && alone == nil && a.Zone() == "" {
		p, err = netip.PrefixFrom(a, a.BitLen()), nil
	}
	if err != nil {
		return p, fault.WithHint(fmt.Errorf("%.60q is not a prefix of addresses: %w", text, fault.ErrInvalid), "write it as 10.0.0.0/8 or fd00::/8")
	}
	if a := p.Addr(); a.Is4In6() {
		if p.Bits() < 96 {
			return p, fmt.Errorf("%s has addresses of both families: %w", p, fault.ErrInvalid)
		}
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	if p != p.Masked() {
		return p, fault.WithHint(fmt.Errorf("%s has bits beyond its length: %w", p, fault.ErrInvalid), "did you mean "+p.Masked().String()+"?")
	}
	return p, nil
}

// general are the rules without any others: addresses of the internet are those that are global unicast in the registries
// of special-purpose addresses of IANA (RFC 6890 and later). The class of all others is not known.
var general = func() Rules {
	r := Rules{netip.MustParsePrefix("0.0.0.0/0"): usage.ClassInternet, netip.MustParsePrefix("2000::/3"): usage.ClassInternet}
	for _, p := range []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
		"192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
		"2001:2::/48", "2001:db8::/32", "3fff::/20",
	} {
		r[netip.MustParsePrefix(p)] = usage.Unclassified
	}
	return r
}()

// cover reports whether all of a prefix has a rule of r.
func (r Rules) cover(p netip.Prefix) bool {
	if len(r) == 0 {
		return false
	}
	for bits := p.Bits(); bits >= 0; bits-- {
		wider, err := p.Addr().Prefix(bits)
		if _, ok := r[wider]; ok && err == nil {
			return true
		}
	}
	return false
}

// rules returns the rules that hold with those of a server. A server's rule within a prefix of the operator does not hold: the
// operator may know better, as where a network plugin gives pods other addresses than Kubernetes says. For the same prefix
// those of the operator precede, then the addresses of this machine, then the rules of the server, then the general ones.
func (c *classes) rules(directed Rules) Rules {
	r := maps.Clone(general)
	for p, class := range directed {
		if !c.operator.cover(p) {
			r[p] = class
		}
	}
	for _, p := range c.own {
		r[p] = usage.ClassNode
	}
	maps.Copy(r, c.operator)
	return r
}

// exceptService takes an address that the machine translates out of an operator's prefixes that have it: it is not where the
// traffic goes. A rule for the address itself holds, as do general rules: the machine may translate only some connections to an
// address of the internet.
func (r Rules) exceptService(a netip.Addr) {
	for bits := a.BitLen(); bits >= 0; bits-- {
		p, err := a.Prefix(bits)
		class, ok := r[p]
		switch {
		case err != nil || !ok:
			continue
		case bits < a.BitLen() && class != usage.ClassInternet && class != usage.ClassNode && class != usage.Unclassified:
			r[netip.PrefixFrom(a, a.BitLen())] = usage.Unclassified
		}
		return
	}
}

// maxTable is how many bytes of a routing table are read. A machine that has more is a router, and its workloads are not
// behind all of its routes.
const maxTable = 1 << 20

// keptTable is up to how many bytes of memory are kept for the next reading of a routing table.
const keptTable = 64 << 10

// services is the interface at which kube-proxy with IPVS keeps the addresses of all services of a cluster.
const services = "kube-ipvs0"

// ownPrefixes returns the addresses of this machine and of its workloads: its own, and those that it reaches through virtual
// interfaces that lead nowhere else.
func (t *Table) ownPrefixes() (own []netip.Prefix, err error) {
	var routes []procfmt.Route
	var addresses []netip.Addr
	err = errors.Join(
		t.readTable("fib_trie", func(b []byte) error {
			return procfmt.LocalAddresses(b, func(a netip.Addr) { addresses = append(addresses, a) })
		}),
		t.readTable("route", func(b []byte) error {
			return procfmt.Routes4(b, func(r procfmt.Route) { routes = append(routes, r) })
		}),
		t.readTable("ipv6_route", func(b []byte) error {
			return procfmt.Routes6(b, func(r procfmt.Route) { routes = append(routes, r) })
		}))
	var connected []netip.Prefix
	inside, outward := map[string]bool{}, map[string]bool{}
	for _, r := range routes {
		if r.Gateway {
			outward[r.Interface] = true
		} else if !r.Local && r.Prefix.Bits() > 0 {
			connected = append(connected, r.Prefix)
		}
	}
	for _, r := range routes {
		if r.Local {
			if r.Interface != services {
				own = append(own, r.Prefix)
			}
			continue
		}
		if r.Gateway || r.Prefix.Bits() == 0 || r.Prefix.Addr().IsLinkLocalUnicast() || r.Prefix.Addr().IsMulticast() {
			continue
		}
		within, known := inside[r.Interface]
		if !known {
			within = leadsInside(t.h, r.Interface)
			inside[r.Interface] = within
		}
		// Behind an interface with a gateway are others too: a machine may be one end of a pair itself.
		if within && (r.Prefix.IsSingleIP() || !outward[r.Interface]) {
			own = append(own, r.Prefix)
		}
	}
	_, absent := t.h.ReadDir("/sys/class/net/" + services)
	for _, a := range addresses {
		// The addresses of services are in no network of the machine.
		if absent != nil || slices.ContainsFunc(connected, func(p netip.Prefix) bool { return p.Bits() < a.BitLen() && p.Contains(a) }) {
			own = append(own, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return own, err
}

// readTable parses a table of the machine's network namespace, if there is one.
func (t *Table) readTable(name string, parse func(b []byte) error) error {
	b, err := t.h.ReadStart("/proc/1/net/"+name, t.classes.table, maxTable)
	if errors.Is(err, fault.ErrDenied) {
		b, err = t.h.ReadStart("/proc/net/"+name, t.classes.table, maxTable)
	}
	if b != nil && cap(b) <= keptTable {
		t.classes.table = b
	}
	if err != nil {
		return ignoreNotFound(err) // a machine may lack IPv6
	}
	if len(b) == maxTable {
		b = b[:bytes.LastIndexByte(b, '\n')+1]
	}
	return parse(b)
}

// leadsInside reports whether everything at an interface is on this machine: at a bridge without a port that leads elsewhere,
// or at one end of a pair whose other end is in another namespace.
func leadsInside(h *hostfs.FS, name string) bool {
	if _, err := h.ReadDir("/sys/class/net/" + name + "/bridge"); err == nil {
		ports, err := h.ReadDir("/sys/class/net/" + name + "/brif")
		return err == nil && !slices.ContainsFunc(ports, func(p fs.DirEntry) bool { return !isPairEnd(h, p.Name()) })
	}
	return isPairEnd(h, name)
}

// isPairEnd reports whether an interface is an end of a pair of virtual Ethernet interfaces. Such an end has no type of its own
// beyond that of Ethernet (1, as of include/uapi/linux/if_arp.h), and is linked to another interface that is not below it.
func isPairEnd(h *hostfs.FS, name string) bool {
	dir := "/sys/class/net/" + name
	to, err := h.Readlink(dir)
	if err != nil || !strings.Contains(to, "/devices/virtual/") {
		return false
	}
	read := func(name string) string {
		b, err := h.ReadFile(dir + "/" + name)
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	index, link := read("ifindex"), read("iflink")
	if index == "" || link == "" || link == "0" || index == link || read("type") != "1" || strings.Contains(read("uevent"), "DEVTYPE=") {
		return false
	}
	files, err := h.ReadDir(dir)
	return err == nil && !slices.ContainsFunc(files, func(f fs.DirEntry) bool { return strings.HasPrefix(f.Name(), "lower_") })
}

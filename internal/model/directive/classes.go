package directive

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/usage"
)

// Classes are the classes of prefixes.
type Classes map[netip.Prefix]usage.NetworkClass

// MaxPrefixes is how many prefixes a section may have: two of each family for each of 15,000 nodes.
const MaxPrefixes = 60_000

// classesContent is the JSON of Classes: the prefixes of each class, sorted.
type classesContent struct {
	Classes map[string][]netip.Prefix `json:"classes"`
}

// Encode returns the content of a section with the classes: the same for equal ones.
func (c Classes) Encode() []byte {
	out := classesContent{map[string][]netip.Prefix{}}
	for _, p := range slices.SortedFunc(maps.Keys(c), netip.Prefix.Compare) {
		name := c[p].String()
		out.Classes[name] = append(out.Classes[name], p)
	}
	b, err := json.Marshal(out)
	if err != nil {
		panic(err) // prefixes and strings have JSON
	}
	return b
}

// DecodeClasses decodes the content of a section with classes. The error wraps fault.ErrInvalid: a class that this program
// does not know, or a prefix that is not one, refuses the whole.
func DecodeClasses(content []byte) (Classes, error) {
	var in classesContent
	if err := decode(content, &in); err != nil {
		return nil, fmt.Errorf("classes of prefixes: %w: %w", err, fault.ErrInvalid)
	}
	c := Classes{}
	for name, prefixes := range in.Classes {
		class, ok := usage.FindNetworkClass(name)
		if !ok {
			return nil, fmt.Errorf("classes of prefixes: unknown class %.60q: %w", name, fault.ErrInvalid)
		}
		for _, p := range prefixes {
			if _, twice := c[p]; twice || !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
				return nil, fmt.Errorf("classes of prefixes: prefix %s: %w", p, fault.ErrInvalid)
			}
			c[p] = class
		}
	}
	if len(c) > MaxPrefixes {
		return nil, fmt.Errorf("classes of prefixes: more than %d: %w", MaxPrefixes, fault.ErrInvalid)
	}
	return c, nil
}

// A Network derives the sections of a cluster's nodes from its topology.
type Network struct {
	nodes   pod.Topology
	single  bool // no node has a zone
	claims  map[netip.Prefix]claim
	lengths []int // of prefixes, the longest first
}

// A claim says which nodes have a prefix.
type claim struct {
	node string // one of them
	n    int    // how many
}

// NewNetwork returns the network of a topology, which it keeps.
func NewNetwork(t pod.Topology) *Network {
	n := &Network{nodes: t, single: true, claims: map[netip.Prefix]claim{}}
	lengths := map[int]bool{}
	for name, one := range t {
		n.single = n.single && one.Zone == ""
		for _, p := range one.Prefixes {
			n.claims[p] = claim{name, n.claims[p].n + 1}
			lengths[p.Bits()] = true
		}
	}
	n.lengths = slices.SortedFunc(maps.Keys(lengths), func(a, b int) int { return b - a })
	return n
}

// Len returns how many prefixes the nodes have: no section has more.
func (n *Network) Len() int { return len(n.claims) }

// Overlaps returns how many prefixes are those of several nodes, or within one of another node, and the first of them: a
// cluster should have none.
func (n *Network) Overlaps() (count int, first netip.Prefix) {
	for p, c := range n.claims {
		if c.n > 1 || n.isWithin(p, func(wider claim) bool { return wider.n > 1 || wider.node != c.node }) {
			if count++; count == 1 || p.Compare(first) < 0 {
				first = p
			}
		}
	}
	return count, first
}

// isWithin reports whether a wider prefix than p contains it, of nodes for which of returns true.
func (n *Network) isWithin(p netip.Prefix, of func(claim) bool) bool {
	for _, bits := range n.lengths {
		if bits >= p.Bits() {
			continue
		}
		wider, _ := p.Addr().Prefix(bits) // an address has more bits
		if c, ok := n.claims[wider]; ok && of(c) {
			return true
		}
	}
	return false
}

// Zone returns the zone of a node, false if the cluster does not have the node.
func (n *Network) Zone(node string) (zone string, ok bool) {
	one, ok := n.nodes[node]
	return one.Zone, ok
}

// ZoneClasses returns the classes of the cluster's addresses for the machines in a zone, as all of them share them: addresses
// of nodes in the same zone are internal, of those in others zone. Where it is not known of one of the two in which zone it
// is, there is no rule. If no node has a zone, the cluster is one zone. A prefix of several nodes is unclassified unless the
// class is the same for all. Of prefixes within each other the longest counts, as in routing; one without a rule within one that
// may have one is unclassified.
func (n *Network) ZoneClasses(zone string) Classes {
	c := Classes{}
	for _, one := range n.nodes {
		class, known := n.classOf(zone, one.Zone)
		for _, p := range one.Prefixes {
			was, ok := c[p]
			switch {
			case !known && n.claims[p].n == 1 && !n.isWithin(p, func(claim) bool { return true }):
			case !known || ok && was != class:
				c[p] = usage.Unclassified
			default:
				c[p] = class
			}
		}
	}
	return c
}

// classOf returns the class of traffic between zones, false if it is not known.
func (n *Network) classOf(own, other string) (usage.NetworkClass, bool) {
	switch {
	case n.single:
		return usage.ClassInternal, true
	case own == "" || other == "":
		return usage.Unclassified, false
	case own == other:
		return usage.ClassInternal, true
	}
	return usage.ClassZone, true
}

// NodeClasses returns the classes of the addresses of a node and its pods, for the node itself; without those that another
// node has too.
func (n *Network) NodeClasses(node string) Classes {
	c := Classes{}
	for _, p := range n.nodes[node].Prefixes {
		if n.claims[p].n == 1 {
			c[p] = usage.ClassNode
		}
	}
	return c
}

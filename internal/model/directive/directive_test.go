package directive_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"mete.dev/mete/internal/model/directive"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/usage"
)

func TestParseList(t *testing.T) {
	good := directive.HashOf([]byte("x"))
	one := fmt.Sprintf(`{"name":"a-1","hash":%q,"epoch":1,"life_s":60}`, good)
	for text, ok := range map[string]bool{
		`{"sections":[]}`:                         true,
		`{"sections":[` + one + `]}`:              true,
		`{"sections":[` + one + `],"later":1}`:    true,
		`{"sections":[` + one + `,` + one + `]}`:  false,
		`{}`:                                      false,
		`{"sections":null}`:                       false,
		`{"sections":[` + one + `],"sections":1}`: false,
		``:   false,
		`[]`: false,
		`{"sections":[` + strings.Replace(one, "a-1", "A", 1) + `]}`:                     false,
		`{"sections":[` + strings.Replace(one, "a-1", "../x", 1) + `]}`:                  false,
		`{"sections":[` + strings.Replace(one, "a-1", strings.Repeat("a", 64), 1) + `]}`: false,
		`{"sections":[` + strings.Replace(one, "a-1", strings.Repeat("a", 63), 1) + `]}`: true,
		`{"sections":[` + strings.Replace(one, good, strings.ToUpper(good), 1) + `]}`:    false,
		`{"sections":[` + strings.Replace(one, good, good[1:], 1) + `]}`:                 false,
		`{"sections":[` + strings.Replace(one, `"epoch":1`, `"epoch":0`, 1) + `]}`:       false,
		`{"sections":[` + strings.Replace(one, `"epoch":1`, `"epoch":-1`, 1) + `]}`:      false,
		`{"sections":[` + strings.Replace(one, `"life_s":60`, `"life_s":0`, 1) + `]}`:    false,
		`{"sections":[` + strings.Replace(one, `"life_s":60`, `"life_s":9e9`, 1) + `]}`:  false,
		`{"sections":[` + strings.Replace(one, `"life_s":60`, `"life_s":1`, 1) + `]}`:    true,
	} {
		l, err := directive.ParseList([]byte(text))
		if (err == nil) != ok || err != nil && !errors.Is(err, fault.ErrInvalid) || ok && strings.Contains(text, good) != (len(l.Sections) == 1) {
			t.Errorf("%s: %+v, %v", text, l, err)
		}
	}
	for life, ok := range map[string]bool{"316224000": true, "316224001": false} { // ten years
		if _, err := directive.ParseList([]byte(`{"sections":[` + strings.Replace(one, `"life_s":60`, `"life_s":`+life, 1) + `]}`)); (err == nil) != ok {
			t.Errorf("a life of %s s: %v", life, err)
		}
	}
	if directive.MaxSections != 64 || directive.MaxList != 65_536 || directive.MaxContent != 4_194_304 || directive.MaxPrefixes != 60_000 {
		t.Error("the limits are not those of docs/formats/directives.md")
	}
	many := make([]string, directive.MaxSections+1)
	for i := range many {
		many[i] = strings.Replace(one, "a-1", fmt.Sprintf("a-%d", i), 1)
	}
	for n, ok := range map[int]bool{directive.MaxSections: true, directive.MaxSections + 1: false} {
		text := `{"sections":[` + strings.Join(many[:n], ",") + `]}`
		if _, err := directive.ParseList([]byte(text)); (err == nil) != ok {
			t.Errorf("%d sections: %v", n, err)
		}
		if len(text) > directive.MaxList {
			t.Errorf("%d sections are %d bytes, of %d that are read", n, len(text), directive.MaxList)
		}
	}
}

// classes parses "10.0.0.0/8=internal fd00::/8=zone".
func classes(text string) directive.Classes {
	c := directive.Classes{}
	for part := range strings.FieldsSeq(text) {
		prefix, name, _ := strings.Cut(part, "=")
		class, ok := usage.FindNetworkClass(name)
		if !ok {
			panic(part)
		}
		c[netip.MustParsePrefix(prefix)] = class
	}
	return c
}

func TestClasses(t *testing.T) {
	c := classes("10.0.2.0/24=zone 10.0.1.0/24=internal 10.0.0.0/8=unclassified fd00::/8=internal 10.0.1.7/32=node")
	const want = `{"classes":{"internal":["10.0.1.0/24","fd00::/8"],"node":["10.0.1.7/32"],"unclassified":["10.0.0.0/8"],"zone":["10.0.2.0/24"]}}`
	if got := c.Encode(); string(got) != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, err := directive.DecodeClasses([]byte(want)); err != nil || !maps.Equal(got, c) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := directive.DecodeClasses(directive.Classes{}.Encode()); err != nil || len(got) != 0 {
		t.Errorf("none: %v, %v", got, err)
	}
	for _, text := range []string{
		``, `{}x`, want + `{}`, `{"classes":{"space":["10.0.0.0/8"]}}`, `{"classes":{"zone":["10.0.0.0"]}}`, `{"classes":{"zone":["10.0.0.1/8"]}}`,
		`{"classes":{"zone":["::ffff:10.0.0.0/104"]}}`, `{"classes":{"zone":["10.0.0.0/8"],"node":["10.0.0.0/8"]}}`, `{"classes":{"zone":["10.0.0.0/8","10.0.0.0/8"]}}`,
		`{"classes":{},"more":1}`, `{"classes":{"zone":[""]}}`,
	} {
		if got, err := directive.DecodeClasses([]byte(text)); !errors.Is(err, fault.ErrInvalid) || got != nil {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	many := directive.Classes{}
	for i := range directive.MaxPrefixes {
		many[netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)] = usage.ClassInternal
	}
	b := many.Encode()
	if _, err := directive.DecodeClasses(b); err != nil || len(b) > directive.MaxContent {
		t.Errorf("%d bytes of %d, %v", len(b), directive.MaxContent, err)
	}
	many[netip.MustParsePrefix("11.0.0.0/8")] = usage.ClassZone
	if _, err := directive.DecodeClasses(many.Encode()); !errors.Is(err, fault.ErrInvalid) {
		t.Error(err)
	}
}

// topology parses "NODE ZONE PREFIX...", with - for no zone.
func topology(lines ...string) pod.Topology {
	t := pod.Topology{}
	for _, line := range lines {
		f := strings.Fields(line)
		n := pod.NodeNetwork{Zone: strings.Trim(f[1], "-")}
		for _, p := range f[2:] {
			n.Prefixes = append(n.Prefixes, netip.MustParsePrefix(p))
		}
		t[f[0]] = n
	}
	return t
}

func TestNetwork(t *testing.T) {
	zones := topology("a east 10.0.1.0/24 192.0.2.1/32", "b east 10.0.2.0/24", "c west 10.0.3.0/24 fd00::/64", "d - 10.0.4.0/24", "e east 10.9.0.0/16 10.8.0.0/16", "f west 10.9.0.0/16 10.7.0.0/16")
	flat := topology("a - 10.0.1.0/24", "b - 10.0.2.0/24")
	for _, c := range []struct {
		t    pod.Topology
		node string
		zone string
		want string
		own  string
	}{
		{zones, "a", "east", "10.0.1.0/24=internal 192.0.2.1/32=internal 10.0.2.0/24=internal 10.0.3.0/24=zone fd00::/64=zone 10.9.0.0/16=unclassified 10.8.0.0/16=internal 10.7.0.0/16=zone",
			"10.0.1.0/24=node 192.0.2.1/32=node"},
		{zones, "c", "west", "10.0.1.0/24=zone 192.0.2.1/32=zone 10.0.2.0/24=zone 10.0.3.0/24=internal fd00::/64=internal 10.9.0.0/16=unclassified 10.8.0.0/16=zone 10.7.0.0/16=internal",
			"10.0.3.0/24=node fd00::/64=node"},
		{zones, "d", "", "10.9.0.0/16=unclassified",
			"10.0.4.0/24=node"},
		{zones, "e", "east", "", "10.8.0.0/16=node"},
		{flat, "a", "", "10.0.1.0/24=internal 10.0.2.0/24=internal", "10.0.1.0/24=node"},
	} {
		n := directive.NewNetwork(c.t)
		zone, ok := n.Zone(c.node)
		if !ok || zone != c.zone {
			t.Errorf("%s: zone %q, %t", c.node, zone, ok)
		}
		if got := n.ZoneClasses(zone); c.want != "" && !maps.Equal(got, classes(c.want)) {
			t.Errorf("%s: %s", c.node, got.Encode())
		}
		if got := n.NodeClasses(c.node); !maps.Equal(got, classes(c.own)) {
			t.Errorf("%s: own %s", c.node, got.Encode())
		}
	}
	if zone, ok := directive.NewNetwork(flat).Zone("z"); ok || zone != "" {
		t.Errorf("unknown node: %q, %t", zone, ok)
	}
}

// TestOverlaps checks the classes of addresses that several nodes have, or that are within a range of another node.
func TestOverlaps(t *testing.T) {
	ranges := topology("a east 10.0.0.0/16 10.1.0.0/16", "b east 10.0.2.0/24", "c west 10.0.3.0/24", "d - 10.0.4.0/24 10.0.4.4/32", "e - 10.9.0.0/24")
	for _, c := range []struct {
		t                       pod.Topology
		node, classes, own, all string
	}{
		{ranges, "a", "10.0.0.0/16=internal 10.1.0.0/16=internal 10.0.2.0/24=internal 10.0.3.0/24=zone 10.0.4.0/24=unclassified 10.0.4.4/32=unclassified",
			"10.0.0.0/16=node 10.1.0.0/16=node", "4 10.0.2.0/24"},
		{ranges, "c", "10.0.0.0/16=zone 10.1.0.0/16=zone 10.0.2.0/24=zone 10.0.3.0/24=internal 10.0.4.0/24=unclassified 10.0.4.4/32=unclassified",
			"10.0.3.0/24=node", "4 10.0.2.0/24"},
		{topology("a - fd00::/16", "b - fd00:1::/32 10.0.0.0/8"), "b", "fd00::/16=internal fd00:1::/32=internal 10.0.0.0/8=internal",
			"fd00:1::/32=node 10.0.0.0/8=node", "1 fd00:1::/32"},
		{topology("a x 10.0.1.0/24 10.0.1.1/32", "b x 10.0.1.0/24"), "b", "10.0.1.0/24=internal 10.0.1.1/32=internal", "", "2 10.0.1.0/24"},
		{topology("a x 10.0.1.0/24 10.0.1.1/32", "b y 10.0.2.0/24"), "b", "10.0.1.0/24=zone 10.0.1.1/32=zone 10.0.2.0/24=internal", "10.0.2.0/24=node", "0 invalid Prefix"},
	} {
		n := directive.NewNetwork(c.t)
		zone, _ := n.Zone(c.node)
		if got := n.ZoneClasses(zone); !maps.Equal(got, classes(c.classes)) {
			t.Errorf("%s: %s, want %s", c.node, got.Encode(), classes(c.classes).Encode())
		}
		if got := n.NodeClasses(c.node); !maps.Equal(got, classes(c.own)) {
			t.Errorf("%s: own %s, want %s", c.node, got.Encode(), classes(c.own).Encode())
		}
		if count, first := n.Overlaps(); fmt.Sprint(count, " ", first) != c.all {
			t.Errorf("%s: %d overlap, %v first, want %s", c.node, count, first, c.all)
		}
	}
}

// TestManyOverlaps makes the sections of 15,000 nodes that all have one range, which each has a narrower one in.
func TestManyOverlaps(t *testing.T) {
	many := pod.Topology{}
	for i := range 15_000 {
		own := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
		many[fmt.Sprint("n", i)] = pod.NodeNetwork{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), own}}
	}
	n := directive.NewNetwork(many)
	if count, first := n.Overlaps(); count != 15_001 || first.Bits() != 8 || n.Len() != 15_001 || len(n.ZoneClasses("")) != 15_001 || len(n.NodeClasses("n7")) != 1 {
		t.Errorf("%d overlap, %v first, of %d prefixes", count, first, n.Len())
	}
}

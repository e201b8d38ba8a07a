package agent

import (
	"maps"
	"net/netip"
	"testing"

	"mete.dev/mete/internal/collect/net"
	"mete.dev/mete/internal/model/directive"
	"mete.dev/mete/internal/model/usage"
)

// TestClassSections checks that both sections are combined, and that a bad one changes nothing.
func TestClassSections(t *testing.T) {
	var got net.Rules
	c := classSections{set: func(r net.Rules) { got = r }}
	apply := c.follow()
	near, far := netip.MustParsePrefix("10.0.1.0/24"), netip.MustParsePrefix("10.0.2.0/24")
	others := directive.Classes{near: usage.ClassInternal, far: usage.ClassZone}.Encode()
	node := directive.Classes{near: usage.ClassNode}.Encode()
	for i, step := range []struct {
		section string
		content []byte
		want    net.Rules // nil: refused
	}{
		{directive.NetworkNode, node, net.Rules{near: usage.ClassNode}},
		{directive.NetworkClasses, others, net.Rules{near: usage.ClassNode, far: usage.ClassZone}},
		{directive.NetworkClasses, []byte(`{"classes":{"internal":["10.0.1.0/24"],"space":["10.0.2.0/24"]}}`), nil},
		{directive.NetworkNode, nil, net.Rules{near: usage.ClassInternal, far: usage.ClassZone}},
		{directive.NetworkNode, node, net.Rules{near: usage.ClassNode, far: usage.ClassZone}},
		{directive.NetworkClasses, nil, net.Rules{near: usage.ClassNode}},
		{directive.NetworkNode, nil, net.Rules{}},
	} {
		before := got
		err := apply[step.section](step.content)
		if step.want == nil {
			step.want = before
			if err == nil {
				t.Errorf("step %d: accepted", i)
			}
		} else if err != nil {
			t.Errorf("step %d: %v", i, err)
		}
		if !maps.Equal(got, step.want) {
			t.Errorf("step %d: %v, want %v", i, got, step.want)
		}
	}
}

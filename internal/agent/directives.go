package agent

import (
	"maps"

	"mete.dev/mete/internal/collect/net"
	"mete.dev/mete/internal/delivery/directives"
	"mete.dev/mete/internal/model/directive"
)

// classSections combine the sections with classes of prefixes.
type classSections struct {
	set func(net.Rules)
	// The contents of the sections; nil if none holds.
	others, node []byte
}

// follow returns what the agent does with each section that it knows.
func (c *classSections) follow() map[string]directives.Apply {
	return map[string]directives.Apply{
		directive.NetworkClasses: c.applyTo(&c.others),
		directive.NetworkNode:    c.applyTo(&c.node),
	}
}

func (c *classSections) applyTo(section *[]byte) directives.Apply {
	return func(content []byte) error {
		before := *section
		*section = content
		all := net.Rules{}
		for _, one := range [][]byte{c.others, c.node} { // the machine's own addresses precede the others
			if one == nil {
				continue
			}
			classes, err := directive.DecodeClasses(one)
			if err != nil {
				*section = before
				return err
			}
			maps.Copy(all, classes)
		}
		c.set(all)
		return nil
	}
}

package rule

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"mete.dev/mete/internal/model/fault"
)

// A Cap is the power above which a node, or all nodes of a cluster together, are not
// to draw.
type Cap struct {
	Cluster string
	Node    string // "" is the whole cluster
	Watts   float64
}

// ParseCap reads CLUSTER=WATTS or CLUSTER/NODE=WATTS. The error wraps
// fault.ErrInvalid.
func ParseCap(s string) (Cap, error) {
	at, watts, _ := strings.Cut(s, "=")
	cluster, node, both := strings.Cut(at, "/")
	c := Cap{Cluster: cluster, Node: node}
	var err error
	c.Watts, err = strconv.ParseFloat(watts, 64)
	if cluster == "" || both && node == "" || err != nil || !(c.Watts > 0) || math.IsInf(c.Watts, 0) {
		return Cap{}, fault.WithHint(fmt.Errorf("power cap %q: %w", s, fault.ErrInvalid), "write CLUSTER=WATTS or CLUSTER/NODE=WATTS, as default=5000 or lab/node7=400")
	}
	return c, nil
}

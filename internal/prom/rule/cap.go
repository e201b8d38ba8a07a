package rule

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"mete.dev/mete/internal/model/fault"
)

// A Cap is the power above which an alert fires for a node or for a whole cluster.
type Cap struct {
	Cluster string
	Node    string // "" means all nodes of the cluster together
	Watts   float64
}

// ParseCap parses CLUSTER=WATTS or CLUSTER/NODE=WATTS. The error wraps fault.ErrInvalid.
func ParseCap(s string) (Cap, error) {
	target, watts, _ := strings.Cut(s, "=")
	cluster, node, hasNode := strings.Cut(target, "/")
	c := Cap{Cluster: cluster, Node: node}
	var err error
	c.Watts, err = strconv.ParseFloat(watts, 64)
	if cluster == "" || hasNode && node == "" || err != nil || !(c.Watts > 0) || math.IsInf(c.Watts, 0) {
		return Cap{}, fault.WithHint(fmt.Errorf("power cap %q: %w", s, fault.ErrInvalid), "write CLUSTER=WATTS or CLUSTER/NODE=WATTS, such as default=5000 or lab/node7=400")
	}
	return c, nil
}

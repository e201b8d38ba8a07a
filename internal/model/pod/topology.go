package pod

import "net/netip"

// A Topology says where the addresses of a Kubernetes cluster are: its nodes, by name.
type Topology map[string]NodeNetwork

// A NodeNetwork is the addresses of a node and of its pods.
type NodeNetwork struct {
	// Zone is the label topology.kubernetes.io/zone; "" if there is none.
	Zone string `json:"zone,omitempty"`
	// Prefixes are the node's ranges of pod addresses (spec.podCIDRs) and its own addresses (InternalIP), as single addresses;
	// sorted, without bits beyond their lengths.
	Prefixes []netip.Prefix `json:"prefixes,omitempty"`
}

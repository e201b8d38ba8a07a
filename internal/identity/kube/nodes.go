package kube

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"mete.dev/mete/internal/model/pod"
)

// A keptNode is what is kept of a node of the API server.
type keptNode struct {
	*metav1.PartialObjectMetadata
	network pod.NodeNetwork
}

// nodeWatch is what a Watcher does with nodes. Without the right to list them, nothing.
type nodeWatch struct {
	nodes        cache.SharedIndexInformer
	nodesListed  func() bool
	nodesChanged atomic.Bool // since the topology was made

	// Of Run's goroutine only.
	topology   pod.Topology // as it was booked last; nil: not since the lease was taken
	topologyAt time.Time    // when it was booked
}

// topologyEvery is the time from one booking of the topology to the next one at the least: what changes in between is booked
// together, as all agents get what follows from it.
const topologyEvery = 30 * time.Second

// watchNodes makes the informer of nodes.
func (w *Watcher) watchNodes() error {
	w.nodes = w.informer(cache.NewListWatchFromClient(w.core, "nodes", metav1.NamespaceAll, fields.Everything()), &corev1.Node{}, trimNode)
	w.nodesListed = w.nodes.HasSynced
	_, err := w.nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { w.changeNode(nil, o) },
		UpdateFunc: w.changeNode,
		DeleteFunc: func(o any) { w.changeNode(lastState(o), nil) },
	})
	return err
}

const (
	// maxZone is the longest value of a label, as Kubernetes allows it.
	maxZone = 63
	// maxPrefixes limits the prefixes of a node.
	maxPrefixes = 16
)

// trimNode drops what is not needed.
func trimNode(o any) (any, error) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	out := &keptNode{PartialObjectMetadata: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion}}}
	if zone := n.Labels[corev1.LabelTopologyZone]; len(zone) <= maxZone {
		out.network.Zone = zone
	}
	out.network.Prefixes = prefixesOf(n)
	return out, nil
}

// prefixesOf returns the prefixes of a node that its topology may have: the first ones, if it has too many.
func prefixesOf(n *corev1.Node) (all []netip.Prefix) {
	add := func(p netip.Prefix, ok bool) {
		if ok && len(all) < maxPrefixes && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	for _, text := range n.Spec.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		add(plainPrefix(p, err))
	}
	for i := range n.Status.Addresses {
		if a := &n.Status.Addresses[i]; a.Type == corev1.NodeInternalIP {
			ip, err := netip.ParseAddr(a.Address)
			add(plainPrefix(netip.PrefixFrom(ip, ip.BitLen()), err))
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return all
}

// noNodes are the addresses that are not of one node of a cluster: unspecified, loopback, link-local and multicast ones.
var noNodes = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/32"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("::/127"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("ff00::/8"),
}

// plainPrefix returns a prefix without bits beyond its length, and one of IPv4 as such; false if a node cannot have it.
func plainPrefix(p netip.Prefix, err error) (netip.Prefix, bool) {
	if err != nil {
		return p, false
	}
	if a := p.Addr(); a.Is4In6() {
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96) // not valid if it has others too
	}
	shortest := 16
	if p.Addr().Is4() {
		shortest = 8
	}
	if p = p.Masked(); p.Bits() < shortest || slices.ContainsFunc(noNodes, p.Overlaps) {
		return p, false
	}
	return p, true
}

// changeNode takes two states of a node; nil: there is none. Most changes are heartbeats, which change nothing that is kept.
func (w *Watcher) changeNode(old, now any) {
	a, wasThere := old.(*keptNode)
	b, isThere := now.(*keptNode)
	if wasThere != isThere || isThere && !isSameNetwork(a.network, b.network) {
		w.nodesChanged.Store(true)
	}
}

func isSameNetwork(a, b pod.NodeNetwork) bool {
	return a.Zone == b.Zone && slices.Equal(a.Prefixes, b.Prefixes)
}

// flushNodes books the topology, once all nodes are known: when the lease was taken, so that its epoch rises, and after changes.
// While the API server is away or does not list nodes, the one that was booked before stays. After an error it is booked later.
func (w *Watcher) flushNodes(ctx context.Context) error {
	now := time.Now()
	if w.topology != nil && (!w.nodesChanged.Load() || now.Sub(w.topologyAt) < topologyEvery) || !w.nodesListed() || !w.health.seesNodes() {
		return nil
	}
	w.nodesChanged.Store(false) // a change from here on is booked later, if it is not in the list yet
	t := pod.Topology{}
	for _, o := range w.nodes.GetStore().List() {
		if n, ok := o.(*keptNode); ok && n.Name != "" && len(n.Name) <= maxName {
			t[n.Name] = n.network
		}
	}
	if w.topology != nil && maps.EqualFunc(w.topology, t, isSameNetwork) {
		return nil
	}
	if err := w.ledger.BookTopology(ctx, w.lease, t, now); err != nil {
		w.nodesChanged.Store(true)
		return err
	}
	w.topology, w.topologyAt = t, now
	return nil
}

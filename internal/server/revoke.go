package server

import (
	"context"
	"fmt"
	"strings"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
)

// nodeRevoker revokes nodes and servers below.
type nodeRevoker struct{ *Server }

// Revoke implements api.Nodes.
func (r nodeRevoker) Revoke(ctx context.Context, which string) (query.Node, error) {
	n, err := r.find(ctx, which)
	switch {
	case err != nil:
		return n, err
	case n.Source != "":
		return n, fault.WithHint(fmt.Errorf("node %s is replicated from server %s: %w", n.ID, n.Source, fault.ErrInvalid),
			"revoke it there; or revoke "+n.Source+" here, with all its nodes")
	}
	if err := r.Authority.RevokeNode(ctx, n.ID); err != nil {
		return n, err
	}
	n.State = "revoked"
	return n, nil
}

// find returns the node or server below with this id, or else the only unrevoked one with
// this name.
func (r nodeRevoker) find(ctx context.Context, which string) (query.Node, error) {
	all := query.Scope{All: true}
	nodes, err := r.Ledger.Nodes(ctx, all)
	if err != nil {
		return query.Node{}, err
	}
	below, err := r.Ledger.DownstreamServers(ctx, all)
	if err != nil {
		return query.Node{}, err
	}
	for _, b := range below {
		nodes = append(nodes, query.Node{ID: b.ID, Name: b.Name, Cluster: b.Cluster, Enrolled: b.Enrolled, Through: b.Through, State: b.State, Revoked: b.Revoked})
	}
	var named []query.Node
	var ids []string
	for _, n := range nodes {
		switch {
		case n.ID == which:
			return n, nil
		case n.Name == which && n.Revoked.IsZero():
			named, ids = append(named, n), append(ids, n.ID)
		}
	}
	switch len(named) {
	case 0:
		return query.Node{}, fault.WithHint(fmt.Errorf("node %q: %w", which, fault.ErrNotFound), "mete nodes lists the nodes, mete sources the servers below")
	case 1:
		return named[0], nil
	}
	return query.Node{}, fault.WithHint(fmt.Errorf("%d machines are called %q: %w", len(named), which, fault.ErrInvalid), "name one by its id: "+strings.Join(ids, ", "))
}

package server

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/prom/rule"
	"mete.dev/mete/internal/store/tsdb"
)

const (
	// stateInterval is the interval of recording the states of nodes and server.
	stateInterval = 15 * time.Second
	// gapsInterval is the interval of reading the lengths of gaps from the ledger.
	gapsInterval = time.Minute
)

// recordStates records the states of the server and its nodes in the time series database
// until ctx ends.
func (s *Server) recordStates(ctx context.Context) error {
	state := s.Metrics.State()
	var gaps map[string]time.Duration
	var gapsRead time.Time
	failing := false
	tick := time.NewTicker(stateInterval)
	defer tick.Stop()
	for {
		now := time.Now()
		var err error
		if now.Sub(gapsRead) >= gapsInterval {
			var found map[string]time.Duration
			if found, err = s.Ledger.GapTimes(ctx); err == nil {
				gaps, gapsRead = found, now
			}
		}
		// If the lengths of gaps cannot be read, those of before are recorded again; at the start there are none.
		err = errors.Join(err, s.putState(ctx, state, gaps, now))
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failing:
			s.log.Warn("cannot record the states of nodes; alerts about them are late", "err", err)
		case err == nil && failing:
			s.log.Info("states of nodes are recorded again")
		}
		failing = err != nil
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (s *Server) putState(ctx context.Context, state *tsdb.State, gaps map[string]time.Duration, now time.Time) error {
	nodes, err := s.Ledger.Nodes(ctx, query.Scope{All: true})
	if err != nil {
		return err
	}
	stats, err := s.Ledger.Stats(ctx)
	if err != nil {
		return err
	}
	// The standalone jobs of a machine are a node of the same name: the agent's node comes
	// first and takes precedence.
	slices.SortStableFunc(nodes, func(a, b query.Node) int { return cmp.Compare(jobsNodeRank(&a), jobsNodeRank(&b)) })
	var list []tsdb.Sample
	for i := range nodes {
		s.Metrics.RenameNode(nodes[i].ID, nodes[i].Cluster, nodes[i].Name)
		list = s.nodeState(list, &nodes[i], gaps, now)
	}
	list = append(list, caps(s.cfg.Caps)...)
	own, err := stateSamples(s.gatherers(stats, nodes, now), metric.Violations) // recorded by node above
	if err != nil {
		return err
	}
	return state.Put(ctx, now, append(list, own...))
}

// nodeState appends the samples of one node. It has none for revoked nodes and for nodes of
// servers below.
func (s *Server) nodeState(list []tsdb.Sample, n *query.Node, gaps map[string]time.Duration, now time.Time) []tsdb.Sample {
	if n.State == "revoked" || n.Source != "" {
		return list
	}
	labels := []string{metric.Cluster, n.Cluster, metric.Node, cmp.Or(n.Name, n.ID)}
	add := func(name string, v float64) {
		list = append(list, tsdb.Sample{Name: name, Labels: labels, Value: v})
	}
	flaws, spool := s.Receiver.NodeStatus(n.ID)
	if gaps != nil { // a zero before the first reading would look like a new gap after it
		add(metric.GapSeconds, gaps[n.ID].Seconds())
	}
	add(metric.Violations, float64(flaws.Violations))
	add(metric.Missed, float64(flaws.Missed))
	if spool.Limit > 0 {
		add(metric.SpoolWaiting, float64(spool.Bytes))
		add(metric.SpoolLimit, float64(spool.Limit))
	}
	if n.Nested != nil {
		add(metric.Nested, 1)
	}
	if !n.Through.IsZero() {
		add(metric.LastWindow, float64(n.Through.UnixMilli())/1e3)
	}
	if jobsNodeRank(n) > 0 {
		return list // silence is normal between jobs
	}
	switch {
	case n.State != "silent":
		add(metric.Up, 1)
	case !n.Through.IsZero() || now.Sub(n.Enrolled) > awaited:
		add(metric.Up, 0)
	}
	if !n.Through.IsZero() {
		add(metric.Behind, max(0, now.Sub(n.Through).Seconds()))
	}
	if t, ok := s.Authority.CertificateExpiry(n.ID); ok {
		add(metric.NodeExpiry, float64(t.Unix()))
	}
	return list
}

// awaited is for how long after its enrollment a node from which nothing came yet is not silent.
const awaited = 2 * time.Minute

// jobsNodeRank returns 1 for the node of a machine's standalone jobs, and 0 for other nodes.
func jobsNodeRank(n *query.Node) int {
	if registry.IsJobsMachine(n.MachineID) {
		return 1
	}
	return 0
}

// caps returns the power caps as samples.
func caps(list []rule.Cap) (out []tsdb.Sample) {
	for _, c := range list {
		one := tsdb.Sample{Name: metric.ClusterCap, Labels: []string{metric.Cluster, c.Cluster}, Value: c.Watts}
		if c.Node != "" {
			one.Name, one.Labels = metric.NodeCap, append(one.Labels, metric.Node, c.Node)
		}
		out = append(out, one)
	}
	return out
}

package server

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/prom/rule"
	"mete.dev/mete/internal/store/tsdb"
)

const (
	// stateInterval is how often the metrics are told how measuring is doing.
	stateInterval = 15 * time.Second
	// gapsInterval is how often the ledger is asked for it how long gaps are.
	gapsInterval = time.Minute
)

// recordStates puts into the metrics how the server and its nodes are doing, until ctx
// ends.
func (s *Server) recordStates(ctx context.Context) error {
	state := s.Metrics.State()
	var gaps map[string]time.Duration
	var asked time.Time
	failing := false
	tick := time.NewTicker(stateInterval)
	defer tick.Stop()
	for {
		now := time.Now()
		var err error
		if now.Sub(asked) >= gapsInterval {
			if gaps, err = s.Ledger.GapTimes(ctx); err == nil {
				asked = now
			}
		}
		if err == nil {
			err = s.putState(ctx, state, gaps, now)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failing:
			s.log.Warn("the metrics do not learn how nodes are doing; alerts about them are late", "err", err)
		case err == nil && failing:
			s.log.Info("the metrics learn again how nodes are doing")
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
	kept, err := s.Ledger.Stats(ctx)
	if err != nil {
		return err
	}
	// A machine's jobs that send by themselves are a node of the same name: what its
	// agent says comes first, and counts.
	slices.SortStableFunc(nodes, func(a, b query.Node) int { return cmp.Compare(jobsNodeRank(&a), jobsNodeRank(&b)) })
	var list []tsdb.Sample
	for i := range nodes {
		list = s.nodeState(list, &nodes[i], gaps[nodes[i].ID], now)
	}
	list = append(list, caps(s.cfg.Caps)...)
	own, err := stateSamples(s.gatherers(kept, nodes, now), metric.Violations) // it is there already, by node
	if err != nil {
		return err
	}
	return state.Put(ctx, now, append(list, own...))
}

// nodeState adds what there is to say of one node. Nothing is said of those that may
// not send any more, and of those that a server below knows better.
func (s *Server) nodeState(list []tsdb.Sample, n *query.Node, gaps time.Duration, now time.Time) []tsdb.Sample {
	if n.State == "revoked" || n.Source != "" {
		return list
	}
	labels := []string{metric.Cluster, n.Cluster, metric.Node, cmp.Or(n.Name, n.ID)}
	add := func(name string, v float64) {
		list = append(list, tsdb.Sample{Name: name, Labels: labels, Value: v})
	}
	flaws, spool := s.Ingest.NodeStatus(n.ID)
	add(metric.GapSeconds, gaps.Seconds())
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
		return list // they are silent while there are none
	}
	up := 1.0
	if n.State == "silent" {
		up = 0
	}
	add(metric.Up, up)
	if !n.Through.IsZero() {
		add(metric.Behind, max(0, now.Sub(n.Through).Seconds()))
	}
	if t, ok := s.Authority.CertificateExpiry(n.ID); ok {
		add(metric.NodeExpiry, float64(t.Unix()))
	}
	return list
}

// jobsNodeRank is 1 for the node of a machine's jobs that send by themselves, which is called so
// in its machine id.
func jobsNodeRank(n *query.Node) int {
	if strings.HasSuffix(n.MachineID, " jobs") {
		return 1
	}
	return 0
}

// caps are the caps of power as samples.
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

package tsdb

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/x/atomicfile"
)

// History is what a ledger can tell of the past.
type History interface {
	// Through is up to when a node is booked.
	Through(ctx context.Context, node string) (time.Time, error)
	// Minutes and Wholes call f with the minutes of some nodes in [from, to), in
	// their order.
	Minutes(ctx context.Context, nodes []string, from, to time.Time, f func(node int, m *batch.Minute) error) error
	Wholes(ctx context.Context, nodes []string, from, to time.Time, f func(node int, m *batch.NodeMinute) error) error
}

// A nodeGap is time of which the ledger knows more than the metrics do, in ms since
// 1970: From 0 is ever, and Resumed 0 is up to now, as no sample came since.
type nodeGap struct {
	From    int64 `json:"From"`
	Resumed int64 `json:"Back"`
}

// nodeGaps are those of nodes. They are kept, since new samples hide that there is a
// gap before them.
type nodeGaps map[string]nodeGap

func gapsPath(dir string) string { return filepath.Join(dir, "holes.json") }

// readGaps reads what an earlier run left to do. A file that says nothing is none.
func readGaps(dir string) nodeGaps {
	h := nodeGaps{}
	b, err := os.ReadFile(gapsPath(dir))
	if err != nil || json.Unmarshal(b, &h) != nil || h == nil {
		return nodeGaps{}
	}
	return h
}

// addGap notes that a node's samples from an instant on are not there. Called with
// the node held.
func (s *Store) addGap(n *node, from int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if before, ok := s.gaps[n.id]; ok {
		from = min(from, before.From)
	}
	if h := (nodeGap{From: from}); s.gaps[n.id] != h || from == 0 {
		s.gaps[n.id] = h
		s.saveGaps()
	}
}

// removeGap takes away the gap of a node, where nothing was lost since it was looked at.
func (s *Store) removeGap(j backfillJob) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gaps[j.node.id].Resumed != j.resumed {
		return
	}
	delete(s.gaps, j.node.id)
	s.saveGaps()
}

// saveGaps keeps the gaps; mu is held. Where that fails they are known until the
// server stops.
func (s *Store) saveGaps() {
	b, err := json.Marshal(s.gaps)
	if err == nil {
		err = atomicfile.Replace(gapsPath(s.cfg.Dir), b)
	}
	if err != nil {
		s.log.Warn("what the metrics lack could not be kept: it is filled in if the server runs on", "err", err)
	}
}

// detectGap notes a gap of a node that is seen for the first time since the start,
// where the ledger has more of it than there are samples.
func (s *Store) detectGap(ctx context.Context, n *node, newest int64) error {
	if s.history == nil {
		return nil
	}
	through, err := s.history.Through(ctx, n.id)
	if err != nil || through.IsZero() {
		return err
	}
	// Samples are in ms, and a window may have been booked whose samples came a
	// moment before it.
	if newest = min(newest, s.missingSince); newest < through.UnixMilli()-time.Second.Milliseconds() {
		s.addGap(n, max(newest-maxSkew.Milliseconds(), 0))
	}
	return nil
}

// maxSkew is how much more some series of a node may lack than others do, where the
// log of what is in memory was cut off: as much as that may be.
const maxSkew = 3 * blockSpan / 2

// newestSample is when the latest sample of a node is of, in ms since 1970; 0 where there
// is none that is kept.
func (s *Store) newestSample(ctx context.Context, n *node) (int64, error) {
	end := max(s.db.Head().MaxTime(), time.Now().UnixMilli())
	for _, back := range []time.Duration{10 * time.Minute, 3 * time.Hour, 26 * time.Hour, s.cfg.Retention} {
		at, err := s.newestSampleIn(ctx, n, end-back.Milliseconds(), end)
		if at > 0 || err != nil {
			return at, err
		}
	}
	return 0, nil
}

func (s *Store) newestSampleIn(ctx context.Context, n *node, from, to int64) (newest int64, err error) {
	q, err := s.db.Querier(from, to)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	// The workload's id is the node's whatever the node was called then.
	idle := labels.MustNewMatcher(labels.MatchEqual, metric.Workload, string(workload.NewID(n.id, workload.Idle, "")))
	for _, matchers := range [][]*labels.Matcher{
		{labels.MustNewMatcher(labels.MatchEqual, model.MetricNameLabel, metric.Info), idle},
		{labels.MustNewMatcher(labels.MatchEqual, model.MetricNameLabel, metric.FamilyOf(usage.CPU).Name), idle},
		{
			labels.MustNewMatcher(labels.MatchEqual, model.MetricNameLabel, metric.CPUs),
			labels.MustNewMatcher(labels.MatchEqual, metric.Cluster, n.cluster), labels.MustNewMatcher(labels.MatchEqual, metric.Node, n.name),
		},
	} {
		found := q.Select(ctx, false, &storage.SelectHints{Start: from, End: to}, matchers...)
		var it chunkenc.Iterator
		for found.Next() {
			it = found.At().Iterator(it)
			for it.Next() == chunkenc.ValFloat {
				if at, v := it.At(); !value.IsStaleNaN(v) {
					newest = max(newest, at)
				}
			}
		}
		if err := found.Err(); err != nil {
			return 0, err
		}
	}
	return newest, nil
}

// closeGap notes, after samples of a node were taken, since when they are again.
func (s *Store) closeGap(n *node, at int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h, ok := s.gaps[n.id]; ok && h.Resumed == 0 {
		h.Resumed = max(at, h.From)
		s.gaps[n.id] = h
		s.saveGaps()
	}
}

// IncompleteNodes is how many nodes the metrics lack something of that the ledger has.
func (s *Store) IncompleteNodes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.gaps)
}

// readyJobs are the nodes whose gaps could be filled now.
func (s *Store) readyJobs() (list []backfillJob) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, h := range s.gaps {
		n := s.nodes[id]
		if n == nil || h.Resumed == 0 {
			continue // it has not come back yet
		}
		back := (h.Resumed/minute + 1) * minute
		to := back + s.cfg.BackfillDelay.Milliseconds()/minute*minute
		if n.newestEnd.Load() < to+minute || time.Since(time.Unix(0, n.lastLate.Load())) < s.cfg.BackfillDelay {
			continue
		}
		list = append(list, backfillJob{node: n, from: h.From, resumed: h.Resumed, to: to})
	}
	return list
}

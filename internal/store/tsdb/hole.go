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

// Past is what a ledger can tell of the past.
type Past interface {
	// Through is up to when a node is booked.
	Through(ctx context.Context, node string) (time.Time, error)
	// Minutes and Wholes call f with the minutes of some nodes in [from, to), in
	// their order.
	Minutes(ctx context.Context, nodes []string, from, to time.Time, f func(node int, m *batch.Minute) error) error
	Wholes(ctx context.Context, nodes []string, from, to time.Time, f func(node int, m *batch.NodeMinute) error) error
}

// A hole is time of which the ledger knows more than the metrics do, in ms since
// 1970: From 0 is ever, and Back 0 is up to now, as no sample came since.
type hole struct{ From, Back int64 }

// holes are those of nodes. They are kept, since new samples hide that there is a
// hole before them.
type holes map[string]hole

func holesPath(dir string) string { return filepath.Join(dir, "holes.json") }

// readHoles reads what an earlier run left to do. A file that says nothing is none.
func readHoles(dir string) holes {
	h := holes{}
	b, err := os.ReadFile(holesPath(dir))
	if err != nil || json.Unmarshal(b, &h) != nil || h == nil {
		return holes{}
	}
	return h
}

// hole notes that a node's samples from an instant on are not there. Called with
// the node held.
func (s *Store) hole(n *node, from int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if before, ok := s.holes[n.id]; ok {
		from = min(from, before.From)
	}
	if h := (hole{From: from}); s.holes[n.id] != h || from == 0 {
		s.holes[n.id] = h
		s.save()
	}
}

// filled takes away the hole of a node, where nothing was lost since it was looked at.
func (s *Store) filled(j job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holes[j.node.id].Back != j.back {
		return
	}
	delete(s.holes, j.node.id)
	s.save()
}

// save keeps the holes; mu is held. Where that fails they are known until the
// server stops.
func (s *Store) save() {
	b, err := json.Marshal(s.holes)
	if err == nil {
		err = atomicfile.Replace(holesPath(s.cfg.Dir), b)
	}
	if err != nil {
		s.log.Warn("what the metrics lack could not be kept: it is filled in if the server runs on", "err", err)
	}
}

// behind notes a hole of a node that is seen for the first time since the start,
// where the ledger has more of it than there are samples.
func (s *Store) behind(ctx context.Context, n *node, newest int64) error {
	if s.past == nil {
		return nil
	}
	through, err := s.past.Through(ctx, n.id)
	if err != nil || through.IsZero() {
		return err
	}
	// Samples are in ms, and a window may have been booked whose samples came a
	// moment before it.
	if newest = min(newest, s.lost); newest < through.UnixMilli()-time.Second.Milliseconds() {
		s.hole(n, max(newest-uneven.Milliseconds(), 0))
	}
	return nil
}

// uneven is how much more some series of a node may lack than others do, where the
// log of what is in memory was cut off: as much as that may be.
const uneven = 3 * slice / 2

// newest is when the latest sample of a node is of, in ms since 1970; 0 where there
// is none that is kept.
func (s *Store) newest(ctx context.Context, n *node) (int64, error) {
	end := max(s.db.Head().MaxTime(), time.Now().UnixMilli())
	for _, back := range []time.Duration{10 * time.Minute, 3 * time.Hour, 26 * time.Hour, s.cfg.Retention} {
		at, err := s.newestIn(ctx, n, end-back.Milliseconds(), end)
		if at > 0 || err != nil {
			return at, err
		}
	}
	return 0, nil
}

func (s *Store) newestIn(ctx context.Context, n *node, from, to int64) (newest int64, err error) {
	q, err := s.db.Querier(from, to)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	// The workload's id is the node's whatever the node was called then.
	idle := labels.MustNewMatcher(labels.MatchEqual, metric.Workload, string(workload.NewID(n.id, workload.Idle, "")))
	for _, matchers := range [][]*labels.Matcher{
		{labels.MustNewMatcher(labels.MatchEqual, model.MetricNameLabel, metric.Info), idle},
		{labels.MustNewMatcher(labels.MatchEqual, model.MetricNameLabel, metric.Of(usage.CPU).Name), idle},
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

// returned notes, after samples of a node were taken, since when they are again.
func (s *Store) returned(n *node, at int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h, ok := s.holes[n.id]; ok && h.Back == 0 {
		h.Back = max(at, h.From)
		s.holes[n.id] = h
		s.save()
	}
}

// Holes is how many nodes the metrics lack something of that the ledger has.
func (s *Store) Holes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.holes)
}

// waiting are the nodes whose holes could be filled now.
func (s *Store) waiting() (list []job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, h := range s.holes {
		n := s.nodes[id]
		if n == nil || h.Back == 0 {
			continue // it has not come back yet
		}
		back := (h.Back/minute + 1) * minute
		to := back + s.cfg.Settle.Milliseconds()/minute*minute
		if n.seen.Load() < to+minute || time.Since(time.Unix(0, n.drained.Load())) < s.cfg.Settle {
			continue
		}
		list = append(list, job{node: n, from: h.From, back: h.Back, to: to})
	}
	return list
}

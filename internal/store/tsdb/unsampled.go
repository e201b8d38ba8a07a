package tsdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/x/atomicfile"
)

// A History is a ledger from which samples are rebuilt.
type History interface {
	// Through returns the time up to which a node is booked, or zero if nothing is.
	Through(ctx context.Context, node string) (time.Time, error)
	// Minutes and Wholes call f with the stored minutes of some nodes in [from, to), in
	// the order of time.
	Minutes(ctx context.Context, nodes []string, from, to time.Time, f func(node int, m *batch.Minute) error) error
	Wholes(ctx context.Context, nodes []string, from, to time.Time, f func(node int, m *batch.NodeMinute) error) error
	// Unsampled returns, by node, the span of which samples may be missing. The ledger
	// stores it, in the transaction that books the windows, see batch.Entry.
	Unsampled(ctx context.Context) (map[string]batch.Span, error)
	// MarkUnsampled extends the span of a node, MarkAllUnsampled those of all nodes that
	// are booked beyond its start. ClearUnsampled removes a span that was not extended
	// since.
	MarkUnsampled(ctx context.Context, node string, s batch.Span) error
	MarkAllUnsampled(ctx context.Context, s batch.Span) error
	ClearUnsampled(ctx context.Context, node string, s batch.Span) error
}

// An unsampledNode is a node of which samples may be missing.
type unsampledNode struct {
	batch.Span
	resumed int64 // when samples came again, ms since 1970; 0 if they have not
}

// Files in the database's directory that state that samples may be missing.
const (
	missingFile = "missing.json" // a missing, in the copy of a backup
	holesFile   = "holes.json"   // what versions before the ledger's table unsampled wrote
)

// A missing is the content of missingFile.
type missing struct {
	Since time.Time `json:"since"` // of all nodes
}

// loadUnsampled loads the spans of which samples may be missing, after it has marked what
// this directory and the opening of the database state.
func (s *Store) loadUnsampled(ctx context.Context) error {
	if s.history == nil {
		return nil
	}
	var m missing
	if ok, err := readJSON(filepath.Join(s.cfg.Dir, missingFile), &m); err != nil {
		return err
	} else if ok {
		s.missingSince = min(s.missingSince, m.Since.UnixMilli())
	}
	if s.missingSince != never {
		if err := s.history.MarkAllUnsampled(ctx, batch.Span{From: time.UnixMilli(s.missingSince), To: time.Now()}); err != nil {
			return err
		}
	}
	if err := s.importHoles(ctx); err != nil {
		return err
	}
	for _, name := range []string{missingFile, holesFile} {
		if err := os.Remove(filepath.Join(s.cfg.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	all, err := s.history.Unsampled(ctx)
	for id, span := range all {
		s.unsampled[id] = unsampledNode{Span: span}
	}
	return err
}

// importHoles marks what an earlier version noted in holes.json: by node, since when and up
// to when samples are missing, in ms since 1970. Back 0 is up to the last window.
func (s *Store) importHoles(ctx context.Context) error {
	var holes map[string]struct{ From, Back int64 }
	if _, err := readJSON(filepath.Join(s.cfg.Dir, holesFile), &holes); err != nil {
		return err
	}
	for id, h := range holes {
		span := batch.Span{From: time.UnixMilli(h.From), To: time.UnixMilli(h.Back)}
		if h.Back == 0 {
			var err error
			if span.To, err = s.history.Through(ctx, id); errors.Is(err, fault.ErrNotFound) || err == nil && span.To.IsZero() {
				continue
			} else if err != nil {
				return err
			}
		}
		if err := s.history.MarkUnsampled(ctx, id, span); err != nil {
			return err
		}
	}
	return nil
}

// readJSON reads a file into v and reports whether it exists. It ignores invalid JSON, which
// an interrupted write leaves.
func readJSON(path string, v any) (bool, error) {
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	}
	return json.Unmarshal(b, v) == nil, nil
}

// writeMissing states in a copy of the database that samples since an instant may be missing.
func writeMissing(dir string, since time.Time) error {
	b, err := json.Marshal(missing{since.UTC()})
	if err != nil {
		return err
	}
	return atomicfile.Replace(filepath.Join(dir, missingFile), b)
}

// noteUnsampled notes in memory that a node lacks samples of a span; the node's batch
// carries it to the ledger.
func (s *Store) noteUnsampled(id string, span batch.Span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsampled[id] = unsampledNode{Span: s.unsampled[id].Union(span)}
}

// noteResumed notes, after samples of a node were taken, when these began.
func (s *Store) noteResumed(n *node, at int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u, ok := s.unsampled[n.id]; ok && u.resumed == 0 {
		u.resumed = at
		s.unsampled[n.id] = u
	}
}

// clearUnsampled removes the span of a node, unless it was extended since j was made.
func (s *Store) clearUnsampled(ctx context.Context, j backfillJob) error {
	if err := s.history.ClearUnsampled(ctx, j.node.id, j.span); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unsampled[j.node.id].Span == j.span {
		delete(s.unsampled, j.node.id)
	}
	return nil
}

// IncompleteNodes returns the number of nodes of which samples may be missing that the
// ledger can supply.
func (s *Store) IncompleteNodes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.unsampled)
}

// detectUnsampled marks the span of a node that is booked after its newest sample, when
// the node is seen for the first time since the start.
func (s *Store) detectUnsampled(ctx context.Context, n *node, newest int64) error {
	if s.history == nil {
		return nil
	}
	through, err := s.history.Through(ctx, n.id)
	if err != nil || through.IsZero() {
		return err
	}
	// Samples are in ms, and a window may be booked a moment after its samples were
	// written.
	if newest >= through.UnixMilli()-time.Second.Milliseconds() {
		return nil
	}
	span := batch.Span{From: time.UnixMilli(newest), To: through}
	if err := s.history.MarkUnsampled(ctx, n.id, span); err != nil {
		return fmt.Errorf("node %s: %w", n.id, err)
	}
	s.noteUnsampled(n.id, span)
	return nil
}

// newestSample returns the time of the newest sample of a node, in ms since 1970; 0 if no
// sample is stored.
func (s *Store) newestSample(ctx context.Context, n *node) (at int64, err error) {
	end := max(s.db.Head().MaxTime(), time.Now().UnixMilli())
	for _, back := range []time.Duration{blockSpan, s.cfg.OutOfOrderWindow, s.cfg.Retention} { // mostly it is not old
		at, err = s.newestSampleIn(ctx, n, end-back.Milliseconds(), end)
		if at != 0 || err != nil {
			break
		}
	}
	return at, err
}

func (s *Store) newestSampleIn(ctx context.Context, n *node, from, to int64) (newest int64, err error) {
	q, err := s.db.Querier(from, to)
	if err != nil {
		return newest, err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	// The id of the idle row follows from the node's id, whatever the node's name was.
	equal := func(name, value string) *labels.Matcher {
		return labels.MustNewMatcher(labels.MatchEqual, name, value)
	}
	idle := equal(metric.Workload, string(workload.NewID(n.id, workload.Idle, "")))
	own := []*labels.Matcher{equal(metric.Cluster, n.cluster), equal(metric.Node, n.name), equal(model.MetricNameLabel, metric.CPUs)}
	if n.jobs {
		own = append(own[:2], equal(model.MetricNameLabel, metric.Info), equal(metric.Workload, string(n.shortLived.id)))
	}
	for _, matchers := range [][]*labels.Matcher{
		{equal(model.MetricNameLabel, metric.Info), idle},
		{equal(model.MetricNameLabel, metric.FamilyOf(usage.CPU).Name), idle},
		own,
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
			return newest, err
		}
	}
	return newest, nil
}

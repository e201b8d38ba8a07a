package tsdb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
)

// A Sample is one value of a series that is of no workload.
type Sample struct {
	Name   string
	Labels []string // name, value, name, value, ...
	Value  float64
}

// A State is how a server and its nodes are doing, as series: those that it was put
// last. One goroutine uses it.
type State struct {
	store *Store
	refs  map[string]*stateSeries
}

type stateSeries struct {
	labels labels.Labels
	ref    storage.SeriesRef
	at     int64
}

// State returns one that was put nothing yet.
func (s *Store) State() *State { return &State{store: s, refs: map[string]*stateSeries{}} }

// Put appends samples of one instant. Series of the Put before that are not in it
// end. Of two samples of one series the first counts.
func (s *State) Put(ctx context.Context, at time.Time, samples []Sample) error {
	ms := at.UnixMilli()
	a := &appendTx{Store: s.store, app: s.store.db.AppenderV2(ctx)}
	for i := range samples {
		one := &samples[i]
		key := one.Name + "\xff" + strings.Join(one.Labels, "\xff")
		k := s.refs[key]
		if k == nil {
			k = &stateSeries{labels: labels.FromStrings(append([]string{model.MetricNameLabel, one.Name}, one.Labels...)...)}
			s.refs[key] = k
		}
		if k.at == ms {
			continue
		}
		k.at = ms
		if err := a.appendValue(&k.ref, ms, one.Value, func() labels.Labels { return k.labels }); err != nil {
			return errors.Join(err, a.app.Rollback())
		}
	}
	for key, k := range s.refs {
		if k.at == ms {
			continue
		}
		delete(s.refs, key)
		if err := a.appendValue(&k.ref, ms, staleMarker, func() labels.Labels { return k.labels }); err != nil {
			return errors.Join(err, a.app.Rollback())
		}
	}
	if err := a.app.Commit(); err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	s.store.stats.samples.Add(a.appended)
	return nil
}

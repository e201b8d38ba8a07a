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

// A Sample is one value of a series about the server or a node.
type Sample struct {
	Name   string
	Labels []string // name, value, name, value, ...
	Value  float64
}

// A State writes the series about the state of a server and its nodes. It is not safe for
// concurrent use.
type State struct {
	store *Store
	refs  map[string]*stateSeries
}

type stateSeries struct {
	labels labels.Labels
	ref    storage.SeriesRef
	at     int64
}

// State returns a State without series.
func (s *Store) State() *State { return &State{store: s, refs: map[string]*stateSeries{}} }

// Put appends samples with the time at. It ends the series of the previous Put that are not
// in samples. Of two samples of one series it appends the first.
func (s *State) Put(ctx context.Context, at time.Time, samples []Sample) error {
	if err := s.store.checkLastSpace(); err != nil {
		return err
	}
	ms := at.UnixMilli()
	a := &appendTx{Store: s.store, app: s.store.db.AppenderV2(ctx)}
	for i := range samples {
		sample := &samples[i]
		key := sample.Name + "\xff" + strings.Join(sample.Labels, "\xff")
		series := s.refs[key]
		if series == nil {
			series = &stateSeries{labels: labels.FromStrings(append([]string{model.MetricNameLabel, sample.Name}, sample.Labels...)...)}
			s.refs[key] = series
		}
		if series.at == ms {
			continue
		}
		series.at = ms
		if err := a.appendValue(&series.ref, ms, sample.Value, func() labels.Labels { return series.labels }); err != nil {
			return errors.Join(err, a.app.Rollback())
		}
	}
	for key, series := range s.refs {
		if series.at == ms {
			continue
		}
		delete(s.refs, key)
		if err := a.appendValue(&series.ref, ms, staleMarker, func() labels.Labels { return series.labels }); err != nil {
			return errors.Join(err, a.app.Rollback())
		}
	}
	if err := a.app.Commit(); err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	s.store.stats.samples.Add(a.appended)
	return nil
}

package server

import (
	"context"
	"time"
)

// podsInterval is how often the names of pods are read from the ledger for the series.
const podsInterval = 5 * time.Second

// followPods gives the time series the names of pods, which the ledger joins: samples are stored before the
// batch is booked. It runs until ctx ends.
func (s *Server) followPods(ctx context.Context) error {
	tick := time.NewTicker(podsInterval)
	defer tick.Stop()
	failing := false
	for {
		names, now, err := s.Ledger.Placed(ctx, s.podsRev)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failing:
			s.log.Warn("cannot read the names of pods; those of time series are late", "err", err)
		case err == nil:
			s.podsRev = now
			for node, list := range names {
				s.Metrics.Rename(node, list)
			}
		}
		failing = err != nil
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

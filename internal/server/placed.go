package server

import (
	"context"
	"time"
)

// placedInterval is how often the names of pods and jobs of Slurm are read from the ledger for the series.
const placedInterval = 5 * time.Second

// followPlaced gives the time series the names of pods and jobs of Slurm, which the ledger joins: samples are stored before the
// batch is booked. It runs until ctx ends.
func (s *Server) followPlaced(ctx context.Context) error {
	tick := time.NewTicker(placedInterval)
	defer tick.Stop()
	failing := false
	for {
		names, now, err := s.Ledger.Placed(ctx, s.placedRev)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failing:
			s.log.Warn("cannot read the names of pods and jobs of Slurm; those of time series are late", "err", err)
		case err == nil:
			s.placedRev = now
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

package server

import (
	"context"
	"time"
)

// Update is the flag that rewrites the golden files.
var Update = update

// PutState records the states of nodes and server at once.
func (s *Server) PutState(ctx context.Context) error {
	gaps, err := s.Ledger.GapTimes(ctx)
	if err != nil {
		return err
	}
	return s.putState(ctx, s.Metrics.State(), gaps, time.Now())
}

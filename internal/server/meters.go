package server

import (
	"context"
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/prom/exposition"
	"mete.dev/mete/internal/server/meters"
	"mete.dev/mete/internal/store/ledger"
)

// comparedTime is for how long back meters are compared with machines.
const comparedTime = time.Hour

// meterMetrics is how the meters outside the machines are doing, for who may see all of
// them, and how what they show compares with what the machines see, for who may see
// those.
func (s *Server) meterMetrics(ctx context.Context, scope query.Scope, nodes []query.Node) (string, error) {
	if s.Meters == nil {
		return "", nil
	}
	var states []meters.State
	if scope.All {
		states = s.Meters.States()
	}
	now := time.Now()
	all, err := s.Ledger.OuterRatios(ctx, now.Add(-comparedTime))
	if err != nil {
		return "", err
	}
	seen := map[string]bool{}
	for i := range nodes {
		seen[nodes[i].ID] = true
	}
	var ratios []ledger.OuterRatio
	for _, r := range all {
		if seen[r.Node] {
			ratios = append(ratios, r)
		}
	}
	return metersText(states, ratios, now), nil
}

// metersText writes how meters are doing.
func metersText(states []meters.State, ratios []ledger.OuterRatio, now time.Time) string {
	var t exposition.Text
	each := func(of func(*meters.State) (float64, bool)) (out []exposition.Sample) {
		for i := range states {
			if v, ok := of(&states[i]); ok {
				out = append(out, exposition.Sample{Labels: []string{"meter", states[i].Name}, Value: v})
			}
		}
		return out
	}
	read := func(of func(*meters.State) float64) []exposition.Sample {
		return each(func(s *meters.State) (float64, bool) { return of(s), !s.Last.IsZero() })
	}
	t.Counters("mete_server_meter_samples_total", "Samples that were taken of each meter outside the machines.",
		each(func(s *meters.State) (float64, bool) { return float64(s.Samples), true })...)
	t.Counters("mete_server_meter_failures_total", "Readings of it that failed.",
		each(func(s *meters.State) (float64, bool) { return float64(s.Failures), true })...)
	t.Counters("mete_server_meter_minutes_total", "Minutes of it that were booked.",
		each(func(s *meters.State) (float64, bool) { return float64(s.Minutes), true })...)
	t.Counters("mete_server_meter_gaps_total", "Minutes in which it could not be used.",
		each(func(s *meters.State) (float64, bool) { return float64(s.Gaps), true })...)
	t.Gauges("mete_server_meter_up", "1 while it can be read.", each(func(s *meters.State) (float64, bool) {
		if s.Failing.IsZero() && !s.Last.IsZero() {
			return 1, true
		}
		return 0, true
	})...)
	t.Gauges("mete_server_meter_age_seconds", "Age of its latest sample.", read(func(s *meters.State) float64 { return now.Sub(s.Last).Seconds() })...)
	t.Gauges("mete_server_meter_watts", "Power that it showed last; of a counter, in its latest booked minute.", read(func(s *meters.State) float64 { return s.Watts })...)
	var inside, measured []exposition.Sample
	for _, r := range ratios {
		if all := r.Meter.Float(unit.Microjoule); all > 0 {
			labels := []string{"node", r.Name}
			inside = append(inside, exposition.Sample{Labels: labels, Value: r.Inside.Float(unit.Microjoule) / all})
			measured = append(measured, exposition.Sample{Labels: labels, Value: r.Measured.Float(unit.Microjoule) / all})
		}
	}
	t.Gauges("mete_server_meter_inside_ratio", "Energy that a node itself saw, or modelled, by what its meters showed in the last hour.", inside...)
	t.Gauges("mete_server_meter_measured_ratio", "Energy that a node itself measured by what its meters showed in the last hour: well above 1, one of the two is wrong.", measured...)
	return t.String()
}

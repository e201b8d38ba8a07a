package server

import (
	"cmp"
	"context"
	"slices"
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/server/meterreader"
	"mete.dev/mete/internal/store/ledger"
)

// comparedTime is the period over which meters are compared with nodes.
const comparedTime = time.Hour

// meterCollectors returns the collectors of external meters: the comparison with the nodes
// and, if scope contains all clusters, the state of reading. Without meters there are none.
func (s *Server) meterCollectors(ctx context.Context, scope query.Scope, nodes []query.Node, now time.Time) ([]collector, error) {
	if s.Meters == nil {
		return nil, nil
	}
	all, err := s.Ledger.MeterRatios(ctx, now.Add(-comparedTime))
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for i := range nodes {
		seen[nodes[i].ID] = true
	}
	list := []collector{collectMeterRatios(slices.DeleteFunc(all, func(r ledger.MeterRatio) bool { return !seen[r.Node] }))}
	if scope.All {
		list = append(list, collectMeters(s.Meters.States(), now))
	}
	return list, nil
}

// collectMeters is about reading external meters.
func collectMeters(states []meterreader.State, now time.Time) collector {
	return func(m *metrics) {
		for i := range states {
			st := &states[i]
			labels := []string{"meter", st.Name}
			m.counter("mete_server_meter_samples_total", "Samples that were read from each external meter.", float64(st.Samples), labels...)
			m.counter("mete_server_meter_failures_total", "Readings of the meter that failed.", float64(st.Failures), labels...)
			m.counter("mete_server_meter_minutes_total", "Minutes in which the energy of the meter was booked.", float64(st.Minutes), labels...)
			m.counter("mete_server_meter_gaps_total", "Minutes for which the meter had no usable energy.", float64(st.Gaps), labels...)
			m.gauge("mete_server_meter_up", "1 while the meter can be read, else 0.", truth(st.Failing.IsZero() && !st.Last.IsZero()), labels...)
			if !st.Last.IsZero() {
				m.gauge("mete_server_meter_age_seconds", "Age of the meter's latest sample.", now.Sub(st.Last).Seconds(), labels...)
				m.gauge("mete_server_meter_watts", "Power in the meter's latest sample; of a meter that counts energy, average power of its latest booked minute.", st.Watts, labels...)
			}
		}
	}
}

// collectMeterRatios compares the energy of nodes with that of their external meters.
func collectMeterRatios(ratios []ledger.MeterRatio) collector {
	return func(m *metrics) {
		for _, r := range ratios {
			all := r.Meter.Float(unit.Microjoule)
			if all <= 0 {
				continue
			}
			labels := []string{"cluster", r.Cluster, "node", cmp.Or(r.Name, r.Node)}
			m.gauge("mete_server_meter_inside_ratio", "Energy that the node measured or modelled, divided by that of its external meters, in the last hour.",
				r.Inside.Float(unit.Microjoule)/all, labels...)
			m.gauge("mete_server_meter_measured_ratio", "Energy that the node measured, divided by that of its external meters, in the last hour: well above 1, one of the two is wrong.",
				r.Measured.Float(unit.Microjoule)/all, labels...)
		}
	}
}

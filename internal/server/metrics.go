package server

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/store/tsdb"
)

// A collector collects the metrics of one part of the server. It is unchecked (it describes
// no metrics), because its samples depend on nodes, meters and receivers.
type collector func(*metrics)

// Describe implements [prometheus.Collector].
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (c collector) Collect(to chan<- prometheus.Metric) {
	c(&metrics{to: to, sent: map[string]bool{}})
}

// metrics sends the samples of one collector.
type metrics struct {
	to   chan<- prometheus.Metric
	sent map[string]bool // names and labels
}

// counter adds a sample of a counter. labels alternate names and values.
func (m *metrics) counter(name, help string, v float64, labels ...string) {
	m.add(prometheus.CounterValue, name, help, v, labels)
}

// gauge adds a sample of a gauge.
func (m *metrics) gauge(name, help string, v float64, labels ...string) {
	m.add(prometheus.GaugeValue, name, help, v, labels)
}

// add adds a sample. Of several with the same labels, such as those of nodes of the same
// name, it adds only the first, because a registry fails entirely on duplicates.
func (m *metrics) add(kind prometheus.ValueType, name, help string, v float64, labels []string) {
	key := name + "\xff" + strings.Join(labels, "\xff")
	if m.sent[key] {
		return
	}
	m.sent[key] = true
	constant := prometheus.Labels{}
	for i := 0; i+1 < len(labels); i += 2 {
		constant[labels[i]] = strings.ToValidUTF8(labels[i+1], "\uFFFD")
	}
	m.to <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, constant), kind, v)
}

// newRegistry returns a registry of collectors.
func newRegistry(list ...collector) *prometheus.Registry {
	r := prometheus.NewRegistry()
	for _, c := range list {
		r.MustRegister(c)
	}
	return r
}

// serverMetrics returns the server's metrics in Prometheus's text format. A scope that does
// not contain all clusters gets only the metrics of its nodes, because the others count
// the requests of all callers.
func (s *Server) serverMetrics(ctx context.Context, scope query.Scope) (string, error) {
	now := time.Now()
	nodes, err := s.Ledger.Nodes(ctx, scope)
	if err != nil {
		return "", err
	}
	meters, err := s.meterCollectors(ctx, scope, nodes, now)
	if err != nil {
		return "", err
	}
	scoped := newRegistry(meters...)
	if !scope.All {
		scoped.MustRegister(collectNodes(nodes))
		return metricsText(scoped)
	}
	stats, err := s.Ledger.Stats(ctx)
	if err != nil {
		return "", err
	}
	return metricsText(append(s.gatherers(stats, nodes, now), scoped))
}

// gatherers returns gatherers of the server's metrics except those of external meters.
func (s *Server) gatherers(stats ledger.Stats, nodes []query.Node, now time.Time) prometheus.Gatherers {
	return prometheus.Gatherers{s.registry, newRegistry(collectNodes(nodes), collectLedger(stats, now))}
}

// metricsText returns the gathered metrics as text.
func metricsText(from prometheus.Gatherer) (string, error) {
	families, err := from.Gather()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

// stateSamples returns the gathered metrics, except those of one name, as samples for the
// time series database.
func stateSamples(from prometheus.Gatherer, without string) (list []tsdb.Sample, err error) {
	families, err := from.Gather()
	if err != nil {
		return nil, err
	}
	for _, f := range families {
		if f.GetName() == without {
			continue
		}
		for _, m := range f.GetMetric() {
			one := tsdb.Sample{Name: f.GetName()}
			switch {
			case m.GetCounter() != nil:
				one.Value = m.GetCounter().GetValue()
			case m.GetGauge() != nil:
				one.Value = m.GetGauge().GetValue()
			default:
				return nil, errors.New(f.GetName() + ": neither a counter nor a gauge")
			}
			for _, l := range m.GetLabel() {
				one.Labels = append(one.Labels, l.GetName(), l.GetValue())
			}
			list = append(list, one)
		}
	}
	return list, nil
}

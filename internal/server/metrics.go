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

// A collector makes metrics of the figures of one part of the server, each time
// that they are gathered. It describes none beforehand: which samples there are
// depends on nodes, meters and receivers.
type collector func(*metrics)

// Describe implements [prometheus.Collector].
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (c collector) Collect(to chan<- prometheus.Metric) {
	c(&metrics{to: to, sent: map[string]bool{}})
}

// metrics passes on what one collector makes.
type metrics struct {
	to   chan<- prometheus.Metric
	sent map[string]bool // names and labels
}

// counter adds a sample of a metric that only grows. labels are name, value, name,
// value and so on.
func (m *metrics) counter(name, help string, v float64, labels ...string) {
	m.add(prometheus.CounterValue, name, help, v, labels)
}

// gauge adds a sample of a metric that goes up and down.
func (m *metrics) gauge(name, help string, v float64, labels ...string) {
	m.add(prometheus.GaugeValue, name, help, v, labels)
}

// add adds a sample. Of several with the same labels, such as nodes of the same
// name, it adds the first: a registry refuses all metrics for a second one.
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

// serverMetrics is how the server is doing, in Prometheus's text format. Who may not
// read all clusters gets the metrics of the nodes that he may read: the others
// count what everyone sends and queries.
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
	kept, err := s.Ledger.Stats(ctx)
	if err != nil {
		return "", err
	}
	return metricsText(append(s.gatherers(kept, nodes, now), scoped))
}

// gatherers gather the metrics of the server itself, without those of meters.
func (s *Server) gatherers(kept ledger.Stats, nodes []query.Node, now time.Time) prometheus.Gatherers {
	return prometheus.Gatherers{s.registry, newRegistry(collectNodes(nodes), collectLedger(kept, now))}
}

// metricsText writes what is gathered.
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

// stateSamples returns what is gathered as samples of the time series database,
// without the metrics of one name.
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
				return nil, errors.New(f.GetName() + " is neither a counter nor a gauge")
			}
			for _, l := range m.GetLabel() {
				one.Labels = append(one.Labels, l.GetName(), l.GetValue())
			}
			list = append(list, one)
		}
	}
	return list, nil
}

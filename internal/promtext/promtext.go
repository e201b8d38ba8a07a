// Package promtext writes metrics in Prometheus's text format, version 0.0.4.
package promtext

import (
	"math"
	"strconv"
	"strings"
)

// ContentType is the media type of a Text.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// A Text is metrics, in the order in which they were put. The zero value has
// none.
type Text struct{ b strings.Builder }

// A Sample is one value of a metric that has labels.
type Sample struct {
	Labels []string // name, value, name, value, ...
	Value  float64
}

// Counter puts a metric that only grows. Its name ends in _total.
func (t *Text) Counter(name, help string, v float64) { t.Counters(name, help, Sample{Value: v}) }

// Gauge puts a metric that goes up and down.
func (t *Text) Gauge(name, help string, v float64) { t.Gauges(name, help, Sample{Value: v}) }

// Counters puts a counter of several samples.
func (t *Text) Counters(name, help string, samples ...Sample) {
	t.family("counter", name, help, samples)
}

// Gauges puts a gauge of several samples.
func (t *Text) Gauges(name, help string, samples ...Sample) { t.family("gauge", name, help, samples) }

// String is the text.
func (t *Text) String() string { return t.b.String() }

var (
	inHelp  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	inLabel = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

func (t *Text) family(kind, name, help string, samples []Sample) {
	t.b.WriteString("# HELP " + name + " " + inHelp.Replace(help) + "\n# TYPE " + name + " " + kind + "\n")
	for _, s := range samples {
		t.b.WriteString(name)
		for i := 0; i+1 < len(s.Labels); i += 2 {
			t.b.WriteString(string("{,"[min(i, 1)]) + s.Labels[i] + `="` + inLabel.Replace(s.Labels[i+1]) + `"`)
		}
		if len(s.Labels) > 0 {
			t.b.WriteByte('}')
		}
		t.b.WriteString(" " + number(s.Value) + "\n")
	}
}

// number writes whole numbers as people do.
func number(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

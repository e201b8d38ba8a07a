package exposition_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/prom/exposition"
)

func TestFormat(t *testing.T) {
	var m exposition.Text
	m.Counter("a_total", "Of\nlines and \\.", 12345678)
	m.Gauges("b", "With labels.",
		exposition.Sample{Labels: []string{"state", "a\"b\\c\nd", "x", "y"}, Value: 0.25},
		exposition.Sample{Labels: []string{"state", "live"}, Value: math.Inf(1)})
	m.Gauges("none", "Without any.")
	m.Gauge("c", "Large.", 1e300)
	want := `# HELP a_total Of\nlines and \\.
# TYPE a_total counter
a_total 12345678
# HELP b With labels.
# TYPE b gauge
b{state="a\"b\\c\nd",x="y"} 0.25
b{state="live"} +Inf
# HELP none Without any.
# TYPE none gauge
# HELP c Large.
# TYPE c gauge
c 1e+300
`
	if diff := cmp.Diff(want, m.String()); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
}

// Put appends samples one by one and replaces invalid UTF-8.
func TestPut(t *testing.T) {
	var m exposition.Text
	m.Begin("gauge", "a", "One by one.")
	m.Put(1.5, "x", "caf\xe9")
	m.Put(-0.25)
	want := "# HELP a One by one.\n# TYPE a gauge\na{x=\"caf\uFFFD\"} 1.5\na -0.25\n"
	if diff := cmp.Diff(want, m.String()); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
}

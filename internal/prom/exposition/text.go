package exposition

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ContentType is the media type of a Text.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// A Text is a sequence of metrics. The zero value is empty.
type Text struct {
	b    strings.Builder
	name string // of the current metric
}

// A Sample is one value of a metric with labels.
type Sample struct {
	Labels []string // name, value, name, value, ...
	Value  float64
}

// Grow reserves space for n more bytes.
func (t *Text) Grow(n int) { t.b.Grow(n) }

// Counter appends a counter without labels. Its name must end in _total.
func (t *Text) Counter(name, help string, v float64) { t.Counters(name, help, Sample{Value: v}) }

// Gauge appends a gauge without labels.
func (t *Text) Gauge(name, help string, v float64) { t.Gauges(name, help, Sample{Value: v}) }

// Counters appends a counter with several samples.
func (t *Text) Counters(name, help string, samples ...Sample) {
	t.family("counter", name, help, samples)
}

// Gauges appends a gauge with several samples.
func (t *Text) Gauges(name, help string, samples ...Sample) { t.family("gauge", name, help, samples) }

// String returns the text.
func (t *Text) String() string { return t.b.String() }

var (
	helpEscaper  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelEscaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

func (t *Text) family(kind, name, help string, samples []Sample) {
	t.Begin(kind, name, help)
	for _, s := range samples {
		t.Put(s.Value, s.Labels...)
	}
}

// Begin appends the header of a metric whose kind is counter or gauge. [Text.Put] appends
// its samples.
func (t *Text) Begin(kind, name, help string) {
	t.name = name
	t.b.WriteString("# HELP " + name + " " + helpEscaper.Replace(help) + "\n# TYPE " + name + " " + kind + "\n")
}

// BeginUntyped begins a metric of unknown kind.
func (t *Text) BeginUntyped(name string) { t.name = name }

// Len returns the bytes of the text so far.
func (t *Text) Len() int { return t.b.Len() }

// Put appends a sample of the metric of the last Begin. labels alternate names and values.
func (t *Text) Put(v float64, labels ...string) {
	t.put(v, labels)
	t.b.WriteByte('\n')
}

// PutAt is Put with the time of the sample, in ms since 1970.
func (t *Text) PutAt(v float64, ms int64, labels ...string) {
	t.put(v, labels)
	t.b.WriteByte(' ')
	t.b.WriteString(strconv.FormatInt(ms, 10))
	t.b.WriteByte('\n')
}

func (t *Text) put(v float64, labels []string) {
	t.b.WriteString(t.name)
	for i := 0; i+1 < len(labels); i += 2 {
		t.b.WriteByte("{,"[min(i, 1)])
		t.b.WriteString(labels[i])
		t.b.WriteString(`="`)
		t.writeLabelValue(labels[i+1])
		t.b.WriteByte('"')
	}
	if len(labels) > 0 {
		t.b.WriteByte('}')
	}
	t.b.WriteByte(' ')
	var room [32]byte
	t.b.Write(appendNumber(room[:0], v))
}

// writeLabelValue appends an escaped label value and replaces invalid UTF-8.
func (t *Text) writeLabelValue(s string) {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	if strings.ContainsAny(s, "\\\n\"") {
		s = labelEscaper.Replace(s)
	}
	t.b.WriteString(s)
}

// appendNumber appends v; integers without exponent.
func appendNumber(b []byte, v float64) []byte {
	if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
		return strconv.AppendFloat(b, v, 'f', -1, 64)
	}
	return strconv.AppendFloat(b, v, 'g', -1, 64)
}

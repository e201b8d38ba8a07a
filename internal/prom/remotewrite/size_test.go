package remotewrite

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	"github.com/prometheus/prometheus/storage"
	"google.golang.org/protobuf/encoding/protowire"
)

// field is a field with a length before it.
func field(n protowire.Number, content ...[]byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), bytes.Join(content, nil))
}

func times(n int, b []byte) []byte { return bytes.Repeat(b, n) }

// full is a database that takes nothing.
type full struct{ storage.Appender }

func (full) Append(storage.SeriesRef, labels.Labels, int64, float64) (storage.SeriesRef, error) {
	return 0, storage.ErrOutOfBounds
}
func (full) Commit() error   { return nil }
func (full) Rollback() error { return nil }

type never struct{}

func (never) Appender(context.Context) storage.Appender { return full{} }

func taker() *Handler {
	return NewHandler(never{}, func(*http.Request) (string, error) { return "lab", nil }, slog.New(slog.DiscardHandler))
}

// send sends a message that is not packed yet, and says how many bytes were allocated meanwhile.
func send(t *testing.T, to *Handler, version string, raw []byte) (*httptest.ResponseRecorder, uint64) {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/api/v1/write", bytes.NewReader(snappy.Encode(nil, raw)))
	r.Header.Set("Content-Type", "application/x-protobuf;proto="+string(versions[version]))
	w := httptest.NewRecorder()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	to.ServeHTTP(w, r)
	runtime.ReadMemStats(&after)
	return w, after.TotalAlloc - before.TotalAlloc
}

// TestEstimateSize checks that a request that is small as it is sent and large in memory is
// refused before it is unpacked, with the limit and a remedy.
func TestEstimateSize(t *testing.T) {
	empty := func(n protowire.Number) []byte { return field(n) }
	huge := field(symbols, times(8<<20, []byte("x")))
	for _, c := range []struct {
		what, version string
		raw           []byte
		code          int
		says          string
	}{
		{"histograms", "1.0", field(1, times(2_000_000, empty(4))), 413, "100000 samples"},
		{"histograms", "2.0", field(5, times(2_000_000, empty(3))), 413, "100000 samples"},
		{"samples", "1.0", field(1, times(2_000_000, empty(2))), 413, "100000 samples"},
		{"series", "1.0", times(2_000_000, empty(1)), 413, "20000 series"},
		{"series", "2.0", times(2_000_000, empty(5)), 413, "20000 series"},
		{"labels", "1.0", field(1, times(2_000_000, empty(1))), 413, "128 MiB"},
		{"exemplars", "1.0", field(1, times(2_000_000, empty(3))), 413, "128 MiB"},
		{"exemplars", "2.0", field(5, times(2_000_000, empty(4))), 413, "128 MiB"},
		{"labels of exemplars", "1.0", field(1, field(3, times(2_000_000, empty(1)))), 413, "128 MiB"},
		{"metadata", "1.0", times(2_000_000, empty(3)), 413, "128 MiB"},
		{"symbols", "2.0", times(4_000_000, empty(symbols)), 413, "128 MiB"},
		{"spans", "1.0", field(1, field(4, times(2_000_000, empty(8)))), 413, "128 MiB"},
		{"spans", "2.0", field(5, field(3, times(2_000_000, empty(11)))), 413, "128 MiB"},
		{"deltas", "1.0", field(1, field(4, field(12, times(20_000_000, []byte{1})))), 413, "128 MiB"},
		{"references", "2.0", bytes.Join([][]byte{empty(symbols), field(5, field(1, times(8_000_000, []byte{0})))}, nil), 413, "128 MiB"},
		{"a long label many times", "2.0", bytes.Join([][]byte{field(5, field(1, times(2000, []byte{0}))), huge}, nil), 413, "128 MiB"},
		{"a long label in an exemplar", "2.0", bytes.Join([][]byte{huge, field(5, field(4, field(1, times(2000, []byte{0}))))}, nil), 413, "128 MiB"},
		{"samples of the future", "2.0", bytes.Join([][]byte{huge[:1], protowire.AppendBytes(nil, times(1<<20, []byte("x"))), field(5, field(1, []byte{0, 0}),
			times(1000, field(2, protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 1<<60))))}, nil), 413, "128 MiB"},
		{"too long unpacked", "1.0", times(33<<20, []byte{0}), 413, "32.0 MiB"},
		{"half a label", "2.0", bytes.Join([][]byte{empty(symbols), field(5, field(1, []byte{0}))}, nil), 400, "no value"},
		{"an unknown symbol", "2.0", field(5, field(1, []byte{0, 1})), 400, "symbol 0"},
		{"a series that is a number", "1.0", []byte{1 << 3, 0}, 400, "field 1"},
		{"half a series", "1.0", []byte{1<<3 | 2, 5}, 400, "not a message"},
	} {
		w, took := send(t, taker(), c.version, c.raw)
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.says) || c.code == 413 && !strings.Contains(w.Body.String(), "send fewer samples") {
			t.Errorf("%s %s: %d %.300s; want %d, %q", c.version, c.what, w.Code, w.Body, c.code, c.says)
		}
		// Packing and unpacking it is a part of that.
		if most := uint64(8*len(c.raw) + 64<<20); took > most {
			t.Errorf("%s %s: %d MiB were allocated for a message of %d KiB", c.version, c.what, took>>20, len(c.raw)>>10)
		}
	}
}

// TestCheckSize checks that usual requests are far from the limits: 2000 samples of 30 labels,
// and 20,000 of 12.
func TestCheckSize(t *testing.T) {
	for _, c := range []struct{ series, labels int }{{2000, 30}, {20_000, 12}} {
		var r1 prompb.WriteRequest
		var r2 writev2.Request
		table := writev2.NewSymbolTable()
		b := labels.NewScratchBuilder(c.labels)
		for i := range c.labels {
			b.Add("a_label_of_a_pod_"+string(rune('a'+i)), strings.Repeat("v", 30))
		}
		ls := b.Labels()
		h := &histogram.Histogram{Schema: 1, Count: 8, PositiveSpans: []histogram.Span{{Length: 8}}, PositiveBuckets: []int64{1, 0, 0, 0, 0, 0, 0, 0}}
		for i := range c.series {
			s1 := prompb.TimeSeries{Labels: prompb.FromLabels(ls, nil), Samples: []prompb.Sample{{Timestamp: 1, Value: 1}}}
			s2 := writev2.TimeSeries{LabelsRefs: table.SymbolizeLabels(ls, nil), Samples: []writev2.Sample{{Timestamp: 1, Value: 1}}}
			if i%10 == 0 {
				s1.Histograms = []prompb.Histogram{prompb.FromIntHistogram(1, h)}
				s2.Histograms = []writev2.Histogram{writev2.FromIntHistogram(0, 1, h)}
				s2.Exemplars = []writev2.Exemplar{{LabelsRefs: table.SymbolizeLabels(labels.FromStrings("trace", strings.Repeat("0", 32)), nil)}}
			}
			r1.Timeseries, r2.Timeseries = append(r1.Timeseries, s1), append(r2.Timeseries, s2)
		}
		r2.Symbols = table.Symbols()
		raw1, err1 := r1.Marshal()
		raw2, err2 := r2.Marshal()
		if err := errors.Join(err1, err2, estimateSize(raw1, request1, 1), estimateSize(raw2, request2, 1)); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
		if n := testing.AllocsPerRun(1, func() { _ = estimateSize(raw2, request2, 1) }); n > 20 {
			t.Errorf("%+v: weighing allocates %v times", c, n)
		}
	}
}

// TestSizes compares the sizes that the estimate uses with those of the structs.
func TestSizes(t *testing.T) {
	series1, series2 := request1[1].fields, request2[5].fields
	for what, pair := range map[string][2]int{
		"series 1":    {request1[1].size, int(unsafe.Sizeof(prompb.TimeSeries{}))},
		"label":       {series1[1].size, int(unsafe.Sizeof(prompb.Label{}))},
		"sample 1":    {series1[2].size, int(unsafe.Sizeof(prompb.Sample{}))},
		"exemplar 1":  {series1[3].size, int(unsafe.Sizeof(prompb.Exemplar{}))},
		"histogram 1": {series1[4].size, int(unsafe.Sizeof(prompb.Histogram{}))},
		"span":        {histogramFields[8].size, int(unsafe.Sizeof(prompb.BucketSpan{}))},
		"metadata":    {request1[3].size, int(unsafe.Sizeof(prompb.MetricMetadata{}))},
		"symbol":      {request2[symbols].size, int(unsafe.Sizeof(""))},
		"series 2":    {request2[5].size, int(unsafe.Sizeof(writev2.TimeSeries{}))},
		"sample 2":    {series2[2].size, int(unsafe.Sizeof(writev2.Sample{}))},
		"histogram 2": {series2[3].size, int(unsafe.Sizeof(writev2.Histogram{}))},
		"exemplar 2":  {series2[4].size, int(unsafe.Sizeof(writev2.Exemplar{}))},
		"span 2":      {histogramFields[11].size, int(unsafe.Sizeof(writev2.BucketSpan{}))},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %d bytes are counted, and it has %d", what, pair[0], pair[1])
		}
	}
}

// TestMessage checks that the headers determine the message, and that the handler receives the
// same message type.
func TestMessage(t *testing.T) {
	for given, want := range map[string]string{
		"": "application/x-protobuf", "application/x-protobuf": "application/x-protobuf",
		"application/x-protobuf;proto=prometheus.WriteRequest":             "application/x-protobuf",
		"application/x-protobuf; proto=io.prometheus.write.v2.Request":     "application/x-protobuf;proto=io.prometheus.write.v2.Request",
		"application/x-protobuf;other=io.prometheus.write.v2.Request":      "application/x-protobuf",
		"application/x-protobuf;proto=io.prometheus.write.v3.Request":      "",
		"application/x-protobuf;proto=prometheus.WriteRequest;proto=other": "", "application/json": "", ";": "",
	} {
		of, kind, err := formatOf(http.Header{"Content-Type": {given}})
		if kind != want || (err == nil) != (want != "") || err == nil && (len(of) > 0 && of[symbols].kind == textField) != strings.Contains(want, "v2") {
			t.Errorf("%q: %q, %v", given, kind, err)
		}
	}
	if _, _, err := formatOf(http.Header{"Content-Encoding": {"gzip"}}); err == nil {
		t.Error("gzip is taken")
	}
}

// TestRefusedByDatabase checks that one error is kept for all samples that a database refuses,
// not one for each sample.
func TestRefusedByDatabase(t *testing.T) {
	label := times(4000, []byte("x"))
	raw := bytes.Join([][]byte{field(symbols), field(symbols, []byte("__name__")), field(symbols, label), field(5, field(1, []byte{1, 2}), times(5000, field(2)))}, nil)
	to := taker()
	w, took := send(t, to, "2.0", raw)
	if w.Code != 400 || !strings.Contains(w.Body.String(), "5000 samples were refused") || w.Body.Len() > maxAnswer {
		t.Errorf("%d %.200s, %d bytes", w.Code, w.Body, w.Body.Len())
	}
	if c := to.Counts(); c != (Counts{Refused: 5000}) {
		t.Errorf("%+v", c)
	}
	t.Logf("%d MiB allocated", took>>20)
}

// TestTurns checks that maxUnpacking requests are unpacked at once, that a request that waits too
// long is refused with Retry-After, and that a canceled request takes no turn.
func TestTurns(t *testing.T) {
	to := taker()
	to.timeout = time.Millisecond
	for range maxUnpacking {
		to.unpacking <- struct{}{}
	}
	w, _ := send(t, to, "1.0", nil)
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), "later") {
		t.Errorf("without a turn: %d %s", w.Code, w.Body)
	}
	to.timeout = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel) // it waits for an hour else
	to.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPost, "/", bytes.NewReader(snappy.Encode(nil, nil))))
	time.AfterFunc(20*time.Millisecond, func() { <-to.unpacking })
	if w, _ := send(t, to, "1.0", nil); w.Code/100 != 2 {
		t.Errorf("with a turn: %d %s", w.Code, w.Body)
	}
	if len(to.unpacking) != maxUnpacking-1 {
		t.Errorf("%d turns are taken", len(to.unpacking))
	}
}

package remotewrite

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/tsdb"
)

// A cluster at its limit gets no new series but keeps its existing ones; the limit applies
// to each cluster alone, and expired series do not count.
func TestSeriesTracker(t *testing.T) {
	t.Parallel()
	w := newSeriesTracker(3, 1<<20)
	now := time.Now()
	put := func(cluster, n string, at time.Time) error {
		return w.admit(cluster, labels.FromStrings("__name__", "app", "n", n), at)
	}
	for i := range 3 {
		if err := put("lab", strconv.Itoa(i), now); err != nil {
			t.Error(err)
		}
	}
	err := put("lab", "3", now)
	if !errors.Is(err, errFull) || !strings.Contains(err.Error(), `cluster "lab" has 3`) {
		t.Errorf("a fourth: %v", err)
	}
	if !w.warnOnce("lab") || w.warnOnce("lab") {
		t.Error("warnOnce does not return true exactly once")
	}
	if err := put("lab", "2", now.Add(2*time.Hour)); err != nil {
		t.Errorf("an existing series: %v", err)
	}
	if err := put("other", "3", now); err != nil {
		t.Errorf("in another cluster: %v", err)
	}
	later := now.Add(seriesLifetime + 2*time.Minute)
	for i := 3; i < 5; i++ {
		if err := put("lab", strconv.Itoa(i), later); err != nil {
			t.Errorf("after two series expired: %v", err)
		}
	}
	if put("lab", "5", later) == nil {
		t.Error("more new series than expired are admitted")
	}
}

// The labels of all series of a cluster together are limited, and those of expired series do
// not count.
func TestSeriesTrackerBytes(t *testing.T) {
	t.Parallel()
	w := newSeriesTracker(100, 10_000)
	now := time.Now()
	put := func(n string, bytes int, at time.Time) error {
		return w.admit("lab", labels.FromStrings("n", n, "text", strings.Repeat("x", bytes)), at)
	}
	for _, n := range []string{"a", "b"} {
		if err := put(n, 4900, now); err != nil {
			t.Error(err)
		}
	}
	err := put("c", 200, now)
	if !errors.Is(err, errFull) || !strings.Contains(err.Error(), "9.77 KiB are taken") {
		t.Errorf("above the bytes of labels: %v", err)
	}
	if err := put("c", 100, now); err != nil {
		t.Errorf("a small series: %v", err)
	}
	later := now.Add(seriesLifetime + 2*time.Minute)
	for _, n := range []string{"d", "e"} {
		if err := put(n, 4900, later); err != nil {
			t.Errorf("after all series expired: %v", err)
		}
	}
	if put("f", 4900, later) == nil {
		t.Error("more bytes than expired are admitted")
	}
}

// The series of a sender in memory are limited; the handler accepts the rest of a request.
func TestHandlerSeriesLimit(t *testing.T) {
	t.Parallel()
	quiet := slog.New(slog.DiscardHandler)
	db, err := tsdb.Open(t.TempDir(), quiet, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	handler := NewHandler(db, func(*http.Request) (string, error) { return "lab", nil }, quiet)
	at := time.Now().Add(-time.Minute).UnixMilli()
	post := func(first, last int) *httptest.ResponseRecorder {
		t.Helper()
		var r prompb.WriteRequest
		for i := first; i < last; i++ {
			ls := labels.FromStrings("__name__", "app", "n", strconv.Itoa(i))
			r.Timeseries = append(r.Timeseries, prompb.TimeSeries{Labels: prompb.FromLabels(ls, nil), Samples: []prompb.Sample{{Timestamp: at, Value: 1}}})
		}
		b, err := r.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		q := httptest.NewRequest(http.MethodPost, "/api/v1/write", strings.NewReader(string(snappy.Encode(nil, b))))
		q.Header.Set("Content-Type", "application/x-protobuf")
		q.Header.Set("Content-Encoding", "snappy")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, q)
		return w
	}
	const each = 20_000
	for n := 0; n < maxClusterSeries; n += each {
		if w := post(n, n+each); w.Code/100 != 2 {
			t.Fatalf("%d series: %d %s", n+each, w.Code, w.Body)
		}
	}
	at++ // samples of another time
	w := post(maxClusterSeries-10, maxClusterSeries+10)
	if text := w.Body.String(); w.Code != http.StatusBadRequest || !strings.Contains(text, "10 samples were refused") || !strings.Contains(text, strconv.Itoa(maxClusterSeries)) {
		t.Errorf("ten existing series and ten new ones: %d %s", w.Code, text)
	}
	if n := db.Head().NumSeries(); n != maxClusterSeries {
		t.Errorf("%d series in memory, want %d", n, maxClusterSeries)
	}
}

// A writer fills neither the memory with long labels nor, past the limits, with samples that
// the database refuses: it keeps their series in memory nevertheless.
func TestHandlerBytesLimit(t *testing.T) {
	t.Parallel()
	quiet := slog.New(slog.DiscardHandler)
	o := tsdb.DefaultOptions()
	o.OutOfOrderTimeWindow = time.Hour.Milliseconds() // as in a server: too old is known only after the series was made
	db, err := tsdb.Open(t.TempDir(), quiet, nil, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	handler := NewHandler(db, func(*http.Request) (string, error) { return "lab", nil }, quiet)
	handler.tracker.maxBytes = 100_000
	now := time.Now().UnixMilli()
	post := func(n, bytes int, at int64) (int, string) {
		t.Helper()
		ls := labels.FromStrings("__name__", "app", "a", strings.Repeat("x", bytes/2), "b", strings.Repeat("x", bytes/2), "n", strconv.Itoa(n))
		b, err := (&prompb.WriteRequest{Timeseries: []prompb.TimeSeries{{Labels: prompb.FromLabels(ls, nil), Samples: []prompb.Sample{{Timestamp: at, Value: 1}}}}}).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		w, _ := send(t, handler, "1.0", b)
		return w.Code, w.Body.String()
	}
	if code, text := post(0, maxLabelsBytes, now); code != http.StatusBadRequest || !strings.Contains(text, "at most 8192") {
		t.Errorf("labels above the limit of a series: %d %s", code, text)
	}
	if code, text := post(0, maxLabelsBytes-100, now); code/100 != 2 {
		t.Errorf("labels below the limit of a series: %d %s", code, text)
	}
	const old = 2 * 3600e3
	for n := 1; n < 100; n++ {
		post(n, 2000, now-old)
	}
	if n, most := db.Head().NumSeries(), uint64(1+(100_000-8192)/2000); n > most {
		t.Errorf("%d series in memory after samples that are too old, want %d at most", n, most)
	}
	if code, text := post(200, 2000, now); code != http.StatusBadRequest || !strings.Contains(text, "limit of series") {
		t.Errorf("a new series of a full cluster: %d %s", code, text)
	}
	if code, text := post(0, maxLabelsBytes-100, now+1); code/100 != 2 {
		t.Errorf("an existing series of a full cluster: %d %s", code, text)
	}
}

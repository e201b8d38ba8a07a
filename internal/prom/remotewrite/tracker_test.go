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
	w := newSeriesTracker(3)
	now := time.Now()
	put := func(cluster, n string, at time.Time) error {
		ls := labels.FromStrings("__name__", "app", "n", n)
		err := w.admit(cluster, w.key(ls), ls, at)
		if err == nil {
			w.note(cluster, w.key(ls), at)
		}
		return err
	}
	for i := range 10 { // series that the database refuses do not count
		ls := labels.FromStrings("refused", strconv.Itoa(i))
		if err := w.admit("lab", w.key(ls), ls, now); err != nil {
			t.Error(err)
		}
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

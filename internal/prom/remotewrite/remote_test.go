package remotewrite_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/prom/remotewrite"
	"mete.dev/mete/internal/testkit"
)

var quiet = slog.New(slog.DiscardHandler)

func open(t *testing.T) *tsdb.DB {
	t.Helper()
	o := tsdb.DefaultOptions()
	o.OutOfOrderTimeWindow = time.Hour.Milliseconds() // like the server's database
	db, err := tsdb.Open(t.TempDir(), quiet, nil, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// held returns the samples of a database in the form "labels=value".
func held(t *testing.T, db *tsdb.DB) (out []string) {
	t.Helper()
	q, err := db.Querier(0, time.Now().Add(time.Hour).UnixMilli())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = q.Close() }()
	set := q.Select(t.Context(), true, nil, labels.MustNewMatcher(labels.MatchRegexp, model.MetricNameLabel, ".+"))
	for set.Next() {
		it := set.At().Iterator(nil)
		for it.Next() == chunkenc.ValFloat {
			_, v := it.At()
			out = append(out, set.At().Labels().String()+"="+strconv.FormatFloat(v, 'g', -1, 64))
		}
	}
	return out
}

// A testSample is a series with one sample.
type testSample struct {
	labels []string
	value  float64
	ahead  time.Duration // time of the sample from now
}

// packed encodes a request of a version of remote write.
func packed(t *testing.T, version string, list []testSample) (body []byte, kind string) {
	t.Helper()
	now := time.Now().UnixMilli()
	var b []byte
	var err error
	if version == "1.0" {
		var r prompb.WriteRequest
		for _, o := range list {
			r.Timeseries = append(r.Timeseries, prompb.TimeSeries{Labels: prompb.FromLabels(labels.FromStrings(o.labels...), nil), Samples: []prompb.Sample{{Timestamp: now + o.ahead.Milliseconds(), Value: o.value}}})
		}
		b, err = r.Marshal()
		kind = "application/x-protobuf"
	} else {
		symbols := writev2.NewSymbolTable()
		var r writev2.Request
		for _, o := range list {
			r.Timeseries = append(r.Timeseries, writev2.TimeSeries{LabelsRefs: symbols.SymbolizeLabels(labels.FromStrings(o.labels...), nil), Samples: []writev2.Sample{{Timestamp: now + o.ahead.Milliseconds(), Value: o.value}}})
		}
		r.Symbols = symbols.Symbols()
		b, err = r.Marshal()
		kind = "application/x-protobuf;proto=io.prometheus.write.v2.Request"
	}
	if err != nil {
		t.Fatal(err)
	}
	return snappy.Encode(nil, b), kind
}

func post(t *testing.T, h http.Handler, body []byte, kind string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/api/v1/write", bytes.NewReader(body))
	r.Header.Set("Content-Type", kind)
	r.Header.Set("Content-Encoding", "snappy")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// The handler writes samples into the sender's cluster, whatever their labels are. It
// refuses reserved names and too large labels, and accepts the rest.
func TestHandler(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"1.0", "2.0"} {
		db := open(t)
		handler := remotewrite.NewHandler(db, func(*http.Request) (string, error) { return "lab", nil }, quiet)
		body, kind := packed(t, version, []testSample{
			{[]string{"__name__", "app_requests_total", "cluster", "other", "code", "200"}, 1, 0},
			{[]string{"__name__", "mete_node_up", "cluster", "lab", "node", "a"}, 0, 0},
			{[]string{"__name__", "namespace:mete_power_watts:rate5m"}, 0, 0},
			{[]string{"__name__", "ALERTS_FOR_STATE", "alertname", "x"}, 0, 0},
			{[]string{"__name__", "app_long", "l", strings.Repeat("x", 5000)}, 0, 0},
			{[]string{"__name__", "app_last"}, 2, 0},
			{[]string{"__name__", "app_tomorrow"}, 0, 9 * time.Minute}, // beyond ten, the whole request would be refused
		})
		w := post(t, handler, body, kind)
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "5 samples were refused") {
			t.Errorf("%s: %d %s", version, w.Code, w.Body)
		}
		if n := w.Header().Get("X-Prometheus-Remote-Write-Samples-Written"); version == "2.0" && n != "2" {
			t.Errorf("%s: %q samples written", version, n)
		}
		want := `[{__name__="app_last", cluster="lab"}=2 {__name__="app_requests_total", cluster="lab", code="200"}=1]`
		if got := fmt.Sprint(held(t, db)); got != want {
			t.Errorf("%s: %s", version, got)
		}
		if c := handler.Counts(); c != (remotewrite.Counts{Accepted: 2, Refused: 5}) {
			t.Errorf("%s: %+v", version, c)
		}
		body, kind = packed(t, version, []testSample{{[]string{"__name__", "app_next"}, 3, 0}})
		if w := post(t, handler, body, kind); w.Code/100 != 2 {
			t.Errorf("%s: only good samples: %d %s", version, w.Code, w.Body)
		}
	}
}

// A request above the limits is refused as a whole with a status that senders do not retry.
func TestHandlerLimits(t *testing.T) {
	t.Parallel()
	db := open(t)
	var authErr error
	handler := remotewrite.NewHandler(db, func(*http.Request) (string, error) { return "lab", authErr }, quiet)
	var tooMany []testSample
	for i := range 20_001 {
		tooMany = append(tooMany, testSample{[]string{"__name__", "app", "n", strconv.Itoa(i)}, 1, 0})
	}
	for _, version := range []string{"1.0", "2.0"} {
		body, kind := packed(t, version, tooMany)
		if w := post(t, handler, body, kind); w.Code != http.StatusRequestEntityTooLarge || !strings.Contains(w.Body.String(), "20000 series") {
			t.Errorf("%s: too many series: %d %s", version, w.Code, w.Body)
		}
	}
	_, kind := packed(t, "1.0", nil)
	for what, body := range map[string][]byte{"too long": make([]byte, 9<<20), "a bomb": append([]byte{0xff, 0xff, 0xff, 0xff, 0x0f}, make([]byte, 100)...), "nonsense": []byte("hello"),
		"no message": snappy.Encode(nil, []byte("\xff\xff\xff"))} {
		if w := post(t, handler, body, kind); w.Code/100 != 4 {
			t.Errorf("%s: %d %s", what, w.Code, w.Body)
		}
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1/write", http.NoBody))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", w.Code)
	}
	authErr = fmt.Errorf("no: %w", fault.ErrDenied)
	body, kind := packed(t, "1.0", tooMany[:1])
	if w := post(t, handler, body, kind); w.Code != http.StatusForbidden && w.Code != http.StatusUnauthorized {
		t.Errorf("denied sender: %d %s", w.Code, w.Body)
	}
	if got := held(t, db); len(got) > 0 {
		t.Errorf("%d samples were stored", len(got))
	}
	if c := handler.Counts(); c.Accepted != 0 {
		t.Errorf("%+v", c)
	}
}

// append1 appends a sample with the current time.
func append1(t *testing.T, db *tsdb.DB, name string, v float64) {
	t.Helper()
	appendAt(t, db, name, time.Now(), v)
}

func appendAt(t *testing.T, db *tsdb.DB, name string, at time.Time, v float64) {
	t.Helper()
	app := db.Appender(t.Context())
	if _, err := app.Append(0, labels.FromStrings(model.MetricNameLabel, name), at.UnixMilli(), v); err != nil {
		t.Fatal(err)
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
}

// A writer sends new samples, including late ones, to each receiver in its version with its
// headers; Reload reads the headers again.
func TestWriter(t *testing.T) {
	t.Parallel()
	from := open(t)
	header := filepath.Join(t.TempDir(), "header")
	put := func(text string) {
		if err := os.WriteFile(header, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("Authorization: Bearer one\nX-Scope-OrgID: 7\n")
	var to []remotewrite.Receiver
	var dbs []*tsdb.DB
	for i, version := range []string{"1.0", "2.0"} {
		db := open(t)
		dbs = append(dbs, db)
		allow := func(r *http.Request) (string, error) {
			good := r.Header.Get("Authorization") == "Bearer one" && r.Header.Get("X-Scope-OrgID") == "7" || r.Header.Get("Authorization") == "Bearer two"
			if (i == 1) != good {
				return "", fmt.Errorf("%v: %w", r.Header, fault.ErrDenied)
			}
			if v := r.Header.Get("X-Prometheus-Remote-Write-Version"); i == 1 && v != "2.0.0" || i == 0 && v != "0.1.0" {
				t.Errorf("version %q, want %s", v, version)
			}
			return "lab", nil
		}
		s := httptest.NewServer(remotewrite.NewHandler(db, allow, quiet))
		t.Cleanup(s.Close)
		receiver := remotewrite.Receiver{URL: s.URL + "/api/v1/write", Version: version}
		if i == 1 {
			receiver.Header = header
		}
		to = append(to, receiver)
	}
	w, err := remotewrite.NewWriter(to, from, quiet)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	arrives := func(want string, again func()) {
		t.Helper()
		for i, db := range dbs {
			testkit.Eventually(t, fmt.Sprintf("%s arrives at receiver %d", want, i), func() bool {
				again()
				return strings.Contains(fmt.Sprint(held(t, db)), want)
			})
		}
	}
	// Samples from before the start of Run are not sent, so append until one arrives.
	arrives(`{__name__="first", cluster="lab"}=1`, func() { append1(t, from, "first", 1) })
	now := time.Now() // the second sample is older than the first
	appendAt(t, from, "late", now.Add(100*time.Millisecond), 3)
	appendAt(t, from, "late", now, 4)
	arrives(`{__name__="late", cluster="lab"}=3`, func() {})
	arrives(`{__name__="late", cluster="lab"}=4`, func() {})
	put("Authorization: Bearer two\n")
	if err := w.Reload(); err != nil {
		t.Fatal(err)
	}
	put("nonsense")
	if err := w.Reload(); !errors.Is(err, fault.ErrInvalid) || strings.Contains(err.Error(), "nonsense") {
		t.Errorf("an invalid file of headers: %v", err)
	}
	arrives(`{__name__="second", cluster="lab"}=2`, func() { append1(t, from, "second", 2) })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, s := range w.Status() {
		if !strings.HasPrefix(s.Name, "127.0.0.1:") || strings.Contains(s.Name, "/") {
			t.Errorf("%+v", s)
		}
	}
}

// The writer retries samples for an unreachable receiver until it is back, does not retry
// samples that a receiver refuses, and counts both.
func TestWriterRetries(t *testing.T) {
	t.Parallel()
	from, db := open(t), open(t)
	handler := remotewrite.NewHandler(db, func(*http.Request) (string, error) { return "lab", nil }, quiet)
	away := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-away:
			handler.ServeHTTP(w, r)
		default:
			http.Error(w, "not now", http.StatusServiceUnavailable)
		}
	}))
	defer s.Close()
	var mu sync.Mutex
	asked := map[string]int64{} // samples by name that the redirecting receiver got
	moved := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err == nil {
			b, err = snappy.Decode(nil, b)
		}
		var told prompb.WriteRequest
		if err = errors.Join(err, told.Unmarshal(b)); err != nil {
			t.Error(err)
		}
		mu.Lock()
		for _, series := range told.Timeseries {
			asked[series.Labels[0].Value] += int64(len(series.Samples))
		}
		mu.Unlock()
		http.Redirect(w, r, s.URL, http.StatusTemporaryRedirect)
	}))
	defer moved.Close()
	w, err := remotewrite.NewWriter([]remotewrite.Receiver{{URL: s.URL, Version: "1.0"}, {URL: moved.URL, Version: "1.0"}}, from, quiet)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	until := func(what string, ok func([]remotewrite.Status) bool) {
		t.Helper()
		testkit.Eventually(t, what, func() bool { return ok(w.Status()) })
	}
	// Samples from before the start of Run are not sent, so append until one arrives.
	until("both receivers get samples", func(s []remotewrite.Status) bool {
		append1(t, from, "warm", 1)
		return s[0].Pending+s[0].Retried > 0 && s[1].Pending+s[1].Failed > 0
	})
	append1(t, from, "app", 1)
	until("the unreachable receiver has pending samples", func(s []remotewrite.Status) bool { return s[0].Retried > 0 && s[0].Pending > 0 })
	until("the redirecting receiver has failed samples only", func(s []remotewrite.Status) bool {
		mu.Lock()
		defer mu.Unlock()
		return asked["app"] == 1 && s[1].Failed == asked["app"]+asked["warm"] && s[1].Retried == 0
	})
	close(away)
	until("the receiver that is back has all samples", func(s []remotewrite.Status) bool {
		return s[0].Pending == 0 && s[0].Bytes > 0 && s[0].Behind == 0 && strings.Count(fmt.Sprint(held(t, db)), `__name__="app"`) == 1
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestReceivers(t *testing.T) {
	t.Parallel()
	db := open(t)
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := remotewrite.Receiver{URL: "https://a/write?token=hidden", Version: "2.0"}
	for what, list := range map[string][]remotewrite.Receiver{
		"no address": {{URL: "a:1/hidden", Version: "1.0"}}, "a file": {{URL: "file:///hidden", Version: "1.0"}}, "a user": {{URL: "http://u:hidden@a/", Version: "1.0"}},
		"no version": {{URL: "http://a/", Version: "3"}}, "twice": {good, good}, "no headers": {{URL: "http://a/", Version: "1.0", Header: bad}},
	} {
		_, err := remotewrite.NewWriter(list, db, quiet)
		if !errors.Is(err, fault.ErrInvalid) || strings.Contains(err.Error(), "hidden") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := remotewrite.NewWriter([]remotewrite.Receiver{{URL: "http://a/", Version: "1.0", Header: bad + "2"}}, db, quiet); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file of headers: %v", err)
	}
	w, err := remotewrite.NewWriter([]remotewrite.Receiver{good}, db, quiet)
	if err != nil || w.Status()[0].Name != "a" {
		t.Errorf("%v", err)
	}
}

// A fullDatabase has no space.
type fullDatabase struct{ storage.Appendable }

func (f fullDatabase) Appender(ctx context.Context) storage.Appender {
	return fullAppender{f.Appendable.Appender(ctx)}
}

type fullAppender struct{ storage.Appender }

func (fullAppender) Append(storage.SeriesRef, labels.Labels, int64, float64) (storage.SeriesRef, error) {
	return 0, fmt.Errorf("the disk is full: %w", fault.ErrUnavailable)
}

// TestFullDatabase checks that the answer while the database takes nothing is to send the samples again later.
func TestFullDatabase(t *testing.T) {
	t.Parallel()
	handler := remotewrite.NewHandler(fullDatabase{open(t)}, func(*http.Request) (string, error) { return "lab", nil }, quiet)
	b, err := (&prompb.WriteRequest{Timeseries: []prompb.TimeSeries{{
		Labels: []prompb.Label{{Name: "__name__", Value: "x"}}, Samples: []prompb.Sample{{Value: 1, Timestamp: time.Now().UnixMilli()}},
	}}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, "/api/v1/write", bytes.NewReader(snappy.Encode(nil, b)))
	r.Header.Set("Content-Type", "application/x-protobuf")
	r.Header.Set("Content-Encoding", "snappy")
	r.Header.Set("X-Prometheus-Remote-Write-Version", "0.1.0")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), "the disk is full") {
		t.Errorf("%d %v: %s", w.Code, w.Header(), w.Body)
	}
}

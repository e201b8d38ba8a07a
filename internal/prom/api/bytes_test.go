package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

// Lists of series, names and values are limited by bytes, not only by number, and what is too
// long for a small query waits for a turn as a large one.
func TestLimitsOfLabelBytes(t *testing.T) {
	cfg := Default()
	cfg.Memory, cfg.Timeout = minMemory, time.Hour
	a := openAPIOf(t, cfg, nil, slog.New(slog.DiscardHandler), func(add func(at int64, v float64, names ...string)) {
		for i := range 200 {
			n := fmt.Sprintf("%04d", i)
			add(1e12, 1, "__name__", "long", "n", n, "text", n+strings.Repeat("x", 3996))
		}
	})
	a.limits.answerBytes, a.limits.large.labels, a.limits.smallValues = 400_000, 600_000, 20
	a.engine.small = a.newEngine(a.limits.small.samples, time.Hour) // no query becomes large on a slow machine
	for _, c := range []struct {
		path, match string
		code        int
		text        string
		large       int64
	}{
		{"series", `long{n=~"000."}`, 200, "0009", 0},
		{"series", `long{n=~"00.."}`, 422, "at most 391 KiB are sent", 0},
		{"label/text/values", `long{n=~"000."}`, 200, "0009", 0},
		{"label/text/values", `long{n=~"00[0-4]."}`, 200, "0049", 1},
		{"label/text/values", `long{n=~"01.."}`, 422, "names or values of more than 391 KiB", 1},
		{"query", `count(long{n=~"00.."})`, 200, "100", 0},
	} {
		before := a.Counts().Large
		form := []string{"match[]", c.match}
		if c.path == "query" {
			form = []string{"query", c.match, "time", "1000000000"}
		}
		w := ask(a, c.path, form...)
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.text) {
			t.Errorf("%s %s: %d %.300s; want %d, %q", c.path, c.match, w.Code, w.Body, c.code, c.text)
		}
		if n := a.Counts().Large - before; n != c.large {
			t.Errorf("%s %s: %d large queries, want %d", c.path, c.match, n, c.large)
		}
	}
	a.limits.small.series = 10
	if w := ask(a, "query", "query", `count(long{n=~"01.."})`, "time", "1000000000"); w.Code != 200 {
		t.Errorf("a large query of 400 kB of labels: %d %.300s", w.Code, w.Body)
	}
	if w := ask(a, "query", "query", `count(long)`, "time", "1000000000"); w.Code != 422 || !strings.Contains(w.Body.String(), "more than 586 KiB of labels") {
		t.Errorf("a large query of 800 kB of labels: %d %.300s", w.Code, w.Body)
	}
}

// Requests for series and labels end when the queries together take too much memory.
func TestWatchEndsLists(t *testing.T) {
	a := openTestAPI(t, Default(), 10, nil, slog.New(slog.DiscardHandler))
	inner := a.handler
	a.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.memory.mu.Lock()
		for _, one := range a.memory.running {
			one.cancel(errMemory)
		}
		a.memory.mu.Unlock()
		inner.ServeHTTP(w, r)
	})
	for _, path := range []string{"series", "label/workload/values", "labels"} {
		w := ask(a, path, "match[]", "m")
		if w.Code != 422 || !strings.Contains(w.Body.String(), "too much memory") {
			t.Errorf("%s: %d %.300s", path, w.Code, w.Body)
		}
	}
}

// The watch ends the large query that read the most.
func TestWatchEndsLargest(t *testing.T) {
	w := &memoryWatch{memory: 100, thisMinute: 1000, minute: time.Unix(1e9, 0)}
	ctxs := make([]context.Context, 3)
	for i, read := range []int64{10, 5000, 20} {
		a := &admission{api: &API{memory: w}}
		a.read.Store(read)
		ctx, cancel := context.WithCancelCause(t.Context())
		ctxs[i] = ctx
		w.running = append(w.running, &run{admission: a, began: time.Unix(1e9, 0), cancel: cancel})
		w.upgrade(a)
	}
	w.check(2000, 1, time.Unix(1e9+1, 0))
	for i, ctx := range ctxs {
		if got := errors.Is(context.Cause(ctx), errMemory); got != (i == 1) {
			t.Errorf("query %d: ended %v", i, got)
		}
	}
}

// TestAnswerOfHistograms checks that the buckets of native histograms count in the size of an answer.
func TestAnswerOfHistograms(t *testing.T) {
	e := newAPI(Default(), nil, nil, slog.New(slog.DiscardHandler)).engine
	e.api.limits.answerBytes = 1 << 20
	large, small := &histogram.FloatHistogram{PositiveBuckets: make([]float64, 5000), NegativeBuckets: make([]float64, 5000)}, &histogram.FloatHistogram{PositiveBuckets: make([]float64, 50)}
	points := func(h *histogram.FloatHistogram, n int) (list []promql.HPoint) {
		for range n {
			list = append(list, promql.HPoint{H: h})
		}
		return list
	}
	for _, c := range []struct {
		what  string
		value parser.Value
		ok    bool
	}{
		{"one large histogram", promql.Matrix{{Histograms: points(large, 1)}}, true},
		{"two large histograms", promql.Matrix{{Histograms: points(large, 2)}}, false},
		{"300 small histograms", promql.Matrix{{Histograms: points(small, 300)}}, true},
		{"a vector of one large histogram", promql.Vector{{H: large}}, true},
		{"a vector of two large histograms", promql.Vector{{H: large}, {H: large}}, false},
		{"a vector of numbers", promql.Vector{{F: 1}, {F: 2}}, true},
	} {
		if err := e.checkAnswer(c.value, 0); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

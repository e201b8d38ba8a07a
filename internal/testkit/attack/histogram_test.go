package attack_test

import (
	"bytes"
	"fmt"
	"math"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/prompb"

	"mete.dev/mete/internal/testkit/attack"
)

// TestHistograms writes native histograms as absurd as a writer's token lets it, and queries them: the
// server stays within its memory, and its answers are limited.
func TestHistograms(t *testing.T) {
	attackStage(t)
	s := &scene{Server: attack.StartServer(t, programs, attack.Config{Memory: mostMemory, Env: []string{"GOMEMLIMIT=384MiB"}}, "--query-memory", "128MiB", "--query-timeout", "20s")}
	viewer, writer := s.Token(t, "viewer", "--cluster", "lab"), s.Token(t, "writer", "--cluster", "lab")
	write := func(name string, want int, list ...prompb.Histogram) {
		t.Helper()
		for i := range list {
			list[i].ZeroCount = &prompb.Histogram_ZeroCountInt{}
			list[i].Timestamp = time.Now().Add(-time.Duration(len(list)-i) * time.Second).UnixMilli()
		}
		r := prompb.WriteRequest{Timeseries: []prompb.TimeSeries{{Labels: []prompb.Label{{Name: "__name__", Value: name}}, Histograms: list}}}
		b, err := r.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		a := s.Do(t, "POST", "/api/v1/write", bytes.NewReader(snappy.Encode(nil, b)), append(attack.Bearer(writer), "Content-Type", "application/x-protobuf", "Content-Encoding", "snappy")...)
		if a.Status != want {
			t.Errorf("%s: %d %.300s, want %d", name, a.Status, a.Body, want)
		}
	}
	count := func(n uint64) *prompb.Histogram_CountInt { return &prompb.Histogram_CountInt{CountInt: n} }
	one := []prompb.BucketSpan{{Offset: 0, Length: 1}}
	for _, schema := range []int32{127, -128, -5, math.MaxInt32} {
		write("app_schema", 400, prompb.Histogram{Count: count(2), Schema: schema, PositiveSpans: one, PositiveDeltas: []int64{2}})
	}
	write("app_span", 400, prompb.Histogram{Count: count(2), Schema: 3, PositiveSpans: []prompb.BucketSpan{{Offset: math.MaxInt32, Length: math.MaxUint32}}, PositiveDeltas: []int64{2}})
	write("app_negative", 400, prompb.Histogram{Count: count(0), Schema: 3, PositiveSpans: []prompb.BucketSpan{{Length: 2}}, PositiveDeltas: []int64{-5, 5}})
	write("app_spans", 204, prompb.Histogram{Count: count(0), Schema: 3, PositiveSpans: make([]prompb.BucketSpan, 100_000)})
	write("app_far", 204, prompb.Histogram{Count: count(2), Schema: 8, PositiveSpans: []prompb.BucketSpan{{Offset: math.MinInt32, Length: 1}, {Offset: math.MaxInt32, Length: 1}}, PositiveDeltas: []int64{1, 0}})
	const buckets = 10_000
	for k := range 20 {
		var list []prompb.Histogram
		for range 20 {
			h := prompb.Histogram{Schema: 8, Count: count(buckets), PositiveSpans: []prompb.BucketSpan{{Offset: int32(k * buckets), Length: buckets}}, PositiveDeltas: make([]int64, buckets)}
			h.PositiveDeltas[0] = 1
			list = append(list, h)
		}
		write(fmt.Sprint("app_big", k), 204, list...)
	}
	var wait sync.WaitGroup
	now := time.Now().Unix()
	for _, query := range []string{"app_big0", `sum({__name__=~"app_big.*"})`, `{__name__=~"app_big.*"}`, `histogram_quantile(0.5, sum(rate({__name__=~"app_big.*"}[5m])))`, `sum({__name__=~"app_(far|spans)"})`, "app_big0 + on() app_big19",
		`avg_over_time(sum({__name__=~"app_big.*"})[5m:1s])`, "max_over_time(app_big1[5m:100ms])", `histogram_fraction(-Inf, +Inf, {__name__=~"app_.*"})`, `count_values("x", {__name__=~"app_big.*"})`} {
		for _, path := range []string{fmt.Sprintf("/api/v1/query_range?start=%d&end=%d&step=1&query=", now-3000, now+300), "/api/v1/query?query="} {
			wait.Go(func() {
				a := s.Do(t, "GET", path+url.QueryEscape(query), nil, attack.Bearer(viewer)...)
				if !is(a.Status, 200, 422, 503) || len(a.Body) > 16<<20 {
					t.Errorf("%s%s: %d, %d bytes: %.300s", path, query, a.Status, len(a.Body), a.Body)
				}
			})
		}
	}
	wait.Wait()
	t.Logf("peak RSS %d MiB", s.PeakRSS()>>20)
	s.Check(t, mostMemory)
}

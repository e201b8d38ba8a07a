package attack

import (
	"bytes"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/pki/enroll"
)

// A Sample is a series that other systems write, with its samples.
type Sample struct {
	Labels []string // names and values
	Values []float64
	Native bool // histograms, of which the values are the counts
}

// Write writes series with a writer's token. The last value of each is of now, and the others are
// step before each other.
func (s *Server) Write(t testing.TB, token string, step time.Duration, list ...Sample) Answer {
	t.Helper()
	var r prompb.WriteRequest
	now := time.Now()
	for _, one := range list {
		series := prompb.TimeSeries{Labels: prompb.FromLabels(labels.FromStrings(one.Labels...), nil)}
		for i, v := range one.Values {
			at := now.Add(-step * time.Duration(len(one.Values)-1-i)).UnixMilli()
			if one.Native {
				n := uint64(v)
				series.Histograms = append(series.Histograms, prompb.Histogram{
					Count: &prompb.Histogram_CountInt{CountInt: 3 * n}, Sum: 5 * v, Schema: 1, ZeroThreshold: 1e-9, ZeroCount: &prompb.Histogram_ZeroCountInt{},
					PositiveSpans: []prompb.BucketSpan{{Offset: 0, Length: 2}}, PositiveDeltas: []int64{int64(n), int64(n)}, Timestamp: at})
				continue
			}
			series.Samples = append(series.Samples, prompb.Sample{Timestamp: at, Value: v})
		}
		r.Timeseries = append(r.Timeseries, series)
	}
	b, err := r.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return s.Do(t, http.MethodPost, "/api/v1/write", bytes.NewReader(snappy.Encode(nil, b)),
		append(Bearer(token), "Content-Type", "application/x-protobuf", "Content-Encoding", "snappy")...)
}

// Fill gives the server the figures of machines with workloads, in windows of 10 s up to now, and
// histograms and counters that a writer of the cluster lab wrote. The machines are node0, node2 of
// the cluster lab and hidden1, hidden3 of prod, and so on. It returns the names of the series.
func (s *Server) Fill(t testing.TB, nodes, workloads, windows int) (metrics, histograms []string) {
	t.Helper()
	const length = int64(10 * time.Second)
	for i := range nodes {
		n := s.MustEnroll(t, []string{"lab", "prod"}[i%2], enroll.Facts{Machine: fmt.Sprint("machine-", i), Boot: fmt.Sprint("boot-", i), Name: fmt.Sprintf("%s%d", []string{"node", "hidden"}[i%2], i)})
		var names []batch.Name
		for k := range workloads {
			names = append(names, n.Name(fmt.Sprint(k), fmt.Sprintf("app-%d", k%17), map[string]string{"app": fmt.Sprint("app-", k%17), "io.kubernetes.pod.namespace": fmt.Sprint("space-", k%5), "io.kubernetes.pod.name": fmt.Sprint("pod-", k)}))
		}
		for at := 0; at < windows; at += 30 {
			var ws []usage.Window
			for k := at; k < min(at+30, windows); k++ {
				from := n.Boottime - int64(windows-k)*length
				ws = append(ws, n.Window(from, from+length, length/int64(workloads+1), names...))
			}
			send := names
			if at > 0 {
				send = nil
			}
			if r := n.Send(t, send, ws...); r.Verdict != "taken" {
				t.Fatalf("%+v", r)
			}
		}
	}
	writer := s.Token(t, "writer", "--cluster", "lab")
	var list []Sample
	for i := range 20 * nodes {
		values := make([]float64, 120)
		for k := range values {
			values[k] = float64(k * (i + 1))
		}
		list = append(list, Sample{Labels: []string{"__name__", "app_requests_total", "app", fmt.Sprint("app-", i%17), "code", fmt.Sprint(200 + i%7), "instance", fmt.Sprint("i-", i)}, Values: values},
			Sample{Labels: []string{"__name__", "app_native_seconds", "instance", fmt.Sprint("i-", i)}, Values: values, Native: true})
		for k, le := range []string{"0.1", "1", "10", "+Inf"} {
			bucket := make([]float64, 120)
			for j := range bucket {
				bucket[j] = float64(j * (k + 1))
			}
			list = append(list, Sample{Labels: []string{"__name__", "app_seconds_bucket", "instance", fmt.Sprint("i-", i), "le", le}, Values: bucket})
		}
	}
	for len(list) > 0 {
		some := list[:min(len(list), 500)]
		list = list[len(some):]
		if a := s.Write(t, writer, 15*time.Second, some...); a.Status/100 != 2 {
			t.Fatalf("write: %d %s", a.Status, a.Body)
		}
	}
	return []string{"mete_workload_cpu_seconds_total", "mete_workload_info", "mete_node_cpu_seconds_total", "mete_node_up", "app_requests_total", "up", "nosuch", "mete_node_cpu_cores"},
		[]string{"app_seconds_bucket", "app_native_seconds", "app_requests_total"}
}

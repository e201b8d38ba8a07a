package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/prompb"
	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/prom/result"
)

// budgetPrometheus is the maximum cost of a sample on a server, which also books it,
// relative to its cost on a Prometheus.
const budgetPrometheus = 1.2

// A comparison is the cost of the same use on a server and a Prometheus. A sample is one
// amount of one row of one window: the server books it, and keeps a series of it;
// Prometheus receives it by remote write, a request for each window.
type comparison struct {
	Samples int64      `json:"samples"`
	Series  int64      `json:"series"`
	Kept    int64      `json:"kept"` // samples that the server's database stored
	Ratio   float64    `json:"cpu_ratio"`
	Server  ingestCost `json:"server"`
	Other   ingestCost `json:"prometheus"`

	Queries []queryTimes `json:"queries"`
}

// An ingestCost is the cost of ingesting samples on one of the two.
type ingestCost struct {
	CPU       float64 `json:"cpu_us_per_sample"`
	PerSecond float64 `json:"samples_per_second"`
	Bytes     float64 `json:"rss_bytes_per_series"` // growth
	Peak      int64   `json:"peak_rss_bytes"`
}

// A queryTimes is the time of a query on both, in ms.
type queryTimes struct {
	What               string  `json:"query"`
	P50, P99           float64 // of the server
	OtherP50, OtherP99 float64
}

// Number of windows of each machine, sent one after another, and how long each of the two
// may process them afterwards.
const (
	comparedWindows = 120
	comparedRest    = 5 * time.Second
)

// compare makes a server and a Prometheus ingest the same samples, one after the other.
func (s *serverFlags) compare(ctx context.Context, t *target, f *fleet, r *report) error {
	began := f.since
	at := func(_, k int) (time.Time, time.Duration) { return began.Add(time.Duration(k) * window), window }
	out := &comparison{Samples: int64(s.origins) * comparedWindows * int64(f.samples)}
	rss, _, err := memoryOf(t.cmd.Process.Pid)
	if err != nil {
		return err
	}
	s.logf("%d windows of each machine to the server", comparedWindows)
	before, start := cpuOf(t.cmd.Process.Pid), time.Now()
	if _, err := t.sendPaced(ctx, f, pace{n: s.origins, each: comparedWindows, at: at}); err != nil {
		return err
	}
	took := time.Since(start)
	sleepUntil(ctx, time.Now().Add(comparedRest))
	cpu := cpuOf(t.cmd.Process.Pid) - before
	if out.Server, err = spent(t.cmd.Process.Pid, rss, cpu, took, out); err != nil {
		return err
	}

	// The server records its own metrics every 15 seconds.
	sleepUntil(ctx, time.Now().Add(16*time.Second))
	kept, err := t.reader.Query(ctx, "mete_server_metrics_samples_total", time.Now())
	if err != nil {
		return err
	}
	if len(kept.Series) == 1 && len(kept.Series[0].Points) == 1 {
		out.Kept = int64(kept.Series[0].Points[0].Value)
	}

	p, err := openPrometheus(ctx, f.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end(p.cmd, syscall.SIGTERM)) }()
	sent, n, err := f.requests(s.origins, began)
	if err != nil {
		return err
	}
	out.Series = n
	if rss, _, err = memoryOf(p.cmd.Process.Pid); err != nil {
		return err
	}
	s.logf("the same to Prometheus")
	before, start = cpuOf(p.cmd.Process.Pid), time.Now()
	if err := p.take(ctx, sent); err != nil {
		return err
	}
	took = time.Since(start)
	sleepUntil(ctx, time.Now().Add(comparedRest))
	cpu = cpuOf(p.cmd.Process.Pid) - before
	if out.Other, err = spent(p.cmd.Process.Pid, rss, cpu, took, out); err != nil {
		return err
	}
	out.Server.Bytes /= float64(n)
	out.Other.Bytes /= float64(n)
	out.Ratio = out.Server.CPU / out.Other.CPU
	s.logf("queries of both")
	if out.Queries, err = race(ctx, t, p, began.Add(comparedWindows*window)); err != nil {
		return err
	}
	r.Compared = out
	return nil
}

// spent returns the cost of ingesting all samples in a process.
func spent(pid int, rss int64, cpu, took time.Duration, c *comparison) (k ingestCost, err error) {
	now, peak, err := memoryOf(pid)
	return ingestCost{CPU: cpu.Seconds() * 1e6 / float64(c.Samples), PerSecond: float64(c.Samples) / took.Seconds(), Bytes: float64(now - rss), Peak: peak}, err
}

// requests returns the windows of n machines as remote write requests, by machine, and the
// number of series. Values are cumulative, like the server's.
func (f *fleet) requests(n int, began time.Time) (sent [][][]byte, count int64, err error) {
	sent = make([][][]byte, n)
	names := map[workload.ShortID]*batch.Name{}
	for i := range f.names {
		if short, ok := workload.ShortIDOf(f.names[i].ID); ok {
			names[short] = &f.names[i]
		}
	}
	for i, o := range f.origins[:n] {
		have := map[string]*prompb.TimeSeries{}
		for k := range comparedWindows {
			w := f.window(i+k, o, began.Add(time.Duration(k)*window), window)
			ms := began.Add(time.Duration(k+1) * window).UnixMilli()
			req := &prompb.WriteRequest{}
			for j := range w.Rows {
				row := &w.Rows[j]
				name := names[row.ShortID]
				put := func(key, family, label, value string, add, set float64) {
					one := have[key]
					if one == nil {
						one = &prompb.TimeSeries{Labels: seriesLabels(family, label, value, o.node, string(name.ID)), Samples: make([]prompb.Sample, 1)}
						if family == metric.Info {
							one.Labels = append(one.Labels, prompb.Label{Name: "name", Value: name.Name}, prompb.Label{Name: "namespace", Value: name.Labels["io.kubernetes.pod.namespace"]})
						}
						sort.Slice(one.Labels, func(a, b int) bool { return one.Labels[a].Name < one.Labels[b].Name })
						have[key] = one
					}
					one.Samples[0] = prompb.Sample{Timestamp: ms, Value: one.Samples[0].Value*min(1, add) + set}
					req.Timeseries = append(req.Timeseries, *one)
				}
				id := strconv.Itoa(j)
				row.Usage.Present.Each(func(res usage.Resource) {
					fam := metric.FamilyOf(res)
					if fam == nil {
						return
					}
					add := 0.0
					if fam.Counter {
						add = 1
					}
					put(id+"/"+fam.Name+fam.LabelValue, fam.Name, fam.Label, fam.LabelValue, add, fam.Value(row.Usage.Amount[res]))
				})
				put(id, metric.Info, "", "", 0, 1)
			}
			b, err := req.Marshal()
			if err != nil {
				return nil, 0, err
			}
			sent[i] = append(sent[i], snappy.Encode(nil, b))
		}
		count += int64(len(have))
	}
	return sent, count, nil
}

// seriesLabels returns the labels of a series, with one more if label is not "", in no order.
func seriesLabels(name, label, value, node, id string) []prompb.Label {
	ls := []prompb.Label{{Name: "__name__", Value: name}, {Name: metric.Cluster, Value: "bench"}, {Name: metric.Node, Value: node}, {Name: metric.Workload, Value: id}}
	if label != "" {
		ls = append(ls, prompb.Label{Name: label, Value: value})
	}
	return ls
}

// A prometheus is a Prometheus that ingests samples by remote write.
type prometheus struct {
	url string
	cmd *exec.Cmd
}

func openPrometheus(ctx context.Context, dir string) (p *prometheus, err error) {
	if dir, err = sub(dir, "prometheus"); err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, nil, 0o600); err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := ln.Addr().String()
	if err := ln.Close(); err != nil {
		return nil, err
	}
	p = &prometheus{url: "http://" + addr, cmd: exec.Command("prometheus", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+addr, "--web.enable-remote-write-receiver", "--log.level=error")}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w: install Debian's package prometheus", err)
	}
	for range 300 {
		if err = p.ask(ctx, http.MethodGet, "/-/ready", nil); err == nil {
			return p, nil
		}
		sleepUntil(ctx, time.Now().Add(100*time.Millisecond))
	}
	return nil, errors.Join(err, end(p.cmd, syscall.SIGTERM))
}

// take sends all requests: those of one machine one after another.
func (p *prometheus) take(ctx context.Context, sent [][][]byte) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, of := range sent {
		g.Go(func() error {
			for _, b := range of {
				if err := p.ask(ctx, http.MethodPost, "/api/v1/write", b); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// promClient keeps its connections.
var promClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2000}}

func (p *prometheus) ask(ctx context.Context, method, path string, body []byte) (err error) {
	req, err := http.NewRequestWithContext(ctx, method, p.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if body != nil {
		req.Header.Set("Content-Encoding", "snappy")
		req.Header.Set("Content-Type", "application/x-protobuf")
		req.Header.Set("X-Prometheus-Remote-Write-Version", "0.1.0")
	}
	resp, err := promClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	b, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
	case resp.StatusCode/100 != 2:
		err = fmt.Errorf("%s: %s: %s", path, resp.Status, strings.TrimSpace(string(b)))
	case bytes.Contains(b, []byte(`"result":[]`)):
		err = fmt.Errorf("%s: no series", path)
	}
	return err
}

// race queries both, in turn. An answer without series is an error: it would be the
// fastest.
func race(ctx context.Context, t *target, p *prometheus, at time.Time) (all []queryTimes, err error) {
	at = at.Add(-time.Minute)
	from := at.Add(-15 * time.Minute)
	const step = 15 * time.Second
	for _, q := range []struct {
		what, text string
		rng        bool
	}{
		{"total CPU, 15 min by 15 s", "sum by (cluster) (rate(mete_workload_cpu_seconds_total[5m]))", true},
		{"the ten busiest, now", "topk(10, rate(mete_workload_cpu_seconds_total[5m]))", false},
		{"memory by namespace, now", "sum by (namespace) (rate(mete_workload_memory_byte_seconds_total[5m]) * on (cluster, node, workload) group_left (namespace) mete_workload_info)", false},
	} {
		var own, other stopwatch
		for range 50 {
			begin := time.Now()
			ask := url.Values{"query": {q.text}, "time": {strconv.FormatInt(at.Unix(), 10)}}
			path := "/api/v1/query?"
			if q.rng {
				ask = url.Values{"query": {q.text}, "start": {strconv.FormatInt(from.Unix(), 10)}, "end": {strconv.FormatInt(at.Unix(), 10)}, "step": {"15"}}
				path = "/api/v1/query_range?"
			}
			if err := p.ask(ctx, http.MethodGet, path+ask.Encode(), nil); err != nil {
				return nil, err
			}
			other.add(time.Since(begin))
			begin = time.Now()
			var a *result.Answer
			if q.rng {
				a, err = t.reader.QueryRange(ctx, q.text, from, at, step)
			} else {
				a, err = t.reader.Query(ctx, q.text, at)
			}
			if err == nil && len(a.Series) == 0 {
				err = errors.New("the server has no series for it")
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", q.what, err)
			}
			own.add(time.Since(begin))
		}
		all = append(all, queryTimes{q.what, own.quantile(0.5), own.quantile(0.99), other.quantile(0.5), other.quantile(0.99)})
	}
	return all, nil
}

func (c *comparison) show() {
	fmt.Printf("%d samples of %d series, of which the server keeps %d: server %.2f us of CPU each, Prometheus %.2f: ratio %.2f; %.0f and %.0f samples/s; RSS %.0f and %.0f bytes a series, peak %d and %d MiB\n",
		c.Samples, c.Series, c.Kept, c.Server.CPU, c.Other.CPU, c.Ratio, c.Server.PerSecond, c.Other.PerSecond, c.Server.Bytes, c.Other.Bytes, c.Server.Peak>>20, c.Other.Peak>>20)
	for _, q := range c.Queries {
		fmt.Printf("%s: server p50 %.1f ms, p99 %.1f; Prometheus p50 %.1f, p99 %.1f\n", q.What, q.P50, q.P99, q.OtherP50, q.OtherP99)
	}
}

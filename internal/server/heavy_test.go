package server_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/server"
	"mete.dev/mete/internal/testkit"
)

const (
	heavySeries = 10_000
	heavyDays   = 31
	heavyStep   = time.Hour
	heavyBlock  = 4 * 24 * time.Hour
)

// heavyBlocks writes a month of many series with few samples to a directory of metrics, and
// returns the time of the last sample.
func heavyBlocks(t *testing.T, dir string) time.Time {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(-3 * time.Hour).Truncate(heavyStep)
	list := make([]labels.Labels, heavySeries)
	for i := range list {
		list[i] = labels.FromStrings("__name__", "heavy_cpu_seconds_total", "cluster", "lab", "node", "node-"+strconv.Itoa(i%500),
			"workload", fmt.Sprintf("%032d", i), "namespace", "ns-"+strconv.Itoa(i%50))
	}
	for from := end.Add(-heavyDays * 24 * time.Hour); from.Before(end); from = from.Add(heavyBlock) {
		w, err := tsdb.NewBlockWriter(slog.New(slog.DiscardHandler), dir, 2*heavyBlock.Milliseconds())
		if err != nil {
			t.Fatal(err)
		}
		app, refs := w.Appender(t.Context()), make([]storage.SeriesRef, len(list))
		for at := from; at.Before(from.Add(heavyBlock)) && !at.After(end); at = at.Add(heavyStep) {
			for i := range list {
				if refs[i], err = app.Append(refs[i], list[i], at.UnixMilli(), float64(at.Unix()%1e7)*float64(i%7+1)); err != nil {
					t.Fatal(err)
				}
			}
			if err := app.Commit(); err != nil {
				t.Fatal(err)
			}
			app = w.Appender(t.Context())
		}
		if _, err = w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return end
}

// queryClient queries a server with a viewer token.
type queryClient struct {
	url, token, id string
	client         *http.Client
}

// answer is the error or the size of an answer.
type answer struct {
	code      int
	ErrorType string `json:"errorType"`
	Error     string `json:"error"`
	bytes     int64
	took      time.Duration
}

func (a queryClient) ask(ctx context.Context, path string, form ...string) (answer, error) {
	v := url.Values{}
	for i := 0; i < len(form); i += 2 {
		v.Add(form[i], form[i+1])
	}
	began := time.Now()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url+"/api/v1/"+path, strings.NewReader(v.Encode()))
	if err != nil {
		return answer{}, err
	}
	if strings.HasPrefix(path, "label/") {
		r.Method, r.Body, r.ContentLength, r.URL.RawQuery = http.MethodGet, http.NoBody, 0, v.Encode()
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Authorization", "Bearer "+a.token)
	res, err := a.client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	got := answer{code: res.StatusCode}
	if res.StatusCode == http.StatusOK {
		got.bytes, err = io.Copy(io.Discard, res.Body)
	} else {
		err = json.NewDecoder(res.Body).Decode(&got)
	}
	got.took = time.Since(began)
	return got, err
}

func (b *bench) queryClient(t *testing.T, cluster string) queryClient {
	t.Helper()
	text, made, err := b.Authority.Tokens().Create(t.Context(), registry.Token{Role: registry.Viewer, Cluster: cluster, Uses: -1})
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	t.Cleanup(tr.CloseIdleConnections)
	return queryClient{b.url, text, made.ID, &http.Client{Transport: tr}}
}

// heap returns the bytes of live and unswept objects.
func heap() int64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64())
}

// A heavy is an expensive query with its expected result.
type heavy struct {
	path string
	code int    // without other load
	text string // in the error
	form []string
}

// heavies returns expensive queries over the month before end.
func heavies(end time.Time) []heavy {
	stamp := func(at time.Time) string { return strconv.FormatInt(at.Unix(), 10) }
	const m = "heavy_cpu_seconds_total"
	ranged := func(query, step string) []string {
		return []string{"query", query, "step", step, "start", stamp(end.Add(-heavyDays * 24 * time.Hour)), "end", stamp(end)}
	}
	at := func(query string) []string { return []string{"query", query, "time", stamp(end)} }
	return []heavy{
		{"query_range", 422, "at most", ranged("sum by (namespace) (rate("+m+"[3h]))", "244")},
		{"query_range", 422, "at most", ranged("last_over_time("+m+"[1h])", "244")},
		{"query_range", 200, "", ranged("sum by (namespace) (rate("+m+"[6h]))", "21600")},
		{"query_range", 422, "at most", ranged(`label_replace(`+m+`, "a", "$1$1$1$1", "workload", "(.*)")`, "300")},
		{"query", 400, "times as long", at(`label_replace(label_replace(` + m + `, "a", "$1$1$1$1$1$1$1$1$1$1", "workload", "(.*)"), "a", "$1$1$1$1$1$1$1$1$1$1", "a", "(.*)")`)},
		{"query", 200, "", at(`count(` + m + `{workload=~"(0*1*2*3*4*5*6*7*8*9*)*"})`)},
		{"query", 422, "at most", at("max_over_time(rate(" + m + "[3h])[31d:1m])")},
		{"query", 422, "at most", at("max_over_time(sum(rate(" + m + "[3h]))[31d:5m])")},
		{"query", 200, "", at("sum(increase(" + m + "[31d]))")},
		{"query_range", 422, "--query-memory", ranged(`count_values("v", `+m+` * on (workload) group_left () `+m+`)`, "300")},
		{"query_range", 400, "maximum resolution of 11,000 points", ranged(m, "1")},
		{"query", 422, "are sent", at(m + "[5d]")},
		{"query", 200, "", at(`{__name__=~".+"}`)},
		{"series", 200, "", []string{"match[]", `{__name__=~".+"}`}},
		{"labels", 200, "", nil},
		{"label/workload/values", 200, "", nil},
	}
}

// check compares an answer with the expected one. If busy, time-outs and the memory limit are
// accepted too.
func (h heavy) check(t *testing.T, got answer, err error, busy bool) {
	t.Helper()
	kinds := map[int]string{400: "bad_data", 422: "execution", 503: "timeout"}
	switch {
	case err != nil:
		t.Errorf("%s %.200q: %v", h.path, h.form, err)
	case busy && got.code == 503 && got.ErrorType == "timeout" && strings.Contains(got.Error, "ask again later"),
		busy && got.code == 503 && got.ErrorType == "timeout" && strings.Contains(got.Error, "timed out"),
		busy && got.code == 422 && got.ErrorType == "execution" && strings.Contains(got.Error, "too much memory"):
	case got.code != h.code, got.code != 200 && (got.ErrorType != kinds[got.code] || !strings.Contains(got.Error, h.text)):
		t.Errorf("%s %.200q: %+v; want %d and %q", h.path, h.form, got, h.code, h.text)
	}
}

// A peak measures the largest heap.
type peak struct {
	base, most int64
	stop       chan struct{}
	done       sync.WaitGroup
}

func watchPeak() *peak {
	runtime.GC()
	p := &peak{base: heap(), stop: make(chan struct{})}
	p.done.Go(func() {
		for {
			p.most = max(p.most, heap())
			select {
			case <-time.After(2 * time.Millisecond):
			case <-p.stop:
				return
			}
		}
	})
	return p
}

// within ends the measurement and checks the bound: twice the sum of the heap without queries
// and their memory limit, because the garbage collector lets the heap grow to twice its live
// size, plus 64 MiB.
func (p *peak) within(t *testing.T, memory int64) {
	t.Helper()
	close(p.stop)
	p.done.Wait()
	bound := 2*(p.base+memory) + 64<<20
	t.Logf("heap without queries %s, largest %s, bound %s", unit.Bytes(float64(p.base)), unit.Bytes(float64(p.most)), unit.Bytes(float64(bound)))
	if p.most > bound {
		t.Errorf("heap of %s exceeds the bound of %s", unit.Bytes(float64(p.most)), unit.Bytes(float64(bound)))
	}
}

// TestHeavyQueries checks that concurrent expensive queries of ten thousand series over a
// month stay within the memory limit and get helpful errors, while small queries stay fast
// and batches are booked.
func TestHeavyQueries(t *testing.T) {
	testkit.Stage(t, "timing", "measures memory under load, and compares latencies")
	state := t.TempDir()
	began := time.Now()
	end := heavyBlocks(t, filepath.Join(state, "metrics"))
	t.Logf("%d series over %d days were written in %v", heavySeries, heavyDays, time.Since(began))
	t.Run("beside small queries", func(t *testing.T) { testBesideSmall(t, state, end) })
	// The memory limit catches what the sample limit does not count.
	t.Run("uncounted", func(t *testing.T) {
		const memory = 64 << 20
		b := open(t, state, func(c *server.Config) {
			c.Metrics.Retention = 40 * 24 * time.Hour
			c.Query.Memory, c.Query.Samples = memory, 1<<30
		})
		p := watchPeak()
		h := heavies(end)[1]
		h.text = "too much memory"
		got, err := b.queryClient(t, "").ask(t.Context(), h.path, h.form...)
		t.Logf("%+v", got)
		h.check(t, got, err, false)
		p.within(t, memory)
	})
}

func testBesideSmall(t *testing.T, state string, end time.Time) {
	const memory = 256 << 20
	b := open(t, state, func(c *server.Config) {
		c.Metrics.Retention = 40 * 24 * time.Hour
		c.Query.Memory, c.Query.Timeout, c.Query.Log = memory, 5*time.Minute, filepath.Join(state, "queries.log")
	})
	id := b.enroll(t, registry.Agent, "m1")
	reader, other := b.queryClient(t, ""), b.queryClient(t, "lab")
	small := func() time.Duration {
		t.Helper()
		got, err := other.ask(t.Context(), "query", "query", `sum(rate(heavy_cpu_seconds_total{node="node-7"}[3h]))`, "time", strconv.FormatInt(end.Unix(), 10))
		if err != nil || got.code != http.StatusOK {
			t.Errorf("small query: %+v, %v", got, err)
		}
		return got.took
	}
	for range 20 {
		small()
	}
	var alone []time.Duration
	for range 100 {
		alone = append(alone, small())
	}

	p := watchPeak()
	for _, h := range heavies(end) {
		got, err := reader.ask(t.Context(), h.path, h.form...)
		t.Logf("%s %.100q: %d in %v, %s %s: %s", h.path, h.form, got.code, got.took.Round(time.Millisecond), unit.Bytes(float64(got.bytes)), got.ErrorType, got.Error)
		h.check(t, got, err, false)
	}
	ctx, stop := context.WithCancel(t.Context())
	var loaded []time.Duration
	var meanwhile, storm sync.WaitGroup
	meanwhile.Go(func() {
		for ctx.Err() == nil {
			loaded = append(loaded, small())
			if n := len(loaded); n%50 == 1 {
				sent, clock := aBatchOf(t, id.Node(), byte(10+n/50%200), "web")
				if r, err := offer(t, id, b, sent, clock); err != nil || r.Verdict != batch.Accepted {
					t.Errorf("batch under load: %+v, %v", r, err)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	var codes [600]atomic.Int32
	for _, h := range heavies(end) {
		for range 3 {
			storm.Go(func() {
				got, err := reader.ask(ctx, h.path, h.form...)
				h.check(t, got, err, true)
				codes[got.code].Add(1)
			})
		}
	}
	storm.Wait()
	stop()
	meanwhile.Wait()
	p.within(t, memory)
	t.Logf("concurrent answers: %d with 200, %d with 400, %d with 422, %d with 503", codes[200].Load(), codes[400].Load(), codes[422].Load(), codes[503].Load())
	queryLog, err := os.ReadFile(filepath.Join(state, "queries.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []queryClient{reader, other} {
		if n := strings.Count(string(queryLog), `"reader":"`+a.id+`","httpRequest":{"clientIP":"127.0.0.1"`); n < 20 || strings.Contains(string(queryLog), a.token) {
			t.Errorf("query log has %d lines of %s: %.500s", n, a.id, queryLog)
		}
	}
	slices.Sort(alone)
	slices.Sort(loaded)
	a, l := alone[len(alone)/2], loaded[len(loaded)/2]
	t.Logf("small query: p50 %v, p99 %v alone; p50 %v, p99 %v, max %v of %d under load", a, alone[len(alone)*99/100],
		l, loaded[len(loaded)*99/100], loaded[len(loaded)-1], len(loaded))
	if l > 40*a {
		t.Errorf("small query takes %v under load, %v alone", l, a)
	}
}

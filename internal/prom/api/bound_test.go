package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/store/tsdb"
)

// openTestAPI returns an API over series with ten samples each, a minute apart from time 1e9.
func openTestAPI(t *testing.T, cfg Config, series int, queryLog *Log, log *slog.Logger) *API {
	t.Helper()
	return openAPIOf(t, cfg, queryLog, log, func(add func(at int64, v float64, names ...string)) {
		for i := range series {
			for at := range int64(10) {
				add(1e12+at*60e3, float64(at*60), "__name__", "m", "workload", fmt.Sprintf("w%05d", i))
			}
		}
	})
}

// openAPIOf returns an API over the series of cluster a that fill adds.
func openAPIOf(t *testing.T, cfg Config, queryLog *Log, log *slog.Logger, fill func(add func(at int64, v float64, names ...string))) *API {
	t.Helper()
	mc := tsdb.Default()
	mc.Dir, mc.Retention = t.TempDir(), 100*365*24*time.Hour
	store, err := tsdb.Open(mc, nil, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	app := store.DB().Appender(t.Context())
	fill(func(at int64, v float64, names ...string) {
		if _, err := app.Append(0, labels.FromStrings(append(names, "cluster", "a")...), at, v); err != nil {
			t.Fatal(err)
		}
	})
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	a, err := New(cfg, store, nil, func(r *http.Request) (query.Scope, string, error) {
		return query.Scope{All: true}, "reader " + r.Header.Get("X-Reader"), nil
	}, queryLog, prometheus.NewRegistry(), "test", log)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func ask(a *API, path string, form ...string) *httptest.ResponseRecorder {
	v := url.Values{}
	for i := 0; i < len(form); i += 2 {
		v.Add(form[i], form[i+1])
	}
	r := httptest.NewRequest(http.MethodPost, "/api/v1/"+path, strings.NewReader(v.Encode()))
	if strings.HasPrefix(path, "label/") {
		r = httptest.NewRequest(http.MethodGet, "/api/v1/"+path+"?"+v.Encode(), http.NoBody)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("X-Reader", "one")
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	return w
}

// A request that exceeds a limit fails with an error in Prometheus's form that names the
// limit and the remedy; a request with its own limit gets that many.
func TestLimits(t *testing.T) {
	cfg := Default()
	cfg.Memory, cfg.Timeout = minMemory, time.Hour // no timeouts on a slow machine
	a := openTestAPI(t, cfg, 1000, nil, slog.New(slog.DiscardHandler))
	a.limits.maxValues, a.limits.answerBytes = 500, 100<<10
	a.limits.small.series, a.limits.large.series = 100, 800
	when := []string{"time", "1000000300"}
	for _, c := range []struct {
		path string
		form []string
		code int
		kind string
		text []string
	}{
		{"query", append(when, "query", `m{workload=~"w0000."}`), 200, "", nil},
		{"query", append(when, "query", `m{workload=~"w00[1-3].."}`), 200, "", nil}, // a large query
		{"query", append(when, "query", `m`), 422, "execution", []string{"more than 800 series", "--query-memory", "narrower selector"}},
		{"query", append(when, "query", `m{workload=~"w00[1-7].."}[10m]`), 422, "execution", []string{"are sent", "answer", "topk"}},
		{"query", append(when, "query", `m{workload=~"w00[1-7].."}[10m]`, "limit", "10"), 200, "", []string{"truncated"}},
		{"query", append(when, "query", `max_over_time(sum(m{workload=~"w0000."})[1m:4ms])`, "timeout", "1e-9"), 503, "timeout", []string{"timed out", "--query-timeout"}},
		{"query_range", []string{"query", "1", "start", "0", "end", "1000000", "step", "1"}, 400, "bad_data", []string{"11,000 points"}},
		{"series", []string{"match[]", `m{workload=~"w00[1-7].."}`}, 200, "", nil},
		{"series", []string{"match[]", `m`}, 422, "execution", []string{"more than 800 series"}},
		{"series", []string{"match[]", `m`, "limit", "700"}, 200, "", []string{"w00699"}},
		{"label/workload/values", nil, 422, "execution", []string{"more than 500", "match[]"}},
		{"label/workload/values", []string{"limit", "400"}, 200, "", []string{"w00399"}},
		{"label/workload/values", []string{"match[]", `m{workload=~"w00[1-3].."}`}, 200, "", []string{"w00399"}},
		{"labels", nil, 200, "", []string{"workload"}},
		{"query_exemplars", append(when, "query", "m"), 200, "", nil},
		{"query", []string{"query", strings.Repeat("(", maxQueryBytes/2) + "1" + strings.Repeat(")", maxQueryBytes/2)}, 400, "bad_data", []string{"query has 65537 bytes: at most 65536"}},
		{"format_query", []string{"query", "1" + strings.Repeat("+1", maxQueryBytes/2)}, 400, "bad_data", []string{"at most"}},
		{"format_query", []string{"query", strings.Repeat("(", maxQueryBytes/2-1) + "1" + strings.Repeat(")", maxQueryBytes/2-1)}, 400, "bad_data", []string{"1:2001", "more than 2000 operators"}},
		{"query", []string{"query", strings.Repeat("-", maxQueryBytes-1) + "m"}, 400, "bad_data", []string{"more than 2000 operators"}},
		{"query", []string{"query", "m" + strings.Repeat(" or m", maxQueryBytes/6)}, 400, "bad_data", []string{"more than 2000 operators"}},
		{"parse_query", []string{"query", strings.Repeat("abs(", 1000) + "m" + strings.Repeat(")", 1000)}, 400, "bad_data", []string{"1:2005: parse error: expressions are more than 500 levels deep"}},
		{"query", []string{"query", `m{a="` + strings.Repeat("(-", 3000) + `"}`}, 200, "", nil},
		{"format_query", []string{"query", strings.Repeat("(", maxDepth) + "1" + strings.Repeat(")", maxDepth)}, 200, "", nil},
		{"format_query", []string{"query", "m" + strings.Repeat(" + on (a) m", maxDepth)}, 200, "", nil},
		{"query", []string{"query", strings.Repeat("-", maxDepth) + "1"}, 200, "", nil},
		{"series", []string{"match[]", `{a="` + strings.Repeat("x", maxQueryBytes) + `"}`}, 400, "bad_data", []string{"match[]"}},
		{"query", append(when, "query", `max_over_time(m{workload="w00001"}[30d:5m])`), 200, "", []string{"w00001"}},
		{"query", append(when, "query", `max_over_time(m{workload="w00001"}[1h:])`), 200, "", []string{"w00001"}},
		{"query_range", []string{"query", `max_over_time(m{workload="w00001"}[1h:10s])`, "start", "1000000000", "end", "1000086400", "step", "60"}, 200, "", []string{"w00001"}},
		{"query_range", []string{"query", `max_over_time(m[1h:1s])`, "start", "1000000000", "end", "1001000000", "step", "3600"}, 400, "bad_data",
			[]string{"1:15", "subquery m[1h:1s] has 1003601 steps of 1s", "1000000 steps in all", "use a larger step"}},
		{"format_query", []string{"query", `max_over_time(m[100y:1ms])`}, 200, "", nil}, // not evaluated
		{"query", []string{"query", "sum(m"}, 400, "bad_data", []string{"1:6"}},
		{"query", []string{"query", "m +\n  rate(m)"}, 400, "bad_data", []string{"2:8"}},
	} {
		w := ask(a, c.path, c.form...)
		var got struct{ Status, ErrorType, Error string }
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Errorf("%s %.100q: %v: %.200s", c.path, c.form, err, w.Body)
			continue
		}
		if w.Code != c.code || got.ErrorType != c.kind {
			t.Errorf("%s %.100q: %d %s %.300s; want %d %s", c.path, c.form, w.Code, got.ErrorType, got.Error, c.code, c.kind)
		}
		for _, text := range c.text {
			if !strings.Contains(w.Body.String(), text) {
				t.Errorf("%s %.100q: answer %.300s does not contain %q", c.path, c.form, w.Body, text)
			}
		}
	}
	c := a.Counts()
	if c.Answered < 10 || c.Invalid < 8 || c.Refused < 4 || c.TimedOut != 1 || c.Large < 5 || c.Took <= 0 || c.Waiting != 0 {
		t.Errorf("%+v", c)
	}
	if a.small.Running() != 0 || a.large.Running() != 0 {
		t.Errorf("%d small and %d large turns are not released", a.small.Running(), a.large.Running())
	}
}

// A query that is refused for the steps of its subqueries allocates nothing for them; each
// of these queries would allocate 1.4 GB at once.
func TestSubqueries(t *testing.T) {
	a := openTestAPI(t, Default(), 1, nil, slog.New(slog.DiscardHandler))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, text := range []string{`max_over_time(nosuch[1d:1ms])`, `max_over_time(vector(1)[1d:1ms])`, `nosuch[1d:1ms]`, `sum(max_over_time(max_over_time(nosuch[1m:1ms])[1d:1m]))`} {
		for path, form := range map[string][]string{"query": {"time", "1000000300"}, "query_range": {"start", "1000000300", "end", "1000000400", "step", "10"}} {
			w := ask(a, path, append(form, "query", text)...)
			want := "subquery nosuch["
			switch {
			case path == "query_range" && strings.HasPrefix(text, "nosuch"):
				want = "range query" // not an instant vector
			case strings.Contains(text, "vector(1)"):
				want = "subquery vector(1)["
			}
			if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) {
				t.Errorf("%s %s: %d %s; want %s", path, text, w.Code, w.Body, want)
			}
		}
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 256<<20 {
		t.Errorf("refused queries allocated %d bytes", n)
	}
	_, err := Engine(Default(), nil, slog.New(slog.DiscardHandler)).NewInstantQuery(t.Context(), storage.QueryableFunc(func(int64, int64) (storage.Querier, error) { return storage.NoopQuerier(), nil }), nil, `max_over_time(nosuch[1d:1ms])`, time.Unix(1, 0))
	if err == nil || !strings.Contains(err.Error(), "subquery") {
		t.Errorf("a rule: %v", err)
	}
}

// A request without a turn fails after queueTimeout; one with a turn succeeds.
func TestQueueTimeout(t *testing.T) {
	cfg := Default()
	cfg.Timeout, cfg.Parallel = time.Hour, 1
	a := openTestAPI(t, cfg, 10, nil, slog.New(slog.DiscardHandler))
	a.limits.queueTimeout = 0 // do not wait for a turn
	if err := a.small.Acquire(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	w := ask(a, "query", "query", "1")
	if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), `"errorType":"timeout"`) || !strings.Contains(w.Body.String(), "no turn") || w.Header().Get("Retry-After") == "" {
		t.Errorf("without a turn: %d %s", w.Code, w.Body)
	}
	a.small.Release("other")
	if err := a.large.Acquire(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	a.limits.small.series = 1
	if w = ask(a, "query", "query", "m", "time", "1000000300"); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "no turn for a large query") {
		t.Errorf("without a turn for a large query: %d %s", w.Code, w.Body)
	}
	if w = ask(a, "series", "match[]", "m"); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "no turn for a large query") {
		t.Errorf("series without a turn for a large query: %d %s", w.Code, w.Body)
	}
	a.large.Release("other")
	a.limits.queueTimeout = time.Hour
	if w = ask(a, "query", "query", "count(m)", "time", "1000000300"); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"10"`) {
		t.Errorf("with a turn: %d %s", w.Code, w.Body)
	}
}

func TestLabelGrowth(t *testing.T) {
	for text, want := range map[string]string{
		`m`: "",
		`label_replace(m, "a", "$1-$2", "b", "(.)(.*)")`:                                                                   "",
		`label_replace(label_replace(m, "a", "$1$1$1$1$1$1$1$1", "b", "(.*)"), "a", "$1$1$1$1$1$1$1$1", "a", "(.*)")`:      "",
		`label_replace(label_replace(m, "a", "$1$1$1$1$1$1$1$1", "b", "(.*)"), "a", "$1$1$1$1$1$1$1$1$1", "a", "(.*)")`:    "1:1",
		`1 + sum(label_join(label_replace(m, "a", ("` + strings.Repeat("$1", 33) + `"), "b", "(.*)"), "a", "", "a", "a"))`: "1:9",
		`label_replace(m, "a", "` + strings.Repeat("x", 1025) + `", "b", "")`:                                              "1:1",
		`label_join(m, "a", "` + strings.Repeat("x", 1025) + `", "b")`:                                                     "1:1",
	} {
		n, err := parser.NewParser(parser.Options{}).ParseExpr(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkGrowth(n, text); (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want+": ") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// The query log has a line for each query with its reader and statistics; after a rotation
// the next line is in the new file. The server's log has the slow queries too.
func TestLog(t *testing.T) {
	began := time.Now().Truncate(time.Second)
	path := filepath.Join(t.TempDir(), "queries.log")
	var server bytes.Buffer
	log := slog.New(slog.NewTextHandler(&server, nil))
	queryLog, err := OpenLog(path, log)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Default()
	cfg.Slow, cfg.Timeout = time.Nanosecond, time.Hour
	a := openTestAPI(t, cfg, 10, queryLog, log)
	ask(a, "query_range", "query", "sum(m)", "start", "1000000000", "end", "1000000540", "step", "60")
	ask(a, "query", "query", "m[1m", "time", "1000000300") // not a query
	ask(a, "query", "query", "max_over_time(sum(m)[1m:1ms])", "time", "1000000300", "timeout", "1e-9")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	q, err := Engine(cfg, queryLog, log).NewInstantQuery(t.Context(), storage.QueryableFunc(func(int64, int64) (storage.Querier, error) { return storage.NoopQuerier(), nil }), nil, "1 + 1", time.Unix(1, 0)) // as a rule
	if err != nil {
		t.Fatal(err)
	}
	q.Exec(t.Context())
	type line struct {
		TS     time.Time
		Msg    string
		Params struct {
			Query, Start, End string
			Step              int
		}
		Error string
		Stats struct {
			Timings map[string]float64
			Samples map[string]float64
		}
		Reader      string
		HTTPRequest map[string]string
	}
	read := func(path string) (list []line) {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for text := range strings.Lines(string(b)) {
			var l line
			if err := json.Unmarshal([]byte(text), &l); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
			if l.TS.Before(began) || l.TS.After(time.Now()) || l.Msg != "promql query logged" {
				t.Errorf("%s", text)
			}
			list = append(list, l)
		}
		return list
	}
	list := read(path + ".1")
	if len(list) != 2 {
		t.Fatalf("%d lines, want 2: %+v", len(list), list)
	}
	l := list[0]
	if l.Params.Query != "sum(m)" || l.Params.Start != "2001-09-09T01:46:40.000Z" || l.Params.End != "2001-09-09T01:55:40.000Z" || l.Params.Step != 60 ||
		l.Error != "" || l.Stats.Timings["execTotalTime"] <= 0 || l.Stats.Samples["totalQueryableSamples"] != 100 || l.Reader != "reader one" ||
		l.HTTPRequest["clientIP"] != "192.0.2.1" || l.HTTPRequest["method"] != "POST" || l.HTTPRequest["path"] != "/api/v1/query_range" {
		t.Errorf("%+v", l)
	}
	if l := list[1]; !strings.HasPrefix(l.Params.Query, "max_over_time") || !strings.Contains(l.Error, "timed out") {
		t.Errorf("%+v", l)
	}
	if list = read(path); len(list) != 1 || list[0].Params.Query != "1 + 1" || list[0].Reader != "" {
		t.Errorf("after a rotation: %+v", list)
	}
	if text := server.String(); !strings.Contains(text, `msg="slow query" path=/api/v1/query_range query=sum(m)`) || !strings.Contains(text, `reader="reader one"`) {
		t.Errorf("server's log: %s", text)
	}
	if err := queryLog.Close(); err != nil {
		t.Error(err)
	}
	if _, err := OpenLog(filepath.Join(path, "below"), log); err == nil || fault.Hint(err) == "" {
		t.Errorf("below a file: %v", err)
	}
}

func TestConfig(t *testing.T) {
	for _, change := range []func(*Config){
		func(c *Config) { c.Memory = 1 }, func(c *Config) { c.Timeout = 0 }, func(c *Config) { c.Parallel = 0 }, func(c *Config) { c.Slow = -1 },
	} {
		c := Default()
		if change(&c); !errors.Is(c.Validate(), fault.ErrInvalid) {
			t.Errorf("%+v: %v", c, c.Validate())
		}
	}
	for _, memory := range []int64{minMemory, 1 << 30, 8 << 30} {
		c := Default()
		c.Memory = memory
		l := c.limits()
		if l.small.samples < 1000 || l.small.series < 1000 || l.large.samples < 2*l.small.samples || l.answerBytes < 1<<20 {
			t.Errorf("%+v", l)
		}
		if all := int64(l.large.slots) * (int64(l.large.samples)*sampleBytes + int64(l.large.series)*seriesBytes); all > memory {
			t.Errorf("large queries may take %d bytes of %d", all, memory)
		}
	}
}

package api

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/value"

	"mete.dev/mete/internal/model/query"
)

// scraped requests /federate with selectors.
func scraped(a *API, selectors ...string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	a.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/federate?"+url.Values{"match[]": selectors}.Encode(), nil))
	return w
}

// A scrape has the latest sample of each series with its time and type, of the caller's clusters.
func TestFederate(t *testing.T) {
	now := time.Now().UnixMilli()
	stale := math.Float64frombits(value.StaleNaN)
	a := openAPIOf(t, Default(), nil, slog.New(slog.DiscardHandler), func(add func(at int64, v float64, names ...string)) {
		for i, v := range []float64{1, 2, 3.5} {
			add(now-30e3+int64(i)*10e3, v, "__name__", "mete_workload_cpu_seconds_total", "workload", "a\"b\\c\nd")
		}
		add(now-20e3, 1, "__name__", "mete_workload_info", "workload", "x", "pod", "web-1")
		add(now-20e3, 1e18, "__name__", "app_requests")
		add(now-20e3, 1, "__name__", "app_ended")
		add(now-10e3, stale, "__name__", "app_ended")
		add(now-400e3, 1, "__name__", "app_old")
		add(now-20e3, 1, "__name__", "app.dots")
	})
	cluster := "a"
	a.identify = func(*http.Request) (query.Scope, string, error) {
		return query.Scope{Clusters: []string{cluster}}, "reader", nil
	}
	w := scraped(a, `{__name__=~"mete_workload_.*"}`, `{__name__=~"app.*"}`, `mete_workload_info`)
	var lines []string
	for line := range strings.Lines(w.Body.String()) {
		if !strings.HasPrefix(line, "# HELP ") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	want := fmt.Sprintf(`app_requests{cluster="a"} 1e+18 %[2]d
# TYPE mete_workload_cpu_seconds_total counter
mete_workload_cpu_seconds_total{cluster="a",workload="a\"b\\c\nd"} 3.5 %[1]d
# TYPE mete_workload_info gauge
mete_workload_info{cluster="a",pod="web-1",workload="x"} 1 %[2]d`, now-10e3, now-20e3)
	if got := strings.Join(lines, "\n"); w.Code != http.StatusOK || got != want || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Errorf("%d %v\n%s\nwant\n%s", w.Code, w.Header(), got, want)
	}
	if c := a.Counts(); c.Answered != 1 {
		t.Errorf("%+v", c)
	}
	cluster = "b"
	if w := scraped(a, `{__name__=~".+"}`); w.Code != http.StatusOK || w.Body.Len() > 0 {
		t.Errorf("a reader of another cluster: %d %s", w.Code, w.Body)
	}
	for what, selectors := range map[string][]string{
		"give one to 64 selectors": nil, "64 selectors": make([]string, 65), `invalid parameter "match[]"`: {"{"}, "match[] has": {strings.Repeat("x", maxQueryBytes+1)},
	} {
		if w := scraped(a, selectors...); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), strings.ReplaceAll(what, `"`, `\"`)) {
			t.Errorf("%.20q: %d %s, want %q", selectors, w.Code, w.Body, what)
		}
	}
	for _, method := range []string{http.MethodPost, http.MethodOptions, http.MethodHead, "TRACE"} {
		w := httptest.NewRecorder()
		if a.ServeHTTP(w, httptest.NewRequest(method, "/federate?match[]=up", nil)); w.Code != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d", method, w.Code)
		}
	}
}

// A scrape of more than a small query may read waits for a turn as a large one, and one of more than an answer may have
// is an error.
func TestFederateLarge(t *testing.T) {
	now := time.Now().UnixMilli()
	const series = 3000
	a := openAPIOf(t, Config{Memory: minMemory, Timeout: time.Minute, Parallel: 8, Lookback: 5 * time.Minute}, nil, slog.New(slog.DiscardHandler), func(add func(at int64, v float64, names ...string)) {
		for i := range series {
			add(now-1000, 1, "__name__", "m", "i", fmt.Sprint(i), "pad", strings.Repeat("x", 100))
		}
	})
	a.limits.small.series = series / 2
	w := scraped(a, "m")
	if n := strings.Count(w.Body.String(), "\n"); w.Code != http.StatusOK || n != series || a.Counts().Large != 1 {
		t.Errorf("%d, %d samples, %+v", w.Code, n, a.Counts())
	}
	a.limits.answerBytes = 100_000
	if w := scraped(a, "m"); w.Code != http.StatusUnprocessableEntity || !strings.Contains(w.Body.String(), "use narrower") && !strings.Contains(w.Body.String(), "use a narrower") {
		t.Errorf("with a small limit: %d %.200s", w.Code, w.Body)
	}
	a.limits.answerBytes = 1 << 30
	a.limits.large.series = series / 2
	if w := scraped(a, "m"); w.Code != http.StatusUnprocessableEntity || !strings.Contains(w.Body.String(), "more than 1500 series") {
		t.Errorf("with few series: %d %.200s", w.Code, w.Body)
	}
	a.limits.large.series, a.limits.Timeout = 1<<30, time.Nanosecond
	if w := scraped(a, "m"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("without time: %d %.200s", w.Code, w.Body)
	}
	a.limits.Timeout = time.Minute
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	w = httptest.NewRecorder()
	if a.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/federate?match[]=m", nil).WithContext(gone)); w.Code/100 == 2 {
		t.Errorf("of a client that has gone away: %d", w.Code)
	}
}

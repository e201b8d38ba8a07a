package main

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/testkit/prometheus"
)

// aligned reports whether at a time both know the same latest window of each agent: the latest
// scrape showed it, and the server has no newer sample at the edge of a minute.
func (b *both) aligned(at int64) bool {
	for _, n := range b.nodes {
		w := n.window(at)
		i, _ := slices.BinarySearch(n.scrapes, at+1)
		if w < 0 || i == 0 || n.showed[i-1] != w || at/60_000 != n.windows[w]/60_000 {
			return false
		}
	}
	return true
}

// before returns n aligned instants before a time, far apart, for which the instants half a minute
// earlier are aligned too.
func (b *both) before(end time.Time, n int) (list []int64) {
	b.t.Helper()
	for at := end.UnixMilli(); len(list) < n && at > end.Add(-40*time.Second).UnixMilli(); at -= 50 {
		if b.aligned(at) && b.aligned(at-30_000) {
			list = append(list, at)
			at -= 7000
		}
	}
	if len(list) < n {
		b.t.Fatalf("%d moments at which both know the same windows, want %d: %v", len(list), n, b.nodes)
	}
	return list
}

// alive returns a matcher of the workloads with data at the server at all of the times.
func (b *both) alive(selector string, times ...int64) string {
	b.t.Helper()
	n := map[string]int{}
	for i, at := range times {
		for _, one := range b.ask(b.mete, selector, at) {
			if id := one.Metric[metric.Workload]; id != metric.ShortLived && n[id] == i {
				n[id]++
			}
		}
	}
	var ids []string
	for id, k := range n {
		if k == len(times) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		b.t.Fatalf("nothing of %s at %v", selector, times)
	}
	slices.Sort(ids)
	return metric.Workload + `=~"` + strings.Join(ids, "|") + `"`
}

const (
	ofWorkloads = `{__name__=~"mete_workload_.+_total"}`
	// ofBusy selects workloads with use in each window of at least the last minute.
	ofBusy = "count_over_time(mete_workload_memory_byte_seconds_total[70s]) >= on (cluster, node) group_left () count_over_time(mete_node_cpus[70s])"
	ofJobs = metric.Info + `{kind="job",name=~"steady|pulse|hold|late"}`
)

// lines returns the queries of a list.
func lines(text string) []string { return strings.Split(strings.TrimSpace(text), "\n") }

// moments compares instant queries.
func (b *both) moments(loaded time.Time) {
	b.t.Helper()
	times := b.before(loaded, 3)
	b.queries += len(lines(scrapedMoments))
	for _, at := range times {
		with := strings.NewReplacer("IN", b.alive(ofWorkloads, at), "JOB", b.alive(ofJobs, at), "THEN", stamp(times[len(times)-1]))
		for _, q := range lines(scrapedMoments) {
			q = with.Replace(q)
			b.compareEqual(q, b.ask(b.mete, q, at), b.ask(b.stock, q, at))
		}
	}
}

// atRest compares idle workloads at any instant: sleeping jobs use no CPU time and get no energy
// for it.
func (b *both) atRest(now time.Time) {
	b.t.Helper()
	at, jobs := now.UnixMilli(), b.alive(ofJobs, now.UnixMilli())
	for _, m := range []string{"mete_workload_cpu_seconds_total{%s}", `mete_workload_energy_joules_total{%s,domain!="dram"}`} {
		q := fmt.Sprintf(m, jobs)
		b.queries++
		got := b.ask(b.mete, q, at)
		if len(got) < 4 {
			b.t.Errorf("%s: %d series, want 4 jobs: %v", q, len(got), got)
		}
		b.compareEqual(q, got, b.ask(b.stock, q, at))
		was := b.ask(b.mete, q, at-scrapedWindow.Milliseconds())
		if diff := differ(values(was), values(got), 0); diff != "" {
			b.t.Errorf("%s is not at rest: %s", q, diff)
		}
	}
}

// compareEqual compares two answers.
func (b *both) compareEqual(query string, mete, stock []prometheus.Series) {
	b.t.Helper()
	b.asked++
	got, want := values(mete), values(stock)
	if differ(got, want, 0) == "" {
		b.equal++
		return
	}
	b.rounded++
	if ranks(query) { // the order of equal values may differ
		got, want = ranked(got), ranked(want)
	}
	if diff := differ(got, want, 1e-11); diff != "" {
		b.t.Errorf("%s: %s", shortenQuery(query), diff)
	}
}

// shortenQuery returns a query without its lists of workloads.
func shortenQuery(query string) string {
	return regexp.MustCompile(metric.Workload+`=~"[^"]*"`).ReplaceAllString(query, "...")
}

// values returns the values of an answer by series.
func values(list []prometheus.Series) map[string]float64 {
	all := map[string]float64{}
	for _, one := range list {
		k := keyOf(one.Metric)
		for all[k] != 0 {
			k += " again"
		}
		all[k] = number(one.Value).v
	}
	return all
}

// differ describes the first difference of two answers above a relative tolerance.
func differ(got, want map[string]float64, part float64) string {
	for k, v := range got {
		w, ok := want[k]
		if !ok {
			return fmt.Sprintf("%s is %v, and Prometheus has none of it", k, v)
		}
		if v != w && !(math.IsNaN(v) && math.IsNaN(w)) && !(math.Abs(v-w) <= part*max(math.Abs(v), math.Abs(w))) {
			return fmt.Sprintf("%s is %v; Prometheus: %v", k, v, w)
		}
	}
	for k, w := range want {
		if _, ok := got[k]; !ok {
			return fmt.Sprintf("%s is absent; Prometheus: %v", k, w)
		}
	}
	return ""
}

// spans compares range queries.
func (b *both) spans(loaded time.Time) {
	b.t.Helper()
	b.queries += len(lines(scrapedSpans))
	for _, at := range b.before(loaded, 2) {
		old := b.alive(ofBusy, at)
		for _, q := range lines(scrapedSpans) {
			b.checkBounds(strings.ReplaceAll(q, "OLD", old), at)
		}
	}
}

// checkBounds compares the answers about a span.
func (b *both) checkBounds(query string, at int64) {
	b.t.Helper()
	b.asked++
	plain := spanned.ReplaceAllStringFunc(query, func(s string) string { return strings.TrimPrefix(s, "~") })
	ask := func(c prometheus.Client, q string) []prometheus.Series { return b.ask(c, q, at) }
	sides := []struct {
		name string
		got  map[string]float64
		// step is how far apart samples are.
		step time.Duration
	}{{"the server", values(ask(b.mete, plain)), scrapedWindow}, {"Prometheus", values(ask(b.stock, plain)), scrapedEvery}}
	mete, stock := sides[0].got, sides[1].got
	if len(mete) == 0 {
		b.t.Errorf("%s: nothing", shortenQuery(query))
	}
	ranks := ranks(query) // the order may differ
	for k, v := range stock {
		// The server has one sample per minute of an idle workload: too few for a rate. A rate of
		// it is zero, and a quotient by it is NaN.
		if _, ok := mete[k]; !ok && (v == 0 || math.IsNaN(v)) && !ranks {
			delete(stock, k)
		}
	}
	if !ranks {
		if diff := differ(mete, stock, math.Inf(1)); diff != "" {
			b.t.Errorf("%s: %s", shortenQuery(query), diff)
			return
		}
	} else if len(mete) != len(stock) {
		b.t.Errorf("%s: %d series; Prometheus: %d", shortenQuery(query), len(mete), len(stock))
		return
	}
	for _, side := range sides {
		low, high := values(ask(b.mete, bracket(query, false, side.step))), values(ask(b.mete, bracket(query, true, side.step)))
		got := side.got
		if ranks {
			got, low, high = ranked(got), ranked(low), ranked(high)
		}
		for k, v := range got {
			l, ok := low[k]
			h, ok2 := high[k]
			if !ok || !ok2 || v < l-1e-9*math.Abs(l) || v > h+1e-9*math.Abs(h) {
				b.t.Errorf("%s: %s is %v for %s, and between %v and %v are possible", shortenQuery(query), k, v, side.name, l, h)
			}
		}
	}
	b.bound++
	if ranks {
		mete, stock = ranked(mete), ranked(stock)
	}
	for k, v := range mete {
		if w := stock[k]; (v != 0 || w != 0) && !math.IsNaN(v) && !math.IsNaN(w) && !math.IsInf(v, 0) && !math.IsInf(w, 0) {
			b.off = append(b.off, math.Abs(v-w)/max(math.Abs(v), math.Abs(w)))
		}
	}
}

// ranks reports whether a query selects by rank.
func ranks(query string) bool {
	return strings.Contains(query, "topk") || strings.Contains(query, "bottomk")
}

// ranked returns values by rank.
func ranked(all map[string]float64) map[string]float64 {
	var list []float64
	for _, v := range all {
		list = append(list, v)
	}
	slices.Sort(list)
	out := map[string]float64{}
	for i, v := range list {
		out[fmt.Sprint(i)] = v
	}
	return out
}

var spanned = regexp.MustCompile(`(~?)(rate|increase|delta)\((\w+\{[^}]*\})\[(\d+)s\](?: offset (\d+)s)?\)`)

// bracket replaces the rates of a query by their minimum or maximum, for samples at intervals of
// step.
//
// A sample at a time shows at least the use until step plus a window earlier, and at most the use
// until then. A rate is the slope between the first and the last sample of the range, which are up
// to two steps closer than the length of the range, and is extrapolated on each side by less than
// the missing time.
func bracket(query string, most bool, step time.Duration) string {
	const slack = time.Second // scrapes and windows that are late
	return spanned.ReplaceAllStringFunc(query, func(text string) string {
		m := spanned.FindStringSubmatch(text)
		var length, back int64
		_, _ = fmt.Sscan(m[4], &length) // guaranteed by the expression
		_, _ = fmt.Sscan(m[5], &back)   // 0 if there is none
		of := func(ago time.Duration) string {
			return fmt.Sprintf("last_over_time(%s[2m] offset %dms)", m[3], ago.Milliseconds())
		}
		span, late := time.Duration(length)*time.Second, time.Duration(back)*time.Second
		// A series that started within the range started at 0, possibly just now.
		end := of(late + scrapedWindow + step + slack)
		used, over := fmt.Sprintf("clamp_min(%[1]s - (%[2]s or %[1]s), 0)", end, of(late+span-scrapedWindow-step-slack)), span
		if most != (m[1] == "~") {
			used, over = fmt.Sprintf("(%[1]s - (%[2]s or 0 * %[1]s))", of(late), of(late+span+scrapedWindow+slack)), span-2*step-slack
		}
		scale := 1.0
		if m[2] != "rate" {
			scale = span.Seconds()
		}
		return fmt.Sprintf("(%s * %v / %v)", used, scale, over.Seconds())
	})
}

// counted logs the number of comparisons and fails if there were too few.
func (b *both) counted() {
	b.t.Helper()
	slices.Sort(b.off)
	sum := 0.0
	for _, v := range b.off {
		sum += v
	}
	n := len(b.off)
	if n == 0 {
		b.t.Fatal("no rates")
	}
	b.t.Logf("%d questions asked %d times: %d answers equal in every digit, %d but for rounding, %d about spans within bounds: %d values, off by %.1f %% on average, half of them by less than %.2f %%",
		b.queries, b.asked, b.equal, b.rounded, b.bound, n, 100*sum/float64(n), 100*b.off[n/2])
	if b.queries < 100 || b.equal+b.rounded+b.bound != b.asked {
		b.t.Errorf("%d questions, want 100; %d of %d answers compared", b.queries, b.equal+b.rounded+b.bound, b.asked)
	}
}

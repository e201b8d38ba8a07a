package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/testkit/prometheus"
)

// shownWithin is the maximum delay between the end of a window and its metrics.
const shownWithin = time.Second

// both compares a server with a Prometheus by the same queries.
type both struct {
	t           *testing.T
	mete, stock prometheus.Client
	nodes       map[string]*scraped1

	queries                      int // distinct ones
	asked, equal, rounded, bound int
	off                          []float64 // relative differences of answers about spans
}

// scraped1 holds the sorted times of an agent's windows and scrapes, in ms since 1970, and the
// number of the window that each scrape showed; -1 is none.
type scraped1 struct {
	windows, scrapes []int64
	showed           []int
}

// window returns the number of the latest window that ended by a time.
func (n *scraped1) window(at int64) int {
	return sort.Search(len(n.windows), func(i int) bool { return n.windows[i] > at }) - 1
}

// A point is a stored sample: time in ms since 1970, and value.
type point struct {
	at int64
	v  float64
}

// number parses a sample of an answer.
func number(v [2]any) point {
	at, _ := v[0].(float64)
	s, _ := v[1].(string)
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		panic(err) // guaranteed by the format
	}
	return point{int64(math.Round(at * 1e3)), f}
}

// own are the labels that only one of both has.
var own = []string{"job", "instance", "path", "energy", "user", "project", "namespace", "pod", "container"}

// keyOf returns the common name of a series.
func keyOf(metric map[string]string) string {
	m := maps.Clone(metric)
	for _, l := range own {
		delete(m, l)
	}
	b, err := json.Marshal(m) // sorts the keys
	if err != nil {
		panic(err) // decoded from JSON
	}
	return string(b)
}

func stamp(at int64) string { return strconv.FormatFloat(float64(at)/1e3, 'f', 3, 64) }

// ask queries one of both at an instant; a scalar is a series without labels.
func (b *both) ask(c prometheus.Client, query string, at int64) []prometheus.Series {
	b.t.Helper()
	a, err := c.Ask("query", "query", query, "time", stamp(at))
	if err == nil && a.Status != "success" {
		err = fmt.Errorf("%s: %s", a.ErrorType, a.Error)
	}
	if err != nil {
		b.t.Fatalf("%s at %s: %v", query, stamp(at), err)
	}
	var data struct {
		ResultType string
		Result     json.RawMessage
	}
	if err := json.Unmarshal(a.Data, &data); err != nil {
		b.t.Fatal(err)
	}
	var list []prometheus.Series
	if data.ResultType == "scalar" {
		list = make([]prometheus.Series, 1)
		err = json.Unmarshal(data.Result, &list[0].Value)
	} else {
		err = json.Unmarshal(data.Result, &list)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return list
}

// storedSamples returns the samples of series of the last minutes that one of both stores.
func (b *both) storedSamples(c prometheus.Client, selector string) map[string][]point {
	b.t.Helper()
	all := map[string][]point{}
	for _, one := range b.ask(c, selector+"[4m]", time.Now().UnixMilli()) {
		k := keyOf(one.Metric)
		for _, v := range one.Values {
			all[k] = append(all[k], number(v))
		}
		// Info has several series if a name came late.
		slices.SortStableFunc(all[k], func(x, y point) int { return cmp.Compare(x.at, y.at) })
	}
	return all
}

// learn finds the times of windows and scrapes.
func (b *both) learn() {
	b.t.Helper()
	b.nodes = map[string]*scraped1{}
	now := time.Now().UnixMilli()
	for _, one := range b.ask(b.mete, metric.CPUs+"[4m]", now) {
		n := &scraped1{}
		b.nodes[one.Metric[metric.Node]] = n
		for _, v := range one.Values {
			n.windows = append(n.windows, number(v).at)
		}
	}
	instances := map[string]string{}
	for _, one := range b.ask(b.stock, metric.Info+`{kind="idle"}`, now) {
		instances[one.Metric["instance"]] = one.Metric[metric.Node]
	}
	took := map[string][]int64{} // duration of each scrape, in ms
	for _, one := range b.ask(b.stock, "scrape_duration_seconds[4m]", now) {
		node := instances[one.Metric["instance"]]
		n := b.nodes[node]
		if n == nil {
			b.t.Fatalf("%v is none of %v, of which the server has %v", one.Metric, instances, slices.Collect(maps.Keys(b.nodes)))
		}
		for _, v := range one.Values {
			p := number(v)
			n.scrapes, took[node] = append(n.scrapes, p.at), append(took[node], int64(p.v*1e3)+1)
		}
	}
	// The integral of free memory always grows: it identifies the window of a scrape.
	const free = metric.Workload + `=~"%s"`
	idle := map[string]string{}
	for _, one := range b.ask(b.stock, metric.Info+`{kind="idle"}`, now) {
		idle[one.Metric[metric.Node]] = fmt.Sprintf("mete_workload_memory_byte_seconds_total{"+free+"}[4m]", one.Metric[metric.Workload])
	}
	for name, n := range b.nodes {
		window := map[float64]int{}
		for _, one := range b.ask(b.mete, idle[name], now) {
			for _, v := range one.Values {
				if w, ok := slices.BinarySearch(n.windows, number(v).at); ok {
					window[number(v).v] = w
				}
			}
		}
		n.showed = slices.Repeat([]int{-1}, len(n.scrapes))
		for _, one := range b.ask(b.stock, idle[name], now) {
			for _, v := range one.Values {
				p := number(v)
				i, ok := slices.BinarySearch(n.scrapes, p.at)
				w, known := window[p.v]
				if !ok || !known && p.at > n.windows[len(n.windows)-1] {
					continue // it came meanwhile
				}
				if !known || w < n.window(p.at-shownWithin.Milliseconds()) || w > n.window(p.at+took[name][i]) {
					b.t.Errorf("%s: the scrape at %d took %d ms and showed window %d of %d, which is none or not the latest", name, p.at, took[name][i], w, n.window(p.at))
				}
				n.showed[i] = w
			}
		}
	}
	if len(b.nodes) != 2 {
		b.t.Fatalf("%d agents, want 2", len(b.nodes))
	}
	for name, n := range b.nodes {
		if len(n.windows) < 30 || len(n.scrapes) < 150 {
			b.t.Fatalf("%s: %d windows and %d scrapes, want more", name, len(n.windows), len(n.scrapes))
		}
	}
}

// samples compares every scraped sample with those of the server.
func (b *both) samples() {
	b.t.Helper()
	const all = `{__name__=~"mete_workload_.+_total"}`
	ours, theirs := b.storedSamples(b.mete, all), b.storedSamples(b.stock, all)
	n, same, brief, unused, lost := 0, 0, map[string]float64{}, 0, 0
	of := map[string][]string{} // the workloads of each sum
	for key, list := range theirs {
		var m map[string]string
		if err := json.Unmarshal([]byte(key), &m); err != nil {
			b.t.Fatal(err)
		}
		at := b.nodes[m[metric.Node]]
		have := atWindows(ours[key], at.windows)
		if len(have) == 0 {
			last := list[len(list)-1].v
			switch {
			case slices.ContainsFunc(list, func(p point) bool { return p.v != 0 && p.v != last }):
				b.t.Errorf("%s is scraped, and the server has none: %v", key, list)
			case last == 0:
				unused++
			default:
				id := m[metric.Workload]
				m[metric.Workload] = metric.ShortLived
				of[keyOf(m)] = append(of[keyOf(m)], fmt.Sprint(id, " ", last))
				brief[keyOf(m)] += last
				lost++
			}
			continue
		}
		for _, p := range list {
			i, ok := slices.BinarySearch(at.scrapes, p.at)
			if i == len(at.scrapes) || ok && at.showed[i] < 0 && p.at > at.windows[len(at.windows)-1] {
				break // it came meanwhile
			}
			if !ok {
				b.t.Fatalf("%s: a sample at %d, where nothing was scraped", key, p.at)
			}
			n++
			end := at.windows[max(0, at.showed[i])]
			if v := upTo(have, end); v == p.v {
				same++
			} else if n-same < 10 {
				b.t.Errorf("%s: %v was scraped at %d, of the window that ended at %d; the server has %v then, and %v", key, p.v, p.at, end, v, around(have, p.at))
			}
		}
	}
	for key, v := range brief {
		if p := ours[key]; len(p) == 0 || math.Abs(p[len(p)-1].v-v) > 1e-9*max(1, v) {
			// The scrape shows the last of several lives of a group with the same path.
			b.t.Errorf("%s: %v, and what ended in its first window used %v: %v; did another test start a group again?", key, p, v, of[key])
		}
	}
	shown := map[string]bool{}
	for key := range theirs {
		shown[familyOf(key)] = true
	}
	for key, list := range ours {
		if len(theirs[key]) == 0 && shown[familyOf(key)] && !strings.Contains(key, `"`+metric.ShortLived+`"`) {
			b.t.Errorf("%s is of the server alone: %v", key, list)
		}
	}
	if n < 1000 || same != n || lost == 0 {
		b.t.Errorf("%d of %d samples as the server has them; %d series of what lived for less than a window", same, n, lost)
	}
	b.t.Logf("%d samples of %d series were scraped, each as the server has it; %d of these series are of what used nothing, %d of what lived for less than a window", n, len(theirs), unused, lost)
}

// familyOf returns the name and the domain of a series.
func familyOf(key string) string {
	var m map[string]string
	if err := json.Unmarshal([]byte(key), &m); err != nil {
		panic(err) // encoded here
	}
	return m["__name__"] + " " + m[metric.Domain]
}

// atWindows returns the samples at the ends of windows, and the zero before the start of a series.
func atWindows(list []point, windows []int64) (out []point) {
	for i, p := range list {
		if _, ok := slices.BinarySearch(windows, p.at); ok || i == 0 {
			out = append(out, p)
		}
	}
	return out
}

// upTo returns the latest value at a time; zero if nothing was used yet.
func upTo(list []point, at int64) (v float64) {
	for _, p := range list {
		if p.at > at {
			break
		}
		v = p.v
	}
	return v
}

// around returns the samples next to a time.
func around(list []point, at int64) []point {
	i := sort.Search(len(list), func(i int) bool { return list[i].at > at })
	return list[max(0, i-2):min(len(list), i+2)]
}

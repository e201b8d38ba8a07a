package web_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/fleet"
	"mete.dev/mete/internal/testkit/hosttest"
)

// A book asks the ledger itself, and keeps its answers: the same times are in several charts.
type book struct {
	t    *testing.T
	l    *ledger.Ledger
	kept map[string]*query.Answer
}

func newBook(t *testing.T, l *ledger.Ledger) *book {
	return &book{t, l, map[string]*query.Answer{}}
}

// usage sums a time that begins and ends at any second: minutes count as a whole.
func (b *book) usage(from, to float64, where map[query.Dimension][]string, by ...query.Dimension) *query.Answer {
	b.t.Helper()
	key := fmt.Sprint(from, to, where, by)
	if a, ok := b.kept[key]; ok {
		return a
	}
	at := func(s float64) time.Time { return time.UnixMilli(int64(math.Round(s * 1000))) }
	a, err := b.l.Usage(b.t.Context(), query.Query{From: at(from), To: at(to), By: by, Where: where, Scope: query.Scope{All: true}})
	if err != nil {
		b.t.Fatal(err)
	}
	b.kept[key] = a
	return a
}

// amount is the sum of resources over the groups that match, in base units; nil if all are absent.
func amount(a *query.Answer, matches func(keys []string) bool, resources ...usage.Resource) *float64 {
	var sum *float64
	for i := range a.Groups {
		g := &a.Groups[i]
		if !matches(g.Keys) {
			continue
		}
		for _, r := range resources {
			if !g.Usage.Present.Has(r) {
				continue
			}
			sum = cmp.Or(sum, new(float64))
			if v := g.Usage.Sum[r].Float(unit.Count) * baseUnit(r); r.Detail().Kind == usage.Peak {
				*sum = max(*sum, v)
			} else {
				*sum += v
			}
		}
	}
	return sum
}

// baseUnit is the unit of a resource's amounts in base units.
func baseUnit(r usage.Resource) float64 {
	return 1 / r.Detail().Unit.One()
}

var energies = usage.Energies[:]

func residual(kind string) bool { return kind == "idle" || kind == "system" }

// checkBars compares each bar of a series, multiplied by the time of which it is the average, with the ledger's
// sum over the bar.
func (b *book) checkBars(where string, p *plot, s *plotSeries, want func(bar plotBar) *float64) (area float64) {
	b.t.Helper()
	top := 0.0
	for _, v := range s.Values {
		if v != nil {
			top = max(top, math.Abs(*v))
		}
	}
	wrong := 0
	for i, bar := range p.Bars {
		exact, got := want(bar), s.Values[i]
		length := bar.seconds()
		switch {
		case got == nil && (exact == nil || *exact == 0):
			continue
		case got == nil, exact == nil && *got > 1e-9*top, exact != nil && math.Abs(*got*length-*exact) > 1e-6*(math.Abs(*exact)+top*length):
			if wrong++; wrong <= 3 {
				b.t.Errorf("%s, %s, %s: bar %d of %d, %s to %s, shows %s, the ledger has %s", where, p.Title, s.Name, i, len(p.Bars), clock(bar.From), clock(bar.To), show(scaled(got, length)), show(exact))
			}
		}
		if got != nil {
			area += *got * length
		}
	}
	if wrong > 3 {
		b.t.Errorf("%s, %s, %s: %d wrong bars in all", where, p.Title, s.Name, wrong)
	}
	if len(s.Hidden) > 0 {
		b.t.Errorf("%s, %s, %s: of %d bars, these have a value and are not drawn: %v", where, p.Title, s.Name, len(p.Bars), s.Hidden)
	}
	return area
}

func clock(s float64) string { return time.UnixMilli(int64(s * 1000)).UTC().Format("02 15:04:05") }

func scaled(v *float64, by float64) *float64 {
	if v == nil {
		return nil
	}
	n := *v * by
	return &n
}

func show(v *float64) string {
	if v == nil {
		return "nothing"
	}
	return fmt.Sprint(*v)
}

// A stackResource is the chart of a resource on Overview and Node.
type stackResource struct {
	title     string
	resources []usage.Resource
}

var stackResources = []stackResource{{"CPU", []usage.Resource{usage.CPU}}, {"Memory", []usage.Resource{usage.Memory}}, {"Power", energies}}

// checkStacks compares the charts that stack the use of machines with the ledger: each group in each
// bar, the others, system and idle; and all areas with the whole.
func (b *book) checkStacks(where string, list []plot, by query.Dimension, from, to float64, filter map[query.Dimension][]string) {
	b.t.Helper()
	for _, r := range stackResources {
		p := find(list, r.title)
		if p == nil {
			if amount(b.usage(from+400, to, filter, query.ByKind), func([]string) bool { return true }, r.resources...) != nil {
				b.t.Errorf("%s: no chart of %s", where, r.title)
			}
			continue
		}
		for i := range p.Bars {
			p.Bars[i].measured = b.onlyCovered(p.Bars[i], filter)
		}
		named := p.names()
		for i := range p.Series {
			s := &p.Series[i]
			sum := func(matches func(name, kind string) bool) func(plotBar) *float64 {
				return func(bar plotBar) *float64 {
					return amount(b.usage(bar.From, bar.To, filter, by, query.ByKind), func(k []string) bool { return matches(k[0], k[1]) }, r.resources...)
				}
			}
			switch {
			case s.Name == "system" || s.Name == "idle":
				b.checkBars(where, p, s, sum(func(_, kind string) bool { return kind == s.Name }))
			case s.Name == "most" || s.Name == "least":
				b.checkBars(where, p, s, b.band(s.Name, r, filter, named))
			case s.Name == "capacity":
				b.checkBars(where, p, s, func(bar plotBar) *float64 {
					a := b.usage(bar.From, bar.To, filter, by, query.ByKind)
					return amount(&query.Answer{Groups: []query.Group{{Usage: a.Capacity}}}, func([]string) bool { return true }, r.resources...)
				})
			case s.Name == "workloads":
				b.checkBars(where, p, s, sum(func(_, kind string) bool { return !residual(kind) }))
			case strings.HasPrefix(s.Name, "other "):
				b.checkBars(where, p, s, sum(func(name, kind string) bool {
					return !residual(kind) && !slices.Contains(named, cmp.Or(name, "(none)"))
				}))
			default:
				b.checkBars(where, p, s, sum(func(name, kind string) bool { return !residual(kind) && cmp.Or(name, "(none)") == s.Name }))
			}
		}
		b.checkCover(where, p, filter, r.resources, slices.Contains(named, "idle"))
	}
}

// band is an edge of the possible error of a power chart.
func (b *book) band(edge string, r stackResource, filter map[query.Dimension][]string, named []string) func(plotBar) *float64 {
	return func(bar plotBar) *float64 {
		drawn := func(k []string) bool { return k[1] != "idle" || slices.Contains(named, "idle") }
		a := b.usage(bar.From, bar.To, filter, query.ByKind, query.ByKind)
		v, off := amount(a, drawn, r.resources...), amount(a, drawn, usage.EnergyError)
		if v == nil || off == nil {
			return nil
		}
		n := *v + *off
		if edge == "least" {
			n = max(0, *v-*off)
		}
		return &n
	}
}

// onlyCovered is for how long the only machine of a bar was measured, in seconds; 0 if there are others.
func (b *book) onlyCovered(bar plotBar, filter map[query.Dimension][]string) float64 {
	for _, g := range b.usage(bar.From, bar.To, filter, query.ByKind).Groups {
		if g.Keys[0] == "idle" && g.Nodes == 1 {
			return g.Usage.Covered.Float(unit.Nanosecond)
		}
	}
	return 0
}

// checkCover compares the sum of all bars with the ledger's over the whole time of the chart, and
// finds data outside of it: bars that are missing.
func (b *book) checkCover(where string, p *plot, filter map[query.Dimension][]string, resources []usage.Resource, idle bool) {
	b.t.Helper()
	if len(p.Bars) == 0 {
		b.t.Errorf("%s, %s: no bars", where, p.Title)
		return
	}
	area := 0.0
	for i := range p.Series {
		for j, v := range p.Series[i].Values {
			if v != nil && !p.Series[i].Over {
				area += *v * p.Bars[j].seconds()
			}
		}
	}
	wanted := func(k []string) bool { return idle || k[0] != "idle" }
	first, last := p.Bars[0].From, p.Bars[len(p.Bars)-1].To
	if exact := amount(b.usage(first, last, filter, query.ByKind), wanted, resources...); exact != nil && math.Abs(area-*exact) > 1e-6**exact {
		b.t.Errorf("%s, %s: all bars together show %v, the ledger has %v from %s to %s", where, p.Title, area, *exact, clock(first), clock(last))
	}
	for i := 1; i < len(p.Bars); i++ {
		// A bar ends within its last minute, as it does before an outage, and begins within its first minute.
		end, next := p.Bars[i-1].To, p.Bars[i].From
		last, first := math.Ceil(end/60)*60, math.Floor(next/60)*60
		if next < end || first > last && amount(b.usage(last, first, filter, query.ByKind), wanted, resources...) != nil {
			b.t.Errorf("%s, %s: nothing between %s and %s", where, p.Title, clock(end), clock(next))
		}
	}
}

// jobLines are the figures of the lines of a job's charts.
var jobLines = map[string]map[string][]usage.Resource{
	"CPU":      {"user": {usage.CPUUser}, "system": {usage.CPUSystem}, "used": {usage.CPU}, "throttled": {usage.CPUThrottled}},
	"Memory":   {"anonymous": {usage.MemoryAnon}, "page cache": {usage.MemoryFile}, "charged": {usage.Memory}, "largest peak of a workload": {usage.MemoryPeak}},
	"Power":    {"CPU packages": {usage.EnergyPackage}, "memory": {usage.EnergyDRAM}, "accelerators": {usage.EnergyGPU}, "job's share": {usage.EnergyRest}},
	"Disk":     {"read": {usage.DiskRead}, "written": {usage.DiskWritten}},
	"Network":  {"received": {usage.NetworkRx}, "sent": {usage.NetworkTx}},
	"Pressure": {"CPU": {usage.PressureCPU}, "memory": {usage.PressureMemory}, "I/O": {usage.PressureIO}},
	"Tasks":    {"tasks": {usage.PIDs}},
}

// jobSplit are the figures by which a job's charts are divided by node.
var jobSplit = map[string][]usage.Resource{"CPU": {usage.CPU}, "Memory": {usage.Memory}, "Power": energies}

// checkJob compares the charts of a job with the ledger.
func (b *book) checkJob(where string, list []plot, job string, from, to float64, split bool) {
	b.t.Helper()
	filter := map[query.Dimension][]string{query.ByJob: {job}}
	every := func([]string) bool { return true }
	all := b.usage(from+400, to, filter, query.ByJob)
	for _, title := range slices.Sorted(maps.Keys(jobLines)) {
		lines, p := jobLines[title], find(list, title)
		if p == nil {
			for name, r := range lines {
				if amount(all, every, r...) != nil {
					b.t.Errorf("%s: no chart of %s, and the ledger has %s", where, title, name)
				}
			}
			continue
		}
		for i := range p.Series {
			s := &p.Series[i]
			if by, ok := jobSplit[title]; ok && split {
				named := p.names()
				b.checkBars(where, p, s, func(bar plotBar) *float64 {
					return amount(b.usage(bar.From, bar.To, filter, query.ByNode), func(k []string) bool {
						return k[0] == s.Name || s.Name == "other nodes" && !slices.Contains(named, k[0])
					}, by...)
				})
				continue
			}
			resources, ok := lines[s.Name]
			if s.Name == "most" || s.Name == "least" {
				b.checkBars(where, p, s, func(bar plotBar) *float64 {
					a := b.usage(bar.From, bar.To, filter, query.ByKind, query.ByKind)
					if amount(a, every, energies...) == nil {
						return nil
					}
					return b.band(s.Name, stackResource{title, energies}, filter, nil)(bar)
				})
				continue
			}
			if !ok {
				b.t.Errorf("%s, %s: line %q is not known", where, title, s.Name)
				continue
			}
			b.checkBars(where, p, s, func(bar plotBar) *float64 {
				a := b.usage(bar.From, bar.To, filter, query.ByJob)
				v := amount(a, every, resources...)
				switch {
				case v == nil:
				case title == "Pressure": // divided by the time of the runs
					return scaled(v, (bar.To-bar.From)/a.Groups[0].Usage.Covered.Float(unit.Nanosecond))
				case resources[0] == usage.MemoryPeak:
					return scaled(v, bar.To-bar.From)
				}
				return v
			})
		}
		if split && jobSplit[title] != nil {
			b.checkCover(where, p, filter, jobSplit[title], true)
		}
	}
}

// checkRange compares the time of a plot with its range: it begins where the range or its data
// begins, and ends with the latest data.
func (b *book) checkRange(where string, p *plot, from, to float64, filter map[query.Dimension][]string) {
	b.t.Helper()
	if p == nil || len(p.Bars) == 0 {
		return
	}
	const slack = 400 // a range that goes on has a little of what is to come
	first, last := p.Bars[0].From, p.Bars[len(p.Bars)-1].To
	before, after := b.usage(from+slack, max(from+slack, first), filter, query.ByKind), b.usage(min(to, last), to, filter, query.ByKind)
	for what, a := range map[string]*query.Answer{"before the first bar": before, "after the last bar": after} {
		if first <= from+slack && a == before || last >= to && a == after {
			continue
		}
		// The minute of an edge is in the chart.
		if edge := time.UnixMilli(int64(first * 1000)).UTC(); a == before && a.To.After(edge) {
			a = b.usage(from+slack, math.Floor(first/60)*60, filter, query.ByKind)
		}
		if edge := math.Ceil(last/60) * 60; a == after {
			a = b.usage(edge, max(to, edge), filter, query.ByKind)
		}
		if v := amount(a, func([]string) bool { return true }, usage.CPU); v != nil && *v > 0 {
			b.t.Errorf("%s, %s: the ledger has %v s of CPU %s, at %s to %s", where, p.Title, *v, what, clock(first), clock(last))
		}
	}
}

// figureRanges are the ranges in which figures are compared; the last is a free one.
var figureRanges = []struct {
	name   string
	length float64
}{{"15m", 900}, {"1h", 3600}, {"24h", 86400}, {"7d", 7 * 86400}, {"30d", 30 * 86400}, {"free", 0}}

// rangeQuery is the query of a range, and the range itself.
func rangeQuery(name string, length float64) (q string, from, to float64) {
	now := float64(time.Now().Unix())
	if name == "free" {
		from, to = now-4013, now-391
		return fmt.Sprintf("from=%.0f&to=%.0f", from, to), from, to
	}
	return "range=" + name, now - length, now
}

// A figurePage is a page whose charts are compared.
type figurePage struct {
	path string
	by   query.Dimension // of stacks
	node string
	job  string
}

// filter is what the page is about.
func (p figurePage) filter() map[query.Dimension][]string {
	switch {
	case p.job != "":
		return map[query.Dimension][]string{query.ByJob: {p.job}}
	case p.node != "":
		return map[query.Dimension][]string{query.ByNode: {p.node}}
	}
	return nil
}

// Charts draw the numbers of the ledger: in each range, each bar of each group is the ledger's sum over
// its time; all bars together are the whole; nothing is hidden.
func TestPageFigures(t *testing.T) {
	testkit.Stage(t, "page-figures", "a browser compares all charts with the ledger, in each range")
	hosttest.Need(t, "chromium")
	ctx := browser(t)
	hard := hardLedger(t)
	overview := []figurePage{{path: "/?idle=1", by: query.ByJob}, {path: "/?by=users", by: query.ByUser}, {path: "/?by=nodes", by: query.ByNode}}
	for _, c := range []struct {
		name   string
		fleet  func(t *testing.T) *fleet.Fleet
		ranges []string // nil is all
		pages  []figurePage
	}{
		{"hard", func(*testing.T) *fleet.Fleet { return hard }, nil, append(slices.Clone(overview),
			figurePage{path: "/node/gamma?idle=1", by: query.ByJob, node: "gamma"}, figurePage{path: "/node/beta?", by: query.ByJob, node: "beta"},
			figurePage{path: "/job?job=steady", job: "steady"}, figurePage{path: "/job?split=1&job=steady", job: "steady"}, figurePage{path: "/job?job=many", job: "many"},
			figurePage{path: "/job?job=short", job: "short"}, figurePage{path: "/job?job=one", job: "one"}, figurePage{path: "/job?job=dry", job: "dry"})},
		{"above", func(t *testing.T) *fleet.Fleet { return above(t, hard) }, nil, []figurePage{overview[0], {path: "/node/alpha?", by: query.ByJob, node: "alpha"}, {path: "/job?job=many", job: "many"}}},
		{"wide", wideLedger, []string{"15m", "1h", "24h"}, []figurePage{overview[0], overview[2], {path: "/job?job=wide", job: "wide"}, {path: "/job?split=1&job=wide", job: "wide"}}},
		{"windows of a minute", func(t *testing.T) *fleet.Fleet {
			return fleet.Open(t, fleet.Config{Nodes: 4, Each: 8, Windows: 40, Window: time.Minute, Days: 20})
		}, nil, []figurePage{overview[0], {path: "/node/rack1-n01?", by: query.ByJob, node: "rack1-n01"}, {path: "/job?job=postgres-main", job: "postgres-main"}}},
		{"real", realLedger, []string{"15m", "1h", "free"}, append(slices.Clone(overview),
			figurePage{path: "/node/" + realNode + "?idle=1", by: query.ByJob, node: realNode}, figurePage{path: "/job?job=steady", job: "steady"},
			figurePage{path: "/job?job=short", job: "short"}, figurePage{path: "/job?job=writes", job: "writes"})},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := c.fleet(t)
			b, u := newBook(t, f.Server.Ledger), signIn(t, ctx, f, 1440, 900, "/query")
			u.sees("the page", `document.querySelector("#main") !== null`)
			u.watch()
			for _, r := range figureRanges {
				if c.ranges != nil && !slices.Contains(c.ranges, r.name) {
					continue
				}
				for _, p := range c.pages {
					b.checkPage(u, f.URL, r.name, r.length, p)
				}
			}
		})
	}

	// One notice says that the server is down, and the page recovers by itself.
	u := &user{t, ctx}
	u.does(chromedp.EmulateViewport(1440, 900), chromedp.Navigate(hard.URL+"/?range=15m"))
	u.sees("the page, or the sign-in where its cases did not run", `document.querySelector("#token, .uplot canvas") !== null`)
	if evaluate[bool](u, `document.querySelector("#token") !== null`) {
		u.writes("#token", hard.Viewer+"\r")
	}
	u.seesCharts()
	u.sees("requests that fail", `(window.reached = window.fetch, window.fetch = () => Promise.reject(new TypeError("down")), true)`)
	u.sees("one notice", `document.querySelector("#down") !== null && document.querySelectorAll("[role=alert]:not(:empty)").length === 1 && document.querySelectorAll(".uplot canvas").length >= 4`)
	u.sees("requests that succeed", `(window.fetch = window.reached, true)`)
	u.sees("no notice", `document.querySelector("#down") === null`)
}

// realNode is the name of this machine in its ledger.
var realNode = func() string { name, _ := os.Hostname(); return name }()

// realLedger measures jobs on this machine with mete up, and returns a server with its ledger: a job that
// uses CPU time for more than a minute, five of a tenth of a second, and one that writes.
func realLedger(t *testing.T) *fleet.Fleet {
	t.Helper()
	m := startUp(t)
	var jobs errgroup.Group
	for name, script := range map[string]string{
		"steady": "end=$(($(date +%s)+80)); while [ $(date +%s) -lt $end ]; do i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 0.1; done",
		"writes": "for i in 1 2 3 4 5 6; do head -c 20000000 /dev/zero >file; sync file; sleep 10; done",
	} {
		jobs.Go(func() error { return m.command("run", "--name", name, "--", "sh", "-c", script).Run() })
	}
	for range 5 {
		jobs.Go(func() error { return m.command("run", "--name", "short", "--", "sleep", "0.1").Run() })
	}
	if err := jobs.Wait(); err != nil {
		t.Fatal(err)
	}
	m.stop()
	f := fleet.Open(t, fleet.Config{Ledger: filepath.Join(m.dir, "state", "server", "ledger.db")})
	now := float64(time.Now().Unix())
	for _, job := range []string{"steady", "writes", "short"} {
		if a := newBook(t, f.Server.Ledger).usage(now-900, now, map[query.Dimension][]string{query.ByJob: {job}}, query.ByJob); len(a.Groups) != 1 {
			t.Errorf("the ledger has %d jobs %s", len(a.Groups), job)
		}
	}
	return f
}

// checkPage opens a page in a range and compares its charts.
func (b *book) checkPage(u *user, address, name string, length float64, p figurePage) {
	b.t.Helper()
	q, from, to := rangeQuery(name, length)
	u.settles(address + p.path + "&" + q)
	list, filter := u.plots(), p.filter()
	where := p.path + " " + name
	if p.job != "" {
		if len(list) == 0 && len(b.usage(from+400, to, filter, query.ByJob).Groups) > 0 {
			b.t.Errorf("%s: no charts", where)
		}
		b.checkJob(where, list, p.job, from, to, strings.Contains(p.path, "split=1"))
	} else {
		b.checkStacks(where, list, p.by, from, to, filter)
	}
	b.checkRange(where, find(list, "CPU"), from, to, filter)
	if b.t.Failed() {
		picture(b.t, u.ctx, "figures-"+strings.NewReplacer("/", "_", "?", "_", "&", "_").Replace(where))
	}
}

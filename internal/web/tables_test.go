package web_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/fleet"
	"mete.dev/mete/internal/testkit/hosttest"
)

var (
	memoryRunning = column{title: "Memory, running", derive: func(g *v1.Group) figure { return per(&g.Figures, "memory_byte_seconds", "B") }}
	powerRunning  = column{title: "Power, running", derive: func(g *v1.Group) figure { return per(&g.Figures, "energy_joules", "W") }}
	partColumns   = []column{{title: "CPU", key: "cpu_seconds"}, memoryRunning, {title: "Workload peak", key: "memory_peak_bytes"}, {title: "Written", key: "disk_written_bytes"},
		{title: "Received", key: "network_rx_bytes"}, powerRunning, {title: "Energy", key: "energy_joules", off: "energy_error_joules"}}
	nodeColumns = append(slices.Clone(partColumns), column{title: "Read", key: "disk_read_bytes"})
)

// jobColumns are the columns of page Jobs, from an answer about so much time.
func jobColumns(over time.Duration) []column {
	return []column{
		{title: "Nodes", derive: func(g *v1.Group) figure { return count(g.Nodes) }}, {title: "CPU", key: "cpu_seconds"}, {title: "Throttled", key: "cpu_throttled_seconds"},
		{title: "Workload peak", key: "memory_peak_bytes"}, {title: "Memory", derive: func(g *v1.Group) figure { return whileItRan(g, "memory_byte_seconds", "B", over) }}, {title: "Cores, running", derive: func(g *v1.Group) figure { return per(&g.Figures, "cpu_seconds", "cores") }},
		{title: "Read", key: "disk_read_bytes"}, {title: "Written", key: "disk_written_bytes"}, {title: "Received", key: "network_rx_bytes"}, {title: "Sent", key: "network_tx_bytes"},
		{title: "Processes", key: "processes"}, {title: "OOM kills", key: "oom_kills"}, {title: "Energy", key: "energy_joules", off: "energy_error_joules"}, powerRunning,
	}
}

// whileItRan is a figure of a job divided by the time that it ran at most: of its workloads together, of the
// answer, and from its first minute to its last.
func whileItRan(g *v1.Group, key, base string, over time.Duration) figure {
	ran := min(g.Covered.Float(unit.Nanosecond), over.Seconds(), g.Last.Sub(*g.First).Seconds())
	if e := exact(&g.Figures, key); e.value != nil && ran > 0 {
		return figure{scaled(e.value, 1/ran), base, e.quality}
	}
	return figure{nil, base, exact(&g.Figures, key).quality}
}

const allJobColumns = "kind~user~nodes~cpu_seconds~cpu_throttled_seconds~memory_peak_bytes~memory~cores~disk_read_bytes~disk_written_bytes~network_rx_bytes~network_tx_bytes~processes~oom_kills~energy_joules~power"

// Tables show the numbers of the ledger: each figure of each row, in four ranges, parsed back from its
// text and unit, equals the exact one within the digits that are shown; its mark and its possible error
// too; absent is a dash.
func TestPageFiguresTables(t *testing.T) {
	testkit.Stage(t, "page-figures", "a browser compares tables with the ledger, in four ranges")
	hosttest.Need(t, "chromium")
	ctx := browser(t)
	hard := hardLedger(t)
	for _, c := range []struct {
		name   string
		fleet  *fleet.Fleet
		ranges []string // nil is all
		nodes  []string
		jobs   []string
	}{
		{"hard", hard, []string{"1h", "24h", "30d", "free"}, []string{"alpha", "beta"}, []string{"steady", "many", "short", "one", "dry"}},
		{"above", above(t, hard), []string{"1h", "30d"}, []string{"gamma"}, []string{"many"}},
		{"wide", wideLedger(t), []string{"1h"}, []string{"rack3-n04"}, []string{"wide"}},
	} {
		t.Run(c.name, func(t *testing.T) { checkTables(t, ctx, c.fleet, c.ranges, c.nodes, c.jobs) })
	}
}

// checkTables compares the tables of one server.
func checkTables(t *testing.T, ctx context.Context, f *fleet.Fleet, ranges, nodes, jobs []string) {
	u := signIn(t, ctx, f, 1440, 900, "/query")
	u.sees("the page", `document.querySelector("#main") !== null`)
	u.watch()
	for _, r := range figureRanges {
		if ranges != nil && !slices.Contains(ranges, r.name) {
			continue
		}
		q, _, _ := rangeQuery(r.name, r.length)
		checkJobsTable(u, f, "/jobs?cols="+allJobColumns+"&"+q)
		checkOverviewLists(u, f, "/?"+q)
		checkFlow(u, f, "/flow?"+q)
		for _, n := range nodes {
			checkNodeTable(u, f, "/node/"+n+"?"+q, n)
		}
		checkNodesRange(u, f, "/nodes?cols=cpu_seconds~energy_joules~disk_written_bytes&"+q)
		for i, j := range jobs {
			checkJobTables(u, f, "/job?job="+j+"&parts="+[]string{"", "workload", "container"}[i%3]+"&"+q, j, []string{"node", "workload", "container"}[i%3])
		}
		checkGaps(u, f, "/health?"+q)
	}
}

func checkJobsTable(u *user, f *fleet.Fleet, path string) {
	u.t.Helper()
	from, to := asked(u.t, u.opensFresh(f, path), "/v1/usage", "job,kind,user")
	a := answer(u.t, f.Server.Ledger, from, to, nil, query.ByJob, query.ByKind, query.ByUser)
	groups := workloads(a.Groups, 1)
	if len(groups) == 0 {
		u.sees("no jobs", `document.body.innerText.includes("No job used anything in this range")`)
		return
	}
	checkRows(u.t, path, u.table("jobs"), groups, []string{"Job", "Kind", "User"}, jobColumns(a.Over()))
}

func checkNodeTable(u *user, f *fleet.Fleet, path, node string) {
	u.t.Helper()
	requests := u.opensFresh(f, path)
	checkUptime(u, f, path, node, requests)
	from, to := asked(u.t, requests, "/v1/usage", "job,kind", "node="+nodeID(u.t, f, node))
	a := answer(u.t, f.Server.Ledger, from, to, map[query.Dimension][]string{query.ByNode: {node}}, query.ByJob, query.ByKind)
	if len(a.Groups) == 0 {
		return
	}
	shown := u.table("jobs on this node")
	jobs := workloads(a.Groups, 1)
	if len(jobs) == 0 {
		jobs = a.Groups
	}
	checkRows(u.t, path, shown, jobs, []string{"Job", "Kind"}, nodeColumns)
	checkSums(u, path, shown, a.Total, "network_rx_bytes") // the machine's own may not be known in all of the range
}

// uptimeSlack is by how much the uptime of a node whose latest windows are still being booked may differ between the page's
// request and the comparison.
const uptimeSlack = 5 * time.Second

// checkUptime compares for how long a node was up.
func checkUptime(u *user, f *fleet.Fleet, path, node string, requests []string) {
	u.t.Helper()
	from, to := asked(u.t, requests, "/v1/uptime", "")
	list, err := f.Server.Ledger.Uptimes(u.t.Context(), from, to, node, query.Scope{All: true})
	if err != nil || len(list) != 1 {
		u.t.Fatal(len(list), err)
	}
	share := func(up time.Duration) float64 {
		return math.Floor(1e5*up.Seconds()/(list[0].Up+list[0].Down).Seconds()) / 1e3
	}
	shown := evaluate[string](u, `[...document.querySelectorAll('[aria-label="About"] dt')].find((t) => t.innerText.trim() === "Up")?.nextElementSibling.innerText || ""`)
	percent, rest, ok := strings.Cut(shown, " % of ")
	value, err := strconv.ParseFloat(percent, 64)
	switch {
	case !ok || err != nil,
		list[0].Down == 0 && percent != "100",
		list[0].Down > 0 && (value < share(list[0].Up-uptimeSlack) || value > share(list[0].Up+uptimeSlack)),
		strings.Contains(rest, "down once") != (list[0].Downs == 1), strings.Contains(rest, "not known") != (list[0].Unknown > 0):
		u.t.Errorf("%s: up %q, the ledger says %+v", path, shown, list[0])
	}
}

// nodeID returns the ID of the node with a name, by which pages ask.
func nodeID(t *testing.T, f *fleet.Fleet, name string) string {
	t.Helper()
	nodes, err := f.Server.Ledger.Nodes(t.Context(), query.Scope{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range nodes {
		if nodes[i].Name == name {
			return nodes[i].ID
		}
	}
	t.Fatalf("the ledger has no node %s", name)
	return ""
}

// checkSums compares the last row of a table of what was used with the sum of all.
// Those that may be absent on the page are named.
func checkSums(u *user, path string, shown *shownTable, total *v1.Figures, absent ...string) {
	u.t.Helper()
	if len(shown.Foot) == 0 {
		u.t.Errorf("%s: no row of sums", path)
		return
	}
	sums := shown.Foot[len(shown.Foot)-1][1:]
	for i, key := range []string{"cpu_seconds", "", "", "disk_read_bytes", "disk_written_bytes", "network_rx_bytes", "", "energy_joules"} {
		want := exact(total, key)
		if sums[i].Text == "–" && slices.Contains(absent, key) {
			continue
		}
		if key == "" || want.value == nil {
			none := "–" // absent
			if key == "" {
				none = "" // has no sum
			}
			if sums[i].Text != none {
				u.t.Errorf("%s: column %d of the sum is %q, want %q", path, i, sums[i].Text, none)
			}
			continue
		}
		if err := compareShown(sums[i].Text, want.base, want.value); err != nil {
			u.t.Errorf("%s: sum of %s: %v", path, key, err)
		}
	}
}

// checkNodesRange compares the columns of page Nodes that are about the range.
func checkNodesRange(u *user, f *fleet.Fleet, path string) {
	u.t.Helper()
	from, to := asked(u.t, u.opensFresh(f, path), "/v1/usage", "node,kind")
	a := answer(u.t, f.Server.Ledger, from, to, nil, query.ByNode, query.ByKind)
	shown := u.table("nodes")
	for _, row := range shown.Rows {
		name := row[0].Text
		for i, c := range []struct{ key, base string }{{"cpu_seconds", "s"}, {"energy_joules", "J"}, {"disk_written_bytes", "B"}} {
			var want *float64
			for j := range a.Groups {
				g := &a.Groups[j]
				e := exact(&g.Figures, c.key)
				if g.Keys[0] != name || e.value == nil || c.key == "cpu_seconds" && g.Keys[1] == "idle" {
					continue
				}
				if want == nil {
					want = new(float64)
				}
				*want += *e.value
			}
			if err := compareShown(row[i+1].Text, c.base, want); err != nil {
				u.t.Errorf("%s, %s, %s: %v", path, name, c.key, err)
			}
		}
	}
	if len(shown.Rows) != shown.Count || shown.Count < 3 {
		u.t.Errorf("%s: %d rows of %d", path, len(shown.Rows), shown.Count)
	}
}

// checkJobTables compares all tables and tiles of a job: parts, raw figures and runs.
func checkJobTables(u *user, f *fleet.Fleet, path, job, parts string) {
	u.t.Helper()
	from, to := asked(u.t, u.opensFresh(f, path), "/v1/usage", "job", "job="+job)
	where := map[query.Dimension][]string{query.ByJob: {job}}
	a := answer(u.t, f.Server.Ledger, from, to, where, query.ByJob)
	if len(a.Groups) == 0 {
		return
	}
	dims, keys := []query.Dimension{query.ByNode}, []string{"Node"}
	switch parts {
	case "workload":
		dims, keys = []query.Dimension{query.ByWorkload, query.ByNode}, []string{"Workload", "Node"}
	case "container":
		dims, keys = []query.Dimension{query.ByNamespace, query.ByPod, query.ByContainer}, []string{"Namespace", "Pod", "Container"}
	}
	shown := u.table("parts by " + parts)
	all := answer(u.t, f.Server.Ledger, from, to, where, dims...)
	groups := all.Groups
	checkRows(u.t, path, shown, groups[:min(1000, len(groups))], keys, partColumns)
	checkSums(u, path, shown, all.Total)
	checkRaw(u, path, &a.Groups[0], a.Over())
	checkTiles(u, path, &a.Groups[0], a.Over())
	if list := evaluate[int](u, `document.querySelectorAll('[aria-label="runs"]').length`); list > 0 {
		checkRuns(u, f, path, from, to, job)
	}
}

// checkRaw compares the table of all figures: the text, and the exact number beside it.
func checkRaw(u *user, path string, g *v1.Group, over time.Duration) {
	u.t.Helper()
	shown := map[string][]cell{}
	for _, row := range u.table("raw figures").Rows {
		shown[row[0].Title] = row
	}
	for _, f := range v1.ListFigures() {
		if strings.HasSuffix(f.Key, "_unclassified_bytes") && !isClassified(&g.Figures) {
			continue
		}
		want, average := exact(&g.Figures, f.Key), strings.Contains(f.Key, "_average_")
		switch {
		case f.Key == "energy_average_watts" && want.value != nil:
			want = per(&g.Figures, "energy_joules", "W")
		case average && want.value != nil:
			want = whileItRan(g, strings.Replace(f.Key, "_average_bytes", "_byte_seconds", 1), "B", over)
		}
		row, ok := shown[f.Key]
		if !ok {
			if want.value != nil {
				u.t.Errorf("%s: raw figure %s is not shown", path, f.Key)
			}
			continue
		}
		if err := compareShown(row[1].Text, want.base, want.value); err != nil {
			u.t.Errorf("%s: raw figure %s: %v", path, f.Key, err)
		}
		exactly := ""
		if want.value != nil {
			a := g.Get(f.Key)
			exactly = a.Value.Decimal(unitOf(f.Key))
		}
		if average {
			continue // a quotient is not exact
		}
		if number, _, _ := strings.Cut(row[2].Text, " "); number != exactly {
			u.t.Errorf("%s: raw figure %s is exactly %q, want %q", path, f.Key, row[2].Text, exactly)
		}
	}
}

// checkTiles compares the tiles of a job.
func checkTiles(u *user, path string, g *v1.Group, over time.Duration) {
	u.t.Helper()
	sum := func(a, b string) figure {
		x, y := exact(&g.Figures, a), exact(&g.Figures, b)
		if x.value == nil {
			return y
		}
		if y.value != nil {
			v := *x.value + *y.value
			x.value, x.quality = &v, max(x.quality, y.quality)
		}
		return x
	}
	tiles := u.tiles("in this range")
	memory := whileItRan(g, "memory_byte_seconds", "B", over)
	for title, want := range map[string]figure{"CPU": exact(&g.Figures, "cpu_seconds"), "Memory": memory, "Energy": exact(&g.Figures, "energy_joules"), "Disk": sum("disk_read_bytes", "disk_written_bytes"), "Network": sum("network_rx_bytes", "network_tx_bytes")} {
		if err := tiles[title].value.check(want, nil); err != nil {
			u.t.Errorf("%s, tile %s: %v", path, title, err)
		}
	}
	most := "peak "
	if !slices.ContainsFunc(tiles["Memory"].below, func(s string) bool { return strings.HasPrefix(s, most) }) {
		most = "largest peak of a workload "
	}
	// The peak of a workload says nothing about a job that holds more.
	peak, shown := exact(&g.Figures, "memory_peak_bytes"), slices.ContainsFunc(tiles["Memory"].below, func(s string) bool { return strings.HasPrefix(s, most) })
	if lower := peak.value != nil && memory.value != nil && *peak.value < *memory.value; lower == shown && peak.value != nil {
		u.t.Errorf("%s, tile Memory: a peak is shown: %v; it is lower than the average: %v", path, shown, lower)
	}
	for title, keys := range map[string]map[string]string{"Memory": map[bool]map[string]string{true: {most: "memory_peak_bytes"}}[shown], "Disk": {"read ": "disk_read_bytes", "written ": "disk_written_bytes"},
		"Network": {"in ": "network_rx_bytes", "out ": "network_tx_bytes"}, "Energy": {"± ": "energy_error_joules"}} {
		for prefix, key := range keys {
			want := exact(&g.Figures, key)
			i := slices.IndexFunc(tiles[title].below, func(s string) bool { return strings.HasPrefix(s, prefix) })
			if i < 0 {
				if want.value != nil {
					u.t.Errorf("%s, tile %s: no %q in %q", path, title, prefix, tiles[title].below)
				}
				continue
			}
			if err := compareShown(tiles[title].below[i][len(prefix):], want.base, want.value); err != nil {
				u.t.Errorf("%s, tile %s, %s: %v", path, title, prefix, err)
			}
		}
	}
}

// A tile is a figure with what stands below it.
type tile struct {
	value cell
	below []string
}

// tiles reads the tiles of a section.
func (u *user) tiles(section string) map[string]tile {
	u.t.Helper()
	type read struct {
		Title string
		Value cell
		Below []string
	}
	out := map[string]tile{}
	for _, r := range evaluate[[]read](u, `[...document.querySelectorAll('section.stats[aria-label=`+quote(section)+`] .stat')].map((s) => {
		const c = s.querySelector(".value").cloneNode(true), q = c.querySelector(".quality");
		q?.remove();
		for (const e of c.querySelectorAll(".unit")) e.before(" ");
		const below = [...s.querySelector(".below").childNodes].map((n) => n.textContent.replace(/\s+/g, " ").trim()).filter(Boolean);
		return { Title: s.querySelector("h3").textContent.trim(), Value: { Text: c.textContent.replace(/\s+/g, " ").trim(), Quality: q?.getAttribute("aria-label") ?? "" }, Below: below };
	})`) {
		out[r.Title] = tile{r.Value, r.Below}
	}
	return out
}

// checkRuns compares the table of runs, of which the latest 1000 are shown.
func checkRuns(u *user, f *fleet.Fleet, path string, from, to time.Time, job string) {
	u.t.Helper()
	list, err := f.Server.Ledger.Runs(u.t.Context(), query.RunQuery{Query: query.Query{From: from, To: to, Where: map[query.Dimension][]string{query.ByJob: {job}}, Scope: query.Scope{All: true}}})
	if err != nil {
		u.t.Fatal(err)
	}
	want := map[string]v1.Run{}
	for i := range list {
		r := v1.RunOf(&list[i])
		want[string(r.ID)] = r
	}
	rows := evaluate[[]shownRun](u, readRuns)
	if len(rows) != min(1000, len(list)) {
		u.t.Errorf("%s: %d runs, the ledger has %d", path, len(rows), len(list))
	}
	for _, row := range rows {
		r, ok := want[row.Run]
		if !ok {
			u.t.Errorf("%s: run %s is not in the ledger", path, row.Run)
			continue
		}
		for key, c := range map[string]struct {
			exact *json.Number
			base  string
		}{"length_seconds": {r.Length, "s"}, "cpu_seconds": {r.CPU, "s"}, "cpu_average_cores": {r.Cores, "cores"}, "memory_peak_bytes": {r.Peak, "B"},
			"disk_read_bytes": {r.DiskRead, "B"}, "disk_written_bytes": {r.DiskWritten, "B"}, "energy_joules": {r.Energy, "J"}} {
			text, ok := row.Texts[key]
			if !ok {
				text = absent
			}
			var v *float64
			if c.exact != nil {
				n, err := c.exact.Float64()
				if err != nil {
					u.t.Fatal(err)
				}
				if v = &n; row.Values[key] != n {
					u.t.Errorf("%s: run %s: %s is %v, want %v", path, row.Run, key, row.Values[key], n)
				}
			}
			if err := compareShown(text, c.base, v); err != nil {
				u.t.Errorf("%s: run %s: %s: %v", path, row.Run, key, err)
			}
		}
	}
}

// A rankedRow is a line of the list of what used most.
type rankedRow struct{ Name, Kind, Text, Off, Quality string }

// checkOverviewLists compares what Overview lists: the largest users, and the balance.
func checkOverviewLists(u *user, f *fleet.Fleet, path string) {
	u.t.Helper()
	for sort, key := range map[string]string{"": "cpu_seconds", "energy_joules": "energy_joules"} {
		at := path
		if sort != "" {
			at += "&top=" + sort
		}
		from, to := asked(u.t, u.opensFresh(f, at), "/v1/usage", "job,kind")
		a := answer(u.t, f.Server.Ledger, from, to, nil, query.ByJob, query.ByKind)
		groups := workloads(a.Groups, 1)
		value := func(g *v1.Group) float64 {
			if e := exact(&g.Figures, key); e.value != nil {
				return *e.value
			}
			return -1
		}
		slices.SortStableFunc(groups, func(a, b v1.Group) int {
			return map[bool]int{true: -1, false: 1}[value(&a) > value(&b)]
		})
		rows := evaluate[[]rankedRow](u, `[...document.querySelectorAll("ol.rank li")].map((li) => {
			const c = li.cloneNode(true), take = (css) => { const e = c.querySelector(css); e?.remove(); return e; };
			const off = take(".off")?.textContent.replace(/^±\s*/, "").trim() ?? "", q = take(".quality")?.getAttribute("aria-label") ?? "", name = take("a")?.textContent ?? "", kind = take(".tag")?.textContent ?? "";
			for (const e of c.querySelectorAll(".unit")) e.before(" ");
			return { Name: name, Kind: kind, Text: c.textContent.replace(/\s+/g, " ").trim(), Off: off, Quality: q };
		})`)
		if want := min(14, len(groups)); len(rows) > want || len(rows) < want-2 { // idle and system are among the 14 largest
			u.t.Errorf("%s: %d rows of most used, want %d", at, len(rows), want)
		}
		for i, row := range rows {
			at := slices.IndexFunc(groups, func(g v1.Group) bool { return g.Keys[0] == row.Name && g.Keys[1] == row.Kind })
			if at < 0 || !near(value(&groups[at]), value(&groups[i])) {
				u.t.Errorf("%s: place %d of most used by %s is %s %s, want %v", path, i+1, key, row.Name, row.Kind, groups[i].Keys)
				continue
			}
			var off *figure
			if key == "energy_joules" {
				e := exact(&groups[at].Figures, "energy_error_joules")
				off = &e
			}
			if err := (cell{Text: row.Text, Off: row.Off, Quality: row.Quality}).check(exact(&groups[at].Figures, key), off); err != nil {
				u.t.Errorf("%s: most used, %s: %v", path, row.Name, err)
			}
		}
	}
	checkWhole(u, f, path)
}

// wholes are the lines of the balance.
var wholes = map[string]string{"CPU": "cpu_seconds", "Memory": "memory_byte_seconds", "Energy": "energy_joules", "Disk read": "disk_read_bytes", "Disk written": "disk_written_bytes"}

// checkWhole compares the balance on Overview.
func checkWhole(u *user, f *fleet.Fleet, path string) {
	u.t.Helper()
	// The page asks for the bars of its charts by kind too: the whole is the longest range that ends last.
	var from, to time.Time
	for _, r := range u.opensFresh(f, path) {
		if v, err := url.Parse(r); err == nil && v.Path == "/v1/usage" && v.Query().Get("by") == "kind" {
			a, z := asked(u.t, []string{r}, "/v1/usage", "kind")
			if z.After(to) || z.Equal(to) && a.Before(from) {
				from, to = a, z
			}
		}
	}
	a := answer(u.t, f.Server.Ledger, from, to, nil, query.ByKind)
	lines := map[string][]string{}
	for _, l := range evaluate[[][]string](u, `[...document.querySelectorAll("ul.wholes li")].map((li) => [li.querySelector("b"), li.querySelector(".num"), ...li.querySelectorAll(".small span"), li.querySelector(".tag")].map((e) => {
		const c = e.cloneNode(true);
		for (const o of c.querySelectorAll(".off")) o.remove();
		for (const o of c.querySelectorAll(".unit")) o.before(" ");
		return c.textContent.trim();
	}))`) {
		lines[l[0]] = l[1:]
	}
	for name, key := range wholes {
		whole := exact(a.Whole, key)
		if whole.value == nil || *whole.value == 0 {
			if lines[name] != nil {
				u.t.Errorf("%s: whole of %s is %v, and absent in the ledger", path, name, lines[name])
			}
			continue
		}
		l := lines[name]
		if len(l) != 5 || l[4] != "adds up" {
			u.t.Errorf("%s: whole of %s: %q", path, name, l)
			continue
		}
		if err := compareShown(l[0], whole.base, whole.value); err != nil {
			u.t.Errorf("%s: whole of %s: %v", path, name, err)
		}
		for i, part := range []string{"workloads", "system", "idle"} {
			share := 0.0
			for j := range a.Groups {
				if kind := a.Groups[j].Keys[0]; kind == part || part == "workloads" && !residual(kind) {
					if e := exact(&a.Groups[j].Figures, key); e.value != nil {
						share += *e.value / *whole.value
					}
				}
			}
			if err := compareShown(strings.TrimPrefix(l[i+1], part+" "), "ratio", &share); err != nil {
				u.t.Errorf("%s: %s of %s: %v", path, part, name, err)
			}
		}
	}
}

var flowDomains = map[string]string{"energy_package_joules": "CPU packages", "energy_dram_joules": "memory", "energy_gpu_joules": "accelerators", "energy_rest_joules": "whole machine"}

// checkFlow compares the table of flows, the labels of the drawing and the total with the ledger. Of
// more nodes than the drawing has, only the total is compared.
func checkFlow(u *user, f *fleet.Fleet, path string) {
	u.t.Helper()
	from, to := asked(u.t, u.opensFresh(f, path), "/v1/usage", "node,kind,namespace,job")
	a := answer(u.t, f.Server.Ledger, from, to, nil, query.ByNode, query.ByKind, query.ByNamespace, query.ByJob)
	total := exact(a.Total, "energy_joules")
	if total.value == nil {
		return
	}
	text := evaluate[string](u, `(() => { const c = document.querySelector('[aria-label="sums"] .value').cloneNode(true); for (const e of c.querySelectorAll(".off")) e.remove(); for (const e of c.querySelectorAll(".unit")) e.before(" "); return c.textContent.trim(); })()`)
	if err := compareShown(text, "J", total.value); err != nil {
		u.t.Errorf("%s: in all: %v", path, err)
	}
	want, nodes := map[string]float64{}, map[string]bool{}
	for i := range a.Groups {
		g := &a.Groups[i]
		for key, domain := range flowDomains {
			e := exact(&g.Figures, key)
			if e.value == nil || *e.value == 0 {
				continue
			}
			source := "meters"
			if e.quality == usage.Modelled {
				source = "model"
			}
			nodes[g.Keys[0]] = true
			want[source+" > "+domain] += *e.value
			want[domain+" > "+g.Keys[0]] += *e.value
			if residual(g.Keys[1]) {
				want[g.Keys[0]+" > "+g.Keys[1]] += *e.value
				continue
			}
			want[g.Keys[0]+" > "+g.Keys[1]+"s"] += *e.value
			want[g.Keys[1]+"s > "+g.Keys[3]] += *e.value
		}
	}
	shown := u.table("all flows")
	seen := map[string]bool{}
	levels := map[string]float64{}
	for _, row := range shown.Rows {
		key := row[0].Text + " > " + row[1].Text
		seen[key] = true
		v, ok := want[key]
		if len(nodes) > 10 && !ok {
			continue // other nodes
		}
		if err := compareShown(row[2].Text, "J", &v); !ok || err != nil {
			u.t.Errorf("%s: flow %s: %v", path, key, err)
		}
		levels[row[0].Text] += v
	}
	if len(nodes) > 10 {
		return
	}
	for key := range maps.Keys(want) {
		if !seen[key] {
			u.t.Errorf("%s: flow %s of %v J is not shown", path, key, want[key])
		}
	}
	for _, row := range shown.Rows {
		share := want[row[0].Text+" > "+row[1].Text]
		source := 0.0
		for key, v := range want {
			if strings.HasSuffix(key, " > "+row[0].Text) {
				source += v
			}
		}
		if source == 0 {
			source = levels[row[0].Text]
		}
		share /= source
		if err := compareShown(row[3].Text, "ratio", &share); err != nil {
			u.t.Errorf("%s: share of %s > %s: %v", path, row[0].Text, row[1].Text, err)
		}
	}
	label := evaluate[string](u, `document.querySelector(".sankey").getAttribute("aria-label")`)
	for line := range strings.SplitSeq(strings.TrimPrefix(label, "flow: "), "; ") {
		m := regexp.MustCompile(`^(.*) to (.*?) (\S+ \S+)$`).FindStringSubmatch(line)
		if m == nil {
			u.t.Errorf("%s: the drawing says %q", path, line)
			continue
		}
		v := want[m[1]+" > "+m[2]]
		if err := compareShown(m[3], "J", &v); err != nil {
			u.t.Errorf("%s: drawn flow %s to %s: %v", path, m[1], m[2], err)
		}
	}
}

// checkGaps compares the table of gaps on Health.
func checkGaps(u *user, f *fleet.Fleet, path string) {
	u.t.Helper()
	from, to := asked(u.t, u.opensFresh(f, path), "/v1/gaps", "")
	gaps, err := f.Server.Ledger.Gaps(u.t.Context(), from, to, "", query.Scope{All: true})
	if err != nil {
		u.t.Fatal(err)
	}
	want := map[string]int{}
	for i := range gaps {
		want[gaps[i].Name+" "+gaps[i].Reason.String()+fmt.Sprint(gaps[i].To.Sub(gaps[i].From).Seconds())]++
	}
	if len(gaps) == 0 {
		u.sees("no gaps", `document.body.innerText.includes("No gaps")`)
		return
	}
	shown := u.table("gaps")
	if len(shown.Rows) != len(gaps) {
		u.t.Errorf("%s: %d gaps, the ledger has %d", path, len(shown.Rows), len(gaps))
	}
	for _, row := range shown.Rows {
		i := slices.IndexFunc(gaps, func(g query.Gap) bool {
			v := g.To.Sub(g.From).Seconds()
			return g.Name == row[1].Text && g.Reason.String() == row[3].Text && compareShown(row[2].Text, "s", &v) == nil
		})
		if i < 0 {
			u.t.Errorf("%s: gap %v is not in the ledger", path, row)
			continue
		}
		gaps = slices.Delete(gaps, i, i+1)
	}
}

package web_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/fleet"
	"mete.dev/mete/internal/testkit/hosttest"
)

// A drawn is what charts show of a group in a range, summed over time, and what the ledger
// says of it for the same range.
type drawn struct {
	Range, Chart, Name string
	Drawn, Booked      float64
	Buckets            int
	Ends               bool // the last bucket is the latest with data
}

// figuresScript sums the charts of Overview, of a node and of a job over time, in each range,
// with the page's own functions, and asks the ledger for the same.
const figuresScript = `(async (job, node) => {
	const from = (name) => import(document.querySelector("script[type=module]").src.replace("app.js", name));
	const [{ ranges, spanOf }, { stacks, stack, resources }, { history, mean, forget }, { get }] = await Promise.all(["span.js", "series.js", "history.js", "api.js"].map(from));
	const list = [], now = Date.now() / 1000;
	const spans = [...ranges.map(([range]) => [range, spanOf({ range }, now)]), ["free", spanOf({ from: String(now - 2000), to: String(now - 400) }, now)]];
	const booked = (range, params) => get("/v1/usage", { ...params, from: new Date(range.from * 1000).toISOString(), to: new Date(range.to * 1000).toISOString() });
	for (const [name, span] of spans) {
		for (const [chart, by, where] of [["overview", "", []], ["users", "users", []], ["nodes", "nodes", []], ["node", "", ["node=" + node]]]) {
			forget();
			const of = await stacks({ by, where, span, nodes: 1 });
			if (of.empty) { list.push({ range: name, chart, name: "", drawn: -1, booked: 0 }); continue; }
			const last = of.buckets[of.buckets.length - 1], ends = last.to > now - 90 || name === "free";
			for (const r of Object.keys(resources)) {
				const amount = resources[r].amount, all = await booked(of.range, { by: "kind", where, fields: amount });
				const series = stack(of, r, true), area = (s) => s.values.reduce((a, [, v], i) => a + (v || 0) * (of.buckets[i].to - of.buckets[i].from), 0);
				list.push({ range: name, chart, name: r + " in all", drawn: series.reduce((a, s) => a + area(s), 0), booked: Number(all.total[amount]), buckets: of.buckets.length, ends });
				const groups = of.dimension === "job" || of.dimension === "user" || of.dimension === "node" ? (await booked(of.range, { by: of.dimension, where: [...where, "kind=container", "kind=job"], fields: amount })).groups : [];
				for (const s of series.filter((s) => s.pick)) list.push({ range: name, chart, name: r + " of " + s.name, drawn: area(s), booked: Number((groups.find((g) => g[of.dimension] === s.pick[of.dimension]) || {})[amount] ?? NaN), buckets: of.buckets.length, ends });
			}
		}
		forget();
		const h = await history([{ by: "job", where: ["job=" + job], fields: "cpu_seconds,memory_peak_bytes" }], span, 1), sum = (await booked(h.range, { by: "job", where: ["job=" + job], fields: "cpu_seconds,memory_peak_bytes" })).groups[0];
		list.push({ range: name, chart: "job", name: job, drawn: h.buckets.reduce((a, b, i) => a + (mean(h.of[0][i].groups[0], "cpu_seconds", b) || 0) * (b.to - b.from), 0), booked: Number(sum.cpu_seconds), buckets: h.buckets.length, ends: true });
		list.push({ range: name, chart: "job", name: "peak of " + job, drawn: Math.max(...h.of[0].map((a) => Number(a.groups[0]?.memory_peak_bytes || 0))), booked: Number(sum.memory_peak_bytes || 0), buckets: h.buckets.length, ends: true });
	}
	return JSON.stringify(list);
})`

// Charts show the numbers of the ledger: over each range, the area of each group in a chart is
// the group's amount in the ledger, and all areas together are the whole. The latest
// minute is in each open range, and a long range with little data has more than one bar.
func TestPageFigures(t *testing.T) {
	testkit.Stage(t, "page-figures", "a browser compares all charts with the ledger, in each range")
	hosttest.Need(t, "chromium")
	f := fleet.Open(t, fleet.Config{Nodes: 4, Each: 8, Windows: 40, Window: 60e9})
	ctx := browser(t)
	u := signIn(t, ctx, f, 1440, 900, "/?range=15m")
	u.sees("charts", `document.querySelectorAll(".uplot canvas").length >= 4 && !document.querySelector(".skeleton")`)
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](figuresScript+`("postgres-main", "rack1-n01")`, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatal(err)
	}
	var list []drawn
	if err := json.Unmarshal([]byte(strings.ReplaceAll(text, "null", "-2")), &list); err != nil {
		t.Fatal(err)
	}
	if len(list) < 7*40 {
		t.Errorf("%d figures", len(list))
	}
	for _, d := range list {
		if math.Abs(d.Drawn-d.Booked) > 1e-6*math.Abs(d.Booked)+1e-6 || d.Booked < 0 {
			t.Errorf("%s, %s, %s: the chart shows %v, the ledger has %v", d.Range, d.Chart, d.Name, d.Drawn, d.Booked)
		}
		if d.Buckets < 5 || !d.Ends {
			t.Errorf("%s, %s, %s: %d bars, up to now: %v", d.Range, d.Chart, d.Name, d.Buckets, d.Ends)
		}
	}

	// One notice says that the server is down, and the page recovers by itself.
	u.sees("requests that fail", `(window.reached = window.fetch, window.fetch = () => Promise.reject(new TypeError("down")), true)`)
	u.sees("one notice", `document.querySelector("#down") !== null && document.querySelectorAll("[role=alert]").length === 1 && document.querySelectorAll(".uplot canvas").length >= 4`)
	u.sees("requests that succeed", `(window.fetch = window.reached, true)`)
	u.sees("no notice", `document.querySelector("#down") === null`)
}

package web_test

import (
	"encoding/json"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/testkit/fleet"
)

// judged checks the rules by which pages say what is wrong, and how they draw it.
func judged(t *testing.T, f func(what, script, want string)) {
	t.Helper()
	f("whether a job runs", `
		const { dataOf, stateOf } = await of("states.js"), at = (s) => new Date(s * 1000).toISOString(), node = (state, s) => ({ state, booked_through: at(s) });
		const data = dataOf([node("live", 990), node("live", 1000), node("silent", 400), node("revoked", 5)], 2000), row = (last, kind = "container") => ({ kind, last_at: at(last) }), run = (state) => ({ state });
		return [stateOf(row(1020), data), stateOf(row(960), data), stateOf(row(420), data), stateOf(row(380), data), stateOf(row(1020, "job"), data, [run("ended")]), stateOf(row(1020, "job"), data, [run("ended"), run("running")]), stateOf(row(1020, "job"), data, [run("unknown")]), stateOf(row(420), dataOf([node("silent", 400)], 2000))];`,
		`["running","ended","unknown","ended","ended","running","unknown","unknown"]`)
	f("what is wrong with a job", `
		const { wrongOf, rankOf } = await of("states.js"), says = (r, runs) => wrongOf(r, runs).map((w) => w.tone + " " + w.tag);
		const run = (exit_code, more = {}) => ({ state: "ended", exit_code, comparisons: [], ended_at: "2026-01-01T00:00:00Z", ...more }), mark = (change) => ({ comparisons: [{ figure: "cpu_seconds", marked: true, change }] });
		const held = { covered_seconds: 100, reserved_time_seconds: 100, cpu_seconds: 90, cpu_reserved_seconds: 50, memory_byte_seconds: 110, memory_reserved_byte_seconds: 100 };
		return [says({}), says({}, [run(0), run(1), run(0)]), says({}, [run(1), run(0)]), says({}, [run(137, { oom_kills: 1 })]), says({ oom_kills: 2 }), says({}, [run(0, mark(0.4))]), says({}, [run(0, mark(-0.4))]), says(held), says({ ...held, reserved_time_seconds: 50 }), says({ cpu_seconds: 60, cpu_throttled_seconds: 30 }), says({ cpu_seconds: 90, cpu_throttled_seconds: 10 }),
			rankOf({ wrong: wrongOf({ oom_kills: 1 }), state: "ended" }) > rankOf({ wrong: wrongOf(held), state: "running" })];`,
		`[[],["warn 1 failed"],["bad 1 failed"],["bad failed"],["bad out of memory"],["warn CPU +40 %"],[],["warn CPU 1.80 ×"],[],["warn throttled"],[],true]`)
	f("whose runs are those of a row", `
		const { runsOf } = await of("states.js"), run = (kind, user, cluster) => ({ job: "ci", kind, user, cluster }), byJob = new Map([["ci", [run("job", "ann", "a"), run("job", "bob", "a"), run("kube-job", "ann", "b")]]]);
		return [runsOf({ job: "ci", kind: "job" }, byJob), runsOf({ job: "ci", kind: "job", user: "ann" }, byJob), runsOf({ job: "ci", kind: "job", user: "ann", cluster: "a" }, byJob), runsOf({ job: "ci", kind: "pod", cluster: "b" }, byJob), runsOf({ job: "x" }, byJob)].map((l) => l.map((x) => x.kind + x.user).join());`,
		`["jobann,jobbob,kube-jobann","jobann,kube-jobann","jobann","kube-jobann",""]`)
	f("colors of what is drawn together", `
		const { tonesOf } = await of("chart.js"), different = (keys) => new Set(tonesOf(keys).values()).size, keys = Array.from({ length: 40 }, (_, i) => "namespace n" + i);
		const pairs = keys.flatMap((a, i) => keys.slice(i + 1).map((b) => different([a, b]))), ten = keys.slice(20, 30), again = (l) => JSON.stringify([...tonesOf(l)].sort());
		return [Math.min(...pairs), different(ten), again(ten) === again(ten), Math.max(...Object.values(Object.groupBy([...tonesOf(keys.slice(0, 25)).values()], (n) => n)).map((l) => l.length))];`,
		`[2,10,true,3]`)
	f("colors of series of a query", `
		const { colorsOf } = await of("pages/query.js"), says = (list, names) => colorsOf(list.map((metric) => ({ metric })), names).map((c) => c.tone || c.key);
		return [says([{ part: "idle" }, { part: "workloads" }, { part: "system" }]), says([{ direction: "sent" }, { direction: "received" }]), says([{ workload: "w1", node: "a" }, { name: "web" }], new Map([["w1", { job: "db" }]])), says([{ node: "a" }, { node: "b" }]), says([{ node: "a", part: "idle" }, { node: "b", part: "idle" }]), says([{ node: "a", x: "1" }, { node: "a", x: "2" }])];`,
		`[["idleline","workloads","system"],["out","in"],["job db","job web"],["node a","node b"],["node a","node b"],["[[\"node\",\"a\"],[\"x\",\"1\"]]","[[\"node\",\"a\"],[\"x\",\"2\"]]"]]`)
	f("where data of a query begins", `
		const { beginOf } = await of("pages/query.js"), span = { from: 0, to: 1000, step: 10 }, s = (...at) => ({ values: at.map((t) => [t, "1"]) });
		return [beginOf([s(700, 710), s(500)], span), beginOf([s(90)], span), beginOf([s()], span)];`, `[500,0,0]`)
	f("when machines were missing", `
		const { missing } = await of("parts.js"), at = (s) => new Date(s * 1000).toISOString(), node = (name, state, through, enrolled = 0) => ({ name, state, booked_through: at(through), enrolled_at: at(enrolled) });
		const kinds = (...counts) => counts.map((nodes) => ({ groups: [{ kind: "idle", nodes, covered_seconds: 60 * nodes }] })), of1 = (...counts) => ({ buckets: counts.map((_, i) => ({ from: 60 * i, to: 60 * i + 60 })), ends: [0, 60 * counts.length], kinds: kinds(...counts) });
		const says = (list) => list.map((m) => m.from + "-" + m.to + " " + m.have + "/" + m.want + " " + m.names.join("+")), live = (...names) => names.map((n) => node(n, "live", 300));
		return [says(missing(of1(3, 3, 3, 3, 3), live("a", "b", "c"))), says(missing(of1(3, 2, 2, 3, 3), live("a", "b", "c"))), says(missing(of1(3, 3, 2, 2, 2), [...live("a", "b"), node("c", "behind", 130)])), says(missing(of1(3, 3, 1, 1, 1), [...live("a"), node("b", "silent", 125), node("c", "silent", 130)])),
			says(missing(of1(3, 3, 2, 1, 1), [...live("a"), node("b", "silent", 130), node("c", "silent", 220)])), says(missing(of1(2, 2, 3, 3, 3), [...live("a", "b"), node("c", "live", 300, 100)])), says(missing(of1(1, 1, 0, 0, 0), [node("a", "silent", 120)]))];`,
		`[[],["60-180 2/3 "],["130-300 2/3 c"],["125-300 1/3 b+c"],["130-220 2/3 b","220-300 1/3 b+c"],[],["120-300 0/1 a"]]`)
	f("the capacity of late, and that of all machines where some are missing", `
		const { capacityNow } = await of("parts.js"), buckets = [0, 1, 2, 3, 4, 5, 6, 7, 8].map((i) => ({ from: 60 * i, to: 60 * i + 60 })), all = [900, 500, 500, 500, 500, 500, 300, 20, null].map((v, i) => [60 * i, v]), hours = [[0, 400], [3600, 300], [7200, 100]];
		return [capacityNow(buckets, all, false), capacityNow(buckets, all, true), capacityNow([0, 3600, 7200].map((t) => ({ from: t, to: t + 3600 })), hours, false), capacityNow([], [], false)];`, `[500,900,300,0]`)
	f("the latest bucket of which most machines have sent data", `
		const { settledAt } = await of("parts.js"), counts = (...list) => ({ buckets: list.map((_, i) => ({ from: 60 * i, to: 60 * i + 60 })), kinds: list.map((nodes) => ({ groups: nodes ? [{ kind: "idle", nodes, covered_seconds: 60 * nodes }] : [] })) });
		return [settledAt(counts(9, 9, 9, 3, 1, 0)), settledAt(counts(9, 9, 9, 9)), settledAt(counts(9, 2, 2, 2, 2, 2, 2, 0)), settledAt(counts(0, 0)), settledAt(counts(1, 1))];`, `[2,3,6,-1,1]`)
	f("parts that are later than their whole", `
		const { stacks, stack, capacity } = await of("series.js"), { spanOf } = await of("span.js"), ask = window.fetch;
		let later = false, again = 0;
		window.fetch = async (path) => {
			const p = new URLSearchParams(String(path).split("?")[1]), [first_at, last_at] = [p.get("from"), p.get("to")], seconds = (Date.parse(last_at) - Date.parse(first_at)) / 1000;
			const group = (name, cpu, nodes = 4) => ({ kind: name, job: name, cpu_seconds: cpu * seconds, memory_byte_seconds: null, energy_joules: null, energy_error_joules: null, memory_average_bytes: null, nodes, covered_seconds: nodes * seconds, first_at, last_at, quality: {} });
			const answer = (whole, ...groups) => ({ from: first_at, to: last_at, averages_over_seconds: seconds, groups, total: { quality: {} }, whole: { cpu_seconds: whole * seconds } });
			if (p.get("by") === "job") { later = true; return new Response(JSON.stringify(answer(0, group("web", 8)))); }
			if (p.get("by") === "kind" && later) again++;
			return new Response(JSON.stringify(later && again ? answer(16, group("container", 9), group("idle", 7)) : answer(4, group("container", 2), group("idle", 2, 1))));
		};
		try {
			const d = await stacks({ by: "", span: spanOf({ from: 1700000400, to: 1700001000 }), nodes: 4 }), all = capacity(d, "cpu"), used = stack(d, "cpu", false);
			return [again > 0, all.every(([, v], i) => used.reduce((a, s) => a + (s.values[i][1] || 0), 0) <= v), Math.max(...all.map(([, v]) => v))];
		} finally { window.fetch = ask; }`, `[true,true,16]`)
	f("gaps that lost nothing and have no length", `const { isNothing } = await of("checks.js"); return [["clock-shifted", 0], ["clock-shifted", 0.0004], ["clock-shifted", 2], ["rebooted", 0], ["lost", 0]].map(([reason, seconds]) => isNothing({ reason, seconds }));`, `[true,true,false,false,false]`)
	f("what the legend says of marks", `
		const { keysOf } = await of("chart.js"), { missingMarks, gapMarks } = await of("parts.js"), m = (from, to, have) => ({ from, to, have, want: 4, names: [] });
		return [keysOf(missingMarks([m(10, 20, 3), m(20, 30, 0)]), [0, 100]), keysOf(missingMarks([m(10, 20, 3)]), [30, 100]), keysOf(gapMarks([{ reason: "lost", from: 0, to: 10 }, { reason: "clock-shifted", seconds: 0, from: 0, to: 0 }]), [0, 1e9])];`,
		`[[["nodes missing","warn"],["no data","bad"]],[],[["gap","bad"]]]`)
	f("cores and their share", `
		const { coresOf } = await of("pages/overview.js"), p = (workloads, whole) => ({ cpus: 2, cpu_cores: { workloads, system: 0.01, idle: whole - workloads - 0.01, whole } });
		return [coresOf(p(2, 2.012)), coresOf(p(1, 1.9)), coresOf(p(1, 2)), coresOf({ cpus: 2, cpu_cores: null })].map((v) => v && Number(v.toFixed(4)));`, `[1.998,1.01,1.01,null]`)
	f("the unit of a column and of its sum", `
		const { common, aligned, beside, text } = await of("fmt.js"), column = (unit, values, sum) => values.map((v) => aligned(v, unit, Math.max(...values), v, common(Math.max(...values), sum, unit)).join(" "));
		return [column("joules", [1700, 900, 20], 7000), column("joules", [200], 7000), column("joules", [200], 3000), column("seconds", [2000, 200, 30], 36000), column("seconds", [2000], 3.6e6), column("joules", [4e5, 3000, 2], 4e9), text(900, "joules", beside(900, "joules", 7000)), text(900, "joules", beside(900, "joules", 1000))];`,
		`[["0.472 Wh","0.250 Wh","0.006 Wh"],["0.056 Wh"],["0.200 kJ"],["0.556 h","0.056 h","30.0 s"],["33.33 min"],["0.111 kWh","0.83 Wh","0.001 Wh"],"0.25 Wh","900 J"]`)
	f("nodes in trouble, the oldest data first", `
		const { trouble } = await of("pages/nodes.js"), { sortBy } = await of("table.js"), node = (state, booked_through) => ({ state, booked_through });
		return sortBy([node("live", "2026-01-01T00:20:00Z"), node("silent", "2026-01-01T00:16:00Z"), node("revoked", ""), node("behind", "2026-01-01T00:06:00Z"), node("silent", null)], { value: trouble }, false).map((n) => n.state + (n.booked_through || "").slice(13, 16));`,
		`["silent","behind:06","silent:16","live:20","revoked"]`)
	f("the quality of what meters show", `
		const { flowOf } = await of("pages/flow.js"), row = (source, quality) => ({ place: "node", node: "n", job: "j", group: "g", space: "", source, domain: source + "s", value: 1, off: 0, quality }), { nodes, links } = flowOf([row("meters", "apportioned"), row("model", "modelled")]);
		return [nodes.map((n) => n.name + " " + n.quality), links.filter((l) => l.from.startsWith("source")).map((l) => l.quality)];`,
		`[["meters measured","meterss measured","g modelled","j modelled","model modelled","models modelled"],["measured","modelled"]]`)
	f("what is worst of a server", healthScript+`
		const first = (more) => { const list = problems(says(more)); return list.length ? list[0].state + " " + list[0].problem : ""; }, many = (n, state, ago) => Array.from({ length: n }, (_, i) => ({ ...node(state, ago), name: state + i })), rule = (state, severity) => ({ type: "alerting", name: "Down", labels: { severity }, state, health: "ok" });
		return [first({ nodes: many(24, "silent", 600) }), first({ nodes: [...many(23, "live", 5), ...many(1, "behind", 600)] }), first({ nodes: [...many(3, "live", 5), ...many(5, "behind", 600)] }), first({ nodes: [node("behind", 60)] }), first({ rules: [beat, rule("pending", "critical")] }), first({ rules: [beat, rule("pending", "warning")] })];`,
		`["bad No data arrives: all 24 nodes are silent, latest data 10 min ago","warn 1 of 24 nodes sends no recent data: 1 behind, oldest data 10 min ago","bad 5 of 8 nodes send no recent data: 5 behind, oldest data 10 min ago","warn behind is behind, latest data 60 s ago","warn Down (critical) will fire if this lasts",""]`)
	f("the quality of a meter of the whole machine beside meters of its parts", `
		const { flowOf } = await of("pages/flow.js"), row = (node, domain) => ({ place: "node", node, job: "j", group: "g", space: "", source: "meters", domain, value: 1, off: 0, quality: "apportioned" });
		const says = (...rows) => flowOf(rows).nodes.filter((n) => n.id.startsWith("domain ")).map((n) => n.name + " " + n.quality);
		return [says(row("a", "whole machine")), says(row("a", "whole machine"), row("a", "memory")), says(row("a", "whole machine"), row("b", "memory"))];`,
		`[["whole machine measured"],["whole machine apportioned","memory measured"],["whole machine measured","memory measured"]]`)
	f("times of a column whose largest is some days", `const { aligned } = await of("fmt.js"); return [[1728, 290563], [1728, 7200], [86400, 3.6e7]].map(([v, like]) => aligned(v, "seconds", like).join(" "));`, `["0.48 h","0.480 h","1.0 d"]`)
	f("curves where no machine was measured", `
		const { linesOf } = await of("pages/jobs.js"), answer = (cpu, whole, ...groups) => ({ averages_over_seconds: 60, groups: groups.map((job) => ({ job, cpu_seconds: cpu })), whole: { cpu_seconds: whole } });
		return Object.values(linesOf([{ job: "a" }], [0, 1, 2, 3].map((i) => ({ from: 60 * i, to: 60 * i + 60 })), [answer(6, 60, "a"), answer(6, 60, "b"), answer(0, 0), answer(6, 60, "a")]))[0];`, `[0.1,0,null,0.1]`)
	f("by how much parts differ from the whole", `const { offset } = await of("pages/live.js"); return [0.33, -0.33, 0.001, -0.001, 0].map(offset);`, `["read twice 0.33","in earlier seconds 0.33","","",""]`)
}

// Page Jobs says first what is wrong, and of each job whether it runs, since when and for how long, as the ledger has it. Pages
// say of how many machines their sums and charts are.
func TestJudgedInChromium(t *testing.T) {
	needPagesStage(t)
	f := fleet.Open(t, fleet.Config{Nodes: 3, Each: 4, Tame: true})
	bookRuns(t, f, 60)
	ctx := browser(t)
	u := signIn(t, ctx, f, 1440, 900, "/jobs?range=1h&cols=state~begin~length~cpu_seconds")
	u.sees("the jobs", `document.querySelectorAll("tbody tr:not(.spacer)").length >= 5`)
	judged(t, func(what, script, want string) { t.Helper(); expect(t, ctx, what, script, want) })
	u.sees("the failed run first, whose it is, and why", `(() => { const li = document.querySelector('[aria-label="Attention"] li'); return li.dataset.job === "ci" && li.innerText.includes("ann · north") && /1 of 60 runs failed, the latest of them: out of memory \(137\), on runner/.test(li.innerText) && /CPU \+\d+ %/.test(li.innerText); })()`)
	a, err := f.Server.Ledger.Usage(t.Context(), query.Query{From: time.Now().Add(-time.Hour).Truncate(time.Minute), To: time.Now().Add(time.Minute).Truncate(time.Minute), By: []query.Dimension{query.ByJob, query.ByKind}, Scope: query.Scope{All: true}})
	if err != nil {
		t.Fatal(err)
	}
	shown, err := chromedp.Run(ctx, chromedp.Evaluate[string](`JSON.stringify([...document.querySelectorAll('[aria-label="jobs"] tbody tr:not(.spacer)')].map((tr) => [...tr.cells].map((c) => c.innerText.trim())).filter((c) => c[0] !== "ci").map((c) => ({ Job: c[0], State: c[1], Start: c[2], Minutes: parseFloat(c[3]) })))`))
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		Job, State, Start string
		Minutes           float64
	}
	var rows []row
	if err := json.Unmarshal([]byte(shown), &rows); err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, g := range a.Groups {
		if g.Keys[1] != "container" {
			continue
		}
		compared++
		// The last minute has begun only: the page ends with the present.
		i := slices.IndexFunc(rows, func(r row) bool { return r.Job == g.Keys[0] })
		if i < 0 || rows[i].Start != g.First.Local().Format("15:04") || math.Abs(rows[i].Minutes-g.Last.Sub(g.First).Minutes()) > 1 || (rows[i].State != "running" && rows[i].State != "unknown") {
			t.Errorf("%s from %v to %v is not on the page: %s", g.Keys[0], g.First, g.Last, shown)
		}
	}
	if compared != len(rows) || compared < 4 {
		t.Errorf("%d rows on the page, %d in the ledger: %s", len(rows), compared, shown)
	}
	u.sees("a run that ended", `[...document.querySelectorAll('[aria-label="jobs"] tbody tr')].some((tr) => tr.cells[0].innerText.trim() === "ci" && /^ended\s*1 failed$/.test(tr.cells[1].innerText.trim()))`)
	u.clicks(`header .labels button.tag`)
	u.sees("those with problems alone", `location.search.includes("state=wrong") && [...document.querySelectorAll('[aria-label="jobs"] tbody tr:not(.spacer)')].map((tr) => tr.cells[0].innerText.trim()).join() === "ci"`)
	u.opens(f.URL + "/?range=15m")
	u.sees("of how many machines the sums are", `[...document.querySelectorAll('[aria-label="now"] h3 .lacks')].map((e) => e.innerText).join() === Array(5).fill("2 of 4 nodes").join()`)
	u.sees("powers of a legend in one unit", `(() => { const of = [...document.querySelectorAll('.card:has([aria-label^="Power: "]) .legend b')].map((b) => b.innerText).filter((v) => v !== "–" && !v.startsWith("0")); return of.length > 2 && new Set(of.map((v) => v.split(" ")[1])).size === 1; })()`)
	u.sees("since when the charts lack machines", `/[23] of 4 nodes since \d\d:\d\d/.test(document.querySelector(".card .note .lacks")?.innerText)`)
}

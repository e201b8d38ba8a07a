package web_test

import (
	"net/url"
	"testing"

	"github.com/chromedp/chromedp"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/fleet"
	"mete.dev/mete/internal/testkit/hosttest"
)

// Pages show what pods reserve beside what they use, and nowhere as a workload of its own; where nothing is known to be
// reserved, no page has a place for it.
func TestReservedInChromium(t *testing.T) {
	needPagesStage(t)
	f := fleet.Open(t, fleet.Config{Nodes: 2, Each: 8, Tame: true, Reserved: true})
	ctx := browser(t)
	heads := func(label, texts string) string {
		return `(() => { const of = [...document.querySelectorAll('[aria-label="` + label + `"] thead th')].map((th) => th.innerText.replace(/[↓↑]/, "").trim()); return of.length > 2 && ` + texts + `; })()`
	}
	u := signIn(t, ctx, f, 1440, 900, "/jobs?range=1h")
	u.sees("what is not used", heads("jobs", `["CPU unused", "Memory unused"].every((h) => of.includes(h)) && !of.includes("CPU limit")`))
	picture(t, ctx, "reserved-jobs")
	over, err := chromedp.Run(ctx, chromedp.Evaluate[string](`(() => { const wide = (e) => e.scrollWidth > e.clientWidth + 1; return [document.querySelector('[aria-label="jobs"]'), ...document.querySelectorAll("tbody tr:not(.spacer) td.num, tfoot td")].filter(wide).map((e) => (e.ariaLabel || e.innerText) + " " + e.scrollWidth + " > " + e.clientWidth).join(); })()`))
	if err != nil || over != "" {
		t.Errorf("wider than their place: %s, %v", over, err)
	}
	u.sees("which columns", heads("jobs", `of.join() === "Job,State,Start,Namespace,Cluster,Nodes,CPU,Memory,Energy,CPU unused,Memory unused"`))
	u.button("Columns")
	u.sees("the choice of the limit", `(() => { const l = [...document.querySelectorAll(".pop label")].find((l) => l.innerText.trim() === "CPU limit"); l?.querySelector("input").click(); return Boolean(l); })()`)
	u.sees("limits, and which part of the time has one", `(() => { const cells = [...document.querySelectorAll('[aria-label="jobs"] tbody td.num')].map((td) => td.innerText.trim()); return cells.includes("none") && [...document.querySelectorAll('[aria-label="jobs"] tfoot td')].some((td) => /^[\d.]+ ?\w+\s*\d+ %$/.test(td.innerText.trim())); })()`)
	u.opens(f.URL + "/jobs?range=1h&cols=kind~cpu_seconds~cpu_reserved_seconds~cpu_limit_seconds~cpu_unused_seconds~memory~memory_reserved~memory_limit~memory_unused~storage_reserved~gpu_reserved_seconds&sort=memory_unused.down")
	u.sees("the largest first", heads("jobs", `of.includes("GPUs reserved") && document.querySelector('[aria-sort="descending"]').innerText.includes("Memory unused")`))
	picture(t, ctx, "reserved-jobs-all")
	u.opens(f.URL + "/job?range=1h&job=checkout&parts=workload")
	u.sees("what is used, reserved, limited and not used", `(() => { const rows = [...document.querySelectorAll('[aria-label="used and reserved"] tbody tr')].map((tr) => [...tr.children].map((c) => c.innerText.replace(/\s+/g, " ").trim())); return rows.length >= 3 && rows[0][0] === "CPU" && rows[1][0] === "Memory" && rows.slice(0, 2).every((r) => /^[\d.]+ ?\w/.test(r[1]) && /^[\d.]+ ?\w/.test(r[2]) && /%$/.test(r[4])) && rows[0].length === 5; })()`)
	u.sees("what parts reserve", heads("parts by workload", `["CPU reserved", "CPU unused", "Memory reserved", "Memory unused"].every((h) => of.includes(h))`))
	u.sees("no workload that only reserves", `document.querySelectorAll('[aria-label="parts by workload"] tbody tr:not(.spacer)').length >= 2 && !document.body.innerText.includes("(reserved)") && [...document.querySelectorAll('[aria-label="parts by workload"] tbody tr:not(.spacer) td.num')].some((td) => /\d/.test(td.innerText))`)
	u.sees("an end of the list of absent figures without what is known", `!/cpu limited time|memory reserved/i.test([...document.querySelectorAll("p.reading")].map((p) => p.innerText).join())`)
	picture(t, ctx, "reserved-job")
	u.sees("the parts", `(document.querySelector('[aria-label="Parts"]').scrollIntoView({ block: "start" }), true)`)
	picture(t, ctx, "reserved-job-parts")

	g := fleet.Open(t, fleet.Config{Nodes: 2, Each: 8, Tame: true})
	u = signIn(t, browser(t), g, 1440, 900, "/jobs?range=1h")
	u.sees("no column of it", heads("jobs", `!of.some((h) => /unused|reserved/i.test(h))`))
	u.opens(g.URL + "/job?range=1h&job=checkout&parts=workload")
	u.sees("no word of it", heads("parts by workload", `!/unused|reserved|limited time/i.test(document.querySelector("#main").innerText) && document.querySelector('[aria-label="raw figures"]') !== null`))
}

// Pages show what volumes without CPU time reserve, what is used of them, and what is not, if it is known.
func TestVolumesInChromium(t *testing.T) {
	needPagesStage(t)
	f := fleet.Open(t, fleet.Config{Nodes: 2, Each: 4, Tame: true, Reserved: true, Volumes: true})
	ctx := browser(t)
	u := signIn(t, ctx, f, 1440, 900, "/job?range=1h&job="+url.QueryEscape(fleet.VolumeJob))
	u.sees("used, reserved and not used", `(() => { const rows = [...document.querySelectorAll('[aria-label="used and reserved"] tbody tr')].map((tr) => [...tr.children].map((c) => parseFloat(c.innerText.trim()) || c.innerText.trim())); const r = rows[0]; return rows.length === 1 && r[0] === "Storage" && r[1] > 0 && Math.abs(r[2] / r[1] - 8) < 0.1 && Math.abs(r[4] / r[1] - 3) < 0.1; })()`)
	u.sees("a chart of it", `[...document.querySelectorAll("section.card")].some((c) => c.innerText.startsWith("Storage") && c.querySelector("canvas, svg.chart, .chart")) && !/not available|absent/i.test(document.querySelector("#main").innerText)`)
	u.sees("nothing of what volumes cannot have", `document.querySelector('[aria-label="in this range"], [aria-label="parts by"]') === null && !/running|Nodes/.test(document.querySelector("#main").innerText)`)
	u.sees("each volume", `(() => { const rows = [...document.querySelectorAll('[aria-label="parts by workload"] tbody tr:not(.spacer)')].map((tr) => tr.innerText); return rows.length === 4 && rows.filter((r) => r.includes("pv-index")).length === 2; })()`)
	picture(t, ctx, "volume-job")
	u.opens(f.URL + "/jobs?range=1h&cols=storage~storage_reserved&sort=storage.down")
	u.sees("the columns of its row", `(() => { const row = [...document.querySelectorAll('[aria-label="jobs"] tbody tr')].find((tr) => tr.innerText.includes("persistentvolumeclaim")); const v = row && [...row.querySelectorAll("td.num")].map((td) => parseFloat(td.innerText)).filter((v) => v > 0); return v && v.length === 2 && Math.abs(v[1] / v[0] - 8) < 0.1; })()`)
}

// reservedColumns are the columns of page Jobs of what is reserved.
func reservedColumns(a *v1.Usage) []column {
	average := func(key string) func(g *v1.Group) figure {
		return func(g *v1.Group) figure { return whileItRan(g, key, "B", a.Over()) }
	}
	return []column{{title: "CPU reserved", key: "cpu_reserved_seconds"}, {title: "CPU unused", key: "cpu_unused_seconds"}, {title: "Memory reserved", derive: average("memory_reserved_byte_seconds")},
		{title: "Memory unused", derive: average("memory_unused_byte_seconds")}, {title: "Storage reserved", derive: average("storage_reserved_byte_seconds")}, {title: "GPUs reserved", key: "gpu_reserved_seconds"}}
}

// Pages show what is reserved and not used as the ledger has it, in the table of jobs and in that of the parts of a job.
func TestPageFiguresReserved(t *testing.T) {
	testkit.Stage(t, "page-figures", "a browser compares tables with the ledger")
	hosttest.Need(t, "chromium")
	ctx := browser(t)
	f := fleet.Open(t, fleet.Config{Nodes: 4, Each: 8, Tame: true, Reserved: true, Days: 3})
	u := signIn(t, ctx, f, 1440, 900, "/query")
	u.sees("the page", `document.querySelector("#main") !== null`)
	u.watch()
	ask := func(requests []string, by string, where map[query.Dimension][]string, of ...query.Dimension) *v1.Usage {
		t.Helper()
		from, to := asked(t, requests, "/v1/usage", by)
		a, err := f.Server.Ledger.Usage(t.Context(), query.Query{From: from, To: to, By: of, Where: where, Unused: true, Scope: query.Scope{All: true}})
		if err != nil {
			t.Fatal(err)
		}
		return v1.UsageOf(a, nil)
	}
	for _, r := range []string{"1h", "24h"} {
		path := "/jobs?cols=kind~cpu_seconds~cpu_reserved_seconds~cpu_unused_seconds~memory_reserved~memory_unused~storage_reserved~gpu_reserved_seconds&range=" + r
		a := ask(u.opensFresh(f, path), "job,kind", nil, query.ByJob, query.ByKind)
		checkRows(t, path, u.table("jobs"), workloads(a.Groups, 1), []string{"Job", "Kind"}, reservedColumns(a))
		path = "/job?job=checkout&parts=container&range=" + r
		where := map[query.Dimension][]string{query.ByJob: {"checkout"}}
		a = ask(u.opensFresh(f, path), "namespace,pod,container,user", where, query.ByNamespace, query.ByPod, query.ByContainer, query.ByUser)
		for i := range a.Groups {
			a.Groups[i].Keys = a.Groups[i].Keys[:3] // pods have no users
		}
		checkRows(t, path, u.table("parts by container"), a.Groups, []string{"Namespace", "Pod", "Container"}, []column{{title: "CPU reserved", key: "cpu_reserved_seconds"}, {title: "CPU unused", key: "cpu_unused_seconds"},
			{title: "Memory reserved", key: "memory_reserved_byte_seconds"}, {title: "Memory unused", key: "memory_unused_byte_seconds"}})
	}
}

package web_test

import (
	"testing"
	"time"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"mete.dev/mete/internal/testkit/fleet"
)

// With many series, page Query tells them apart, and shows their pages, quality and error; page Job says how many
// workloads it lists.
func TestManyInChromium(t *testing.T) {
	needPagesStage(t)
	f := fleet.Open(t, fleet.Config{Nodes: 60, Each: 48, Windows: 3, Window: time.Minute, Tame: true})
	ctx := browser(t)
	u := signIn(t, ctx, f, 1440, 900, `/query?range=15m&expr=mete_node_power_watts{node=~"rack[1-3]-.*",part!="system"}`)
	const keys = `[...document.querySelectorAll(".legend .key button span")].map((s) => s.innerText)`
	u.sees("different names of a node and a part", keys+`.length === 48 && new Set(`+keys+`).size === 48 && `+keys+`.every((n) => /^rack\d+-n\d\d (workloads|idle)$/.test(n))`)
	u.sees("no name cut", `[...document.querySelectorAll(".legend .key button span")].every((s) => s.scrollWidth <= s.clientWidth)`)
	u.sees("the quality, and a link to the node", `document.querySelectorAll(".legend .key .quality").length === 48 && /^\/node\/rack\d+-n\d\d\?range=15m$/.test(document.querySelector(".legend .key a").getAttribute("href"))`)
	picture(t, ctx, "many-query")
	u.opens(f.URL + "/query?range=15m&expr=sum+by+(node)+(mete_node_power_watts)")
	u.sees("the possible error of each that did not end", `document.querySelectorAll(".legend .key .off").length === 59 && /^± [\d.]+ W$/.test(document.querySelector(".legend .key .off").innerText)`)
	picture(t, ctx, "many-query-power")
	u.opens(f.URL + "/query?range=15m&mode=table&expr=sum+by+(node)+(mete_node_power_watts)")
	u.sees("links, errors and qualities in the table", `[...document.querySelectorAll("tbody tr:not(.spacer)")].every((tr) => tr.querySelector('a[href^="/node/rack"]') && /W± [\d.]+ W/.test(tr.lastElementChild.innerText.replace(/\s+(?=±)/, "")) && tr.querySelector(".quality"))`)
	picture(t, ctx, "many-query-table")
	u.opens(f.URL + `/query?range=15m&expr=rate(mete_workload_cpu_seconds_total[2m]) and on (cluster, node, workload) mete_workload_info{kind="container"}`)
	u.sees("names of workloads that differ", keys+`.length === 60 && `+keys+`.every((n) => !/[a-z0-9]{26}|\(\d+\)$/.test(n))`)
	u.sees("a link to the job", `/^\/job\?job=[a-z-]+&node=rack/.test(document.querySelector(".legend .key a").getAttribute("href"))`)
	picture(t, ctx, "many-query-workloads")

	u.opens(f.URL + "/query")
	u.sees("a large energy with a large error", `(() => { const ask = window.fetch; window.fetch = async (path, more) => {
		const r = await ask(path, more);
		if (!path.startsWith("/v1/usage?by=job%2Ckind%2Cnamespace%2Cuser%2Ccluster&fields=")) return r;
		const a = await r.json();
		for (const g of a.groups) [g.energy_joules, g.energy_error_joules] = [33.68 * 3.6e6, 33.09 * 3.6e6];
		return new Response(JSON.stringify(a));
	}; return true; })()`)
	u.clicks(`nav a[href^="/jobs"]`)
	u.sees("no figure of page Jobs cut", `document.querySelector("tbody td:last-child")?.innerText.includes("± 33.09 kWh") && [...document.querySelectorAll("tbody td.num")].every((td) => td.scrollWidth <= td.clientWidth)`)
	picture(t, ctx, "many-jobs")
	u.opens(f.URL + "/flow?range=15m&cluster=north")
	u.sees("in how many namespaces the largest job is", `/in 3 namespaces/.test([...document.querySelectorAll('[aria-label="sums"] .stat')].find((s) => s.querySelector("h3").innerText === "Largest job").innerText)`)
	u.opens(f.URL + "/job?job=kafka&range=15m")
	u.sees("a number above those that are listed", `(() => { const t = document.querySelector('[aria-label="About"]')?.innerText || ""; return t.includes("more than 300: list them under Parts") && !t.includes("io.kubernetes") && /Cluster\s+north, south\n/.test(t); })()`)
	u.sees("what the job is, in one line", `(() => { const l = document.querySelector(".facts-line").innerText.replace(/\s+/g, " "); return /^container (running|unknown since \d\d:\d\d) user ada, edsger, grace 60 nodes more than 300 workloads$/.test(l); })()`)
	u.sees("the memory of all workloads, without the peak of one", `(() => { const tile = [...document.querySelectorAll(".stat")].find((s) => s.querySelector("h3").innerText === "Memory"); return /^[1-9]\d\d\s*GiB$/.test(tile.querySelector(".value").innerText.trim()) && !tile.innerText.includes("peak") && tile.innerText.includes("per running workload"); })()`)
	u.sees("whose peak it is", `document.querySelector('[aria-label="raw figures"] td[title=memory_peak_bytes]').innerText === "Memory, largest peak of a workload" && [...document.querySelectorAll('[aria-label="parts by node"] th')].some((th) => th.innerText === "Workload peak")`)
	u.sees("known figures only, and which are absent", `!document.querySelector('[aria-label="raw figures"]').innerText.includes("absent") && /^Absent, which is not zero: CPU throttled, /.test(document.querySelector('[aria-label="All figures"] .reading').innerText)`)
	u.button("list them under Parts")
	u.sees("the workloads", `location.search.includes("parts=workload") && document.querySelectorAll('[aria-label="parts by workload"] tbody tr').length > 10`)
	u.sees("which of the rows are seen", `/^Rows 1–(9|1\d) of 360$/.test(document.querySelector('[aria-label="Parts"] .place .num').innerText)`)
	u.sees("the last of them", `(() => { const box = document.querySelector('[aria-label="parts by workload"]'); box.scrollTop = box.scrollHeight; return /^Rows 35\d–360 of 360$/.test(document.querySelector('[aria-label="Parts"] .place .num').innerText); })()`)
	u.button("Show all 360")
	u.sees("all rows at once", `(() => { const box = document.querySelector('[aria-label="parts by workload"]'); return box.querySelectorAll("tbody tr:not(.spacer)").length === 360 && box.scrollHeight <= box.clientHeight + 1; })()`)
	u.button("Show fewer")
	u.sees("one text of one sum", `document.querySelector('[aria-label="parts by workload"] tfoot td').innerText === document.querySelector(".stat .value").innerText.trim()`)
	picture(t, ctx, "many-job")
	u.opens(f.URL + "/job?job=kafka&node=rack1-n01&range=15m")
	const facts = `[...document.querySelectorAll('[aria-label="About"] dt')].map((d) => d.innerText.trim())`
	u.sees("only labels that all workloads have", facts+`.includes("io.kubernetes.container.name") && `+facts+`.includes("app") && !`+facts+`.includes("io.kubernetes.pod.name")`)
}

// A screen that becomes wide while the page loads gets the wide diagram of page Energy flow at once.
func TestWideInChromium(t *testing.T) {
	needPagesStage(t)
	f := fleet.Open(t, fleet.Config{Nodes: 3, Each: 4, Tame: true})
	ctx := browser(t)
	u := signIn(t, ctx, f, 1440, 900, "/query")
	u.sees("the page", `document.querySelector("#main") !== null`)
	// The screen becomes wide before the page listens to its changes.
	script := page.AddScriptToEvaluateOnNewDocumentParams{Source: `(() => {
		const real = window.matchMedia.bind(window);
		window.matchMedia = (q) => { let narrow = true; return q === "(max-width: 40rem)" ? { get matches() { return narrow; }, addEventListener() { narrow = false; }, removeEventListener() {} } : real(q); };
	})()`}
	if _, err := chromedp.Call(ctx, page.AddScriptToEvaluateOnNewDocument, script); err != nil {
		t.Fatal(err)
	}
	u.opens(f.URL + "/flow?range=15m")
	u.sees("the levels of the wide diagram", `document.querySelector(".sankey")?.ariaLabel.includes("meters to CPU packages")`)
	u.sees("who and where used most, with a link", `(() => { const of = (t) => [...document.querySelectorAll('[aria-label="sums"] .stat')].find((s) => s.querySelector("h3").innerText === t); return of("Largest job").querySelector("a").getAttribute("href").startsWith("/job?job=") && of("Largest node").querySelector("a").getAttribute("href").startsWith("/node/rack1-n0") && ["Workloads", "System", "Idle"].every((t) => of(t).querySelector(".quality.apportioned") && of(t).innerText.includes("±")); })()`)
	u.sees("the quality and the page of each flow", `[...document.querySelectorAll('[aria-label="all flows"] tbody tr:not(.spacer)')].every((tr) => tr.querySelector(".quality.apportioned") || tr.cells[0].innerText === "meters") && document.querySelectorAll('[aria-label="all flows"] tbody a[href^="/node/"]').length > 3`)
	picture(t, ctx, "wide-flow")
	u.opens(f.URL + "/node/rack1-n02?range=15m")
	u.clicks(`.facts-line a[href^="/flow?node=rack1-n02"]`)
	u.sees("the flow of one node, without a level of nodes", `location.search === "?node=rack1-n02&range=15m" && document.querySelector(".sankey")?.ariaLabel.includes("CPU packages to idle") && !document.querySelector('[aria-label="all flows"] a[href^="/node/"]')`)
	u.sees("small energies in the unit of the total", `[...document.querySelectorAll('[aria-label="all flows"] tbody tr:not(.spacer)')].every((tr) => !/ J|kJ/.test(tr.innerText)) && !/kJ/.test(document.querySelector('[aria-label="sums"]').innerText)`)
	u.button("Show all nodes")
	u.sees("all of them again", `document.querySelectorAll('[aria-label="all flows"] a[href^="/node/"]').length > 3`)
	u.sees("the choice of a cluster", `(() => { const s = document.querySelector("select"); s.value = "south"; s.dispatchEvent(new Event("change")); return true; })()`)
	u.sees("the flow of that cluster", `location.search.includes("cluster=south") && document.querySelector('[aria-label="sums"] .stat') && !document.querySelector('[aria-label="all flows"] a[href^="/node/rack1-n01"]')`)
}

package web_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/testkit/fleet"
)

// stripScript returns, of each plot of the page, whether the strip below its zero is red half a minute before an
// instant, in ms, and half a minute after it.
const stripScript = `(async () => {` + drawnScript + `
	const at = %d / 1000, tone = document.createElement("canvas").getContext("2d");
	tone.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--bad").trim();
	tone.fillRect(0, 0, 1, 1);
	const bad = tone.getImageData(0, 0, 1, 1).data;
	const isRed = (u, t) => { const p = u.ctx.getImageData(Math.round(u.valToPos(t, "x", true)), u.bbox.top + u.bbox.height + 4, 1, 1).data; return p[3] > 0 && [0, 1, 2].every((i) => Math.abs(p[i] - bad[i]) < 40); };
	return plots.map((u) => isRed(u, at - 30) + " " + isRed(u, at + 30)).join();
})()`

// After an outage, pages Query and Job show where the data ended, and draw and claim nothing for the time since then.
func TestSinceInChromium(t *testing.T) {
	needPagesStage(t)
	f := fleet.Open(t, fleet.Config{Nodes: 3, Each: 8, Tame: true, Ago: 4 * time.Minute})
	nodes, err := f.Server.Ledger.Nodes(t.Context(), query.Scope{All: true})
	if err != nil {
		t.Fatal(err)
	}
	ended := nodes[0].Through
	ctx := browser(t)
	u := signIn(t, ctx, f, 1440, 900, "/query?range=15m&expr=sum+by+(part)+(mete_node_cpu_cores)")
	clock := ended.Local().Format("15:04")
	strips := func(want string) {
		t.Helper()
		if got := evaluate[string](u, fmt.Sprintf(stripScript, ended.UnixMilli())); got != want {
			t.Errorf("red before and after the end of the data: %s, want %s", got, want)
		}
	}
	latest := `Date.parse(new Date().toDateString() + " " + document.querySelector(".legend .at").innerText.replace("latest: ", ""))`
	u.sees("since when there is no data", `document.querySelector(".begins .lacks.bad")?.innerText === "no data since `+clock+`"`)
	u.sees("no value after the end of the data", fmt.Sprintf(`%[1]s <= %[2]d && %[1]s > %[2]d - 60000`, latest, ended.UnixMilli()))
	strips("false true")
	picture(t, ctx, "since-query")
	u.opens(f.URL + "/query?range=15m&mode=table&expr=sum+by+(part)+(mete_node_cpu_cores)")
	u.sees("since when the values of the table are old", `document.querySelector(".begins .lacks.bad")?.innerText === "no data since `+clock+`"`)
	u.opens(f.URL + "/query?range=15m&expr=mete_node_up")
	u.sees("that the server knows who sends", `document.querySelector(".legend .at")?.innerText && document.querySelector(".begins .lacks") === null`)
	expect(t, ctx, "which queries and values end", `
		const { isMeasured, nodesOf, endedOf } = await of("pages/query.js"), at = (s) => new Date(s * 1000).toISOString();
		const node = (name, cluster, ends) => ({ name, cluster, booked_through: at(ends) }), all = [node("a1", "x", 20), node("a2", "x", 40), node("b1", "y", 90)], late = all.slice(0, 2);
		const names = (query) => nodesOf(query, all).map((n) => n.name).join("+"), ends = (metric) => endedOf({ metric, values: [[10, "1"], [30, "1"], [50, "1"]] }, all, late).length;
		return [["mete_node_power_watts", "rate(mete_workload_cpu_seconds_total[2m])", "mete_node_up", "mete_node_power_watts > mete_node_power_cap_watts", "mete_node_cpu_cores offset 1h", "time()"].map(isMeasured),
			[names("x{node=\"a1\"}"), names("x{node=~'a.'} / y{cluster!=\"x\"}"), names("x{node!~\"a.\"}"), names("sum by (node) (x)")], [{ node: "a1" }, { node: "a2" }, { node: "b1" }, { cluster: "x" }, {}].map(ends)];`,
		`[[true,true,false,false,false,false],["a1","","b1","a1+a2+b1"],[1,2,3,2,3]]`)

	u.opens(f.URL + "/job?job=kafka&range=15m")
	u.sees("a state that is not known", `document.querySelector(".facts-line .tag.warn")?.innerText === "unknown since `+clock+`" && document.querySelector('[aria-label="About"]').innerText.includes("unknown since `+clock+`")`)
	u.sees("since when each chart has no data", `document.querySelectorAll(".uplot").length > 3 && [...document.querySelectorAll(".card:has(.uplot) header")].every((h) => h.innerText.includes("no data since `+clock+`"))`)
	strips(strings.TrimSuffix(strings.Repeat("false true,", evaluate[int](u, `document.querySelectorAll(".uplot").length`)), ","))
	picture(t, ctx, "since-job")
	u.opens(f.URL + "/nodes")
	u.sees("on page Nodes, since when nothing arrives", `document.querySelector("#stopped")?.innerText.includes("`+clock+`") && document.querySelector('[aria-label="most"]').classList.contains("old") && /as of `+clock+`:\d\d, \d+ (s|min) ago/.test(document.querySelector('[aria-label="most"] .source')?.innerText)`)
	picture(t, ctx, "since-nodes")
	u.opens(fmt.Sprintf("%s/job?job=kafka&from=%d&to=%d", f.URL, ended.Add(-10*time.Minute).Unix(), ended.Add(-time.Minute).Unix()))
	u.sees("a range that is over", `document.querySelector(".facts-line .tag.good")?.innerText === "running" && document.querySelectorAll(".uplot").length > 3 && document.querySelector(".lacks.bad") === null`)
}

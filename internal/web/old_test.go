package web_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/testkit/fleet"
)

// Where no machine has sent data for hours, Overview and Node say since when, and lead to the latest
// data, in place of empty charts and of tiles without a reason. Other pages with figures up to now say it too.
func TestOldDataInChromium(t *testing.T) {
	needPagesStage(t)
	const ago = 5 * time.Hour
	f := fleet.Open(t, fleet.Config{Nodes: 1000, Each: 2, Windows: 15, Window: time.Minute, Ago: ago, Tame: true})
	ended := time.Now().Add(-ago)
	ctx := browser(t)
	u := signIn(t, ctx, f, 1440, 900, "/query")
	u.sees("the page", `document.querySelector("#main") !== null`)
	for _, page := range []string{"/", "/node/rack1-n01"} {
		u.opens(f.URL + page + "?range=1h")
		u.sees("since when there is no data", `/^No data since /.test(document.querySelector("#blank b")?.innerText) && document.querySelector("#blank").innerText.includes("5 h ago")`)
		expect(t, ctx, "the time of the latest data", `
			const { get } = await of("api.js"), { when } = await of("fmt.js"), ends = (await get("/v1/nodes", {})).nodes.map((n) => Date.parse(n.booked_through));
			return document.querySelector("#blank b").innerText === "No data since " + when(Math.max(...ends));`, "true")
		u.sees("no other empty chart", `![...document.querySelectorAll(".hollow")].length && document.querySelectorAll(".uplot").length === 0`)
		u.sees("it in the tiles too", `[...document.querySelectorAll("section[aria-label=now] .below")].filter((e) => e.innerText.startsWith("no data since ")).length === 5`)
		picture(t, ctx, "old-blank")
		u.button("Show the latest data")
		u.sees("the latest data", fmt.Sprintf(`(() => { const q = new URLSearchParams(location.search), to = Number(q.get("to")); return Math.abs(to - %d) < 120 && to - Number(q.get("from")) === 3600 && document.querySelectorAll(".uplot canvas").length >= 4 && !document.querySelector("#blank"); })()`, ended.Unix()))
		u.opens(f.URL + page + "?range=24h")
		u.sees("charts, and since when they end", `document.querySelectorAll(".uplot canvas").length >= 4 && document.querySelector("#stopped")?.innerText.includes("No data since ")`)
		picture(t, ctx, "old-stopped")
	}
	for _, page := range []string{"/", "/jobs", "/job?job=kafka", "/flow", "/query"} {
		u.opens(f.URL + page + map[bool]string{true: "&", false: "?"}[strings.Contains(page, "?")] + "range=24h")
		u.sees(page+" says that all nodes are out, once", `document.querySelectorAll("#stopped").length === 1 && document.querySelector("#stopped.bad").innerText.includes("from any of 1,000 nodes")`)
	}
	u.opens(f.URL + "/jobs?from=1700000000&to=1700003600")
	u.sees("nothing of it about a range in the past", `document.querySelector("#stopped") === null`)
}

package web_test

import (
	"testing"

	"github.com/chromedp/chromedp"

	"mete.dev/mete/internal/testkit/fleet"
)

// Where the server is down, each part of a page with earlier data is gray, and a page without any says
// so and does not wait.
func TestDownInChromium(t *testing.T) {
	needPagesStage(t)
	f := fleet.Open(t, fleet.Config{Nodes: 3, Each: 4, Tame: true})
	ctx := browser(t)
	u := signIn(t, ctx, f, 1440, 900, "/?range=15m")
	u.sees("the page", `document.querySelectorAll(".uplot canvas").length >= 4 && document.querySelectorAll(".rank li").length > 2 && document.querySelectorAll("#main .fleet a").length === 3 && !document.querySelector(".skeleton")`)
	f.Restart(t) // at another address
	u.presses("r")
	u.sees("that the data is earlier", `document.querySelector("#down")?.innerText.includes("What is gray is earlier data.")`)
	colored, err := chromedp.Run(ctx, chromedp.Evaluate[string](`[...document.querySelectorAll("#main :is(.stat, .chart, .rank, .wholes, .fleet, .attention, .calm)")].filter((e) => { for (let x = e; x; x = x.parentElement) if (getComputedStyle(x).filter === "grayscale(0.8)") return false; return true; }).map((e) => e.className).join()`))
	if err != nil || colored != "" {
		t.Errorf("not gray: %s, %v", colored, err)
	}
	picture(t, ctx, "down-overview")
	for _, page := range []string{"jobs", "nodes", "flow", "query", "alerts", "health"} {
		u.clicks(`nav a[href^="/` + page + `"]`)
		u.sees(page+" without data", `location.pathname === "/`+page+`" && document.querySelector("#down").innerText.includes("No data is loaded.") && !document.querySelector(".skeleton") && document.querySelector("#main .empty, #main .wrong")?.innerText.includes("No data loaded")`)
		picture(t, ctx, "down-"+page)
	}
}

// A server without machines does not claim that everything works, and an address without a page is named.
func TestEmptyInChromium(t *testing.T) {
	needPagesStage(t)
	f := fleet.Open(t, fleet.Config{})
	ctx := browser(t)
	u := signIn(t, ctx, f, 1440, 900, "/health")
	u.sees("the verdict", `document.querySelector(".verdict .title")?.innerText === "No machine reports yet" && document.querySelector(".verdict .tick") === null`)
	picture(t, ctx, "empty-health")
	u.opens(f.URL + "/none?range=1h")
	u.sees("the address that has no page", `document.querySelector(".empty b").innerText === "There is no page /none"`)
}

package web_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/fleet"
	"mete.dev/mete/internal/testkit/hosttest"
)

// A user operates the page and checks the results.
type user struct {
	t   *testing.T
	ctx context.Context
}

// sees waits until an expression is true.
func (u *user) sees(what, expression string) {
	u.t.Helper()
	err := chromedp.Do(bounded(u.t, u.ctx), chromedp.Poll[chromedp.Void](expression, chromedp.WithPollingInterval(50*time.Millisecond), chromedp.WithPollingTimeout(0)))
	if err != nil {
		picture(u.t, u.ctx, "use-failed")
		u.t.Fatalf("%s: %v: %s", what, err, expression)
	}
}

// opens opens a page, and waits until it is drawn.
func (u *user) opens(url string) {
	u.t.Helper()
	if err := chromedp.Do(bounded(u.t, u.ctx), chromedp.Navigate(url)); err != nil {
		u.t.Fatal(err)
	}
	u.sees(url, `!document.querySelector(".skeleton") && document.querySelector("#main")?.childElementCount > 0`)
}

// newTab opens a page in a new tab of the same browser.
func (u *user) newTab(url string) *user {
	u.t.Helper()
	ctx, cancel := chromedp.NewContext(u.ctx)
	u.t.Cleanup(cancel)
	tab := &user{u.t, ctx}
	tab.opens(url)
	return tab
}

// seesCharts waits for the charts of a page.
func (u *user) seesCharts() {
	u.t.Helper()
	u.sees("charts", `document.querySelectorAll(".uplot canvas").length >= 4 && !document.querySelector(".skeleton")`)
}

// does runs steps that return nothing.
func (u *user) does(steps ...chromedp.Action[chromedp.Void]) {
	u.t.Helper()
	if err := chromedp.Do(bounded(u.t, u.ctx), steps...); err != nil {
		picture(u.t, u.ctx, "use-failed")
		u.t.Fatal(err)
	}
}

func (u *user) presses(keys string) { u.t.Helper(); u.does(chromedp.KeyEvent(keys)) }

// clicks waits for an element and clicks it in one step, because a redraw in between could
// replace the element.
func (u *user) clicks(css string) {
	u.t.Helper()
	u.sees("something to click", fmt.Sprintf(`(() => { const e = document.querySelector(%s); if (!e || e.disabled || e.getClientRects().length === 0) return false; e.scrollIntoView({block: "center"}); e.focus(); e.click(); return true; })()`, quote(css)))
}

// filters types into the field that the key / focuses. Synthetic keys arrive twice, as a
// press and as a letter, which would leave the / in the field.
func (u *user) filters(text string) {
	u.t.Helper()
	u.presses("/")
	u.sees("the field", `document.activeElement?.matches("[data-search]")`)
	u.sees("the field empty", `(document.activeElement?.select?.(), true)`)
	u.presses(text)
}

// button waits for the button with a text, and clicks it.
func (u *user) button(text string) {
	u.t.Helper()
	u.sees("button "+text, fmt.Sprintf(`(() => { const b = [...document.querySelectorAll("button, a.button")].find((b) => b.innerText.trim() === %s); if (b) b.click(); return Boolean(b); })()`, quote(text)))
}

// writes types into a field once it has the focus; a redraw may replace it before.
func (u *user) writes(css, text string) {
	u.t.Helper()
	u.sees("a field", fmt.Sprintf(`(() => { const e = document.querySelector(%[1]s); if (e) e.focus(); return Boolean(e) && document.activeElement === e; })()`, quote(css)))
	u.presses(text)
}

// signIn opens a page of a fleet in a window of this size, with the token of a viewer.
func signIn(t *testing.T, ctx context.Context, f *fleet.Fleet, width, height int64, path string) *user {
	t.Helper()
	u := &user{t, ctx}
	u.does(chromedp.EmulateViewport(width, height), chromedp.Navigate(f.URL+path))
	u.writes("#token", f.Viewer+"\r")
	return u
}

// Operations on the pages of a fleet work by mouse and by keys, and change the address.
func TestUse(t *testing.T) {
	testkit.Stage(t, "pages", "a browser is operated for half a minute")
	hosttest.Need(t, "chromium")
	f := fleet.Open(t, fleet.Config{Nodes: 12, Each: 9})
	ctx := browser(t)
	console := &complaints{}
	if err := chromedp.Listen(ctx, console.listen); err != nil {
		t.Fatal(err)
	}
	u := signIn(t, ctx, f, 1440, 900, "/?range=15m")
	u.sees("the page", `document.querySelector("#main") !== null`)
	console.take() // the missing token
	u.seesCharts()

	// A chart shows the value under the mouse, and dragging zooms.
	over := `(() => { const r = document.querySelector(".u-over").getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; })()`
	// Elements above a chart may still appear and move it: then point and drag again.
	tip := `[...document.querySelectorAll(".tip")].some((t) => !t.hidden && t.innerText.includes("cores"))`
	testkit.Eventually(t, "a chart shows the value under the mouse", func() bool {
		box, err := chromedp.Run(ctx, chromedp.Evaluate[[]float64](over))
		if err != nil {
			t.Fatal(err)
		}
		x, y := box[0], box[1]+box[3]/2
		u.does(chromedp.MouseEvent("mouseMoved", x+box[2]*0.5, y), chromedp.MouseEvent("mouseMoved", x+box[2]*0.6, y), chromedp.Sleep(200*time.Millisecond))
		seen, err := chromedp.Run(ctx, chromedp.Evaluate[bool](tip))
		if err != nil {
			t.Fatal(err)
		}
		return seen
	})
	// The tip stays under a resting mouse, even if the chart is redrawn.
	scheme := `document.documentElement.dataset.theme`
	first, err := chromedp.Run(ctx, chromedp.Evaluate[string](scheme))
	if err != nil {
		t.Fatal(err)
	}
	u.presses("t")
	u.sees("the tip in the other scheme", scheme+` !== `+quote(first)+` && `+tip)
	u.presses("t")
	u.sees("the tip in the first scheme", scheme+` === `+quote(first)+` && `+tip)
	picture(t, ctx, "use-tip")
	testkit.Eventually(t, "a chart is zoomed", func() bool {
		box, err := chromedp.Run(ctx, chromedp.Evaluate[[]float64](over))
		if err != nil {
			t.Fatal(err)
		}
		x, y := box[0], box[1]+box[3]/2
		u.does(chromedp.DragAndDropXY(x+box[2]*0.4, y, x+box[2]*0.8, y, 6))
		time.Sleep(2 * time.Second)
		zoomed, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`location.search.includes("from=")`))
		if err != nil {
			t.Fatal(err)
		}
		return zoomed
	})
	u.sees("the zoom in the address", `location.search.includes("from=") && location.search.includes("to=")`)
	u.button("Back to now")
	u.sees("the previous range", `!location.search.includes("from=")`)
	u.does(chromedp.NavigateBack())
	u.sees("the zoom again", `location.search.includes("from=")`)

	// Keys open every page.
	u.presses("?")
	u.sees("keys", `document.querySelector("dialog[open]") !== null`)
	u.presses("\x1b")
	u.sees("no keys", `document.querySelector("dialog[open]") === null`)
	u.presses("gj")
	u.sees("jobs", `location.pathname === "/jobs" && document.querySelectorAll("tbody tr").length > 5`)
	u.filters("kafka")
	u.sees("the filter", `location.search.includes("q=kafka") && [...document.querySelectorAll("tbody tr td:first-child")].every((td) => td.innerText.includes("kafka"))`)

	// A table sorts by its headings, and shows the selected columns.
	u.opens(f.URL + "/jobs?range=15m")
	u.clicks("th:nth-child(11) button")
	u.sees("sorted", `document.querySelector("th[aria-sort]")?.innerText.includes("Memory")`)
	u.button("Columns")
	u.clicks(".pop label:nth-of-type(7) input")
	u.sees("a column more", `[...document.querySelectorAll("th")].some((th) => th.innerText.includes("Project"))`)
	picture(t, ctx, "use-columns")
	u.presses("\x1b")

	// The legend hides a line; a link opens the job and its node.
	u.clicks("tbody tr:first-child a")
	u.sees("a job", `location.pathname === "/job" && document.querySelectorAll(".uplot canvas").length > 2 && !document.querySelector(".skeleton")`)
	u.clicks(".legend button")
	u.sees("a line less", `document.querySelector('.legend button[aria-pressed="false"]') !== null`)
	u.clicks("#main .table a")
	u.sees("a node", `location.pathname.startsWith("/node/")`)

	// A query is answered, and an error in a query is marked.
	u.opens(f.URL + "/query")
	u.writes("#expr", "sum(mete_node_cpus) by (cluster)\r")
	u.sees("an answer", `document.querySelector(".legend") !== null && document.body.innerText.includes("north")`)
	u.opens(f.URL + "/flow?range=15m")
	u.sees("a flow", `document.querySelector(".sankey canvas") !== null`)
	for _, c := range console.own() {
		t.Errorf("console: %s", c)
	}
}

// The live page of this machine folds, filters, pauses and shows details of each workload.
func TestLive(t *testing.T) {
	testkit.Stage(t, "pages", "builds mete up and opens it in a browser")
	hosttest.Need(t, "chromium")
	m := startUp(t)
	address, link := m.address, m.link
	u := &user{t, browser(t)}
	u.does(chromedp.EmulateViewport(1440, 900), chromedp.Navigate(address+"/live"), chromedp.WaitVisible(chromedp.CSS("#token")))
	// A link that is put into the address bar of the open page works, once; its code does not stay
	// in the address. From then on a reload, a deep link and a new tab need nothing.
	first := link()
	u.does(chromedp.Navigate(strings.Replace(first, "/#", "/live#", 1)), chromedp.WaitVisible(chromedp.CSS("#main")))
	u.sees("the page", `document.querySelector("#main") !== null && location.hash === ""`)
	u.does(chromedp.Reload())
	u.sees("the page after a reload", `document.querySelector("#main") !== null`)
	u.newTab(address+"/jobs").sees("another page in a new tab", `document.querySelector("#main") !== null && document.title.startsWith("Jobs")`)
	u.sees("that nothing is kept", `(localStorage.clear(), true)`)
	u.does(chromedp.Navigate(first), chromedp.WaitVisible(chromedp.CSS("#token")))
	u.sees("why the link does not work again", `document.querySelector("[role=alert]")?.innerText.includes("used before")`)
	u.does(chromedp.Navigate(link()), chromedp.WaitVisible(chromedp.CSS("#main")))
	u.sees("the page by another link", `document.querySelector("#main") !== null`)
	u.opens(address + "/live")
	u.sees("the machine", `document.querySelector("tfoot")?.innerText.includes("Total = the machine")`)
	u.sees("the network of all rows, as the machine has", `(() => { const cells = [...document.querySelectorAll("tr.residual")].find((r) => r.innerText.trim().startsWith("system"))?.querySelectorAll("td.num"); return document.querySelector("tfoot tr:last-child").querySelectorAll("td.num")[5].innerText === "–" || !cells || /\d/.test(cells[5].innerText) || document.querySelector(".notes")?.innerText.includes("traffic between them"); })()`)
	u.filters("idle")
	u.sees("the filter", `location.search.includes("q=idle") && [...document.querySelectorAll("tbody tr:not(.spacer)")].some((r) => r.innerText.startsWith("idle"))`)
	u.sees("the line of what is not shown", `document.querySelector("tfoot")?.innerText.includes("not shown")`)
	u.clicks("tr.residual .label")
	u.sees("details", `document.querySelector("dialog[open]")?.innerText.includes("Since first seen")`)
	u.presses("\x1b")
	u.sees("no details", `document.querySelector("dialog[open]") === null`)
	// Idle workloads are hidden and counted; a button and a key show them, and the address holds the choice.
	u.opens(address + "/live?show=list")
	idle := `document.querySelector("#idle")?.innerText`
	u.sees("how many idle workloads are hidden", `/^[\d,]+ idle hidden, show$/.test(`+idle+`) && document.querySelector("tfoot")?.innerText.includes("not shown")`)
	u.clicks("#idle")
	u.sees("idle workloads", idle+` === "Hide idle" && location.search.includes("idle=1") && !document.querySelector("tfoot").innerText.includes("not shown")`)
	u.sees("another focus", `(document.activeElement.blur(), true)`)
	u.presses("z")
	u.sees("no idle workloads", `!location.search.includes("idle=1") && `+idle+`.includes("hidden")`)
	// Keys move between the rows, also to those that are not drawn yet, and open one.
	u.opens(address + "/live?idle=1")
	at := `[...document.querySelectorAll("tr[data-id]")].findIndex((tr) => tr.contains(document.activeElement))`
	u.sees("the table", `(document.querySelector('[aria-label="workloads"].table')?.focus(), document.activeElement?.matches(".table"))`)
	u.does(chromedp.KeyEvent(kb.ArrowDown))
	u.sees("the first row with the focus", at+` === 0 && document.activeElement.matches(".label")`)
	u.does(chromedp.KeyEvent(kb.End))
	u.sees("the last row with the focus", `document.activeElement.closest("tr")?.dataset.id === "idle" || document.activeElement.innerText === "idle"`)
	u.presses("\r")
	u.sees("its details by a key", `document.querySelector("dialog[open]")?.innerText.includes("Since first seen")`)
	u.presses("\x1b")
	u.opens(address + "/live?show=list")
	u.sees("a list", `document.querySelector(".twist[aria-expanded]") === null`)
	u.clicks("#pause")
	still := `[...document.querySelectorAll(".facts-line .num")][0]?.innerText`
	was, err := chromedp.Run(u.ctx, chromedp.Evaluate[string](still))
	if err != nil {
		t.Fatal(err)
	}
	u.does(chromedp.Sleep(2500 * time.Millisecond))
	u.sees("that it is paused", still+` === `+quote(was))
	u.clicks("#pause")
	u.sees("that it continues", still+` !== `+quote(was))
	// A hidden tab does not poll.
	snapshots := `performance.getEntriesByType("resource").filter((e) => e.name.endsWith("/api/v0/snapshot")).length`
	hide := func(hidden bool) {
		t.Helper()
		u.sees("a tab", fmt.Sprintf(`(Object.defineProperty(document, "hidden", { get: () => %v, configurable: true }), document.dispatchEvent(new Event("visibilitychange")), performance.clearResourceTimings(), true)`, hidden))
	}
	hide(true)
	u.does(chromedp.Sleep(3500 * time.Millisecond))
	u.sees("no more requests than the one that was on its way", snapshots+` <= 1`)
	hide(false)
	u.sees("requests again", snapshots+` >= 2`)
}

package web_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/fleet"
)

// labelsScript names labels of time axes that are cut or touch the next one, and values beyond the axis, which
// no axis of values counts. It reports how many labels it looked at.
const labelsScript = `(async () => {` + drawnScript + `
	const wrong = [];
	let seen = 0;
	for (const u of plots) {
		const axis = u.axes[0], c = u.ctx, title = titled(u);
		c.save();
		c.font = axis.font[0];
		let last = -Infinity;
		axis._splits.forEach((at, i) => {
			const text = axis._values[i];
			if (!text) return;
			seen++;
			const x = u.valToPos(at, "x", true), half = c.measureText(text).width / 2;
			if (x - half < 0 || x + half > c.canvas.width) wrong.push(title + ": cut: " + text);
			if (x - half < last + 3 * devicePixelRatio) wrong.push(title + ": touches the label before: " + text);
			last = x + half;
		});
		c.restore();
		for (const row of u.data.slice(1)) {
			const end = u.data[0][row.findLastIndex((v) => v !== null)];
			if (end > u.scales.x.max + 1) wrong.push(title + ": a value " + (end - u.scales.x.max) + " s beyond the axis");
		}
	}
	return { Wrong: wrong.join("; "), Seen: seen };
})()`

// The labels of time axes are whole and apart from each other, on each screen and for ranges from a minute
// and a half to a month.
func TestAxesInChromium(t *testing.T) {
	needPagesStage(t)
	f := fleet.Open(t, fleet.Config{Nodes: 2, Each: 4, Tame: true, Days: 31})
	ctx := browser(t)
	u := signIn(t, ctx, f, 1440, 900, "/query")
	u.sees("the page", `document.querySelector("#main") !== null`)
	u.watch()
	now := time.Now().Unix()
	for _, s := range []screen{screens[0], screens[2], {name: "narrow", width: 320, height: 700, phone: true}} {
		u.does(chromedp.EmulateViewport(s.width, s.height))
		for _, span := range []string{"range=15m", "range=1h", "range=24h", "range=7d", "range=30d", fmt.Sprintf("from=%d&to=%d", now-300, now-210), fmt.Sprintf("from=%d&to=%d", now-700, now-100)} {
			for _, page := range []string{"/?", "/job?job=postgres-main&"} {
				u.settles(f.URL + page + span)
				got := evaluate[struct {
					Wrong string
					Seen  int
				}](u, labelsScript)
				if got.Wrong != "" || got.Seen < 6 {
					picture(t, ctx, "axes-failed-"+s.name)
					t.Errorf("%s, %s%s: %d labels, %s", s.name, page, span, got.Seen, got.Wrong)
				}
			}
		}
	}
}

// A legend does not show the last value of a series that ended as its latest.
func TestEndedInChromium(t *testing.T) {
	needPagesStage(t)
	f := fleet.Open(t, fleet.Config{Nodes: 3, Each: 4, Tame: true})
	u := signIn(t, browser(t), f, 1440, 900, "/query?range=15m&expr="+url.QueryEscape(`mete_node_cpu_cores{part="workloads"}`))
	u.sees("two nodes with a value, and one that ended", `(() => { const of = Object.fromEntries([...document.querySelectorAll(".legend b")].map((b) => [/rack1-n0\d/.exec(b.dataset.name)?.[0], b.innerText])); return /cores$/.test(of["rack1-n01"]) && /cores$/.test(of["rack1-n02"]) && of["rack1-n03"] === "–"; })()`)
}

// A click on an area of a chart opens the page of its job.
func TestPickInChromium(t *testing.T) {
	needPagesStage(t)
	f := fleet.Open(t, fleet.Config{Nodes: 3, Each: 6, Tame: true})
	ctx := browser(t)
	u := signIn(t, ctx, f, 1440, 900, "/?range=15m")
	u.seesCharts()
	type place struct {
		Name string
		X, Y float64
	}
	var at place
	testkit.Eventually(t, "a click opens the job of an area", func() bool {
		if at = evaluate[place](u, areaScript); at.Name == "" {
			return false
		}
		u.does(chromedp.MouseEvent(chromedp.MouseMoved, at.X-3, at.Y), chromedp.MouseEvent(chromedp.MouseMoved, at.X, at.Y), chromedp.MouseClickXY(at.X, at.Y), chromedp.Sleep(time.Second))
		path := evaluate[string](u, `location.pathname + "?" + new URLSearchParams(location.search).get("job")`)
		if path != "/?null" && path != "/job?"+at.Name {
			t.Fatalf("a click on %s opens %s", at.Name, path)
		}
		return path != "/?null"
	})
	u.sees("the job", `document.querySelector("header h1")?.title.includes(`+quote(at.Name)+`) && document.body.innerText.includes("All figures")`)
}

// areaScript finds the middle of the highest area of the first chart that has a job of its own, at the
// middle of its times.
const areaScript = `(async () => {` + drawnScript + `
	const u = plots.find((u) => titled(u) === "CPU"), none = { Name: "", X: 0, Y: 0 };
	if (!u) return none;
	u.root.scrollIntoView({ block: "center" });
	await new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)));
	const i = 2 * Math.floor(u.data[0].length / 4), jobs = new Set([...document.querySelectorAll(".rank a")].map((a) => a.innerText.trim())), box = u.over.getBoundingClientRect();
	let best = null, below = 0;
	u.series.slice(1).forEach((s, n) => {
		const v = u.data[n + 1][i];
		if (s.dash || v == null || ["most", "least"].includes(s.label)) return;
		if (jobs.has(s.label) && (!best || v - below > best.height)) best = { name: s.label, height: v - below, middle: (v + below) / 2 };
		below = v;
	});
	if (!best) return none;
	return { Name: best.name, X: box.left + (u.valToPos(u.data[0][i], "x") + u.valToPos(u.data[0][i + 1], "x")) / 2, Y: box.top + u.valToPos(best.middle, "y") };
})()`

// Before the first window is booked, the page of a new machine counts down and shows its latest seconds; it
// does not say that something is silent, unknown or wrong. Then the charts come by themselves.
func TestStartingInChromium(t *testing.T) {
	needPagesStage(t)
	ctx := browser(t)
	u := &user{t, ctx}
	u.does(chromedp.EmulateViewport(1440, 900), chromedp.Navigate("about:blank")) // the browser takes its time before the machine does
	m := startUp(t)
	u.does(chromedp.Navigate(m.link()))
	u.sees("the countdown", `/appear in (about \d+ s|a moment)/.test(document.querySelector(".starting")?.innerText ?? "")`)
	u.sees("the latest seconds", `document.querySelector('[aria-label="now"] .value')?.innerText.trim() !== "–" && document.querySelectorAll(".uplot canvas").length >= 2`)
	picture(t, ctx, "starting")
	said := evaluate[string](u, `document.querySelector(".starting") ? document.querySelector("#main").innerText : ""`)
	for _, word := range []string{"silent", "not known", "not available", "not seen", "No data", "no data", "wrong", "failed"} {
		if said == "" || strings.Contains(said, word) {
			t.Errorf("before the first window the page says %q (looked for %q)", said, word)
		}
	}
	u.sees("the charts", `!document.querySelector(".starting") && document.querySelectorAll(".uplot canvas").length >= 4 && !document.querySelector(".skeleton")`)
	picture(t, ctx, "started")
}

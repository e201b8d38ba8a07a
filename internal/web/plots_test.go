package web_test

import (
	"encoding/json"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// A plot is what a chart of the page draws.
type plot struct {
	Title  string // of its card
	Bars   []plotBar
	Series []plotSeries
}

// A plotBar is a bucket of a plot; a plot of lines has points, without a length. Its values are averages over
// measured, in seconds, where its only machine was measured for a part of it.
type plotBar struct{ From, To, measured float64 }

// seconds is the time over which the values of a bar are averages.
func (b plotBar) seconds() float64 {
	if b.measured > 0 {
		return min(b.To-b.From, b.measured)
	}
	return b.To - b.From
}

// A plotSeries is a line or an area of a plot, with what was piled below it taken off.
type plotSeries struct {
	Name   string
	Over   bool       // drawn over the others
	Values []*float64 // nil is absent
	Hidden []int      // bars that have a value but no pixel that differs from an empty chart
}

// watchScript counts the requests of the page that are not answered, and keeps the latest answers.
const watchScript = `(() => {
	const ask = window.fetch;
	Object.assign(window, { waiting: 0, answered: performance.now(), answers: {} });
	window.fetch = async (path, more) => {
		window.waiting++;
		try {
			const r = await ask(path, more);
			if (/^\/(v1\/(summary|nodes|gaps|alerts)|api\/v0\/snapshot|metrics)/.test(path) && r.status === 200) window.answers[String(path).split("?")[0]] = await r.clone().text();
			return r;
		} finally { window.waiting--; window.answered = performance.now(); }
	};
})()`

// watch makes every page that is opened from now on count its requests.
func (u *user) watch() {
	u.t.Helper()
	if _, err := chromedp.Call(u.ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: watchScript}); err != nil {
		u.t.Fatal(err)
	}
}

// settles waits until all requests of a page that was opened are answered and drawn.
func (u *user) settles(url string) {
	u.t.Helper()
	u.opens(url)
	u.sees(url+" settled", `window.waiting === 0 && performance.now() - window.answered > 150 && !document.querySelector(".skeleton")`)
}

// drawnScript begins a script that looks at the plots of the page: with plots, and titled, the title of one.
const drawnScript = `
	const uPlot = (await import(document.querySelector("script[type=module]").src.replace("js/app.js", "vendor/uplot.mjs"))).default;
	await new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)));
	const plots = uPlot.sync("time").plots.filter((u) => u.root.isConnected), titled = (u) => u.root.closest(".card").querySelector("h2").innerText.trim();
`

// plotsScript reads the plots of the page from the library that draws them.
const plotsScript = `(async () => {` + drawnScript + `
	return JSON.stringify(plots.map((u) => {
		const x = u.data[0], bars = x.length > 0 && x.length % 2 === 0 && Math.abs(x[1] % 1 - 0.999) < 1e-5, wide = bars ? 2 : 1;
		const out = { Title: titled(u), Bars: [], Series: [] };
		for (let i = 0; i < x.length; i += wide) out.Bars.push({ From: x[i], To: bars ? Math.round(x[i + 1] * 1000 + 1) / 1000 : x[i] });
		const canvas = u.ctx.canvas, pixels = u.ctx.getImageData(0, 0, canvas.width, canvas.height).data;
		const at = (px, py) => { const i = 4 * (Math.round(py) * canvas.width + Math.round(px)); return pixels.slice(i, i + 4); };
		const drawn = (px, py) => [-2, -1, 0, 1, 2].some((d) => at(px, Math.min(u.bbox.top + u.bbox.height, py + d))[3] > 60);
		const edge = (s) => s.label === "most" || s.label === "least";
		const piled = u.bands.some((b) => !edge(u.series[b.series[0]]));
		let below = new Array(x.length).fill(0);
		u.series.slice(1).forEach((s, n) => {
			if (edge(s)) { out.Series.push({ Name: s.label, Over: true, Values: out.Bars.map((_, i) => u.data[n + 1][wide * i] ?? null), Hidden: [] }); return; }
			const row = u.data[n + 1], over = Boolean(s.dash), own = { Name: s.label, Over: over, Values: [], Hidden: [] };
			for (let i = 0; i < x.length; i += wide) {
				const v = row[i] ?? null;
				own.Values.push(v === null ? null : v - (piled && !over ? below[i] : 0));
				if (bars && (row[i + 1] ?? null) !== v) own.Hidden.push(-1 - i); // a bar with two heights
				if (v === null || over) continue;
				const px = u.valToPos((x[i] + x[i + wide - 1]) / 2, "x", true), py = u.valToPos(v, "y", true);
				if (px < u.bbox.left || px > u.bbox.left + u.bbox.width) { if (bars) own.Hidden.push(i / wide); continue; }
				const thin = bars && u.valToPos(x[i + 1], "x", true) - u.valToPos(x[i], "x", true) < 2; // as the last bar may be: its middle is at the edge
				if (py < u.bbox.top - 1 || !thin && !drawn(px, py)) own.Hidden.push(i / wide);
			}
			if (piled && !over) below = row.map((v, i) => v ?? below[i]);
			out.Series.push(own);
		});
		return out;
	}));
})()`

// plots reads what the charts of the page draw.
func (u *user) plots() (list []plot) {
	u.t.Helper()
	text, err := chromedp.Run(bounded(u.t, u.ctx), chromedp.Evaluate[string](plotsScript, chromedp.EvalAwaitPromise))
	if err == nil {
		err = json.Unmarshal([]byte(text), &list)
	}
	if err != nil {
		u.t.Fatal(err)
	}
	return list
}

// find returns the plot with a title.
func find(list []plot, title string) *plot {
	for i := range list {
		if list[i].Title == title {
			return &list[i]
		}
	}
	return nil
}

// names are the names of the series, without those over the others.
func (p *plot) names() (names []string) {
	for i := range p.Series {
		if !p.Series[i].Over {
			names = append(names, p.Series[i].Name)
		}
	}
	return names
}

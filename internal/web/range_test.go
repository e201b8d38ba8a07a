package web_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	v1 "mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/fleet"
	"mete.dev/mete/internal/x/text"
)

// instants checks that the page reads times as the API does, in a zone with summer time, and the
// ranges of the calendar.
func instants(t *testing.T, ctx context.Context) {
	t.Helper()
	zone, err := time.LoadLocation("America/New_York")
	if err != nil {
		t.Fatal(err)
	}
	set := emulation.SetTimezoneOverrideParams{TimezoneID: zone.String()}
	if _, err := chromedp.Call(ctx, emulation.SetTimezoneOverride, set); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := chromedp.Call(ctx, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{}); err != nil {
			t.Error(err)
		}
	}()
	texts := []string{"now", "today", "yesterday", " now ", "-90m", "-24h", "-7d", "-1w2d", "-1w2d3h4m5s", "-1.5h", "-.5h", "-1h30m", "-500ms", "-0h", "-2d1w", "-", "-x", "-7", "-99999d", "- 7d", "tomorrow", "", "0", "1700000000", "1700000000.25", "1700000000.1234567891",
		"1e9", "1000000000000", "2026-03-01", "2026-03-01T12:00", "2026-03-01 12:00", "2026-03-01 12:00:05", "2026-03-01T12:00:05", "2026-03-01T12:00Z", "2026-03-01T12:00:05Z", "2026-03-01T12:00:05.5Z", "2026-03-01T12:00:05+02:00", "2026-03-01T12:00-05:30", "2026-03-01 12:00Z",
		"2026-03-08 03:30", "2026-11-01 12:00", "2026-02-29", "2028-02-29", "2026-13-01", "2026-03-01 24:00", "2026-03-01 12:60", "1969-12-31", "9999-12-31", "0026-03-01", "2026-3-1", "1/3/2026"}
	for _, now := range []time.Time{time.Date(2026, 3, 9, 0, 30, 0, 0, zone), time.Date(2026, 11, 1, 23, 30, 0, 5e8, zone), time.Date(2027, 1, 1, 12, 0, 0, 0, zone)} {
		want := map[string]*float64{}
		for _, s := range texts {
			want[s] = nil
			if at, err := v1.ParseTime(s, now); err == nil {
				v := float64(at.UnixMicro()) / 1e6
				want[s] = &v
			}
		}
		list, err := json.Marshal(texts)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := chromedp.Run(ctx, chromedp.Evaluate[string](fmt.Sprintf(`(async () => {
			const { instantOf } = await import(document.querySelector("script[type=module]").src.replace("app.js", "span.js"));
			return JSON.stringify(Object.fromEntries(%s.map((s) => [s, instantOf(s, %v)])));
		})()`, list, float64(now.UnixMicro())/1e6), chromedp.EvalAwaitPromise))
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]*float64{}
		if err := json.Unmarshal([]byte(answer), &got); err != nil {
			t.Fatal(err)
		}
		for _, s := range texts {
			if a, b := got[s], want[s]; (a == nil) != (b == nil) || a != nil && math.Abs(*a-*b) > 1e-5 {
				t.Errorf("time %q at %v: the page reads %v, the API %v", s, now, shownTime(a), shownTime(b))
			}
		}
	}
	expect(t, ctx, "minutes that were measured in part", `
		const { known } = await of("history.js"), at = (m) => 1e9 - 40 + m * 60, iso = (t) => new Date(t * 1000).toISOString();
		const minutes = (list) => known(list.map((_, m) => ({ from: at(m), to: at(m + 1) })), list.map(([nodes, seconds], m) => ({ total: {}, averages_over_seconds: 60, groups: nodes ? [{ kind: "idle", nodes, covered_seconds: nodes * seconds, first_at: iso(at(m)), last_at: iso(at(m + 1)) }] : [] }))).map((b) => [b.from - at(0), b.to - at(0)].join("-")).join();
		return [minutes([[1, 30], [1, 60], [1, 60]]), minutes([[1, 60], [9, 40], [9, 60], [9, 20], [1, 60], [1, 60]]), minutes([[9, 60], [9, 55], [9, 30], [9, 60]]), minutes([[2, 60], [2, 60], [2, 15]])];`,
		`["30-60,60-120,120-180","0-60,80-120,120-180,180-200,240-300,300-360","0-60,60-120,120-180,180-240","0-60,60-120,120-135"]`)
	expect(t, ctx, "averages over hours that were measured in part", `
		const { measured } = await of("history.js"), { capacity } = await of("series.js"), hour = 1e9 - 1e9 % 3600, iso = (m) => new Date((hour + m * 60) * 1000).toISOString();
		const hours = (list) => {
			const answers = list.map(([nodes, minutes, first, last]) => ({ total: {}, averages_over_seconds: minutes * 60, whole: { cpu_seconds: nodes ? 4 * nodes * minutes * 60 : 0 }, groups: nodes ? [{ kind: "idle", nodes, covered_seconds: nodes * minutes * 60, first_at: iso(first), last_at: iso(last) }] : [] }));
			const buckets = measured(list.map((_, h) => ({ from: hour + h * 3600, to: hour + h * 3600 + 3600 })), answers);
			return buckets.map((b) => [(b.from - hour) / 60, (b.to - hour) / 60].join("-")).join() + " " + capacity({ buckets, kinds: answers }, "cpu").map(([, v]) => v).join();
		};
		return [hours([[9, 60, 0, 60], [0], [9, 15, 132, 147]]), hours([[9, 60, 0, 60], [9, 10, 60, 70], [9, 10, 170, 180], [9, 30, 180, 210]]), hours([[1, 60, 0, 60], [1, 20, 60, 120], [1, 10, 120, 145]]), hours([[9, 10, 5, 16], [9, 60, 60, 120], [9, 15, 131, 147]])];`,
		`["0-60,60-120,132-147 36,,36","0-60,60-70,170-180,180-210 36,36,36,36","0-60,60-120,120-145 4,4,4","5.5-15.5,60-120,131.5-146.5 36,36,36"]`)
	expect(t, ctx, "the latest hours of machines that began within them, and of one that ended within them", `
		const { history } = await of("history.js"), { stack, capacity } = await of("series.js"), ask = window.fetch, machines = [[0, 900], ...Array.from({ length: 8 }, () => [720, 1620])];
		const drawn = async (hour, begin) => {
			window.fetch = async (path) => {
				const q = new URL(path, "http://mete").searchParams, [from, to] = ["from", "to"].map((k) => Date.parse(q.get(k)) / 1000 - begin), spans = machines.map(([a, z]) => [Math.max(a, from), Math.min(z, to)]).filter(([a, z]) => a < z);
				const seconds = spans.map(([a, z]) => z - a), all = seconds.reduce((a, s) => a + s, 0), at = (s) => new Date((begin + s) * 1000).toISOString();
				const group = (kind, cores) => ({ kind, nodes: spans.length, covered_seconds: all, first_at: at(Math.floor(Math.min(...spans.map(([a]) => a)) / 60) * 60), last_at: at(Math.ceil(Math.max(...spans.map(([, z]) => z)) / 60) * 60), cpu_seconds: cores * all, quality: {} });
				return new Response(JSON.stringify({ from: q.get("from"), to: q.get("to"), averages_over_seconds: Math.max(0, ...seconds), total: {}, whole: { cpu_seconds: 4 * all }, groups: spans.length ? [group("job", 1), group("idle", 3)] : [] }));
			};
			const found = await history([{ by: "kind", fields: "cpu_seconds" }], { from: hour - 20 * 3600, to: hour + 4 * 3600, length: 86400, step: 600 }, 1000), of = { by: "parts", ...found, kinds: found.of[0], groups: [], top: { cpu: [] } };
			const round = (list) => list.map(([, v]) => v).filter((v) => v !== null).map((v) => Math.round(v * 100) / 100).join();
			return [round(stack(of, "cpu", false)[0].values), round(capacity(of, "cpu")), found.buckets.filter((b, i) => found.of[0][i].groups.length).map((b) => [b.from - hour, b.to - hour].join("-")).join()];
		};
		try { return [...await drawn(1700006400, 1700006400), ...await drawn(1700611200, 1700611200 + 2400)]; } finally { window.fetch = ask; }`,
		`["1,1,5.8,8,8,8","4,4,23.2,32,32,32","0-300,300-600,600-900,900-1200,1200-1500,1500-1620",`+
			`"1,1,1,1,1,1,9,8.5,8,8,8","4,4,4,4,4,4,36,34,32,32,32","2400-2520,2520-2640,2640-2760,2760-2880,2880-3000,3000-3120,3120-3240,3240-3360,3360-3480,3480-3600,3600-4020"]`)
	expect(t, ctx, "ranges of the calendar", `
		const { periods, written } = await of("span.js");
		return [Date.UTC(2026, 2, 9, 16) / 1000, Date.UTC(2027, 0, 3, 12) / 1000].map((now) => periods.map(([name, f]) => name + " " + f(now).map(written).join(" ")));`,
		`[["yesterday 2026-03-08 00:00 2026-03-09 00:00","today 2026-03-09 00:00 2026-03-10 00:00","this week 2026-03-09 00:00 2026-03-16 00:00","this month 2026-03-01 00:00 2026-04-01 00:00","last month 2026-02-01 00:00 2026-03-01 00:00"],`+
			`["yesterday 2027-01-02 00:00 2027-01-03 00:00","today 2027-01-03 00:00 2027-01-04 00:00","this week 2026-12-28 00:00 2027-01-04 00:00","this month 2027-01-01 00:00 2027-02-01 00:00","last month 2026-12-01 00:00 2027-01-01 00:00"]]`)
	expect(t, ctx, "ranges by two ends", `
		const { rangeOf } = await of("span.js");
		const now = 1772900000.5;
		return [["-3h", "now"], ["-1d", "now"], ["-1h", "now"], ["1772800000", "1772800600"], ["-2h", "-1h"], ["yesterdy", "now"], ["", "now"], ["-1h", ""], ["now", "-1h"], ["-1h", "1772896460"], ["1772910000", "1772920000"]].map(([a, b]) => { const r = rangeOf(a, b, now); return r.wrong ? r.wrong + ": " + r.why.split(/(?<=\.) /)[0] : [r.range, r.from, r.to].join("/"); });`,
		`["3h//","24h//","//","/1772800000/1772800600","/1772892800/1772896401","from: “yesterdy” is not a time.","from: The start is missing.","to: The end is missing.","to: The end must be after the start.","to: The range must be at least a minute long.","from: The start must be at least a minute ago."]`)
	expect(t, ctx, "ranges of any length", `
		const { spanOf, named, setDefaultRange } = await of("span.js"), { orderOf } = await of("table.js");
		const at = (query) => { const s = spanOf(query, 1772900000); return [s.name, s.length, s.step, Boolean(s.open)].join(" "); };
		const list = [[7200, 86400, 5400, 90, 172800].map(named).join(), at({ range: "2h" }), at({ range: "14d" }), at({ range: "3650d" }), (setDefaultRange(1), at({ range: "30s" })), at({ from: "9e15", to: "1e16" }), at({ from: "1772890000", to: "1772990000" }), at({ from: "1772890000", to: "1772893600" })];
		setDefaultRange(3600);
		const columns = [{ key: "name", value: (r) => r }, { key: "strip" }, { key: "cpu", num: true, value: (r) => r }];
		return [...list, ...["strip", "cpu", "cpu.up", "", "x.down"].map((word) => { const o = orderOf(columns, word); return o.column.key + (o.down ? " down" : " up"); })];`,
		`["2h,24h,90m,90s,2d","2h 7200 30 false","14d 1209600 7200 false","3650d 315360000 1382400 false","15m 900 10 false","15m 900 10 false"," 10000 60 true"," 3600 15 false","name up","cpu down","cpu up","name up","name down"]`)
}

// exports checks the CSV of a chart, and how choices of series stand in the address.
func exports(t *testing.T, ctx context.Context) {
	t.Helper()
	expect(t, ctx, "the CSV of a chart", `
		const { csvOf } = await of("chart.js");
		const buckets = [{ from: 0, to: 60 }, { from: 60, to: 90 }];
		const seen = [{ name: "=cmd()", values: [[0, 1.5, "measured"], [60, null, "absent"]] }, { name: 'a"b, c', values: [[0, 2], [60, 0]] }, { name: "-7" , values: [[0, null], [60, 1]] }];
		return [csvOf({ seen, rows: [[1.5, null], [2, 0], [null, 1]], times: [0, 60], buckets, unit: "cores", band: { low: [[0, 3]], high: [[0, 4]] } }), csvOf({ seen: seen.slice(1, 2), rows: [[2, 0]], times: [0, 60], unit: "rate" })];`,
		`["from,to,'=cmd() (cores),'=cmd() quality,\"a\"\"b, c (cores)\",'-7 (cores),least (cores),most (cores)\n1970-01-01T00:00:00.000Z,1970-01-01T00:01:00.000Z,1.5,measured,2,,3,4\n1970-01-01T00:01:00.000Z,1970-01-01T00:01:30.000Z,,,0,1,,\n","time,\"a\"\"b, c (bytes/s)\",quality\n1970-01-01T00:00:00.000Z,2,unknown\n1970-01-01T00:01:00.000Z,0,unknown\n"]`)
	texts := []string{"=1+1", "+x", "-x", "@x", "-7", "+1.5e3", "a=b", "a\tb", "a\u202eb", "", "7"}
	list, err := json.Marshal(texts)
	if err != nil {
		t.Fatal(err)
	}
	want, err := json.Marshal(text.Fields(texts))
	if err != nil {
		t.Fatal(err)
	}
	expect(t, ctx, "fields of CSV as in the API's", `const { field } = await of("chart.js"); return `+string(list)+`.map(field);`, string(want))
	expect(t, ctx, "choices of series", `
		const { choiceOf, chosen } = await of("chart.js");
		const write = (text, label, only, off) => chosen(text, label, { only: new Set(only), off: new Set(off) }), read = (text, label) => { const c = choiceOf(text, label); return [[...c.only], [...c.off]]; };
		const all = write(write("Disk:-read", "CPU", [], ["system", "-a:b~c%"]), "Memory", ["-x"], []);
		return [all, read(all, "CPU"), read(all, "Memory"), read(all, "Disk"), read(all, "Power"), write(all, "CPU", [], [])];`,
		`["Disk:-read~CPU:-system:-%2Da%3Ab%7Ec%25~Memory:%2Dx",[[],["system","-a:b~c%"]],[["-x"],[]],[[],["read"]],[[],[]],"Disk:-read~Memory:%2Dx"]`)
}

func shownTime(v *float64) any {
	if v == nil {
		return "none"
	}
	return *v
}

// A user chooses a range by its dates, by mouse and by keys, on a screen and on a phone.
func TestRangeInChromium(t *testing.T) {
	needPagesStage(t)
	axe, err := os.ReadFile("testdata/axe.min.js")
	if err != nil {
		t.Fatal(err)
	}
	f := fleet.Open(t, fleet.Config{Nodes: 3, Each: 4, Tame: true})
	ctx := browser(t)
	u := signIn(t, ctx, f, 1440, 900, "/?range=15m")
	u.seesCharts()
	const open = `document.querySelector("#range:popover-open") !== null`

	// By keys alone: d opens, what is wrong is named and has the focus, Enter applies.
	keys := func(text string) {
		t.Helper()
		u.sees("the field empty", `(document.activeElement.select?.(), document.activeElement.id.startsWith("range-"))`)
		u.presses(text)
	}
	u.sees("the key d", `(document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "d", bubbles: true })), `+open+`)`)
	u.sees("the present range, selected", `document.activeElement.id === "range-from" && document.activeElement.value === "-15m" && document.querySelector("#range-to").value === "now"`)
	keys("yesterdy\r")
	u.sees("what is wrong", `document.querySelector("#range-wrong").innerText.startsWith("“yesterdy” is not a time. Write 2026-03-01 12:00") && document.activeElement.id === "range-from" && document.activeElement.getAttribute("aria-invalid") === "true" && document.activeElement.getAttribute("aria-describedby") === "range-wrong"`)
	findings(t, ctx, string(axe), "the wrong range")
	picture(t, ctx, "range-wrong")
	keys("-45m")
	u.sees("the complaint gone", `document.querySelector("#range-wrong").innerText === ""`)
	u.presses("\r")
	u.sees("a range that moves", `location.search === "?range=45m" && !(`+open+`) && document.querySelector("#range-open").innerText.trim() === "last 45m" && document.activeElement.id === "range-open"`)
	u.sees("data of it", `document.querySelectorAll(".uplot canvas").length >= 4 && !document.querySelector(".skeleton")`)
	u.does(chromedp.NavigateBack())
	u.sees("the range before", `location.search === "?range=15m"`)
	u.clicks("#range-open")
	u.sees("the popover", open)
	u.presses("\x1b")
	u.sees("no popover after Escape", `!(`+open+`)`)

	// By mouse: a range of the calendar, which keeps the way back.
	u.clicks("#range-open")
	u.button("today")
	u.sees("today, up to now", `(() => { const q = new URLSearchParams(location.search), d = new Date(); d.setHours(0, 0, 0, 0); return Number(q.get("from")) === d / 1000 && Number(q.get("to")) > Date.now() / 1000 && document.querySelector("#range-open").innerText.trim().endsWith("– now"); })()`)
	u.button("Back to now")
	u.sees("the range before", `location.search === "?range=15m"`)

	// The browser's calendar writes into the field.
	u.clicks("#range-open")
	u.sees("a date of the calendar", `(() => { const p = document.querySelector("#range input[type=datetime-local]"); p.value = "2026-01-02T03:04"; p.dispatchEvent(new Event("change", { bubbles: true })); return document.querySelector("#range-from").value === "2026-01-02 03:04"; })()`)
	u.sees("the field of the end", `(document.querySelector("#range-to").focus(), true)`)
	keys("2026-01-03 03:04")
	u.button("Apply")
	u.sees("it", `(() => { const q = new URLSearchParams(location.search); return Number(q.get("from")) === new Date(2026, 0, 2, 3, 4) / 1000 && Number(q.get("to")) === new Date(2026, 0, 3, 3, 4) / 1000; })()`)
	u.clicks("#range-open")
	u.sees("it in the fields", `document.querySelector("#range-from").value === "2026-01-02 03:04" && document.querySelector("#range-to").value === "2026-01-03 03:04"`)
	picture(t, ctx, "range-light")

	for _, s := range screens[1:] {
		scheme := "light"
		if s.dark {
			scheme = "dark"
		}
		if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}); err != nil {
			t.Fatal(err)
		}
		u.does(chromedp.EmulateViewport(s.width, s.height, func(p *emulation.SetDeviceMetricsOverrideParams, _ *emulation.SetTouchEmulationEnabledParams) {
			p.Mobile = s.phone
		}))
		u.opens(f.URL + "/?range=45m")
		u.clicks("#range-open")
		u.sees("the popover within the screen", open+` && (() => { const r = document.querySelector("#range").getBoundingClientRect(); return r.left >= 0 && r.right <= innerWidth && r.top >= 0 && r.bottom <= innerHeight && r.width > 280; })()`)
		findings(t, ctx, string(axe), "the popover, "+s.name)
		picture(t, ctx, "range-"+s.name)
		u.button("yesterday")
		u.sees("yesterday", `location.search.includes("from=") && !(`+open+`)`)
		wide, err := chromedp.Run(ctx, chromedp.Evaluate[string](wider))
		if err != nil || wide != "" {
			t.Errorf("%s: wider than the screen: %s, %v", s.name, wide, err)
		}
	}
}

// A range moves by half its length and doubles, by buttons, keys and a double click on a chart, and
// leads back to now.
func TestMovedRangeInChromium(t *testing.T) {
	needPagesStage(t)
	f := fleet.Open(t, fleet.Config{Nodes: 3, Each: 4, Tame: true})
	ctx := browser(t)
	u := signIn(t, ctx, f, 1440, 900, "/?range=15m")
	u.seesCharts()
	const ends = `const q = new URLSearchParams(location.search), from = Number(q.get("from")), to = Number(q.get("to")), now = Date.now() / 1000;`
	is := func(what, condition string) {
		t.Helper()
		u.sees(what, `(() => { `+ends+` return `+condition+`; })()`)
	}
	later := `button[aria-label="half a range later"]`
	is("no later than now", `document.querySelector('`+later+`').disabled`)
	u.clicks(`button[aria-label="half a range earlier"]`)
	is("half a range earlier", `to - from === 900 && now - to > 445 && now - to < 600 && q.get("range") === "15m"`)
	key := func(key string) {
		t.Helper()
		u.sees("the key "+key, fmt.Sprintf(`(document.body.dispatchEvent(new KeyboardEvent("keydown", { key: %q, bubbles: true })), true)`, key))
	}
	key(",")
	is("a range earlier", `to - from === 900 && now - to > 895 && now - to < 1100`)
	u.clicks(later)
	is("half a range earlier again", `to - from === 900 && now - to > 445 && now - to < 600`)
	key("z")
	is("twice the range", `to - from === 1800 && to <= now`)
	key(".")
	is("later, up to now", `to - from === 1800 && to <= now && now - to < 60`)
	key("n")
	is("the range before", `location.search === "?range=15m"`)
	u.clicks(`button[aria-label="zoom out: twice the range"]`)
	is("a longer range that moves", `location.search === "?range=30m" && document.querySelector("#range-open").innerText.trim() === "last 30m"`)
	u.seesCharts()
	testkit.Eventually(t, "a double click on a chart doubles the range", func() bool {
		box, err := chromedp.Run(ctx, chromedp.Evaluate[[]float64](`(() => { const r = document.querySelector(".u-over").getBoundingClientRect(); return [r.left + r.width / 2, r.bottom - 5]; })()`))
		if err != nil {
			t.Fatal(err)
		}
		u.does(chromedp.MouseClickXY(box[0], box[1], chromedp.ClickCount(1)), chromedp.MouseClickXY(box[0], box[1], chromedp.ClickCount(2)))
		at, err := chromedp.Run(ctx, chromedp.Evaluate[string](`location.pathname + location.search`))
		if err != nil {
			t.Fatal(err)
		}
		return at == "/?range=1h" || at == "/"
	})
}

// The header says how old the figures are. The page requests them again after a button, after a key
// and by itself, but not while it is paused or hidden.
func TestRefreshInChromium(t *testing.T) {
	needPagesStage(t)
	f := fleet.Open(t, fleet.Config{Nodes: 3, Each: 4, Tame: true})
	ctx := browser(t)
	u := signIn(t, ctx, f, 1440, 900, "/?range=15m")
	u.seesCharts()
	const age = `document.querySelector(".fresh .num").innerText`
	u.sees("an age that counts", `/^[1-9]\d* s ago$/.test(`+age+`)`)
	u.sees("requests that are counted", `(window.asked = [], window.real = window.fetch, window.fetch = (path, more) => { window.asked.push(path); return window.real(path, more); }, true)`)
	u.clicks("#refresh")
	u.sees("all asked again, also what is kept", `window.asked.filter((p) => p.startsWith("/v1/usage")).length > 15 && /^(now|1 s ago)$/.test(`+age+`)`)
	u.sees("the key r", `(window.asked.length = 0, document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "r", bubbles: true })), true)`)
	u.sees("all asked again", `window.asked.some((p) => p.startsWith("/v1/usage"))`)
	u.sees("the range moving by itself, and the machines' present", `(window.asked.length = 0, true)`)
	u.sees("requests by itself", `window.asked.some((p) => p.startsWith("/v1/summary")) && window.asked.some((p) => p.startsWith("/api/v1/query_range"))`)

	// A paused page asks only for what the frame shows.
	u.clicks("#auto")
	u.sees("paused", `document.querySelector("#auto").getAttribute("aria-pressed") === "true"`)
	u.sees("an old age", `(window.asked.length = 0, parseInt(`+age+`) > 12)`)
	quiet(t, ctx, `window.asked.filter((p) => !/^.(v1.nodes|api.v1.alerts)/.test(p)).join()`)
	picture(t, ctx, "refresh-paused")
	u.clicks("#auto")
	u.sees("what is new at once", `window.asked.some((p) => p.startsWith("/v1/usage")) && /^(now|\d s ago)$/.test(`+age+`)`)

	// A hidden one asks for nothing; once it is seen, for what is due.
	u.sees("a hidden page", `(Object.defineProperty(document, "hidden", { configurable: true, get: () => true }), document.dispatchEvent(new Event("visibilitychange")), window.since = performance.now(), true)`)
	u.sees("some time", `performance.now() - window.since > 3000 && (window.asked.length = 0, true)`)
	u.sees("more time", `performance.now() - window.since > 19000`)
	quiet(t, ctx, `window.asked.join()`)
	u.sees("a page that is seen", `(delete document.hidden, document.dispatchEvent(new Event("visibilitychange")), true)`)
	u.sees("what is due", `window.asked.some((p) => p.startsWith("/v1/summary"))`)
}

// quiet checks that an expression, which lists requests, is empty.
func quiet(t *testing.T, ctx context.Context, script string) {
	t.Helper()
	asked, err := chromedp.Run(ctx, chromedp.Evaluate[string](script))
	if err != nil || asked != "" {
		t.Errorf("asked: %s, %v", asked, err)
	}
}

// The legend of a chart hides and isolates series by mouse and by keys; the choice is in the
// address, and a reload keeps it.
func TestLegendInChromium(t *testing.T) {
	needPagesStage(t)
	f := fleet.Open(t, fleet.Config{Nodes: 3, Each: 4, Tame: true})
	ctx := browser(t)
	u := signIn(t, ctx, f, 1440, 900, "/?range=15m")
	u.seesCharts()
	const shown = `[...document.querySelectorAll('.chart:has([aria-label="save CPU"]) .legend button[aria-pressed=true]')].map((b) => b.querySelector("b").dataset.name)`
	const second = `.chart:has([aria-label="save CPU"]) .legend button:nth-of-type(2)`
	name, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.querySelector('`+second+` b').dataset.name`))
	if err != nil {
		t.Fatal(err)
	}
	u.clicks(second)
	u.sees("it hidden", `!`+shown+`.includes(`+quote(name)+`) && `+shown+`.length >= 2 && location.search.includes("series=CPU")`)
	u.does(chromedp.Reload())
	u.sees("it hidden after a reload", `document.querySelector('`+second+`') !== null && !`+shown+`.includes(`+quote(name)+`) && `+shown+`.length >= 2`)
	u.clicks(second)
	u.sees("all", `!location.search.includes("series")`)
	u.sees("the series focused", `(() => { const b = document.querySelector('`+second+`'); b.focus(); b.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", altKey: true, bubbles: true, cancelable: true })); return true; })()`)
	u.sees("it alone, by keys", shown+`.join() === `+quote(name))
	u.does(chromedp.Reload())
	u.sees("it alone after a reload", shown+`.join() === `+quote(name))
	picture(t, ctx, "legend-alone")
	double := `(() => { const b = document.querySelector('` + second + `'); for (const detail of [1, 2]) b.dispatchEvent(new MouseEvent("click", { bubbles: true, detail })); return true; })()`
	u.sees("a double click", double)
	u.sees("all by a double click", `!location.search.includes("series")`)
	u.sees("a double click", double)
	u.sees("it alone by a double click", shown+`.join() === `+quote(name))

	// The menu saves what is drawn.
	u.sees("the file", `(window.saved = null, window.make = URL.createObjectURL, URL.createObjectURL = (b) => { b.text().then((s) => { window.saved = s; }); return window.make(b); }, true)`)
	u.clicks(`button[aria-label="save CPU"]`)
	u.button("Download CSV")
	u.sees("one series with its quality", `window.saved?.split("\n")[0] === "from,to," + `+quote(name)+` + " (cores)," + `+quote(name)+` + " quality" && /^\d{4}-\d\d-\d\dT[^,]*Z,[^,]*Z,[\d.]+,measured$/.test(window.saved.split("\n")[2])`)
	u.clicks(`button[aria-label="save CPU"]`)
	u.button("Copy link")
	u.sees("that it was copied, or why not", `[...document.querySelectorAll(".told")].some((e) => /copied|address/.test(e.innerText))`)
	u.sees("the picture", `(window.png = [], HTMLCanvasElement.prototype.toBlob = function () { window.png = [this.width, this.height]; }, true)`)
	u.clicks(`button[aria-label="save CPU"]`)
	u.button("Download PNG")
	u.sees("a picture", `window.png[0] > 300 && window.png[1] > 200`)

	// A screen that becomes wide shows more names, each with its value from the first frame on.
	u.does(chromedp.EmulateViewport(390, 844))
	u.opens(f.URL + "/?range=15m&idle=1")
	u.sees("a few names", `document.querySelector(".legend .more") !== null`)
	u.sees("a watch over values", `(() => { window.blank = 0; new MutationObserver(() => { window.blank += [...document.querySelectorAll(".legend b")].filter((b) => b.textContent === "").length; }).observe(document.body, { childList: true, subtree: true }); return true; })()`)
	u.does(chromedp.EmulateViewport(1440, 900))
	u.sees("all names", `document.querySelector(".legend .more") === null && document.querySelector(".legend").querySelectorAll("b").length > 7`)
	if blank := evaluate[int](u, `window.blank`); blank != 0 {
		t.Errorf("%d names of legends without values", blank)
	}
}

// A job compares with the previous period of equal length: a dashed line in its charts, and the
// change of its figures by the ledger's own sums.
func TestCompareInChromium(t *testing.T) {
	needPagesStage(t)
	f := fleet.Open(t, fleet.Config{Nodes: 3, Each: 4, Tame: true, Windows: 40, Window: time.Minute})
	ctx := browser(t)
	now := time.Now().Truncate(time.Minute)
	from, to := now.Add(-12*time.Minute).Unix(), now.Add(-2*time.Minute).Unix()
	u := signIn(t, ctx, f, 1440, 900, fmt.Sprintf("/job?job=postgres-main&from=%d&to=%d", from, to))
	u.seesCharts()
	u.sees("no change", `document.querySelector(".change") === null`)
	u.sees("the choice", `(() => { const c = [...document.querySelectorAll("label.check")].find((l) => l.innerText.includes("previous period")); c.querySelector("input").click(); return true; })()`)
	u.sees("it in the address", `location.search.includes("compare=1")`)
	u.sees("lines of the previous period", `[...document.querySelectorAll(".legend b")].map((b) => b.dataset.name).filter((n) => n.endsWith("previous period")).join() === "previous period,previous period,previous period,read, previous period,written, previous period,received, previous period,sent, previous period"`)
	expect(t, ctx, "the change of CPU time by the ledger", fmt.Sprintf(`
		const { get } = await of("api.js"), { changeOf } = await of("pages/job.js");
		const sum = async (a, b) => (await get("/v1/usage", { by: "job", where: "job=postgres-main", from: a, to: b })).groups[0];
		const [a, b] = [await sum(%d, %d), await sum(%d, %d)], shown = document.querySelector(".change").innerText, c = 100 * (Number(a.cpu_seconds) / Number(b.cpu_seconds) - 1);
		return [shown === changeOf(a, b, ["cpu_seconds"]), Math.abs(Number(shown.replace("−", "-").replace(" %%", "")) - c) <= 0.51, changeOf({ x: 1 }, { x: null }, ["x"]), changeOf({ x: 1 }, { x: 0 }, ["x"]), changeOf({ x: 112 }, { x: 100 }, ["x"]), changeOf({ x: 1, y: 1 }, { x: 2, y: 2 }, ["x", "y"])];`, from, to, 2*from-to, from),
		`[true,true,"","","+12 %","−50 %"]`)
	picture(t, ctx, "compare-job")
	u.opens(fmt.Sprintf("%s/job?job=postgres-main&compare=1&from=%d&to=%d", f.URL, now.Add(-30*time.Minute).Unix(), to))
	u.sees("no change against a period of which a part was not measured", `document.querySelector(".change") === null && document.querySelectorAll('.stat [title^="no comparison"]').length === 4`)
}

// Overview and Node compare with the previous period too: the tiles show by how much the average of the
// range changed, and disk and network have dashed lines of the series of that period. The CSV of these
// charts has the quality that the ledger has.
func TestCompareTilesInChromium(t *testing.T) {
	needPagesStage(t)
	f := fleet.Open(t, fleet.Config{Nodes: 3, Each: 4, Tame: true, Windows: 40, Window: time.Minute})
	now := time.Now().Truncate(time.Minute)
	from, to := now.Add(-22*time.Minute).Unix(), now.Add(-12*time.Minute).Unix()
	ctx := browser(t)
	u := signIn(t, ctx, f, 1440, 900, "/query")
	u.sees("the page", `document.querySelector("#main") !== null`)
	expect(t, ctx, "the text of a change", `
		const { movedBy } = await of("changes.js");
		return [movedBy(2.5, 2, "cores"), movedBy(1024, 2048, "bytes"), movedBy(5, 0, "watts"), movedBy(5, null, "watts"), movedBy(undefined, 5, "watts"), movedBy(0, 0, "rate"), movedBy(5.002, 5, "watts"), movedBy(5.003, 5, "watts")];`,
		`["+0.50 cores (+25 %)","−1.00 KiB (−50 %)","+5.00 W","","","unchanged","unchanged","+3.00 mW (+0.1 %)"]`)
	for path, where := range map[string]string{"/": "", "/node/rack1-n01": "node=rack1-n01"} {
		u.opens(fmt.Sprintf("%s%s?compare=1&from=%d&to=%d", f.URL, path, from, to))
		u.sees("lines of the previous period", `[...document.querySelectorAll(".legend b")].map((b) => b.dataset.name).filter((n) => n.endsWith("previous period")).join() === "previous period,previous period,previous period,read, previous period,written, previous period,received, previous period,sent, previous period"`)
		u.sees("the change in five tiles", `document.querySelectorAll("section[aria-label=now] .change").length === 5`)
		expect(t, ctx, "changes by the ledger, lines by the series", fmt.Sprintf(`
			const { get, range } = await of("api.js"), { movedBy } = await of("changes.js"), uPlot = (await import(document.querySelector("script[type=module]").src.replace("js/app.js", "vendor/uplot.mjs"))).default;
			const [from, to, where] = [%d, %d, %s], sum = async (a, b) => (await get("/v1/usage", { by: "kind", where, from: a, to: b })).groups;
			const [a, b] = [await sum(from, to), await sum(2 * from - to, from)], total = (groups, keys, idle) => groups.filter((g) => idle || g.kind !== "idle").reduce((s, g) => s + keys.reduce((s, k) => s + Number(g[k] || 0), 0), 0) / (to - from);
			const want = [[["cpu_seconds"], "cores"], [["memory_byte_seconds"], "bytes"], [["energy_joules"], "watts", true], [["disk_read_bytes", "disk_written_bytes"], "rate"], [["network_rx_bytes", "network_tx_bytes"], "rate"]].map(([k, unit, idle]) => movedBy(total(a, k, idle), total(b, k, idle), unit));
			const shown = [...document.querySelectorAll("section[aria-label=now] .change")].map((e) => e.innerText), plots = uPlot.sync("time").plots.filter((u) => u.root.isConnected), titled = (u) => u.root.closest(".card").querySelector("h2").innerText;
			const { step } = (await of("span.js")).spanOf({ from, to }), disk = plots.find((u) => titled(u) === "Disk"), n = disk.series.findIndex((s) => s.label === "written, previous period");
			const [past] = await range('sum(avg_over_time(mete_node_disk_bytes_per_second{direction="written"%s}[60s]))', { from: disk.data[0][0] - (to - from), to: disk.data[0].at(-1) - (to - from), step }, undefined), at = new Map(past.values.map(([t, v]) => [Number(t) + (to - from), Number(v)]));
			const known = disk.data[n].filter((v) => v !== null).length, same = disk.data[0].every((t, i) => disk.data[n][i] === null || Math.abs(disk.data[n][i] / at.get(t) - 1) < 1e-9);
			return [shown.join() === want.join() || [shown, want], disk.series[n].dash.join(), known > 10, same];`, from, to, quote(where), map[string]string{"": "", "node=rack1-n01": `,node="rack1-n01"`}[where]), `[true,"6,4",true,true]`)
		picture(t, ctx, "compare-tiles")
		// The CSV of Disk.
		u.sees("the menu", `(() => { window.saved = null; URL.createObjectURL = (b) => { b.text().then((t) => { window.saved = t; }); return "#"; }; const m = document.querySelector('[aria-label="save Disk"]'); m.click(); return true; })()`)
		u.sees("the CSV", `(() => { if (window.saved) return true; const b = [...document.querySelectorAll(".pop button")].find((b) => b.innerText === "Download CSV"); if (b) b.click(); return false; })()`)
		if got := evaluate[string](u, `window.saved.split("\n").slice(0, 1).join() + "|" + [...new Set(window.saved.trim().split("\n").slice(1).map((l) => l.split(",")[2]))].filter(Boolean).join()`); got != "time,read (bytes/s),read quality,written (bytes/s),written quality,\"read, previous period (bytes/s)\",\"written, previous period (bytes/s)\"|measured" {
			t.Errorf("%s: CSV of disk: %s", path, got)
		}
	}
}

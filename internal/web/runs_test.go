package web_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit/fleet"
)

// bookRuns books some runs of 0.1 s of job ci, 10 s apart, of which one failed for want of memory, and the
// latest used three times the CPU time.
func bookRuns(t *testing.T, f *fleet.Fleet, count int) {
	t.Helper()
	const node = "01J00000000000000000009999"
	now := time.Now().UTC().Truncate(time.Second)
	l := f.Server.Ledger
	if err := l.PutNode(t.Context(), registry.Node{ID: node, Name: "runner", Cluster: "north", MachineID: "runner", Boot: "b", At: now.Add(-time.Hour)}); err != nil {
		t.Fatal(err)
	}
	mark := batch.Mark{Next: 1}
	for first := 0; first < count; first += 100 {
		e := &batch.Entry{Node: node, Stream: batch.Stream{9}, Number: mark.Next, Previous: mark.Last, Sent: fmt.Append(nil, first), Boot: "b", Through: now}
		e.Hash = batch.HashOf(e.Sent)
		for i := first; i < min(first+100, count); i++ {
			exit, cpu := 0, 80e6+float64(i%7)*1e6
			switch i {
			case 0:
				cpu *= 3
			case 40:
				exit = 137
			}
			start := now.Add(-time.Duration(i+1) * 10 * time.Second)
			n := batch.Name{ID: workload.NewID(node, workload.Job, fmt.Sprint(i)), Kind: workload.Job, Key: fmt.Sprint(i), Name: "ci", Job: "ci", User: "ann",
				Started: start, Ended: start.Add(100 * time.Millisecond), Exit: &exit}
			short, _ := workload.ShortIDOf(n.ID)
			u := usage.Usage{Covered: 100 * time.Millisecond}
			u.Put(usage.CPU, int64(cpu), usage.Measured)
			u.Put(usage.MemoryPeak, int64(i+1)<<20, usage.Measured)
			u.Put(usage.DiskWritten, int64(i)*4096, usage.Apportioned)
			u.Put(usage.OOMKills, int64(exit/137), usage.Measured)
			u.Put(usage.EnergyRest, int64(cpu)/100, usage.Modelled)
			u.Put(usage.EnergyError, int64(cpu)/400, usage.Modelled)
			e.Names = append(e.Names, n)
			e.Minutes = append(e.Minutes, batch.Minute{Workload: short, Minute: start.Unix() / 60, Usage: u})
		}
		if r, err := l.Book(t.Context(), []*batch.Entry{e}); err != nil || r[0].Err != nil || r[0].Verdict != batch.Accepted {
			t.Fatalf("Book: %+v, %v", r, err)
		}
		mark = batch.Mark{Next: mark.Next + 1, Last: e.Hash}
	}
}

// A shownRun is a row of the table of runs.
type shownRun struct {
	Run, Exit, Marks string
	Values           map[string]float64 // exact, by figure
	Texts            map[string]string
}

// readRuns scrolls through the table of runs and collects its rows.
const readRuns = `(async () => {
	const box = document.querySelector('[role=region][aria-label="runs"]'), rows = {};
	for (let at = 0; at <= box.scrollHeight; at += 200) {
		box.scrollTop = at;
		await new Promise((r) => setTimeout(r, 60));
		for (const tr of box.querySelectorAll("tbody tr")) {
			const pick = tr.querySelector("input[type=checkbox]");
			if (!pick) continue;
			const data = [...tr.querySelectorAll("data")];
			rows[pick.value] = { Run: pick.value, Exit: tr.cells[3].innerText.trim(), Marks: tr.cells[10]?.innerText.trim() ?? "",
				Values: Object.fromEntries(data.map((d) => [d.dataset.figure, Number(d.value)])), Texts: Object.fromEntries(data.map((d) => [d.dataset.figure, d.innerText])) };
		}
	}
	return Object.values(rows);
})()`

// lookAt looks at a page on all screens, and returns its browser and user.
func lookAt(t *testing.T, f *fleet.Fleet, v visit) (context.Context, *user) {
	t.Helper()
	axe, err := os.ReadFile("testdata/axe.min.js")
	if err != nil {
		t.Fatal(err)
	}
	ctx := browser(t)
	console := &complaints{}
	if err := chromedp.Listen(ctx, console.listen); err != nil {
		t.Fatal(err)
	}
	u := signIn(t, ctx, f, 1440, 900, "/query")
	u.sees("the page", `document.querySelector("#main") !== null`)
	for _, s := range screens {
		look(t, ctx, console, f.URL, v, s, string(axe))
	}
	return ctx, u
}

// The Runs table of a job with 300 runs of 0.1 s has the numbers of the ledger's answer, exactly in its data
// and to three digits in its text; the failed run says why first; the marked one has its mark; two chosen
// runs are compared, and a click on a start shows its time.
func TestRunsInChromium(t *testing.T) {
	needPagesStage(t)
	const count = 300
	f := fleet.Open(t, fleet.Config{Nodes: 1, Each: 3})
	bookRuns(t, f, count)
	ctx, u := lookAt(t, f, visit{"runs", "/job?job=ci&range=1h", "300 runs"})
	u.does(chromedp.EmulateViewport(1440, 900))
	u.opens(f.URL + "/job?job=ci&range=1h")
	u.sees("the mark of the chart of what is apportioned, all figures at once, and no column of the only node", `(() => {
		const raw = document.querySelector('[aria-label="raw figures"]'), disk = [...document.querySelectorAll(".card h2")].find((h) => h.innerText.startsWith("Disk"));
		return disk.querySelector(".quality.apportioned") && raw.scrollHeight <= raw.clientHeight + 1 && ![...document.querySelectorAll('[aria-label="runs"] th')].some((th) => th.innerText === "Node");
	})()`)
	u.sees("one power while the runs ran, and the unit of exact values", `(() => {
		const row = (key) => document.querySelector('[aria-label="raw figures"] td[title=' + key + "]").parentElement, power = row("energy_average_watts").cells;
		return [...document.querySelectorAll(".stat")].find((s) => s.querySelector("h3").innerText === "Energy").innerText.includes(power[1].innerText + " per running workload") && power[0].innerText === "Power, average per running workload" && row("energy_joules").cells[2].innerText === "250.57 J".replace(" ", "");
	})()`)
	u.sees("the table", `document.querySelector('[aria-label="runs"] tbody data') !== null`)
	rows, err := chromedp.Run(ctx, chromedp.Evaluate[[]shownRun](readRuns, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatal(err)
	}
	list, err := f.Server.Ledger.Runs(t.Context(), query.RunQuery{Query: query.Query{From: time.Now().Add(-2 * time.Hour), To: time.Now().Add(time.Minute),
		Where: map[query.Dimension][]string{query.ByJob: {"ci"}}, Scope: query.Scope{All: true}}})
	if err != nil || len(list) != count || len(rows) != count {
		t.Fatalf("%d runs in the ledger, %d on the page: %v", len(list), len(rows), err)
	}
	want := map[string]v1.Run{}
	for i := range list {
		r := v1.RunOf(&list[i])
		want[string(r.ID)] = r
	}
	failed, marked := 0, 0
	for _, row := range rows {
		r := want[row.Run]
		exit := "0"
		if *r.Exit != 0 {
			exit = "out of memory (137)"
			failed++
		}
		if row.Exit != exit {
			t.Errorf("%s: exit %q, want %q", row.Run, row.Exit, exit)
		}
		if (row.Marks != "") != (r.Marks != "") {
			t.Errorf("%s: marks %q, want %q", row.Run, row.Marks, r.Marks)
		}
		if strings.Contains(row.Marks, "CPU +") {
			marked++
		}
		for key, v := range map[string]string{"length_seconds": r.Length.String(), "cpu_seconds": r.CPU.String(), "cpu_average_cores": r.Cores.String(), "memory_peak_bytes": r.Peak.String(),
			"disk_written_bytes": r.DiskWritten.String(), "energy_joules": r.Energy.String()} {
			exact, err := strconv.ParseFloat(v, 64)
			if err != nil {
				t.Fatal(err)
			}
			shown, err := parseShown(row.Texts[key])
			if err != nil || row.Values[key] != exact || !shown.matches(exact) {
				t.Errorf("%s: %s is %v, shown as %q; want %v, %v", row.Run, key, row.Values[key], row.Texts[key], exact, err)
			}
		}
		if _, ok := row.Values["disk_read_bytes"]; ok {
			t.Errorf("%s: bytes read, which are absent, are %v", row.Run, row.Values["disk_read_bytes"])
		}
	}
	if failed != 1 || marked != 1 {
		t.Errorf("%d failed and %d marked for CPU time, want one each", failed, marked)
	}
	checkRunMarks(u, count)
	u.does(chromedp.Evaluate[chromedp.Void](`document.querySelector('[role=region][aria-label="runs"]').scrollTop = 0`))
	u.sees("the top of the table", `document.querySelectorAll('[aria-label="runs"] tbody input').length > 8 && !document.querySelector('[aria-label="runs"] tbody tr').matches(".spacer")`)
	for i := range 2 {
		u.does(chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`document.querySelectorAll('[aria-label="runs"] tbody input')[%d].click()`, i)))
	}
	u.sees("two runs side by side", `document.querySelector('[aria-label="two runs"]')?.innerText.includes("%")`)
	change, err := chromedp.Run(ctx, chromedp.Evaluate[string](`[...document.querySelectorAll('[aria-label="two runs"] tr')].find((tr) => tr.cells[0].innerText === "CPU").cells[3].innerText`))
	first, second := v1.RunOf(&list[0]), v1.RunOf(&list[1])
	for _, d := range v1.CompareRuns([]v1.Run{second, first}).Figures {
		if wanted := fmt.Sprintf("+%.0f %%", 100**orZero(d.Changes[1])); d.Figure == "cpu_seconds" && (err != nil || change != wanted) {
			t.Errorf("the difference in CPU time is %q, %v; want %q", change, err, wanted)
		}
	}
	picture(t, ctx, "runs-compared")
	u.does(chromedp.Evaluate[chromedp.Void](`document.querySelector('[aria-label="runs"] tbody button').click()`))
	u.sees("the time of the run", fmt.Sprintf(`(() => { const q = new URLSearchParams(location.search), at = %d; return Number(q.get("from")) <= at && Number(q.get("to")) >= at && Number(q.get("to")) - Number(q.get("from")) < 120; })()`, list[0].Started.Unix()))
	checkRunTip(u, f)
}

// runMarkScript reads at the place of each run of the API's answer, on every chart, whether the strip there
// is of the tone of a failed run, and what the marks say.
const runMarkScript = `
	const { get } = await of("api.js"), { runMarks } = await of("runs.js"), uPlot = (await import(document.querySelector("script[type=module]").src.replace("js/app.js", "vendor/uplot.mjs"))).default;
	const q = new URLSearchParams(location.search), { runs } = await get("/v1/runs", { where: "job=ci", limit: 1000, from: q.get("from") || "-1h", to: q.get("to") || undefined }), marks = runMarks(runs);
	const tone = (name) => { const c = document.createElement("canvas").getContext("2d"); c.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim(); c.fillRect(0, 0, 1, 1); return [...c.getImageData(0, 0, 1, 1).data]; };
	const near = (a, b) => [0, 1, 2].every((i) => Math.abs(a[i] - b[i]) < 40), bad = tone("bad"), fine = tone("accent"), seconds = (t) => Date.parse(t) / 1000;
	await new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)));
	const plots = uPlot.sync("time").plots.filter((u) => u.root.isConnected), wrong = [];
	const red = (u, x, y) => near(u.ctx.getImageData(Math.round(x), Math.round(y), 1, 1).data, bad), blue = (u, x, y) => near(u.ctx.getImageData(Math.round(x), Math.round(y), 1, 1).data, fine);
	for (const u of plots) for (const r of runs) {
		const at = u.valToPos(seconds(runs.find((r) => r.exit_code).started_at), "x", true), x = u.valToPos(seconds(r.started_at), "x", true), y = u.bbox.top + u.bbox.height + 4;
		if (x < u.bbox.left || x > u.bbox.left + u.bbox.width - 3) continue;
		const failed = r.exit_code !== 0, color = [0, 1].some((d) => (failed ? red : blue)(u, x + d, y));
		if (!color && (failed || Math.abs(x - at) > 4)) // else it is below the failed one
			wrong.push(u.root.closest(".card").querySelector("h2").innerText + " " + r.started_at);
	}
`

// checkRunMarks compares the marks of charts with the runs of the API.
func checkRunMarks(u *user, count int) {
	u.t.Helper()
	expect(u.t, u.ctx, "marks of all runs on all charts", runMarkScript+`
		const same = marks.every((m) => { const r = runs.find((r) => seconds(r.started_at) === m.from && seconds(r.ended_at) === m.to); return r && m.title.startsWith("run ci, ") && m.title.includes(r.exit_code ? "exit out of memory (137)" : "exit 0,") && m.title.endsWith(", runner") && m.tone === (r.exit_code ? "bad" : "accent") && m.ends === (r.exit_code ? "to" : ""); });
		return [plots.length > 1, marks.length, same, marks.at(-1).tone, wrong];`, fmt.Sprintf(`[true,%d,true,"bad",[]]`, count))
	expect(u.t, u.ctx, "marks of a few runs, one of which goes on", runMarkScript+`
		const few = runMarks([{ ...runs[0], state: "running", ended_at: null, exit_code: null }, runs.find((r) => r.exit_code), runs[1]], 5e9);
		return few.map((m) => [m.ends, m.tone, m.to === 5e9, /, running, runner$/.test(m.title)].join());`, `["from,accent,true,true","both,accent,false,false","both,bad,false,false"]`)
}

// checkRunTip checks that of the minutes around the failed run, the tip of a chart says how it ended.
func checkRunTip(u *user, f *fleet.Fleet) {
	u.t.Helper()
	failed := evaluate[float64](u, `(async () => { const { get } = await import(document.querySelector("script[type=module]").src.replace("app.js", "api.js")); return Date.parse((await get("/v1/runs", { where: "job=ci", limit: 1000, from: "-1h" })).runs.find((r) => r.exit_code).started_at) / 1000; })()`)
	u.opens(fmt.Sprintf("%s/job?job=ci&from=%.0f&to=%.0f", f.URL, failed-120, failed+120))
	u.sees("charts", `document.querySelectorAll(".uplot canvas").length >= 2`)
	expect(u.t, u.ctx, "the failed run in the tip", fmt.Sprintf(`
		const uPlot = (await import(document.querySelector("script[type=module]").src.replace("js/app.js", "vendor/uplot.mjs"))).default, u = uPlot.sync("time").plots.filter((u) => u.root.isConnected)[0];
		u.root.closest("figure").dispatchEvent(new MouseEvent("mouseenter"));
		u.setCursor({ left: u.valToPos(%f, "x"), top: 20 });
		return [...u.root.closest("figure").querySelectorAll(".tip .muted")].map((e) => e.innerText)[1].replace(/^.*, exit/, "exit");`, failed), `"exit out of memory (137), runner"`)
	picture(u.t, u.ctx, "runs-marks")
}

// orZero returns a pointer to 0 for nil.
func orZero(v *float64) *float64 {
	if v == nil {
		return new(float64)
	}
	return v
}

// bookKubeRuns books the Jobs of a CronJob, each with a pod on each of two nodes, 5 minutes apart, of which one failed.
func bookKubeRuns(t *testing.T, f *fleet.Fleet, count int) {
	t.Helper()
	now := time.Now().UTC().Truncate(time.Second)
	l, lease := f.Server.Ledger, pod.Lease{Cluster: "north"}
	for at := range 2 {
		node := fmt.Sprintf("01J0000000000000000000888%d", at)
		if err := l.PutNode(t.Context(), registry.Node{ID: node, Name: fmt.Sprint("kube-", at), Cluster: "north", MachineID: node, Boot: "b", At: now.Add(-time.Hour)}); err != nil {
			t.Fatal(err)
		}
		e := &batch.Entry{Node: node, Stream: batch.Stream{8, byte(at)}, Number: 1, Sent: []byte(node), Boot: "b", Through: now}
		e.Hash = batch.HashOf(e.Sent)
		var pods []pod.Pod
		for i := range count {
			start, uid := now.Add(-time.Duration(5*i+2)*time.Minute), fmt.Sprintf("pod-%d-%d", at, i)
			pods = append(pods, pod.Pod{UID: uid, Namespace: "shop", Name: uid, Job: "shop/cronjob/report", Node: node, RunUID: fmt.Sprint(i), RunName: fmt.Sprint("report-", i), Created: start})
			n := batch.Name{ID: workload.NewID(node, workload.Pod, uid), Kind: workload.Pod, Key: uid}
			short, _ := workload.ShortIDOf(n.ID)
			u := usage.Usage{Covered: 30 * time.Second}
			u.Put(usage.CPU, int64(4e9)+int64(i)*1e6, usage.Measured)
			u.Put(usage.MemoryPeak, int64(i+1)<<20, usage.Measured)
			e.Names, e.Minutes = append(e.Names, n), append(e.Minutes, batch.Minute{Workload: short, Minute: start.Unix() / 60, Usage: u})
		}
		if r, err := l.Book(t.Context(), []*batch.Entry{e}); err != nil || r[0].Err != nil || r[0].Verdict != batch.Accepted {
			t.Fatalf("Book: %+v, %v", r, err)
		}
		if err := l.BookPods(t.Context(), lease, pods, now); err != nil {
			t.Fatal(err)
		}
	}
	var runs []pod.Run
	for i := range count {
		start, exit := now.Add(-time.Duration(5*i+2)*time.Minute), 0
		if i == 3 {
			exit = 3
		}
		runs = append(runs, pod.Run{UID: fmt.Sprint(i), Namespace: "shop", Started: start, Ended: start.Add(30 * time.Second), Exit: &exit})
	}
	if err := l.BookRuns(t.Context(), lease, runs); err != nil {
		t.Fatal(err)
	}
}

// The Runs table of a CronJob has a row for each of its Jobs, with name, nodes and the sum of its pods.
func TestKubeRunsInChromium(t *testing.T) {
	needPagesStage(t)
	f := fleet.Open(t, fleet.Config{Nodes: 1, Each: 3})
	bookKubeRuns(t, f, 8)
	_, u := lookAt(t, f, visit{"kube-runs", "/job?job=shop/cronjob/report&range=1h", "8 runs, 1 failed"})
	u.does(chromedp.EmulateViewport(1440, 900))
	u.opens(f.URL + "/job?job=shop/cronjob/report&range=1h")
	const row = `[...document.querySelectorAll('[role=region][aria-label="runs"] tbody tr')].find((tr) => tr.innerText.includes("report-3"))`
	u.sees("the name, the nodes and the exit code of the Job that failed", row+`?.innerText.includes("2 nodes") && `+row+`.cells[3].innerText.trim() === "3"`)
	u.sees("the CPU time of both of its pods", row+`.querySelector("data[data-figure=cpu_seconds]").value === "8.006"`)
}

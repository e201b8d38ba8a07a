package web_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/testkit/fleet"
)

// expect evaluates JavaScript in which modules of the page are imported by of("NAME.js"), and
// compares its result, as JSON, with want.
func expect(t *testing.T, ctx context.Context, what, script, want string) {
	t.Helper()
	got, err := chromedp.Run(ctx, chromedp.Evaluate[string](`(async () => {
		const of = (name) => import(document.querySelector("script[type=module]").src.replace("app.js", name));
		return JSON.stringify(await (async () => { `+script+` })());
	})()`, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	if got != want {
		t.Errorf("%s: got\n%s\nwant\n%s", what, got, want)
	}
}

// lists checks the rules by which pages sort, group and describe what they list.
func lists(t *testing.T, ctx context.Context) {
	t.Helper()
	expect(t, ctx, "names in natural order", `
		const { natural } = await of("names.js");
		return ["rack10", "rack2-n10", "rack1", "b", "rack2-n9", "Rack2", "a7.x", "a07.x"].sort(natural);`,
		`["a07.x","a7.x","b","rack1","Rack2","rack2-n9","rack2-n10","rack10"]`)
	expect(t, ctx, "prefixes of names", `
		const { prefixOf } = await of("names.js");
		return ["rack12-n03", "web-01.example.org", "node7", "db", "42", "10.0.0.7", "gpu_a_1", "-x"].map(prefixOf);`,
		`["rack12","web","node","db","42","10.0.0","gpu_a","-x"]`)
	const alerts = `
		const { byRule, extent, prefixes, describe, isHeartbeat } = await of("firing.js");
		const alerts = [{ labels: { alertname: "Alive", severity: "none" }, state: "firing", activeAt: "2026-01-01T00:00:00Z", annotations: {} }];
		for (let i = 999; i >= 0; i--) alerts.push({ labels: { alertname: "Silent", severity: "critical", node: "rack" + (Math.floor(i / 8) + 1) + "-n" + (i % 8 + 1), cluster: i % 2 ? "north" : "south" }, state: i < 2 ? "pending" : "firing", activeAt: "2026-01-01T00:0" + i % 10 + ":00Z", annotations: {} });
		alerts.push({ labels: { alertname: "Busy", severity: "warning", node: "rack1-n1", cluster: "south" }, state: "firing", activeAt: "2026-01-01T00:00:00Z", annotations: {} });
		alerts.push({ labels: { alertname: "Cap", severity: "critical", cluster: "south" }, state: "firing", activeAt: "2026-01-01T00:00:00Z", annotations: {} });`
	expect(t, ctx, "alerts by rule", alerts+`
		return byRule(alerts.filter((a) => !isHeartbeat(a))).map((g) => [g.rule, g.state, g.alerts.length, extent(g.alerts), g.alerts[0].labels.node ?? null, g.since.slice(11, 16)].join(" "));`,
		`["Silent firing 998 998 nodes in 2 clusters rack1-n3 00:00","Cap firing 1 south  00:00","Busy firing 1 rack1-n1 in south rack1-n1 00:00","Silent pending 2 2 nodes in 2 clusters rack1-n1 00:00"]`)
	expect(t, ctx, "the alerts by prefixes of nodes", alerts+`
		const found = prefixes(byRule(alerts).find((g) => g.rule === "Silent").alerts);
		return [found.length, found.slice(0, 2), found.at(-1)];`,
		`[125,[{"name":"rack2","count":8},{"name":"rack3","count":8}],{"name":"rack1","count":6}]`)
	expect(t, ctx, "templates of rules", `
		const { describe } = await of("firing.js");
		return describe("{{ $labels.node }} draws {{ $value | humanize }}W, {{$value | humanizePercentage}} for {{ $value | humanizeDuration }}.");`,
		`"<node> draws <value>W, <percentage> for <duration>."`)
	const nodes = `
		const { heatOf, scaleOf, groupings, arrange } = await of("heat.js");
		const nodes = ["web-10", "web-2", "db-1", "db-2", "web-1"].map((name, i) => ({ name, cluster: i % 2 ? "b" : "a", cpu_cores: { workloads: i, system: 1, idle: 19 - i, whole: 20 }, power_watts: { whole: 100 * i + 17 } }));
		nodes.push({ name: "web-3", cluster: "a" });`
	expect(t, ctx, "groups of nodes", nodes+`
		return [groupings(nodes), groupings(nodes.slice(0, 1)), ...["name", "cluster", "none"].map((g) => arrange(nodes, g).map((b) => b.name + ": " + b.list.map((n) => n.name).join(" ")))];`,
		`[["name","cluster","none"],["none"],["db: db-1 db-2","web: web-1 web-2 web-3 web-10"],["a: db-1 web-1 web-3 web-10","b: db-2 web-2"],[": db-1 db-2 web-1 web-2 web-3 web-10"]]`)
	expect(t, ctx, "shades of nodes and their scale", nodes+`
		const of1 = (by) => nodes.map((n) => heatOf(n, by));
		return [of1("cpu_cores"), scaleOf(of1("cpu_cores"), "cpu_cores"), of1("power_watts"), scaleOf(of1("power_watts"), "power_watts"), scaleOf([0.3], "cpu_cores"), scaleOf([1.2], "cpu_cores"), scaleOf([null], "cpu_cores"), scaleOf([], "power_watts")];`,
		`[[0.05,0.1,0.15,0.2,0.25,null],0.3,[17,117,217,317,417,null],420,0.3,1,0.1,1]`)
	expect(t, ctx, "what nodes used in a range", `
		const { summed } = await of("pages/nodes.js");
		const g = (node, kind, cpu_seconds, energy_joules) => ({ node, kind, cpu_seconds, energy_joules, disk_written_bytes: null });
		return summed([g("a", "container", 1.5, 10), g("a", "system", "0.5", 5), g("a", "idle", 98, 100), g("b", "idle", 50, null)]);`,
		`{"a":{"cpu_seconds":2,"energy_joules":115},"b":{}}`)
	expect(t, ctx, "averages of a job while it ran", `
		const { running } = await of("amounts.js");
		const r = { memory_byte_seconds: "1073741824000", cpu_seconds: 90, energy_joules: null, covered_seconds: 20 };
		return [running(r, "memory_byte_seconds"), running(r, "cpu_seconds"), running(r, "energy_joules"), running({ ...r, covered_seconds: 0 }, "cpu_seconds")];`,
		`[53687091200,4.5,null,null]`)
	expect(t, ctx, "averages of all workloads of a job while it ran", `
		const { together } = await of("amounts.js"), { average } = await of("pages/job.js"), at = { first_at: "2026-01-01T00:00:00Z", last_at: "2026-01-01T00:10:00Z" };
		const sum = { ...at, memory_byte_seconds: 1000, memory_anon_byte_seconds: 500, covered_seconds: 2000, energy_joules: 4000, energy_average_watts: 1 };
		return [[sum, 900], [sum, 400], [sum, 0], [{ ...sum, covered_seconds: 20 }, 900], [{ ...sum, memory_byte_seconds: null }, 900], [{ ...sum, covered_seconds: 0 }, 900]].map(([r, over]) => together(r, "memory_byte_seconds", over))
			.concat(average(sum, "memory_anon_average_bytes", 500), average(sum, "energy_average_watts", 500)).map((v) => v && Number(v.toFixed(3)));`,
		`[1.667,2.5,1.667,50,null,null,1,2]`)
	expect(t, ctx, "the values of a column", `
		const { aligned, text } = await of("fmt.js");
		const column = (unit, values) => values.map((v) => aligned(v, unit, Math.max(...values)).join(" "));
		return [column("joules", [3745, 3599, 70, 0.2, 0]), column("bytes", [900, 12]), column("bytes", [250 * 2 ** 20, 2 ** 20, 100]), column("seconds", [7100, 61]), aligned(0.2, "joules", 36000, 70).join(" "), column("cores", [0.5, 0.0002]), aligned(5, "count", 7), [3599, 3745, 0.0004, 0].map((v) => text(v, "joules")), text(1536, "rate"), text(2 ** 40 * 3600, "bytehours")];`,
		`[["1.040 Wh","1.000 Wh","0.019 Wh","<0.001 Wh","0 Wh"],["900 B","12 B"],["250 MiB","1.00 MiB","100 B"],["118.3 min","1.0 min"],"<0.001 Wh",["0.500 cores","<0.001 cores"],["5",""],["3.60 kJ","1.04 Wh","400 µJ","0 J"],"1.50 KiB/s","1.00 TiB h"]`)
	expect(t, ctx, "the tasks of a job, each for how long it ran", `
		const { text, fieldUnit } = await of("fmt.js");
		return [17, 0, 90000].map((v) => text(v, fieldUnit("pids_seconds")));`, `["17.0 task s","0 task s","25.0 task h"]`)
	sizes := []float64{0, 1, 1000, 1023, 1024, 1030, 5000, 1023.4 * 1024, 1023.6 * 1024, 12.34 * (1 << 20), 999.7 * (1 << 20), 3.3 * (1 << 30), 250 * (1 << 40)}
	asText := make([]string, len(sizes))
	for i, v := range sizes {
		asText[i] = unit.Bytes(v)
	}
	given, err := json.Marshal([]any{sizes, asText})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, ctx, "bytes of a column as in a terminal", `
		const { aligned } = await of("fmt.js"), [sizes, texts] = `+string(given)+`;
		return sizes.map((v) => aligned(v, "bytes", 2 ** 50).join(" ").replace(",", "")).filter((t, i) => t !== texts[i]);`, `[]`)
	expect(t, ctx, "shares of a whole", `
		const { shareOf } = await of("fmt.js");
		return [[1, 4], [4, 4], [4.02, 4], [5, 4], [1, 0], [-1, 4], [null, 4]].map(([part, whole]) => shareOf(part, whole));`,
		`[0.25,1,1,null,null,null,null]`)
	expect(t, ctx, "a curve whose last minute is not over", `
		const { linesOf } = await of("pages/jobs.js"), row = { job: "build", kind: "job" }, answer = (cpu_seconds, averages_over_seconds) => ({ averages_over_seconds, groups: [{ ...row, cpu_seconds }] });
		return Object.values(linesOf([row], [0, 60, 120].map((from) => ({ from, to: from + 60 })), [answer(30, 20), answer("30", 60), answer(10, 20)]))
			.concat(Object.values(linesOf([row], [0, 60].map((from) => ({ from, to: from + 60 })), [answer(30, 60), answer(10, 60)], 130)))
			.concat(Object.values(linesOf([row], [0, 3600].map((from) => ({ from, to: from + 3600 })), [answer(1800, 3600), answer(900, 1800)], 5400)))
			.concat(Object.values(linesOf([row], [0, 60].map((from) => ({ from, to: from + 60 })), [{ averages_over_seconds: 60, groups: [] }, answer(30, 60)])));`, `[[0.5,0.5,0.5],[0.5,null],[0.5,0.5],[null,0.5]]`)
	expect(t, ctx, "curves without what a job used, and lone values of a curve", `
		const { isRecent } = await of("pages/jobs.js"), { Spark } = await of("ui.js"), path = (values) => Spark({ values }).props.children.at(-1).props.d;
		return [isRecent([null, 0, null], { cpu_seconds: "1.5" }), isRecent([null, 0.1, null], { cpu_seconds: 1 }), isRecent([0, 0], { cpu_seconds: 0 }), isRecent(undefined, { cpu_seconds: 1 }), isRecent([null, null], { cpu_seconds: 0 }), path([null, 1, null]), path([1, 0])];`,
		`[true,false,false,false,true,"M31.2,3.0L72.8,3.0","M0.0,3.0L104.0,20.0"]`)
	expect(t, ctx, "figures of more time than the range, and marks of charts", `
		const { widened } = await of("pages/job.js"), { qualityOf } = await of("jobcharts.js"), used = { from: "1970-01-01T00:01:00Z", to: "1970-01-01T00:03:00Z" }, c = { lines: [["a", "a"], ["b", "b"], ["c", "c"]], split: "d", q: "d" };
		return [widened(used, { name: "", from: 60, to: 180 }), widened(used, { name: "", from: 60.5, to: 179.5 }), widened(used, { name: "", from: 61, to: 180 }), widened(used, { name: "", from: 60, to: 170 }), widened(used, { name: "1h", from: 70, to: 170 }),
			qualityOf(c, { a: "measured", b: "apportioned", c: "absent", d: "measured" }, false), qualityOf(c, { a: "measured", b: "apportioned", d: "measured" }, true), qualityOf(c, { a: "absent", d: "modelled" }, false)];`,
		`[false,false,true,true,false,"apportioned","measured","modelled"]`)
	expect(t, ctx, "the columns of page Jobs at first, and its sums", `
		const { usualOf, sumOf } = await of("pages/jobs.js"), of1 = (...names) => names.map((dimension) => ({ dimension, workloads: 1 })), nodes = [{ cluster: "a" }, { cluster: "b" }];
		const row = (v, q) => ({ cpu_seconds: v, quality: { cpu_seconds: q } });
		return [usualOf(of1("namespace", "user"), nodes), usualOf(of1(), nodes), usualOf([{ dimension: "user", workloads: 0 }], nodes.slice(1))].map((l) => l.slice(7).join()).concat([[row("1.5", "measured"), row(null, "absent")], []].map((l) => JSON.stringify(sumOf(l, ["cpu_seconds"], row(2, "apportioned")))));`,
		`["namespace,cluster,user,nodes","cluster,nodes","","{\"quality\":{\"cpu_seconds\":\"apportioned\"},\"cpu_seconds\":3.5}","{\"quality\":{\"cpu_seconds\":\"apportioned\"},\"cpu_seconds\":2}"]`)
	expect(t, ctx, "how many jobs and rows are listed", `
		const { counted } = await of("pages/jobs.js"), rows = ["a", "a", "b"].map((job) => ({ job }));
		return [counted(rows, 0), counted(rows.slice(1), 0), counted(rows.slice(2), 0), counted(rows, 7274)];`, `["2 jobs in 3 rows","2 jobs","1 job","3 of 7,277 rows"]`)
	expect(t, ctx, "columns of a narrow screen", `
		const { inOrder } = await of("pages/jobs.js");
		const columns = [{ key: "job", always: true }, { key: "kind" }, { key: "trend" }, { key: "cpu_seconds", fields: ["cpu_seconds"], width: "9rem" }, { key: "peak", fields: ["peak"], width: "5rem" }];
		return [inOrder(columns, false).map((c) => c.key).join(), inOrder(columns, true).map((c) => c.key + (c.width || "")).join()];`,
		`["job,kind,trend,cpu_seconds,peak","job,cpu_seconds7rem,peak5rem,kind,trend"]`)
	expect(t, ctx, "how far the ledger is summed up", `
		const { folded } = await of("checks.js");
		return [null, 5e9, 450].map((lag) => folded(lag));`,
		`["","","hourly totals up to 7.50 min ago"]`)
	expect(t, ctx, "the parts of a query", `
		const { tokens } = await of("promql.js");
		const q = "sum by (node) (rate(mete_x_total{node=~\"a|b\", job!='c'}[5m] offset 1h)) > 1.5e3 # rate(x)\nor up";
		const list = tokens(q);
		return [list.map((t) => t.text).join("") === q, list.filter((t) => !["space", "mark"].includes(t.kind)).map((t) => t.kind + ":" + t.text).join(" ")];`,
		`[true,"function:sum keyword:by label:node function:rate metric:mete_x_total label:node op:=~ string:\"a|b\" label:job op:!= string:'c' duration:5m keyword:offset duration:1h op:> number:1.5e3 comment:# rate(x) keyword:or metric:up"]`)
	expect(t, ctx, "what can stand at places of a query", `
		const { placeAt } = await of("promql.js");
		const at = (q) => { const [a, b = ""] = q.split("^"), p = placeAt(a + b, a.length); return [p.kind, p.from, p.prefix, p.metric ?? "", p.label ?? ""].join("/"); };
		return ["mete_no^", "rate(mete_n^ode)", "x{^", "x{no^", "x{node=^", "x{node=\"^", "x{a=\"b\",node=~\"ra^ck\"}", "x{node=\"a\"^", "x{node=\"a\"}^", "sum by (^) (up)", "sum by (no^) (up)", "x[^", "x[5^", "x[5m]^ ", "# mete^", "1^", "x * on (n^", "x{node=\"a\\\"^"].map(at);`,
		`["metric/0/mete_no//","metric/5/mete_n//","label/2//x/","label/2/no/x/","none/7///","value/8//x/node","value/15/ra/x/node","none/10///","metric/11///","label/8//up/","label/8/no/up/","duration/2///","duration/2/5//","metric/5///","none/6///","none/1///","label/8/n/x/","value/8/a\\\"/x/node"]`)
	expect(t, ctx, "completions", `
		const { matching, complete } = await of("promql.js");
		const options = ["mete_cpu", "cpus", "a_cpu", "xcpu", "b"].map((text) => ({ text }));
		const place = (kind, from, prefix) => ({ kind, from, prefix });
		return [matching(options, "cpu").map((o) => o.text).join(), matching(options, "", 2).length, complete("ra", 2, place("metric", 0, "ra"), { text: "rate", call: true }), complete("ra(x)", 2, place("metric", 0, "ra"), { text: "rate", call: true }), complete("x{a=\"b\"}", 6, place("value", 5, "b"), { text: "b\"c" })];`,
		`["cpus,mete_cpu,a_cpu,xcpu",2,{"query":"rate(","at":5},{"query":"rate(x)","at":4},{"query":"x{a=\"b\\\"c\"}","at":9}]`)
	expect(t, ctx, "names of series", `
		const { namer, turns } = await of("pages/query.js");
		const list = [{ metric: { __name__: "m", workload: "id1", node: "a" } }, { metric: { __name__: "m", workload: "id2", node: "a" } }, { metric: { __name__: "m", workload: "id3", node: "a" } }];
		const names = new Map([["id1", { name: "build" }], ["id2", { name: "test" }]]);
		const grid = [1, 2].flatMap((n) => ["idle", "system"].map((part) => ({ metric: { cluster: "c" + n, node: "n" + n, part, zone: "z" } }))), odd = ["a", "b"].flatMap((x) => ["a", "b"].map((y) => ({ metric: { x, y } })));
		return [grid.map(namer(grid)), odd.map(namer(odd)), list.map(namer(list, names)), list.map(namer(list)), [list[0]].map(namer([list[0]], names)), turns("topk(5, x)", 7), turns("topk(5, x)", 5), turns("sum(x)", 9)];`,
		`[["n1 idle","n1 system","n2 idle","n2 system"],["x=a y=a","x=a y=b","x=b y=a","x=b y=b"],["build","test","id3"],["id1","id2","id3"],["m"]," · topk chooses 5 again at each step","",""]`)
	expect(t, ctx, "queries of possible errors, and figures of metrics", `
		const { errorQuery, fieldOf } = await of("pages/query.js");
		return [["sum by (node) (mete_node_power_watts{cluster=\"a\"})", "topk(3, rate(mete_workload_energy_joules_total[2m]))", "mete_node_power_watts / 2", "max(mete_node_power_watts)", "sum(mete_node_cpu_cores)"].map(errorQuery),
			["mete_workload_cpu_seconds_total", "mete_workload_memory_peak_bytes", "mete_workload_energy_joules_total", "mete_node_power_watts", "mete_workload_info", "mete_node_cpus", "up"].map(fieldOf)];`,
		`[["sum by (node) (mete_node_power_error_watts{cluster=\"a\"})","topk(3, rate(mete_workload_energy_error_joules_total[2m]))","","",""],["cpu_seconds","memory_peak_bytes","energy_joules","energy_joules",null,null,null]]`)
	expect(t, ctx, "what a search finds", `
		const { found, rankOf } = await of("find.js");
		const things = ["Nodes", "rack1-n02", "rack12-n01", "track1", "n02-rack1"].map((name) => ({ name }));
		return [found(things, "rack1").map((t) => t.name), found(things, "n02 RACK1").map((t) => t.name), found(things, "").length, found(things, "none").length, rankOf("build", "build"), rankOf("build-2", "build"), rankOf("build", "x")];`,
		`[["rack1-n02","rack12-n01","n02-rack1","track1"],["rack1-n02","n02-rack1"],5,0,0,1,null]`)
	expect(t, ctx, "thousands", `
		const { grouped, text, aligned, few } = await of("fmt.js");
		return [[0, 999, 1000, -31968, "1234567.1250"].map(grouped), text(31968, "cores"), text(6713.4, "cores"), text(2.5, "cores"), aligned(6713.44, "cores", 9000).join(" "), text(9667 * 86400, "seconds"), few(12345, "node"), text(1e5, "none")];`,
		`[["0","999","1,000","-31,968","1,234,567.1250"],"31,968 cores","6,713 cores","2.50 cores","6,713.4 cores","9,667 d","12,345 nodes","100,000"]`)
	expect(t, ctx, "the nodes that are up to date", `
		const { upToDate } = await of("pages/overview.js");
		return [{ live: 3, behind: 1000, silent: 1, revoked: 7 }, { behind: 2 }].map((states) => upToDate({ states }));`,
		`["3 of 1,004","0 of 2"]`)
	expect(t, ctx, "the order of a machine's workloads", `
		const { arrange } = await of("tree.js");
		const row = (id, kind, cpu_cores, memory_bytes) => ({ id, name: id, kind, cpu_cores, memory_bytes, quality: {} });
		const machine = { memory_bytes: { whole: 1000 }, workloads: [row("a", "path", 0.5, 1), row("idle", "idle", 3, 900), row("system", "system", 0.9, 50), row("b", "path", 1, 1), row("still", "path", 0, 9), row("large", "path", 0, 10)] };
		const opt = { filter: "", flat: true, sort: "cpu", reverse: false, folded: new Set() };
		const of1 = (more) => { const t = arrange(machine, { ...opt, ...more }); return t.rows.map((r) => r.label).join() + " " + t.restCount + " " + t.idleCount; };
		return [of1({ hideIdle: false }), of1({ hideIdle: true }), of1({ hideIdle: true, recent: new Set(["still"]) }), of1({ hideIdle: true, filter: "still" }), of1({ hideIdle: true, filter: "lar" })];`,
		`["b,system,a,large,still,idle 0 0","b,system,a,large,idle 1 1","b,system,a,large,still,idle 0 0"," 6 1","large 5 0"]`)
	expect(t, ctx, "of how long the curves of Live are", `
		const { lasting } = await of("pages/live.js"), at = (at) => ({ at });
		return [lasting([]), lasting([at("2026-01-01T00:00:00Z")]), lasting([at("2026-01-01T00:00:00Z"), at("2026-01-01T00:03:00Z")])];`, `["","","3.00 min"]`)
	expect(t, ctx, "the total of a machine whose rows do not show all traffic", `
		const { machineOf } = await of("pages/live.js"), none = { value: 0, quality: 1 }, total = { cpu: { value: 2, quality: 1 }, diskRead: none, diskWritten: none, networkRx: none, networkTx: none };
		const shown = (m) => Object.entries(machineOf(m, total)).map(([k, f]) => k + " " + (f ? f.value : "–")).join();
		return [shown({ disk: null, network: { in_bytes_per_second: 7, out_bytes_per_second: 0 } }), shown({ disk: { in_bytes_per_second: 3, out_bytes_per_second: 4 } })];`,
		`["cpu 2,diskRead –,diskWritten –,networkRx 7,networkTx 0","cpu 2,diskRead 3,diskWritten 4,networkRx –,networkTx –"]`)
	expect(t, ctx, "the traffic of a machine beside that of its jobs", `
		const { withOutside } = await of("pages/node.js");
		const g = (kind, network_rx_bytes) => ({ job: kind, kind, network_rx_bytes, quality: {} }), used = { groups: [g("job", 5), g("idle", null), g("system", null)], rest_groups: 1, rest: g("", 2), total: g("", 7) };
		const says = (bytes, u = used) => { const w = withOutside(u, bytes); return [...w.groups, w.total].map((g) => g.network_rx_bytes).join(",") + " " + w.within; };
		return [says(10), says(6), says(null), says(9, { ...used, groups: [g("job", 5)], rest_groups: 0 })];`,
		`["5,,3,10 false","5,,,6 true","5,,, undefined","5,4,9 false"]`)
	expect(t, ctx, "the traffic of machines of which a server has no series", `
		const { traffic } = await of("series.js"), g = (kind, disk, network) => ({ kind, disk, network, quality: {} }), kinds = [{ groups: [g("job", 60, 30), g("system", 540, null), g("idle", null, null)] }, { groups: [] }];
		return ["disk", "network"].map((f) => traffic({ buckets: [{ from: 0, to: 60 }, { from: 60, to: 120 }], kinds }, [["read", f]]).map((s) => [s.whole, s.values.map(([, v]) => v).join()]).join());`,
		`["true,10,","false,0.5,"]`)
	expect(t, ctx, "how many nodes a sum has", `
		const { counted } = await of("pages/nodes.js"), live = { cpu_cores: {} };
		return [counted([live, live]), counted([live, {}]), counted([live, { ...live, nested: true }, {}])];`,
		`["2 nodes","1 of 2 nodes counted","1 of 3 nodes counted"]`)
	expect(t, ctx, "the traffic of a machine that belongs to no workload", `
		const { withOutside } = await of("pages/live.js"), row = (kind, network_rx_bytes_per_second) => ({ id: kind, kind, network_rx_bytes_per_second });
		const says = (network, ...rows) => { const m = withOutside({ network, workloads: rows }); return m.workloads.map((w) => w.kind + " " + (w.network_rx_bytes_per_second ?? "–")).join() + " " + m.over; }, flow = { in_bytes_per_second: 7, out_bytes_per_second: null };
		return [says(flow, row("job", 2), row("system")), says(flow, row("job", 9), row("system")), says(flow, row("job", 2), row("system", 1)), says(null, row("system"))];`,
		`["job 2,system 5 false","job 9,system – true","job 2,system 1 false","system – false"]`)
	expect(t, ctx, "workloads that were busy lately", `
		const { remember } = await of("tree.js");
		const machine = (cpu) => ({ memory_bytes: { whole: 1000 }, workloads: [{ id: "a", cpu_cores: cpu, quality: {} }, { id: "b", cpu_cores: 1, quality: {} }] });
		const seen = new Map();
		return [[1, 1], [2, 0], [10, 0], [11, 0]].map(([tick, cpu]) => [...remember(seen, machine(cpu), tick)].sort().join());`,
		`["a,b","a,b","a,b","b"]`)
	expect(t, ctx, "the limits of rules", `
		const { limitOf } = await of("pages/alerts.js");
		return [...["a - b > 240", "x / y >= 0.8", "rate(x[5m]) > bool 3", "(a > 1e-3)", "up == 0 ", "a > b"].map((q) => limitOf(q)), limitOf("b > 300 and on (n) up == 1", "{{ $labels.node }} is {{ $value | humanizeDuration }} behind"), limitOf("e - time() < 5 * 86400", "{{ $value | humanizeDuration }}"), limitOf("a > 0.9", "{{ $value | humanizePercentage }} busy"), limitOf("a > 1500", "{{ $value | humanize }}W"), limitOf("a > 2048", "{{ $value | humanize }}B/s"),
			limitOf("e{certificate=\"server\"} - time() < 14 * 86400\n  or e{certificate=\"authority\"} - time() < 180 * 86400", "{{ $value | humanizeDuration }}"), limitOf("sum by (node) (p)\n > on (node) max by (node) (mete_node_power_cap_watts)", "{{ $value | humanize }}W")];`,
		`["> 240",">= 0.8","","> 1e-3","== 0","> b","> 5 min","< 5 d","> 90 %","> 1.50 kW","> 2.00 KiB/s","server < 14 d, authority < 180 d","> mete_node_power_cap_watts"]`)
	expect(t, ctx, "how many rules are listed", `
		const { ruleCount } = await of("pages/alerts.js"), groups = [{ rules: [1, 2] }, { rules: [3] }];
		return [ruleCount(groups, (r) => r > 1), ruleCount(groups, () => true)];`,
		`["2 of 3 rules","3 rules"]`)
	expect(t, ctx, "names that may be meant", `
		const { similar } = await of("pages/node.js"), nodes = ["web-10", "web-2", "db"].map((name) => ({ name }));
		return ["web", "web-3", "db.example", "mail", ""].map((n) => similar(nodes, n).map((m) => m.name).join());`,
		`["web-2,web-10","web-2,web-10","db","",""]`)
	expect(t, ctx, "the command that silences", `
		const { command, common } = await of("pages/alerts.js");
		const alerts = [{ labels: { alertname: "Down", severity: "critical", cluster: "lab", node: "a1", job: "a'b, c" } }, { labels: { alertname: "Down", severity: "critical", cluster: "lab", node: "a2", job: "a'b, c" } }];
		return [command(common(alerts)), command({ alertname: "$(x)" }), command({ a: "" })];`,
		`["mete silence create alertname=Down cluster=lab 'job=\"a'\\''b, c\"' --for 2h --comment WHY","mete silence create 'alertname=\"$(x)\"' --for 2h --comment WHY","mete silence create 'a=\"\"' --for 2h --comment WHY"]`)
	expect(t, ctx, "the levels of a flow, and of a narrow one", `
		const { flowOf } = await of("pages/flow.js");
		const rows = [["n1", "web", 3], ["n2", "web", 2], ["n2", "idle", 5]].map(([node, job, value]) => ({ source: "meters", domain: "dram", node, group: "shop", job, value, off: 0 }));
		const levels = (f) => f.nodes.map((n) => n.depth + " " + n.name + " " + n.value).join(", ");
		return [flowOf(rows), flowOf(rows, { node: 0, job: 1 }, true)].map(levels);`,
		`["0 meters 10, 1 dram 10, 2 n1 3, 3 shop 5, 4 web 5, 2 n2 7, 3 idle 5","0 dram 10, 1 shop 5, 2 web 5, 1 idle 5"]`)
	expect(t, ctx, "the small jobs of a large fleet", `
		const { within, rowsOf, flowOf } = await of("pages/flow.js"), quality = { energy_joules: "measured", energy_package_joules: "measured", energy_error_joules: "measured" };
		const g = (cluster, kind, namespace, job, v) => ({ cluster, kind, namespace, job, energy_joules: v, energy_package_joules: v, energy_error_joules: v / 10, quality });
		const jobs = { by: ["cluster", "kind", "namespace", "job"], groups: [g("a", "pod", "shop", "web", 0.1), g("a", "pod", "shop", "db", 0.2), g("b", "pod", "shop", "web", 2), g("a", "idle", "", "idle", 5)], rest_groups: 9, rest: g("", "", "", "", 9) };
		const groups = { by: ["cluster", "kind", "namespace"], rest_groups: 0, groups: [g("a", "pod", "shop", undefined, 0.30000000000000004), g("b", "pod", "shop", undefined, 7), g("b", "pod", "data", undefined, 4), g("a", "idle", "", undefined, 5)] };
		const all = within(jobs, groups), levels = flowOf(rowsOf(all, "energy")).nodes.map((n) => [n.depth, n.name, Number(n.value.toFixed(6)), Number(n.off.toFixed(6))].join(" "));
		return [levels.join(", "), all.rest, within(jobs, { ...groups, rest_groups: 1, groups: groups.groups.slice(0, 2) }).rest.energy_joules];`,
		`["0 meters 16.3 1.63, 1 CPU packages 16.3 1.63, 2 a 5.3 0.53, 3 shop 7.3 0.73, 4 web 2.1 0.21, 4 db 0.2 0.02, 2 b 11 1.1, 3 idle 5 0.5, 4 others of shop 5 0.5, 3 data 4 0.4, 4 others of data 4 0.4",null,4]`)
	expect(t, ctx, "the command that shows a job", `
		const { command } = await of("pages/job.js");
		return [command("build", { name: "15m" }, "http://127.0.0.1:9797"), command("a'b $x", { name: "", from: 0, to: 60 }, "https://mete.example.org:9797")];`,
		`["mete usage --where job=build --from -15m --by node","mete usage --where 'job=a'\\''b $x' --from 1970-01-01T00:00:00Z --to 1970-01-01T00:01:00Z --by node --server https://mete.example.org:9797"]`)
	expect(t, ctx, "when an alert that is pending fires", `
		const { awaited } = await of("pages/alerts.js"), now = Date.parse("2026-01-01T00:05:00Z");
		return [awaited("2026-01-01T00:04:00Z", 300, now), awaited("2026-01-01T00:00:00Z", 300, now)];`,
		`["It fires in 4.00 min if this lasts.","It fires at the next evaluation if this lasts."]`)
	expect(t, ctx, "the times at which an alert fired", `
		const { episodes } = await of("pages/alerts.js");
		const values = [[0, "1"], [60, "3"], [120, "2"], [600, "1"], [660, "1"]];
		return [episodes(values, 60, 120, 660), episodes(values, 120, 120, 900), episodes([], 60, 120, 60)];`,
		`[[{"from":0,"to":60,"most":3,"open":false},{"from":600,"to":660,"most":1,"open":true}],[{"from":0,"to":120,"most":3,"open":false},{"from":600,"to":660,"most":1,"open":false}],[]]`)
}

// outage replaces the alerts that the page gets by those of 1000 silent nodes in 125 racks, and by
// the heartbeat.
const outage = `(() => {
	const ask = window.fetch, alerts = [{ labels: { alertname: "MeteDeadMan", severity: "none" }, annotations: { summary: "Alerts of this server arrive." }, state: "firing", activeAt: new Date().toISOString(), value: "1" }];
	for (let i = 0; i < 1000; i++) {
		const node = "rack" + (Math.floor(i / 8) + 1) + "-n0" + (i % 8 + 1);
		alerts.push({ labels: { alertname: "MeteNodeSilent", severity: "critical", node, cluster: i % 2 ? "north" : "south" }, annotations: { summary: "Node " + node + " sends nothing.", description: "Look there." }, state: "firing", activeAt: new Date().toISOString(), value: "0" });
	}
	window.fetch = (path, more) => (/^\/(api\/)?v1\/alerts/.test(path) ? Promise.resolve(new Response(JSON.stringify({ status: "success", data: { alerts }, alerts: alerts.map((a) => ({ ...a, since: a.activeAt, silenced_by: a.labels.cluster === "north" ? ["s1"] : [] })) }))) : ask(path, more));
	return true;
})()`

// With 1000 alerts of one rule, pages Alerts and Overview stay short, and all alerts are reachable.
func TestOutageInChromium(t *testing.T) {
	needPagesStage(t)
	f := fleet.Open(t, fleet.Config{Nodes: 3, Each: 2, Tame: true})
	ctx := browser(t)
	u := signIn(t, ctx, f, 1440, 900, "/health?range=15m")
	u.sees("the page", `document.querySelector("#main") !== null`)
	u.sees("the outage", outage)
	height := func(page string, most float64) {
		t.Helper()
		h, err := chromedp.Run(ctx, chromedp.Evaluate[float64](`document.documentElement.scrollHeight`))
		if err != nil || h > most {
			t.Errorf("%s is %v px tall, want at most %v; %v", page, h, most, err)
		}
	}
	u.clicks(`nav a[href^="/alerts"]`)
	u.sees("one group", `document.querySelectorAll(".alerts > li").length === 1 && document.querySelector(".alerts > li").innerText.includes("1,000 nodes in 2 clusters")`)
	u.sees("how bad it is, first", `document.querySelector('[aria-label="Firing and pending"] .verdict .title').innerText === "1,000 alerts firing: 1,000 critical" && document.querySelector(".verdict .muted").innerText.startsWith("1 rule, 1,000 nodes in 2 clusters; the first since ")`)
	u.sees("for how long the rule waits", `document.querySelector(".alerts > li").innerText.includes("limit for 2 min")`)
	u.sees("that half are silenced", `document.querySelector(".alerts > li").innerText.includes("500 silenced")`)
	u.sees("the query of the rule", `document.querySelector('.alerts a[href^="/query"]').getAttribute("href").startsWith("/query?expr=mete_node_up")`)
	u.sees("five of its alerts", `document.querySelectorAll(".alerts .brief li").length === 5`)
	u.sees("the heartbeat, apart from the alerts", `document.querySelector(".heartbeat").innerText.includes("Heartbeat") && !document.querySelector(".alerts").innerText.includes("MeteDeadMan")`)
	u.sees("one line where no alert fired", `/No alerts fired in this range/.test(document.querySelector('[aria-label="History"]').innerText) && document.querySelector('[aria-label="History"]').clientHeight < 100`)
	height("Alerts", 2500)
	picture(t, ctx, "outage-alerts")
	u.button("Show all 1,000")
	u.sees("all of them in a table", `document.querySelector(".alerts table")?.getAttribute("aria-rowcount") === "1000"`)
	height("Alerts with all of them", 2700)
	u.filters("rack17-n03")
	u.sees("the one that passes the filter", `document.querySelectorAll(".alerts > li").length === 1 && document.querySelector(".alerts > li").innerText.includes("rack17-n03 in south") && document.querySelector('.alerts .extent a[href^="/node/rack17-n03"]') && document.querySelector(".verdict .title").innerText.startsWith("1,000 alerts")`)
	u.clicks(`nav a[href="/?range=15m"]`)
	u.sees("one line on Overview", fmt.Sprintf(`[...document.querySelectorAll(".attention li")].filter((li) => li.innerText.includes("MeteNodeSilent")).map((li) => li.innerText.replace(/\s+/g, " ").replace(/ (now|\d+ (s|min) ago)$/, " WHEN").trim()).join() === %s`, quote("MeteNodeSilent 1,000 nodes in 2 clusters WHEN")))
	height("Overview", 3000)
}

// The map of nodes groups them by their names, and shows a node's figures under the pointer; the
// table sorts names as people count.
func TestNodesInChromium(t *testing.T) {
	needPagesStage(t)
	f := fleet.Open(t, fleet.Config{Nodes: 88, Each: 2, Tame: true})
	ctx := browser(t)
	u := signIn(t, ctx, f, 1440, 900, "/nodes?range=15m")
	u.sees("eleven groups of eight", `[...document.querySelectorAll(".block")].map((b) => b.querySelector("h3").innerText.replace(/\s/g, " ") + b.querySelectorAll("li").length).join() === [1,2,3,4,5,6,7,8,9,10,11].map((n) => "rack" + n + "88").join()`)
	u.sees("the node that is behind, then names in natural order", `[...document.querySelectorAll("tbody td:first-child")].map((td) => td.innerText).filter((n) => n.startsWith("rack")).slice(0, 25).join() === ["rack11-n08", ...[1,2,3].flatMap((r) => [1,2,3,4,5,6,7,8].map((n) => "rack" + r + "-n0" + n))].join()`)
	u.sees("where most is used now", `(() => { const tiles = [...document.querySelectorAll('[aria-label="most"] .stat')].map((s) => s.innerText.replace(/\s+/g, " ")); return tiles.length === 5 && tiles[0] === "Nodes up to date 87 of 88 1 behind" && tiles.slice(1).every((s) => /^Highest (CPU use|memory use|power|traffic) rack\d+-n0\d /.test(s)); })()`)
	u.sees("how many nodes are in each state", `[...document.querySelectorAll("header .labels button")].map((b) => b.innerText).join() === "1 behind,87 live"`)
	box, err := chromedp.Run(ctx, chromedp.Evaluate[[]float64](`(() => { const r = document.querySelectorAll(".fleet a")[10].getBoundingClientRect(); return [r.left + 5, r.top + 5]; })()`))
	if err != nil {
		t.Fatal(err)
	}
	u.does(chromedp.MouseEvent("mouseMoved", box[0], box[1]))
	u.sees("no word of it cut", `[...document.querySelectorAll(".heat .tip span, .heat .tip b")].every((e) => e.scrollWidth <= e.clientWidth || getComputedStyle(e).display === "inline")`)
	u.sees("the node under the pointer", `(() => { const tip = document.querySelector(".heat .tip")?.innerText ?? ""; return tip.startsWith("rack2-n03") && /CPU\s*[\d.]+ % of [\d.]+ cores/.test(tip) && /power\s*[\d.]+ W/.test(tip); })()`)
	picture(t, ctx, "nodes-tip")
	u.button("cluster")
	u.sees("two clusters", `[...document.querySelectorAll(".block h3")].map((h) => h.innerText.replace(/\s/g, " ")).join() === "north44,south44"`)
	u.button("Columns")
	u.sees("the choice of energy in the range", `(() => { const l = [...document.querySelectorAll(".pop label")].find((l) => l.innerText.trim() === "Energy in the range"); l?.querySelector("input").click(); return Boolean(l); })()`)
	u.sees("energy of each node", `[...document.querySelectorAll("th")].some((th) => th.innerText.trim() === "Energy") && /[\d.]+ ?k?(J|Wh)/.test(document.querySelector("tbody tr:not(.spacer) td:last-child").innerText)`)
	u.opens(f.URL + "/nodes?range=15m")
	u.sees("no sum cut", `[...document.querySelectorAll("tfoot td")].every((td) => td.scrollWidth <= td.clientWidth)`)
	u.sees("the sum of all", `document.querySelector("tfoot th").innerText.replace(/\s+/g, " ") === "87 of 88 nodes counted" && document.querySelector("tfoot .quality.apportioned") !== null`)
	sum, err := chromedp.Run(ctx, chromedp.Evaluate[string](`[...document.querySelectorAll("tfoot td")].map((td) => td.innerText).find((s) => / W/.test(s.replace("kW", " W"))).split("±")[0].trim()`))
	if err != nil {
		t.Fatal(err)
	}
	u.sees("no unit cut", `document.querySelectorAll("tbody tr:not(.spacer)").length > 10 && [...document.querySelectorAll("tbody tr:not(.spacer) td")].every((td) => td.scrollWidth <= td.clientWidth)`)
	u.opens(f.URL + "/node/rack11-n08?range=15m")
	u.sees("no claim about a node that is late", `document.querySelector('[aria-label="About"]')?.innerText.includes("none up to the latest data")`)
	u.opens(f.URL + "/node/rack2-n03?range=15m")
	u.sees("the time of each figure", `/latest reading, \d\d:\d\d:\d\d – \d\d:\d\d:\d\d/.test(document.querySelector('[aria-label="now"] .source')?.innerText) && (() => { const at = [...document.querySelectorAll(".legend .at")].map((e) => e.innerText); return at.length === 5 && at.every((s) => /^latest: average of \d\d:\d\d:\d\d – \d\d:\d\d:\d\d$/.test(s)); })()`)
	u.sees("one axis of time", `(() => { const ends = [...document.querySelectorAll(".chart .plot")].map((p) => p.dataset.ends); return ends.length === 5 && ends[0] && new Set(ends).size === 1 && Number(ends[0].split("-")[1]) <= Date.now() / 1000; })()`)
	// The machine receives 4 × 300 kB a second, its two jobs 200 kB each on average.
	u.sees("rows of received bytes that add up to what the machine received, as its chart shows", `(() => {
		const table = document.querySelector('[aria-label="jobs on this node"]');
		if (!table) return false;
		const at = [...table.querySelectorAll("thead th")].findIndex((th) => th.innerText.startsWith("Received")), exact = (s) => Number(/[\d.]+/.exec(s)[0]) * ({ K: 2 ** 10, M: 2 ** 20, G: 2 ** 30 }[/([KMG])iB/.exec(s)?.[1]] || 1);
		const rows = [...table.querySelectorAll("tbody tr:not(.spacer), tfoot tr.muted")].map((tr) => tr.children[at].innerText).filter((s) => /\d/.test(s)).map(exact), foot = table.querySelector("tfoot tr:last-child"), all = exact(foot.children[at - 1].innerText);
		return rows.length === 3 && rows[0] + rows[1] < all / 2 && Math.abs(rows.reduce((a, v) => a + v, 0) / all - 1) < 0.01;
	})()`)
	u.sees("what it used in the range, and the job that used most of it", `(() => { const t = [...document.querySelectorAll('[aria-label="now"] .stat')].at(-1), foot = [...document.querySelectorAll('[aria-label="jobs on this node"] tfoot tr')].at(-1); return t.querySelector("h3").innerText === "Energy in the range" && /most: [a-z-]+ [\d.]+ k?Wh/.test(t.innerText) && t.querySelector("a").getAttribute("href").startsWith("/job?job=") && foot.innerText.includes(t.querySelector(".value").innerText.trim()); })()`)
	u.sees("an alert about it, and one about another node", `(() => { const ask = window.fetch, at = new Date(Date.now() - 90000).toISOString(), alert = (node) => ({ labels: { alertname: "MeteCPUBusy", severity: "warning", node, cluster: "north" }, annotations: { summary: "The CPUs of node " + node + " are busy." }, state: "firing", activeAt: at, value: "1" });
		window.fetch = (path, more) => (/^.api.v1.alerts/.test(path) ? Promise.resolve(new Response(JSON.stringify({ status: "success", data: { alerts: [alert("rack2-n03"), alert("rack2-n05")] } }))) : ask(path, more)); return true; })()`)
	u.presses("r")
	u.sees("what is wrong with it, and since when, above its charts", `(() => { const list = [...document.querySelectorAll('[aria-label="Attention"] li')]; return list.length === 1 && /^MeteCPUBusy\s+The CPUs of node rack2-n03 are busy\.\s+\d+ (s|min) ago$/.test(list[0].innerText.trim()) && list[0].getBoundingClientRect().bottom < document.querySelector(".chart").getBoundingClientRect().top; })()`)
	u.sees("facts with values", `(() => { const dd = [...document.querySelectorAll('[aria-label="About"] dd')].map((d) => d.innerText.trim()); return dd.length >= 8 && dd.every(Boolean) && dd.includes("128 GiB"); })()`)
	u.sees("no row of system or idle among the jobs", `["tbody tr:not(.spacer)", "tfoot tr"].map((rows) => [...document.querySelectorAll('[aria-label="jobs on this node"] ' + rows)].map((tr) => tr.children[0].innerText)).map((names) => names.filter((n) => n === "system" || n === "idle").join()).join(" ") === " system,idle"`)
	// Overview has the same map in small, and what is wrong above its charts.
	u.opens(f.URL + "/?range=15m")
	u.sees("six tiles in a row, without a blank", `(() => { const r = document.querySelector('[aria-label="now"]').getBoundingClientRect(), last = [...document.querySelectorAll('[aria-label="now"] .stat')].at(-1).getBoundingClientRect(); return Math.abs(r.right - last.right) < 3; })()`)
	u.sees("the time of its figures", `/latest reading of (each machine|the \d+ of \d+ nodes with fresh data), up to \d\d:\d\d:\d\d/.test(document.querySelector('[aria-label="now"] .source')?.innerText)`)
	u.sees("the small map in natural order, with its scale", `[...document.querySelectorAll("#main .fleet a")].map((a) => a.title.split(":")[0]).slice(7, 10).join() === "rack1-n08,rack2-n01,rack2-n02" && document.querySelector("#main .fleet + .scale") !== null`)
	u.sees("how many are up to date", `[...document.querySelectorAll("section[aria-label=now] .stat")].at(-1).innerText.includes("87 of 88")`)
	u.sees("problems above the charts", `document.querySelector('[aria-label="Attention"] li').getBoundingClientRect().bottom < document.querySelector(".chart").getBoundingClientRect().top`)
	u.sees("the parts of the chart of power that are not stacked", `/^without idle, [\d.]+ k?W\s*87 of 88 nodes since \d\d:\d\d$/.test(document.querySelector('[aria-label^="Power"] .note, .card:has([aria-label^="Power: "]) .note')?.innerText) && [...document.querySelectorAll('.card:has([aria-label^="Power: "]) .bandkey')].map((e) => e.innerText).join() === "possible error,nodes missing"`)
	u.sees("the same sum as page Nodes", fmt.Sprintf(`[...document.querySelectorAll("section[aria-label=now] .stat")].find((s) => s.innerText.startsWith("Power")).querySelector(".value").innerText.trim() === %s`, quote(sum)))
	u.sees("the quality and error of the balance", `[...document.querySelectorAll('[aria-label="Balance"] li')].some((li) => /^Energy\s.*±/.test(li.innerText) && li.querySelector(".quality.apportioned"))`)
	u.sees("what is absent from the balance as absent", `/system –$/.test([...document.querySelectorAll('[aria-label="Balance"] li')].find((li) => li.innerText.startsWith("Disk read")).innerText.trim())`)
	picture(t, ctx, "nodes-overview")
}

// On a phone, page Jobs shows figures beside the names.
func TestJobsOnPhoneInChromium(t *testing.T) {
	needPagesStage(t)
	f := fleet.Open(t, fleet.Config{Nodes: 3, Each: 9, Tame: true})
	ctx := browser(t)
	u := signIn(t, ctx, f, 390, 844, "/jobs?range=15m")
	u.sees("the jobs", `document.querySelectorAll("tbody tr:not(.spacer)").length >= 8`)
	u.sees("state and use within the screen", `(() => { const heads = [...document.querySelectorAll("thead th")].filter((th) => th.getBoundingClientRect().right <= innerWidth).map((th) => th.innerText.replace(/[↓↑]/g, "").trim()); return heads.join() === "Job,State,CPU"; })()`)
	u.sees("a line that tells equal names apart", `(() => { const rows = [...document.querySelectorAll("tbody tr:not(.spacer)")].map((tr) => tr.cells[0].innerText.trim()); return new Set(rows).size === rows.length && rows.every((r) => /^[a-z-]+\n+(shop|data|platform) · (ada|grace|edsger) · (north|south)$/.test(r)) && [...document.querySelectorAll("tbody .two")].every((e) => e.getBoundingClientRect().height <= 34); })()`)
	u.sees("the sum of all jobs", `document.querySelector('[aria-label="jobs"] tfoot')?.innerText.startsWith("All")`)
	picture(t, ctx, "jobs-phone")
}

// The query field completes metrics, labels and values, and names workloads in its answer.
func TestQueryInChromium(t *testing.T) {
	needPagesStage(t)
	f := fleet.Open(t, fleet.Config{Nodes: 3, Each: 9, Tame: true})
	ctx := browser(t)
	u := signIn(t, ctx, f, 1440, 900, "/query?range=15m")
	u.sees("the field", `document.querySelector("#expr") !== null`)
	options := func(want string) {
		t.Helper()
		u.sees(want, fmt.Sprintf(`[...document.querySelectorAll(".options b")].slice(0, 2).map((b) => b.innerText).join() === %s`, quote(want)))
	}
	u.writes("#expr", "mete_node_cp")
	options("mete_node_cpu_cores,mete_node_cpus")
	u.presses("\t{cl")
	options("cluster")
	u.presses("\t=\"s")
	options("south")
	u.presses("\t,pa\t=\"id")
	options("idle")
	picture(t, ctx, "query-completes")
	u.presses("\t}")
	u.sees("the completed query", fmt.Sprintf(`document.querySelector("#expr").value === %s`, quote(`mete_node_cpu_cores{cluster="south",part="idle"}`)))
	u.sees("its colors", `[...document.querySelectorAll(".editor .t-label")].map((s) => s.innerText).join() === "cluster,part" && document.querySelector(".editor .t-metric").innerText === "mete_node_cpu_cores"`)
	u.presses("\r")
	u.sees("its answer", `document.querySelector(".legend") !== null && location.search.includes("mete_node_cpu_cores")`)
	u.sees("the query in the history", `[...document.querySelectorAll('[aria-label="History"] button')].some((b) => b.innerText.includes("south"))`)
	u.opens(f.URL + "/query?range=15m&expr=topk(3,rate(mete_workload_cpu_seconds_total[2m]))")
	u.sees("names of jobs instead of ids", `(() => { const names = [...document.querySelectorAll(".legend button span")].map((s) => s.title || s.innerText); return names.length >= 3 && names.every((n) => !/[a-z0-9]{26}/.test(n)); })()`)
}

// Ctrl+K finds pages, nodes, clusters and jobs from anywhere, by keys alone.
func TestFindInChromium(t *testing.T) {
	needPagesStage(t)
	f := fleet.Open(t, fleet.Config{Nodes: 20, Each: 9, Tame: true})
	ctx := browser(t)
	u := signIn(t, ctx, f, 1440, 900, "/?range=15m")
	u.sees("the page", `document.querySelector(".find") !== null`)
	finds := func(open, text, first, at string) {
		t.Helper()
		u.sees("the dialog", open)
		u.sees("its field", `document.activeElement?.closest(".finder") !== null`)
		u.presses(text)
		u.sees(first, fmt.Sprintf(`document.querySelector('.finder [aria-selected="true"]')?.innerText.replace(/\s+/g, " ") === %s`, quote(first)))
		u.presses("\r")
		u.sees("the place", fmt.Sprintf(`location.pathname + location.search === %s && document.querySelector("dialog[open]") === null`, quote(at)))
	}
	keys := func(key, more string) string {
		return fmt.Sprintf(`(document.querySelector("dialog[open]") || document.body.dispatchEvent(new KeyboardEvent("keydown", {key: %q, bubbles: true, %s})), document.querySelector("dialog.finder[open]") !== null)`, key, more)
	}
	finds(keys("k", "ctrlKey: true"), "rack2-n03", "rack2-n03 north node", "/node/rack2-n03?range=15m")
	finds(keys("/", ""), "kafka", "kafka job", "/job?job=kafka&range=15m")
	finds(keys("k", "metaKey: true"), "sou", "south cluster", "/nodes?cluster=south&range=15m")
	finds(keys("k", "ctrlKey: true"), "heal", "Health page", "/health?range=15m")
	finds(keys("k", "ctrlKey: true"), "no such job", "no such job exact name job", "/job?job=no+such+job&range=15m")
}

// On a phone the navigation has names, targets are large enough for fingers, and a tap on a mark
// explains it.
func TestTouchInChromium(t *testing.T) {
	needPagesStage(t)
	f := fleet.Open(t, fleet.Config{Nodes: 3, Each: 9, Tame: true})
	ctx := browser(t)
	u := &user{t, ctx}
	u.does(chromedp.EmulateViewport(390, 844, func(p *emulation.SetDeviceMetricsOverrideParams, touch *emulation.SetTouchEmulationEnabledParams) {
		p.Mobile, touch.Enabled = true, true
	}), chromedp.Navigate(f.URL+"/jobs?range=15m"))
	u.writes("#token", f.Viewer+"\r")
	u.sees("marks", `document.querySelector(".quality.apportioned") !== null`)
	u.sees("names in the navigation", `[...document.querySelectorAll(".side nav a span:not(.count)")].every((s) => s.getBoundingClientRect().width > 12 && s.getBoundingClientRect().bottom <= innerHeight)`)
	for _, path := range []string{"/jobs?range=15m", "/alerts", "/nodes", "/query", "/job?job=kafka&range=15m", "/flow?range=15m"} {
		u.opens(f.URL + path)
		small, err := chromedp.Run(ctx, chromedp.Evaluate[string](`[...document.querySelectorAll("button:not(.plain):not(.twist), select, .side nav a, .legend button, input:not([type=checkbox])")].filter((e) => { const r = e.getBoundingClientRect(); return r.width > 0 && (r.height < 43.5 || r.width < 43.5) && getComputedStyle(e).visibility === "visible"; }).map((e) => e.tagName + "." + e.className + " " + e.innerText.slice(0, 20) + " " + Math.round(e.getBoundingClientRect().width) + "x" + Math.round(e.getBoundingClientRect().height)).slice(0, 5).join("; ")`))
		if err != nil || small != "" {
			t.Errorf("%s: smaller than 44 px: %s, %v", path, small, err)
		}
	}
	u.opens(f.URL + "/jobs?range=15m")
	u.sees("marks of the size of letters", `[...document.querySelectorAll(".quality")].every((m) => m.getBoundingClientRect().width < 14)`)
	u.sees("an explanation after a tap", `(() => {
		const mark = document.querySelector(".quality.apportioned");
		if (!mark) return false;
		mark.scrollIntoView({ block: "center", inline: "center" });
		mark.dispatchEvent(new PointerEvent("pointerdown", { pointerType: "touch", bubbles: true }));
		mark.click();
		const b = document.querySelector(".bubble");
		return !b.hidden && b.innerText.startsWith("apportioned: a measured total") && b.getBoundingClientRect().right <= innerWidth && b.getBoundingClientRect().bottom <= innerHeight;
	})()`)
	picture(t, ctx, "touch-mark")
	u.sees("all of the navigation within the screen", `[...document.querySelectorAll(".side nav a, .side .find")].every((e) => e.getBoundingClientRect().right <= innerWidth + 1)`)
	u.sees("the range beside the calendar", `document.querySelector("#range-open").innerText === "last 15m"`)
	const tools = `[...document.querySelectorAll(".tools button, .tools a")].filter((e) => e.getBoundingClientRect().width > 0)`
	u.sees("the tools within the screen", tools+`.map((e) => e.ariaLabel ?? e.innerText).join() === "dark,API,sign out" && `+tools+`.every((e) => { const r = e.getBoundingClientRect(); return r.left >= 0 && r.right <= innerWidth && r.top >= 0 && r.bottom <= innerHeight && document.elementFromPoint(r.left + r.width / 2, r.top + r.height / 2)?.closest("button, a") === e; })`)
	u.opens(f.URL + "/?range=15m")
	u.sees("a few names of a legend", `document.querySelectorAll(".legend")[0].querySelectorAll("button[aria-pressed]").length === 6 && /^\+\d more$/.test(document.querySelector(".legend .more")?.innerText)`)
	picture(t, ctx, "touch-overview")
	u.clicks(".legend .more")
	u.sees("all of them", `document.querySelectorAll(".legend")[0].querySelectorAll("button[aria-pressed]").length > 7 && [...document.querySelectorAll(".legend")[0].querySelectorAll("b")].every((b) => b.innerText !== "") && document.querySelectorAll(".legend")[0].querySelector(".more") === null`)
	u.opens(f.URL + "/nodes?range=15m")
	u.sees("the list of nodes without the map", `document.querySelectorAll("tbody tr").length === 3 && document.querySelector(".heat") === null`)
	u.button("Show")
	u.sees("the map", `document.querySelectorAll(".heat a").length === 3`)
	u.opens(f.URL + "/query?mode=table&expr=mete_node_power_watts")
	u.sees("all of the navigation there too", `[...document.querySelectorAll(".side nav a, .side .find")].every((e) => e.getBoundingClientRect().left >= 0 && e.getBoundingClientRect().right <= innerWidth + 1)`)
	u.sees("a value beside the first name", `document.querySelector("thead th:nth-child(2)").innerText.includes("Value") && document.querySelector("tbody td:nth-child(2)").getBoundingClientRect().right <= innerWidth`)
	u.opens(f.URL + "/query?range=15m&expr=sum+by+(node)+(mete_node_power_watts)")
	u.sees("links of the legend for fingers, within the screen", `document.querySelectorAll(".legend .key a").length === 3 && [...document.querySelectorAll(".legend .key a")].every((a) => { const r = a.getBoundingClientRect(); return r.width >= 43.5 && r.height >= 43.5 && r.right <= innerWidth; })`)
	picture(t, ctx, "touch-query")
	u.sees("no explanation after another tap", `(document.querySelector("#main").click(), document.querySelector(".bubble").hidden)`)
}

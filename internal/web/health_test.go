package web_test

import (
	"testing"

	"mete.dev/mete/internal/testkit/fleet"
)

// healthScript makes the checks of a state that is given, and says them as "key state: detail".
const healthScript = `
	const { checksOf, problems } = await of("checks.js"), { parse } = await of("pages/health.js");
	const now = Date.parse("2026-03-01T12:00:00Z"), at = (s) => new Date(now - s * 1000).toISOString(), node = (state, ago) => ({ name: state, state, enrolled_at: at(1e6), booked_through: at(ago) });
	const metrics = (text) => { const { found } = parse(text); return { of: (name, labels = {}) => { const s = (found[name] || []).filter((x) => Object.entries(labels).every(([k, v]) => x.labels[k] === v)); return s.length ? s.reduce((a, x) => a + x.value, 0) : null; }, rate: () => 2 }; };
	const server = (more = "", lag = 600, cert = now / 1000 + 60 * 86400) => metrics('mete_server_rows_total 7\nmete_server_queue_rows 0\nmete_server_refused_total{reason="invalid"} 3\nmete_server_ledger_bytes 1048576\nmete_server_metrics_series 5\nmete_server_ledger_hour_lag_seconds ' + lag + '\nmete_server_certificate_expiry_timestamp_seconds{certificate="server"} ' + cert + '\nmete_server_certificate_expiry_timestamp_seconds{certificate="authority"} ' + (now / 1000 + 3000 * 86400) + '\n' + more);
	const beat = { type: "alerting", name: "Beat", labels: { severity: "none" }, state: "firing", health: "ok", lastEvaluation: at(17) };
	const well = { nodes: [node("live", 5)], gaps: [], alerts: [], rules: [beat], m: server(), recent: { broken: 0, expiry: now / 1000 + 20 * 86400, spool: 0.1, refused: 0, grown: 2048 }, now };
	const says = (more) => checksOf({ ...well, ...more }), short = (list) => list.map((c) => c.key + " " + (c.state || "none")).join(), bad = (more) => short(problems(says(more)));
`

// Page Health says first whether everything works, with what to do about each problem, and shows the
// figures of the server's own answer.
func TestHealthInChromium(t *testing.T) {
	needPagesStage(t)
	f := fleet.Open(t, fleet.Config{Nodes: 24, Each: 3, Tame: true})
	ctx := browser(t)
	u := signIn(t, ctx, f, 1440, 900, "/health?range=15m")
	u.sees("the checks", `document.querySelectorAll(".checks .stat").length === 8`)
	expect(t, ctx, "checks of a server that works", healthScript+`
		const list = says({}), detail = (key) => list.find((c) => c.key === key).detail.join(", ");
		return [short(list), list[0].value, detail("ingest"), detail("ledger"), detail("certificates"), detail("heartbeat"), problems(list).length];`,
		`["nodes good,gaps good,alerts good,heartbeat good,ingest good,ledger good,certificates good,balance good","1 of 1","2.00 /s now, 0 rows wait, 3 requests rejected","+2.00 KiB in 24 h, hourly totals up to 10.0 min ago, 5 time series in memory","server 60.0 d, authority 8 years, agents 20.0 d","evaluated 17 s ago",0]`)
	expect(t, ctx, "checks that fail, one at a time", healthScript+`
		const gap = (reason) => ({ reason, seconds: 60 }), alert = (severity) => ({ state: "firing", activeAt: at(60), labels: { alertname: "A", severity, node: "x" }, annotations: {} }), recent = (more) => ({ recent: { ...well.recent, ...more } });
		return [bad({ nodes: [node("live", 5), node("behind", 600)] }), bad({ nodes: [node("silent", 600)] }), bad({ nodes: [{ ...node("silent", 5), booked_through: null, enrolled_at: at(5) }] }), bad({ gaps: [gap("lost")] }), bad({ gaps: [gap("rebooted"), gap("unwatched")] }),
			bad({ alerts: [alert("warning")] }), bad({ alerts: [alert("critical")] }), bad({ rules: [beat, { ...beat, labels: {}, state: "inactive", health: "err" }] }), bad({ rules: [{ ...beat, state: "inactive" }] }), bad({ rules: [{ ...beat, state: "unknown" }] }), bad({ rules: [] }),
			bad({ m: server('mete_server_batches_total{verdict="clone"} 1') }), bad(recent({ refused: 2 })), bad({ m: server("", 4 * 3600) }), bad({ m: server("", 600, now / 1000 + 13 * 86400) }), bad(recent({ expiry: now / 1000 + 4 * 86400 })), bad(recent({ broken: 1 })), bad(recent({ spool: 0.9 })),
			bad({ m: metrics(""), recent: { broken: null, expiry: null, spool: null, refused: null, grown: null } })];`,
		`["nodes warn","nodes bad","","gaps warn","","alerts warn","alerts bad","alerts bad","heartbeat bad","","","ingest bad","ingest warn","ledger warn","certificates bad","certificates bad","balance bad","spool warn",""]`)
	expect(t, ctx, "a machine that is behind for a minute", healthScript+`return [72, 170, 190].map((ago) => bad({ nodes: [node("behind", ago)] }));`, `["nodes warn","nodes warn","nodes bad"]`)
	expect(t, ctx, "times among the metrics of the server", `const { said } = await of("pages/health.js"), { exactly } = await of("fmt.js"); return [said("mete_server_certificate_expiry_timestamp_seconds", 2.11e9) === exactly(2.11e12), said("x_timestamp_seconds", 0), said("x_seconds", 90), said("x_bytes", 2048), said("x_total", 7)];`, `[true,"0","90.0 s","2.00 KiB","7"]`)
	expect(t, ctx, "nodes by the age of their data, rules that wait, and alerts without a receiver", healthScript+`
		const alert = { state: "firing", activeAt: at(60), labels: { alertname: "A", severity: "warning", node: "x" }, annotations: {} }, rule = (state) => ({ type: "alerting", name: "R", labels: { severity: "warning" }, state, health: "ok" }), alone = server('mete_server_alert_requests_total{result="taken"} 0');
		const state = (key, more) => says(more).find((c) => c.key === key).state || "none";
		return [state("nodes", { nodes: [node("live", 5), node("behind", 600)] }), state("nodes", { nodes: [node("live", 5), node("behind", 601)] }), state("alerts", { rules: [beat, rule("unknown")] }), state("alerts", { rules: [beat, rule("unknown"), rule("inactive")] }), state("heartbeat", { m: alone }), state("heartbeat", { m: alone, alerts: [alert] })];`,
		`["warn","bad","none","good","none","warn"]`)
	expect(t, ctx, "what of alerts is not counted", healthScript+`return [says({}), says({ rules: [{ ...beat, state: "unknown" }] })].map((list) => list.find((c) => c.key === "alerts").detail[0]);`, `["no rule fires besides the heartbeat","no rule fires"]`)
	expect(t, ctx, "the worst first", healthScript+`return bad({ nodes: [node("behind", 600)], rules: [{ ...beat, state: "inactive" }], recent: { ...well.recent, broken: 2 } });`, `"nodes bad,heartbeat bad,balance bad"`)
	expect(t, ctx, "a heartbeat of which no notification was delivered", healthScript+`const sent = (taken, failed) => says({ m: server('mete_server_alert_requests_total{result="taken"} ' + taken + '\nmete_server_alert_requests_total{result="failed"} ' + failed) }).find((c) => c.key === "heartbeat"); return [sent(0, 0), sent(0, 3), sent(2, 1)].map((c) => (c.state || "none") + " " + c.problem.slice(0, 15) + " " + c.tag);`, `["none The heartbeat o no receiver","bad No notification ","good The heartbeat o "]`)
	u.sees("metrics that are not zero first", `(() => { const zero = [...document.querySelectorAll('[aria-label="server metrics"] tbody tr:not(.spacer)')].map((tr) => tr.children[2].innerText === "0" || tr.children[2].innerText === "0 s" || tr.children[2].innerText === "0 B"); return zero.length > 20 && zero.includes(true) && !zero.slice(zero.indexOf(true)).includes(false); })()`)
	// One machine stays behind; the server's metrics may be young, so only these are compared.
	u.sees("the verdict", `/^1 of 24 nodes sends no recent data: 1 behind, oldest data \d+ min ago$/.test(document.querySelector(".verdict .title").innerText) && document.querySelector('.problems [data-check="nodes"]').innerText.includes("Check that mete-agent runs there")`)
	expect(t, ctx, "the figures of the server", `
		const { get } = await of("api.js"), h = await get("/v1/health", { from: "-15m" }), shown = (key) => document.querySelector('.checks [data-check="' + key + '"] .value').innerText.replace(/\s+/g, " ");
		const all = Object.entries(h.nodes).filter(([k]) => k !== "revoked").reduce((a, [, n]) => a + n, 0);
		const [size, unit] = shown("ledger").match(/[\d.]+|[A-Za-z]+/g); // it grows
		return [shown("nodes") === h.nodes.live + " of " + all, all, shown("gaps") === String(h.gaps.reduce((a, g) => a + g.count, 0)), Math.abs(size * { KiB: 2 ** 10, MiB: 2 ** 20 }[unit] / h.server.ledger_bytes - 1) < 0.2, h.server.conservation_violations];`, `[true,24,true,true,0]`)
	u.clicks(`.problems [data-check="nodes"] a.end`)
	u.sees("the nodes", `location.pathname === "/nodes"`)
	u.sees("a server that has not evaluated its rules", `(() => { const ask = window.fetch; window.fetch = async (path, more) => {
		const r = await ask(path, more), is = (p) => String(path).startsWith(p);
		if (!is("/api/v1/rules") && !is("/v1/alerts")) return r;
		const a = await r.json();
		if (is("/v1/alerts")) a.alerts = []; else for (const g of a.data.groups) for (const rule of g.rules) rule.state = "unknown";
		return new Response(JSON.stringify(a));
	}; return true; })()`)
	u.clicks(`nav a[href^="/alerts"]`)
	u.sees("no tick before that", `document.querySelector(".verdict .title")?.innerText === "Rules are not evaluated yet" && document.querySelector(".verdict .waits") && !document.querySelector(".verdict .tick, .heartbeat .tick")`)
}

// Health: what works, what does not and what to do; then nodes, gaps, balance, overhead, the server.
import { html, useRef } from "../../vendor/preact.mjs";
import { get, plain, instant } from "../api.js";
import { ledger, steps, useSpan } from "../span.js";
import { Card, Figure, Shown, Empty, Facts, Job, Search, useData, useHere, useNarrow } from "../ui.js";
import { checksOf, problems, reporting, harmless } from "../checks.js";
import { isNew } from "../starting.js";
import { Table } from "../table.js";
import { amounts } from "../amounts.js";
import { Enroll, Gaps, Whole, gapsIn } from "../parts.js";
import { State } from "./nodes.js";
import { text, few, ago, exactly } from "../fmt.js";
import { natural } from "../names.js";
import { href, nodeAt } from "../route.js";

const own = ["mete", "mete-agent", "mete-server", "mete.service", "mete-agent.service", "mete-server.service", "mete-up.service"];

// parse reads Prometheus's text format: name to [{ labels, value }], with help.
export function parse(body) {
  const found = {}, help = {};
  for (const line of body.split("\n")) {
    const h = /^# HELP (\S+) (.*)$/.exec(line);
    if (h) { help[h[1]] = h[2]; continue; }
    const m = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!m) continue;
    const labels = Object.fromEntries([...(m[2] || "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map((x) => [x[1], x[2]]));
    (found[m[1]] = found[m[1]] || []).push({ labels, value: Number(m[3]) });
  }
  return { found, help };
}

// useMetrics are the metrics of the server, with rates between two readings.
function useMetrics() {
  const before = useRef(null);
  return useData(async (signal) => {
    const now = { at: performance.now(), ...parse(await plain("/metrics", signal)) }, was = before.current;
    before.current = now;
    const of = (name, labels = {}) => { const s = (now.found[name] || []).filter((x) => Object.entries(labels).every(([k, v]) => x.labels[k] === v)); return s.length ? s.reduce((a, x) => a + x.value, 0) : null; };
    const sum = (m, name) => (m.found[name] || []).reduce((a, x) => a + x.value, 0);
    const rate = (name) => (was && now.found[name] ? (sum(now, name) - sum(was, name)) / ((now.at - was.at) / 1000) : null);
    const ask = async (query) => { const list = await instant(query, undefined, signal).catch(() => []); return list.length ? Number(list[0].value[1]) : null; };
    const [broken, expiry, spool, refused, grown] = await Promise.all(["sum(mete_conservation_violations_total)", "min(mete_node_certificate_expiry_timestamp_seconds)", "max(mete_agent_spool_waiting_bytes / mete_agent_spool_limit_bytes)", "sum(increase(mete_server_refused_total[1h]))", "sum(mete_server_ledger_bytes) - sum(mete_server_ledger_bytes offset 1d)"].map(ask));
    return { of, rate, found: now.found, help: now.help, recent: { broken, expiry, spool, refused, grown } };
  }, [], 5000);
}

const names = { good: "OK", warn: "warning", bad: "problem", "": "no data" };

// Verdict says whether all works; and of each problem, what to do.
function Verdict({ checks }) {
  const list = problems(checks), bad = list.filter((c) => c.state === "bad").length, warn = list.length - bad, blind = checks.filter((c) => c.state === "").length;
  const none = checks[0].state === ""; // of the nodes
  // What is worst stands first, and then how many checks say so.
  const title = none && list.length === 0 ? "No machine reports yet" : list.length === 0 ? "Everything works" : list[0].problem, count = [bad && few(bad, "problem"), warn && few(warn, "warning")].filter(Boolean).join(", ");
  return html`<section class="card verdict" aria-label="verdict"><div class="calm"><span class=${list.length === 0 && !none ? "tick" : "cross " + (bad ? "bad" : "warn")} aria-hidden="true"></span><div><b class="title">${title}</b>
      <div class="muted">${count && count + ": "}${checks.length - list.length - blind} of ${few(checks.length, "check")} passed${blind > 0 && `, ${blind} without a result`}</div></div></div>
    ${list.length > 0 && html`<ul class="attention problems">${list.map((c) => html`<li class=${c.state} data-check=${c.key}>${c !== list[0] && html`<b>${c.problem}</b>`}${(c.where || []).map((n) => html`<a href=${nodeAt(n)}>${n}</a>`)}<span>${c.action}</span>${c.link && html`<a class="end" href=${c.link}>Show ${c.link.slice(1).split("?")[0]}</a>`}</li>`)}</ul>`}</section>`;
}

// Check is the tile of one check.
function Check({ c }) {
  return html`<div class="stat" data-check=${c.key} data-state=${c.state}><h3>${c.link ? html`<a class="plain" href=${c.link}>${c.title}</a>` : c.title}<span class=${"tag " + c.state}>${c.tag || names[c.state]}</span></h3>
    <div class="value">${c.unit ? html`<${Figure} v=${c.value} unit=${c.unit} />` : c.value}</div><div class="below">${c.detail.map((d) => html`<span>${d}</span>`)}</div></div>`;
}

// useOwn asks for what mete's own programs used in the range, and what this process uses now; listed says whether the first is known, some whether either is.
function useOwn(span) {
  const data = useData((signal) => get("/v1/usage", { by: "workload", where: own.map((w) => "workload=" + w), fields: "cpu_seconds,memory_byte_seconds,memory_peak_bytes,energy_joules,energy_error_joules,disk_written_bytes", ...ledger(span) }, signal), [steps(span)]);
  const live = useData(async (signal) => (document.getElementById("app").dataset.live === "1" ? (await get("/api/v0/snapshot", {}, signal)).self : null), [], 30000);
  const listed = data.data !== null && data.data.groups.length > 0;
  return { data, live, listed, some: Boolean(live.data) || listed };
}

// Own is what mete's own programs used.
function Own({ of: { data, live } }) {
  const over = data.data ? Math.max(1, data.data.averages_over_seconds) : 1;
  const rows = data.data ? data.data.groups : [], { amount, whileRunning } = amounts(rows);
  const columns = [{ key: "workload", title: "Program", class: "name", value: (r) => r.workload, cell: (r) => html`<${Job} name=${r.workload} />` },
    { key: "cpu", title: "CPU s a minute", num: true, first: true, value: (r) => Number(r.cpu_seconds), cell: (r) => html`<span title=${text(r.cpu_seconds, "seconds") + " in the range"}>${text(Number(r.cpu_seconds) / over * 60, "none")}</span>` },
    whileRunning("memory", "Memory", "memory_byte_seconds", "bytes", "average memory, with page cache,"), amount("memory_peak_bytes", "Peak memory", "bytes", "peak memory"), amount("disk_written_bytes", "Written", "bytes", "bytes written to disks"),
    amount("energy_joules", "Energy", "joules", "energy of the activity, with the possible error", { off: "energy_error_joules" })];
  return html`<${Shown} of=${data} lines=${3}>${(d) => html`${live.data && html`<div class="inset"><${Facts} of=${[["This process", html`<b class="num">${text(live.data.cpu_seconds_per_minute, "none")}</b> CPU seconds a minute, <b class="num">${text(live.data.rss_bytes, "bytes")}</b> of memory`], ["One measurement takes", html`<b class="num">${text(live.data.tick_us / 1e6, "seconds")}</b>`]]} /></div>`}
    ${d.groups.length > 0 && html`<${Table} columns=${columns} rows=${d.groups} id=${(r) => r.workload} name="own" label="mete's own programs" />`}`}</${Shown}>`;
}

const age = (n) => Date.parse(n.booked_through || n.enrolled_at);

// Late lists the nodes that do not report in time: by state, those first that are late longest, in both, with all of
// them a click away.
function Late({ nodes }) {
  const states = ["silent", "behind"].map((s) => [s, reporting(nodes).filter((n) => n.state === s && !isNew(n)).sort((a, b) => age(a) - age(b) || natural(a.name, b.name))]).filter(([, list]) => list.length).sort(([, a], [, b]) => age(a[0]) - age(b[0]));
  return html`${states.map(([state, list]) => html`<div class="row late"><${State} of=${state} /><b>${few(list.length, "node")}</b>${list.length > 6 && html`<a class="end" href=${href("/nodes", { state })}>Show all</a>`}</div>
    <ul class=${"attention" + (list.length > 1 ? " two" : "")}>${list.slice(0, 6).map((n) => html`<li class=${state === "silent" ? "bad" : "warn"}><a href=${nodeAt(n.name)}>${n.name}</a><span>${n.cluster}</span><span title=${n.booked_through ? exactly(n.booked_through) : ""}>${n.booked_through ? "last data " + ago(n.booked_through) : "no data yet"}</span></li>`)}</ul>`)}`;
}

// said is the value of a metric as text; a time since 1970 is written as a time.
export function said(name, v) {
  if (/_(timestamp|start_time)_seconds$/.test(name)) return v > 0 ? exactly(v * 1000) : text(v, "none");
  return text(v, /bytes/.test(name) ? "bytes" : /seconds/.test(name) ? "seconds" : "count");
}

// Metrics lists all metrics of the server, those that are zero last.
function Metrics({ m, q, narrow }) {
  const rows = Object.entries(m.found).flatMap(([name, list]) => list.map((x) => ({ name, labels: Object.entries(x.labels).map(([k, v]) => k + "=" + v).join(" "), value: x.value, help: m.help[name] || "" }))).filter((r) => !q || (r.name + r.labels + r.help).toLowerCase().includes(q));
  const columns = [{ key: "name", title: "Metric", class: "mono", value: (r) => r.name }, { key: "labels", title: "Labels", value: (r) => r.labels }, { key: "v", title: "Value", num: true, value: (r) => r.value, cell: (r) => html`<span title=${String(r.value)}>${said(r.name, r.value)}</span>` }, { key: "help", title: "Description", class: "wrap muted", value: (r) => r.help }];
  const order = narrow ? [0, 2, 1, 3] : [0, 1, 2, 3]; // on a phone the value stands beside the name
  return html`<${Table} columns=${order.map((i) => columns[i])} rows=${rows} id=${(r) => r.name + r.labels} name="figures" label="server metrics" rank=${(r) => (r.value === 0 ? 1 : 0)} wraps empty=${html`<${Empty} title="No metrics match the filter" />`} />`;
}

export function Health({ nodes, alerts }) {
  const { query } = useHere();
  const span = useSpan(query), narrow = useNarrow();
  const m = useMetrics();
  const gaps = useData((signal) => gapsIn(span, signal), [steps(span)]);
  const rules = useData(async (signal) => (await get("/api/v1/rules", { exclude_alerts: "true" }, signal)).data.groups.flatMap((g) => g.rules), [], 15000);
  const own = useOwn(span), used = useData((signal) => get("/v1/usage", { by: "kind", fields: "cpu_seconds,memory_byte_seconds,disk_read_bytes,disk_written_bytes,energy_joules,energy_error_joules", ...ledger(span) }, signal), [steps(span)]);
  const active = nodes.filter((n) => n.state !== "revoked"), all = { ...m, data: m.data && gaps.data && (rules.data || rules.error) ? checksOf({ nodes: active, gaps: gaps.data, alerts, rules: rules.data || [], m: m.data, recent: m.data.recent }) : null };
  const late = all.data && all.data[0].state !== "good" && all.data[0].state !== "", lost = (gaps.data || []).some((g) => !harmless.includes(g.reason)), holes = gaps.data && gaps.data.length > 0 && html`<${Card} title="Gaps in the data" note=${lost ? "" : "nothing is lost in them"} flush width="w12"><${Gaps} gaps=${gaps.data} /></${Card}>`;
  return html`<${Shown} of=${all} height=${260}>${(checks) => html`<div class="stack"><${Verdict} checks=${checks} />${nodes.length === 0 && html`<section class="card"><${Enroll} /></section>`}<section class="card stats checks" aria-label="checks">${checks.map((c) => html`<${Check} key=${c.key} c=${c} />`)}</section></div>`}</${Shown}>
    <div class="grid">
      ${late && html`<${Card} title="Nodes not reporting" width="w12"><${Late} nodes=${active} /></${Card}>`}
      ${lost && holes}
      ${own.some && html`<${Card} title="Overhead of mete" note="resources used by its programs in the range" flush width=${own.listed ? "w6" : "w12"}><${Own} of=${own} /></${Card}>`}
      <${Card} title="Balance" note="workloads + system + idle = total" width=${own.listed ? "w6" : "w12"}><${Shown} of=${used} height=${180}>${(u) => html`<${Whole} used=${u} />`}</${Shown}></${Card}>
      ${!lost && holes}
      <${Card} title="Server metrics" note="/metrics" flush width="w12" aside=${html`<${Search} placeholder="Filter metrics" />`}><${Shown} of=${m} lines=${6}>${(d) => html`<${Metrics} m=${d} q=${(query.q || "").toLowerCase()} narrow=${narrow} />`}</${Shown}></${Card}></div>`;
}

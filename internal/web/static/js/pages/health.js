// Health: nodes that do not report, gaps, balance checks, the cost of measuring, the server.
import { html, useRef } from "../../vendor/preact.mjs";
import { get, plain, instant } from "../api.js";
import { ledger, steps, useSpan } from "../span.js";
import { Card, Stat, Shown, Empty, Facts, Job, Search, useData, useHere } from "../ui.js";
import { Table } from "../table.js";
import { amounts } from "../amounts.js";
import { Gaps, Whole } from "../parts.js";
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
    const violations = await instant("sum(mete_conservation_violations_total)", undefined, signal).catch(() => []);
    return { of, rate, found: now.found, help: now.help, broken: violations.length ? Number(violations[0].value[1]) : null };
  }, [], 5000);
}

// folded says up to when the ledger has totals of whole hours; "" before the first hour.
export function folded(m) {
  const lag = m.of("mete_server_ledger_hour_lag_seconds");
  return lag === null || lag > 1e9 ? "" : "hourly totals up to " + text(lag, "seconds") + " ago";
}

function Server({ m }) {
  const refused = m.of("mete_server_refused_total"), broken = m.broken;
  const failing = ["conflict", "clone"].map((v) => m.of("mete_server_batches_total", { verdict: v }) || 0).reduce((a, b) => a + b, 0);
  return html`<section class="card stats" aria-label="the server">
    <${Stat} title="Rows ingested" v=${m.of("mete_server_rows_total")} unit="count" below=${html`<span>${m.rate("mete_server_rows_total") === null ? "since the server started" : text(m.rate("mete_server_rows_total"), "persecond") + " now"}</span>`} />
    <${Stat} title="Queue" v=${m.of("mete_server_queue_rows")} unit="count" below=${html`<span>${m.of("mete_server_queue_rows") === 1 ? "row waits" : "rows wait"} to be stored</span>`} />
    <${Stat} title="Refused" v=${refused} unit="count" below=${html`<span class=${refused > 0 ? "warn" : ""}>agent requests rejected</span>${failing > 0 && html`<span class="tag bad">${failing} conflicts or clones</span>`}`} />
    <${Stat} title="Time series" v=${m.of("mete_server_metrics_series")} unit="count" below=${html`<span>in memory</span>${m.rate("mete_server_metrics_samples_total") !== null && html`<span>${text(m.rate("mete_server_metrics_samples_total"), "persecond")} samples</span>`}`} />
    <${Stat} title="Ledger" v=${m.of("mete_server_ledger_bytes")} unit="bytes" below=${html`<span>on disk</span>${folded(m) && html`<span title="the ledger sums minutes up into hours and days, and deletes old minutes">${folded(m)}</span>`}`} />
    <${Stat} title="Failed balance checks" v=${broken} unit="count" below=${broken > 0 ? html`<span class="tag bad">a bug, please report it</span>` : html`<span>${broken === null ? "not available" : "all parts sum to their total"}</span>`} /></section>`;
}

// Own is what mete's own programs used in the range.
function Own({ span }) {
  const data = useData((signal) => get("/v1/usage", { by: "workload", where: own.map((w) => "workload=" + w), fields: "cpu_seconds,memory_byte_seconds,memory_peak_bytes,energy_joules,energy_error_joules,disk_written_bytes", ...ledger(span) }, signal), [steps(span)]);
  const live = useData(async (signal) => (document.getElementById("app").dataset.live === "1" ? (await get("/api/v0/snapshot", {}, signal)).self : null), [], 30000);
  const over = data.data ? Math.max(1, data.data.averages_over_seconds) : 1;
  const rows = data.data ? data.data.groups : [], { amount, whileRunning } = amounts(rows);
  const columns = [{ key: "workload", title: "Program", class: "name", value: (r) => r.workload, cell: (r) => html`<${Job} name=${r.workload} />` },
    { key: "cpu", title: "CPU s a minute", num: true, first: true, value: (r) => Number(r.cpu_seconds), cell: (r) => html`<span title=${text(r.cpu_seconds, "seconds") + " in the range"}>${text(Number(r.cpu_seconds) / over * 60, "none")}</span>` },
    whileRunning("memory", "Memory", "memory_byte_seconds", "bytes", "average memory, with page cache,"), amount("memory_peak_bytes", "Peak memory", "bytes", "peak memory"), amount("disk_written_bytes", "Written", "bytes", "bytes written to disks"),
    amount("energy_joules", "Energy", "joules", "energy of the activity, with the possible error", { off: "energy_error_joules" })];
  return html`<${Shown} of=${data} lines=${3}>${(d) => html`${live.data && html`<div class="inset"><${Facts} of=${[["This process", html`<b class="num">${text(live.data.cpu_seconds_per_minute, "none")}</b> CPU seconds a minute, <b class="num">${text(live.data.rss_bytes, "bytes")}</b> of memory`], ["One measurement takes", html`<b class="num">${text(live.data.tick_us / 1e6, "seconds")}</b>`]]} /></div>`}
    ${d.groups.length > 0 ? html`<${Table} columns=${columns} rows=${d.groups} id=${(r) => r.workload} name="own" label="mete's own programs" />` : !live.data && html`<${Empty} title="No data on mete's own programs"><span>Run mete-agent and mete-server as services: each then has a control group, and is listed here.</span></${Empty}>`}`}</${Shown}>`;
}

// Late lists the nodes that do not report in time: by state, with all of them a click away.
function Late({ nodes }) {
  const states = ["silent", "behind"].map((s) => [s, nodes.filter((n) => n.state === s).sort((a, b) => natural(a.name, b.name))]).filter(([, list]) => list.length);
  if (states.length === 0) return html`<div class="calm"><span class="tick" aria-hidden="true"></span><div><b>${nodes.length === 1 ? "The node is" : "All " + few(nodes.length, "node") + " are"} up to date</b></div></div>`;
  return html`${states.map(([state, list]) => html`<div class="row late"><${State} of=${state} /><b>${few(list.length, "node")}</b>${list.length > 5 && html`<a class="end" href=${href("/nodes", { state })}>Show all</a>`}</div>
    <ul class="attention">${list.slice(0, 5).map((n) => html`<li class=${state === "silent" ? "bad" : "warn"}><a href=${nodeAt(n.name)}>${n.name}</a><span>${n.cluster}</span><span title=${n.booked_through ? exactly(n.booked_through) : ""}>${n.booked_through ? "last data " + ago(n.booked_through) : "no data yet"}</span></li>`)}</ul>`)}`;
}

// Metrics lists all metrics of the server.
function Metrics({ m, q }) {
  const rows = Object.entries(m.found).flatMap(([name, list]) => list.map((x) => ({ name, labels: Object.entries(x.labels).map(([k, v]) => k + "=" + v).join(" "), value: x.value, help: m.help[name] || "" }))).filter((r) => !q || (r.name + r.labels + r.help).toLowerCase().includes(q));
  const columns = [{ key: "name", title: "Metric", class: "mono", value: (r) => r.name }, { key: "labels", title: "Labels", value: (r) => r.labels }, { key: "v", title: "Value", num: true, value: (r) => r.value, cell: (r) => html`<span title=${String(r.value)}>${text(r.value, /bytes/.test(r.name) ? "bytes" : /timestamp/.test(r.name) ? "none" : /seconds/.test(r.name) ? "seconds" : "count")}</span>` }, { key: "help", title: "Description", class: "wrap muted", value: (r) => r.help }];
  return html`<${Table} columns=${columns} rows=${rows} id=${(r) => r.name + r.labels} name="figures" label="server metrics" wraps empty=${html`<${Empty} title="No metrics match the filter" />`} />`;
}

export function Health({ nodes }) {
  const { query } = useHere();
  const span = useSpan(query);
  const m = useMetrics();
  const gaps = useData(async (signal) => (await get("/v1/gaps", ledger(span), signal)).gaps, [steps(span)]);
  const used = useData((signal) => get("/v1/usage", { by: "kind", fields: "cpu_seconds,memory_byte_seconds,disk_read_bytes,disk_written_bytes,energy_joules", ...ledger(span) }, signal), [steps(span)]);
  const active = nodes.filter((n) => n.state !== "revoked"), broken = gaps.data && gaps.data.length > 0;
  return html`<${Shown} of=${m} height=${108}>${(d) => html`<${Server} m=${d} />`}</${Shown}>
    <div class="grid starts">
      <div class="w6 stack"><${Card} title="Nodes that do not report"><${Late} nodes=${active} /></${Card}>
        ${!broken && html`<${Card} title="Gaps in the data"><${Shown} of=${gaps} lines=${2}>${() => html`<div class="calm"><span class="tick" aria-hidden="true"></span><div><b>No gaps</b><div class="muted">All data of this range is complete.</div></div></div>`}</${Shown}></${Card}>`}
        <${Card} title="Overhead of mete" note="resources used by its programs in the range" flush><${Own} span=${span} /></${Card}></div>
      <${Card} title="Balance" note="workloads + system + idle = total" width="w6"><${Shown} of=${used} height=${180}>${(u) => html`<${Whole} used=${u} />`}</${Shown}></${Card}>
      ${broken && html`<${Card} title="Gaps in the data" flush width="w12"><${Gaps} gaps=${gaps.data} /></${Card}>`}
      <${Card} title="Server metrics" note="/metrics" flush width="w12" aside=${html`<${Search} placeholder="Filter metrics" />`}><${Shown} of=${m} lines=${6}>${(d) => html`<${Metrics} m=${d} q=${(query.q || "").toLowerCase()} />`}</${Shown}></${Card}></div>`;
}

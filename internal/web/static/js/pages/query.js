// Query: PromQL, as a chart and as a table.
import { html, useState, useEffect, useRef, useMemo } from "../../vendor/preact.mjs";
import { get } from "../api.js";
import { isNow, ledger, useSpan, zoom } from "../span.js";
import { Card, Shown, Empty, Figure, Segments, Skeleton, useData, useHere, useNarrow } from "../ui.js";
import { Chart } from "../chart.js";
import { Table } from "../table.js";
import { Editor } from "../editor.js";
import { oneOf } from "../series.js";
import { tokens } from "../promql.js";
import { natural } from "../names.js";
import { sending } from "../checks.js";
import { Lacks, lateOf, lost, missingMarks, stopped } from "../parts.js";
import { text, length, unitOf, few, worst, when, ago } from "../fmt.js";
import { put, jobAt, nodeAt } from "../route.js";

const examples = [
  ["CPU by part of the machine", "sum by (part) (mete_node_cpu_cores)"],
  ["Top ten workloads by CPU", "topk(10, rate(mete_workload_cpu_seconds_total[2m]) * on (cluster, node, workload) group_left (name) mete_workload_info)"],
  ["Memory by kind of workload", "sum by (kind) (rate(mete_workload_memory_byte_seconds_total[2m]) * on (cluster, node, workload) group_left (kind) mete_workload_info)"],
  ["Power of each node", "sum by (node) (mete_node_power_watts)"],
  ["Energy of the last hour, by domain", "sum by (domain) (increase(mete_workload_energy_joules_total[1h]))"],
  ["CPU utilization of each node", "1 - sum by (node) (mete_node_cpu_cores{part=\"idle\"}) / sum by (node) (mete_node_cpu_cores)"],
  ["Bytes sent and received", "sum by (direction) (mete_node_network_bytes_per_second)"],
];

const key = "mete.queries";
const past = () => { try { return JSON.parse(localStorage.getItem(key) || "[]").filter((q) => typeof q === "string").slice(0, 30); } catch { return []; } };
const keep = (q) => { try { localStorage.setItem(key, JSON.stringify([q, ...past().filter((p) => p !== q)].slice(0, 30))); } catch { /* no storage: no history */ } };

const drawn = 60; // series that a chart shows

// plain are the labels whose values say what they are without the name of the label, in the order in which they stand.
const plain = ["name", "job", "node", "part", "domain", "direction", "kind", "cluster"];

// namer returns the name of a series by which people tell it from the others: the labels that
// differ, without those that others imply, and of a workload its job or name instead of its id, where
// names has it.
export function namer(series, names = new Map()) {
  const list = series.map((s) => named(s.metric, names)), told = (keys) => new Set(list.map((m) => JSON.stringify(keys.map((k) => m[k] ?? null)))).size;
  const differ = [...new Set(list.flatMap(Object.keys))].map((k) => [k, told([k])]).filter(([, n]) => n > 1).sort((a, b) => a[1] - b[1]).map(([k]) => k);
  let good = differ.filter((k) => !(k === "workload" && differ.includes("name")));
  for (const k of [...good]) {
    const rest = good.filter((g) => g !== k);
    if (k !== "name" && k !== "job" && rest.length > 0 && told(rest) === told(good)) good = rest;
  }
  const rank = (k) => (plain.includes(k) ? plain.indexOf(k) : plain.length);
  good.sort((a, b) => rank(a) - rank(b));
  return (s) => { const m = named(s.metric, names); return good.filter((k) => m[k] !== undefined).map((k) => (good.length === 1 || plain.includes(k) ? m[k] : k + "=" + m[k])).join(" ") || m.__name__ || m.name || "value"; };
}

const named = (metric, names) => {
  if (metric.name !== undefined || !metric.workload || names.size === 0) return metric;
  const { workload, ...rest } = metric;
  return { name: (names.get(workload) || { name: workload }).name, ...rest };
};

// namesOf asks for the names of the workloads of series that have only their ids.
async function namesOf(list, span, signal) {
  const ids = [...new Set(list.filter((s) => s.metric.name === undefined).map((s) => s.metric.workload).filter(Boolean))].slice(0, 200);
  if (ids.length === 0) return new Map();
  const found = (await get("/api/v1/series", { "match[]": `mete_workload_info{workload=~${oneOf(ids)}}`, start: span.from, end: span.to, limit: 1000 }, signal)).data;
  const job = (i) => i.job || i.name || i.workload, groups = new Map();
  for (const i of found) groups.set(i.node + "\n" + job(i), [...(groups.get(i.node + "\n" + job(i)) || []), i]);
  // Several workloads of one job on a node differ by their pod, container or name.
  const name = (i) => {
    const like = groups.get(i.node + "\n" + job(i)).filter((o) => o.workload !== i.workload);
    return like.length === 0 ? job(i) : ["pod", "name", "container"].map((k) => i[k] && like.every((o) => o[k] !== i[k]) && i[k]).find(Boolean) || [...new Set([job(i), i.pod, i.container, i.name].filter(Boolean))].join(" ");
  };
  return new Map(found.map((i) => [i.workload, { job: job(i), name: name(i) }]));
}

// The figure of the ledger that a metric is of; those that are only measured have none here.
const fields = { mete_node_cpu_cores: "cpu_seconds", mete_node_memory_held_bytes: "memory_byte_seconds", mete_node_power_watts: "energy_joules", mete_workload_pids_total: "pids_seconds" };
export const fieldOf = (metric) => fields[metric] || (/^mete_workload_(.*_(?:seconds|bytes|joules|peak))(?:_total)?$/.exec(metric) || [])[1] || null;

// Parts and directions have the colors of the other pages.
const tones = { part: { workloads: "workloads", system: "system", idle: "idleline" }, direction: { received: "in", sent: "out", read: "in", written: "out" } };

// colorsOf gives series the colors of the other pages: { tone } of what has a fixed one, else { key } of the job, node, user or
// namespace that each is about, or of its labels, where these do not tell the series apart.
export function colorsOf(list, names = new Map()) {
  const keyOf = (m) => { const job = m.job || (names.get(m.workload) || {}).job || m.name; return job ? "job " + job : ["namespace", "user", "node"].filter((k) => m[k]).map((k) => k + " " + m[k])[0] || ""; };
  const keys = list.map((s) => keyOf(s.metric)), alone = (k) => k && keys.indexOf(k) === keys.lastIndexOf(k);
  const fixed = list.map(({ metric: m }) => (tones.part[m.part] || tones.direction[m.direction] || ""));
  return list.map((s, i) => (fixed[i] && fixed.indexOf(fixed[i]) === fixed.lastIndexOf(fixed[i]) ? { tone: fixed[i] } : { key: alone(keys[i]) ? keys[i] : idOf(s.metric) }));
}

// qualityOf asks the ledger for the quality of the figures of a query: a function of the labels of a series.
async function qualityOf(query, list, span, signal) {
  const metrics = tokens(query).filter((t) => t.kind === "metric").map((t) => t.text), wanted = [...new Set(metrics.map(fieldOf).filter(Boolean))];
  if (wanted.length === 0 || list.length === 0) return () => "";
  const byNode = list.some((s) => s.metric.node), a = await get("/v1/usage", { by: byNode ? "node,kind" : "kind", fields: wanted.join(","), limit: byNode ? 10000 : "", ...ledger(span) }, signal);
  const whole = metrics.some((m) => m.startsWith("mete_node_")), of = new Map();
  for (const g of a.groups) if (whole || (g.kind !== "idle" && g.kind !== "system")) for (const k of ["", g.node]) of.set(k, [...(of.get(k) || []), ...wanted.map((f) => g.quality[f]).filter(Boolean)]);
  return (m) => worst(of.get(byNode && m.node ? m.node : "") || []);
}

// errorQuery is the query of the possible error of an energy or a power; "" where the error of the answer does not follow
// from those of its parts.
const errorsOf = { mete_node_power_watts: "mete_node_power_error_watts", mete_workload_energy_joules_total: "mete_workload_energy_error_joules_total" };
const adding = ["sum", "avg", "rate", "irate", "increase", "avg_over_time", "sort", "sort_desc", "topk", "bottomk"];
export function errorQuery(query) {
  const list = tokens(query), metrics = list.filter((t) => t.kind === "metric");
  let braces = 0, good = metrics.length === 1 && metrics[0].text in errorsOf;
  for (const t of list) {
    if (t.text === "{") braces++;
    if (t.text === "}") braces--;
    if ((t.kind === "op" && braces === 0) || (t.kind === "function" && !adding.includes(t.text)) || (t.kind === "keyword" && !["by", "without"].includes(t.text))) good = false;
  }
  return good ? list.map((t) => (t.kind === "metric" ? errorsOf[t.text] : t.text)).join("") : "";
}

// highest are series in the order of their highest values.
function highest(list) {
  const most = (s) => Math.max(...(s.values || [s.value]).map(([, v]) => Number(v)).filter((v) => !Number.isNaN(v)), -Infinity);
  return list.map((s) => [most(s), s]).sort((a, b) => (b[0] > a[0] ? 1 : b[0] < a[0] ? -1 : 0)).map(([, s]) => s);
}

const idOf = ({ __name__, ...labels }) => JSON.stringify(Object.entries(labels).sort());
const lastOf = (s) => (s ? Number((s.value || s.values.at(-1))[1]) : null);

// turns says of topk and bottomk that they choose again at each step, where that gives more series.
export const turns = (query, count) => { const m = /^\s*(topk|bottomk)\s*\(\s*(\d+)/.exec(query); return m && count > Number(m[2]) ? ` · ${m[1]} chooses ${m[2]} again at each step` : ""; };

// place finds where in a query an error is: "1:7: parse error: ...".
function place(message, query) {
  const m = /(?:^|\D)(\d+):(\d+): (.*)$/s.exec(message);
  if (!m) return null;
  const lines = query.split("\n"), line = Number(m[1]) - 1, column = Number(m[2]) - 1;
  if (!(line in lines)) return null;
  return { before: lines[line].slice(0, column), at: lines[line].slice(column, column + 1) || " ", after: lines[line].slice(column + 1), line: line + 1, column: column + 1, says: m[3] };
}

function Wrong({ error, query }) {
  const at = place(error.message, query);
  return html`<div class="notice bad wrong" role="alert"><div>${at ? html`<b>${at.says}</b><div class="small">line ${at.line}, character ${at.column}</div><pre>${at.before}<mark>${at.at}</mark>${at.after}</pre>` : html`<b>${error.message}</b>`}${error.hint && html`<div>${error.hint}</div>`}</div></div>`;
}

// Nothing stands where no series has values: of nodes that send nothing any more it says since when.
function Nothing({ query, span, nodes }) {
  const at = isNow(span) && isMeasured(query) ? stopped(nodesOf(query, sending(nodes))) : 0;
  return at > 0 ? html`<${Empty} title=${"No data since " + when(at * 1000)}><span>The latest data came ${ago(at * 1000)}.</span><button type="button" onClick=${() => zoom(at - span.length, at)}>Show the latest data</button></${Empty}>` : html`<${Empty} title="No data"><span>No series matches in this range. Check the metric and its labels.</span></${Empty}>`;
}

function Result({ query, span, mode, kept, nodes }) {
  const asked = useRef(0);
  const data = useData(async (signal) => {
    const began = performance.now();
    const path = mode === "table" ? "/api/v1/query" : "/api/v1/query_range";
    const params = mode === "table" ? { query, time: span.to } : { query, start: span.from, end: span.to, step: span.step };
    const { data, warnings = [], infos = [] } = await get(path, params, signal);
    keep(query);
    kept();
    const labeled = data.resultType === "matrix" || data.resultType === "vector", or = (none) => (e) => { if (e.name === "AbortError") throw e; return none; }, wrong = errorQuery(query);
    const [names, quality, errors] = await Promise.all([labeled ? namesOf(highest(data.result), span, signal).catch(or(new Map())) : new Map(), labeled ? qualityOf(query, data.result, span, signal).catch(or(() => "")) : () => "",
      labeled && wrong ? get(path, { ...params, query: wrong }, signal).then((a) => a.data.result, or([])) : []]);
    const off = new Map(errors.map((e) => [idOf(e.metric), lastOf(e)]));
    return { ...data, names, quality, off: (m) => off.get(idOf(m)) ?? null, notes: [...warnings, ...infos], took: performance.now() - began, query, mode, n: ++asked.current };
  }, [query, span.from, span.to, mode]);
  if (data.error && (!data.data || data.data.query !== query || data.data.mode !== mode)) return html`<section class="card"><${Wrong} error=${data.error} query=${query} /></section>`;
  if (!data.data || data.data.mode !== mode) return html`<section class="card"><${Skeleton} height=${360} /></section>`;
  const d = data.data, list = d.resultType === "scalar" || d.resultType === "string" ? [{ metric: {}, value: d.result }] : d.result, unit = unitOf(d.query);
  return html`<section class="card" aria-label="answer">${data.error && html`<${Wrong} error=${data.error} query=${query} />`}${d.notes.map((n) => html`<p class="notice warn">${n}</p>`)}
    ${list.length === 0 ? html`<${Nothing} query=${d.query} span=${span} nodes=${nodes} />` : mode === "table" ? html`<${Values} list=${list} answer=${d} span=${span} unit=${unit} nodes=${nodes} />` : html`<${Lines} list=${list} answer=${d} span=${span} unit=${unit} nodes=${nodes} />`}
    <p class="small muted">${few(list.length, "series", "series")}${mode !== "table" && list.length > drawn ? `, ${drawn} with the highest values drawn` : ""} · ${Math.round(d.took)} ms${mode === "table" ? "" : " · " + length(span.step) + " resolution" + turns(d.query, list.length)}</p></section>`;
}

// linkOf is the page of the job or the node that a series is about.
function linkOf(metric, names, nodes) {
  const said = metric.job || (names.get(metric.workload) || {}).job || metric.name, job = said !== "idle" && said !== "system" ? said : "", node = nodes.some((n) => n.name === metric.node) ? metric.node : "";
  return job ? { title: "job " + job, href: jobAt(job, { node }) } : node ? { title: "node " + node, href: nodeAt(node) } : null;
}

// beginOf is where the data of a range begins, if a tenth of it or more has none before; else 0. A chart of it begins there.
export function beginOf(list, span) {
  const first = Math.min(...list.map((s) => (s.values && s.values.length ? Number(s.values[0][0]) : Infinity)));
  return first < Infinity && first - span.from > 0.1 * (span.to - span.from) ? first : 0;
}

// nodesOf are the nodes that a query is about, by what its selectors say of node and cluster.
export function nodesOf(query, nodes) {
  const list = tokens(query).filter((t) => t.kind !== "space" && t.kind !== "comment"), key = { node: "name", cluster: "cluster" };
  const says = list.flatMap((t, i) => { const [op, value] = list.slice(i + 1, i + 3); return t.kind === "label" && key[t.text] && op && op.kind === "op" && value && value.kind === "string" ? [[key[t.text], op.text, value.text.slice(1, -1)]] : []; });
  const matches = (n, [k, op, v]) => { try { return (/~/.test(op) ? new RegExp("^(?:" + v + ")$").test(n[k]) : n[k] === v) !== op.startsWith("!"); } catch { return true; } };
  return nodes.filter((n) => says.every((s) => matches(n, s)));
}

// isMeasured reports whether a query is about what agents measure, at its own time: the latest values of a node stand in an answer
// for some minutes after its data ended. What the server knows about nodes goes on.
export function isMeasured(query) {
  const list = tokens(query), metrics = list.filter((t) => t.kind === "metric");
  return metrics.length > 0 && metrics.every((t) => /^mete_(workload_|node_(?:cpu|memory_|power_(?!cap)|disk_|network_))/.test(t.text)) && !list.some((t) => t.text === "offset" || t.text === "@");
}

// endedOf returns the values of a series up to the end of the data of the nodes that it is about, if all of them are late.
export function endedOf({ metric, values }, nodes, late) {
  const own = nodes.filter((n) => !n.nested_in && (!metric.node || n.name === metric.node) && (!metric.cluster || n.cluster === metric.cluster));
  if (own.length === 0 || !own.every((n) => late.includes(n))) return values;
  const end = Math.max(...own.map((n) => Date.parse(n.booked_through) / 1000));
  return values.filter(([t]) => Number(t) <= end);
}

function Lines({ list, answer, span, unit, nodes }) {
  const measured = isMeasured(answer.query), expected = nodesOf(answer.query, sending(nodes)), late = lateOf(expected, span.to), ends = late.map((n) => n.node + n.booked_through).join();
  const series = useMemo(() => {
    const top = highest(list).slice(0, drawn), { names, quality, off } = answer, name = namer(top, names), seen = {}, colors = colorsOf(top, names);
    return top.map((s, i) => {
      let n = name(s);
      seen[n] = (seen[n] || 0) + 1;
      if (seen[n] > 1) n += " (" + seen[n] + ")";
      return { name: n, ...colors[i], values: measured ? endedOf(s, expected, late) : s.values, title: JSON.stringify(s.metric), link: linkOf(s.metric, names, nodes), quality: quality(s.metric), off: off(s.metric) === null ? "" : text(off(s.metric), unit, lastOf(s)) };
    });
  }, [list, answer, ends]);
  const begin = beginOf(list, span), reach = [begin > 0 ? begin - span.step : span.from, span.to], lacks = measured ? lost(expected, reach) : [];
  return html`${(begin > 0 || lacks.length > 0) && html`<p class="small muted begins">${begin > 0 && html`Data begins ${when(begin * 1000)}. `}<${Lacks} list=${lacks} end=${span.to} /></p>`}<${Chart} series=${series} span=${span} reach=${reach} marks=${missingMarks(lacks)} unit=${unit} height=${360} legend="always" label="answer" full />`;
}

function Values({ list, answer, span, unit, nodes }) {
  const lacks = isMeasured(answer.query) ? lost(nodesOf(answer.query, sending(nodes)), [span.from, span.to]) : [];
  const labels = [...new Set(list.flatMap((s) => Object.keys(s.metric)))].sort((a, b) => (a === "__name__" ? -1 : b === "__name__" ? 1 : a < b ? -1 : 1));
  const rows = useMemo(() => list.map((s, i) => ({ i, ...s })), [list]), narrow = useNarrow(), { names, quality, off } = answer;
  const value = (s) => (s.value ? Number(s.value[1]) : null);
  // A name leads to the page of its job, a node to its own.
  const cell = (l) => (s) => {
    const v = s.metric[l], said = l === "workload" && names.get(v) ? names.get(v).name : v, link = ["workload", "name", "job"].includes(l) ? linkOf(s.metric, names, nodes) : l === "node" ? linkOf({ node: v }, names, nodes) : null;
    return v === undefined ? html`<span class="absent">–</span>` : link ? html`<a href=${link.href} title=${v}>${said}</a>` : html`<span title=${v}>${said}</span>`;
  };
  const columnOf = labels.map((l) => ({ key: l, title: l === "__name__" ? "metric" : l, class: "name", order: natural, value: (s) => s.metric[l] || null, cell: cell(l) }));
  const last = { key: "value", title: "Value", num: true, first: true, value, cell: (s) => (s.value ? html`<span title=${s.value[1]}><${Figure} v=${value(s)} unit=${unit} off=${off(s.metric)} quality=${quality(s.metric)} /></span>` : few((s.values || []).length, "sample")) };
  // On a phone the value stands beside the first name.
  const columns = narrow ? [...columnOf.slice(0, 1), last, ...columnOf.slice(1)] : [...columnOf, last];
  return html`${lacks.length > 0 && html`<p class="small muted begins"><${Lacks} list=${lacks} end=${span.to} /></p>`}<${Table} columns=${columns} rows=${rows} id=${(s) => s.i} name="rows" label="answer" />`;
}

// Names lists the metrics.
function Names({ insert }) {
  const data = useData(async (signal) => Object.entries((await get("/api/v1/metadata", {}, signal)).data).map(([name, [m]]) => ({ name, ...m })).sort((a, b) => (a.name < b.name ? -1 : 1)), []);
  const [q, set] = useState("");
  return html`<${Card} title="Metrics" width="w12" aside=${html`<input type="search" placeholder="Find" aria-label="find a metric" value=${q} onInput=${(e) => set(e.target.value)} />`}><${Shown} of=${data} lines=${8}>${(list) => html`<ul class="metrics columns" tabindex="0">${list.filter((m) => !q || (m.name + m.help).toLowerCase().includes(q.toLowerCase())).map((m) => html`<li><button type="button" class="plain mono" onClick=${() => insert(m.name)}>${m.name}</button><span class="muted small">${m.help}${m.type === "counter" ? " · counter" : ""}</span></li>`)}</ul>`}</${Shown}></${Card}>`;
}

export function Query({ nodes }) {
  const { query } = useHere();
  const span = useSpan(query), expr = query.expr || "", mode = query.mode === "table" ? "table" : "chart";
  const field = useRef();
  const [again, run] = useState(0);
  const submit = (e) => { if (e) e.preventDefault(); const v = field.current.value.trim(); if (v === expr) run(again + 1); else put({ expr: v }); };
  const changed = () => field.current.dispatchEvent(new Event("change"));
  const ask = (q) => { field.current.value = q; changed(); put({ expr: q }); };
  const insert = (name) => { const f = field.current; f.setRangeText(name, f.selectionStart, f.selectionEnd, "end"); changed(); f.focus(); };
  useEffect(() => { if (field.current.value.trim() !== expr) { field.current.value = expr; changed(); } }, [expr]);
  const [, forget] = useState(0); // draws the history again
  return html`<form class="card ask" onSubmit=${submit}><label class="hidden" for="expr">PromQL</label><${Editor} field=${field} initial=${expr} run=${() => submit()} />
      <div class="bar"><button class="primary">Run</button><${Segments} label="show as" options=${[["chart", "chart"], ["table", "table", "values at the end of the range"]]} value=${mode} choose=${(v) => put({ mode: v === "chart" ? "" : v })} /><span class="end small muted"><kbd>Enter</kbd> run, <kbd>Tab</kbd> complete, <kbd>Shift</kbd>+<kbd>Enter</kbd> new line</span></div></form>
    ${expr ? html`<${Result} key=${again} query=${expr} span=${span} mode=${mode} nodes=${nodes} kept=${() => forget((n) => n + 1)} />` : null}
    <div class="grid starts"><${Card} title="Examples" width="w8"><ul class="metrics columns">${examples.map(([name, q]) => html`<li><button type="button" class="plain" onClick=${() => ask(q)}>${name}</button><code class="muted small">${q}</code></li>`)}</ul>
        </${Card}><${Card} title="History" width="w4" aside=${past().length > 0 && html`<button type="button" class="quiet" onClick=${() => { try { localStorage.removeItem(key); } catch { /* there is none */ } forget((n) => n + 1); }}>Clear</button>`}>${past().length > 0 ? html`<ul class="metrics">${past().map((q) => html`<li><button type="button" class="plain mono" onClick=${() => ask(q)}>${q}</button></li>`)}</ul>` : html`<p class="muted">Queries that you run are listed here, in this browser.</p>`}</${Card}>
      <${Names} insert=${insert} /></div>`;
}

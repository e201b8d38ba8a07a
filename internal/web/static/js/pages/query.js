// Query: PromQL, as a chart and as a table.
import { html, useState, useEffect, useRef, useMemo } from "../../vendor/preact.mjs";
import { get } from "../api.js";
import { useSpan } from "../span.js";
import { Card, Shown, Empty, Segments, Skeleton, Trouble, useData, useHere, useNarrow } from "../ui.js";
import { Chart } from "../chart.js";
import { Table } from "../table.js";
import { Editor } from "../editor.js";
import { oneOf } from "../series.js";
import { text, length, unitOf, few } from "../fmt.js";
import { put } from "../route.js";

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

// namer returns the name of a series by which people tell it from the others: the labels that
// differ, and of a workload its job or name instead of its id, where names has it.
export function namer(series, names = new Map()) {
  const list = series.map((s) => ({ metric: named(s.metric, names) }));
  const differ = new Set();
  for (const k of new Set(list.flatMap((s) => Object.keys(s.metric)))) if (new Set(list.map((s) => s.metric[k])).size > 1) differ.add(k);
  const good = [...differ].filter((k) => !(k === "workload" && differ.has("name")));
  return (s) => { const m = named(s.metric, names); return good.filter((k) => m[k] !== undefined).map((k) => (good.length === 1 || k === "name" ? m[k] : k + "=" + m[k])).join(" ") || m.__name__ || m.name || "value"; };
}

const named = (metric, names) => {
  if (metric.name !== undefined || !metric.workload || names.size === 0) return metric;
  const name = names.get(metric.workload) || metric.workload;
  const { workload, ...rest } = metric;
  return { name, ...rest };
};

// namesOf asks for the names of the workloads of series that have only their ids.
async function namesOf(list, span, signal) {
  const ids = [...new Set(list.filter((s) => s.metric.name === undefined).map((s) => s.metric.workload).filter(Boolean))].slice(0, 200);
  if (ids.length === 0) return new Map();
  const found = (await get("/api/v1/series", { "match[]": `mete_workload_info{workload=~${oneOf(ids)}}`, start: span.from, end: span.to, limit: 1000 }, signal)).data;
  return new Map(found.map((i) => [i.workload, i.job || i.name || i.workload]));
}

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

function Result({ query, span, mode, kept }) {
  const asked = useRef(0);
  const data = useData(async (signal) => {
    const began = performance.now();
    const path = mode === "table" ? "/api/v1/query" : "/api/v1/query_range";
    const params = mode === "table" ? { query, time: span.to } : { query, start: span.from, end: span.to, step: span.step };
    const { data, warnings = [], infos = [] } = await get(path, params, signal);
    keep(query);
    kept();
    const names = data.resultType === "matrix" || data.resultType === "vector" ? await namesOf(data.result, span, signal).catch((e) => { if (e.name === "AbortError") throw e; return new Map(); }) : new Map();
    return { ...data, names, notes: [...warnings, ...infos], took: performance.now() - began, query, mode, n: ++asked.current };
  }, [query, span.from, span.to, mode]);
  if (data.error && (!data.data || data.data.query !== query || data.data.mode !== mode)) return html`<section class="card"><${Wrong} error=${data.error} query=${query} /></section>`;
  if (!data.data || data.data.mode !== mode) return html`<section class="card"><${Skeleton} height=${360} /></section>`;
  const d = data.data, list = d.resultType === "scalar" || d.resultType === "string" ? [{ metric: {}, value: d.result }] : d.result, unit = unitOf(d.query);
  return html`<section class="card" aria-label="answer">${data.error && html`<${Wrong} error=${data.error} query=${query} />`}${d.notes.map((n) => html`<p class="notice warn">${n}</p>`)}
    ${list.length === 0 ? html`<${Empty} title="No data"><span>No series matches in this range. Check the metric and its labels.</span></${Empty}>` : mode === "table" ? html`<${Values} list=${list} names=${d.names} unit=${unit} />` : html`<${Lines} list=${list} names=${d.names} span=${span} unit=${unit} />`}
    <p class="small muted">${few(list.length, "series", "series")}${mode !== "table" && list.length > drawn ? `, ${drawn} with the highest values drawn` : ""} · ${Math.round(d.took)} ms${mode === "table" ? "" : " · " + length(span.step) + " resolution" + turns(d.query, list.length)}</p></section>`;
}

function Lines({ list, names, span, unit }) {
  const series = useMemo(() => {
    const top = list.map((s) => ({ s, most: Math.max(...s.values.map(([, v]) => Number(v)).filter(Number.isFinite), -Infinity) })).sort((a, b) => b.most - a.most).slice(0, drawn).map((x) => x.s);
    const name = namer(top, names), seen = {};
    return top.map((s) => { let n = name(s); seen[n] = (seen[n] || 0) + 1; if (seen[n] > 1) n += " (" + seen[n] + ")"; return { name: n, values: s.values, title: JSON.stringify(s.metric) }; });
  }, [list]);
  return html`<${Chart} series=${series} span=${span} unit=${unit} height=${360} legend="always" label="answer" />`;
}

function Values({ list, names, unit }) {
  const labels = [...new Set(list.flatMap((s) => Object.keys(s.metric)))].sort((a, b) => (a === "__name__" ? -1 : b === "__name__" ? 1 : a < b ? -1 : 1));
  const rows = useMemo(() => list.map((s, i) => ({ i, ...s })), [list]), narrow = useNarrow();
  const value = (s) => (s.value ? Number(s.value[1]) : null);
  const named = labels.map((l) => ({ key: l, title: l === "__name__" ? "metric" : l, class: "name", value: (s) => s.metric[l] || null, cell: (s) => (l === "workload" && names.get(s.metric[l]) ? html`<span title=${s.metric[l]}>${names.get(s.metric[l])}</span>` : s.metric[l] || html`<span class="absent">–</span>`) }));
  const last = { key: "value", title: "Value", num: true, first: true, value, cell: (s) => (s.value ? html`<span title=${s.value[1]}>${text(value(s), unit)}</span>` : few((s.values || []).length, "sample")) };
  // On a phone the value stands beside the first name.
  const columns = narrow ? [...named.slice(0, 1), last, ...named.slice(1)] : [...named, last];
  return html`<${Table} columns=${columns} rows=${rows} id=${(s) => s.i} name="rows" label="answer" />`;
}

// Names lists the metrics.
function Names({ insert }) {
  const data = useData(async (signal) => Object.entries((await get("/api/v1/metadata", {}, signal)).data).map(([name, [m]]) => ({ name, ...m })).sort((a, b) => (a.name < b.name ? -1 : 1)), []);
  const [q, set] = useState("");
  return html`<${Card} title="Metrics" width="w12" aside=${html`<input type="search" placeholder="Find" aria-label="find a metric" value=${q} onInput=${(e) => set(e.target.value)} />`}><${Shown} of=${data} lines=${8}>${(list) => html`<ul class="metrics columns" tabindex="0">${list.filter((m) => !q || (m.name + m.help).toLowerCase().includes(q.toLowerCase())).map((m) => html`<li><button type="button" class="plain mono" onClick=${() => insert(m.name)}>${m.name}</button><span class="muted small">${m.help}${m.type === "counter" ? " · counter" : ""}</span></li>`)}</ul>`}</${Shown}></${Card}>`;
}

export function Query() {
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
    ${expr ? html`<${Result} key=${again} query=${expr} span=${span} mode=${mode} kept=${() => forget((n) => n + 1)} />` : null}
    <div class="grid starts"><${Card} title="Examples" width="w6"><ul class="metrics">${examples.map(([name, q]) => html`<li><button type="button" class="plain" onClick=${() => ask(q)}>${name}</button><code class="muted small">${q}</code></li>`)}</ul>
        </${Card}><${Card} title="History" width="w6" aside=${past().length > 0 && html`<button type="button" class="quiet" onClick=${() => { try { localStorage.removeItem(key); } catch { /* there is none */ } forget((n) => n + 1); }}>Clear</button>`}>${past().length > 0 ? html`<ul class="metrics">${past().map((q) => html`<li><button type="button" class="plain mono" onClick=${() => ask(q)}>${q}</button></li>`)}</ul>` : html`<p class="muted">Queries that you run are listed here, in this browser.</p>`}</${Card}>
      <${Names} insert=${insert} /></div>`;
}

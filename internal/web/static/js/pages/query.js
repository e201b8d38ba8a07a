// Query: PromQL, as a chart and as a table.
import { html, useState, useEffect, useRef, useMemo } from "../../vendor/preact.mjs";
import { get } from "../api.js";
import { useSpan } from "../span.js";
import { Card, Shown, Empty, Segments, Skeleton, Trouble, useData, useHere } from "../ui.js";
import { Chart } from "../chart.js";
import { Table } from "../table.js";
import { text, length, unitOf, few } from "../fmt.js";
import { put } from "../route.js";

const examples = [
  ["CPU by part of the machine", "sum by (part) (mete_node_cpu_cores)"],
  ["The ten busiest workloads, by name", "topk(10, rate(mete_workload_cpu_seconds_total[2m]) * on (cluster, node, workload) group_left (name) mete_workload_info)"],
  ["Memory by kind of workload", "sum by (kind) (rate(mete_workload_memory_byte_seconds_total[2m]) * on (cluster, node, workload) group_left (kind) mete_workload_info)"],
  ["Power of each node", "sum by (node) (mete_node_power_watts)"],
  ["Energy of the last hour, by domain", "sum by (domain) (increase(mete_workload_energy_joules_total[1h]))"],
  ["How busy each node is", "1 - sum by (node) (mete_node_cpu_cores{part=\"idle\"}) / sum by (node) (mete_node_cpu_cores)"],
  ["Bytes sent and received", "sum by (direction) (mete_node_network_bytes_per_second)"],
];

const key = "mete.queries";
const past = () => { try { return JSON.parse(localStorage.getItem(key) || "[]").filter((q) => typeof q === "string").slice(0, 30); } catch { return []; } };
const keep = (q) => { try { localStorage.setItem(key, JSON.stringify([q, ...past().filter((p) => p !== q)].slice(0, 30))); } catch { /* no storage: no history */ } };

const drawn = 60; // series that a chart shows

// nameOf is a series as people tell it from the others: the labels that differ.
function namer(list) {
  const differ = new Set();
  for (const k of new Set(list.flatMap((s) => Object.keys(s.metric)))) if (new Set(list.map((s) => s.metric[k])).size > 1) differ.add(k);
  const good = [...differ].filter((k) => !(k === "workload" && differ.has("name")));
  return (s) => good.filter((k) => s.metric[k] !== undefined).map((k) => (good.length === 1 ? s.metric[k] : k + "=" + s.metric[k])).join(" ") || s.metric.__name__ || s.metric.name || "value";
}

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

function Result({ query, span, mode }) {
  const asked = useRef(0);
  const data = useData(async (signal) => {
    const began = performance.now();
    const path = mode === "table" ? "/api/v1/query" : "/api/v1/query_range";
    const params = mode === "table" ? { query, time: span.to } : { query, start: span.from, end: span.to, step: span.step };
    const { data, warnings = [], infos = [] } = await get(path, params, signal);
    keep(query);
    return { ...data, notes: [...warnings, ...infos], took: performance.now() - began, query, mode, n: ++asked.current };
  }, [query, span.from, span.to, mode]);
  if (data.error && (!data.data || data.data.query !== query || data.data.mode !== mode)) return html`<section class="card"><${Wrong} error=${data.error} query=${query} /></section>`;
  if (!data.data || data.data.mode !== mode) return html`<section class="card"><${Skeleton} height=${360} /></section>`;
  const d = data.data, list = d.resultType === "scalar" || d.resultType === "string" ? [{ metric: {}, value: d.result }] : d.result, unit = unitOf(d.query);
  return html`<section class="card" aria-label="answer">${data.error && html`<${Wrong} error=${data.error} query=${query} />`}${d.notes.map((n) => html`<p class="notice warn">${n}</p>`)}
    ${list.length === 0 ? html`<${Empty} title="The answer is empty"><span>No series matches in this range. Check names and labels below.</span></${Empty}>` : mode === "table" ? html`<${Values} list=${list} unit=${unit} />` : html`<${Lines} list=${list} span=${span} unit=${unit} />`}
    <p class="small muted num">${few(list.length, "series", "series")}${mode !== "table" && list.length > drawn ? `, ${drawn} with the highest values drawn` : ""} · ${Math.round(d.took)} ms${mode === "table" ? "" : " · a value each " + length(span.step)}</p></section>`;
}

function Lines({ list, span, unit }) {
  const series = useMemo(() => {
    const top = list.map((s) => ({ s, most: Math.max(...s.values.map(([, v]) => Number(v)).filter(Number.isFinite), -Infinity) })).sort((a, b) => b.most - a.most).slice(0, drawn).map((x) => x.s);
    const name = namer(top), seen = {};
    return top.map((s) => { let n = name(s); seen[n] = (seen[n] || 0) + 1; if (seen[n] > 1) n += " (" + seen[n] + ")"; return { name: n, values: s.values, title: JSON.stringify(s.metric) }; });
  }, [list]);
  return html`<${Chart} series=${series} span=${span} unit=${unit} height=${360} legend="always" label="answer" />`;
}

function Values({ list, unit }) {
  const labels = [...new Set(list.flatMap((s) => Object.keys(s.metric)))].sort((a, b) => (a === "__name__" ? -1 : b === "__name__" ? 1 : a < b ? -1 : 1));
  const rows = useMemo(() => list.map((s, i) => ({ i, ...s })), [list]);
  const value = (s) => (s.value ? Number(s.value[1]) : null);
  const columns = [...labels.map((l) => ({ key: l, title: l === "__name__" ? "metric" : l, class: "name", value: (s) => s.metric[l] || null, cell: (s) => s.metric[l] || html`<span class="absent">–</span>` })),
    { key: "value", title: "Value", num: true, first: true, value, cell: (s) => (s.value ? html`<span title=${s.value[1]}>${text(value(s), unit)}</span>` : few((s.values || []).length, "sample")) }];
  return html`<${Table} columns=${columns} rows=${rows} id=${(s) => s.i} name="rows" label="answer" />`;
}

// Names lists what can be asked about.
function Names({ insert }) {
  const data = useData(async (signal) => Object.entries((await get("/api/v1/metadata", {}, signal)).data).map(([name, [m]]) => ({ name, ...m })).sort((a, b) => (a.name < b.name ? -1 : 1)), []);
  const [q, set] = useState("");
  return html`<${Card} title="Metrics" width="w6" aside=${html`<input type="search" placeholder="Find" aria-label="find a metric" value=${q} onInput=${(e) => set(e.target.value)} />`}><${Shown} of=${data} lines=${8}>${(list) => html`<ul class="metrics" tabindex="0">${list.filter((m) => !q || (m.name + m.help).toLowerCase().includes(q.toLowerCase())).map((m) => html`<li><button type="button" class="plain mono" onClick=${() => insert(m.name)}>${m.name}</button><span class="muted small">${m.help}${m.type === "counter" ? " · counter" : ""}</span></li>`)}</ul>`}</${Shown}></${Card}>`;
}

export function Query() {
  const { query } = useHere();
  const span = useSpan(query), expr = query.expr || "", mode = query.mode === "table" ? "table" : "chart";
  const field = useRef();
  const [again, run] = useState(0);
  const submit = (e) => { if (e) e.preventDefault(); const v = field.current.value.trim(); if (v === expr) run(again + 1); else put({ expr: v }); };
  const ask = (q) => { field.current.value = q; put({ expr: q }); };
  const insert = (name) => { const f = field.current; f.setRangeText(name, f.selectionStart, f.selectionEnd, "end"); f.focus(); };
  useEffect(() => { if (field.current.value.trim() !== expr) field.current.value = expr; }, [expr]);
  const press = (e) => { if (e.key === "Enter" && (e.ctrlKey || e.metaKey || !e.shiftKey)) submit(e); };
  return html`<form class="card ask" onSubmit=${submit}><label class="hidden" for="expr">PromQL</label><textarea id="expr" data-search ref=${field} rows="3" class="mono" spellcheck="false" autocomplete="off" placeholder="PromQL, for example: sum by (node) (mete_node_power_watts)" onKeyDown=${press}>${expr}</textarea>
      <div class="bar"><button class="primary">Run</button><${Segments} label="show as" options=${[["chart", "chart"], ["table", "table", "the values at the end of the range"]]} value=${mode} choose=${(v) => put({ mode: v === "chart" ? "" : v })} /><span class="end small muted"><kbd>Enter</kbd> runs, <kbd>Shift</kbd> <kbd>Enter</kbd> begins a line</span></div></form>
    ${expr ? html`<${Result} key=${again} query=${expr} span=${span} mode=${mode} />` : null}
    <div class="grid"><${Card} title="Examples" width="w6"><ul class="metrics">${examples.map(([name, q]) => html`<li><button type="button" class="plain" onClick=${() => ask(q)}>${name}</button><code class="muted small">${q}</code></li>`)}</ul>
        ${past().length > 0 && html`<h2 class="second">Asked before</h2><ul class="metrics">${past().map((q) => html`<li><button type="button" class="plain mono" onClick=${() => ask(q)}>${q}</button></li>`)}</ul>`}</${Card}>
      <${Names} insert=${insert} /></div>`;
}

// Job: the use of one job over time, by node and workload, with the quality of each figure.
import { html, useMemo } from "../../vendor/preact.mjs";
import { get, save } from "../api.js";
import { before, isNow, ledger, steps, useSpan } from "../span.js";
import { Card, Stat, Shown, Empty, Facts, Figure, Quality, Kind, Segments, useData, useHere, useNarrow } from "../ui.js";
import { JobCharts, useJobCharts } from "../jobcharts.js";
import { Classes, isClassFigure, isClassified } from "../classes.js";
import { percentOf, isMeasured } from "../changes.js";
import { Table } from "../table.js";
import { lost } from "../parts.js";
import { sending } from "../checks.js";
import { dataOf, says, stateOf } from "../states.js";
import { Runs, exitOf, useRuns } from "../runs.js";
import { running, together, jobColumns, jobFields, reserved, reservedColumns, reservedFields, Limited, Sums } from "../amounts.js";
import { grouped, text, few, when, exactly, at, fieldUnit, qualities, known, worst, shellWord, serverFlag } from "../fmt.js";
import { nodeAt, go, put } from "../route.js";

const most = 301; // workloads that are listed: one more than have marks

// measures are the figures of a job that runs: volumes have none of them.
const measures = ["cpu_seconds", "memory_byte_seconds", "energy_joules", "disk_read_bytes", "disk_written_bytes", "network_rx_bytes", "network_tx_bytes"];

// onlyStorage reports whether a job only holds disk space, as volumes do, which belong to no node.
export const onlyStorage = (sum) => known(sum.storage_reserved_byte_seconds) && !measures.some((f) => known(sum[f]));

// Parts breaks the use of a job down by node, workload or container. space says that it is [onlyStorage].
function Parts({ by, where, span, space }) {
  const dims = { node: "node", workload: space ? "workload,namespace,cluster,kind" : "workload,pod,container,namespace,user,node,cluster,kind", container: "namespace,pod,container,user" }[by];
  const data = useData((signal) => get("/v1/usage", { by: dims, where, limit: 1000, fields: jobFields + "," + reservedFields, ...ledger(span) }, signal), [by, where.join(), steps(span)]);
  // Pod and container tell which is which of workloads with one name, which is not said of each then. Whose they are stands
  // below the name, where it differs.
  const rows = data.data ? data.data.groups : [], differ = (d) => rows.some((r) => r[d] !== rows[0][d]), one = differ("pod") && !differ("workload");
  const said = { node: ["node"], workload: space ? [] : ["node"], container: ["namespace", "pod", "container"] }[by];
  const whose = ["namespace", "user", "cluster"].filter((d) => dims.split(",").includes(d) && !said.includes(d) && differ(d)), ofEach = (r) => whose.map((d) => r[d]).filter(Boolean).join(" · ");
  const keys = dims.split(",").filter((d) => d !== "kind" && !whose.includes(d) && (said.includes(d) || (d === by && !one) || differ(d)));
  const cell = (d) => (r) => (d === "node" && r.node ? html`<a href=${nodeAt(r.node)}>${r.node}</a>` : r[d] ? html`<span title=${r[d]}>${r[d]}</span>` : html`<span class="absent">–</span>`);
  const columns = [...keys.map((d, i) => ({ key: d, title: d[0].toUpperCase() + d.slice(1), class: "name", value: (r) => r[d] || null, cell: i > 0 || whose.length === 0 ? cell(d) : (r) => html`<span class="two">${cell(d)(r)}<small title=${whose.join(", ")}>${ofEach(r)}</small></span>` })), ...(space ? [] : jobColumns(rows, data.data && data.data.total)), ...reservedColumns(rows, data.data && data.data.total)];
  return html`<${Shown} of=${data} lines=${4}>${() => html`<${Table} columns=${columns} rows=${rows} id=${(r) => [...keys, ...whose].map((k) => r[k]).join("\u0000")} name="partsort" label=${"parts by " + by} foot=${html`<${Sums} columns=${columns} names=${keys.length} used=${data.data} what="part" />`} empty=${html`<${Empty} title="No data in this range" />`} />`}</${Shown}>`;
}

const words = (key) => (/^(cpu|memory|pids)_peak/.test(key) ? { c: "CPU", m: "Memory", p: "Tasks" }[key[0]] + ", largest peak of a workload" : key.replace(/_(byte_seconds|bytes|joules|seconds|watts)$/, "").replaceAll("_", " ").replace(/^(\w)/, (c) => c.toUpperCase()).replace(/^Cpu/, "CPU").replace(/^Pids/, "Tasks").replace(/^Oom/, "OOM").replace(/^Gpu/, "Accelerators"));

// baseUnit is the unit of the exact value of a figure.
const baseUnit = (key) => Object.entries({ _byte_seconds: "B s", _bytes: "B", _joules: "J", _watts: "W", _cores: "cores", pids_seconds: "task s", _seconds: "s" }).find(([end]) => key.endsWith(end))?.[1] || "";

// decimal is a number without an exponent.
const decimal = (v) => (/e-/.test(String(v)) ? Number(v).toFixed(9).replace(/0+$/, "") : String(v));

// average is one of the ledger's averages over the time that the job ran, as in the tiles: the ledger divides by all
// of the time that was measured, of which a job may run for a small part.
export function average(sum, key, over) {
  return key === "energy_average_watts" ? running(sum, "energy_joules") : together(sum, key.replace("_average_bytes", "_byte_seconds"), over);
}

// Raw lists every figure of the ledger that is known.
function Raw({ sum, over, one, space }) {
  const narrow = useNarrow(); // a phone has no room for the names of qualities
  const isAverage = (k) => /_average_(bytes|watts)$/.test(k), exact = (r) => (isAverage(r.key) ? Number(r.v.toPrecision(9)) : r.v);
  const said = (k) => (k === "energy_average_watts" ? one ? "Power, average while it ran" : "Power, average per running workload" : isAverage(k) ? words(k).replace(/ average.*/, ", average while it ran") : words(k));
  const all = Object.keys(sum.quality).map((k) => ({ key: k, v: isAverage(k) && known(sum[k]) ? average(sum, k, over) : sum[k], q: sum.quality[k] })), rows = all.filter((r) => known(r.v) && (!isClassFigure(r.key) || isClassified(sum))), absent = all.filter((r) => !known(r.v) && !isClassFigure(r.key) && !/idle|_average_/.test(r.key) && (known(sum.cpu_reserved_seconds) || !/_(reserved|limit|limited_time|unused)_|^reserved_/.test(r.key)));
  return html`<div class="table raw" tabindex="0" role="region" aria-label="raw figures"><table><thead><tr><th scope="col">Figure</th><th scope="col" class="num">Amount</th><th scope="col" class="num">Exact value</th><th scope="col">${narrow ? html`<span class="hidden">Quality</span>` : "Quality"}</th></tr></thead><tbody>
    ${rows.map((r) => html`<tr><td title=${r.key}>${said(r.key)}</td><td class="num">${text(r.v, fieldUnit(r.key))}</td><td class="num mono">${decimal(exact(r))}<span class="unit">${baseUnit(r.key)}</span></td><td><span title=${qualities[r.q]}><${Quality} of=${r.q} all=${true} />${narrow ? "" : " " + r.q}</span></td></tr>`)}</tbody></table></div>
    ${absent.length > 0 && !space && html`<p class="small muted reading">Absent, which is not zero: ${absent.map((r, i) => html`${i > 0 && ", "}<span title=${r.key}>${words(r.key).replace(/, largest (peak).*/, " $1").replace(/^[A-Z](?=[a-z])/, (c) => c.toLowerCase())}</span>`)}.</p>`}`;
}

// Unused shows how much storage the volumes of a job reserve and do not use. Volumes whose use is not known do not count.
function Unused({ sum, over, where, span }) {
  const used = "storage_byte_seconds", capacity = "storage_reserved_byte_seconds", data = useData((signal) => get("/v1/usage", { by: "workload,cluster", where, limit: 1000, fields: used + "," + capacity, ...ledger(span) }, signal), [where.join(), steps(span)]);
  const all = data.data ? data.data.groups : [], list = all.filter((r) => known(r[used])), unused = list.reduce((bytes, r) => bytes + Math.max(0, Number(r[capacity]) - Number(r[used])), 0);
  return list.length > 0 && html`<${Figure} v=${reserved({ ...sum, unused }, "unused", over)} unit="bytes" quality=${sum.quality[used]} />${(list.length < all.length || data.data.rest_groups > 0) && html`<span class="off" title="of the others it is not known what is used">of ${few(list.length, "volume")}</span>`}`;
}

// Reserved compares what a job used with what its pods and volumes reserve and are limited to; it is nothing where nothing is known
// to be reserved.
function Reserved({ sum, over, where, span }) {
  const pods = known(sum.cpu_reserved_seconds), used = "storage_byte_seconds", capacity = "storage_reserved_byte_seconds";
  if (!pods && !(Number(sum[capacity]) > 0)) return null;
  const figure = (key, unit, value = reserved(sum, key, over)) => html`<${Figure} v=${value} unit=${unit} quality=${sum.quality[key]} />`;
  const share = (unused, of) => Number(sum[of]) > 0 && known(sum[unused]) && html`<span class="off" title="of what is reserved">${text(Number(sum[unused]) / Number(sum[of]), "percent")}</span>`;
  const row = (title, unit, of, end) => html`<tr><th scope="row">${title}</th><td class="num">${figure(of + end, unit)}</td><td class="num">${figure(of + "_reserved" + end, unit)}</td><td class="num"><${Limited} r=${sum} of=${of}>${figure(of + "_limit" + end, unit)}</${Limited}></td><td class="num">${figure(of + "_unused" + end, unit)}${share(of + "_unused" + end, of + "_reserved" + end)}</td></tr>`;
  const only = (title, unit, key, used, unused) => (Number(sum[key]) > 0 || used && known(sum[used])) && html`<tr><th scope="row">${title}</th><td class="num">${used && figure(used, unit)}</td><td class="num">${figure(key, unit)}</td><td></td><td class="num">${unused}</td></tr>`;
  const unused = !pods && known(sum[used]) && html`<${Unused} sum=${sum} over=${over} where=${where} span=${span} />`;
  return html`<${Card} title="Used and reserved" note=${onlyStorage(sum) ? "average while it existed" : "average while it ran"} flush><div class="table short" tabindex="0" role="region" aria-label="used and reserved"><table><thead><tr><th scope="col"><span class="hidden">What</span></th><th scope="col" class="num">Used</th><th scope="col" class="num">Reserved</th><th scope="col" class="num" title="of containers that had one">Limit</th><th scope="col" class="num" title="reserved and not used: what one pod uses beyond what it reserves is not deducted from what another one does not use">Unused</th></tr></thead><tbody>
    ${pods && row("CPU", "cores", "cpu", "_seconds")}${pods && row("Memory", "bytes", "memory", "_byte_seconds")}${only("Storage", "bytes", capacity, used, unused)}${only("Accelerators", "count", "gpu_reserved_seconds")}</tbody></table></div></${Card}>`;
}

// command is the command that shows the same use in a terminal.
export function command(job, span, origin, by = "node") {
  const iso = (s) => new Date(s * 1000).toISOString().replace(".000", "");
  return `mete usage --where ${shellWord("job=" + job)} ${span.name ? "--from -" + span.name : `--from ${iso(span.start ?? span.from)} --to ${iso(span.to)}`} --by ${by}${serverFlag(origin)}`;
}

// listAll shows the workloads of the job.
function listAll() {
  put({ parts: "workload" }, true);
  document.querySelector('[aria-label="Parts"]').scrollIntoView({ block: "start" });
}

// every are the values that the workloads of a job have of something: it may be of several users, projects or clusters.
function every(list, key) {
  const found = [...new Set(list.map((w) => w[key]).filter(Boolean))].sort(), text = found.length > 4 ? `${found.slice(0, 3).join(", ")} and ${found.length - 3} more` : found.join(", ");
  return text;
}

// widened reports whether an answer is about more time than a range with two ends, of which the ledger sums whole minutes.
export const widened = (used, span) => !span.name && (Date.parse(used.from) < Math.floor(span.start ?? span.from) * 1000 || Date.parse(used.to) > Math.ceil(span.to) * 1000);

// jobState is the state of a job, and since when it is not known: list are its workloads, sum is what it used, runs are its
// runs, and nodes those that send. Of a range that is over, it is that of its workloads.
export function jobState({ list, sum, runs, nodes, span }) {
  const kinds = [...new Set(list.map((w) => w.kind))], open = list.some((w) => !w.ended_at), last = sum && sum.last_at, data = dataOf(nodes, span.to);
  const state = open && last && isNow(span) ? stateOf({ kind: kinds.length === 1 ? kinds[0] : "", last_at: last }, data, runs) : "";
  // The ledger knows of use by minutes, and of the data of a node up to its last window.
  const ends = data.late.map((t) => t * 1000).filter((t) => t <= Date.parse(last));
  return state === "unknown" ? { state, since: ends.length > 0 ? Math.max(...ends) : Date.parse(last) } : { state: open ? "running" : "ended", since: null };
}

const stateTones = { running: "good", unknown: "warn", ended: "" }, stateText = ({ state, since }) => (since ? `${state} since ${at(since)}` : state);

// Line says in one line whose the job is, where it runs, and whether it does.
function Line({ list, of, whose, nodes, used, span, space }) {
  const all = list.length < most, { state } = of, ended = list.map((w) => w.ended_at || "").sort().pop(), user = every(whose, "user"), project = every(whose, "project");
  return html`<div class="bar facts-line">${[...new Set(list.map((w) => w.kind))].map((k) => html`<${Kind} of=${k} />`)}${(state !== "ended" || all) && list.length > 0 && !(space && state === "running") && html`<span class=${"tag " + stateTones[state]} title=${state === "ended" ? exactly(ended) : says[state]}>${state === "ended" ? "ended " + when(ended) : stateText(of)}</span>`}
    ${user && html`<span class="muted">user ${user}</span>`}${project && html`<span class="muted">project ${project}</span>`}${known(nodes) && html`<span class="muted">${few(nodes, "node")}</span>`}<span class="muted">${all ? few(list.length, "workload") : `more than ${most - 1} workloads`}</span>${used && widened(used, span) && html`<span class="muted" title="the ledger sums whole minutes, hours or days">figures from ${when(used.from)} to ${when(used.to)}</span>`}</div>`;
}

// About lists what is known about the job besides its use. Of a job with more workloads than are listed
// it leaves out what only the others may tell.
function About({ list, of: now, whose, runs, nodes: ran, job, span, columns, space }) {
  const one = list[0], all = list.length < most;
  // Labels are of workloads: those of the job are what all have alike.
  const labels = Object.entries(one && all ? one.labels : {}).filter(([k, v]) => list.every((w) => w.labels[k] === v));
  const kinds = [...new Set(list.map((w) => w.kind))], nodes = space ? [] : [...new Set(list.map((w) => w.node))];
  const started = list.map((w) => w.started_at || w.first_at).filter(Boolean).sort()[0], ended = list.every((w) => w.ended_at) ? list.map((w) => w.ended_at).sort().pop() : null;
  // A run knows why it ended.
  const exits = [...new Set(list.filter((w) => known(w.exit_code)).map((w) => exitOf(runs.find((r) => r.run === w.workload) || w)))];
  return html`<${Facts} columns=${columns} of=${[["Kind", kinds.join(", ")], ["User", every(whose, "user")], ["Project", every(whose, "project")], ["Cluster", every(whose, "cluster")],
    ["Nodes", all && nodes.length > 0 && nodes.length <= 6 ? nodes.map((n, i) => html`${i > 0 && ", "}<a href=${nodeAt(n)}>${n}</a>`) : known(ran) && !space ? few(ran, "node") : null],
    ["Workloads", list.length > 1 ? (all ? grouped(list.length) : html`more than ${list.length - 1}: <button type="button" class="plain" onClick=${listAll}>list them under Parts</button>, or choose a shorter range`) : null],
    ["First use", all && started ? html`<span title=${exactly(started)}>${when(started)}</span>` : null], ["Ended", all && ended ? html`<span title=${exactly(ended)}>${when(ended)}</span>` : null], ["State", now.state !== "ended" && !space && list.length && (all || now.state === "unknown") ? stateText(now) : null],
    ["Exit", all && exits.length ? exits.join(", ") : null], ["Path", list.length === 1 && one.path ? html`<code>${one.path}</code>` : null],
    ...labels.slice(0, 12).map(([k, v]) => [html`<code>${k}</code>`, v]),
    ["Command", html`<code>${command(job, span, undefined, space ? "workload" : "node")}</code>`]]} />`;
}

// Flow is a tile of two amounts, of which one may be absent.
function Flow({ title, sum, of, change }) {
  const has = of.filter(([, f]) => known(sum[f]));
  return html`<${Stat} title=${title} v=${has.length ? has.reduce((a, [, f]) => a + Number(sum[f]), 0) : null} unit="bytes" quality=${worst(has.map(([, f]) => sum.quality[f]))} below=${has.length === 0 ? "not available" : html`${has.map(([name, f]) => html`<span>${name} ${text(sum[f], "bytes")}</span>`)}${change(...has.map(([, f]) => f))}`} />`;
}

// changeOf is the change of the sum of figures against an earlier one, as text; "" where one of them is
// absent or the earlier is 0.
export function changeOf(now, past, keys) {
  const [a, b] = [now, past].map((s) => (s && keys.every((k) => known(s[k])) ? keys.reduce((sum, k) => sum + Number(s[k]), 0) : null));
  if (a === null || b === null || b === 0) return "";
  return percentOf(a, b);
}

// comparable is the sum of an answer about one job; null where a tenth of its range or more was not
// measured: then the change would be that of what is known.
const comparable = (a) => (isMeasured(a) && a.groups[0]) || null;

const Change = ({ now, past, keys }) => { const c = changeOf(now, past, keys); return c ? html`<span class="num change" title="against the previous period of equal length">${c}</span>` : html`<span class="absent" title="no comparison: the previous period has no or incomplete data">–</span>`; };

const none = [];

export function Job({ nodes }) {
  const { query } = useHere();
  const span = useSpan(query), job = query.job || "";
  const where = ["job=" + job, ...(query.node ? ["node=" + query.node] : [])];
  const split = query.split === "1", chosen = ["node", "workload", "container"].includes(query.parts) ? query.parts : "node";
  const used = useData((signal) => get("/v1/usage", { by: "job", where, ...ledger(span) }, signal), [where.join(), steps(span)]);
  const list = useData(async (signal) => (await get("/v1/workloads", { where, limit: most, ...ledger(span) }, signal)).workloads, [where.join(), steps(span)]);
  // Whose the workloads are that are not listed, the ledger says by its groups.
  const crowd = Boolean(list.data && list.data.length >= most);
  const groups = useData(async (signal) => (crowd ? (await get("/v1/usage", { by: "user,project,cluster", where, fields: "cpu_seconds", limit: 1000, ...ledger(span) }, signal)).groups : null), [where.join(), steps(span), crowd]);
  const whose = crowd ? groups.data || [] : list.data || [];
  const runs = useRuns({ where, span });
  const several = new Set((list.data || []).filter((w) => w.kind !== "volume").map((w) => w.node)).size > 1;
  // The nodes of the job; of more workloads than are listed, all.
  const own = useMemo(() => { const of = new Set((list.data || []).map((w) => w.node)); return sending(nodes).filter((n) => (query.node ? n.name === query.node : crowd || of.has(n.name))); }, [nodes, list.data, query.node, crowd]);
  const lacks = useMemo(() => lost(own, [span.from, span.to]), [own, span]);
  const compare = query.compare === "1", past = useData(async (signal) => (compare ? comparable(await get("/v1/usage", { by: "job", where, ...ledger(before(span)) }, signal)) : null), [where.join(), compare, steps(span)]);
  const [drawn, previous] = useJobCharts({ where, span, split: split && several, compare });
  const change = (...keys) => compare && html`<${Change} now=${sum} past=${past.data} keys=${keys} />`;
  if (!job) return html`<section class="card"><${Empty} title="No job selected"><a href="/jobs">All jobs</a></${Empty}></section>`;
  const sum = used.data && used.data.groups[0];
  if (used.data && !sum) return html`<section class="card"><${Empty} title=${`No data for "${job}" in this range`}><span>Check the spelling or widen the range.</span><div class="bar"><button onClick=${() => put({ range: "7d", from: "", to: "" })}>Show 7 days</button><a class="button" href="/jobs">All jobs</a></div></${Empty}></section>`;
  const space = Boolean(sum) && onlyStorage(sum), by = space ? "workload" : chosen;
  const q = sum ? sum.quality : {}, ran = runs.data ? runs.data.runs : none, now = jobState({ list: list.data || none, sum, runs: ran, nodes: own, span });
  const cores = sum && running(sum, "cpu_seconds"), bytes = sum && running(sum, "memory_byte_seconds"), watts = sum && running(sum, "energy_joules");
  const whole = sum && together(sum, "memory_byte_seconds", used.data.averages_over_seconds), parallel = whole > bytes * 1.005; // several ran at a time
  const one = list.data && list.data.length === 1, whileRunning = one ? "while it ran" : "per running workload", peak = sum && Number(sum.memory_peak_bytes) >= whole; // else it is that of a small part
  return html`${list.data ? html`<${Line} list=${list.data} of=${now} space=${space} whose=${whose} nodes=${sum && !space ? sum.nodes : null} used=${used.data} span=${span} />` : html`<div class="facts-line"></div>`}<${Shown} of=${used} height=${108}>${() => html`${!space && html`<section class="card stats five" aria-label="in this range">
      <${Stat} title="CPU" v=${sum.cpu_seconds} unit="seconds" quality=${q.cpu_seconds} below=${html`${known(cores) && html`<span>${text(cores, "cores")} ${whileRunning}</span>`}${change("cpu_seconds")}`} />
      <${Stat} title="Memory" v=${whole} unit="bytes" quality=${q.memory_byte_seconds} below=${html`${known(whole) ? html`<span>average while it ran</span>` : ""}${parallel && html`<span>${text(bytes, "bytes")} ${whileRunning}</span>`}${known(sum.memory_peak_bytes) && peak && html`<span>${one ? "peak" : "largest peak of a workload"} ${text(sum.memory_peak_bytes, "bytes")}</span>`}`} />
      <${Stat} title="Energy" v=${sum.energy_joules} unit="joules" quality=${q.energy_joules} off=${sum.energy_error_joules === null ? null : sum.energy_error_joules} below=${html`${known(watts) && html`<span>${text(watts, "watts")} ${whileRunning}</span>`}${change("energy_joules")}`} />
      <${Flow} title="Disk" sum=${sum} of=${[["read", "disk_read_bytes"], ["written", "disk_written_bytes"]]} change=${change} />
      <${Flow} title="Network" sum=${sum} of=${[["in", "network_rx_bytes"], ["out", "network_tx_bytes"]]} change=${change} /></section>`}<${Reserved} sum=${sum} over=${used.data.averages_over_seconds} where=${where} span=${span} />`}</${Shown}>
    <${Runs} data=${runs} where=${where} span=${span} />
    <div class="bar">${several && html`<${Segments} label="lines" options=${[["", "by type"], ["1", "by node"]]} value=${split ? "1" : ""} choose=${(v) => put({ split: v }, true)} />`}
      <label class="check"><input type="checkbox" checked=${compare} onChange=${(e) => put({ compare: e.target.checked ? "1" : "" }, true)} /> compare with the previous period</label></div>
    <div class="grid"><${JobCharts} data=${drawn} previous=${previous} split=${split && several} span=${span} quality=${q} runs=${ran} list=${list.data} lacks=${lacks} space=${space} pick=${(p) => go(nodeAt(p.node))}
        last=${(width) => html`<${Card} title="About" width=${width}><${Shown} of=${list} lines=${6}>${(l) => html`<${About} list=${l} of=${now} whose=${whose} runs=${ran} nodes=${sum && sum.nodes} job=${job} span=${span} space=${space} columns=${{ w12: 3, w8: 2 }[width]} />`}</${Shown}></${Card}>`} />
      <${Classes} sum=${sum} width="w12" /><${Card} title="Parts" flush width="w12" aside=${!space && html`<${Segments} label="parts by" options=${[["node", "by node"], ["workload", "by workload"], ["container", "by container"]]} value=${by} choose=${(v) => put({ parts: v === "node" ? "" : v }, true)} />`}><${Parts} by=${by} where=${where} span=${span} space=${space} /></${Card}>
      <${Card} title="All figures" note="in the range, from the ledger" flush width="w12" aside=${html`<button type="button" onClick=${() => save("/v1/usage", { by: "workload,node", where, ...ledger(span) }, "job.json")}>Download JSON</button>`}><${Shown} of=${used} lines=${8}>${() => html`<${Raw} sum=${sum} over=${used.data.averages_over_seconds} one=${one} space=${space} />`}</${Shown}></${Card}></div>`;
}

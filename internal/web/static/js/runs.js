// Runs: each execution of a job, what it used, and how it compares with those before it.
import { html, useMemo } from "../vendor/preact.mjs";
import { get, save } from "./api.js";
import { ledger, steps, zoom } from "./span.js";
import { Card, Shown, Empty, Quality, Segments, useData, useHere, useNarrow } from "./ui.js";
import { Table } from "./table.js";
import { text, aligned, few, time, exactly, qualities, known, hours } from "./fmt.js";
import { nodeAt, put } from "./route.js";

export const most = 1000; // runs on the page

// Runs of one minute differ in their seconds.
const second = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", ...hours });
const when = (ms) => second.format(new Date(ms));

const number = (v) => (known(v) ? Number(v) : null);
const began = (r) => Date.parse(r.started_at || r.first_at) / 1000;
const ended = (r) => Date.parse(r.ended_at || r.last_at || r.started_at) / 1000;

// figures are those of the table and of a comparison. The first ones can be drawn as a trend.
const figures = [
  { key: "length_seconds", title: "Length", unit: "seconds", trend: true }, { key: "cpu_seconds", title: "CPU", unit: "seconds", trend: true },
  { key: "memory_peak_bytes", title: "Peak", unit: "bytes", help: "peak memory", trend: true }, { key: "energy_joules", title: "Energy", unit: "joules", trend: true },
  { key: "cpu_average_cores", title: "Cores", unit: "cores", help: "CPU time divided by the length" }, { key: "memory_average_bytes", title: "Memory", unit: "bytes" },
  { key: "disk_read_bytes", title: "Read", unit: "bytes" }, { key: "disk_written_bytes", title: "Written", unit: "bytes" },
  { key: "network_rx_bytes", title: "Received", unit: "bytes" }, { key: "network_tx_bytes", title: "Sent", unit: "bytes" },
  { key: "processes", title: "Processes", unit: "count", help: "processes started" }, { key: "energy_average_watts", title: "Power", unit: "watts" },
];
const figure = (key) => figures.find((f) => f.key === key);
export const figureName = (key) => (figure(key) || {}).title || key;

const signals = { 1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 6: "SIGABRT", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 13: "SIGPIPE", 15: "SIGTERM" };

// exitOf says how a run ended, its cause first.
export function exitOf(r) {
  if (r.state === "running") return "running";
  if (!known(r.exit_code)) return "unknown";
  if (r.exit_code !== 0 && number(r.oom_kills) > 0) return `out of memory (${r.exit_code})`;
  return r.exit_code > 128 && signals[r.exit_code - 128] ? `${signals[r.exit_code - 128]} (${r.exit_code})` : String(r.exit_code);
}
const place = (r) => (r.nodes > 1 ? r.nodes + " nodes" : r.node);
const failed = (r) => known(r.exit_code) && r.exit_code !== 0;
export const isFailed = failed;

// many is from how many runs on their begins and ends are no lines: they would hide the chart.
const many = 12;

// runMarks are runs as marks of charts: a strip while each ran, lines at its begin and its end where
// they are few, red where it failed, which is drawn over the others.
export function runMarks(runs, now = Date.now() / 1000) {
  return runs.filter((r) => r.started_at).map((r) => {
    const from = began(r), running = r.state === "running", to = running ? now : ended(r);
    return { from, to, strip: true, ends: runs.length <= many ? (running ? "from" : "both") : failed(r) ? "to" : "", tone: failed(r) ? "bad" : "accent", key: failed(r) ? "failed run" : "run",
      title: `run ${r.kind === "kube-job" ? r.name : r.job}, ${when(from * 1000)}${running ? "" : " – " + (to - from < 43200 ? time : when)(to * 1000)}, ${running ? "running" : "exit " + exitOf(r)}, ${place(r)}` };
  }).sort((a, b) => (a.tone === "bad" ? 1 : 0) - (b.tone === "bad" ? 1 : 0));
}

// useRuns asks for the runs of a job in a range: { data: { runs, next_cursor } }.
export const useRuns = ({ where, span }) => useData((signal) => get("/v1/runs", { where, limit: most, ...ledger(span) }, signal), [where.join(), steps(span)]);

// look shows the time of a run, with a little around it.
function look(r) {
  const from = began(r), to = Math.max(ended(r), from), around = Math.max(30, (to - from) / 10);
  zoom(from - around, to + around);
}

const scaled = (v, unit, like, of) => aligned(v, unit, like, of).filter(Boolean).join(" ");

// Value is a figure of a run as a number and as text.
function Value({ r, f, like, bar }) {
  const v = number(r[f.key]), off = f.key === "energy_joules" ? number(r.energy_error_joules) : null;
  if (v === null) return html`<span class="absent" title=${qualities.absent}>–</span>`;
  return html`<data class="num" value=${v} data-figure=${f.key}>${scaled(v, f.unit, like)}</data>${off !== null && html` <span class="off" title="possible error, either way">± ${scaled(off, f.unit, like, v)}</span>`}<${Quality} of=${r.quality[f.key]} />${bar > 0 && html`<span class="runbar" aria-hidden="true"><i style=${{ width: Math.max(1, (100 * v) / bar) + "%" }}></i></span>`}`;
}

export const percent = (c) => (c === null ? "" : (c >= 0 ? "+" : "") + (Math.abs(c) < 0.0995 ? (c * 100).toFixed(1) : (c * 100).toFixed(0)) + " %");

function Marks({ r }) {
  const marked = r.comparisons.filter((c) => c.marked);
  return html`${marked.map((c) => html`<span class="tag warn" title=${c.text}>${(figure(c.figure) || {}).title || c.figure} ${c.change === null ? "from 0" : percent(c.change)}</span> `)}`;
}

// Trend draws one figure of the runs, the oldest first.
function Trend({ runs, f }) {
  const list = runs.filter((r) => number(r[f.key]) !== null).sort((a, b) => began(a) - began(b)).slice(-200);
  if (list.length < 2) return null;
  const w = 600, h = 90, top = Math.max(...list.map((r) => number(r[f.key])), 1e-12), each = w / list.length;
  const fine = list.filter((r) => r.state === "ended" && r.exit_code === 0).slice(-20).map((r) => number(r[f.key])).sort((a, b) => a - b);
  const median = fine.length ? (fine[Math.floor((fine.length - 1) / 2)] + fine[Math.floor(fine.length / 2)]) / 2 : null;
  const y = (v) => h - (v / top) * (h - 4);
  const tone = (r) => (failed(r) ? "var(--bad)" : r.comparisons.some((c) => c.marked && c.figure === f.key) ? "var(--warn)" : "var(--accent)");
  return html`<figure class="trend"><svg viewBox="0 0 ${w} ${h}" preserveAspectRatio="none" role="img" aria-label=${`${f.title} of the latest ${list.length} runs, up to ${text(top, f.unit)}`}>
      ${list.map((r, i) => html`<rect key=${r.run} x=${i * each} width=${Math.max(each * 0.8, 0.5)} y=${y(number(r[f.key]))} height=${h - y(number(r[f.key]))} fill=${tone(r)} onClick=${() => look(r)}><title>${when(began(r) * 1000)}: ${text(r[f.key], f.unit)}, exit ${exitOf(r)}</title></rect>`)}
      ${median !== null && html`<line x1="0" x2=${w} y1=${y(median)} y2=${y(median)} stroke="var(--muted)" stroke-dasharray="4 3" vector-effect="non-scaling-stroke" />`}</svg>
    <figcaption class="muted">${list.length < runs.length ? "the latest " : ""}${few(list.length, "run")}, the oldest first, up to ${text(top, f.unit)}${list.some(failed) && "; red: failed"}${median !== null && html`; dashed: median of the last ${few(fine.length, "successful run")}, ${text(median, f.unit)}`}</figcaption></figure>`;
}

// Compared shows two runs side by side.
function Compared({ pair }) {
  const [a, b] = pair;
  return html`<div class="table pair" tabindex="0" role="region" aria-label="two runs"><table><thead><tr><th scope="col">Figure</th>${pair.map((r) => html`<th scope="col" class="num">${when(began(r) * 1000)}</th>`)}<th scope="col" class="num">Difference</th></tr></thead><tbody>
    <tr><td>Exit</td>${pair.map((r) => html`<td class="num">${exitOf(r)}</td>`)}<td></td></tr>
    ${figures.map((f) => {
      const x = number(a[f.key]), y = number(b[f.key]);
      return html`<tr><td>${f.title}</td>${pair.map((r) => html`<td class="num"><${Value} r=${r} f=${f} like=${Math.max(x, y)} /></td>`)}<td class="num">${x !== null && y !== null && x !== 0 ? percent((y - x) / x) : ""}</td></tr>`;
    })}</tbody></table></div>`;
}

// noteOf says how many runs there are, and how many of them failed.
function noteOf(runs, more) {
  const bad = runs.filter(failed), oom = bad.filter((r) => number(r.oom_kills) > 0).length;
  return (more ? "the latest " + most : few(runs.length, "run")) + (bad.length ? `, ${bad.length} failed` + (oom ? (oom === bad.length ? " out of memory" : `, ${oom} of them out of memory`) : "") : "");
}

// Runs is the card of the runs, data of useRuns; nothing for a job without runs.
export function Runs({ data, where, span }) {
  const { query } = useHere(), narrow = useNarrow();
  const runs = data.data ? data.data.runs : [];
  const chosen = (query.runs || "").split("~").filter(Boolean), f = figure(query.trend) || figures[0];
  const largest = useMemo(() => Object.fromEntries(figures.map((g) => [g.key, Math.max(0, ...runs.map((r) => number(r[g.key]) || 0))])), [runs]);
  const choose = (id) => put({ runs: (chosen.includes(id) ? chosen.filter((c) => c !== id) : [...chosen, id].slice(-2)).join("~") }, true);
  const pair = chosen.map((id) => runs.find((r) => r.run === id)).filter(Boolean).sort((a, b) => began(a) - began(b));
  const column = (key, bar) => { const g = figure(key); return { key, title: g.title, help: g.help, num: true, value: (r) => number(r[key]), cell: (r) => html`<${Value} r=${r} f=${g} like=${largest[key]} bar=${bar && !narrow ? largest[key] : 0} />` }; };
  const marked = runs.some((r) => r.comparisons.some((c) => c.marked)), today = narrow && runs.every((r) => new Date(began(r) * 1000).toDateString() === new Date().toDateString());
  const all = [
    { key: "pick", title: "", cell: (r) => html`<input type="checkbox" value=${r.run} checked=${chosen.includes(r.run)} onChange=${() => choose(r.run)} aria-label=${"compare the run of " + when(began(r) * 1000)} />` },
    { key: "start", title: "Start", num: true, first: true, value: began, cell: (r) => html`<button type="button" class="quiet" title=${exactly(began(r) * 1000) + ": zoom to this run"} onClick=${() => look(r)}>${(today ? time : when)(began(r) * 1000)}</button>` },
    column("length_seconds", true),
    { key: "exit", title: "Exit", value: exitOf, cell: (r) => html`<span class=${failed(r) ? "failed" : ""}>${exitOf(r)}</span>` },
    column("cpu_seconds", true), column("cpu_average_cores"), column("memory_peak_bytes", true), column("disk_read_bytes"), column("disk_written_bytes"), column("energy_joules", true),
    ...(marked ? [{ key: "marks", title: "Marks", help: "change against the median of the latest successful runs before it, where it is unusual", value: (r) => r.comparisons.filter((c) => c.marked).length || null, cell: (r) => html`<${Marks} r=${r} />` }] : []),
    ...(runs.some((r) => r.kind === "kube-job") ? [{ key: "name", title: "Name", class: "name", value: (r) => r.name, cell: (r) => r.name }] : []),
    ...(runs.some((r) => r.nodes > 1 || r.node !== runs[0].node) ? [{ key: "node", title: "Node", class: "name", value: place, cell: (r) => (r.nodes > 1 ? place(r) : html`<a href=${nodeAt(r.node)}>${r.node}</a>`) }] : []),
  ];
  // What a run used stands on the screen of a phone.
  const first = ["pick", "start", "cpu_seconds", "energy_joules"], columns = narrow ? [...first.map((k) => all.find((c) => c.key === k)), ...all.filter((c) => !first.includes(c.key))] : all;
  if (data.data && runs.length === 0) return null;
  return html`<div class="grid"><${Card} title="Runs" flush width="w12" note=${runs.length ? noteOf(runs, data.data.next_cursor) : null}
    aside=${html`<${Segments} label="trend of" options=${figures.filter((g) => g.trend).map((g) => [g.key, g.title])} value=${f.key} choose=${(v) => put({ trend: v === figures[0].key ? "" : v }, true)} /><button type="button" onClick=${() => save("/v1/runs", { where, format: "csv", ...ledger(span) }, "runs.csv")}>Download CSV</button>`}>
    <${Shown} of=${data} lines=${6}>${() => html`<${Trend} runs=${runs} f=${f} />
      ${pair.length === 2 ? html`<${Compared} pair=${pair} />` : html`<p class="muted hint">${chosen.length === 1 ? "Choose one more run to compare." : "Choose two runs to compare them. Click a start time to zoom to the run."}</p>`}
      <${Table} columns=${columns} rows=${runs} id=${(r) => r.run} name="runsort" label="runs" tall=${runs.length > 12} empty=${html`<${Empty} title="No runs in this range" />`} />`}</${Shown}></${Card}></div>`;
}

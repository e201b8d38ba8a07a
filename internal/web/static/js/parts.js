// Pieces that several pages are made of: charts of machines, what sums to the
// whole, gaps.
import { html, useMemo } from "../vendor/preact.mjs";
import { Card, Shown, Empty, Bar, Figure, Quality, useData } from "./ui.js";
import { Chart } from "./chart.js";
import { resources, stacks, stack, capacity, errors, traffic, flows, averagedOver } from "./series.js";
import { secondsOf, covered } from "./history.js";
import { before, isNow, ledger, zoom } from "./span.js";
import { get, isDown } from "./api.js";
import { isNothing } from "./checks.js";
import { known, text, shareOf, inconsistent, when, ago, at, few, exactly, grouped } from "./fmt.js";
import { nodeAt } from "./route.js";
import { Table } from "./table.js";

// NoData says that a chart has no values in its range, in which other charts have some.
function NoData({ what, begin }) {
  const young = begin && Date.now() / 1000 - begin < 90; // the first averages take as long
  return html`<${Empty} title=${"No " + what + " data in this range"}><span>${young ? "The first values appear within a minute and a half." : "No meter or counter here reports it."}</span></${Empty}>`;
}

// Enroll stands where there is no machine, and says how to add one.
export const Enroll = () => html`<${Empty} title="No machine has enrolled yet"><p>Create a token on the server, then start an agent on each machine:</p><pre>mete token create --role agent
mete-agent --server ${location.origin} --token-file FILE</pre></${Empty}>`;

// latest is the end of the latest data of nodes, in seconds; 0 where there is none.
export const latest = (nodes) => nodes.reduce((at, n) => Math.max(at, Date.parse(n.booked_through) / 1000 || 0), 0);

// late is how old the latest data of all nodes may be, in seconds: windows of a minute, and their way.
const late = 180;

// stopped is since when no node sends data, in seconds; 0 where one does.
// The clock of this machine may be off: the server knows which nodes send.
export function stopped(nodes, now = Date.now() / 1000) { const at = latest(nodes); return at > 0 && at < now - late && !nodes.some((n) => n.state === "live") ? at : 0; }

const check = (n) => (n === 1 ? "Check that mete-agent runs there, and the network between it and this server." : "Check the network between the nodes and this server, and that mete-agent runs there.");

// Stopped is a message above figures that end early, as no node sends data any more. While the server is
// down, that is not known.
export function Stopped({ nodes, span }) {
  const at = isNow(span) && !isDown() ? stopped(nodes) : 0;
  if (!at) return null;
  return html`<div class="notice bad" role="status" id="stopped"><div><b>No data since ${when(at * 1000)} (${ago(at * 1000)})</b>${nodes.length > 1 && ` from any of ${few(nodes.length, "node")}`}. <span>${check(nodes.length)}</span></div></div>`;
}

// Above begins the line below tiles of now. In a past range it says that they are not of it.
export const Above = ({ span }) => (span && !isNow(span) ? html`<b>Above: now, not in the chosen range:</b>` : "Above:");

// Blank stands in place of all charts of a range without any data. It leads to the latest data.
export function Blank({ nodes, span }) {
  const last = latest(nodes), at = isNow(span) ? stopped(nodes) : 0;
  return html`<section class="card w12" id="blank"><${Empty} title=${at ? "No data since " + when(at * 1000) : "No data in this range"}>
    ${at > 0 ? html`<span>The latest data of ${nodes.length === 1 ? nodes[0].name : few(nodes.length, "node")} came ${ago(at * 1000)}. ${check(nodes.length)}</span>`
    : html`<span>${last ? "The latest data is from " + when(last * 1000) + "." : "The first values appear about 20 s after the start of measuring."}</span>`}
    ${last > 0 && html`<button type="button" onClick=${() => zoom(last - span.length, last)}>Show the latest data</button>`}</${Empty}></section>`;
}

const gapTones = { unwatched: "warn", "clock-shifted": "warn", rebooted: "accent" };

// gapsIn reads the gaps of a range, the latest of a list that is too long; of is empty, or names the node.
export const gapsIn = async (span, signal, of = {}) => (await get("/v1/gaps", { ...of, ...ledger(span), limit: 10000 }, signal)).gaps;

// gapMarks are the gaps of a range as marks of charts.
export const gapMarks = (gaps) => (gaps || []).filter((g) => !isNothing(g)).slice(0, 200).map((g) => ({ from: Date.parse(g.from) / 1000, to: Date.parse(g.to) / 1000, tone: gapTones[g.reason] || "bad", key: g.reason === "rebooted" ? "rebooted" : "gap", title: (g.reason === "rebooted" ? "rebooted" : "gap: " + g.reason) + (g.name ? ", " + g.name : "") }));

// alertMarks are the times at which alerts began to fire.
export const alertMarks = (alerts) => (alerts || []).filter((a) => a.activeAt).slice(0, 50).map((a) => ({ from: Date.parse(a.activeAt) / 1000, tone: "bad", key: "alert", title: "alert: " + a.labels.alertname + (a.labels.node ? ", " + a.labels.node : "") }));

const last = (n) => Date.parse(n.booked_through) / 1000;

// lateOf are the machines that send nothing, or late, and whose data ends before an instant, the oldest data first.
export const lateOf = (nodes, end) => nodes.filter((n) => !n.nested_in && (n.state === "silent" || n.state === "behind") && n.booked_through && last(n) < end).sort((a, b) => last(a) - last(b));

// lost are the times of a range since the latest data of machines that send nothing now, as of [missing]. Machines that are lost
// within a minute are one loss.
export function lost(nodes, [begin, end]) {
  const late = lateOf(nodes, end), want = nodes.filter((n) => !n.nested_in).length, out = [];
  for (let i = 0; i < late.length;) {
    const from = Math.max(begin, last(late[i]));
    while (i < late.length && last(late[i]) <= from + 60) i++;
    out.push({ from, to: i < late.length ? Math.max(begin, last(late[i])) : end, have: want - i, want, names: i <= 3 ? late.slice(0, i).map((n) => n.name) : [] });
  }
  return out.filter((m) => m.to > m.from);
}

// missing are the times of a range in which not all machines were measured: { from, to, have, want, names }, the names of the
// machines that are missing if they are few. nodes are those that send all the time; of is the state of stacks: a bucket without
// a machine says so. Of machines that send nothing now, it is the time since their latest data.
export function missing(of, nodes) {
  if (!of || of.empty || !of.kinds) return [];
  const own = nodes.filter((n) => !n.nested_in), [begin, end] = of.ends, late = lateOf(own, end), first = late.length ? Math.max(begin, last(late[0])) : end, out = [];
  if (own.length > 1) of.buckets.slice(0, -1).forEach((b, i) => {
    const have = covered(of.kinds[i]).nodes, want = own.filter((n) => !(Date.parse(n.enrolled_at) / 1000 > b.from)).length, before = out.at(-1);
    if (have === 0 || have >= want || b.to > first) return;
    if (before && before.to >= b.from - 1 && before.have === have) before.to = b.to; else out.push({ from: b.from, to: b.to, have, want, names: [] });
  });
  return [...out.filter((m) => m.to > m.from), ...lost(own, of.ends)];
}

const missingText = (m) => (m.have === 0 ? "no data" : `${grouped(m.have)} of ${few(m.want, "node")}`) + (m.names.length && m.want > 1 ? ", without " + m.names.join(", ") : "");

// missingMarks are those times as marks of charts: red where half of the machines or more are missing.
export const missingMarks = (list) => list.map((m) => ({ from: m.from, to: m.to, strip: true, ends: "from", tone: 2 * m.have <= m.want ? "bad" : "warn", key: m.have === 0 ? "no data" : "nodes missing", title: missingText(m) }));

// Lacks says since when the latest machines are missing, if they still are.
export function Lacks({ list, end }) {
  const m = list.at(-1);
  return m && m.to >= end ? html`<span class=${"lacks" + (2 * m.have <= m.want ? " bad" : "")} title=${list.map((m) => when(m.from * 1000) + ": " + missingText(m)).join("\n")}>${m.have === 0 ? "no data" : `${grouped(m.have)} of ${few(m.want, "node")}`} since ${at(m.from * 1000)}</span>` : null;
}

// since says from when on there is data, where that is less than the range.
const since = (begin) => (begin ? "data begins " + when(begin * 1000) : "");

// Stacked is the use of a resource over time by groups of workloads. of is the state of
// stacks; previous that of the range before, whose sum is drawn as a line.
export function Stacked({ resource, of, previous, span, height = 230, width, quality, aside, note, idle, marks, pick, lacks = [] }) {
  const r = resources[resource];
  const drawn = useMemo(() => of.data && drawing(of.data, resource, idle, previous, lacks.length > 0), [of.data, resource, idle, previous, lacks.length > 0]);
  const empty = html`<div class="hollow" style=${{ minHeight: height + 34 + "px" }}><${NoData} what=${r.title === "CPU" ? "CPU" : r.title.toLowerCase()} /></div>`;
  const says = html`${[note, drawn && drawn.note, of.data && since(of.data.begin)].filter(Boolean).join(" · ")}${lacks.length > 0 && of.data && html`<${Lacks} list=${lacks} end=${of.data.ends[1]} />`}`;
  return html`<${Card} title=${html`${r.title}<${Quality} of=${quality} />`} note=${says} width=${width} aside=${aside}>
    <${Shown} of=${of} height=${height + 34}>${() => (!drawn || drawn.series.length === 0 ? empty
    : html`<${Chart} series=${drawn.series} buckets=${of.data.buckets} reach=${of.data.ends} settled=${settledAt(of.data)} span=${span} unit=${r.unit} stacked height=${height} label=${r.title} band=${drawn.band} marks=${marks} pick=${pick} />`)}</${Shown}></${Card}>`;
}

// sent is within how many seconds nearly all machines send their data: windows of a minute, each at its own time, and their way.
const sent = 300;

// capacityNow is the capacity of late: the highest of some minutes, as of the latest buckets some machines have not sent anything
// yet. Where machines are missing it is the highest of the range: that of those that send would be less than what all used.
export function capacityNow(buckets, all, lacks) {
  const latest = all.findLastIndex(([, v]) => known(v));
  return Math.max(0, ...all.filter(([, v], i) => known(v) && (lacks || i >= latest - 1 || buckets[i].to > buckets[latest].to - sent)).map(([, v]) => v));
}

// drawing is what Stacked draws. The capacity is a line where it is not far above what was used.
function drawing(of, resource, idle, previous, lacks) {
  if (of.empty) return { series: [] };
  const series = stack(of, resource, idle), r = resources[resource];
  const sum = new Map(), all = capacity(of, resource), most = Math.max(0, ...all.map(([, v]) => v || 0));
  for (const s of series) for (const [t, v] of s.values) sum.set(t, (sum.get(t) || 0) + (v || 0));
  const used = Math.max(0, ...sum.values()), out = { series }, whole = capacityNow(of.buckets, all, lacks);
  if (resource === "power" && !idle) { const w = idlePower(of); if (w > 0) out.note = "without idle, " + text(w, r.unit); }
  if (resource === "power") out.band = bandOf(series, [{ values: errors(of, idle).filter(([, v]) => v !== null) }]);
  else if (most > 0) {
    out.note = "of " + text(resource === "cpu" ? Math.round(whole) : whole, r.unit);
    if (!idle && most < 1.6 * used) out.series = [...series, { name: "capacity", tone: "capacity", over: true, dash: [5, 4], values: all }];
  }
  if (previous && !previous.empty) {
    const before = stack(previous, resource, idle), shift = of.range.from - previous.range.from, sums = new Map();
    for (const s of before) for (const [t, v] of s.values) if (v !== null) sums.set(t, (sums.get(t) || 0) + v);
    const at = of.buckets.map((b) => { const i = previous.buckets.findIndex((p) => p.from + shift < b.to && p.to + shift > b.from); return [b.from, i < 0 ? null : sums.get(previous.buckets[i].from) ?? null]; });
    if (at.some(([, v]) => v !== null)) out.series = [...out.series, { name: "previous period", tone: "previous", over: true, dash: [2, 3], values: at }];
  }
  return out;
}

// settledAt is the latest bucket of stacks of which nine of ten machines of the last minutes have sent data, as few have of the last
// seconds; -1 where there is none.
export function settledAt(of) {
  const counts = of.kinds.map((a) => covered(a).nodes), latest = counts.findLastIndex((n) => n > 0);
  const most = Math.max(...counts.filter((_, i) => i >= latest - 1 || of.buckets[i].to > of.buckets[latest].to - sent));
  return latest < 0 ? -1 : counts.findLastIndex((n) => n >= 0.9 * most);
}

// idlePower is the power that no workload caused, in the latest bucket that has some and is settled.
function idlePower(of) {
  const end = settledAt(of), i = of.kinds.findLastIndex((a, i) => a && (end < 0 || i <= end) && a.groups.some((g) => g.kind === "idle" && known(g.energy_joules))), b = of.buckets[i];
  return i < 0 ? 0 : of.kinds[i].groups.reduce((a, g) => a + (g.kind === "idle" ? Number(g.energy_joules || 0) : 0), 0) / secondsOf(b);
}

// useStacks asks for stacks, and with compare for those of the range before too.
export function useStacks({ by, where, span, nodes, compare }) {
  const keys = [by, (where || []).join("\n"), nodes > 100, span.from, span.to];
  const now = useData((signal) => stacks({ by, where, span, nodes }, signal), keys);
  const past = useData((signal) => (compare ? stacks({ by: "parts", where, span: before(span), nodes }, signal) : Promise.resolve(null)), [...keys, compare]);
  return [now, past.data];
}

// bandOf is how far the sum of series may be off.
export function bandOf(series, off) {
  if (!off || !off.length || !off[0].values.length) return undefined;
  const sum = new Map();
  for (const s of series) if (!s.over) for (const [t, v] of s.values) if (v !== null) sum.set(Number(t), (sum.get(Number(t)) || 0) + Number(v));
  const low = [], high = [];
  for (const [t, v] of off[0].values) {
    if (!sum.has(Number(t))) continue;
    low.push([t, Math.max(0, sum.get(Number(t)) - Number(v))]);
    high.push([t, sum.get(Number(t)) + Number(v)]);
  }
  return { low, high };
}

// qualityAt is the quality of a figure of the ledger at a time; of all uses of it, the worst.
const qualityAt = (of, field, t) => { const i = of.buckets.findIndex((b) => t >= b.from && t <= b.to), a = of.kinds[i]; return (a && a.total && a.total.quality && a.total.quality[field]) || ""; };

// endOf is the end of the latest data of stacks: averages over time have values for some time after it.
const endOf = (of) => { const i = of.kinds.findLastIndex((a) => a && a.groups.length > 0); return i < 0 ? Infinity : of.buckets[i].to; };

// until are the values up to an end. Of a machine that has just begun it is the first one after it, at that time.
function until(values, end) {
  const kept = values.filter(([t]) => Number(t) <= end);
  return kept.length > 0 ? kept : [[Math.floor(end), values[0][1]]];
}

// moved is the n-th series of the range before as a dashed line of this one, so many seconds later.
const moved = (s, n, shift) => ({ name: s.name + ", previous period", like: n, over: true, dash: [6, 4], values: s.values.map(([t, v]) => [Number(t) + shift, v]) });

// Flows is the traffic of machines over time, both ways; by the ledger, where this server has no series of it. names are the figures of the ledger. previous is as of Stacked.
export function Flows({ title, name, match = "", nodes = 1, of, names, span, previous, compare, height = 170, width, marks }) {
  const at = of.data ? of.data.span : span, waits = of.loading && !of.data, shift = Date.parse(ledger(span).from) / 1000 - before(span).from;
  const data = useData((signal) => (waits ? Promise.resolve(null) : flows(name, match, nodes, at, signal)), [name, match, at.from, at.to, waits]);
  const past = useData((signal) => (waits || !compare ? Promise.resolve(null) : flows(name, match, nodes, { ...at, from: at.from - shift, to: at.to - shift }, signal)), [name, match, at.from, at.to, waits, compare]);
  const lines = useMemo(() => {
    const known = of.data && !of.data.empty && of.data.kinds ? of.data : null;
    if (!data.data) return [];
    if (data.data.length === 0) return known ? [...traffic(known, names), ...(previous && !previous.empty ? traffic(previous, names).map((s, n) => laid(moved(s, n, shift), previous, known, shift)) : [])] : [];
    const fields = Object.fromEntries(names), own = data.data.map((s) => ({ ...s, values: (known ? until(s.values, endOf(known)) : s.values).map(([t, v]) => [t, v, known ? qualityAt(known, fields[s.name], Number(t)) : ""]) }));
    return [...own, ...(compare && past.data ? past.data.map((s, n) => moved(s, n, shift)) : [])];
  }, [of.data, data.data, past.data, previous, compare]);
  const booked = data.data && data.data.length === 0;
  return html`<${Card} title=${title} note=${lines.length === 0 ? "" : booked && !lines[0].whole ? "of workloads" : nodes > 1 ? "of all machines" : "of the machine"} width=${width}><${Shown} of=${data} height=${height + 34}>${() => (lines.length === 0
    ? html`<div class="hollow" style=${{ minHeight: height + 34 + "px" }}><${NoData} what=${title.toLowerCase()} begin=${of.data && of.data.begin} /></div>`
    : html`<${Chart} series=${lines} averaged=${averagedOver(at, nodes)} buckets=${booked ? of.data.buckets : undefined} reach=${of.data && of.data.ends} span=${at} unit="rate" height=${height} label=${title} marks=${marks} />`)}</${Shown}></${Card}>`;
}

// laid puts a moved series of buckets on those of this range.
const laid = (s, previous, of, shift) => ({ ...s, values: of.buckets.map((b) => { const i = previous.buckets.findIndex((p) => p.from + shift < b.to && p.to + shift > b.from); return [b.from, i < 0 ? null : s.values[i][1]]; }) });

const withoutIdle = ["workloads", "system"], withIdle = [...withoutIdle, "idle"];
const summed = [["CPU", "cpu_seconds", "seconds", withIdle], ["Memory", "memory_byte_seconds", "bytehours", withIdle], ["Energy", "energy_joules", "joules", withIdle], ["Disk read", "disk_read_bytes", "bytes", withoutIdle], ["Disk written", "disk_written_bytes", "bytes", withoutIdle]];

// Whole shows how the parts of what was used sum to what there was.
export function Whole({ used }) {
  const groups = { workloads: [], system: [], idle: [] };
  for (const g of used.groups) (groups[g.kind] || groups.workloads).push(g);
  const rows = summed.filter(([, f]) => used.whole && used.whole[f] !== null && Number(used.whole[f]) > 0).map(([name, f, unit, shown]) => {
    const whole = Number(used.whole[f]), parts = Object.fromEntries(withIdle.map((p) => [p, groups[p].reduce((a, g) => a + Number(g[f] || 0), 0)]));
    const absent = withIdle.filter((p) => groups[p].length > 0 && groups[p].every((g) => !known(g[f])));
    const off = Number(used.total[f]) - whole;
    return { name, unit, shown, whole, parts, absent, off: Math.abs(off) <= 1e-9 * whole ? 0 : off, quality: used.total.quality[f], error: f === "energy_joules" ? used.total.energy_error_joules : null };
  });
  if (rows.length === 0) return html`<${Empty} title="No data in this range" />`;
  return html`<ul class="wholes">${rows.map((r) => html`<li><div class="row"><b>${r.name}</b><span class="muted"><${Figure} v=${r.whole} unit=${r.unit} quality=${r.quality} off=${r.error} /></span><span class=${"tag " + (r.off === 0 ? "good" : "bad")} title=${r.off === 0 ? "workloads + system + idle = total" : "the parts do not sum to the total. This is a bug, please report it"}>${r.off === 0 ? "adds up" : "off by " + text(r.off, r.unit)}</span></div>
    <${Bar} parts=${[["workloads", "var(--accent)"], ["system", "var(--c-system)"], ["idle", "transparent"]].map(([p, color]) => ({ share: r.parts[p] / r.whole, color, title: `${p} ${text(r.parts[p], r.unit)}, ${text(shareOf(r.parts[p], r.whole), "percent")}` }))} />
    <div class="row small muted num">${r.shown.map((p) => { const s = r.off === 0 && !r.absent.includes(p) ? shareOf(r.parts[p], r.whole) : null; return html`<span title=${s !== null ? null : r.off === 0 ? "absent: not measured here" : inconsistent}>${p} ${text(s, "percent")}</span>`; })}</div></li>`)}</ul>`;
}

// Gaps lists times for which data is missing or incomplete.
export function Gaps({ gaps, own }) {
  if (gaps.length === 0) return html`<${Empty} title="No gaps"><span>The data of this range is complete.</span></${Empty}>`;
  const columns = [
    { key: "from", title: "From", num: false, first: true, value: (g) => g.from, cell: (g) => html`<span class="num" title=${exactly(g.from)}>${when(g.from)}</span>` },
    ...(own ? [] : [{ key: "node", title: "Node", value: (g) => g.name, cell: (g) => html`<a href=${nodeAt(g.name)}>${g.name}</a>` }]),
    { key: "length", title: "Length", num: true, value: (g) => g.seconds, cell: (g) => html`<${Figure} v=${g.seconds} unit="seconds" />` },
    { key: "reason", title: "Reason", value: (g) => g.reason, cell: (g) => html`<span class=${"tag " + (gapTones[g.reason] ? "warn" : "bad")}>${g.reason}</span>` },
    { key: "why", title: "Meaning", class: "wrap", value: (g) => g.why, cell: (g) => html`<span title=${g.detail || null}>${g.why}: ${g.meaning}</span>` },
  ];
  return html`<${Table} columns=${columns} rows=${gaps} id=${(g) => g.node + g.from + g.reason} name="gaps" label="gaps" rank=${(g) => (gapTones[g.reason] ? 1 : 0)} wraps />`;
}

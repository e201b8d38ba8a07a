// Pieces that several pages are made of: charts of machines, what sums to the
// whole, gaps.
import { html } from "../vendor/preact.mjs";
import { Card, Shown, Empty, Bar, Figure, Quality, useData } from "./ui.js";
import { Chart } from "./chart.js";
import { resources, stack, flows, together } from "./series.js";
import { range } from "./api.js";
import { text, when, exactly } from "./fmt.js";
import { nodeAt } from "./route.js";
import { Table } from "./table.js";

// Nothing says that a chart has no values yet, and when it will.
function Nothing({ what }) {
  return html`<${Empty} title=${what[0].toUpperCase() + what.slice(1) + " is not known"}><span>Nothing tells it here, or it began a moment ago: what is measured shows some 20 seconds later.</span></${Empty}>`;
}

// Stacked is the use of a resource over time by workloads, of all machines that
// match, or of one.
export function Stacked({ resource, top, match = "", nodes = 1, span, height = 230, whole, width, quality, aside, note }) {
  const r = resources[resource], ids = top === "namespaces" ? top : top ? top.map((t) => t.id).join() : null;
  const data = useData((signal) => stack(resource, top || [], match, nodes, span, signal), [resource, ids, match, span.from, span.to], 0);
  const off = useData((signal) => (resource === "power" ? range(`sum(${together("mete_node_power_error_watts", match, span, nodes)})`, span, signal) : Promise.resolve([])), [resource, match, span.from, span.to]);
  return html`<${Card} title=${html`${r.title}<${Quality} of=${quality} />`} note=${note} width=${width} aside=${aside}>
    <${Shown} of=${data} height=${height + 34}>${(series) => (series.length === 0 ? html`<div class="hollow" style=${{ minHeight: height + 34 + "px" }}><${Nothing} what=${resource === "power" ? "power" : r.title} /></div>`
    : html`<${Chart} series=${series} span=${span} unit=${r.unit} stacked height=${height} whole=${whole} label=${r.title} band=${bandOf(series, off.data)} />`)}</${Shown}></${Card}>`;
}

// bandOf is how far the sum of series may be off.
export function bandOf(series, off) {
  if (!off || !off.length) return undefined;
  const sum = new Map();
  for (const s of series) for (const [t, v] of s.values) sum.set(Number(t), (sum.get(Number(t)) || 0) + Number(v));
  const low = [], high = [];
  for (const [t, v] of off[0].values) {
    if (!sum.has(Number(t))) continue;
    low.push([t, Math.max(0, sum.get(Number(t)) - Number(v))]);
    high.push([t, sum.get(Number(t)) + Number(v)]);
  }
  return { low, high };
}

// Flows is the traffic of machines over time, both ways.
export function Flows({ title, name, match = "", nodes = 1, span, height = 170, width }) {
  const data = useData((signal) => flows(name, match, nodes, span, signal), [name, match, span.from, span.to]);
  return html`<${Card} title=${title} width=${width}><${Shown} of=${data} height=${height + 34}>${(series) => (series.length === 0
    ? html`<div class="hollow" style=${{ minHeight: height + 34 + "px" }}><${Nothing} what=${title.toLowerCase()} /></div>`
    : html`<${Chart} series=${series} span=${span} unit="rate" height=${height} label=${title} />`)}</${Shown}></${Card}>`;
}

const summed = [["CPU", "cpu_seconds", "seconds"], ["Memory", "memory_byte_seconds", "bytehours"], ["Energy", "energy_joules", "joules"], ["Disk read", "disk_read_bytes", "bytes"], ["Disk written", "disk_written_bytes", "bytes"]];

// Whole shows how the parts of what was used sum to what there was.
export function Whole({ used }) {
  const of = (kind, f) => used.groups.filter((g) => (kind ? g.kind === kind : g.kind !== "idle" && g.kind !== "system")).reduce((a, g) => a + Number(g[f] || 0), 0);
  const rows = summed.filter(([, f]) => used.whole && used.whole[f] !== null && Number(used.whole[f]) > 0).map(([name, f, unit]) => {
    const whole = Number(used.whole[f]), parts = { workloads: of("", f), system: of("system", f), idle: of("idle", f) };
    const off = Number(used.total[f]) - whole;
    return { name, unit, whole, parts, off: Math.abs(off) <= 1e-9 * whole ? 0 : off, quality: used.total.quality[f] };
  });
  if (rows.length === 0) return html`<${Empty} title="Nothing to add up yet" />`;
  return html`<ul class="wholes">${rows.map((r) => html`<li><div class="row"><b>${r.name}</b><span class="num muted">${text(r.whole, r.unit)}</span><span class=${"tag " + (r.off === 0 ? "good" : "bad")} title=${r.off === 0 ? "workloads + system + idle = the whole" : "the parts are not the whole: a defect"}>${r.off === 0 ? "adds up" : "off by " + text(r.off, r.unit)}</span></div>
    <${Bar} parts=${[["workloads", "var(--accent)"], ["system", "var(--c-system)"], ["idle", "transparent"]].map(([p, color]) => ({ share: r.parts[p] / r.whole, color, title: `${p} ${text(r.parts[p], r.unit)}, ${text(r.parts[p] / r.whole, "percent")}` }))} />
    <div class="row small muted num"><span>workloads ${text(r.parts.workloads / r.whole, "percent")}</span><span>system ${text(r.parts.system / r.whole, "percent")}</span><span>idle ${text(r.parts.idle / r.whole, "percent")}</span></div></li>`)}</ul>`;
}

// Gaps lists time of which not all is known.
export function Gaps({ gaps, own }) {
  if (gaps.length === 0) return html`<${Empty} title="No gaps"><span>All of this range is known.</span></${Empty}>`;
  const columns = [
    { key: "from", title: "From", num: false, first: true, value: (g) => g.from, cell: (g) => html`<span class="num" title=${exactly(g.from)}>${when(g.from)}</span>` },
    ...(own ? [] : [{ key: "node", title: "Node", value: (g) => g.name, cell: (g) => html`<a href=${nodeAt(g.name)}>${g.name}</a>` }]),
    { key: "length", title: "Length", num: true, value: (g) => g.seconds, cell: (g) => html`<${Figure} v=${g.seconds} unit="seconds" />` },
    { key: "reason", title: "Reason", value: (g) => g.reason, cell: (g) => html`<span class=${"tag " + (["unwatched", "rebooted"].includes(g.reason) ? "warn" : "bad")}>${g.reason}</span>` },
    { key: "why", title: "What it means", class: "wrap", value: (g) => g.why, cell: (g) => html`<span title=${g.detail || null}>${g.why}: ${g.meaning}</span>` },
  ];
  return html`<${Table} columns=${columns} rows=${gaps} id=${(g) => g.node + g.from + g.reason} name="gaps" label="gaps" wraps />`;
}

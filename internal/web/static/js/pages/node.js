// Node: one machine, what it has, what it did, and who used it.
import { html, useMemo } from "../../vendor/preact.mjs";
import { get } from "../api.js";
import { ledger, steps, useSpan } from "../span.js";
import { busiest, resources, quote } from "../series.js";
import { Card, Stat, Shown, Empty, Figure, Facts, Kind, Job, useData, useHere, partsOf } from "../ui.js";
import { Stacked, Flows, Whole, Gaps } from "../parts.js";
import { Table } from "../table.js";
import { State } from "./nodes.js";
import { text, few, ago, exactly, when } from "../fmt.js";

const fields = "cpu_seconds,memory_average_bytes,memory_peak_bytes,disk_read_bytes,disk_written_bytes,network_rx_bytes,energy_joules,energy_error_joules";

function Now({ n }) {
  const share = (p, unit) => (p ? `${text((p.workloads + p.system) / p.whole, "percent")} of ${text(p.whole, unit)}` : "not seen");
  const stat = (title, p, unit) => html`<${Stat} title=${title} v=${p && p.workloads + p.system} unit=${unit} quality=${p && p.quality} parts=${partsOf(p, unit)} below=${p ? html`<span>${share(p, unit)}</span><span>workloads ${text(p.workloads, unit)}</span><span>idle ${text(p.idle, unit)}</span>` : "not seen"} />`;
  const flow = (title, f, a, b) => html`<${Stat} title=${title} v=${f && f.in + f.out} unit="rate" quality=${f && f.quality} below=${f ? html`<span>${a} ${text(f.in, "rate")}</span><span>${b} ${text(f.out, "rate")}</span>` : "not seen here"} />`;
  const e = n.power_watts;
  return html`<section class="card stats five" aria-label="now">${stat("CPU", n.cpu_cores, "cores")}${stat("Memory", n.memory_bytes, "bytes")}
    <${Stat} title="Power" v=${e && e.whole} unit="watts" quality=${e && e.quality} off=${e && e.error} parts=${partsOf(e, "watts")} below=${e ? html`<span>active ${text(e.workloads + e.system, "watts")}</span><span>idle ${text(e.idle, "watts")}</span>` : "no meter, no model"} />
    ${flow("Disk", n.disk_bytes_per_second, "read", "written")}${flow("Network", n.network_bytes_per_second, "in", "out")}</section>`;
}

const figure = (key, title, unit, off) => ({ key, title, num: true, value: (r) => (r[key] === null ? null : Number(r[key])), cell: (r) => html`<${Figure} v=${r[key]} unit=${unit} quality=${r.quality[key]} off=${off && r[off]} />` });

function Users({ used, name }) {
  const columns = [{ key: "job", title: "Job", class: "name", value: (r) => r.job, cell: (r) => html`<${Job} name=${r.job} kind=${r.kind} node=${name} />` },
    { key: "kind", title: "Kind", value: (r) => r.kind, cell: (r) => html`<${Kind} of=${r.kind} />` }, { ...figure("cpu_seconds", "CPU", "seconds"), first: true }, figure("memory_average_bytes", "Memory", "bytes"), figure("memory_peak_bytes", "Peak", "bytes"),
    figure("disk_read_bytes", "Read", "bytes"), figure("disk_written_bytes", "Written", "bytes"), figure("network_rx_bytes", "Received", "bytes"), figure("energy_joules", "Energy", "joules", "energy_error_joules")];
  const sums = ["cpu_seconds", "memory_average_bytes", null, "disk_read_bytes", "disk_written_bytes", "network_rx_bytes", "energy_joules"], unit = { cpu_seconds: "seconds", energy_joules: "joules" };
  const line = (title, t) => html`<tr><th scope="row" colspan="2">${title}</th>${sums.map((f) => html`<td class="num">${f && t[f] !== null ? text(t[f], unit[f] || "bytes") : ""}</td>`)}</tr>`;
  return html`<${Table} columns=${columns} rows=${used.groups} id=${(r) => r.job + "\u0000" + r.kind} name="jobs" label="jobs on this node" empty=${html`<${Empty} title="Nothing in this range" />`}
    foot=${used.total && html`<tfoot>${used.rest_groups > 0 && line(few(used.rest_groups, "more job"), used.rest)}${line("All", used.total)}</tfoot>`} />`;
}

export function Node({ path, nodes }) {
  const { query } = useHere();
  const name = path.slice(6), span = useSpan(query);
  const known = nodes.find((n) => n.name === name || n.node === name), match = known ? "node=" + quote(known.name) : "";
  const now = useData(async (signal) => (known ? (await get("/v1/summary", { nodes: 1, node: known.node }, signal)).nodes[0] : null), [known && known.node], 5000);
  const top = useData(async (signal) => (known ? Object.fromEntries(await Promise.all(Object.keys(resources).map(async (r) => [r, await busiest(r, 6, span, known.name, signal)]))) : null), [known && known.node, span.length, span.name ? Math.floor(span.to / 60) : span.to]);
  const used = useData((signal) => (known ? get("/v1/usage", { by: "job,kind", where: "node=" + known.name, limit: 200, fields, ...ledger(span) }, signal) : null), [known && known.node, steps(span)]);
  const gaps = useData(async (signal) => (known ? (await get("/v1/gaps", { node: known.node, ...ledger(span) }, signal)).gaps : []), [known && known.node, steps(span)]);
  const cpus = now.data && now.data.cpu_cores ? now.data.cpus : 0;
  if (!known) return html`<section class="card"><${Empty} title=${"No node is called " + name}><a class="button" href="/nodes">All nodes</a></${Empty}></section>`;
  const q = (f) => used.data && used.data.total && used.data.total.quality[f];
  const chart = (r, more) => html`<${Stacked} resource=${r} top=${top.data && top.data[r]} match=${match} span=${span} width="w6" quality=${q(resources[r].field)} ...${more} />`;
  return html`<div class="bar facts-line"><${State} of=${known.state} /><span class="muted">${known.cluster}</span><span class="muted">${few(known.cpus, "CPU")}</span><span class="muted" title=${known.booked_through ? exactly(known.booked_through) : ""}>${known.booked_through ? "booked up to " + ago(known.booked_through) : "nothing booked yet"}</span><code class="muted small">${known.node}</code></div>
    <${Shown} of=${now} height=${124}>${(n) => html`<${Now} n=${n} />`}</${Shown}>
    <div class="grid">${chart("cpu", { whole: cpus })}${chart("memory", {})}${chart("power", {})}
      <div class="w6 grid inner"><${Flows} title="Disk" name="mete_node_disk_bytes_per_second" match=${match} span=${span} width="w6" height=${230} /><${Flows} title="Network" name="mete_node_network_bytes_per_second" match=${match} span=${span} width="w6" height=${230} /></div>
      <${Card} title="Who used it" note="in the range" flush width="w12"><${Shown} of=${used} lines=${8}>${(u) => html`<${Users} used=${u} name=${known.name} />`}</${Shown}></${Card}>
      <${Card} title="Gaps" flush width="w8"><${Shown} of=${gaps} lines=${3}>${(g) => html`<${Gaps} gaps=${g} own />`}</${Shown}></${Card}>
      <${Card} title="About" width="w4"><${Facts} of=${[["Enrolled", known.enrolled_at && when(known.enrolled_at)], ["Machine", known.machine_id && html`<code>${known.machine_id}</code>`], ["Boot", known.boot && html`<code>${known.boot}</code>`], ["Open streams", String(known.streams)], ["Told by", known.source && html`<code>${known.source}</code>`], ["Revoked", known.revoked_at && when(known.revoked_at)], ["Reserved", html`<span class="absent" title="nothing tells this server what is reserved">– not known here</span>`]]} /></${Card}></div>`;
}

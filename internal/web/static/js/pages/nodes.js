// Nodes: every machine as it is now, and what it used in the range.
import { html, useState, useMemo } from "../../vendor/preact.mjs";
import { get } from "../api.js";
import { ledger, steps, useSpan } from "../span.js";
import { Card, Shown, Empty, Figure, Bar, Search, Select, largest, useData, useHere, useNarrow, partsOf } from "../ui.js";
import { Table, Columns } from "../table.js";
import { Heat } from "../heat.js";
import { natural } from "../names.js";
import { grouped, text, shareOf, inconsistent, few, ago, exactly, time, when } from "../fmt.js";
import { Above, Enroll, latest, stopped } from "../parts.js";
import { addresses, put } from "../route.js";

const states = { live: "good", behind: "warn", silent: "bad", revoked: "" };
export const State = ({ of }) => html`<span class=${"tag " + (states[of] || "")} title=${{ live: "data is up to date", behind: "data is late", silent: "no data received", revoked: "certificate revoked" }[of]}>${of}</span>`;

// order is that of states in lists of them.
const order = ["silent", "behind", "live", "revoked"];

// trouble orders nodes where nothing else is chosen: those first whose data is late, the oldest data before newer, whether
// they are silent or behind.
export const trouble = (n) => (n.state === "live" ? "1" : n.state === "revoked" ? "2" : "0 " + (n.booked_through || ""));

// States counts the nodes of each state, and filters by one.
const States = ({ nodes, chosen }) => html`<span class="labels">${order.map((s) => [s, nodes.filter((n) => n.state === s).length]).filter(([, n]) => n > 0).map(([s, n]) => html`<button type="button" class=${"tag " + states[s]} aria-pressed=${chosen === s ? "true" : "false"} title=${chosen === s ? "show all" : "show these only"} onClick=${() => put({ state: chosen === s ? "" : s })}>${grouped(n)} ${s}</button>`)}</span>`;

const used = (p) => (p ? shareOf(p.workloads + p.system, p.whole) : null);
// sizeOf is how much a node has of a resource: whole CPUs, as some of their time may be stolen.
export const sizeOf = (n, p, unit) => (unit === "cores" && n.cpus) || p.whole;

const usedOf = (key, title, unit) => ({ key, title, width: "12.2rem", value: (n) => used(n[key]), num: false, help: "used by workloads and the system, of the total",
  cell: (n) => (n[key] ? html`<div class="barred"><span class="num" title=${used(n[key]) === null ? inconsistent : null}>${text(used(n[key]), "percent")}</span><${Bar} slim parts=${partsOf(n[key], unit)} /><span class="num muted">${text(sizeOf(n, n[key], unit), unit)}</span></div>` : html`<span class="absent">–</span>`) });
// columnsOf are the columns of nodes, each in one unit.
function columnsOf(rows, narrow, at = addresses(rows)) {
  const column = (key, title, unit, width, value, more = {}) => { const like = largest(rows, value); return { key, title, num: true, width, value, cell: (n) => html`<${Figure} v=${value(n)} like=${like()} unit=${unit} quality=${more.quality && more.quality(n)} off=${more.off && more.off(n)} />`, ...more }; };
  const flow = (key, title) => column(key, title, "rate", "8.3rem", (n) => (n[key] ? n[key].in + n[key].out : null), { quality: (n) => n[key] && n[key].quality });
  const ranged = (key, title, unit, help) => column(key, title, unit, "8rem", (n) => (n.used ? n.used[key] : null), { long: title + " in the range", ranged: true, help });
  return [
    { key: "name", title: "Node", always: true, width: "10rem", grows: !narrow, class: "name", order: natural, value: (n) => n.name, cell: (n) => html`<a href=${at(n)} title=${n.node}>${n.name}</a>` },
    { key: "state", title: "State", width: "5.6rem", first: true, value: trouble, cell: (n) => html`<${State} of=${n.state} />` },
    ...[{ ...usedOf("cpu_cores", "CPU", "cores"), desc: true }, usedOf("memory_bytes", "Memory", "bytes")].map((c) => (narrow ? { ...c, width: "8.6rem" } : c)),
    column("power", "Power", "watts", "12.2rem", (n) => (n.power_watts ? n.power_watts.whole : null), { off: (n) => n.power_watts && n.power_watts.error, quality: (n) => n.power_watts && n.power_watts.quality }),
    flow("disk_bytes_per_second", "Disk"), flow("network_bytes_per_second", "Network"),
    { key: "workloads", title: "Workloads", long: "Active workloads", num: true, width: "6.9rem", help: "workloads that used something in the latest window", value: (n) => (n.cpu_cores ? n.workloads : null), cell: (n) => (n.cpu_cores ? grouped(n.workloads) : html`<span class="absent">–</span>`) },
    { key: "cluster", title: "Cluster", width: "6.2rem", order: natural, value: (n) => n.cluster },
    { key: "through", title: "Last data", width: "8rem", value: (n) => n.booked_through, cell: (n) => (n.booked_through ? html`<span class="num" title=${exactly(n.booked_through)}>${ago(n.booked_through)}</span>` : html`<span class="absent">–</span>`) },
    ranged("cpu_seconds", "CPU used", "seconds", "CPU time of workloads and the system in the range"), ranged("energy_joules", "Energy", "joules", "energy of the machine in the range, idle energy included"),
    ranged("disk_written_bytes", "Written", "bytes", "bytes written to disks in the range"),
  ];
}

// summed adds up the groups of a usage by node and kind: id or name of a node to its amounts. CPU
// that was idle is not used; idle energy is.
export function summed(groups) {
  const of = {};
  for (const g of groups) {
    const n = of[g.node] || (of[g.node] = {});
    for (const key of ["cpu_seconds", "energy_joules", "disk_written_bytes"]) {
      if (g[key] === null || g[key] === undefined || (key === "cpu_seconds" && g.kind === "idle")) continue;
      n[key] = (n[key] || 0) + Number(g[key]);
    }
  }
  return of;
}

// counted says how many nodes the sum of all has: those with fresh data that are no guests of others.
export function counted(nodes) {
  const n = nodes.filter((n) => n.cpu_cores && !n.nested).length;
  return n === nodes.length ? few(n, "node") : `${grouped(n)} of ${few(nodes.length, "node")} counted`;
}

// Sums is the foot of the table: the sum of the nodes with fresh data, as on Overview.
function Sums({ sum, nodes, shown }) {
  const total = columnsOf([]).filter(shown), summed = ["cpu_cores", "memory_bytes", "power", "disk_bytes_per_second", "network_bytes_per_second", "workloads"];
  const live = nodes.some((n) => n.state === "live"), at = latest(nodes);
  return html`<tfoot><tr class=${live ? "" : "old"}><th scope="row" title="the sum has the nodes with fresh data that are no guests of others">${counted(nodes)}${!live && at > 0 && html`<small class="lacks bad">as of ${time(at * 1000)}</small>`}</th>${total.slice(1).map((c) => html`<td class=${c.num ? "num" : ""}>${summed.includes(c.key) ? c.cell(sum) : ""}</td>`)}</tr></tfoot>`;
}

// Most are tiles of how many nodes are up to date, and of those that use most now.
function Most({ rows, at }) {
  const active = rows.filter((n) => n.state !== "revoked"), live = active.filter((n) => n.state === "live").length;
  const end = latest(active), since = stopped(active), silent = active.filter((n) => n.state === "silent").length;
  const first = (value) => active.reduce((a, n) => { const v = value(n); return v !== null && (a === null || v > a.v) ? { n, v } : a; }, null);
  const tile = (title, value, below) => { const m = first(value); return html`<div class="stat"><h3>${title}</h3><div class="value">${m ? html`<a class="plain" href=${at(m.n)} title=${m.n.name}>${m.n.name}</a>` : html`<span class="absent">–</span>`}</div><div class="below"><span>${m ? below(m.n) : since ? "no data since " + when(since * 1000) : "not available"}</span></div></div>`; };
  const share = (key, unit) => (n) => `${text(used(n[key]), "percent")} of ${text(sizeOf(n, n[key], unit), unit)}`;
  return html`<section class=${"card stats five" + (live === 0 && end > 0 ? " old" : "")} aria-label="most"><div class="stat"><h3>Nodes up to date</h3><div class="value">${grouped(live)} of ${grouped(active.length)}</div><div class="below">${["silent", "behind"].map((s) => [s, active.filter((n) => n.state === s).length]).filter(([, n]) => n > 0).map(([s, n]) => html`<span class=${"tag " + states[s]}>${grouped(n)} ${s}</span>`)}${live === active.length && html`<span>all data arrives in time</span>`}</div></div>
    ${tile("Highest CPU use", (n) => used(n.cpu_cores), share("cpu_cores", "cores"))}${tile("Highest memory use", (n) => used(n.memory_bytes), share("memory_bytes", "bytes"))}
    ${tile("Highest power", (n) => (n.power_watts ? n.power_watts.whole : null), (n) => html`<${Figure} v=${n.power_watts.whole} unit="watts" off=${n.power_watts.error} quality=${n.power_watts.quality} />`)}
    ${tile("Highest traffic", (n) => (n.network_bytes_per_second ? n.network_bytes_per_second.in + n.network_bytes_per_second.out : null), (n) => html`in ${text(n.network_bytes_per_second.in, "rate")}, out ${text(n.network_bytes_per_second.out, "rate")}`)}
    ${end > 0 && html`<p class="source small muted"><${Above} /> the latest reading of each node, as of ${time(end * 1000)}${live === 0 && html`, <b class="lacks bad">${ago(end * 1000)}</b>`}${silent > 0 && `; ${few(silent, "node")} ${silent === 1 ? "sends" : "send"} nothing`}.</p>`}</section>`;
}

export function Nodes({ nodes }) {
  const { query } = useHere();
  const span = useSpan(query), several = new Set(nodes.map((n) => n.cluster)).size > 1;
  const usual = ["state", "cpu_cores", "memory_bytes", "power", "disk_bytes_per_second", "network_bytes_per_second", "workloads", ...(several ? ["cluster"] : []), "through"];
  const narrow = useNarrow(), [map, showMap] = useState(false);
  const columns = columnsOf([]), chosen = query.cols ? query.cols.split("~") : usual, isShown = (c) => c.always || chosen.includes(c.key), past = columns.some((c) => isShown(c) && c.ranged);
  const now = useData((signal) => get("/v1/summary", { nodes: 1 }, signal), [], nodes.length > 100 ? 15000 : 5000);
  const amounts = useData(async (signal) => (past ? summed((await get("/v1/usage", { by: "node,kind", fields: "cpu_seconds,energy_joules,disk_written_bytes", limit: 10000, ...ledger(span) }, signal)).groups) : null), [past, steps(span)]);
  const q = (query.q || "").toLowerCase();
  const rows = useMemo(() => {
    const of = new Map(nodes.map((n) => [n.node, n])), sums = amounts.data || {};
    return (now.data ? now.data.nodes || [] : []).map((n) => ({ ...n, booked_through: (of.get(n.node) || {}).booked_through, used: sums[n.name] || sums[n.node] || sums[n.name + " " + n.node] }))
      .filter((n) => (!q || n.name.toLowerCase().includes(q) || n.node.toLowerCase().includes(q)) && (!query.cluster || n.cluster === query.cluster) && (!query.state || n.state === query.state)).sort((a, b) => natural(a.name, b.name));
  }, [now.data, nodes, q, query.cluster, query.state, amounts.data]);
  const count = now.data ? few(rows.length, "node") : "", clusters = [...new Set(nodes.map((n) => n.cluster))].sort(natural), have = [...new Set(nodes.map((n) => n.state))].sort();
  return html`${nodes.length > 1 && html`<${Shown} of=${now} height=${92}>${() => rows.length > 1 && html`<${Most} rows=${rows} at=${addresses(nodes)} />`}</${Shown}>`}${nodes.length > 1 && html`<${Card} title="Map" note=${count} aside=${narrow && html`<button type="button" aria-expanded=${map ? "true" : "false"} onClick=${() => showMap(!map)}>${map ? "Hide" : "Show"}</button>`}>${(map || !narrow) && html`<${Shown} of=${now} height=${60}>${() => html`<${Heat} nodes=${rows} />`}</${Shown}>`}</${Card}>`}
    <section class="card flush fill"><header class="bar"><${Search} placeholder="Filter nodes" />${clusters.length > 1 && html`<${Select} name="cluster" label="Cluster" all="all" options=${clusters} />`}${(have.length > 1 || query.state) && html`<${Select} name="state" label="State" all="all" options=${have} />`}${now.data && html`<${States} nodes=${now.data.nodes || []} chosen=${query.state} />`}<div class="end bar"><span class="muted num" role="status">${count && count + ", latest readings"}</span><${Columns} columns=${columns} shown=${chosen} /></div></header>
    <${Shown} of=${now} lines=${8}>${() => html`<${Table} tall columns=${columnsOf(rows, narrow, addresses(nodes)).filter(isShown)} rows=${rows} id=${(n) => n.node} label="nodes" mark=${(n) => (n.state === "live" ? "" : "old")} foot=${rows.length > 1 && rows.length === (now.data.nodes || []).length && html`<${Sums} sum=${now.data.sum} nodes=${rows} shown=${isShown} />`} empty=${nodes.length === 0 ? html`<${Enroll} />` : html`<${Empty} title="No nodes match the filters"><button onClick=${() => put({ q: "", cluster: "", state: "" })}>Show all</button></${Empty}>`} />`}</${Shown}>
    <p class="small muted reading">${latest(nodes) > 0 && `Figures are the latest reading of each node, up to ${time(latest(nodes) * 1000)}${past ? ", but for those that are of the range" : ""}. `}Bars: workloads blue, system gray, idle empty.</p></section>`;
}

// Nodes: every machine as it is now.
import { html, useMemo } from "../../vendor/preact.mjs";
import { get } from "../api.js";
import { Card, Shown, Empty, Figure, Bar, Search, Select, Segments, Quality, useData, useHere, partsOf } from "../ui.js";
import { Table } from "../table.js";
import { Fleet } from "./overview.js";
import { text, few, ago, exactly } from "../fmt.js";
import { nodeAt, put } from "../route.js";

const states = { live: "good", behind: "warn", silent: "bad", revoked: "" };
export const State = ({ of }) => html`<span class=${"tag " + (states[of] || "")} title=${{ live: "its windows arrive", behind: "its windows arrive late", silent: "nothing arrives", revoked: "it may not send any more" }[of]}>${of}</span>`;

const used = (p) => (p && p.whole > 0 ? (p.workloads + p.system) / p.whole : null);
const shareOf = (key, title, unit) => ({ key, title, width: "12.5rem", value: (n) => used(n[key]), num: false, help: "used by workloads and the system, of all that there is",
  cell: (n) => (n[key] ? html`<div class="barred"><span class="num">${text(used(n[key]), "percent")}</span><${Bar} slim parts=${partsOf(n[key], unit)} /><span class="num muted">${text(n[key].whole, unit)}</span></div>` : html`<span class="absent">–</span>`) });
const flow = (key, title) => ({ key, title, num: true, width: "6.8rem", value: (n) => (n[key] ? n[key].in + n[key].out : null), cell: (n) => html`<${Figure} v=${n[key] ? n[key].in + n[key].out : null} unit="rate" quality=${n[key] && n[key].quality} />` });

const columns = [
  { key: "name", title: "Node", width: "10rem", class: "name", first: true, value: (n) => n.name, cell: (n) => html`<a href=${nodeAt(n.name)} title=${n.node}>${n.name}</a>` },
  { key: "state", title: "State", width: "5.6rem", value: (n) => n.state, cell: (n) => html`<${State} of=${n.state} />` },
  { key: "cluster", title: "Cluster", width: "6.2rem", value: (n) => n.cluster },
  { ...shareOf("cpu_cores", "CPU", "cores"), desc: true }, shareOf("memory_bytes", "Memory", "bytes"),
  { key: "power", title: "Power", num: true, width: "11.5rem", value: (n) => (n.power_watts ? n.power_watts.whole : null), cell: (n) => html`<${Figure} v=${n.power_watts && n.power_watts.whole} unit="watts" off=${n.power_watts && n.power_watts.error} quality=${n.power_watts && n.power_watts.quality} />` },
  flow("disk_bytes_per_second", "Disk"), flow("network_bytes_per_second", "Network"),
  { key: "workloads", title: "Workloads", num: true, width: "6.5rem", value: (n) => n.workloads, cell: (n) => n.workloads.toLocaleString() },
  { key: "through", title: "Booked up to", width: "8rem", value: (n) => n.booked_through, cell: (n) => (n.booked_through ? html`<span class="num" title=${exactly(n.booked_through)}>${ago(n.booked_through)}</span>` : html`<span class="absent">–</span>`) },
];

export function Nodes({ nodes }) {
  const { query } = useHere();
  const now = useData((signal) => get("/v1/summary", { nodes: 1 }, signal), [], nodes.length > 100 ? 15000 : 5000);
  const q = (query.q || "").toLowerCase(), by = query.heat || "cpu_cores";
  const of = new Map(nodes.map((n) => [n.node, n]));
  const rows = useMemo(() => (now.data ? now.data.nodes || [] : []).map((n) => ({ ...n, booked_through: (of.get(n.node) || {}).booked_through }))
    .filter((n) => (!q || n.name.toLowerCase().includes(q) || n.node.toLowerCase().includes(q)) && (!query.cluster || n.cluster === query.cluster) && (!query.state || n.state === query.state)), [now.data, nodes, q, query.cluster, query.state]);
  const clusters = [...new Set(nodes.map((n) => n.cluster))].sort(), have = [...new Set(nodes.map((n) => n.state))].sort();
  return html`${nodes.length > 1 && html`<${Card} title="At a glance" note=${few(nodes.length, "node")} aside=${html`<${Segments} label="shade by" options=${[["cpu_cores", "CPU"], ["memory_bytes", "memory"]]} value=${by} choose=${(v) => put({ heat: v === "cpu_cores" ? "" : v }, true)} />`}><${Shown} of=${now} height=${60}>${() => html`<${Fleet} nodes=${rows} by=${by} />`}</${Shown}></${Card}>`}
    <section class="card flush fill"><header class="bar"><${Search} placeholder="Filter nodes" />${clusters.length > 1 && html`<${Select} name="cluster" label="Cluster" all="all" options=${clusters} />`}${have.length > 1 && html`<${Select} name="state" label="State" all="all" options=${have} />`}<span class="end muted num" role="status">${few(rows.length, "node")}</span></header>
    <${Shown} of=${now} lines=${8}>${() => html`<${Table} tall columns=${columns} rows=${rows} id=${(n) => n.node} label="nodes" empty=${nodes.length === 0
      ? html`<${Empty} title="No machine has enrolled yet"><pre>mete token create --role agent
mete-agent -server URL -token TOKEN</pre></${Empty}>` : html`<${Empty} title="No node passes the filters"><button onClick=${() => put({ q: "", cluster: "", state: "" })}>Show all</button></${Empty}>`} />`}</${Shown}>
    <p class="small muted reading">Of each bar, blue is what workloads use, gray the system, and the rest is idle. What is reserved is not known to this server.</p></section>`;
}

// A map of machines: a cell each, in groups, shaded by how much of a resource is in use.
import { html, useState, useRef } from "../vendor/preact.mjs";
import { Segments, Select, useHere } from "./ui.js";
import { grouped, text, shareOf, few, ago } from "./fmt.js";
import { addresses, put } from "./route.js";
import { groupsOf, natural, prefixOf } from "./names.js";

export const shades = { cpu_cores: { title: "CPU", unit: "cores" }, memory_bytes: { title: "memory", unit: "bytes" }, power_watts: { title: "power", unit: "watts" } };

// heatOf is the value by which a node is shaded: of CPU and memory the share in use, of power the
// watts; null where it is absent.
export function heatOf(node, by) {
  const p = node[by];
  if (!p) return null;
  if (by === "power_watts") return p.whole;
  return shareOf(p.workloads + p.system, p.whole);
}

// scaleOf returns the value of the darkest cell: the highest value, rounded up to a tenth of the
// whole or to two digits.
export function scaleOf(values, by) {
  const most = Math.max(0, ...values.filter((v) => v !== null));
  if (by !== "power_watts") return Math.min(1, Math.max(0.1, Math.ceil(most * 10 - 1e-9) / 10));
  const digit = 10 ** Math.max(0, Math.floor(Math.log10(most || 1)) - 1);
  return Math.ceil(most / digit) * digit || 1;
}

// groupings are the ways to group nodes that tell them apart: not one that has a single group, and
// of names not one that has about as many groups as nodes.
export function groupings(nodes) {
  const names = new Set(nodes.map((n) => prefixOf(n.name))).size, clusters = new Set(nodes.map((n) => n.cluster)).size;
  return [...(names > 1 && names <= nodes.length / 2 ? ["name"] : []), ...(clusters > 1 ? ["cluster"] : []), "none"];
}

const order = (a, b) => natural(a.name, b.name) || natural(a.cluster, b.cluster);

// arrange groups nodes: [{ name, list }], in natural order.
export function arrange(nodes, group) {
  const list = [...nodes].sort(order);
  return group === "none" ? [{ name: "", list }] : groupsOf(list, (n) => (group === "cluster" ? n.cluster : prefixOf(n.name)));
}

function Tip({ n }) {
  const line = (by) => (n[by] ? html`<div><span>${shades[by].title}</span><b>${by === "power_watts" ? text(n[by].whole, "watts") : text(heatOf(n, by), "percent") + " of " + text(n[by].whole, shades[by].unit)}</b></div>` : null);
  return html`<div><b class="tipname">${n.name}</b></div><div><span>${n.cluster}</span><b>${n.state}</b></div>${Object.keys(shades).map(line)}${n.workloads > 0 && html`<div><span>workloads</span><b>${grouped(n.workloads)}</b></div>`}${n.booked_through && html`<div><span>last data</span><b>${ago(n.booked_through)}</b></div>`}`;
}

function Scale({ by, top, states, blank }) {
  const unit = by === "power_watts" ? "watts" : "percent";
  return html`<div class="scale small muted num">${!blank && html`<span>${text(0, unit)}</span><i aria-hidden="true"></i><span>${text(top, unit)}</span>`}${states.map((s) => html`<span class="key"><i class=${"not " + s} aria-hidden="true"></i>${s}</span>`)}</div>`;
}

// Fleet is a small map of nodes: in the order and in the shades of CPU of the large one.
export function Fleet({ nodes }) {
  const by = "cpu_cores", at = addresses(nodes), top = scaleOf(nodes.map((n) => heatOf(n, by)), by), states = [...new Set(nodes.map((n) => n.state))].filter((s) => s !== "live").sort();
  return html`<ul class="fleet">${arrange(nodes, "none")[0].list.map((n) => {
    const v = heatOf(n, by), says = `${n.name}: ${v === null ? n.state : text(v, "percent")}`;
    return html`<li key=${n.node}><a href=${at(n)} class=${n.state === "live" ? "" : "not " + n.state} title=${says} aria-label=${says} style=${v === null ? null : { "--heat": Math.min(1, v / top).toFixed(3) }}></a></li>`;
  })}</ul><${Scale} by=${by} top=${top} states=${states} blank=${nodes.every((n) => heatOf(n, by) === null)} />`;
}

// Heat is the map of nodes, with its choices and its scale.
export function Heat({ nodes }) {
  const { query } = useHere();
  const by = shades[query.heat] ? query.heat : "cpu_cores", ways = groupings(nodes), group = ways.includes(query.group) ? query.group : ways[0];
  const [tip, set] = useState(null), box = useRef(), to = addresses(nodes);
  const top = scaleOf(nodes.map((n) => heatOf(n, by)), by), states = [...new Set(nodes.map((n) => n.state))].filter((s) => s !== "live").sort();
  const show = (n) => (e) => {
    const at = box.current.getBoundingClientRect(), cell = e.currentTarget.getBoundingClientRect();
    set({ n, x: Math.min(Math.max(0, cell.left - at.left - 60), Math.max(0, at.width - 190)), y: cell.bottom - at.top + 6 });
  };
  const hide = () => set(null);
  const cell = (n) => {
    const v = heatOf(n, by);
    return html`<li key=${n.node}><a href=${to(n)} class=${n.state === "live" ? "" : "not " + n.state} aria-label=${n.name + ": " + (v === null ? n.state : text(v, by === "power_watts" ? "watts" : "percent"))} style=${v === null ? null : { "--heat": Math.min(1, v / top).toFixed(3) }} onMouseEnter=${show(n)} onFocus=${show(n)} onMouseLeave=${hide} onBlur=${hide}></a></li>`;
  };
  return html`<div class="bar heatbar"><${Segments} label="shade by" options=${Object.entries(shades).map(([k, s]) => [k, s.title])} value=${by} choose=${(v) => put({ heat: v === "cpu_cores" ? "" : v }, true)} />
      ${ways.length > 1 && html`<${Segments} label="group by" options=${ways.map((w) => [w, { name: "group of names", cluster: "cluster", none: "no groups" }[w]])} value=${group} choose=${(v) => put({ group: v === ways[0] ? "" : v }, true)} />`}<div class="end"><${Scale} by=${by} top=${top} states=${states} blank=${nodes.every((n) => heatOf(n, by) === null)} /></div></div>
    <div class="heat" ref=${box}>${arrange(nodes, group).map((g) => html`<section class=${g.name ? "block" : "block all"} key=${g.name} aria-label=${g.name ? g.name + ", " + few(g.list.length, "node") : null}>${g.name && html`<h3 title=${g.name}>${g.name}<small>${g.list.length}</small></h3>`}<ul class="fleet">${g.list.map(cell)}</ul></section>`)}
      ${tip && html`<div class="tip" style=${{ left: tip.x + "px", top: tip.y + "px" }}><${Tip} n=${tip.n} /></div>`}</div>`;
}

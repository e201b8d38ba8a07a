// Energy flow: from the meter or model to the job. Energy that no job caused goes to system or idle.
import { html, useMemo } from "../../vendor/preact.mjs";
import { get } from "../api.js";
import { ledger, steps, useSpan } from "../span.js";
import { Card, Stat, Shown, Empty, Segments, Select, Figure, useData, useHere, useNarrow } from "../ui.js";
import { Table } from "../table.js";
import { Sankey } from "../sankey.js";
import { less } from "../history.js";
import { text, few, worst, shareOf, beside } from "../fmt.js";
import { natural } from "../names.js";
import { put, here, jobAt, nodeAt, nodeNamed, href, go } from "../route.js";

const domains = [["package", "energy_package_joules", "CPU packages"], ["dram", "energy_dram_joules", "memory"], ["gpu", "energy_gpu_joules", "accelerators"], ["rest", "energy_rest_joules", "whole machine"]], whole = "whole machine";
const fields = domains.map(([, f]) => f).concat("energy_joules", "energy_idle_joules", "energy_error_joules", "energy_idle_error_joules").join(",");
const residual = { idle: "--c-idle", system: "--c-system" };

// flowOf makes nodes and links of rows: source, domain, node or cluster, kind or namespace, job. Only the nodes
// and jobs with the largest values have their own. A narrow flow leaves out source and node.
export function flowOf(rows, most = { node: 10, job: 18 }, narrow = false) {
  const nodes = new Map(), links = new Map();
  const sums = (key) => { const m = new Map(); for (const r of rows) m.set(key(r), (m.get(key(r)) || 0) + r.value); return [...m].sort((a, b) => b[1] - a[1]).map(([k]) => k); };
  const topNodes = new Set(sums((r) => r.node).slice(0, most.node)), topJobs = new Set(sums((r) => r.group + "\u0000" + r.job).filter((k) => k.split("\u0000")[1] && !(k.split("\u0000")[1] in residual)).slice(0, most.job));
  const groups = new Set(rows.filter((r) => !(r.job in residual)).map((r) => r.group)).size, others = (group) => (groups > 1 ? "others of " + group : "other jobs");
  const several = !narrow && new Set(rows.map((r) => r.node)).size > 1;
  const add = (map, key, one, r) => { const n = map.get(key) || { ...one, value: 0, off: 0, quality: "" }; n.value += r.value; n.off += r.off; n.quality = worst([n.quality, r.quality]); map.set(key, n); };
  const at = (id, name, depth, tone, r, link = "", key = "") => { add(nodes, id, { id, key, name, depth, tone, link }, r); return id; };
  const flow = (from, to, r) => add(links, from + "\u0001" + to, { from, to }, r);
  // What meters show is measured: only its division among nodes and jobs is not. What a meter of the whole machine shows is
  // divided too where meters of its parts stand beside it.
  const parted = new Set(rows.filter((r) => r.source === "meters" && r.domain !== whole).map((r) => r.node)), divided = (r) => r.domain === whole && parted.has(r.node);
  const metered = (r) => (r.source === "meters" && !divided(r) ? { ...r, quality: "measured" } : r);
  for (const r of rows) {
    if (!(r.value > 0)) continue;
    const way = narrow ? [] : [at("source " + r.source, r.source, 0, "--c-rest", metered(r))];
    way.push(at("domain " + r.domain, r.domain, way.length, "", metered(r)));
    const node = topNodes.has(r.node) ? r.node : `other ${r.place}s`;
    let depth = way.length;
    if (several) way.push(at(r.place + " " + node, node, depth++, "", r, !topNodes.has(r.node) || r.several ? "" : r.place === "node" ? nodeAt(r.node) : href("/flow", { ...here().query, cluster: r.node })));
    if (r.job in residual) way.push(at("residual " + r.job, r.job === "idle" ? "idle" : "system", depth, residual[r.job], r));
    else {
      way.push(at("group " + r.group, r.group, depth, "", r));
      if (!r.job && !r.small) { for (let i = 1; i < way.length; i++) flow(way[i - 1], way[i], i === 1 && !narrow ? metered(r) : r); continue; }
      const top = topJobs.has(r.group + "\u0000" + r.job);
      way.push(at("job " + r.group + " " + (top ? r.job : ""), top ? r.job : others(r.group), depth + 1, top ? "" : "--c-rest", r, top ? jobAt(r.job) : "", top ? "job " + r.job : ""));
    }
    for (let i = 1; i < way.length; i++) flow(way[i - 1], way[i], i === 1 && !narrow ? metered(r) : r);
  }
  return { nodes: [...nodes.values()], links: [...links.values()].sort((a, b) => b.value - a.value) };
}

// within divides what the groups of an answer beyond its limit used, by the groups of the same dimensions without the
// job: then each cluster and each namespace has all that it used. What is beyond the limit of those too remains the rest.
export function within(jobs, groups) {
  const dims = groups.by, keyOf = (g) => dims.map((d) => g[d]).join("\u0000"), amounts = Object.keys(jobs.rest.quality);
  const others = (whole, parts) => Object.fromEntries(amounts.map((f) => [f, whole[f] === null ? null : less(Number(whole[f]), parts.reduce((a, p) => a + Number(p[f] || 0), 0))]));
  const of = {};
  for (const g of jobs.groups) (of[keyOf(g)] ||= []).push(g);
  const some = (g) => amounts.some((f) => g[f] > 0);
  const small = groups.groups.map((g) => ({ ...g, ...others(g, of[keyOf(g)] || []), job: "", small: true })).filter((g) => !residual[g.kind] && some(g));
  return { ...jobs, groups: [...jobs.groups, ...small], rest: groups.rest_groups > 0 ? { ...jobs.rest, ...others(jobs.rest, small) } : null };
}

// rowsOf divides an answer of the ledger, by node or cluster, by domain. The error of a group is divided as
// its energy is.
export function rowsOf(used, what) {
  const place = used.by.includes("node") ? "node" : "cluster", others = `other ${place}s`;
  const rows = [], places = [...new Set(used.groups.map((g) => g[place] || others))];
  // Groups beyond the limit are combined.
  const rest = used.rest ? [{ ...used.rest, [place]: places.length === 1 ? places[0] : `several ${place}s`, several: true, kind: "path", job: "" }] : [];
  for (const g of [...used.groups, ...rest]) {
    const sort = g.several ? "small jobs" : g.namespace && !(g.namespace in residual) ? g.namespace : g.kind === "path" ? "control groups" : g.kind + "s";
    const base = { place, node: g[place] || others, job: g.kind in residual ? g.kind : g.job, group: sort, space: g.namespace && !(g.namespace in residual) ? g.namespace : "", several: g.several, small: g.small };
    if (what === "cpu") { rows.push({ ...base, source: "kernel counters", domain: "CPU time", value: Number(g.cpu_seconds || 0), off: 0, quality: g.quality.cpu_seconds }); continue; }
    const all = Number(g.energy_joules || 0), idle = Number(g.energy_idle_joules || 0), off = Number(g.energy_error_joules || 0);
    for (const [, f, name] of domains) {
      const v = Number(g[f] || 0);
      if (v > 0) rows.push({ ...base, source: g.quality[f] === "modelled" ? "model" : "meters", domain: name, value: v, off: all > 0 ? off * v / all : 0, quality: g.quality[f] });
    }
    if (idle > 0) rows.push({ ...base, source: "idle, divided", domain: "idle energy", value: idle, off: Number(g.energy_idle_error_joules || 0), quality: g.quality.energy_idle_joules });
  }
  return rows;
}

// Name is the name of a node or a job with its page, or of another place of a flow.
const Name = ({ of }) => (of.link ? html`<a href=${of.link} title=${of.name}>${of.name}</a>` : html`<span title=${of.name}>${of.name}</span>`);

// Sums are the total, its parts, and who and where used most.
function Sums({ rows, total, unit, node, as }) {
  const sum = (list) => ({ value: list.reduce((a, r) => a + r.value, 0), off: list.reduce((a, r) => a + r.off, 0), quality: worst(list.map((r) => r.quality)) });
  const of = (job) => sum(rows.filter((r) => (job ? r.job === job : !(r.job in residual)))), work = of("");
  const most = (list, key) => {
    const by = new Map();
    for (const r of list) by.set(r[key], by.get(r[key]) || []).get(r[key]).push(r);
    return [...by].map(([name, l]) => ({ name, place: l[0].place, spaces: l.every((r) => r.space) ? new Set(l.map((r) => r.space)).size : 0, ...sum(l) })).sort((a, b) => b.value - a.value)[0];
  };
  const job = most(rows.filter((r) => r.job && !(r.job in residual)), "job"), place = node || (!rows.some((r) => r.several) && new Set(rows.map((r) => r.node)).size > 1 ? most(rows, "node") : null);
  const off = (s) => (unit === "joules" ? s.off : null), share = (s, whole) => text(shareOf(s.value, whole), "percent"), bar = (s, color) => [{ share: s.value / total.value, color, title: share(s, total.value) }];
  const part = (title, s, color, below) => html`<${Stat} title=${title} v=${s.value} as=${as(s.value)} unit=${unit} quality=${s.quality} off=${off(s)} parts=${bar(s, color)} below=${html`<span>${below}</span>`} />`;
  const named = (title, s, link, whole, what) => html`<div class="stat"><h3>${title}</h3><div class="value"><a class="plain" href=${link} title=${s.name}>${s.name}</a></div><div class="below"><span><${Figure} v=${s.value} as=${as(s.value)} unit=${unit} quality=${s.quality} off=${off(s)} /></span><span>${share(s, whole)} ${what}${s.spaces > 1 && s === job ? `, in ${s.spaces} namespaces` : ""}</span></div></div>`;
  return html`<section class="card stats" aria-label="sums"><${Stat} title="Total" v=${total.value} unit=${unit} quality=${worst(rows.map((r) => r.quality))} off=${off(total)} below=${[...new Set(rows.map((r) => r.domain))].join(", ")} />
    ${part("Workloads", work, "var(--accent)", share(work, total.value))}${["system", "idle"].map((k) => of(k)).map((s, i) => part(["System", "Idle"][i], s, ["var(--c-system)", "var(--c-idle)"][i], share(s, total.value)))}
    ${job && named("Largest job", job, jobAt(job.name), work.value, "of workloads")}${place && named("Largest " + place.place, place, place.place === "node" ? nodeAt(place.name) : href("/nodes", { cluster: place.name }), total.value, "of the total")}</section>`;
}

function Links({ flow, unit, narrow, as }) {
  const names = new Map(flow.nodes.map((n) => [n.id, n]));
  const columns = [
    { key: "from", title: "From", class: "name", value: (l) => names.get(l.from).depth + names.get(l.from).name, cell: (l) => html`<${Name} of=${names.get(l.from)} />` },
    { key: "to", title: "To", class: "name", value: (l) => names.get(l.to).name, cell: (l) => html`<${Name} of=${names.get(l.to)} />` },
    { key: "value", title: unit === "joules" ? "Energy" : "CPU time", num: true, first: true, value: (l) => l.value, cell: (l) => html`<${Figure} v=${l.value} as=${as(l.value)} unit=${unit} off=${unit === "joules" ? l.off : null} quality=${l.quality} />` },
    { key: "share", title: "Share of the source", num: true, value: (l) => l.value / names.get(l.from).value, cell: (l) => text(l.value / names.get(l.from).value, "percent") },
  ];
  // On a phone the amount stands beside where it flows to.
  const order = narrow ? [1, 2, 0, 3] : [0, 1, 2, 3];
  return html`<${Table} columns=${order.map((i) => columns[i])} rows=${flow.links} id=${(l) => l.from + l.to} name="links" label="all flows" />`;
}

export function Flow({ theme, nodes }) {
  const { query } = useHere();
  const span = useSpan(query), what = query.of === "cpu" ? "cpu" : "energy", idle = ["used", "equal"].includes(query.idle) ? query.idle : "";
  // Of one cluster, or one node, its own flow is shown: with all of its jobs, where those of all were combined.
  const place = query.node ? nodeNamed(nodes, query.node) || { node: query.node } : null, clusters = [...new Set(nodes.map((n) => n.cluster))].sort(natural);
  const where = place ? ["node=" + place.node] : query.cluster ? ["cluster=" + query.cluster] : [];
  const params = { where, fields: what === "cpu" ? "cpu_seconds" : fields, sort: what === "cpu" ? "cpu_seconds" : "energy_joules", limit: 1000, idle: what === "cpu" ? "" : idle };
  const ask = (by, signal, limit = 1000) => get("/v1/usage", { by, ...params, limit, ...ledger(span) }, signal);
  // Where the jobs of all nodes are too many to list, those of the clusters are listed: a job of many nodes would be
  // a part of what it is otherwise, the rest of it among the small ones.
  const used = useData(async (signal) => {
    const all = await ask("node,kind,namespace,job", signal);
    if (!(all.rest_groups > 0)) return { ...all, what };
    const [jobs, groups, node] = await Promise.all([ask("cluster,kind,namespace,job", signal), ask("cluster,kind,namespace", signal), ask("node", signal, 1)]);
    return { ...(jobs.rest_groups > 0 ? within(jobs, groups) : jobs), node: node.groups[0], what };
  }, [what, idle, where.join(), steps(span)]);
  const narrow = useNarrow(), rows = useMemo(() => used.data && used.data.what === what && rowsOf(used.data, what), [used.data, what]);
  const flow = useMemo(() => rows && flowOf(rows), [rows]), drawn = useMemo(() => rows && (narrow ? flowOf(rows, { node: 0, job: 10 }, true) : flow), [rows, narrow]);
  const unit = what === "cpu" ? "seconds" : "joules", total = used.data && used.data.total;
  const sumOf = (t) => (what === "cpu" ? { value: Number(t.cpu_seconds || 0), off: 0, quality: t.quality.cpu_seconds } : { value: Number(t.energy_joules || 0) + Number(t.energy_idle_joules || 0), off: Number(t.energy_error_joules || 0) + Number(t.energy_idle_error_joules || 0), quality: t.quality.energy_joules });
  const sum = total ? sumOf(total) : null, as = (v) => beside(v, unit, sum ? sum.value : 0);
  const depths = drawn ? Math.max(0, ...drawn.nodes.map((n) => n.depth)) + 1 : 0;
  const tall = drawn ? Math.max(360, Math.min(1100, (narrow ? 42 : 29) * Math.max(...Array.from({ length: depths }, (_, d) => drawn.nodes.filter((n) => n.depth === d).length)))) : 420;
  const pick = (id) => { const { link } = drawn.nodes.find((n) => n.id === id); if (link) go(link); };
  return html`<div class="bar"><${Segments} label="flow of" options=${[["energy", "energy"], ["cpu", "CPU time"]]} value=${what} choose=${(v) => put({ of: v === "energy" ? "" : v })} />
      ${what === "energy" && html`<div class="bar"><span class="muted">Idle energy</span><${Segments} label="idle energy" options=${[["", "separate"], ["used", "divided by use"], ["equal", "equally"]]} value=${idle} choose=${(v) => put({ idle: v })} /></div>`}
      ${place ? html`<span class="filter end">Node <a href=${nodeAt(query.node)}>${query.node}</a> <button type="button" onClick=${() => put({ node: "" })}>Show all nodes</button></span>` : (clusters.length > 1 || query.cluster) && html`<div class="end"><${Select} name="cluster" label="Cluster" all="all" options=${clusters} /></div>`}</div>
    ${flow && flow.links.length > 0 && html`<${Sums} rows=${rows} total=${sum} as=${as} unit=${unit} node=${used.data.node && { name: used.data.node.node, place: "node", ...sumOf(used.data.node) }} />`}
    <section class="card" aria-label="flow"><${Shown} of=${used.data && used.data.what !== what && !used.error ? { data: null } : used} height=${420}>${(u) => (!flow || flow.links.length === 0
      ? html`<${Empty} title=${what === "cpu" ? "No CPU time in this range" : "No energy data in this range"}><span>Choose a longer range. On a machine, <code>mete power</code> lists its meters.</span></${Empty}>`
      : html`<${Sankey} nodes=${drawn.nodes} links=${drawn.links} unit=${unit} height=${tall} theme=${theme} pick=${pick} narrow=${narrow} as=${as} />
        <p class="small muted">${what === "energy" ? "◐ is apportioned, ○ modelled; the possible error (±) of each flow is in its tooltip and in the table. " : ""}Each level sums to the same total, with system and idle, which end where they are${u.rest_groups > 0 ? `; ${few(u.rest_groups, "small job")} ${u.rest_groups === 1 ? "is" : "are"} combined${u.rest ? "" : " within clusters and namespaces"}` : ""}.</p>`)}</${Shown}></section>
    ${flow && flow.links.length > 0 && html`<${Card} title="All flows" note=${few(flow.links.length, "flow")} flush><${Links} flow=${flow} unit=${unit} narrow=${narrow} as=${as} /></${Card}>`}`;
}

// Node: one machine, its use over time, and its jobs.
import { html, useMemo } from "../../vendor/preact.mjs";
import { get, instant, range } from "../api.js";
import { ledger, steps, useSpan } from "../span.js";
import { resources, quote, divisions } from "../series.js";
import { Starting, isStarting, usePresent } from "../starting.js";
import { Card, Stat, Shown, Empty, Facts, Kind, Job, Segments, Skeleton, useData, useHere, partsOf } from "../ui.js";
import { Above, Stacked, Flows, Gaps, Stopped, Blank, stopped, useStacks, gapsIn, gapMarks, alertMarks, missing, missingMarks } from "../parts.js";
import { harmless, isNothing, reporting } from "../checks.js";
import { Brief } from "../firing.js";
import { useChange } from "../changes.js";
import { Classes, classFields } from "../classes.js";
import { Table } from "../table.js";
import { natural } from "../names.js";
import { State, sizeOf } from "./nodes.js";
import { grouped, text, shareOf, few, ago, exactly, beside, known as isKnown, when, time } from "../fmt.js";
import { jobColumns, jobFields, Sums } from "../amounts.js";
import { put, go, jobAt, nodeAt, nodeNamed, href, ranged } from "../route.js";

// InRange is a tile of what the machine used in the range, and of the job that used most of it: energy, or CPU time where
// no energy is known.
function InRange({ used }) {
  const total = used && used.total, power = total && isKnown(total.energy_joules), [field, unit] = power ? ["energy_joules", "joules"] : ["cpu_seconds", "seconds"];
  const jobs = used ? used.groups.filter((g) => !residual.includes(g.kind) && Number(g[field]) > 0) : [], first = jobs.reduce((a, g) => (a === null || Number(g[field]) > Number(a[field]) ? g : a), null);
  const idle = used ? used.groups.filter((g) => g.kind === "idle").reduce((a, g) => a + Number(g[field] || 0), 0) : 0, value = total && isKnown(total[field]) ? Number(total[field]) - (power ? 0 : idle) : null;
  if (!used) return html`<div class="stat"><h3>In the range</h3><${Skeleton} height=${48} /></div>`;
  return html`<${Stat} title=${power ? "Energy in the range" : "CPU time in the range"} v=${value} unit=${unit} quality=${total && total.quality[field]} below=${html`${power && isKnown(total.energy_error_joules) && html`<span title="possible error, either way">± ${text(total.energy_error_joules, unit, value)}</span>`}${power && html`<span>idle ${text(idle, unit, beside(idle, unit, value))}</span>`}${first && html`<span>most: <${Job} name=${first.job} kind=${first.kind} node=${used.node} /> ${text(first[field], unit, beside(first[field], unit, value))}</span>`}`} />`;
}

function Now({ n, since, span, used, old, change = () => null }) {
  const none = since ? "no data since " + when(since * 1000) : "not available";
  const share = (p, unit) => (p ? `${text(shareOf(p.workloads + p.system, p.whole), "percent")} of ${text(sizeOf(n, p, unit), unit)}` : none);
  const stat = (title, p, unit, tile) => html`<${Stat} title=${title} v=${p && p.workloads + p.system} unit=${unit} quality=${p && p.quality} parts=${partsOf(p, unit)} below=${p ? html`<span>${share(p, unit)}</span><span>workloads ${text(p.workloads, unit)}</span><span>idle ${text(p.idle, unit)}</span>${change(tile, unit)}` : html`<span>${none}</span>${change(tile, unit)}`} />`;
  const flow = (title, f, a, b) => html`<${Stat} title=${title} v=${f && f.in + f.out} unit="rate" quality=${f && f.quality} below=${f ? html`<span>${a} ${text(f.in, "rate")}</span><span>${b} ${text(f.out, "rate")}</span>${change(title.toLowerCase(), "rate")}` : html`<span>${none}</span>${change(title.toLowerCase(), "rate")}`} />`;
  const e = n.power_watts;
  return html`<section class=${"card stats six" + (old ? " old" : "")} aria-label="now">${stat("CPU", n.cpu_cores, "cores", "cpu")}${stat("Memory", n.memory_bytes, "bytes", "memory")}
    <${Stat} title="Power" v=${e && e.whole} unit="watts" quality=${e && e.quality} off=${e && e.error} parts=${partsOf(e, "watts")} below=${e ? html`<span>active ${text(e.workloads + e.system, "watts")}</span><span>idle ${text(e.idle, "watts")}</span>${change("power", "watts")}` : html`<span>${none}</span>${change("power", "watts")}`} />
    ${flow("Disk", n.disk_bytes_per_second, "read", "written")}${flow("Network", n.network_bytes_per_second, "in", "out")}<${InRange} used=${used} />
    ${n.cpu_cores && n.to && html`<p class="source small muted"><${Above} span=${span} /> the latest reading, ${time(n.from)} – ${time(n.to)}${old && html`, <b class="lacks">${ago(n.to)}</b>`}, but for what is in the range. Charts: averages over time.</p>`}</section>`;
}

// received asks how many bytes the machine received in the range, by the series of its charts; null where
// they do not cover the time that was measured.
async function received({ match, used, span }, signal) {
  const idle = used.groups.find((g) => g.kind === "idle"), covered = idle ? Number(idle.covered_seconds) : 0, l = ledger(span), from = Date.parse(l.from) / 1000, to = Math.min(Date.parse(l.to), Date.now()) / 1000;
  if (!(covered > 0) || !(to > from)) return null;
  const name = `mete_node_network_bytes_per_second{${match},direction="received"}`, step = Math.max(60, Math.ceil((to - from) / 60));
  try {
    const [average, seen] = await Promise.all([instant(`avg_over_time(${name}[${Math.ceil(to - from)}s])`, to, signal), range(`avg_over_time(${name}[${step}s])`, { from: from + step, to: Math.max(from + step, to), step }, signal)]);
    return average.length === 1 && seen.length === 1 && (seen[0].values.length + 1) * step >= covered ? Number(average[0].value[1]) * covered : null;
  } catch (e) {
    if (e.name === "AbortError") throw e;
    return null;
  }
}

// withOutside puts what the machine received into the sum of what its jobs used, and what belongs to no
// job into the row system, so that the rows add up. Jobs can receive more than the machine: traffic
// between them does not pass its interfaces. bytes is null where it is not known: then the sum is not known
// either, as it lacks what belongs to no job.
export function withOutside(used, bytes) {
  const field = "network_rx_bytes", own = used.groups.filter((g) => g.kind !== "system"), jobs = [...own, ...(used.rest_groups > 0 ? [used.rest] : [])].reduce((a, g) => a + Number(g[field] || 0), 0);
  const measured = (r, v) => ({ ...r, [field]: v, quality: { ...r.quality, [field]: v === null ? "absent" : "measured" } }), rest = bytes < jobs ? null : Math.round(bytes - jobs);
  if (bytes === null) return { ...used, total: used.total && measured(used.total, null) };
  const system = used.groups.find((g) => g.kind === "system") || { job: "system", kind: "system", covered_seconds: 0, quality: {} };
  return { ...used, groups: used.groups.length ? [...own, measured(system, rest)] : [], total: used.total && measured(used.total, rest === null ? Math.round(bytes) : jobs + rest), within: rest === null };
}

// similar are a few nodes whose names begin as one that is not known, or contain it.
export function similar(nodes, name) {
  const n = name.toLowerCase(), has = (m) => m.includes(n) || (n.length > 2 && m.startsWith(n.slice(0, -1))) || n.startsWith(m);
  return n ? nodes.filter((m) => has(m.name.toLowerCase())).sort((a, b) => natural(a.name, b.name)).slice(0, 5) : [];
}

// told are the figures of a node in About: by the metric of the server, its text.
const told = {
  mete_node_certificate_expiry_timestamp_seconds: ["Certificate ends", (v) => when(v * 1000)], mete_agent_spool_waiting_bytes: ["Data waiting in its spool", (v) => text(v, "bytes")],
  mete_node_power_cap_watts: ["Power limit", (v) => text(v, "watts")], mete_node_missed_lives_total: ["Missed starts and ends", (v) => grouped(v)], mete_conservation_violations_total: ["Failed balance checks", (v) => grouped(v)],
};

const residual = ["system", "idle"]; // what belongs to no job, in the foot

function Users({ used, name }) {
  const jobs = useMemo(() => used.groups.filter((g) => !residual.includes(g.kind)), [used]);
  const columns = [{ key: "job", title: "Job", class: "name", value: (r) => r.job, cell: (r) => html`<${Job} name=${r.job} kind=${r.kind} node=${name} />` },
    { key: "kind", title: "Kind", value: (r) => r.kind, cell: (r) => (r.kind === "path" ? html`<span class="muted">group</span>` : html`<${Kind} of=${r.kind} />`) }, ...jobColumns(jobs.length > 0 ? jobs : used.groups, used.total)], parts = jobs.length > 0 ? residual.flatMap((kind) => used.groups.filter((g) => g.kind === kind)) : [];
  return html`<${Table} columns=${columns} rows=${jobs.length > 0 ? jobs : used.groups} id=${(r) => r.job + "\u0000" + r.kind} name="jobs" label="jobs on this node" empty=${html`<${Empty} title="No data in this range" />`}
    foot=${html`<${Sums} columns=${columns} names=${2} used=${used} what="job" parts=${parts} />`} />${used.within && html`<p class="small muted reading">The jobs received more than the machine: traffic between them does not pass its interfaces.</p>`}`;
}

// upText says for how much of the range a machine was up.
export function upText(u) {
  if (!u) return null;
  const known = [u.up_share !== null && `${(Math.floor(u.up_share * 1e5) / 1e3).toFixed(u.up_share < 1 ? 3 : 0)} % of ${text(u.up_seconds + u.down_seconds, "seconds")}`, u.downs > 0 && `down ${u.downs === 1 ? "once" : u.downs + " times"}, for ${text(u.down_seconds, "seconds")}`];
  return [...known, u.unknown_seconds > 0 && `not known for ${text(u.unknown_seconds, "seconds")}`].filter(Boolean).join("; ");
}

// Wrong lists what is wrong with a machine: alerts about it, and gaps in its data.
function Wrong({ alerts, gaps }) {
  const lost = gaps.filter((g) => !harmless.includes(g.reason));
  return html`<${Card} title="Attention"><ul class="attention"><${Brief} alerts=${alerts} />${gaps.length > 0 && html`<li class=${lost.length > 0 ? "bad" : "warn"}><a href="#gaps">${few(gaps.length, "gap")} in the data</a><span>${[...new Set(gaps.map((g) => g.reason))].sort().join(", ")}${gaps.some((g) => g.seconds > 0) && `, ${text(gaps.reduce((a, g) => a + g.seconds, 0), "seconds")} in all`}</span><span class="end num">latest ${ago(gaps.map((g) => g.to).sort().at(-1))}</span></li>`}</ul></${Card}>`;
}

export function Node({ path, nodes, alerts }) {
  const { query } = useHere();
  const name = path.slice(6), span = useSpan(query);
  const known = nodeNamed(nodes, name), match = known ? `node=${quote(known.name)},cluster=${quote(known.cluster)}` : "";
  const now = useData(async (signal) => (known ? (await get("/v1/summary", { nodes: 1, node: known.node }, signal)).nodes[0] : null), [known && known.node], 5000);
  const by = query.by !== "nodes" && divisions[query.by] ? query.by : "", idle = query.idle === "1", starting = Boolean(known) && isStarting([known]);
  const compare = query.compare === "1", where = ["node=" + (known ? known.node : "")], change = useChange({ where, span, compare });
  const [of, previous] = useStacks({ by, where, span, compare });
  const present = usePresent(starting && nodes.length === 1);
  const used = useData(async (signal) => {
    if (!known) return null;
    const u = await get("/v1/usage", { by: "job,kind", where: "node=" + known.node, limit: 200, fields: jobFields + "," + classFields, ...ledger(span) }, signal);
    return { ...withOutside(u, await received({ match, used: u, span }, signal)), workloads: u.total, node: known.name };
  }, [known && known.node, steps(span)]);
  const gaps = useData(async (signal) => (known ? gapsIn(span, signal, { node: known.node }) : []), [known && known.node, steps(span)]);
  const figures = useData(async (signal) => (known ? Object.fromEntries((await instant(`{__name__=~"${Object.keys(told).join("|")}",${match}}`, undefined, signal)).map((m) => [m.metric.__name__, Number(m.value[1])])) : null), [known && known.node], 60000);
  const up = useData(async (signal) => (known ? (await get("/v1/uptime", { node: known.node, ...ledger(span) }, signal)).uptimes[0] : null), [known && known.node, steps(span)]);
  const own = useMemo(() => (known ? alerts.filter((a) => a.labels.node === known.name && (!a.labels.cluster || a.labels.cluster === known.cluster)) : []), [alerts, known && known.node]);
  const lacks = useMemo(() => missing(of.data, known && known.state !== "revoked" ? reporting([known]) : []), [of.data, known]), marks = useMemo(() => [...gapMarks(gaps.data), ...alertMarks(own), ...missingMarks(lacks)], [gaps.data, own, lacks]), noted = (gaps.data || []).filter((g) => !isNothing(g)), wrong = own.length > 0 || noted.length > 0;
  if (!known && name.endsWith(" volumes")) return html`<section class="card"><${Empty} title=${`"${name}" is not a machine`}><span>Under this name stands what the persistent volumes of a cluster reserve.</span><a class="button" href="/nodes">All nodes</a></${Empty}></section>`;
  if (!known) return html`<section class="card"><${Empty} title=${`No node is named "${name}"`}><span>${similar(nodes, name).length > 0 ? html`Did you mean ${similar(nodes, name).map((n, i) => html`${i > 0 && ", "}<a href=${nodeAt(n.name)}>${n.name}</a>`)}?` : "Check the spelling. A machine has a page once its agent has enrolled."}</span><a class="button" href="/nodes">All nodes</a></${Empty}></section>`;
  const q = (f) => used.data && used.data.total && used.data.total.quality[f];
  const pick = (p) => go(p.job ? jobAt(p.job, { node: known.name }) : href("/jobs", { ...ranged(query), ...p }));
  const chart = (r) => html`<${Stacked} resource=${r} of=${of} previous=${previous} idle=${idle} span=${span} width="w6" quality=${q(resources[r].amount)} marks=${marks} lacks=${lacks} pick=${by === "parts" ? undefined : pick} />`;
  if (starting) return html`${present.now && html`<${Now} n=${{ ...present.now.sum }} used=${null} />`}<${Starting} nodes=${[known]} history=${present.history} />`;
  const blank = of.data && of.data.empty, since = of.data && of.data.begin ? ", since " + when(of.data.begin * 1000) : "";
  return html`<div class="bar facts-line"><${State} of=${known.state} /><span class="muted">cluster ${known.cluster}</span><span class="muted">${few(known.cpus, "CPU")}</span><span class="muted" title=${known.booked_through ? exactly(known.booked_through) : ""}>${known.booked_through ? "last data " + ago(known.booked_through) : "no data yet"}</span><code class="muted small" title="ID">${known.node}</code><a class="end" href=${href("/flow", { node: known.name, ...ranged(query) })}>Energy flow</a></div>
    ${!blank && html`<${Stopped} nodes=${[known]} span=${span} />`}<${Shown} of=${now} height=${124}>${(n) => html`<${Now} n=${n} span=${span} since=${!n.cpu_cores && stopped([known])} used=${used.data} old=${known.state === "silent" || known.state === "behind"} change=${change} />`}</${Shown}>
    ${wrong && html`<${Wrong} alerts=${own} gaps=${noted} />`}
    <div class="bar"><${Segments} label="stack by" options=${[["", "jobs"], ["users", "users"], ["parts", "parts"]]} value=${by} choose=${(v) => put({ by: v })} />
      <label class="check"><input type="checkbox" checked=${idle} onChange=${(e) => put({ idle: e.target.checked ? "1" : "" }, true)} /> show idle</label>
      <label class="check"><input type="checkbox" checked=${query.compare === "1"} onChange=${(e) => put({ compare: e.target.checked ? "1" : "" }, true)} /> compare with the previous period</label></div>
    <div class="grid">${blank ? html`<${Blank} nodes=${[known]} span=${span} />` : html`${chart("cpu")}${chart("memory")}${chart("power")}
      <div class="w6 grid inner"><${Flows} title="Disk" name="mete_node_disk_bytes_per_second" match=${match} of=${of} names=${[["read", "disk_read_bytes"], ["written", "disk_written_bytes"]]} marks=${marks} span=${span} previous=${previous} compare=${compare} width="w6" height=${230} /><${Flows} title="Network" name="mete_node_network_bytes_per_second" match=${match} of=${of} names=${[["received", "network_rx_bytes"], ["sent", "network_tx_bytes"]]} marks=${marks} span=${span} previous=${previous} compare=${compare} width="w6" height=${230} /></div>`}
      <${Card} title="Jobs on this node" note="in the range" flush width="w12"><${Shown} of=${used} lines=${8}>${(u) => html`<${Users} used=${u} name=${known.name} />`}</${Shown}></${Card}>
      <${Classes} sum=${used.data && used.data.workloads} all="All workloads" width="w12" />
      ${gaps.data && gaps.data.length > 0 && html`<${Card} title="Gaps in the data" id="gaps" flush width="w8"><${Gaps} gaps=${gaps.data} own /></${Card}>`}
      <${Card} title="About" width=${gaps.data && gaps.data.length > 0 ? "w4" : "w12"}><${Facts} columns=${gaps.data && gaps.data.length > 0 ? 1 : 2} of=${[["CPUs", known.cpus > 0 ? grouped(known.cpus) : null], ["Memory", now.data && now.data.memory_bytes && text(now.data.memory_bytes.whole, "bytes")],
        ["Power", now.data && (now.data.power_watts ? { measured: "measured by its meters", apportioned: "measured by its meters, apportioned to workloads", modelled: "modelled: no meter shows all of it" }[now.data.power_watts.quality] : now.data.cpu_cores ? "absent: no meter, and no model" : null)],
        ["Enrolled", known.enrolled_at && when(known.enrolled_at)], ["Latest data", known.booked_through && exactly(known.booked_through)], ["Up", up.data && upText(up.data)], ["Guest of", known.nested_in && html`<a href=${nodeAt(known.nested_in.name || known.nested_in.node)}>${known.nested_in.name || known.nested_in.node}</a>`],
        ...Object.entries(told).map(([k, [title, says]]) => [title, figures.data && k in figures.data ? says(figures.data[k]) : null]), ["Machine ID", known.machine_id && html`<code>${known.machine_id}</code>`], ["Boot ID", known.boot && html`<code>${known.boot}</code>`], ["Open streams", String(known.streams)], ["Gaps", !blank && gaps.data && gaps.data.length === 0 ? (known.state === "live" ? "none" + (since || " in this range") : "none up to the latest data" + since) : null], ["Received from server", known.source && html`<code>${known.source}</code>`], ["Revoked", known.revoked_at && when(known.revoked_at)]]} /></${Card}></div>`;
}

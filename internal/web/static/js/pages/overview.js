// Overview: the use of all machines, now and over the range, and the largest users.
import { html, useMemo } from "../../vendor/preact.mjs";
import { get } from "../api.js";
import { ledger, steps, useSpan } from "../span.js";
import { resources, divisions } from "../series.js";
import { Starting, isStarting, isNew, usePresent } from "../starting.js";
import { Card, Stat, Shown, Empty, Figure, Kind, Job, Segments, useData, useHere, partsOf } from "../ui.js";
import { Above, Enroll, Stacked, Flows, Whole, Stopped, Blank, latest, stopped, useStacks, gapsIn, gapMarks, alertMarks, missing, missingMarks } from "../parts.js";
import { harmless, isNothing, reporting, sending } from "../checks.js";
import { useChange } from "../changes.js";
import { Brief } from "../firing.js";
import { Fleet } from "../heat.js";
import { grouped, text, few, ago, when, time, known, shareOf } from "../fmt.js";
import { href, here, addresses, nodeAt, jobAt, go, put, ranged } from "../route.js";

const fields = "cpu_seconds,memory_byte_seconds,disk_read_bytes,disk_written_bytes,energy_joules,energy_error_joules", topFields = "cpu_seconds,memory_peak_bytes,energy_joules,energy_error_joules";

// upToDate says how many of the nodes sent their latest data in time.
export function upToDate({ states }) {
  const all = Object.entries(states).reduce((a, [k, n]) => a + (k === "revoked" ? 0 : n), 0);
  return `${grouped(states.live || 0)} of ${grouped(all)}`;
}

// coresOf are the cores in use of a sum: where the clocks of the machines' kernels disagree, they count more CPU time than CPUs
// have, and are scaled to these, as the share is.
export const coresOf = ({ cpu_cores: p, cpus }) => p && (p.workloads + p.system) * (cpus > 0 && p.whole > cpus ? cpus / p.whole : 1);

// Now is the present use of all machines.
function Now({ now, nodes, span, change = () => null }) {
  const s = now.sum, share = (p) => (p && p.whole > 0 ? text(shareOf(p.workloads + p.system, p.whole), "percent") + " of " : "");
  // Sums are of the machines with fresh data.
  const active = nodes.filter((n) => n.state !== "revoked").length, some = now.measured > 0 && now.measured < active, titled = (t) => (some ? html`${t}<small class="lacks" title="the sum has the nodes with fresh data">${grouped(now.measured)} of ${few(active, "node")}</small>` : t);
  const old = !Object.keys(now.states).length || now.states.live > 0 ? 0 : latest(nodes); // no node sends anything now
  const flow = (f) => f && f.in + f.out, at = now.measured === 0 && stopped(nodes), none = at ? "no data since " + when(at * 1000) : "not available";
  return html`<section class=${"card stats six" + (old ? " old" : "")} aria-label="now">
    <${Stat} title=${titled("CPU")} v=${coresOf(s)} unit="cores" quality=${s.cpu_cores && s.cpu_cores.quality} parts=${partsOf(s.cpu_cores, "cores")} below=${html`<span>${s.cpu_cores ? share(s.cpu_cores) + text(s.cpus, "cores") : none}</span>${change("cpu", "cores")}`} />
    <${Stat} title=${titled("Memory")} v=${s.memory_bytes && s.memory_bytes.workloads + s.memory_bytes.system} unit="bytes" quality=${s.memory_bytes && s.memory_bytes.quality} parts=${partsOf(s.memory_bytes, "bytes")} below=${html`<span>${s.memory_bytes ? share(s.memory_bytes) + text(s.memory_bytes.whole, "bytes") : none}</span>${change("memory", "bytes")}`} />
    <${Stat} title=${titled("Power")} v=${s.power_watts && s.power_watts.whole} unit="watts" quality=${s.power_watts && s.power_watts.quality} off=${s.power_watts && s.power_watts.error} parts=${partsOf(s.power_watts, "watts")} below=${html`<span>${s.power_watts ? text(s.power_watts.idle, "watts") + " idle" : none}</span>${change("power", "watts")}`} />
    <${Stat} title=${titled("Disk")} v=${flow(s.disk_bytes_per_second)} unit="rate" quality=${s.disk_bytes_per_second && s.disk_bytes_per_second.quality} below=${html`${s.disk_bytes_per_second ? html`<span>read ${text(s.disk_bytes_per_second.in, "rate")}</span><span>written ${text(s.disk_bytes_per_second.out, "rate")}</span>` : html`<span>${none}</span>`}${change("disk", "rate")}`} />
    <${Stat} title=${titled("Network")} v=${flow(s.network_bytes_per_second)} unit="rate" quality=${s.network_bytes_per_second && s.network_bytes_per_second.quality} below=${html`${s.network_bytes_per_second ? html`<span>in ${text(s.network_bytes_per_second.in, "rate")}</span><span>out ${text(s.network_bytes_per_second.out, "rate")}</span>` : html`<span>${none}</span>`}${change("network", "rate")}`} />
    <div class="stat"><h3>${nodes.length === 1 ? "Machine" : "Nodes up to date"}</h3><div class="value">${nodes.length === 1 ? html`<a class="plain" href=${nodeAt(nodes[0].name)}>${nodes[0].name}</a>` : upToDate(now)}</div>
      <div class="below"><span title="workloads that used something in the latest window">${few(s.workloads, "active workload")}</span>${Object.entries(now.states).filter(([k]) => k !== "live" && !nodes.every((n) => isNew(n))).map(([k, n]) => html`<span class=${"tag " + ({ silent: "bad", behind: "warn" }[k] || "")}>${grouped(n)} ${k}</span>`)}</div></div>
    ${now.measured > 0 && latest(nodes) > 0 && html`<p class="source small muted"><${Above} span=${span} /> the latest reading${nodes.length > 1 ? (some ? ` of the ${grouped(now.measured)} of ${few(active, "node")} with fresh data` : " of each machine") : ""}, up to ${time(latest(nodes) * 1000)}${old > 0 && html`, <b class="lacks bad">${ago(old * 1000)}</b>`}. Charts: averages over time.</p>`}
  </section>`;
}

const sorts = [["cpu_seconds", "CPU", "seconds"], ["memory_peak_bytes", "peak memory", "bytes"], ["energy_joules", "energy", "joules"]];

// Top lists the jobs with the largest use in the range.
function Top({ span, sort }) {
  const keep = ranged(useHere().query);
  const data = useData((signal) => get("/v1/usage", { by: "job,kind", sort, limit: 14, fields: topFields, ...ledger(span) }, signal), [steps(span), sort], 0);
  const jobs = data.data ? data.data.groups.filter((g) => g.kind !== "idle" && g.kind !== "system") : [];
  const most = Math.max(1e-9, ...jobs.map((j) => Number(j[sort] || 0)));
  return html`<${Shown} of=${data} lines=${14}>${(d) => (jobs.length === 0
    ? html`<${Empty} title="No jobs in this range"><span>Run one: <code>mete run -- COMMAND</code></span></${Empty}>`
    : html`<ol class="rank">${jobs.map((j) => html`<li><i style=${{ width: (100 * Number(j[sort] || 0)) / most + "%" }}></i><${Job} name=${j.job} /><${Kind} of=${j.kind} />
      <${Figure} v=${j[sort]} like=${most} unit=${sorts.find(([k]) => k === sort)[2]} quality=${j.quality[sort]} off=${sort === "energy_joules" ? j.energy_error_joules : null} /></li>`)}</ol>
      <footer class="foot muted small"><span>${d.rest_groups === 0 ? "All jobs shown" : few(d.rest_groups, "more job") + (sort === "memory_peak_bytes" ? "" : ": " + text(d.rest[sort], sorts.find(([k]) => k === sort)[2], most))}</span><a href=${href("/jobs", keep)}>All jobs</a></footer>`)}</${Shown}>`;
}

const shownRows = 5;

// problemsOf lists problems: firing alerts, silent nodes, gaps. Many of one kind are one row.
function problemsOf({ nodes, gaps, alerts }) {
  const quiet = reporting(nodes).filter((n) => (n.state === "silent" || n.state === "behind") && !isNew(n)), of = (state) => quiet.filter((n) => n.state === state).length, bad = of("silent") > 0 ? "bad" : "warn";
  const more = (n, one, path) => (n > shownRows ? [html`<li class="warn"><a href=${path}>${few(n - shownRows, one)}</a></li>`] : []);
  const at = addresses(nodes);
  return [
    ...(alerts.length > 0 ? [html`<${Brief} alerts=${alerts} />`] : []),
    ...(quiet.length > shownRows ? [] : quiet).map((n) => html`<li class=${n.state === "silent" ? "bad" : "warn"}><a href=${at(n)}>${n.name}</a><span>${n.state}${n.booked_through ? ", last data " + ago(n.booked_through) : ""}</span></li>`),
    ...(quiet.length > shownRows ? [html`<li class=${bad}><a href=${href("/nodes", ranged(here().query))}>${few(quiet.length, "node")}</a><span>${["silent", "behind"].filter(of).map((s) => grouped(of(s)) + " " + s).join(", ")}${latest(quiet) > 0 && ", latest data " + ago(latest(quiet) * 1000)}</span></li>`] : []),
    ...[...gaps].sort((a, b) => harmless.includes(a.reason) - harmless.includes(b.reason)).slice(0, shownRows).map((g) => html`<li class=${harmless.includes(g.reason) ? "warn" : "bad"}><a href=${nodeAt(g.name)}>${g.name}</a><span title=${g.meaning}>${g.reason} for ${text(g.seconds, "seconds")}, ${ago(g.to)}</span></li>`), ...more(gaps.length, "more gap", href("/health", ranged(here().query))),
  ];
}

const Calm = () => html`<div class="calm"><span class="tick" aria-hidden="true"></span><div><b>No problems</b><div class="muted">No firing alerts, silent nodes or gaps in this range.</div></div></div>`;

export function Overview({ nodes, alerts }) {
  const { query } = useHere();
  const span = useSpan(query), starting = isStarting(nodes);
  const by = divisions[query.by] ? query.by : "", sort = sorts.some(([k]) => k === query.top) ? query.top : "cpu_seconds";
  const live = useData((signal) => get("/v1/summary", { nodes: nodes.length > 1 ? 1 : "" }, signal), [nodes.length > 1], nodes.length > 100 ? 15000 : 5000);
  const present = usePresent(starting);
  const compare = query.compare === "1", change = useChange({ span, compare });
  const [of, previous] = useStacks({ by, span, nodes: nodes.length, compare });
  const used = useData((signal) => get("/v1/usage", { by: "kind", fields, ...ledger(span) }, signal), [steps(span), starting]);
  const gaps = useData((signal) => gapsIn(span, signal), [steps(span)]);
  const dimensions = useData(async (signal) => {
    const list = (await get("/v1/dimensions", {}, signal)).dimensions;
    return ["namespace", "user"].map((name) => list.some((d) => d.dimension === name && d.workloads > 0));
  }, []);
  const expected = useMemo(() => sending(nodes), [nodes]), lacks = useMemo(() => missing(of.data, expected), [of.data, expected]);
  const marks = useMemo(() => [...gapMarks(gaps.data), ...alertMarks(alerts), ...missingMarks(lacks)], [gaps.data, alerts, lacks]);
  if (nodes.length === 0) return html`<section class="card"><${Enroll} /></section>`;
  const several = nodes.length > 1, [spaces, users] = dimensions.data || [];
  if (starting) return html`${present.now && html`<${Now} now=${present.now} nodes=${nodes} />`}<${Starting} nodes=${nodes} history=${present.history} />`;
  const now = live.data && live.data.measured === 0 && present.now ? { ...live, data: present.now } : live;
  const idle = query.idle === "1";
  const q = (f) => used.data && used.data.total && used.data.total.quality[f];
  const pick = (p) => go(p.node ? nodeAt(p.node) : p.job ? jobAt(p.job) : href("/jobs", { ...ranged(query), ...p }));
  const chart = (r, aside) => html`<${Stacked} resource=${r} of=${of} previous=${previous} idle=${idle} span=${span} width="w6" quality=${q(resources[r].amount)} marks=${marks} lacks=${lacks} pick=${by === "parts" ? undefined : pick} aside=${aside} />`;
  const choices = [["", "jobs"], ...(users || by === "users" ? [["users", "users"]] : []), ...(several || by === "nodes" ? [["nodes", "nodes"]] : []), ...(spaces || by === "namespaces" ? [["namespaces", "namespaces"]] : []), ["parts", "parts"]];
  const large = nodes.length > 100;
  const cells = several && live.data && html`<${Card} title="Nodes" note="CPU in use" width=${large ? "w12" : ""} aside=${html`<a href="/nodes">All nodes</a>`}><${Fleet} nodes=${live.data.nodes || []} /></${Card}>`;
  const wrong = problemsOf({ nodes, gaps: (gaps.data || []).filter((g) => !isNothing(g)), alerts });
  const active = nodes.filter((n) => n.state !== "revoked"), blank = of.data && of.data.empty;
  return html`${!blank && html`<${Stopped} nodes=${active} span=${span} />`}<${Shown} of=${now} height=${124}>${(d) => html`<${Now} now=${d} nodes=${nodes} span=${span} change=${change} />`}</${Shown}>
    ${wrong.length > 0 && html`<${Card} title="Attention"><ul class=${"attention" + (wrong.length > 1 ? " two" : "")}>${wrong}</ul></${Card}>`}
    <div class="bar"><${Segments} label="stack by" options=${choices} value=${by} choose=${(v) => put({ by: v })} />
      <label class="check"><input type="checkbox" checked=${idle} onChange=${(e) => put({ idle: e.target.checked ? "1" : "" }, true)} /> show idle</label>
      <label class="check"><input type="checkbox" checked=${query.compare === "1"} onChange=${(e) => put({ compare: e.target.checked ? "1" : "" }, true)} /> compare with the previous period</label></div>
    <div class="grid">
      ${blank ? html`<${Blank} nodes=${active} span=${span} />` : html`${chart("cpu")}${chart("memory")}${chart("power")}
      <div class="w6 grid inner"><${Flows} title="Disk" name="mete_node_disk_bytes_per_second" nodes=${expected.length} of=${of} names=${[["read", "disk_read_bytes"], ["written", "disk_written_bytes"]]} span=${span} previous=${previous} compare=${compare} width="w6" height=${230} marks=${marks} /><${Flows} title="Network" name="mete_node_network_bytes_per_second" nodes=${expected.length} of=${of} names=${[["received", "network_rx_bytes"], ["sent", "network_tx_bytes"]]} span=${span} previous=${previous} compare=${compare} width="w6" height=${230} marks=${marks} /></div>`}
      <${Card} title="Most used" note="jobs, in the range" width="w6" aside=${html`<${Segments} label="most used by" options=${sorts} value=${sort} choose=${(v) => put({ top: v === "cpu_seconds" ? "" : v })} />`}><${Top} span=${span} sort=${sort} /></${Card}>
      <div class="w6 stack">${wrong.length === 0 && html`<${Card} title="Attention"><${Shown} of=${gaps} height=${60}>${() => html`<${Calm} />`}</${Shown}></${Card}>`}
        ${!large && cells}
        <${Card} title="Balance" note="workloads + system + idle = total"><${Shown} of=${used} height=${180}>${(u) => html`<${Whole} used=${u} />`}</${Shown}></${Card}></div>
      ${large && cells}
    </div>`;
}

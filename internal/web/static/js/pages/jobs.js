// Jobs: the use of each job in the range.
import { html, useState, useRef, useEffect, useMemo } from "../../vendor/preact.mjs";
import { get, save } from "../api.js";
import { ledger, steps, useSpan } from "../span.js";
import { coarse, mean } from "../history.js";
import { Card, Shown, Skeleton, Empty, Figure, Kind, Job, Search, Select, Spark, useData, useHere, useNarrow } from "../ui.js";
import { Table, Columns } from "../table.js";
import { grouped, text, shareOf, few, known, worst } from "../fmt.js";
import { put } from "../route.js";
import { amounts, drawable, reserved, unusedHelp, Sums } from "../amounts.js";
import { statesOf, placeOf, rankOf, isIn, counted as counts, says, State, Begin, Length, Wrong } from "../states.js";
import { most } from "../runs.js";

const some = 2000; // rows that are loaded at first

const named = (key, title, width) => ({ key, title, dim: key, width, value: (r) => r[key] || null, cell: (r) => (r[key] ? html`<span title=${r[key]}>${r[key]}</span>` : html`<span class="absent" title="none">–</span>`) });

// On a screen of 1440 pixels, all columns at first of a fleet stand without scrolling.
const widths = { amount: "6.6rem", running: "9.4rem", held: "9.8rem", unused: "9.4rem" };

// isRecent reports whether a curve has none of what a job used, or no value at all.
export const isRecent = (values, r) => Boolean(values) && (values.every((v) => v === null) || (Number(r.cpu_seconds) > 0 && !values.some((v) => v > 0)));

function allColumns(trend, total, rows, over, narrow, states = { of: new Map(), from: 0 }) {
  const { amount, held, limit, whileRunning, whileItRan } = amounts(rows, widths, over, total.sum), of = (r) => states.of.get(r), cpu = amount("cpu_seconds", "CPU", "seconds", "CPU time in the range", { first: true, width: "10.6rem" });
  return [
    { key: "job", title: "Job", always: true, width: "10.4rem", grows: !narrow, class: "name", value: (r) => r.job.toLowerCase(), cell: (r) => { const of = narrow && placeOf(r); return of ? html`<span class="two"><${Job} name=${r.job} /><small title=${of}>${of}</small></span>` : html`<${Job} name=${r.job} />`; } },
    { key: "state", title: "State", lead: true, width: narrow ? "7.2rem" : "9.4rem", help: "running: it has use up to the latest data; and what is wrong with it", value: (r) => rankOf(of(r)), cell: (r) => html`<${State} of=${of(r)} short=${narrow} />` },
    { key: "begin", title: "Start", num: true, width: "7rem", help: "first use in the range", value: (r) => of(r).begin, cell: (r) => html`<${Begin} s=${of(r)} from=${states.from} />` },
    { key: "length", title: "Length", num: true, width: "6.3rem", help: "from the first to the last use in the range", value: (r) => of(r).end - of(r).begin, cell: (r) => html`<${Length} s=${of(r)} />` },
    { key: "kind", title: "Kind", width: "6.2rem", value: (r) => r.kind, cell: (r) => html`<${Kind} of=${r.kind} />${r.kind === "path" && html`<span class="muted">group</span>`}` },
    named("namespace", "Namespace", "6.4rem"), named("user", "User", "5.4rem"), named("project", "Project", "8rem"), named("cluster", "Cluster", "5.2rem"),
    { key: "nodes", title: "Nodes", num: true, width: "4.5rem", value: (r) => r.nodes, cell: (r) => grouped(r.nodes) },
    { key: "trend", title: "CPU trend", long: "CPU over time", width: "6.6rem", help: "CPU use over the range; each chart has its own scale", cell: (r) => (trend[keyOf(r)] === undefined ? html`<span class="absent small">loading</span>` : trend[keyOf(r)] === null ? html`<span class="absent" title="not loaded: refresh the page">–</span>` : isRecent(trend[keyOf(r)], r) ? html`<span class="absent" title="nothing before the latest minutes, which are still being measured">–</span>` : html`<${Spark} values=${trend[keyOf(r)]} label=${"CPU of " + r.job} />`) },
    { ...cpu, cell: (r) => html`${cpu.cell(r)}<span class="share" title=${text(shareOf(Number(r.cpu_seconds), total.cpu), "percent") + (total.filtered ? " of the CPU time of the filtered jobs" : " of the CPU time of all jobs and the system")}><i style=${{ width: Math.min(100, 100 * Number(r.cpu_seconds) / total.most) + "%" }}></i></span>` },
    amount("cpu_throttled_seconds", "Throttled", "seconds", "time in which tasks were throttled by a CPU limit"),
    whileItRan("memory", "Memory", "memory_byte_seconds", "bytes", "average memory, with page cache,"),
    amount("memory_peak_bytes", "Workload peak", "bytes", "largest memory peak of a workload", { long: "Memory, largest peak of a workload", width: "8.6rem" }),
    whileRunning("cores", "Cores", "cpu_seconds", "cores", "average CPU use"),
    whileRunning("power", "Power", "energy_joules", "watts", "average power of the activity"),
    amount("disk_read_bytes", "Read", "bytes", "bytes read from disks", { long: "Disk read" }), amount("disk_written_bytes", "Written", "bytes", "bytes written to disks", { long: "Disk written" }),
    amount("network_rx_bytes", "Received", "bytes", "bytes received", { long: "Network received" }), amount("network_tx_bytes", "Sent", "bytes", "bytes sent", { long: "Network sent" }),
    amount("processes", "Processes", "count", "processes started", { long: "Processes started" }), amount("oom_kills", "OOM kills", "count", "processes killed because memory ran out"),
    amount("energy_joules", "Energy", "joules", "energy of the activity, with the possible error", { width: "14.2rem", off: "energy_error_joules" }),
    amount("cpu_reserved_seconds", "CPU reserved", "seconds", "CPU time that pods reserve", { reserved: true, width: widths.held }),
    limit("cpu_limit_seconds", "CPU limit", "cpu", "cpu_limit_seconds", "seconds", (r) => r.cpu_limit_seconds, "CPU time that limits allow,", { sums: true }),
    amount("cpu_unused_seconds", "CPU unused", "seconds", unusedHelp("CPU time"), { reserved: true, width: "7rem" }),
    held("memory_reserved", "Memory reserved", "memory_reserved_byte_seconds", "average memory that pods reserve"),
    limit("memory_limit", "Memory limit", "memory", "memory_limit_byte_seconds", "bytes", (r) => reserved(r, "memory_limit_byte_seconds", over), "average memory that limits allow,", { long: "Memory limit, average of the job while it ran" }),
    held("memory_unused", "Memory unused", "memory_unused_byte_seconds", unusedHelp("average memory"), { width: widths.unused }),
    held("storage", "Storage", "storage_byte_seconds", "average disk space that containers, pods and volumes use", { reserved: false, width: widths.amount }),
    held("storage_reserved", "Storage reserved", "storage_reserved_byte_seconds", "average storage that pods and volumes reserve"),
    amount("gpu_reserved_seconds", "GPUs reserved", "seconds", "time of accelerators that pods reserve", { reserved: true, width: widths.held, long: "GPUs reserved" }),
  ];
}
const usual = ["state", "begin", "length", "trend", "cpu_seconds", "memory", "energy_joules"];

// usualOf are the columns at first: whether and since when a job runs, what it used, and whose it is and where it runs, where that
// differs. Where something is reserved, what is not used of it takes the place of the length and the curve.
export function usualOf(dimensions, nodes, reserves = false) {
  const has = (d) => dimensions.some((of) => of.dimension === d && of.workloads > 0), clusters = new Set(nodes.map((n) => n.cluster)).size > 1;
  return [...(reserves ? usual.filter((c) => c !== "length" && c !== "trend").concat("cpu_unused_seconds", "memory_unused") : usual), ...(has("namespace") ? ["namespace"] : []), ...(clusters ? ["cluster"] : []), ...(has("user") ? ["user"] : []), ...(nodes.length > 1 ? ["nodes"] : [])];
}

// inOrder moves the figures beside the names on a narrow screen, and the other columns after them.
export function inOrder(columns, narrow) {
  if (!narrow) return columns;
  const rank = (c) => (c.always ? 0 : c.lead ? 1 : c.fields ? 2 : 3);
  return columns.map((c) => (c.fields ? { ...c, width: c.key === "cpu_seconds" ? "7rem" : c.width } : c)).sort((a, b) => rank(a) - rank(b));
}

// Columns by which the server cannot sort, and the figure by which it sorts instead.
const sortedBy = { memory: "memory_byte_seconds", cores: "cpu_seconds", power: "energy_joules", memory_reserved: "memory_reserved_byte_seconds", memory_limit: "memory_limit_byte_seconds", memory_unused: "memory_unused_byte_seconds", storage: "storage_byte_seconds", storage_reserved: "storage_reserved_byte_seconds" };

const apart = ["kind", "namespace", "user", "project", "cluster"];
const keyOf = (r) => [r.job, ...apart.map((d) => r[d])].join("\u0000");

// sending is for how many seconds after the end of a minute machines may still send parts of it, and minutes
// are the longest buckets of which that is much.
const sending = 45, minutes = 300;

// linesOf are the averages of rows in buckets, by the key of the row. A curve does not fall because a minute
// is not over: a short bucket that is still being measured has no value, and the last one else counts as far as it was
// measured. Before any of them used something there is no value, and none where no machine was measured.
export function linesOf(rows, buckets, of, now = Date.now() / 1000) {
  const begin = of.findIndex((a) => a.groups.length > 0), known = ({ from, to }, i) => i >= begin && isMeasured(of[i]) && (to - from > minutes || to < now - sending);
  const lines = Object.fromEntries(rows.map((r) => [keyOf(r), buckets.map((b, i) => (known(b, i) ? 0 : null))]));
  of.forEach((a, i) => {
    const { from, to } = buckets[i], over = i === of.length - 1 && a.averages_over_seconds > 0 ? Math.min(to - from, a.averages_over_seconds) : to - from;
    for (const g of a.groups) { const line = lines[keyOf(g)]; if (line && line[i] !== null) line[i] = mean(g, "cpu_seconds", { from: 0, to: over }) || 0; }
  });
  return lines;
}

// isMeasured reports whether an answer is about time in which a machine was measured.
const isMeasured = (a) => a.groups.length > 0 || !a.whole || Number(a.whole.cpu_seconds) > 0;

// trendsOf requests the small charts of rows, from the amounts that the ledger sums: key to values.
async function trendsOf(rows, { by, where, span, nodes }, signal) {
  const jobs = [...new Set(rows.map((r) => r.job))], { buckets, of } = await coarse({ by, where: [...where, ...jobs.map((j) => "job=" + j)], fields: "cpu_seconds" }, span, nodes, signal);
  return linesOf(rows, buckets, of);
}

// useTrends requests the small charts of the visible rows, a few at a time. Charts stay until newer
// ones arrive.
function useTrends(of) {
  const [found, set] = useState({});
  const work = useRef({ rows: [], have: new Set(), busy: false, timer: 0, control: new AbortController() });
  const at = useRef(of);
  at.current = of;
  const load = async () => {
    const w = work.current, rows = w.rows.filter((r) => !w.have.has(keyOf(r))).slice(0, 40);
    if (w.busy || rows.length === 0) return;
    w.busy = true;
    const { have } = w;
    for (const r of rows) have.add(keyOf(r));
    try {
      const lines = await trendsOf(rows, at.current, w.control.signal);
      set((was) => ({ ...was, ...lines }));
    } catch (e) {
      if (e.name === "AbortError") return;
      set((was) => ({ ...Object.fromEntries(rows.map((r) => [keyOf(r), null])), ...was }));
    }
    w.busy = false;
    load();
  };
  useEffect(() => { work.current.have = new Set(); load(); }, [of.by, of.where.join("\n"), steps(of.span)]);
  useEffect(() => () => { clearTimeout(work.current.timer); work.current.control.abort(); }, []);
  const seen = (rows) => { const w = work.current; w.rows = rows; clearTimeout(w.timer); w.timer = setTimeout(load, 120); };
  return [found, seen];
}

export function Jobs({ nodes }) {
  const dimensions = useData(async (signal) => (await get("/v1/dimensions", {}, signal)).dimensions, []);
  const { query } = useHere(), span = useSpan(query);
  const reserved = useData(async (signal) => { const { total } = await get("/v1/usage", { by: "cluster", fields: "reserved_time_seconds", ...ledger(span) }, signal); return Boolean(total && known(total.reserved_time_seconds)); }, []);
  if ([dimensions, reserved].some((d) => d.data === null && !d.error)) return html`<section class="card flush fill"><${Skeleton} lines=${14} /></section>`;
  const reserves = Boolean(reserved.data);
  return html`<${List} nodes=${nodes} reserves=${reserves} first=${usualOf(dimensions.data || [], nodes, reserves)} />`;
}

// sumOf is the sum of rows, and of what is beyond them, if that is known.
export function sumOf(rows, fields, rest) {
  const all = rest ? [...rows, rest] : rows, quality = {}, sum = { quality };
  for (const f of fields) {
    const of = all.filter((r) => known(r[f]));
    sum[f] = of.length ? of.reduce((a, r) => a + Number(r[f]), 0) : null;
    quality[f] = worst(of.map((r) => r.quality[f]));
  }
  return sum;
}

// counted says how many jobs are listed, and where a job has several rows, as one of several users has, how many rows.
// Of jobs that are not loaded only the rows are known.
export function counted(rows, rest, loaded = 0) {
  const jobs = new Set(rows.map((r) => r.job)).size;
  if (rest > 0 && loaded > 0) return `${grouped(rows.length)} of the ${few(loaded, "row")} loaded`;
  if (rest > 0) return `${grouped(rows.length)} of ${few(rows.length + rest, "row")}`;
  return few(jobs, "job") + (jobs < rows.length ? ` in ${few(rows.length, "row")}` : "");
}

function List({ nodes, first, reserves }) {
  const { query } = useHere();
  const span = useSpan(query);
  const shown = query.cols ? query.cols.split("~") : first, narrow = useNarrow();
  const columns = allColumns({}, { cpu: 1, most: 1 }, []).filter((c) => !c.reserved || reserves || shown.includes(c.key));
  const picked = columns.filter((c) => c.always || shown.includes(c.key));
  const by = ["job", "kind", ...["namespace", "user", "project", "cluster"].filter((d) => shown.includes(d))].join(",");
  const wanted = new Set(picked.flatMap((c) => c.fields || []).concat("cpu_seconds"));
  const fields = [...new Set([...wanted, "oom_kills", "cpu_throttled_seconds", ...(reserves ? ["cpu_reserved_seconds", "memory_reserved_byte_seconds", "memory_byte_seconds", "reserved_time_seconds"] : [])])].join(","), sorting = (query.sort || "cpu_seconds").split(".")[0], sort = sortedBy[sorting] || sorting;
  const where = [...["cluster", "namespace", "user", "project", "kind"].filter((d) => query[d]).map((d) => d + "=" + query[d]), ...(query.label ? ["label:" + query.label] : [])];
  const [trend, seen] = useTrends({ by, where, span, nodes: nodes.length });
  const limit = query.all ? 10000 : some, params = { by, fields, where, limit, sort: wanted.has(sort) && sort !== "trend" ? sort : "" };
  const data = useData((signal) => get("/v1/usage", { ...params, ...ledger(span) }, signal), [JSON.stringify(params), steps(span)], 0);
  const offers = useData(async (signal) => {
    const [a, b, c] = await Promise.all(["namespace", "user", "kind"].map((d) => get("/v1/usage", { by: d, fields: "cpu_seconds", limit: 500, ...ledger(span) }, signal)));
    const list = (u, d) => u.groups.map((g) => g[d]).filter((v) => v && v !== "idle" && v !== "system").sort();
    return { namespace: list(a, "namespace"), user: list(b, "user"), kind: list(c, "kind") };
  }, [span.length]);
  const clusters = [...new Set(nodes.map((n) => n.cluster))].sort();
  // The latest runs, and of those before them the ones that failed.
  const runs = useData(async (signal) => {
    const ask = (more) => get("/v1/runs", { where, limit: most, ...more, ...ledger(span) }, signal), [all, failed] = await Promise.all([ask({}), ask({ failed: 1 })]), ids = new Set(all.runs.map((r) => r.run));
    return [...all.runs, ...failed.runs.filter((r) => !ids.has(r.run))];
  }, [where.join("\n"), steps(span)]);
  const q = (query.q || "").toLowerCase();
  const matching = useMemo(() => (data.data ? data.data.groups : []).filter((g) => g.kind !== "idle" && g.kind !== "system" && (!q || [g.job, g.namespace, g.user, g.project].some((v) => v && v.toLowerCase().includes(q)))), [data.data, q]);
  const states = useMemo(() => { const { from, to } = data.data ? rangeOf(data.data) : {}; return { from, of: statesOf(matching, { nodes, runs: runs.data, from, to: Math.min(to, Date.now() / 1000) }) }; }, [matching, runs.data, nodes]);
  const rows = useMemo(() => matching.filter((r) => isIn(states.of.get(r), query.state)), [states, query.state]);
  const wrong = matching.filter((r) => states.of.get(r).wrong.length > 0);
  const total = data.data && data.data.total, share = { filtered: where.length > 0, cpu: Math.max(1e-9, total ? Number(total.cpu_seconds) - idleOf(data.data) : 1), most: Math.max(1e-9, ...rows.slice(0, 3000).map((r) => Number(r.cpu_seconds))) };
  const o = offers.data || { namespace: [], user: [], kind: [] };
  const filtered = where.length > 0 || q || query.state;
  // The rows that are not listed have a sum too, without idle and system, which are among those that are listed.
  const sum = (d) => {
    const rest = d.rest_groups > 0 && d.groups.some((g) => g.kind === "idle") ? d.rest : null, part = q || query.state;
    return (part ? !d.rest_groups : rest || !d.rest_groups) ? sumOf(rows, [...wanted], part ? null : rest) : null;
  };
  const foot = (all, drawn) => {
    const names = drawn.findIndex((c) => c.sums);
    return names > 0 && all && html`<${Sums} columns=${drawn} names=${names} used=${{ rest_groups: 0, total: all }} what="job" />`;
  };
  const filters = html`${clusters.length > 1 && html`<${Select} name="cluster" label="Cluster" all="all" options=${clusters} />`}
      ${(o.namespace.length > 0 || query.namespace) && html`<${Select} name="namespace" label="Namespace" all="all" options=${o.namespace} />`}
      ${(o.user.length > 0 || query.user) && html`<${Select} name="user" label="User" all="all" options=${o.user} />`}
      <${Select} name="kind" label="Kind" all="all" options=${o.kind} /><${Label} value=${query.label} />`;
  return html`${wrong.length > 0 && query.state !== "wrong" && html`<${Card} title="Attention" note=${few(wrong.length, "job") + " of " + grouped(matching.length)}><${Wrong} list=${wrong.map((r) => [r, states.of.get(r)])} all=${() => put({ state: "wrong", sort: "state.down" })} /></${Card}>`}
    <section class="card flush fill"><header class="bar"><${Search} placeholder="Filter jobs" />
      ${narrow ? html`<details class="filters" open=${where.length > 0}><summary>Filters${where.length > 0 ? " (" + where.length + ")" : ""}</summary><div class="bar">${filters}</div></details>` : filters}
      ${data.data && html`<${States} rows=${matching} of=${states.of} chosen=${query.state} />`}
      <div class="end bar"><span class="muted num" role="status" title=${"a row for each " + by.replaceAll(",", ", ").replace(/, (\w+)$/, " and $1") + " with use in the range"}>${data.data ? counted(rows, data.data.rest_groups, q || query.state ? data.data.groups.length : 0) + ", " + (span.name ? "last " + span.name : "in the range") : data.error ? "" : "…"}</span><${Columns} columns=${columns} shown=${shown} />
      <button type="button" onClick=${() => save("/v1/usage", { by, where, format: "csv", limit: 10000, ...ledger(span) }, "jobs.csv")} title=${"all columns, in base units" + (q ? ", of all rows: the text filter does not apply" : " of all rows")} aria-label="Download CSV">${narrow ? "CSV" : "Download CSV"}</button></div></header>
    <${Shown} of=${data} lines=${14}>${(d) => { const all = sum(d), drawn = inOrder(drawable(allColumns(trend, { ...share, sum: all }, rows, d.averages_over_seconds, narrow, states).filter((c) => c.always || shown.includes(c.key)), rows), narrow); return html`<${Table} tall columns=${drawn} rows=${rows} foot=${foot(all, drawn)} id=${keyOf} label="jobs" seen=${shown.includes("trend") ? seen : null}
      empty=${html`<${Empty} title=${filtered ? (q && d.rest_groups > 0 ? `None of the ${grouped(d.groups.length)} loaded rows matches` : "No jobs match the filters") : "No jobs in this range"}>${filtered ? html`<button onClick=${() => put({ q: "", cluster: "", namespace: "", user: "", project: "", kind: "", label: "", state: "" })}>Show all</button>` : html`<span>Choose a longer range, or run a job: <code>mete run -- COMMAND</code></span>`}</${Empty}>`} />
      ${d.rest_groups > 0 && html`<footer class="foot muted"><span>${few(d.rest_groups, "more row")} used ${text(d.rest.cpu_seconds, "seconds")} of CPU.</span><button onClick=${() => put({ all: "1" }, true)} disabled=${query.all === "1"}>Load up to 10,000</button></footer>`}`; }}</${Shown}></section>`;
}

// States counts the rows of each state, and filters by one.
const States = ({ rows, of, chosen }) => html`<span class="labels">${counts(rows, of).map(([s, n]) => html`<button type="button" class=${"tag " + ({ wrong: rows.some((r) => of.get(r).wrong.some((w) => w.tone === "bad")) ? "bad" : "warn", unknown: "warn", running: "good" }[s] || "")} aria-pressed=${chosen === s ? "true" : "false"} title=${says[s] + (chosen === s ? ": show all" : ": show these only")} onClick=${() => put({ state: chosen === s ? "" : s })}>${grouped(n)} ${s === "wrong" ? "with problems" : s}</button>`)}</span>`;

const rangeOf = (used) => ({ from: Date.parse(used.from) / 1000, to: Date.parse(used.to) / 1000 });

const idleOf = (u) => u.groups.filter((g) => g.kind === "idle").reduce((a, g) => a + Number(g.cpu_seconds), 0);

// Label filters by a label and its value.
function Label({ value }) {
  const field = useRef();
  const set = (e) => { e.preventDefault(); const v = field.current.value.trim(); if (v === "" || /^[^=]+=/.test(v)) { field.current.setCustomValidity(""); put({ label: v }); } else { field.current.setCustomValidity("write it as KEY=VALUE"); field.current.reportValidity(); } };
  return html`<form class="select" onSubmit=${set}><label for="label">Label</label><input id="label" type="text" ref=${field} value=${value || ""} placeholder="KEY=VALUE" onInput=${(e) => e.target.setCustomValidity("")} onBlur=${set} autocomplete="off" spellcheck="false" /></form>`;
}

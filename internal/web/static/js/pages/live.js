// Live: every workload of this machine in its latest second.
import { html, useState, useEffect, useMemo, useRef } from "../../vendor/preact.mjs";
import { arrange, label, remember, residual, pressing, quality } from "../tree.js";
import { Stat, Search, Segments, Dialog, Facts, Quality, Figure, Skeleton, Empty, Spark, useHere, useKey } from "../ui.js";
import { useWindow, rowHeight, Spacer } from "../table.js";
import { grouped, text, aligned, known, time, qualities, few, fieldUnit } from "../fmt.js";
import { put } from "../route.js";
import { get, credentials } from "../api.js";

const kept = 240, least = 10, hole = 60000; // readings in the small charts, at most and at least, and ms without any after which they begin again

// history are the readings of the small charts. It stays while other pages are shown.
const history = [];

// lasting says of how long the small charts are: readings are not taken while the page is paused or hidden.
export const lasting = (history) => (history.length > 1 ? text((Date.parse(history.at(-1).at) - Date.parse(history[0].at)) / 1000, "seconds") : "");

// watch polls the latest tick, and describes what is wrong with it.
function watch(state, tell) {
  let timer = 0, gone = false, machine = null, since = performance.now(), tag = "";
  const ask = async () => {
    const r = await fetch("/api/v0/snapshot", { signal: AbortSignal.timeout(8000), credentials: "omit", headers: { ...credentials(), ...(tag ? { "If-None-Match": tag } : {}) }, cache: "no-store" });
    if (r.status === 503) throw new Error("mete is starting and has no reading yet. " + (await r.text()).trim());
    if (r.status !== 304) {
      if (!r.ok) throw new Error(`mete answered with status ${r.status}: ${(await r.text()).trim()}`);
      const m = await r.json();
      tag = r.headers.get("ETag") || "";
      if (!machine || m.time !== machine.time) {
        if (history.length > 0 && (m.boot !== history[0].boot || Date.parse(m.time) - Date.parse(history.at(-1).at) > hole)) history.length = 0;
        since = performance.now();
        machine = m;
        if (history.length === 0 || m.time !== history.at(-1).at) history.push({ at: m.time, boot: m.boot, cpu: m.cpu_cores.workloads + m.cpu_cores.system, memory: m.memory_bytes.workloads + m.memory_bytes.system, power: m.energy ? m.energy.watts : null, disk: m.disk ? both(m.disk) : null, network: m.network ? both(m.network) : null });
        if (history.length > kept) history.shift();
      }
    }
    if (performance.now() - since < 5 * Math.max(machine.tick_ns / 1e6, 1000) + 2000) return "";
    const health = await fetch("/healthz", { signal: AbortSignal.timeout(8000), credentials: "omit" });
    const why = health.ok ? "mete is running, but has no new readings. Check its terminal." : (await health.text()).trim();
    return `No new reading since ${time(machine.time)}. The page shows that reading. ${why}`;
  };
  const poll = async () => {
    clearTimeout(timer);
    let next = 2000, trouble = "";
    try {
      if (!state.paused) trouble = await ask();
      if (machine) next = Math.min(Math.max(machine.tick_ns / 1e6, 500), 60000);
    } catch (e) {
      const known = /^mete /.test(e.message);
      trouble = known ? e.message : `The connection to mete${machine ? " on " + machine.host : ""} is lost. ${machine ? `The page shows the reading of ${time(machine.time)}. ` : ""}Check that “mete up” runs, and the tunnel if you use one. The page reconnects automatically.`;
    }
    if (gone) return;
    if (!state.paused) tell({ machine, trouble, history: [...history] });
    clearTimeout(timer); // of a poll that ended meanwhile
    if (!document.hidden) timer = setTimeout(poll, next);
  };
  const seen = () => { if (!document.hidden) poll(); };
  document.addEventListener("visibilitychange", seen);
  poll();
  return { poll, stop: () => { gone = true; clearTimeout(timer); document.removeEventListener("visibilitychange", seen); } };
}

const both = (f) => (f ? f.in_bytes_per_second + f.out_bytes_per_second : 0);

// offset says by how much the parts of this second differ from the whole; "" where that is not seen.
export const offset = (skew) => (skew >= 0.005 ? `read twice ${text(skew, "none")}` : skew <= -0.005 ? `in earlier seconds ${text(-skew, "none")}` : "");

function Cards({ m, history }) {
  const cpu = m.cpu_cores, mem = m.memory_bytes, e = m.energy;
  const parts = (p, unit) => [["workloads", "var(--accent)"], ["system", "var(--c-system)"]].map(([k, color]) => ({ share: p[k] / p.whole, color, title: `${k} ${text(p[k], unit)}` }));
  const spark = (k) => history.length >= least && html`<${Spark} values=${history.map((h) => h[k])} label=${"the last minutes of " + k} />`;
  const flow = (name, f, a, b, k) => html`<${Stat} title=${name} v=${f ? both(f) : null} unit="rate" below=${f ? html`<span>${a} ${text(f.in_bytes_per_second, "rate")}</span><span>${b} ${text(f.out_bytes_per_second, "rate")}</span>` : "not available"}>${spark(k)}</${Stat}>`;
  return html`<section class="card stats five" aria-label="the machine">
    <${Stat} title="CPU" v=${cpu.workloads + cpu.system} unit="cores" parts=${parts(cpu, "cores")} below=${html`<span>of ${text(cpu.whole, "cores")}</span><span>workloads ${text(cpu.workloads, "none")}</span><span>system ${text(cpu.system, "none")}</span><span>idle ${text(cpu.idle, "none")}</span>${offset(cpu.skew) && html`<span class="tag" title="groups and the machine cannot be read at one instant: what is read twice in one second is deducted from the next ones">${offset(cpu.skew)}</span>`}${cpu.steal >= 0.005 && html`<span class="tag warn">stolen ${text(cpu.steal, "none")}</span>`}`}>${spark("cpu")}</${Stat}>
    <${Stat} title="Memory" v=${mem.workloads + mem.system} unit="bytes" parts=${parts(mem, "bytes")} below=${html`<span>of ${text(mem.whole, "bytes")}</span><span>workloads ${text(mem.workloads, "bytes")}</span><span>free ${text(mem.idle, "bytes")}</span><span title="memory that programs can get without swapping">available ${text(mem.available, "bytes")}</span>`}>${spark("memory")}</${Stat}>
    <${Stat} title="Power" v=${e && e.watts} unit="watts" quality=${e && e.quality} off=${e && e.error_watts} parts=${e && [{ share: (e.watts - e.idle_watts) / e.watts, color: "var(--accent)", title: "active " + text(e.watts - e.idle_watts, "watts") }]}
      below=${e ? html`<span>active ${text(e.watts - e.idle_watts, "watts")}</span><span>idle ${text(e.idle_watts, "watts")}</span>${e.domains.length > 1 && e.domains.map((d) => html`<span>${d.domain} ${text(d.watts, "watts")} <span title="possible error of its meter; that of all includes the division among the rows">± ${text(d.error_watts, "watts")}</span></span>`)}${Object.entries(e.inside_ratio || {}).map(([l, r]) => html`<span title="part of the outer meter's energy that the inner meters show">parts/${l} ${text(r, "percent")}</span>`)}` : "not available"}>${spark("power")}</${Stat}>
    ${flow("Disk", m.disk, "read", "written", "disk")}${flow("Network", m.network, "received", "sent", "network")}
    ${e && html`<p class="source small muted">Power is ${e.domains.map((d, i) => html`${i > 0 && "; "}${e.domains.length > 1 && d.domain + " "}<b>${d.quality}</b> <${Quality} of=${d.quality} />: ${d.source}`)}</p>`}</section>`;
}

const columns = [
  ["cpu", "CPU, cores", "cores", "cpu", "cores in use"], ["memory", "Memory", "bytes", "memory", "memory charged to the workload, with page cache"],
  ["power", "Power", "watts", "power", "power of the row's own activity; the idle power of the machine is in the row idle"],
  ["diskRead", "Disk read", "rate", "disk"], ["diskWritten", "written", "rate", "disk"], ["networkRx", "Net in", "rate", "network"], ["networkTx", "out", "rate", "network"], ["pids", "PIDs", "count", "pids"],
];

function Cell({ f, unit, share }) {
  if (!f) return html`<span class="absent" title=${qualities.absent}>–</span>`;
  const zero = f.value === 0 || (unit === "cores" && f.value < 0.0005);
  return html`<span class=${zero ? "zero" : ""}>${zero ? "0" : unit === "cores" ? aligned(f.value, "cores", Math.max(1, f.value))[0] : text(f.value, unit)}<${Quality} of=${quality(f.quality)} /></span>${share > 0 && html`<i class="under" style=${{ width: Math.min(100, share * 100).toFixed(1) + "%" }}></i>`}`;
}

const press = (v) => (v >= 0.4 ? "hot" : v >= 0.1 ? "warm" : v < 0.0005 ? "zero" : "");

function Row({ r, opt, wholes, fold, show }) {
  const { row, figures } = r, none = residual(row);
  const kind = (none || row.kind === "path" ? "" : row.kind) + (row.ended ? " ended" : "");
  return html`<tr class=${(none ? "residual " : "") + (opt.filter && !r.match ? "way" : "")} data-id=${row.id}>
    <td class="name"><div style=${{ paddingInlineStart: Math.min(r.depth, 12) * 1.05 + "em" }}>
      ${r.below > 0 && (r.folded || r.open) ? html`<button type="button" class="twist" aria-expanded=${r.folded ? "false" : "true"} aria-label=${`${r.label}: ${r.below} below`} onClick=${() => fold(row.id)}>${r.folded ? "▸" : "▾"}</button>` : html`<span class="twist"></span>`}
      <button type="button" class="label" title=${row.path || r.label} onClick=${() => show(row.id)}>${r.label}</button>${kind && html`<span class="tag">${kind}</span>`}${r.folded && html`<span class="tag">+${r.below}</span>`}</div></td>
    ${columns.map(([k, , unit]) => html`<td class="num"><${Cell} f=${figures[k]} unit=${unit} share=${wholes[k] > 0 && figures[k] ? figures[k].value / wholes[k] : 0} /></td>`)}
    <td class="num psi">${pressing.map(([k]) => html`<span class=${figures[k] ? press(figures[k].value) : "absent"}>${figures[k] ? (figures[k].value < 0.0005 ? "0" : Math.round(figures[k].value * 1000) / 10 + "%") : "–"}</span>`)}</td></tr>`;
}

const traffic = [["network", "in_bytes_per_second", "network_rx_bytes_per_second"], ["network", "out_bytes_per_second", "network_tx_bytes_per_second"]];

// withOutside puts the traffic of the machine that belongs to no workload into the row system, where that
// has none of its own, so that the rows add up. over says that workloads have more than the machine:
// traffic between them does not pass its interfaces.
export function withOutside(m) {
  const more = {}, list = m.workloads || [], system = list.find((w) => w.kind === "system");
  let over = false;
  for (const [flow, way, field] of traffic) {
    if (!system || !m[flow] || !known(m[flow][way]) || known(system[field])) continue;
    const rest = m[flow][way] - list.reduce((a, w) => a + (known(w[field]) ? w[field] : 0), 0);
    if (rest >= 0) more[field] = rest; else over = true;
  }
  return { ...m, over, workloads: list.map((w) => (w === system ? { ...w, ...more } : w)) };
}

// machineOf is the sum of the rows, with the traffic of the machine in place of that of the rows: they
// may show only a part of it, as the row system has none where it is not known.
export function machineOf(m, total) {
  const of = (flow, way) => (flow && known(flow[way]) ? { value: flow[way], quality: 1 } : null);
  return { ...total, diskRead: of(m.disk, "in_bytes_per_second"), diskWritten: of(m.disk, "out_bytes_per_second"), networkRx: of(m.network, "in_bytes_per_second"), networkTx: of(m.network, "out_bytes_per_second") };
}

// Foot sums the rows. The sum is the machine and its skew: use that was read twice, because groups and
// the machine cannot be read at one instant.
function Foot({ m, t, wholes, skews }) {
  const off = ["cpu", "memory", "power"].some((k) => t.total[k] && wholes[k] > 0 && Math.abs(t.total[k].value - wholes[k] - (skews[k] || 0)) > 1e-5 * wholes[k] + 1e-6);
  const early = [skews.cpu <= -0.0005 && text(-skews.cpu, "cores"), skews.memory < 0 && text(-skews.memory, "bytes")].filter(Boolean).join(", ");
  const overlap = [skews.cpu > 0 && text(skews.cpu, "cores"), skews.memory > 0 && text(skews.memory, "bytes")].filter(Boolean).join(", ");
  const line = (name, f, cls) => html`<tr class=${cls}><th scope="row">${name}</th>${columns.map(([k, , unit]) => html`<td class="num"><${Cell} f=${f[k]} unit=${unit} /></td>`)}<td></td></tr>`;
  return html`<tfoot>${t.restCount > 0 && line(`not shown: ${few(t.restCount, "workload")}`, t.rest, "muted")}${line(off ? "Rows do not add up to the machine (please report)" : overlap ? `Total = the machine, and ${overlap} read twice in this tick` : early ? `Total = the machine, less ${early} read in earlier ticks` : "Total = the machine", machineOf(m, t.total), off ? "bad" : "")}</tfoot>`;
}

const resourceName = (n) => n.replaceAll("_", " ");

function Details({ row, close }) {
  const names = Object.keys(row.total || {});
  const energies = ["energy_package", "energy_dram", "energy_gpu", "energy_rest"].filter((n) => names.includes(n));
  const pressure = [["CPU", row.pressure_cpu_ratio], ["memory", row.pressure_memory_ratio], ["I/O", row.pressure_io_ratio]].filter(([, v]) => known(v)).map(([k, v]) => k + " " + text(v, "percent")).join(", ");
  const unit = (n) => (/^energy/.test(n) ? "joules" : n === "cpu_peak" ? "cores" : /^(cpu(_user|_system|_throttled)?|pressure_.*)$/.test(n) ? "seconds" : /^memory(_anon|_file|_working)?$/.test(n) ? "bytehours" : /^(memory_peak|disk_read|disk_written|network_rx|network_tx)$/.test(n) ? "bytes" : n === "pids" ? "taskseconds" : "count");
  return html`<${Dialog} title=${label(row)} close=${close} wide>
    <${Facts} of=${[["Kind", row.kind], ["Path", row.path && html`<code>${row.path}</code>`], ["ID", html`<code>${row.id}</code>`], ["PIDs now", known(row.pids) && grouped(row.pids)],
      ["Power now", known(row.power_watts) ? html`<${Figure} v=${row.power_watts} unit="watts" off=${row.power_error_watts || 0} quality=${row.quality.power} />` : null],
      ["Energy", energies.length ? html`<${Figure} v=${energies.reduce((a, n) => a + Number(row.total[n]), 0)} unit="joules" off=${Number(row.total.energy_error || 0)} quality=${row.quality[energies[0]]} />` : null],
      ["Pressure now", pressure], ["Over time", residual(row) ? null : html`<a href=${"/job?job=" + encodeURIComponent(label(row))} onClick=${close}>charts and all figures</a>`]]} />
    <div class="table"><table><thead><tr><th scope="col">Since first seen</th><th scope="col" class="num">Amount</th><th scope="col">Quality</th></tr></thead><tbody>
      ${names.length === 0 && html`<tr><td colspan="3" class="muted">no data yet</td></tr>`}
      ${names.map((n) => html`<tr><td>${resourceName(n)}</td><td class="num">${text(Number(row.total[n]), unit(n))}</td><td><${Quality} of=${row.quality[n]} all=${true} /> ${row.quality[n]}</td></tr>`)}</tbody></table></div></${Dialog}>`;
}

const sorts = [["cpu", "CPU"], ["memory", "memory"], ["power", "power"], ["disk", "disk"], ["network", "network"], ["pids", "PIDs"], ["pressure", "pressure"], ["name", "name"]];

// useNames are the names of jobs that only the ledger has, by workload.
function useNames(m) {
  const names = useRef(new Map()), asked = useRef(0);
  useEffect(() => {
    const strange = m && (m.workloads || []).some((w) => w.kind === "job" && !names.current.has(w.id));
    if (!strange || performance.now() - asked.current < 15000) return;
    asked.current = performance.now();
    get("/v1/workloads", { where: "kind=job", from: "-1h", limit: 2000 }).then((a) => { for (const w of a.workloads) if (w.job) names.current.set(w.workload, w.job); }, () => { /* asked again with the next tick */ });
  }, [m]);
  return names.current;
}

// useRecent are the workloads that are busy, or were a few ticks ago.
function useRecent(m) {
  const of = useRef({ seen: new Map(), tick: 0, time: "", recent: new Set() }).current;
  if (m && m.time !== of.time) {
    of.time = m.time;
    of.recent = remember(of.seen, m, ++of.tick);
  }
  return of.recent;
}

const byKey = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -Infinity, End: Infinity };

// useRowKeys lets keys move between the rows of a table that draws only those that are seen, and fold
// and unfold them. The row with the focus is known by its id, as rows change places each second.
function useRowKeys({ rows, box, fold }) {
  const wanted = useRef("");
  const focus = (id) => { const e = [...box.current.querySelectorAll("tr[data-id]")].find((tr) => tr.dataset.id === id); if (e) e.querySelector(".label").focus({ preventScroll: true }); return Boolean(e); };
  useEffect(() => { if (wanted.current && focus(wanted.current)) wanted.current = ""; });
  return (e) => {
    const tr = e.target.closest && e.target.closest("tr[data-id]");
    if (e.ctrlKey || e.metaKey || e.altKey || rows.length === 0) return;
    const at = tr ? rows.findIndex((r) => r.row.id === tr.dataset.id) : -1, r = rows[at];
    if (r && r.below > 0 && ((e.key === "ArrowLeft" && !r.folded) || (e.key === "ArrowRight" && r.folded))) { e.preventDefault(); fold(r.row.id); return; }
    if (!(e.key in byKey) || e.target.matches("input, select")) return;
    e.preventDefault();
    const to = Math.max(0, Math.min(rows.length - 1, at < 0 && e.key === "ArrowDown" ? 0 : at + byKey[e.key])), b = box.current, edge = 3 * rowHeight;
    if (to * rowHeight < b.scrollTop) b.scrollTop = to * rowHeight;
    if ((to + 1) * rowHeight > b.scrollTop + b.clientHeight - edge) b.scrollTop = (to + 1) * rowHeight - b.clientHeight + edge;
    if (!focus(rows[to].row.id)) wanted.current = rows[to].row.id;
  };
}

// Tree is the table of all workloads, as a tree or a list.
function Tree({ m, t, opt, fold }) {
  const box = useRef(), [shown, show] = useState("");
  const { first, last, look } = useWindow(t.rows.length, box);
  const { sort, reverse } = opt, press = useRowKeys({ rows: t.rows, box, fold });
  const skews = { cpu: m.cpu_cores.skew, memory: m.memory_bytes.skew };
  const wholes = { cpu: m.cpu_cores.whole, memory: m.memory_bytes.whole, power: m.energy ? m.energy.watts : 0 };
  const by = (key) => put({ sort: key === sort && !reverse ? key + ".up" : key === "cpu" ? "" : key }, true);
  const head = (key, name, help, cls) => html`<th scope="col" class=${cls} title=${help || null} aria-sort=${sort === key ? ((key === "name") === reverse ? "descending" : "ascending") : null}><button type="button" onClick=${() => by(key)}>${name}<span class="arrow" aria-hidden="true">${sort === key ? (reverse === (key === "name") ? "↓" : "↑") : ""}</span></button></th>`;
  const row = shown && (m.workloads || []).find((w) => w.id === shown);
  const nothing = t.idleCount > 0
    ? html`<${Empty} title=${few(t.idleCount, "idle workload") + (t.idleCount === 1 ? " matches" : " match")}><button type="button" onClick=${() => put({ idle: "1" }, true)}>Show idle</button></${Empty}>`
    : html`<${Empty} title="No workload matches"><span>The filter searches names, paths and kinds.</span><button type="button" onClick=${() => put({ q: "" }, true)}>Clear the filter</button></${Empty}>`;
  return html`<div class="table tall" ref=${box} onScroll=${look} onKeyDown=${press} tabindex="0" role="region" aria-label="workloads"><table class="fixed tree" aria-rowcount=${t.rows.length}>
    <thead><tr>${head("name", "Workload", "", "name")}${columns.map(([, name, , key, help]) => head(key, name, help, "num"))}${head("pressure", html`<span class="three">Pressure<br /><i>CPU</i><i>mem</i><i>I/O</i></span>`, "share of the time in which some task waited for CPU, memory, I/O", "num psi")}</tr></thead>
    <tbody><${Spacer} rows=${first} columns=${10} />${t.rows.slice(first, last).map((r, i) => html`<${Row} key=${r.row.id + (i && r.row.id === t.rows[first + i - 1].row.id ? i : "")} r=${r} opt=${opt} wholes=${wholes} fold=${fold} show=${show} />`)}<${Spacer} rows=${t.rows.length - last} columns=${10} /></tbody>
    <${Foot} m=${m} t=${t} wholes=${wholes} skews=${skews} /></table></div>
    ${t.rows.length === 0 && nothing}
    ${row && html`<${Details} row=${row} close=${() => show("")} />`}`;
}

// Workloads is the table with what it shows.
function Workloads({ m, query }) {
  const [folded, setFolded] = useState(() => new Set());
  const [sort, way] = (query.sort || "cpu").split("."), recent = useRecent(m), hideIdle = query.idle !== "1";
  const opt = { filter: query.q || "", flat: query.show === "list", sums: query.show === "sums", sort, reverse: way === "up", hideIdle, recent, folded };
  const t = useMemo(() => arrange(m, opt), [m, query.q, query.show, query.sort, hideIdle, folded]);
  const fold = (id) => setFolded((s) => { const n = new Set(s); if (!n.delete(id)) n.add(id); return n; });
  const idle = () => put({ idle: hideIdle ? "1" : "" }, true);
  useKey("z", idle);
  return html`<header class="bar"><${Search} placeholder="Filter by name, path or kind" />
      <${Segments} label="show" options=${[["", "tree"], ["sums", "tree with sums", "each row includes all rows below it"], ["list", "list"]]} value=${query.show || ""} choose=${(v) => put({ show: v }, true)} />
      <label class="select"><span>Sort by</span><select onChange=${(e) => put({ sort: e.target.value === "cpu" ? "" : e.target.value }, true)}>${sorts.map(([v, n]) => html`<option value=${v} selected=${sort === v}>${n}</option>`)}</select></label>
      <button type="button" class="end" id="idle" title="workloads that used no CPU, disk or network lately, and hold less than 1 % of the memory (z)" onClick=${idle}>${hideIdle ? (t.idleCount > 0 ? `${grouped(t.idleCount)} idle hidden, show` : "None idle") : "Hide idle"}</button></header>
      <${Tree} m=${m} t=${t} opt=${opt} fold=${fold} />`;
}

export function Live() {
  const { query } = useHere();
  const [seen, set] = useState({ machine: null, trouble: "", history: [] });
  const [paused, pause] = useState(false);
  const state = useRef({ paused: false }), watcher = useRef();
  useEffect(() => { watcher.current = watch(state.current, set); return () => watcher.current.stop(); }, []);
  const flip = () => { state.current.paused = !paused; pause(!paused); if (paused) watcher.current.poll(); };
  useKey("f", flip);
  const names = useNames(seen.machine);
  const m = useMemo(() => seen.machine && withOutside({ ...seen.machine, workloads: (seen.machine.workloads || []).map((w) => (names.has(w.id) ? { ...w, name: names.get(w.id) } : w)) }), [seen.machine, names.size]);
  useEffect(() => { if (m) document.title = `${text(m.cpu_cores.workloads + m.cpu_cores.system, "none")} cores · ${m.host} · mete`; }, [m]);
  const notes = m ? [...(m.balance && m.balance.violations > 0 ? [`${few(m.balance.violations, "balance check")} failed: parts did not sum to their total. This is a bug, please report it.`] : []),
    ...(m.balance && m.balance.lost > 0 ? [`${few(m.balance.lost, "start or end", "starts or ends")} of control groups in the last tick were missed; their use is counted for their parents.`] : []), ...(m.over ? ["The workloads sent or received more than the machine: traffic between them does not pass its interfaces."] : []), ...(m.notes || [])] : [];
  return html`${seen.trouble && html`<div class="notice bad" role="alert"><div>${seen.trouble}</div><button onClick=${() => watcher.current.poll()}>Try now</button></div>`}
    ${!m ? !seen.trouble && html`<${Skeleton} height=${150} /><${Skeleton} height=${420} />` : html`<div class=${"live " + (seen.trouble ? "stale" : "")}>
    <div class="bar facts-line"><b>${m.host}</b><span class="muted num">${time(m.time)}</span><span class="muted">${few(m.cpus, "CPU")}</span><span class="muted" title="jobs included">${few((m.workloads || []).filter((w) => !residual(w)).length, "control group")} now</span><span class="muted num" title=${"reader " + m.reader}>a reading each ${text(m.tick_ns / 1e9, "seconds")}${seen.history.length >= least ? `, curves of the last ${lasting(seen.history)}` : seen.history.length > 0 ? ", curves from ten readings on" : ""}</span>
      <span class="muted num" title="CPU time and memory of mete up itself">mete ${text(m.self.cpu_seconds_per_minute, "none")} CPU s/min, ${text(m.self.rss_bytes, "bytes")}</span>
      <button id="pause" type="button" class="end" aria-pressed=${paused ? "true" : "false"} title="pause (f)" onClick=${flip}>${paused ? "Paused" : "Pause"}</button></div>
    <${Cards} m=${m} history=${seen.history} />
    <section class="card flush" aria-label="workloads"><${Workloads} m=${m} query=${query} />
      <p class="small muted reading">Each row excludes the rows below it, so that all rows add up to the machine; a folded row includes them. Power is that of the row's own activity. The idle power of the machine is in the row idle, undivided.</p>
      ${notes.length > 0 && html`<ul class="small notes">${notes.map((n) => html`<li>${n}</li>`)}</ul>`}</section></div>`}`;
}

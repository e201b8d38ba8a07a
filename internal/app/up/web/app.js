import { arrange, bytes, cores, joules, label, mark, percent, quality, residual, total, watts } from "./model.js";

const $ = (id) => document.getElementById(id);
const opt = { filter: "", flat: false, sums: false, sort: "cpu", reverse: false, busy: false, folded: new Set(), all: false };
const most = 500; // rows that a page draws without being asked
let machine = null, paused = false, since = 0, timer = 0, waiting = false;
let history = [];

// set changes text only where it differs: what does not change is not drawn.
function set(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function make(tag, className, text) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
}

// ---- the machine

function share(bar, whole, work, sys) {
  const w = (v) => (whole > 0 ? Math.min(100, Math.max(0, (v / whole) * 100)) : 0).toFixed(2) + "%";
  bar.children[0].style.width = w(work);
  bar.children[1].style.width = w(sys);
}

function legend(node, parts) {
  node.replaceChildren(...parts.map(([cls, text]) => make("span", cls, text)));
}

function big(node, value, of) {
  node.replaceChildren(value, make("small", "", of));
}

function spark(svg, values, top) {
  const max = Math.max(top, ...values, 1e-9);
  const step = 120 / (Math.max(values.length, 30) - 1);
  const at = (v, i) => `${(120 - (values.length - 1 - i) * step).toFixed(1)},${(29 - (v / max) * 27).toFixed(1)}`;
  const line = values.map(at).join("L");
  svg.querySelector(".line").setAttribute("d", "M" + line);
  svg.querySelector(".all").setAttribute("d", `M${(120 - (values.length - 1) * step).toFixed(1)},30L${line}L120,30Z`);
}

function drawMachine(m) {
  const cpu = m.cpu_cores, mem = m.memory_bytes, plain = (n) => n.toFixed(2);
  document.title = `${plain(cpu.workloads + cpu.system)} CPUs · ${m.host} · mete`;
  set($("host"), m.host);
  set($("facts"), [new Date(m.time).toLocaleTimeString(), `${m.cpus} CPUs`, `${m.workloads?.length ?? 0} workloads`, `${m.reader} reader`,
    `tick ${(m.tick_ns / 1e9).toFixed(2)} s`,
    `mete itself ${m.self.cpu_seconds_per_minute.toFixed(2)} CPU s/min, ${bytes(m.self.rss_bytes)}`].join(" · "));
  big($("cpu-used"), plain(cpu.workloads + cpu.system), ` of ${plain(cpu.whole)} CPUs`);
  share($("cpu-bar"), cpu.whole, cpu.workloads, cpu.system);
  legend($("cpu-legend"), [["work", `workloads ${plain(cpu.workloads)}`], ["sys", `system ${plain(cpu.system)}`], ["", `idle ${plain(cpu.idle)}`],
    ...(cpu.steal >= 0.005 ? [["none", `stolen ${plain(cpu.steal)}`]] : [])]);
  big($("mem-used"), bytes(mem.workloads + mem.system), ` of ${bytes(mem.whole)}`);
  share($("mem-bar"), mem.whole, mem.workloads, mem.system);
  legend($("mem-legend"), [["work", `workloads ${bytes(mem.workloads)}`], ["sys", `system ${bytes(mem.system)}`], ["", `free ${bytes(mem.idle)}`]]);
  drawPower(m.energy);
  for (const [name, flow, a, b] of [["disk", m.disk, "read", "written"], ["net", m.network, "received", "sent"]]) {
    if (!flow) {
      big($(name + "-sum"), "–", " not seen here");
      legend($(name + "-legend"), []);
      continue;
    }
    const [i, o] = [flow.in_bytes_per_second, flow.out_bytes_per_second];
    big($(name + "-sum"), bytes(i + o), " a second");
    legend($(name + "-legend"), [["none", `${a} ${bytes(i)}/s`], ["none", `${b} ${bytes(o)}/s`]]);
  }
  spark($("cpu-spark"), history.map((h) => h.cpu), cpu.whole);
  spark($("mem-spark"), history.map((h) => h.mem), mem.whole);
  spark($("power-spark"), history.map((h) => h.power), 0);
  spark($("disk-spark"), history.map((h) => h.disk), 0);
  spark($("net-spark"), history.map((h) => h.net), 0);
}

// drawPower writes the machine's power with what it may be off, and from what it
// is known.
function drawPower(e) {
  if (!e) {
    big($("power-sum"), "–", " not seen here");
    legend($("power-legend"), []);
    share($("power-bar"), 0, 0, 0);
    return;
  }
  const known = ["absent", "measured", "apportioned", "modelled"].indexOf(e.quality);
  big($("power-sum"), mark(known) + watts(e.watts), ` ± ${watts(e.error_watts)}`);
  share($("power-bar"), e.watts, e.watts - e.idle_watts, 0);
  const parts = e.domains.length > 1 ? e.domains.map((d) => ["none", `${d.domain} ${watts(d.watts)} ± ${watts(d.error_watts)}`]) : [];
  const ratios = Object.entries(e.inside_ratio ?? {}).map(([level, r]) => ["none", `parts/${level} ${percent(r)}`]);
  const from = e.domains.map((d) => ["none source", `${e.domains.length > 1 ? d.domain + " " : ""}${d.quality}: ${d.source}`]);
  legend($("power-legend"), [["work", `active ${watts(e.watts - e.idle_watts)}`], ["", `idle ${watts(e.idle_watts)}`], ...parts, ...ratios, ...from]);
}

function drawNotes(m) {
  const notes = [...(m.notes ?? [])];
  if (m.balance?.violations > 0) notes.unshift(`Defect: ${m.balance.violations} sums of parts were not their whole. Please report this.`);
  if (m.balance?.lost > 0) notes.unshift(`${m.balance.lost} births or ends of groups in the last tick were not seen; their parents hold what they used.`);
  const now = JSON.stringify(notes);
  if ($("notes").dataset.now !== now) {
    $("notes").replaceChildren(...notes.map((n) => make("li", "", n)));
    $("notes").dataset.now = now;
  }
}

// ---- the table

const columns = [
  ["cpu", cores, "meter", "CPU"], ["memory", bytes, "meter", "Memory"], ["power", watts, "meter", "Power"],
  ["diskRead", bytes, "rate", "read/s"], ["diskWritten", bytes, "rate", "written/s"],
  ["networkRx", bytes, "rate", "net in/s"], ["networkTx", bytes, "rate", "net out/s"], ["pids", (v) => v.toLocaleString("en"), "pids", "PIDs"],
];
const drawn = new Map(); // rows of the table by workload

function newCells(tr) {
  const cells = columns.map(([, , cls, name]) => {
    const td = make("td", cls);
    td.dataset.label = name;
    td.append(make("span"));
    if (cls === "meter") td.append(make("i"));
    tr.append(td);
    return td;
  });
  const psi = make("td", "psi");
  psi.dataset.label = "Pressure";
  psi.append(make("span"), make("span"), make("span"));
  tr.append(psi);
  return { cells, psi };
}

function fillFigure(node, f, write) {
  set(node, f ? mark(f.quality) + write(f.value) : "–");
  const title = !f ? "absent: nobody can see it here" : f.quality > 1 ? quality(f.quality) : "";
  if (node.title !== title) node.title = title;
  const cls = !f || f.value === 0 ? "zero" : "";
  if (node.className !== cls) node.className = cls;
}

function fillCells({ cells, psi }, figures, wholes, summed) {
  columns.forEach(([name, write, cls], i) => {
    fillFigure(cells[i].firstChild, figures[name], write);
    if (cls === "meter") {
      const part = wholes[name] > 0 ? Math.min(1, (figures[name]?.value ?? 0) / wholes[name]) : 0;
      cells[i].lastChild.style.setProperty("--share", (part * 100).toFixed(2) + "%");
    }
  });
  ["pressureCPU", "pressureMemory", "pressureIO"].forEach((name, i) => {
    if (summed) return;
    const node = psi.children[i], f = figures[name];
    fillFigure(node, f, percent);
    if (f?.value >= 0.1) node.className = f.value >= 0.4 ? "hot" : "warn";
  });
}

function newRow(id) {
  const tr = make("tr"), td = make("td", "name"), box = make("div"), twist = make("button", "twist"), name = make("button", "label"), kind = make("span", "kind");
  twist.type = name.type = "button";
  twist.addEventListener("click", () => {
    if (!opt.folded.delete(id)) opt.folded.add(id);
    drawTable();
  });
  name.addEventListener("click", () => showDetails(id));
  box.append(twist, name, kind);
  td.append(box);
  tr.append(td);
  return { tr, td, twist, name, kind, ...newCells(tr) };
}

function fillRow(d, r, wholes) {
  const { row, figures } = r;
  const text = r.label;
  set(d.name, text);
  if (d.name.title !== (row.path ?? text)) d.name.title = row.path ?? text;
  d.name.classList.toggle("found", opt.filter !== "" && r.match);
  set(d.kind, (residual(row) || row.kind === "path" ? "" : row.kind) + (r.folded ? ` +${r.below}` : "") + (row.ended ? " ended" : ""));
  d.td.style.paddingInlineStart = `${0.5 + Math.min(r.depth, 12) * 1.15}em`;
  set(d.twist, r.below === 0 ? "" : r.folded ? "▸" : "▾");
  d.twist.disabled = r.below === 0;
  d.twist.tabIndex = r.below === 0 ? -1 : 0;
  if (r.below === 0) {
    d.twist.removeAttribute("aria-expanded");
    d.twist.removeAttribute("aria-label");
    d.twist.setAttribute("aria-hidden", "true");
  } else {
    d.twist.setAttribute("aria-expanded", String(!r.folded));
    d.twist.setAttribute("aria-label", `${text}: ${r.below} below`);
    d.twist.removeAttribute("aria-hidden");
  }
  const quiet = !["diskRead", "diskWritten", "networkRx", "networkTx"].some((k) => figures[k]?.value > 0);
  const calm = !["pressureCPU", "pressureMemory", "pressureIO"].some((k) => figures[k]?.value >= 0.1);
  const cls = [residual(row) && "residual", row.kind === "idle" && "idle", opt.filter && !r.match && "way", quiet && "quiet", calm && "calm"].filter(Boolean).join(" ");
  if (d.tr.className !== cls) d.tr.className = cls;
  fillCells(d, figures, wholes, false);
}

function drawFeet(t, wholes) {
  const feet = [];
  const foot = (cls, text, figures) => {
    const tr = make("tr", cls);
    tr.append(make("td", "", text));
    const c = newCells(tr);
    fillCells(c, figures, wholes, true);
    c.cells.forEach((td, i) => { if (!figures[columns[i][0]]) td.classList.add("none"); });
    feet.push(tr);
  };
  if (t.restCount > 0) foot("rest", `not shown: ${t.restCount} workload${t.restCount > 1 ? "s" : ""}`, t.rest);
  const off = t.total.cpu && Math.abs(t.total.cpu.value - wholes.cpu) > 1e-5 * wholes.cpu + 1e-6 ||
    t.total.power && Math.abs(t.total.power.value - wholes.power) > 1e-5 * wholes.power + 1e-6 ||
    t.total.memory && Math.abs(t.total.memory.value - wholes.memory) > 1e-5 * wholes.memory;
  foot("total", off ? "Total, which is not the machine: a defect" : "Total = the machine", t.total);
  $("feet").replaceChildren(...feet);
}

function drawTable() {
  if (!machine) return;
  const t = arrange(machine, opt);
  const wholes = { cpu: machine.cpu_cores.whole, memory: machine.memory_bytes.whole, power: machine.energy?.watts ?? 0 };
  const rows = opt.all ? t.rows : t.rows.slice(0, most);
  const body = $("rows"), keep = new Set();
  rows.forEach((r, i) => {
    const id = r.row.id + (keep.has(r.row.id) ? "\0" + i : "");
    keep.add(id);
    let d = drawn.get(id);
    if (!d) drawn.set(id, (d = newRow(r.row.id)));
    fillRow(d, r, wholes);
    if (body.children[i] !== d.tr) body.insertBefore(d.tr, body.children[i] ?? null);
  });
  for (const [id, d] of drawn) if (!keep.has(id)) { d.tr.remove(); drawn.delete(id); }
  drawFeet(t, wholes);
  $("more").hidden = rows.length === t.rows.length;
  set($("more").firstChild, `Show all ${t.rows.length} rows`);
  for (const th of document.querySelectorAll("th[data-sort]")) {
    if (th.dataset.sort !== opt.sort) th.removeAttribute("aria-sort");
    else th.setAttribute("aria-sort", (opt.sort === "name") === opt.reverse ? "descending" : "ascending");
  }
}

function pressureNow(row) {
  return [["CPU", row.pressure_cpu_ratio], ["memory", row.pressure_memory_ratio], ["I/O", row.pressure_io_ratio]]
    .filter(([, v]) => typeof v === "number").map(([k, v]) => `${k} ${percent(v)}`).join(", ");
}

function powerNow(row) {
  return typeof row.power_watts === "number" ? `${watts(row.power_watts)} ± ${watts(row.power_error_watts ?? 0)}, ${row.quality.power}` : "";
}

// energyOf is all energy of a workload since it was first seen.
function energyOf(row) {
  const names = ["energy_package", "energy_dram", "energy_gpu", "energy_rest"].filter((n) => n in (row.total ?? {}));
  if (!names.length) return "";
  const order = ["absent", "measured", "apportioned", "modelled"];
  const worst = Math.max(...names.map((n) => order.indexOf(row.quality[n])));
  return `${joules(names.reduce((sum, n) => sum + Number(row.total[n]), 0))} ± ${joules(Number(row.total.energy_error ?? 0))}, ${quality(worst)}`;
}

function showDetails(id) {
  const row = machine.workloads.find((w) => w.id === id);
  if (!row) return;
  set($("details-name"), label(row));
  $("details-facts").replaceChildren(...[["Kind", row.kind], ["Path", row.path], ["ID", row.id],
    ["PIDs now", row.pids?.toLocaleString("en")], ["Power now", powerNow(row)], ["Energy", energyOf(row)], ["Pressure now", pressureNow(row)]].filter(([, v]) => v)
    .flatMap(([k, v]) => [make("dt", "", k), make("dd", "", v)]));
  const names = Object.keys(row.total ?? {});
  $("details-totals").replaceChildren(...(names.length ? names : [null]).map((name) => {
    const tr = make("tr");
    tr.append(make("td", "", name?.replaceAll("_", " ") ?? "nothing yet"), make("td", "", name ? total(name, row.total[name]) : ""), make("td", "", name ? row.quality[name] ?? "" : ""));
    return tr;
  }));
  $("details").showModal();
}

// ---- the connection

function trouble(text) {
  document.body.classList.toggle("stale", text !== "" && machine !== null);
  $("trouble").hidden = text === "";
  set($("trouble-text"), text);
}

const both = (flow) => (flow ? flow.in_bytes_per_second + flow.out_bytes_per_second : 0);

function accept(m) {
  if (m.time !== machine?.time) {
    since = performance.now();
    history.push({ cpu: m.cpu_cores.workloads + m.cpu_cores.system, mem: m.memory_bytes.workloads + m.memory_bytes.system,
      power: m.energy?.watts ?? 0, disk: both(m.disk), net: both(m.network) });
    history = history.slice(-120);
  }
  if (paused && machine) return;
  machine = m;
  $("cards").hidden = $("workloads").hidden = false;
  drawMachine(m);
  drawNotes(m);
  drawTable();
}

async function ask() {
  const answer = await fetch("api/v0/snapshot", { signal: AbortSignal.timeout(8000) });
  if (!answer.ok) {
    const why = (await answer.text()).trim();
    return trouble(answer.status === 503 ? `mete is up and waits for its first reading. ${why}` : `mete answers ${answer.status}: ${why}`);
  }
  const m = await answer.json();
  accept(m);
  const tick = Math.max(m.tick_ns / 1e6, 1000);
  if (performance.now() - since < 5 * tick + 2000) return trouble("");
  const health = await fetch("healthz", { signal: AbortSignal.timeout(8000) });
  const why = health.ok ? "mete answers, but its readings stand still: look at its terminal." : (await health.text()).trim();
  trouble(`No new reading since ${new Date(m.time).toLocaleTimeString()}. What you see is from then.\n${why}`);
}

async function poll() {
  clearTimeout(timer);
  if (waiting) return;
  waiting = true;
  let next = 2000;
  try {
    await ask();
    if (machine) next = Math.min(Math.max(machine.tick_ns / 1e6, 500), 60000);
  } catch {
    const where = machine ? ` on ${machine.host}` : "", when = machine ? ` What you see is from ${new Date(machine.time).toLocaleTimeString()}.` : "";
    trouble(`The connection to mete${where} is lost.${when}\nCheck that “mete up” still runs there, and the tunnel if you came through one. This page connects again by itself.`);
  } finally {
    waiting = false;
  }
  if (!document.hidden) timer = setTimeout(poll, next);
}

// ---- the controls

$("filter").addEventListener("input", (e) => { opt.filter = e.target.value; drawTable(); });
$("busy").addEventListener("change", (e) => { opt.busy = e.target.checked; drawTable(); });
$("shape").addEventListener("change", (e) => { opt.flat = e.target.value === "flat"; opt.sums = e.target.value === "sums"; drawTable(); });
$("sort").addEventListener("change", (e) => { opt.sort = e.target.value; opt.reverse = false; drawTable(); });
$("tools").addEventListener("submit", (e) => e.preventDefault());
$("more").firstChild.addEventListener("click", () => { opt.all = true; drawTable(); });
$("again").addEventListener("click", poll);
for (const th of document.querySelectorAll("th[data-sort]")) {
  th.firstChild.addEventListener("click", () => {
    opt.reverse = opt.sort === th.dataset.sort && !opt.reverse;
    opt.sort = $("sort").value = th.dataset.sort;
    drawTable();
  });
}
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  set($("pause"), paused ? "Paused" : "Pause");
  if (!paused) poll();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
poll();

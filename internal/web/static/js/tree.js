// The workloads of a machine as a tree or a list, by the rules of mete top.

export const fields = ["cpu", "memory", "diskRead", "diskWritten", "networkRx", "networkTx", "pids", "power", "pressureCPU", "pressureMemory", "pressureIO"];

const source = {
  cpu: ["cpu_cores", "cpu"], memory: ["memory_bytes", "memory"],
  diskRead: ["disk_read_bytes_per_second", "disk_read"], diskWritten: ["disk_written_bytes_per_second", "disk_written"],
  networkRx: ["network_rx_bytes_per_second", "network_rx"], networkTx: ["network_tx_bytes_per_second", "network_tx"],
  pids: ["pids", "pids"], power: ["power_watts", "power"], pressureCPU: ["pressure_cpu_ratio", "pressure_cpu"],
  pressureMemory: ["pressure_memory_ratio", "pressure_memory"], pressureIO: ["pressure_io_ratio", "pressure_io"],
};
const qualities = ["absent", "measured", "apportioned", "modelled"];

// figuresOf reads a row; a figure that is absent is null.
function figuresOf(row) {
  const out = {};
  for (const f of fields) {
    const [amount, quality] = source[f];
    const v = row[amount];
    out[f] = typeof v === "number" ? { value: v, quality: Math.max(1, qualities.indexOf(row.quality?.[quality])) } : null;
  }
  return out;
}

// plus adds figures; the absent adds nothing and the worse quality wins.
function plus(a, b) {
  if (!a || !b) return a ?? b;
  return { value: a.value + b.value, quality: Math.max(a.quality, b.quality) };
}

const pressures = ["pressureCPU", "pressureMemory", "pressureIO"];
const additive = fields.filter((f) => !pressures.includes(f));

// sum adds b to a, except pressure, which has no sum.
function sum(a, b) {
  const out = { ...a };
  for (const f of additive) out[f] = plus(a[f] ?? null, b[f]);
  return out;
}

export const residual = (row) => row.kind === "idle" || row.kind === "system";

const shownCores = 0.0005; // less is written as 0
const busyMemory = 0.01; // the part of the machine's memory that makes a workload busy which uses nothing else

// isBusy reports whether a workload used something in a tick, or holds much memory.
export function isBusy(f, machine) {
  const held = f.memory?.value ?? 0, cores = f.cpu?.value ?? 0;
  return cores >= shownCores || (held > 0 && held >= busyMemory * (machine.memory_bytes?.whole ?? Infinity)) || ["diskRead", "diskWritten", "networkRx", "networkTx"].some((k) => f[k]?.value > 0);
}

const recent = 10; // ticks for which a workload stays that is no longer busy: rows that come and go each second cannot be read

// remember notes in seen, id to tick, the workloads that are busy in this tick, and returns those that
// are or were lately.
export function remember(seen, machine, tick) {
  for (const id of busyIds(machine)) seen.set(id, tick);
  for (const [id, at] of seen) if (tick - at >= recent) seen.delete(id);
  return new Set(seen.keys());
}

// busyIds are the workloads of a machine that are busy in this tick.
const busyIds = (machine) => (machine.workloads ?? []).filter((row) => isBusy(figuresOf(row), machine)).map((row) => row.id);

const keys = {
  cpu: (f) => f.cpu, memory: (f) => f.memory, pids: (f) => f.pids, power: (f) => f.power,
  disk: (f) => plus(f.diskRead, f.diskWritten), network: (f) => plus(f.networkRx, f.networkTx),
  pressure: (f) => pressures.map((k) => f[k]).reduce((a, b) => (b && (!a || b.value > a.value) ? b : a), null),
};

export function label(row) {
  return row.name || (row.path ?? "").split("/").pop() || row.id || "?";
}

// arrange returns { rows, rest, restCount, idleCount, total }: rows in the order of the page, each
// { row, label, figures, depth, below, open, folded, match }, open if rows below it are shown; the sum and the number of the workloads without
// a row; how many of them only opt.hideIdle leaves out. opt.recent has the workloads that it does not.
export function arrange(machine, opt) {
  const filter = opt.filter.toLowerCase();
  const seen = new Map();
  const nodes = (machine.workloads ?? []).map((row) => {
    const own = figuresOf(row);
    const n = { row, own, sum: own, kids: [], below: 0, label: label(row), parent: (row.parent && seen.get(row.parent)) || null };
    n.hit = !filter || [n.label, row.path ?? "", row.kind].some((s) => s.toLowerCase().includes(filter));
    const above = n.parent && !opt.flat && row.name === row.path ? n.parent.row.path + "/" : "";
    n.short = above && n.label.startsWith(above) && n.label.slice(above.length) || n.label;
    if (!seen.has(row.id)) seen.set(row.id, n);
    n.parent?.kids.push(n);
    return n;
  });
  for (const n of nodes.toReversed()) {
    if (!n.parent) continue;
    n.parent.sum = sum(n.parent.sum, n.sum);
    n.parent.below += n.below + 1;
  }
  for (const n of nodes) {
    n.within = n.hit || !!n.parent?.within;
    n.keep = n.within && (!opt.hideIdle || isBusy(n.own, machine) || residual(n.row) || !!opt.recent?.has(n.row.id));
  }
  if (!opt.flat) for (const n of nodes.toReversed()) if (n.keep && n.parent) n.parent.keep = true;

  const rows = [];
  const rank = (n) => (n.row.kind === "idle" ? 1 : 0); // idle comes last
  const value = (n) => keys[opt.sort]?.(opt.flat ? n.own : n.sum)?.value ?? -Infinity;
  const byName = (a, b) => a.label.localeCompare(b.label, "en");
  const order = (list) => list.sort((a, b) => rank(a) - rank(b) ||
    (opt.sort === "name" ? byName(a, b) : value(b) - value(a) || byName(a, b)) * (opt.reverse ? -1 : 1) || 0);
  const cover = (n) => n.kids.forEach((k) => { k.shown = true; cover(k); });
  const draw = (n, depth) => {
    n.shown = true;
    const folded = !opt.flat && !filter && n.kids.length > 0 && opt.folded.has(n.row.id);
    rows.push({ row: n.row, label: n.short, figures: folded || (opt.sums && !opt.flat) ? n.sum : n.own, depth, below: opt.flat ? 0 : n.below, open: n.kids.some((k) => k.keep), folded, match: n.hit });
    if (folded) cover(n);
    else if (!opt.flat) order(n.kids.filter((k) => k.keep)).forEach((k) => draw(k, depth + 1));
  };
  order(nodes.filter((n) => n.keep && (opt.flat || !n.parent))).forEach((n) => draw(n, 0));

  let total = {}, rest = {}, restCount = 0, idleCount = 0;
  for (const n of nodes) {
    total = sum(total, n.own);
    if (n.shown) continue;
    rest = sum(rest, n.own);
    restCount++;
    if (n.within) idleCount++;
  }
  return { rows, rest, restCount, idleCount, total };
}

export const quality = (q) => qualities[q];

// pressing are the three pressures of a row.
export const pressing = pressures.map((k, i) => [k, ["CPU", "memory", "I/O"][i]]);

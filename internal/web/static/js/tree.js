// A machine as it is, arranged as a tree or a list. The rules are those of mete top.

export const fields = ["cpu", "memory", "diskRead", "diskWritten", "networkRx", "networkTx", "pids", "power", "pressureCPU", "pressureMemory", "pressureIO"];

const source = {
  cpu: ["cpu_cores", "cpu"], memory: ["memory_bytes", "memory"],
  diskRead: ["disk_read_bytes_per_second", "disk_read"], diskWritten: ["disk_written_bytes_per_second", "disk_written"],
  networkRx: ["network_rx_bytes_per_second", "network_rx"], networkTx: ["network_tx_bytes_per_second", "network_tx"],
  pids: ["pids", "pids"], power: ["power_watts", "power"], pressureCPU: ["pressure_cpu_ratio", "pressure_cpu"],
  pressureMemory: ["pressure_memory_ratio", "pressure_memory"], pressureIO: ["pressure_io_ratio", "pressure_io"],
};
const qualities = ["absent", "measured", "apportioned", "modelled"];

// figuresOf reads a row; a figure is null where it is absent.
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

// sum adds b to a, except pressure, which has no sum.
function sum(a, b) {
  const out = { ...a };
  for (const f of fields.slice(0, 8)) out[f] = plus(a[f] ?? null, b[f]);
  return out;
}

export const residual = (row) => row.kind === "idle" || row.kind === "system";
// A hundredth of the machine's memory makes a workload busy which uses nothing else.
const busyMemory = 0.01;
const busy = (f, machine) => (f.memory?.value > 0 && f.memory.value >= busyMemory * (machine.memory_bytes?.whole ?? Infinity)) || (f.cpu?.value ?? 0) >= 0.0005 || ["diskRead", "diskWritten", "networkRx", "networkTx"].some((k) => f[k]?.value > 0);

const keys = {
  cpu: (f) => f.cpu, memory: (f) => f.memory, pids: (f) => f.pids, power: (f) => f.power,
  disk: (f) => plus(f.diskRead, f.diskWritten), network: (f) => plus(f.networkRx, f.networkTx),
  pressure: (f) => [f.pressureCPU, f.pressureMemory, f.pressureIO].reduce((a, b) => (b && (!a || b.value > a.value) ? b : a), null),
};

export function label(row) {
  return row.name || (row.path ?? "").split("/").pop() || row.id || "?";
}

// arrange returns { rows, rest, restCount, total }: rows in the order of the
// page, each { row, label, figures, depth, below, folded, match }.
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
    n.keep = n.within && (!opt.busy || busy(n.own, machine) || residual(n.row));
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
    rows.push({ row: n.row, label: n.short, figures: folded || (opt.sums && !opt.flat) ? n.sum : n.own, depth, below: opt.flat ? 0 : n.below, folded, match: n.hit });
    if (folded) cover(n);
    else if (!opt.flat) order(n.kids.filter((k) => k.keep)).forEach((k) => draw(k, depth + 1));
  };
  order(nodes.filter((n) => n.keep && (opt.flat || !n.parent))).forEach((n) => draw(n, 0));

  let total = {}, rest = {}, restCount = 0;
  for (const n of nodes) {
    total = sum(total, n.own);
    if (!n.shown) { rest = sum(rest, n.own); restCount++; }
  }
  return { rows, rest, restCount, total };
}

export const quality = (q) => qualities[q];

// pressing are the three pressures of a row.
export const pressing = [["pressureCPU", "CPU"], ["pressureMemory", "memory"], ["pressureIO", "I/O"]];

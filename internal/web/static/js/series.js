// What machines and workloads did over time, in PromQL: of a few workloads, and of
// whole machines by the levels that the server keeps of them. No question is about
// all workloads at every step.
import { get, range } from "./api.js";
import { ledger } from "./span.js";

export const resources = {
  cpu: { title: "CPU", unit: "cores", level: "mete_node_cpu_cores", metric: "mete_workload_cpu_seconds_total", recorded: "namespace:mete_cpu_cores:rate5m", now: "cpu_cores", field: "cpu_seconds" },
  memory: { title: "Memory", unit: "bytes", level: "mete_node_memory_held_bytes", metric: "mete_workload_memory_byte_seconds_total", recorded: "namespace:mete_memory_bytes:rate5m", now: "memory_bytes", field: "memory_average_bytes" },
  power: { title: "Power", unit: "watts", level: "mete_node_power_watts", metric: "mete_workload_energy_joules_total", recorded: "namespace:mete_power_watts:rate5m", now: "power_watts", field: "energy_joules" },
};

// quote is text as a PromQL string, literal one that a regular expression matches as it is.
export const quote = (s) => '"' + String(s).replace(/[\\"]/g, "\\$&").replace(/\n/g, "\\n") + '"';
export const literal = (s) => String(s).replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");
export const oneOf = (list) => quote(list.map(literal).join("|"));

// readings is about how many samples a question may read.
const readings = 3e6;

// level is a node's level over time, the average of each step where that is not too
// much to read.
export function level(name, match, span, nodes) {
  const raw = nodes * 3 * span.length / 10 * (span.window / span.step);
  return raw < readings ? `avg_over_time(${name}{${match}}[${span.window}s])` : `${name}{${match}}`;
}

// together is a level of several nodes without those that are guests of others, whose
// use is theirs too; of one node that is asked for it is its own.
export const together = (name, match, span, nodes) => level(name, match, span, nodes) + (/\bnode=/.test(match) ? "" : " unless on (cluster, node) mete_node_nested");

// stack is the use of a resource over time by the workloads of top, the rest, the
// system and what is idle. top is [{ id, name }], or "namespaces".
export async function stack(resource, top, match, nodes, span, signal) {
  const r = resources[resource], spaces = top === "namespaces", ids = spaces ? [] : top.map((t) => t.id).filter(Boolean);
  const [parts, each] = await Promise.all([
    range(`sum by (part) (${together(r.level, match, span, nodes)})`, span, signal),
    spaces ? range(`topk(8, sum by (namespace) (${r.recorded}))`, span, signal) : ids.length ? range(`sum by (workload) (rate(${r.metric}{workload=~${oneOf(ids)}}[${span.window}s]))`, span, signal) : [],
  ]);
  const numbers = (e) => e.values.map(([t, v]) => [t, Number(v)]);
  const part = Object.fromEntries(parts.map((p) => [p.metric.part, numbers(p)]));
  const named = spaces ? each.map((e) => ({ id: "namespace " + e.metric.namespace, name: e.metric.namespace, values: numbers(e) }))
    : top.map((t) => ({ ...t, values: numbers(each.find((e) => e.metric.workload === t.id) || { values: [] }) })).filter((t) => t.values.length);
  // Two of one name are told apart by their nodes.
  const twice = (n) => named.filter((m) => m.name === n.name).length > 1;
  for (const n of named) n.label = twice(n) && n.node ? n.name + " @" + n.node : n.name;
  const all = new Map(part.workloads || []), rest = new Map(all), sum = new Map();
  for (const n of named) for (const [t, v] of n.values) sum.set(t, (sum.get(t) || 0) + v);
  // A rate reaches a little past its readings, most where a series begins: what is
  // named is never more than what all workloads used.
  for (const n of named) n.values = n.values.filter(([t]) => all.has(t)).map(([t, v]) => [t, sum.get(t) > all.get(t) ? v * all.get(t) / sum.get(t) : v]);
  for (const [t, v] of sum) if (rest.has(t)) rest.set(t, Math.max(0, all.get(t) - v));
  const series = named.map((n) => ({ key: n.id, name: n.label, values: n.values }));
  if (rest.size) series.push({ name: named.length ? "other workloads" : "workloads", tone: "rest", values: [...rest] });
  if (part.system) series.push({ name: "system", tone: "system", values: part.system });
  if (part.idle) series.push({ name: "idle", tone: "idle", values: part.idle });
  return series;
}

// flows are the bytes a second of machines, both ways.
export async function flows(name, match, nodes, span, signal) {
  const found = await range(`sum by (direction) (${together(name, match, span, nodes)})`, span, signal);
  return found.map((f) => ({ name: f.metric.direction, values: f.values.map(([t, v]) => [t, Number(v)]) })).sort((a, b) => (a.name < b.name ? -1 : 1));
}

export const kinds = ["path", "slice", "service", "scope", "session", "user", "pod", "container", "slurm-job", "slurm-step", "vm", "job"];

// few are as many machines as the ledger is asked about for a chart of the present.
const few = 50;

// busiest are the n workloads that used most of a resource in a span, by the ledger;
// in one that goes on half of them are those that use most now, and of a large fleet
// all, as the server has these in memory.
export async function busiest(resource, n, span, node, signal, nodes = 1) {
  const goesOn = span.name && span.length <= 21600;
  const [now, all] = await Promise.all([goesOn ? present(resource, n, node, signal) : [], goesOn && !node && nodes > few ? [] : ranked(resource, n, span, node, signal)]);
  const list = all.slice(0, Math.max(n - now.length, Math.ceil(n / 2)));
  for (const w of [...now, ...all]) if (list.length < n && !list.some((l) => l.id === w.id)) list.push(w);
  return list;
}

async function present(resource, n, node, signal) {
  const now = await get("/v1/summary", { top: n, node }, signal);
  return ((now.top || {})[resource] || []).map((t) => ({ id: t.workload, name: t.job || t.name, node: t.node }));
}

async function ranked(resource, n, span, node, signal) {
  const used = await get("/v1/usage", { by: "workload,node", sort: resources[resource].field, fields: resources[resource].field, limit: n,
    where: [...kinds.map((k) => "kind=" + k), ...(node ? ["node=" + node] : [])], ...ledger(span) }, signal);
  if (!used.groups.length) return [];
  const found = await get("/v1/workloads", { where: [...new Set(used.groups.map((g) => "workload=" + g.workload)), ...new Set(used.groups.map((g) => "node=" + g.node))], limit: 200, ...ledger(span) }, signal);
  return used.groups.map((g) => {
    const w = found.workloads.find((w) => w.node === g.node && (w.name === g.workload || w.workload === g.workload));
    return { id: w ? w.workload : "", name: w && w.job ? w.job : g.workload, node: g.node };
  }).filter((w) => w.id);
}

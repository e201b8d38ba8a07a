// What machines and workloads did over time. What somebody used comes from the ledger (see
// history.js); the traffic of whole machines, which the ledger does not have, in PromQL by the
// levels that the server keeps of them. No query is about all workloads at every step.
import { get, range } from "./api.js";
import { ledger } from "./span.js";
import { history, mean, less, secondsOf } from "./history.js";
import { worst, known } from "./fmt.js";

// amount is the figure of the ledger whose average over time is drawn, off its possible error,
// and field the figure that tables show and sort by.
export const resources = {
  cpu: { title: "CPU", unit: "cores", amount: "cpu_seconds", field: "cpu_seconds" },
  memory: { title: "Memory", unit: "bytes", amount: "memory_byte_seconds", field: "memory_average_bytes" },
  power: { title: "Power", unit: "watts", amount: "energy_joules", off: "energy_error_joules", field: "energy_joules" },
};

// quote is text as a PromQL string, literal one that a regular expression matches as it is.
export const quote = (s) => '"' + String(s).replace(/[\\"]/g, "\\$&").replace(/\n/g, "\\n") + '"';
export const literal = (s) => String(s).replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");
export const oneOf = (list) => quote(list.map(literal).join("|"));

// readings is about how many samples a question may read.
const readings = 3e6;

// averagedOver is for how many seconds before each step a level is an average, where that is not too much to
// read; else 0. Windows have at most a minute: it is no shorter.
export function averagedOver(span, nodes) {
  const over = Math.max(60, span.step), raw = nodes * 3 * span.length / 10 * (over / span.step);
  return raw < readings ? over : 0;
}

// level is a node's level over time.
export function level(name, match, span, nodes) {
  const over = averagedOver(span, nodes);
  return over ? `avg_over_time(${name}{${match}}[${over}s])` : `${name}{${match}}`;
}

// together is a level of several nodes without those that are guests of others, whose
// use is theirs too; of one node that is asked for it is its own.
export const together = (name, match, span, nodes) => level(name, match, span, nodes) + (/\bnode=/.test(match) ? "" : " unless on (cluster, node) mete_node_nested");

const kinds = ["path", "slice", "service", "scope", "session", "user", "pod", "container", "slurm-job", "slurm-step", "vm", "job"];

// divisions are the dimensions by which the use of workloads is stacked: the dimension of the
// ledger, and the names on the page. "parts" stacks workloads as a whole.
export const divisions = { "": ["job", "jobs"], users: ["user", "users"], nodes: ["node", "nodes"], namespaces: ["namespace", "namespaces"], parts: [null, "workloads"] };
const shownGroups = 8;
const fields = [...new Set(Object.values(resources).flatMap((r) => [r.amount, r.off]).filter(Boolean)), "disk_read_bytes", "disk_written_bytes", "network_rx_bytes", "network_tx_bytes"].join(",");
const ofWorkloads = kinds.map((k) => "kind=" + k);

// stacks is what all workloads that match used over time, and what those groups of a dimension
// used that have the most of a resource in the range: from the ledger, bucket by bucket.
export async function stacks({ by, where = [], span, nodes = 1 }, signal) {
  const [dimension] = divisions[by] || divisions[""];
  const tops = dimension ? await Promise.all(Object.values(resources).map((r) => get("/v1/usage", { by: dimension, where: [...ofWorkloads, ...where], sort: r.field, fields: r.field, limit: shownGroups, ...ledger(span) }, signal))) : [];
  const top = Object.fromEntries(Object.keys(resources).map((r, i) => [r, dimension ? tops[i].groups.map((g) => g[dimension]) : []]));
  const names = [...new Set(Object.values(top).flat())];
  const questions = [{ by: "kind", where, fields }];
  if (names.length > 0) questions.push({ by: dimension, where: [...ofWorkloads, ...where.filter((w) => !w.startsWith(dimension + "=")), ...names.map((n) => dimension + "=" + n)], fields });
  const found = await history(questions, span, nodes, signal);
  if (!found) return { empty: true, span, begin: null };
  return { by, dimension, top, ...found, kinds: found.of[0], groups: found.of[1] || [] };
}

// partsAt are the amounts of a figure by workloads, system and idle in an answer by kind; null
// where none is known.
function partsAt(answer, field) {
  if (!answer || answer.groups.every((g) => g[field] === null || g[field] === undefined)) return null;
  const p = { workloads: 0, system: 0, idle: 0 };
  for (const g of answer.groups) p[g.kind === "idle" || g.kind === "system" ? g.kind : "workloads"] += Number(g[field] || 0);
  return p;
}

// stack makes the series of a resource of stacks: the groups with the most, the others, the
// system and, if wanted, what is idle.
export function stack(of, resource, withIdle) {
  const r = resources[resource], { buckets, dimension } = of, at = buckets.map((b) => b.from);
  const parts = of.kinds.map((a) => partsAt(a, r.amount));
  const line = (f, q) => buckets.map((b, i) => [at[i], parts[i] ? f(i) / secondsOf(b) : null, parts[i] ? q(i) : ""]);
  const quality = (wanted) => (i) => worst(of.kinds[i].groups.filter(wanted).map((g) => g.quality && g.quality[r.amount]).filter(Boolean)), ofWork = quality((g) => g.kind !== "idle" && g.kind !== "system");
  const amount = (i, name) => { const g = of.groups[i] && of.groups[i].groups.find((g) => g[dimension] === name); return g ? Number(g[r.amount] || 0) : 0; };
  const top = of.top[resource].filter((name) => buckets.some((_, i) => amount(i, name) > 0));
  const series = top.map((name) => ({ key: dimension + " " + name, name: name || "(none)", pick: { [dimension]: name }, values: line((i) => amount(i, name), (i) => { const g = of.groups[i] && of.groups[i].groups.find((g) => g[dimension] === name); return (g && g.quality && g.quality[r.amount]) || ""; }) }));
  const rest = line((i) => less(parts[i].workloads, top.reduce((a, name) => a + amount(i, name), 0)), ofWork);
  if (rest.some(([, v]) => v > 0)) series.push({ name: top.length ? "other " + divisions[of.by][1] : "workloads", tone: top.length ? "rest" : "workloads", values: rest });
  if (parts.some((p) => p && p.system > 0)) series.push({ name: "system", tone: "system", values: line((i) => parts[i].system, quality((g) => g.kind === "system")) });
  if (withIdle && parts.some((p) => p && p.idle > 0)) series.push({ name: "idle", tone: "idle", values: line((i) => parts[i].idle, quality((g) => g.kind === "idle")) });
  return parts.some(Boolean) ? series : [];
}

// capacity is the whole of a resource over time; null where nothing was measured.
export const capacity = (of, resource) => of.buckets.map((b, i) => [b.from, of.kinds[i] && of.kinds[i].whole && of.kinds[i].groups.length > 0 ? mean(of.kinds[i].whole, resources[resource].amount, b) : null]);

// errors is how far the power of the parts that are drawn may be off.
export const errors = (of, withIdle) => of.buckets.map((b, i) => {
  const list = of.kinds[i] ? of.kinds[i].groups.filter((g) => (withIdle || g.kind !== "idle") && g[resources.power.off] !== null) : [];
  return [b.from, list.length ? list.reduce((a, g) => a + Number(g[resources.power.off]), 0) / secondsOf(b) : null];
});

// traffic is what was read and written, or received and sent, from the ledger: by the machines, where the ledger
// has what belongs to no workload too, as of disks; else by their workloads. whole says which.
export function traffic(of, names) {
  return names.map(([name, field]) => ({ name, whole: of.kinds.some((a) => a && a.groups.some((g) => g.kind === "system" && known(g[field]))), values: of.buckets.map((b, i) => { const p = partsAt(of.kinds[i], field); return [b.from, p ? (p.workloads + p.system) / secondsOf(b) : null, p && of.kinds[i].total && of.kinds[i].total.quality ? of.kinds[i].total.quality[field] : ""]; }) })).filter((s) => s.values.some(([, v]) => v !== null));
}

// flows are the bytes a second of machines, both ways.
export async function flows(name, match, nodes, span, signal) {
  const found = await range(`sum by (direction) (${together(name, match, span, nodes)})`, span, signal);
  return found.map((f) => ({ name: f.metric.direction, values: f.values.map(([t, v]) => [t, Number(v)]) })).sort((a, b) => (a.name < b.name ? -1 : 1));
}

// Charts of a job: what all its runs used in each bucket of a range, by the ledger.
import { html, useMemo } from "../vendor/preact.mjs";
import { Card, Shown, Empty, Quality, useData } from "./ui.js";
import { Chart } from "./chart.js";
import { history, mean, less } from "./history.js";
import { bandOf, Lacks, missingMarks } from "./parts.js";
import { grouped, known, worst, when } from "./fmt.js";
import { get } from "./api.js";
import { before, ledger } from "./span.js";
import { runMarks, most } from "./runs.js";

const domains = [["energy_package_joules", "CPU packages"], ["energy_dram_joules", "memory"], ["energy_gpu_joules", "accelerators"], ["energy_rest_joules", "job's share"]];

// Of each chart: the stacked lines, those over them, and, where it is divided by node, the
// figure that is. share divides by the time that the runs were there, all together.
const charts = [
  { title: "CPU", unit: "cores", lines: [["user", "cpu_user_seconds"], ["system", "cpu_system_seconds"]], else: ["used", "cpu_seconds"], over: [["throttled", "cpu_throttled_seconds"]], split: "cpu_seconds", q: "cpu_seconds" },
  { title: "Memory", unit: "bytes", lines: [["anonymous", "memory_anon_byte_seconds"], ["page cache", "memory_file_byte_seconds"]], else: ["charged", "memory_byte_seconds"], over: [["charged", "memory_byte_seconds"]], peak: ["largest peak of a workload", "memory_peak_bytes"], split: "memory_byte_seconds", q: "memory_byte_seconds" },
  { title: "Power", unit: "watts", lines: domains.map(([f, n]) => [n, f]), off: "energy_error_joules", split: "energy_joules", q: "energy_joules" },
  { title: "Disk", unit: "rate", lines: [["read", "disk_read_bytes"], ["written", "disk_written_bytes"]], plain: true, q: "disk_read_bytes" },
  { title: "Network", unit: "rate", lines: [["received", "network_rx_bytes"], ["sent", "network_tx_bytes"]], plain: true, q: "network_rx_bytes" },
  { title: "Storage", unit: "bytes", lines: [["used", "storage_byte_seconds"]], else: ["reserved", "storage_reserved_byte_seconds"], over: [["reserved", "storage_reserved_byte_seconds"]], split: "storage_byte_seconds", q: "storage_byte_seconds" },
  { title: "Pressure", unit: "percent", note: "time in which tasks waited, average of the runs", share: true, lines: [["CPU", "pressure_cpu_seconds"], ["memory", "pressure_memory_seconds"], ["I/O", "pressure_io_seconds"]], plain: true, q: "pressure_cpu_seconds" },
  { title: "Tasks", unit: "count", note: "average number", lines: [["tasks", "pids_seconds"]], plain: true, q: "pids_seconds" },
];

const fields = [...new Set(charts.flatMap((c) => [...c.lines, ...(c.over || []), ...(c.else ? [c.else] : []), ...(c.peak ? [c.peak] : [])].map(([, f]) => f).concat(c.off || [], c.split || [])))].join(",");
const shownNodes = 10;

// useJobCharts asks for what is drawn of a job; split divides it by node.
// With compare, previous is the same of the range before.
export function useJobCharts({ where, span, split, compare }) {
  const past = useData(async (signal) => { const found = compare ? await history([{ by: "job", where, fields }], before(span), 1, signal) : null; return found && { ...found, sums: found.of[0].map((a) => (a && a.groups[0]) || null) }; }, [where.join("\n"), compare, span.from, span.to]);
  const now = useData(async (signal) => {
    const questions = [{ by: "job", where, fields }];
    let top = [];
    if (split) {
      const nodes = await get("/v1/usage", { by: "node", where, fields: "cpu_seconds", limit: shownNodes, ...ledger(span) }, signal);
      top = nodes.groups.map((g) => g.node);
      if (top.length) questions.push({ by: "node", where: [...where.filter((w) => !w.startsWith("node=")), ...top.map((n) => "node=" + n)], fields });
    }
    const found = await history(questions, span, 1, signal);
    return found ? { ...found, top, sums: found.of[0].map((a) => (a && a.groups[0]) || null), nodes: found.of[1] || [] } : { empty: true, span };
  }, [where.join("\n"), split, span.from, span.to]);
  return [now, past.data];
}

// earlier is the range before as lines of a chart: the total of stacked series, or each of others.
function earlier(c, d, previous, shown, stacked) {
  if (!previous) return [];
  const shift = d.range.from - previous.range.from;
  // at is the average of a figure, at the time of a bucket, over the buckets of the range before that are at it.
  const at = (f) => d.buckets.map((b) => {
    let sum = 0, length = 0;
    previous.buckets.forEach((p, i) => {
      const over = Math.min(b.to, p.to + shift) - Math.max(b.from, p.from + shift), v = over > 0 && previous.sums[i] ? (c.share ? ratio(previous.sums[i], f) : mean(previous.sums[i], f, p)) : null;
      if (v !== null) { sum += v * over; length += over; }
    });
    return [b.from, length > 0 ? sum / length : null];
  });
  const lines = stacked ? [["previous period", c.split, { tone: "previous" }]] : c.lines.map(([n, f]) => [n + ", previous period", f, { like: shown.findIndex((s) => s.name === n) }]);
  return lines.map(([name, f, color]) => ({ name, ...color, over: true, dash: [6, 4], values: at(f) })).filter((s) => s.values.some(([, v]) => v !== null));
}

// linesOf are the series of a chart of a job.
function linesOf(c, d, split) {
  const at = (f) => d.buckets.map((b, i) => [b.from, d.sums[i] ? (c.share ? ratio(d.sums[i], f) : mean(d.sums[i], f, b)) : null, d.sums[i] && d.sums[i].quality ? d.sums[i].quality[f] : ""]);
  const some = (s) => s.values.some(([, v]) => v !== null), line = ([name, f], more) => ({ name, values: at(f), ...more });
  if (split && c.split) {
    const of = (i, node) => { const g = d.nodes[i] && d.nodes[i].groups.find((g) => g.node === node); return g ? mean(g, c.split, d.buckets[i]) : null; };
    const series = d.top.map((node) => ({ key: "node " + node, name: node, pick: { node }, values: d.buckets.map((b, i) => [b.from, of(i, node)]) })).filter(some);
    const rest = at(c.split).map(([t, v], i) => [t, v === null ? null : less(v, series.reduce((a, s) => a + (s.values[i][1] || 0), 0))]);
    if (rest.some(([, v]) => v > 0)) series.push({ name: "other nodes", tone: "rest", values: rest });
    return series;
  }
  let lines = c.lines.map((l) => line(l)).filter(some);
  const over = lines.length === 0 ? [] : (c.over || []).map((l) => line(l, { over: true, dash: [4, 3] })).filter(some);
  if (lines.length === 0 && c.else) lines = [line(c.else)].filter(some);
  // Beside the sum of many workloads, the peak of one would lie on zero.
  const peaks = c.peak ? d.sums.map((s) => (s && known(s[c.peak[1]]) ? Number(s[c.peak[1]]) : 0)) : [], most = Math.max(...at(c.split || c.q).map(([, v]) => v || 0));
  if (c.peak && Math.max(...peaks) > most / 5) over.push({ name: c.peak[0], over: true, tone: "capacity", dash: [2, 3], values: d.buckets.map((b, i) => [b.from, d.sums[i] && known(d.sums[i][c.peak[1]]) ? Number(d.sums[i][c.peak[1]]) : null]) });
  return lines.length ? [...lines, ...over.filter(some)] : [];
}

// stoppedAt is since when no node sends anything, of which it is not known what runs; undefined where one does.
const stoppedAt = (lacks) => (lacks.find((m) => m.have === 0) || {}).from;

const ratio = (sum, f) => (known(sum[f]) && Number(sum.covered_seconds) > 0 ? Number(sum[f]) / Number(sum.covered_seconds) : null);

// lifeMarks are begins and ends in a range of workloads that are no runs, such as containers.
const marked = 300;
export const lifeMarks = (list, span, now = Date.now() / 1000) => (list && list.length <= marked ? list : []).filter((w) => Date.parse(w.started_at) / 1000 > span.from || w.ended_at).map((w) => ({ from: Date.parse(w.started_at || w.first_at) / 1000, to: w.ended_at ? Date.parse(w.ended_at) / 1000 : now, strip: true, tone: w.exit_code ? "bad" : "accent", key: w.exit_code ? "failed workload" : "workload", title: `${w.name || w.workload} from ${when(w.started_at || w.first_at)}${known(w.exit_code) ? ", exit " + w.exit_code : ""}` }));

// widths are those of cards that fill rows: two in the first one, three in each of the others, and a last
// one that has the rest.
const widths = (n) => [...Array.from({ length: n }, (_, i) => (i < 2 ? "w6" : "w4")), n === 1 ? "w6" : { 0: "w12", 1: "w8", 2: "w4" }[Math.max(0, n - 2) % 3]];

// qualityOf is the worst quality of what a chart draws.
export const qualityOf = (c, quality, split) => { const drawn = split && c.split ? [] : c.lines.map(([, f]) => quality[f]).filter((q) => q && q !== "absent"); return drawn.length ? worst(drawn) : quality[c.else && !split ? c.else[1] : c.q]; };

// JobCharts draws all charts of a job; space says that it only holds disk space, so that others are not expected. data is of useJobCharts, runs are its runs, list its workloads if
// they are few. lacks are the times since which its nodes send nothing, as of [lost]. last makes the card that fills the last row, of a width.
export function JobCharts({ data, previous, split, span, quality, runs: ran, list, lacks = [], pick, last, space }) {
  const marks = useMemo(() => [...(ran.length ? runMarks(ran, stoppedAt(lacks)) : lifeMarks(list, span, stoppedAt(lacks))), ...missingMarks(lacks)], [ran, list, span, lacks]);
  const drawn = useMemo(() => (data.data && !data.data.empty ? charts.map((c) => { const lines = linesOf(c, data.data, split); return [c, lines.length ? [...lines, ...earlier(c, data.data, previous, lines, !c.plain)] : lines]; }) : []), [data.data, previous, split]);
  const absent = drawn.filter(([, s]) => s.length === 0).map(([c]) => (c.title === "CPU" ? c.title : c.title.toLowerCase())), shown = drawn.filter(([, s]) => s.length > 0);
  const runs = (list || []).filter((w) => w.started_at && w.ended_at), short = runs.length > 0 && runs.every((w) => Date.parse(w.ended_at) - Date.parse(w.started_at) < 10000);
  const d = data.data, width = widths(shown.length), left = ran.length === 0 && list && list.length > marked ? marked : ran.length >= most ? most : 0;
  return html`<${Shown} of=${data} height=${214}>${() => html`
    ${short && html`<p class="small muted w12">${runs.length === 1 ? "This run was" : "These runs were"} shorter than one 10 s window: totals and bars are exact, there is no curve within a run. The strip below the bars shows when ${runs.length === 1 ? "it" : "each"} ran.</p>`}
    ${left > 0 && html`<p class="small muted w12">${ran.length ? `The charts sum all runs. Only the latest ${grouped(left)} are marked.` : `The charts sum all workloads. Single ones are not marked: there are more than ${left}.`}</p>`}
    ${shown.map(([c, series], i) => html`<${Card} key=${c.title} title=${html`${c.title}<${Quality} of=${qualityOf(c, quality, split)} />`} note=${html`${[c.note, d.begin && i === 0 && "first use " + when(d.begin * 1000)].filter(Boolean).join(" · ")}${lacks.length > 0 && html`<${Lacks} list=${lacks} end=${lacks.at(-1).to} />`}`} width=${width[i]}>
      <${Chart} series=${series} buckets=${d.buckets} span=${span} unit=${c.unit} height=${180} stacked=${!c.plain || Boolean(split && c.split)} band=${c.off && !split ? bandOf(series, [{ values: d.buckets.map((b, i) => [b.from, mean(d.sums[i], c.off, b)]).filter(([, v]) => v !== null) }]) : undefined} legend="always" label=${c.title} marks=${marks} pick=${split && c.split ? pick : undefined} /></${Card}>`)}
    ${d.empty && html`<section class="card w12"><${Empty} title="No samples in this range" /></section>`}
    ${last(width[shown.length])}
    ${absent.length > 0 && !space && html`<p class="small muted w12">Not available for this job: ${absent.join(", ")}. Absent is not zero.</p>`}`}</${Shown}>`;
}

// States of jobs: whether each runs, since when, and what is wrong with it.
import { html } from "../vendor/preact.mjs";
import { text, few, ago, exactly, known, grouped, at } from "./fmt.js";
import { exitOf, figureName, percent, isFailed } from "./runs.js";
import { Job } from "./ui.js";

const whose = ["kind", "namespace", "user", "project", "cluster"];

// placeOf tells jobs of one name apart; what is not said of the job itself is that of its runs, where all have one.
export const placeOf = (r, runs = []) => ["namespace", "user", "project", "cluster"].map((d) => r[d] || (runs.length > 0 && runs.every((x) => x[d] === runs[0][d]) && runs[0][d])).filter(Boolean).join(" · ");

const seconds = (at) => Date.parse(at) / 1000, minute = 60;

// dataOf is up to when data is there: live is the earliest end of the latest data of the nodes that send in time, and late
// are the ends of those of the others. to is the end of the range.
export function dataOf(nodes, to) {
  const ends = (wanted) => nodes.filter((n) => n.booked_through && wanted(n.state)).map((n) => Math.min(to, seconds(n.booked_through)));
  return { live: Math.min(to, ...ends((s) => s === "live")), late: ends((s) => s === "silent" || s === "behind") };
}

// stateOf says whether a job runs: "running" where it has use up to the latest data of the nodes that send, or a run of it
// runs; "unknown" where its use ends with the data of a node that sends nothing any more; else "ended".
export function stateOf(r, data, runs = []) {
  if (runs.some((x) => x.state === "running")) return "running";
  const last = seconds(r.last_at), own = runs.length > 0 && ["job", "slurm-job", "kube-job"].includes(r.kind);
  if (!own && last >= data.live && data.live !== Infinity) return "running";
  if (!own && data.late.some((t) => last >= t && last < t + 2 * minute)) return "unknown";
  return own && runs.every((x) => x.state === "unknown") ? "unknown" : "ended";
}

// runsOf are the runs of a row of jobs: those of its name, and of what else tells it apart. The pods of a Job of Kubernetes
// have other kinds.
export function runsOf(r, byJob) {
  return (byJob.get(r.job) || []).filter((x) => whose.every((d) => r[d] === undefined || x[d] === undefined || (d === "kind" && x.kind === "kube-job") || (x[d] || "") === (r[d] || "")));
}

// The limits of what is a lot: use beyond a request, and waiting for CPU time because of a limit.
const most = { cpu: 1.5, memory: 1.2, throttled: 0.25 };
const times = (v) => text(v, "none") + " ×";

// wrongOf lists what is wrong with a job: { tone, text, at, says }, the worst first. runs are its runs in the range, the latest
// first, of which some may be left out.
export function wrongOf(r, runs = []) {
  const out = [], failed = runs.filter(isFailed), ended = runs.filter((x) => x.state === "ended"), latest = ended[0], kills = Number(r.oom_kills || 0);
  const oom = failed.some((x) => Number(x.oom_kills) > 0);
  if (failed.length > 0) {
    const x = failed[0], one = ended.length === 1, why = exitOf(x), says = /^\d/.test(why) ? "exit " + why : why;
    out.push({ tone: isFailed(latest) ? "bad" : "warn", tag: one ? "failed" : grouped(failed.length) + " failed", at: x.ended_at,
      text: (one ? "failed: " + says : `${grouped(failed.length)} of ${few(ended.length, "run")} failed, the latest ${isFailed(latest) ? "run: " : "of them: "}${says}`) + (x.node ? ", on " + x.node : "") });
  }
  if (kills > 0 && !oom) out.push({ tone: "bad", tag: "out of memory", text: `${few(kills, "process", "processes")} killed for want of memory` });
  const marks = latest ? latest.comparisons.filter((c) => c.marked) : [], more = marks.filter((c) => c.change === null || c.change > 0);
  if (more.length > 0) out.push({ tone: "warn", tag: short(more[0]), at: latest.ended_at, text: "the latest run used more than the runs before it: " + more.map(short).join(", ") });
  // Use is compared with requests where these are known of all of it.
  const isHeld = Number(r.reserved_time_seconds || 0) >= 0.9 * Number(r.covered_seconds);
  if (isHeld) for (const [of, used, held, what] of [["cpu", "cpu_seconds", "cpu_reserved_seconds", "CPU"], ["memory", "memory_byte_seconds", "memory_reserved_byte_seconds", "memory"]]) {
    const ratio = Number(r[held]) > 0 && known(r[used]) ? Number(r[used]) / Number(r[held]) : 0;
    if (ratio > most[of]) out.push({ tone: "warn", tag: what + " " + times(ratio), text: `used ${times(ratio)} the ${what} that its pods reserve` });
  }
  const waits = Number(r.cpu_throttled_seconds || 0), part = waits / (waits + Number(r.cpu_seconds || 0));
  if (part > most.throttled) out.push({ tone: "warn", tag: "throttled", text: `throttled by its CPU limit for ${text(waits, "seconds")}, and used ${text(r.cpu_seconds, "seconds")}` });
  return out.sort((a, b) => (a.tone === "bad" ? 0 : 1) - (b.tone === "bad" ? 0 : 1));
}

const short = (c) => `${figureName(c.figure)} ${c.change === null ? "from 0" : percent(c.change)}`;

// statesOf judges rows of jobs: row to { state, begin, end, early, wrong }. begin and end are of its use in the range;
// early says that it may have begun before.
export function statesOf(rows, { nodes, runs, from, to }) {
  const data = dataOf(nodes, to), byJob = new Map(), of = new Map();
  for (const x of runs || []) byJob.set(x.job, [...(byJob.get(x.job) || []), x]);
  for (const r of rows) {
    const own = runsOf(r, byJob), begins = own.map((x) => x.started_at).filter(Boolean).sort(), begin = seconds(r.first_at), end = seconds(r.last_at), exact = begins.length > 0 && seconds(begins[0]) >= from;
    of.set(r, { state: stateOf(r, data, own), begin: exact ? seconds(begins[0]) : begin, end: Math.min(end, to), early: !exact && begin <= from, wrong: wrongOf(r, own), runs: own });
  }
  return of;
}

const tones = { running: "good", ended: "", unknown: "warn" };
export const says = { running: "it has use up to the latest data", ended: "it has no use any more", unknown: "its node sends no data any more, or no end was reported", wrong: "something is wrong with it" };

// rankOf orders jobs by what is wrong with them, and then those that run before those that do not.
export const rankOf = (s) => s.wrong.reduce((a, w) => a + (w.tone === "bad" ? 100 : 10), 0) + { running: 2, unknown: 1, ended: 0 }[s.state];

// State is the state of a job, and the worst that is wrong with it.
export function State({ of, short }) {
  const worst = of.wrong[0];
  return html`<span class="tags">${!(short && worst) && html`<span class=${"tag " + tones[of.state]} title=${says[of.state]}>${of.state}</span>`}${worst && html`<span class=${"tag " + worst.tone} title=${of.wrong.map((w) => w.text).join("; ")}>${worst.tag}</span>`}</span>`;
}

const listed = 6;

// Wrong lists the jobs with which something is wrong, the worst first: whose they are, what happened, and when.
export function Wrong({ list, all }) {
  const sorted = [...list].sort(([, a], [, b]) => rankOf(b) - rankOf(a));
  return html`<ul class=${"attention" + (sorted.length > 1 ? " two" : "")}>${sorted.slice(0, listed).map(([r, s]) => { const when = s.wrong.map((w) => w.at).filter(Boolean).sort().at(-1); return html`<li class=${s.wrong[0].tone} data-job=${r.job}><${Job} name=${r.job} /><span class="muted">${placeOf(r, s.runs)}</span>${when && html`<span class="end num muted" title=${exactly(when)}>${ago(when)}</span>`}<span class="why">${s.wrong.map((w) => w.text).join("; ")}</span></li>`; })}
    ${sorted.length > listed && html`<li class="warn"><button type="button" class="plain" onClick=${all}>${few(sorted.length - listed, "more job")}</button></li>`}</ul>`;
}

// counted are how many of the rows are in each state: of each, its name and its number.
export const counted = (rows, of) => [["wrong", rows.filter((r) => of.get(r).wrong.length > 0).length], ...["running", "unknown", "ended"].map((s) => [s, rows.filter((r) => of.get(r).state === s).length])].filter(([, n]) => n > 0);

// isIn reports whether a row is in a state, or has something wrong.
export const isIn = (s, state) => !state || (state === "wrong" ? s.wrong.length > 0 : s.state === state);

// Begin is since when a job has use in the range.
export const Begin = ({ s, from }) => html`<span class="num" title=${s.early ? "it has use since the begin of the range, or longer" : exactly(s.begin * 1000)}>${s.early ? html`<span class="muted">before </span>${at(from * 1000)}` : at(s.begin * 1000)}</span>`;

// Length is for how long a job has use in the range.
export const Length = ({ s }) => html`<span class="num" title="from its first to its last use in the range">${s.early && html`<span class="muted">≥ </span>`}${text(Math.max(0, s.end - s.begin), "seconds")}</span>`;

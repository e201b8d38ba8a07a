// Use over time from the ledger, in buckets of whole minutes. These are the rows that the
// tables sum: the areas of a chart are the amounts beside it, of runs of any length and
// number, and of servers whose metrics lie elsewhere.
import { get, address } from "./api.js";
import { ledger, fitted } from "./span.js";
import { turns } from "./refresh.js";

// A chart has up to this many buckets.
const most = 60;
const widths = [60, 120, 300, 600, 900, 1800, 3600, 10800, 21600, 43200, 86400, 604800];

// Folded minutes cost much less than minutes. For many nodes, a bucket of a range of hours is an hour.
const many = 100;

// rangeOf is the range of a span that the ledger is asked about, in seconds.
function rangeOf(span) { const l = ledger(span); return { from: Date.parse(l.from) / 1000, to: Date.parse(l.to) / 1000 }; }

// bucketsOf divides a range into buckets { from, to }, which begin at multiples of their
// width. least is the smallest width.
export function bucketsOf({ from, to }, nodes = 1, least = 60) {
  const length = to - from;
  if (nodes > many && length > 7200) least = Math.max(least, 3600);
  const width = widths.find((w) => w >= least && w >= length / most) || Math.ceil(length / most / 604800) * 604800;
  const out = [];
  for (let a = from; a < to;) { const b = Math.min(to, Math.floor(a / width) * width + width); out.push({ from: a, to: b }); a = b; }
  return out;
}

// Answers about time that is over change only by rows that arrive late. They are kept until
// the reader refreshes the page.
const kept = new Map();
let keptIn = 0;
const keptFor = 600, keptMost = 4000, late = 180;

async function ask(params, b, signal, again = false) {
  const now = Date.now() / 1000, range = { from: new Date(b.from * 1000).toISOString(), to: new Date(b.to * 1000).toISOString() };
  if (keptIn !== turns()) { kept.clear(); keptIn = turns(); }
  const url = address("/v1/usage", { ...params, ...range }), hit = kept.get(url);
  if (hit && hit.until > now && !again) return hit.answer;
  const answer = await get("/v1/usage", { ...params, ...range }, signal);
  if (b.to < now - late) {
    kept.set(url, { answer, until: now + keptFor });
    if (kept.size > keptMost) kept.delete(kept.keys().next().value);
  }
  return answer;
}

const atOnce = 6; // as many as a browser sends to one server

// answers asks the same question about each bucket.
export async function answers(params, buckets, signal) {
  const out = new Array(buckets.length);
  let next = 0;
  await Promise.all(Array.from({ length: Math.min(atOnce, buckets.length) }, async () => {
    while (next < buckets.length) { const i = next++; out[i] = await ask(params, buckets[i], signal); }
  }));
  return out;
}

// isLater reports whether an answer has more of workloads than another one that has all of them: rows arrived in between.
const isLater = (a, all) => ["cpu_seconds", "memory_byte_seconds", "energy_joules"].some((f) => ofWork(a, f) > ofWork(all, f) * (1 + 1e-6));
const ofWork = (a, f) => a.groups.reduce((sum, g) => (g.kind === "idle" || g.kind === "system" ? sum : sum + Number(g[f] || 0)), 0);

// widened reports whether the ledger has no finer rows than those of hours or days for a
// bucket: then its answer is about more time.
const widened = (b, a) => Date.parse(a.from) / 1000 < b.from || Date.parse(a.to) / 1000 > b.to;

// extent is the time of which the ledger knows something in a range: from and to are the range, wider
// where it has only rows of hours or days at its ends, and begin is where data begins. It is null
// where there is nothing.
async function extent(params, range, signal) {
  const answer = await ask(params, range, signal), first = answer.groups.map((g) => g.first_at).filter(Boolean).sort()[0];
  const from = Math.min(range.from, Date.parse(answer.from) / 1000), to = Math.max(range.to, Date.parse(answer.to) / 1000);
  return first ? { from, to, begin: Math.max(from, Date.parse(first) / 1000) } : null;
}

// history answers each of the questions for each bucket of a span, from where the ledger has
// something of the first: { buckets, ends, of, range, span, begin }, where of[i] are the answers to the i-th
// question, ends the times of an axis without what is to come, and begin is where data begins, if the span is longer. It is null where there is
// nothing. Buckets are as short as the rows that the ledger has of all of the range.
export async function history(questions, span, nodes, signal) {
  const range = rangeOf(span), has = await extent(questions[0], range, signal);
  if (has === null) return null;
  const short = has.begin - range.from > 0.1 * (range.to - range.from);
  for (const least of [60, 3600, 86400]) {
    // Rows of hours begin with their hour, and not with the first minute of data.
    const from = short ? Math.max(has.from, Math.floor(has.begin / least) * least) : has.from;
    const buckets = bucketsOf({ from, to: has.to }, nodes, least), list = await answers(questions[0], buckets, signal);
    await split(buckets, list, questions[0], least, signal);
    const wide = buckets.map((b, i) => widened(b, list[i]));
    if (least < 86400 && wide.includes(true)) continue;
    const lead = short ? Math.max(0, list.findIndex((a) => a.groups.length > 0)) : 0;
    const rest = await Promise.all(questions.slice(1).map((q) => answers(q, buckets, signal)));
    // Parts that are later than their whole would exceed it, and the capacity of the machines that sent before.
    await Promise.all(buckets.map(async (b, i) => { if (rest.some((l) => isLater(l[i], list[i]))) list[i] = await ask(questions[0], b, signal, true); }));
    const cut = measured(buckets, list).slice(lead), begin = cut[0].from;
    const latest = cut[list.findLastIndex((a) => a.groups.length > 0) - lead], end = Math.min(cut.at(-1).to, Math.max(span.to, latest ? latest.to : 0));
    return { buckets: cut, ends: [begin, end > begin ? end : cut.at(-1).to], of: [list, ...rest].map((l) => l.map((a, i) => (wide[i] ? null : a)).slice(lead)), range, span: short ? fitted(span, begin) : span, begin: short ? begin : null };
  }
  return null;
}

// split divides the latest buckets with data in which no machine was measured all the time: machines that were
// measured earlier, or later, than most would make the averages too low.
async function split(buckets, list, question, least, signal) {
  for (let i = buckets.length - 1, left = 2; i >= 0 && left > 0; i--) {
    const b = buckets[i], width = widths.find((w) => w >= least && w >= (b.to - b.from) / 12);
    if (!list[i].total || covered(list[i]).nodes < 2 || widened(b, list[i]) || !width || width >= b.to - b.from) continue;
    const [begin, end] = endsOf(b, list[i]);
    if (end - begin - Number(list[i].averages_over_seconds) < 120) continue;
    const parts = [];
    for (let a = b.from; a < b.to; a = parts.at(-1).to) parts.push({ from: a, to: Math.min(b.to, Math.floor(a / width) * width + width) });
    list.splice(i, 1, ...await answers(question, parts, signal));
    buckets.splice(i, 1, ...parts);
    left--;
  }
}

// endsOf are the begin of the first minute with use in a bucket, and the end of the last one.
function endsOf(b, a) {
  const instants = (key) => a.groups.map((g) => Date.parse(g[key]) / 1000).filter((t) => !Number.isNaN(t));
  return [Math.max(b.from, Math.min(...instants("first_at"))), Math.min(b.to, Math.max(...instants("last_at")))];
}

// covered is for how long the nodes of an answer by kind were measured, on average, and how many they are:
// each has one row that is idle.
export function covered(a) {
  const idle = ((a && a.groups) || []).find((g) => g.kind === "idle" && g.nodes > 0);
  return idle ? { nodes: idle.nodes, seconds: Number(idle.covered_seconds) / idle.nodes } : { nodes: 0, seconds: Infinity };
}

// known cuts the first and the last bucket with data to the time that was measured in them:
// a server that began, or whose latest window ended, within a bucket. Where something is missing in
// between, the minutes with use say from when to when. A minute in which most nodes began or ended
// is cut too, and a longer bucket where nothing was measured before or after: else what was used in a
// part of it would be drawn as low use.
export function known(buckets, list) {
  const has = list.map((a) => (a.total && a.groups.length > 0)), first = has.indexOf(true), last = has.lastIndexOf(true), now = Date.now() / 1000;
  return buckets.map((b, i) => {
    const c = covered(list[i]), length = Math.min(list[i].averages_over_seconds, c.seconds);
    if (i !== first && i !== last) {
      if (b.to - b.from > 60 && c.nodes > 0) return cut(b, ...endsOf(b, list[i]), Number(list[i].averages_over_seconds), false);
      if (b.to - b.from > 60 || !(c.seconds > 0) || c.seconds > 0.9 * (b.to - b.from)) return b;
      const few = (j) => covered(list[j]).nodes < c.nodes / 2;
      return few(i - 1) ? { from: b.to - c.seconds, to: b.to } : few(i + 1) ? { from: b.from, to: b.from + c.seconds } : b;
    }
    if (!(length > 0) || length >= b.to - b.from) return b;
    const [begin, end] = endsOf(b, list[i]);
    if (first !== last && c.nodes > 0 && (i === last ? begin > b.from : end < b.to)) return cut(b, begin, end, length, i === last);
    const until = i !== last ? b.to : i === first ? Math.min(b.to > now ? now : b.to, end) : b.from + length > end - 60 ? Math.min(b.to, b.from + length) : end;
    const from = i !== first ? b.from : until - length < begin + 60 ? Math.max(b.from, until - length) : begin;
    return until > from ? { from, to: until } : b;
  });
}

// cut is the part of a bucket from begin to end, whole minutes, of which so many seconds were measured. What is
// missing of the minutes at its ends is divided among them. ends says that its end is one, wherever it is.
function cut(b, begin, end, seconds, ends) {
  const sides = [begin > b.from, ends || end < b.to], each = (end - begin - seconds) / sides.filter(Boolean).length;
  const off = sides.map((is) => (is && each > 0 && each < 60 ? each : 0));
  return begin < end && sides.includes(true) ? { from: begin + off[0], to: end - off[1] } : b;
}

// measured are buckets as far as they are known. A bucket that one machine measured for a part of the time has that
// time as over, in seconds. With several machines it has none: the answer does not say which times overlap.
export const measured = (buckets, list) => known(buckets, list).map((b, i) => { const c = covered(list[i]); return c.nodes === 1 && c.seconds > 0 && c.seconds < b.to - b.from ? { ...b, over: c.seconds } : b; });

// secondsOf is for how long a bucket was measured: its values are averages over that time.
export const secondsOf = (b) => b.over ?? b.to - b.from;

// coarse answers a question for each of about thirty buckets of a span, a dozen for many nodes: { buckets, of }.
// Buckets are as short as the rows that the ledger has of all of the range.
export async function coarse(params, span, nodes, signal) {
  const range = rangeOf(span), shortest = widths.find((w) => w >= (range.to - range.from) / (nodes > many ? 12 : 30)) || 604800;
  for (const least of [60, 3600, 86400]) {
    const buckets = bucketsOf(range, nodes, Math.max(least, shortest)), of = await answers(params, buckets, signal);
    if (least === 86400 || !buckets.some((b, i) => widened(b, of[i]))) return { buckets, of };
  }
  return null;
}

// mean is the average of a figure over the time of a bucket that was measured; null where it is absent.
export const mean = (sum, field, b) => (sum && sum[field] !== null && sum[field] !== undefined ? Number(sum[field]) / secondsOf(b) : null);

// less is what of an amount is not in some of its parts: 0 where only rounding is left.
export const less = (whole, parts) => (whole - parts > 1e-9 * whole ? whole - parts : 0);

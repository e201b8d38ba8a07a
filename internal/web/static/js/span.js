// The range of time that is looked at.
import { useState, useEffect, useMemo } from "../vendor/preact.mjs";
import { here, put } from "./route.js";
import { useTurn, isPaused } from "./refresh.js";

export const ranges = [["15m", 900], ["1h", 3600], ["6h", 21600], ["24h", 86400], ["7d", 604800], ["30d", 2592000]];
let defaultRange = "1h";

// setDefaultRange sets what is shown where the URL names no range: an hour, or less where the data goes back
// only so many seconds.
export function setDefaultRange(seconds) { defaultRange = seconds < 1500 ? "15m" : "1h"; }

// fresh is how far, in seconds, the end of a range may lag behind now: about the interval of new readings.
const fresh = 15;

const lengths = { w: 604800, d: 86400, h: 3600, m: 60, s: 1, ms: 1e-3, us: 1e-6, "µs": 1e-6, ns: 1e-9 };

// lengthOf reads a length of time as the API does: weeks and days, then hours and below, as in
// 1w2d, 90m or 1.5h. It is in seconds; null for any other text.
export function lengthOf(text) {
  const m = /^(\d{1,5}w)?(\d{1,5}d)?((?:(?:\d+\.?\d*|\.\d+)(?:h|ms|m|s|us|µs|ns))*)$/.exec(text);
  if (!m || !text) return null;
  let sum = 0;
  for (const [, n, unit] of text.matchAll(/(\d+\.?\d*|\.\d+)(ms|us|µs|ns|w|d|h|m|s)/g)) sum += Number(n) * lengths[unit];
  return sum;
}

// named writes a length in seconds so that lengthOf reads it, a preset by its name.
export function named(length) {
  const preset = ranges.find(([, l]) => l === length);
  if (preset) return preset[0];
  for (const unit of ["d", "h", "m"]) if (length % lengths[unit] === 0) return length / lengths[unit] + unit;
  return length + "s";
}

const earliest = 0, latest = Date.UTC(9999, 0, 1) / 1000;

// instantOf reads a time as the API does: one without a zone is in the browser's. It is in seconds
// since 1970; null for any other text.
export function instantOf(text, now = Date.now() / 1000) {
  const t = parsed(text.trim(), now);
  return t !== null && t >= earliest && t <= latest ? t : null;
}

function parsed(text, now) {
  if (text === "now") return now;
  if (text === "today") return midnight(now, 0);
  if (text === "yesterday") return midnight(now, -1);
  if (text.startsWith("-")) { const back = lengthOf(text.slice(1)); return back === null ? null : now - back; }
  if (/^\d{1,12}(\.\d{1,9})?$/.test(text)) return Number(text);
  const m = /^(\d{4})-(\d\d)-(\d\d)(?:([T ])(\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?(Z|[+-]\d\d:\d\d)?)?$/.exec(text);
  if (!m || (m[9] && m[4] !== "T")) return null;
  const [y, mo, d, h, mi, sec] = [1, 2, 3, 5, 6, 7].map((i) => Number(m[i] || 0)), part = Number("0." + (m[8] || 0));
  const utc = Date.UTC(y, mo - 1, d, h, mi, sec), back = new Date(utc);
  if (y < 1000 || back.getUTCMonth() !== mo - 1 || back.getUTCDate() !== d || h > 23 || mi > 59 || sec > 59) return null;
  if (!m[9]) return new Date(y, mo - 1, d, h, mi, sec).getTime() / 1000 + part;
  const away = m[9] === "Z" ? [0, 0] : m[9].slice(1).split(":").map(Number);
  if (away[0] > 23 || away[1] > 59) return null;
  return utc / 1000 + part - (m[9][0] === "-" ? -1 : 1) * (away[0] * 3600 + away[1] * 60);
}

// midnight is the start of the day that is so many days after that of now.
function midnight(now, days) { const d = new Date(now * 1000); return new Date(d.getFullYear(), d.getMonth(), d.getDate() + days).getTime() / 1000; }

// periods are ranges of the calendar, in the browser's zone: name and the ends at a time. A week
// begins on Monday.
export const periods = [
  ["yesterday", (now) => [midnight(now, -1), midnight(now, 0)]],
  ["today", (now) => [midnight(now, 0), midnight(now, 1)]],
  ["this week", (now) => { const past = (new Date(now * 1000).getDay() + 6) % 7; return [midnight(now, -past), midnight(now, 7 - past)]; }],
  ["this month", (now) => month(now, 0)],
  ["last month", (now) => month(now, -1)],
];
function month(now, more) { const d = new Date(now * 1000); return [0, 1].map((n) => new Date(d.getFullYear(), d.getMonth() + more + n, 1).getTime() / 1000); }

// rangeOf reads the two ends of a range that somebody wrote: the changes of the query that show
// it, or { wrong, why }: the end that cannot be read or shown, and the reason.
export function rangeOf(from, to, now = Date.now() / 1000) {
  const how = "Write 2026-03-01 12:00, today, yesterday, now, or how long ago: -90m, -24h, -7d.";
  const [a, b] = [instantOf(from, now), instantOf(to, now)];
  if (a === null) return { wrong: "from", why: (from.trim() ? `“${from.trim()}” is not a time. ` : "The start is missing. ") + how };
  if (b === null) return { wrong: "to", why: (to.trim() ? `“${to.trim()}” is not a time. ` : "The end is missing. ") + how };
  if (a >= b) return { wrong: "to", why: "The end must be after the start." };
  if (a > now - 60) return { wrong: "from", why: "The start must be at least a minute ago." };
  if (b - a < 60) return { wrong: "to", why: "The range must be at least a minute long." };
  const back = from.trim().startsWith("-") && to.trim() === "now" ? lengthOf(from.trim().slice(1)) : 0;
  if (back && back % 60 === 0) return { range: named(back) === defaultRange ? "" : named(back), from: "", to: "" };
  return { from: Math.floor(a), to: Math.ceil(b) };
}

// written is an instant as instantOf reads it, in the browser's zone.
export function written(at) {
  const d = new Date(at * 1000), two = (n) => String(n).padStart(2, "0");
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${two(d.getHours())}:${two(d.getMinutes())}` + (d.getSeconds() ? ":" + two(d.getSeconds()) : "");
}

// spanOf is the range that a query names: { from, to, step } in seconds, with the
// name of it: of a preset, or its length. It moves with time unless both ends are given, and ends now. from
// and to are whole steps apart, but not multiples of the step. With both ends given, start is the chosen
// start, at most a step after from: sums begin at start. open: the chosen end is in the future, so the range
// still grows. A query that names no range, or one that cannot be shown, has the default range.
export function spanOf(query, now = Date.now() / 1000) {
  const a = Math.floor(Number(query.from)), b = Math.ceil(Number(query.to));
  if (query.from && query.to && earliest <= a && a < b && b <= latest) {
    // What is yet to come has no readings: the last value would be of none.
    const to = a < now - 60 ? Math.min(b, Math.floor(now)) : b, step = stepOf(to - a);
    return stepped({ name: "", start: a, from: to - Math.ceil((to - a) / step) * step, to, step, open: to < b });
  }
  const own = lengthOf(query.range || ""), isRange = own >= 60 && own % 60 === 0 && own < now;
  const [name, length] = isRange ? [query.range, own] : ranges.find(([n]) => n === defaultRange);
  const step = stepOf(length), each = Math.min(step, fresh), to = Math.floor(now / each) * each;
  return stepped({ name, from: to - length, to, step });
}

function stepOf(length) {
  for (const s of [10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400]) if (s >= length / 240) return s;
  return Math.ceil(length / 240 / 86400) * 86400;
}

// Rates look back two steps, and at least 120 s: two readings at the longest interval, a minute.
function stepped(s) { const start = s.start ?? s.from; return { ...s, start, length: s.to - start, window: Math.max(120, s.step * 2) }; }

// fitted is a span from a later begin.
export function fitted(s, from) {
  const step = stepOf(s.to - from);
  return stepped({ ...s, start: undefined, from: s.to - Math.max(1, Math.ceil((s.to - from) / step)) * step, step });
}

// before is the span of the same length that ends where s begins: in the ledger it has exactly
// the whole minutes before those of s.
export function before(s) {
  const l = ledger(s), [from, to] = [l.from, l.to].map((t) => Date.parse(t) / 1000);
  return stepped({ ...s, name: "", open: false, start: undefined, from: from - (to - from), to: from });
}

// often is after how many seconds a range that goes on is looked at anew.
const often = (step) => Math.max(10, Math.min(step, 300));

// useSpan is the range of the URL, and goes on with time.
export function useSpan(query) {
  const [now, set] = useState(Date.now() / 1000), turn = useTurn();
  const { name, step, open } = spanOf(query, now), moves = Boolean(name || open);
  useEffect(() => {
    if (!moves) return undefined;
    set(Date.now() / 1000);
    const timer = setInterval(() => { if (!document.hidden && !isPaused()) set(Date.now() / 1000); }, often(step) * 1000);
    return () => clearInterval(timer);
  }, [name, moves, step, turn]);
  const s = spanOf(query, now);
  return useMemo(() => s, [s.start, s.from, s.to, s.step]);
}

export const choose = (name) => put({ range: name === defaultRange ? "" : name, from: "", to: "" });
// zoom shows a range with two ends. The one before it, if it moves with time, stays in the query:
// it is the way back.
export const zoom = (from, to) => put({ from: Math.round(from), to: Math.round(to) });
export const toNow = () => put({ from: "", to: "" });

const longest = 3650 * 86400;

// pan shows the time that is half a range earlier or later, up to now.
export function pan(way, now = Date.now() / 1000) {
  const s = spanOf(here().query, now), to = Math.min(s.to + way * s.length / 2, Math.floor(now));
  if (way > 0 && isNow(s, now)) return;
  zoom(Math.max(0, to - s.length), to);
}

// isNow reports whether a span ends now.
export const isNow = (s, now = Date.now() / 1000) => Boolean(s.name || s.open) || s.to >= Math.floor(now) - 1;

// widen doubles the range: around its middle, but not beyond now.
export function widen(now = Date.now() / 1000) {
  const s = spanOf(here().query, now);
  if (s.length * 2 > longest) return;
  if (s.name && s.length % 60 === 0) { choose(named(s.length * 2)); return; }
  const to = Math.min(s.to + s.length / 2, Math.floor(now));
  zoom(Math.max(0, to - 2 * s.length), to);
}

// ledger is the same range in the words of questions about the ledger, which knows
// minutes. Of a range that goes on it has all up to now, and a little of what is to
// come: so it changes in steps that are small for its length, and nobody adds up a week
// of thousands of workloads every few seconds.
export function ledger(s) {
  const step = s.name ? Math.min(300, Math.max(60, Math.ceil(s.length / 360 / 60) * 60)) : 60;
  const to = s.name ? Math.floor(s.to / step + 1) * step : Math.ceil(s.to / step) * step;
  const from = s.name ? to - s.length : Math.floor((s.start ?? s.from) / step) * step;
  return { from: new Date(from * 1000).toISOString(), to: new Date(to * 1000).toISOString() };
}

// steps changes when ledger does.
export const steps = (s) => { const l = ledger(s); return l.from + l.to; };

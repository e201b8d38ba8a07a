// The range of time that is looked at.
import { useState, useEffect, useMemo } from "../vendor/preact.mjs";
import { here, put } from "./route.js";

export const ranges = [["15m", 900], ["1h", 3600], ["6h", 21600], ["24h", 86400], ["7d", 604800], ["30d", 2592000]];
let first = "1h";

// begin says what is shown where the URL says nothing: an hour, less where nothing
// is known for as long.
export function begin(seconds) { first = seconds < 1500 ? "15m" : "1h"; }
export const firstRange = () => first;

// fresh is by how many seconds at most the end of a range lies before now: as often
// as there are new readings, about.
const fresh = 15;

// spanOf is the range that a query names: { from, to, step } in seconds, with the
// name of it. It moves with time unless both ends are given, and ends now, whatever
// the step: from and to are whole steps apart, and no multiples of it.
export function spanOf(query, now = Date.now() / 1000) {
  const a = Math.floor(Number(query.from)), b = Math.ceil(Number(query.to));
  if (query.from && query.to && b > a) {
    // What is yet to come has no readings: the last value would be of none.
    const to = a < now - 60 ? Math.min(b, Math.floor(now)) : b, step = stepOf(to - a);
    return stepped({ name: "", from: to - Math.ceil((to - a) / step) * step, to, step });
  }
  const [name, length] = ranges.find(([n]) => n === query.range) || ranges.find(([n]) => n === first);
  const step = stepOf(length), each = Math.min(step, fresh), to = Math.floor(now / each) * each;
  return stepped({ name, from: to - length, to, step });
}

function stepOf(length) {
  for (const s of [10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400]) if (s >= length / 240) return s;
  return 86400;
}

// The window of rates is two steps, and long enough for two readings of windows of a minute,
// the longest that there are.
function stepped(s) { return { ...s, length: s.to - s.from, window: Math.max(120, s.step * 2) }; }

// fitted is a span from a later begin.
export function fitted(s, from) {
  const step = stepOf(s.to - from);
  return stepped({ ...s, from: s.to - Math.max(1, Math.ceil((s.to - from) / step)) * step, step });
}

// before is the span of the same length that ends where s begins.
export const before = (s) => ({ ...s, name: "", from: s.from - s.length, to: s.from });

// often is after how many seconds a range that goes on is looked at anew.
const often = (step) => Math.max(10, Math.min(step, 300));

// useSpan is the range of the URL, and goes on with time.
export function useSpan(query) {
  const [now, set] = useState(Date.now() / 1000);
  const { name, step } = spanOf(query, now);
  useEffect(() => {
    if (!name) return undefined;
    set(Date.now() / 1000);
    const timer = setInterval(() => { if (!document.hidden) set(Date.now() / 1000); }, often(step) * 1000);
    return () => clearInterval(timer);
  }, [name, step]);
  const s = spanOf(query, now);
  return useMemo(() => s, [s.from, s.to, s.step]);
}

export const choose = (name) => put({ range: name === first ? "" : name, from: "", to: "" });
export const zoom = (from, to) => put({ range: "", from: Math.round(from), to: Math.round(to) });

// ledger is the same range in the words of questions about the ledger, which knows
// minutes. Of a range that goes on it has all up to now, and a little of what is to
// come: so it changes in steps that are small for its length, and nobody adds up a week
// of thousands of workloads every few seconds.
export function ledger(s) {
  const step = s.name ? Math.min(300, Math.max(60, Math.ceil(s.length / 360 / 60) * 60)) : 60;
  const to = s.name ? Math.floor(s.to / step + 1) * step : Math.ceil(s.to / step) * step;
  const from = s.name ? to - s.length : Math.floor(s.from / step) * step;
  return { from: new Date(from * 1000).toISOString(), to: new Date(to * 1000).toISOString() };
}

// steps changes when ledger does.
export const steps = (s) => { const l = ledger(s); return l.from + l.to; };

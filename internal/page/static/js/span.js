// The range of time that is looked at.
import { useState, useEffect, useMemo } from "../vendor/preact.mjs";
import { here, put } from "./route.js";

export const ranges = [["15m", 900], ["1h", 3600], ["6h", 21600], ["24h", 86400], ["7d", 604800], ["30d", 2592000]];
let first = "1h";

// begin says what is shown where the URL says nothing: an hour, less where nothing
// is known for as long.
export function begin(seconds) { first = seconds < 1500 ? "15m" : "1h"; }
export const firstRange = () => first;

// spanOf is the range that a query names: { from, to, step } in seconds, with the
// name of it. It moves with time unless both ends are given.
export function spanOf(query, now = Date.now() / 1000) {
  const a = Number(query.from), b = Number(query.to);
  if (query.from && query.to && b > a) {
    const step = stepOf(b - a);
    return stepped({ name: "", from: Math.floor(a / step) * step, to: Math.ceil(b / step) * step, step });
  }
  const [name, length] = ranges.find(([n]) => n === query.range) || ranges.find(([n]) => n === first);
  const step = stepOf(length), to = Math.floor(now / step) * step;
  return stepped({ name, from: to - length, to, step });
}

function stepOf(length) {
  for (const s of [10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400]) if (s >= length / 240) return s;
  return 86400;
}

// The window of rates is two steps, and long enough for three readings.
function stepped(s) { return { ...s, length: s.to - s.from, window: Math.max(30, s.step * 2) }; }

// useSpan is the range of the URL, and goes on with time.
export function useSpan(query) {
  const [now, set] = useState(Date.now() / 1000);
  const { name, step } = spanOf(query, now);
  useEffect(() => {
    if (!name) return undefined;
    set(Date.now() / 1000);
    const timer = setInterval(() => { if (!document.hidden) set(Date.now() / 1000); }, Math.max(10, step) * 1000);
    return () => clearInterval(timer);
  }, [name, step]);
  const s = spanOf(query, now);
  return useMemo(() => s, [s.from, s.to, s.step]);
}

export const choose = (name) => put({ range: name === first ? "" : name, from: "", to: "" });
export const zoom = (from, to) => put({ range: "", from: Math.round(from), to: Math.round(to) });

// ledger is the same range in the words of questions about the ledger, which knows
// minutes; a range that goes on does so in steps that are small for its length, so
// that nobody adds up a week of thousands of workloads every few seconds.
export function ledger(s) {
  const step = s.name ? Math.max(60, Math.ceil(s.length / 360 / 60) * 60) : 60, to = Math.ceil(s.to / step) * step;
  const from = s.name ? to - s.length : Math.floor(s.from / 60) * 60;
  return { from: new Date(from * 1000).toISOString(), to: new Date(to * 1000).toISOString() };
}

// steps changes when ledger does.
export const steps = (s) => { const l = ledger(s); return l.from + l.to; };

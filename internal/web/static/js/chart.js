// Values over time: lines, or areas that add up.
import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.mjs";
import uPlot from "../vendor/uplot.mjs";
import { text, when, time as clock, ticks, brief } from "./fmt.js";
import { zoom } from "./span.js";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A workload has one color for as long as the page is open.
const tones = new Map();
function toneOf(s, i) {
  if (s.tone) return css("--c-" + s.tone);
  if (!s.key) return css("--c" + ((i % 10) + 1));
  if (!tones.has(s.key)) tones.set(s.key, (tones.size % 10) + 1);
  return css("--c" + tones.get(s.key));
}

// axis are the times of a span at which series of [time, value] pairs have values, one
// each step. They are the series' own, also where those are of a span a while ago, until
// there are newer ones.
function axis(series, span) {
  const { from, to, step } = span, first = series.find((s) => s.values.length), times = [];
  const past = first ? (Number(first.values[0][0]) - from) % step : 0;
  for (let t = from + (past < 0 ? past + step : past); t <= to; t += step) times.push(t);
  return times;
}

// aligned puts series on one axis of times.
function aligned(series, times) {
  const at = new Map(times.map((t, i) => [t, i]));
  return [times, ...series.map((s) => {
    const out = new Array(times.length).fill(null);
    for (const [t, v] of s.values) { const i = at.get(Number(t)); if (i !== undefined && Number.isFinite(Number(v))) out[i] = Number(v); }
    return out;
  })];
}

// piled adds each series to those below it. Where some are known, the others count
// as nothing.
function piled(data) {
  const sum = new Array(data[0].length).fill(0);
  const some = data[0].map((_, j) => data.slice(1).some((r) => r[j] !== null));
  return [data[0], ...data.slice(1).map((r) => r.map((v, j) => { sum[j] += v || 0; return some[j] ? sum[j] : null; }))];
}

const sync = uPlot.sync("time");

// What an axis reaches to at least, and the steps of one of bytes: halves of a
// KiB are no round numbers in tens.
const least = { rate: 1024, bytes: 1024, watts: 0.001, cores: 0.01, count: 1, percent: 0.01 };
const doubled = Array.from({ length: 54 }, (_, i) => 2 ** i);
const trimmed = (s) => s.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");

function axes(unit) {
  const font = "11px " + css("--sans"), stroke = css("--muted"), grid = { stroke: css("--grid"), width: 1 };
  return [
    { stroke, grid: { show: false }, ticks: { stroke: css("--line"), size: 4 }, font, size: 24, gap: 3, space: 64, values: (u, at, axis, space, apart) => ticks(at, apart) },
    { stroke, grid, ticks: { show: false }, font, size: (u, texts) => Math.max(38, ...(texts || []).map((t) => t.length * 6.3 + 14)), gap: 8, space: 34, values: (u, at) => at.map((v) => trimmed(text(v, unit, at[at.length - 1]))), ...(unit === "bytes" || unit === "rate" ? { incrs: doubled } : {}) },
  ];
}

// lone are the places in a row whose value no line leads to or from: it is drawn as a
// point.
const lone = (row) => row.flatMap((v, i) => (known(v) && !known(row[i - 1]) && !known(row[i + 1]) ? [i] : []));

// options are those of uPlot for series that are piled, or lines.
function options({ seen, unit, stacked, whole, band, tone }, node, height, hover) {
  const lines = seen.map((s, i) => ({
    label: s.name, stroke: tone[i], width: stacked ? 1 : 1.75, fill: stacked ? tone[i] + (s.tone === "idle" ? "55" : "cc") : seen.length === 1 ? tone[i] + "1f" : undefined,
    points: { show: false, filter: (u, of) => lone(u.data[of]), size: 5, fill: tone[i] }, dash: s.dash, spanGaps: false,
  }));
  // The area of each is between its own line and that of the one below.
  const bands = stacked ? seen.slice(1).map((_, i) => ({ series: [i + 2, i + 1] })) : [];
  if (band) {
    const edge = { stroke: "transparent", width: 0, points: { show: false }, fill: css("--band") };
    lines.push({ label: "most", ...edge }, { label: "least", ...edge, fill: undefined });
    bands.push({ series: [seen.length + 1, seen.length + 2], fill: css("--band") });
  }
  return {
    width: node.clientWidth, height, padding: [10, 18, 0, 0],
    cursor: { sync: { key: sync.key, setSeries: false }, drag: { x: true, y: false, setScale: false }, points: { size: 6, width: 0 } },
    legend: { show: false },
    hooks: {
      setSelect: [(u) => {
        if (u.select.width < 6) return;
        const a = u.posToVal(u.select.left, "x"), b = u.posToVal(u.select.left + u.select.width, "x");
        u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        if (b - a >= 60) zoom(a, b);
      }],
      setCursor: [hover],
    },
    scales: { x: { time: true }, y: { range: (u, lo, hi) => [Math.min(0, lo || 0), Math.max((whole || 0) * 1.001, (hi || 0) * 1.06, least[unit] || 1e-9)] } },
    axes: axes(unit), series: [{}, ...lines], bands,
  };
}

function element(tag, cls, content) {
  const e = document.createElement(tag);
  if (cls) e.className = cls;
  if (content !== undefined) e.textContent = content;
  return e;
}

function tipLine(name, v, tone, unit) {
  const d = element("div");
  if (tone) { const dot = element("i", "dot"); dot.style.background = tone; d.append(dot); }
  d.append(element("span", "", name), element("b", "", text(v, unit)));
  return d;
}

// fillTip writes what is at an instant, the highest first.
function fillTip(el, u, i, { seen, raw, tone, unit, stacked, band }) {
  const rows = seen.map((s, n) => [s.name, raw[n + 1][i], tone[n]]).filter(([, v]) => v !== null);
  if (rows.length === 0) { el.hidden = true; return; }
  const sum = rows.reduce((a, [, v]) => a + v, 0);
  if (!stacked) rows.sort((a, b) => b[1] - a[1]); else rows.reverse();
  const at = u.data[0][i] * 1000, most = 12;
  const lines = rows.slice(0, most).map(([n, v, t]) => tipLine(brief(n, 34), v, t, unit));
  if (rows.length > most) lines.push(tipLine(rows.length - most + " more", rows.slice(most).reduce((a, [, v]) => a + v, 0), "", unit));
  if (stacked && rows.length > 1) { const l = tipLine("all", sum, "", unit); l.className = "sum"; lines.push(l); }
  if (band && u.data[seen.length + 1][i] !== null) lines.push(tipLine("may be", u.data[seen.length + 2][i], "", unit), tipLine("to", u.data[seen.length + 1][i], "", unit));
  el.replaceChildren(element("div", "muted", when(at).split(",")[0] + " " + clock(at)), ...lines);
  el.hidden = false;
  const width = el.offsetWidth, left = u.cursor.left + u.bbox.left / devicePixelRatio;
  el.style.left = Math.max(4, left + width + 24 > u.width ? left - width - 14 : left + 14) + "px";
}

// Chart draws series of { name, values: [[t, v]], key, tone, dash }. stacked adds
// them up, the first one at the bottom; whole is what the axis reaches to; band is
// { low, high } of the values' sum, drawn faintly.
export function Chart({ series, span, unit, height = 220, stacked = false, whole = 0, band, legend = true, label }) {
  const box = useRef(), plot = useRef(), tip = useRef(), keys = useRef(), inside = useRef(false), hand = useRef(null);
  // Nothing changes under a hand that draws across the chart.
  const held = useRef(false), last = useRef(), [, drawn] = useState(0);
  if (!held.current) last.current = { series, span, whole, band };
  ({ series, span, whole, band } = last.current);
  const hold = () => {
    held.current = true;
    window.addEventListener("mouseup", () => { held.current = false; drawn((n) => n + 1); }, { once: true });
  };
  const [off, setOff] = useState(() => new Set());
  const theme = document.documentElement.dataset.theme;
  const seen = series.filter((s) => !off.has(s.name));
  const tone = seen.map((s) => toneOf(s, series.indexOf(s)));
  const times = useMemo(() => axis(series, span), [series, span]);
  const raw = useMemo(() => aligned(seen, times), [series, times, off]);
  const data = useMemo(() => {
    const shown = stacked ? piled(raw) : [...raw];
    return band ? [...shown, ...aligned([{ values: band.high }, { values: band.low }], times).slice(1)] : shown;
  }, [raw, stacked, band]);
  const now = useRef();
  now.current = { seen, raw, tone, unit, stacked, band };
  const shape = JSON.stringify([seen.map((s, i) => [s.name, tone[i], s.dash]), unit, stacked, whole, Boolean(band), height, theme]);

  const hover = (u) => {
    const i = u.cursor.idx, at = known(i) && u.cursor.left >= 0 ? i : null;
    if (at !== null) hand.current = { left: u.cursor.left, top: u.cursor.top };
    legendAt(at);
    if (!tip.current) return;
    if (at === null || !inside.current) tip.current.hidden = true;
    else fillTip(tip.current, u, at, now.current);
  };
  // rest tells again what is under a hand that rests, once what is new is drawn.
  const rest = () => queueMicrotask(() => {
    if (plot.current && inside.current && hand.current) plot.current.setCursor(hand.current);
    else legendAt(null);
  });
  // legendAt writes the values at an instant beside the names, else the latest.
  const legendAt = (i) => {
    if (!keys.current) return;
    const { raw, seen, unit } = now.current;
    for (const b of keys.current.querySelectorAll("[data-name]")) {
      const n = seen.findIndex((s) => s.name === b.dataset.name);
      const row = n < 0 ? null : raw[n + 1];
      let v = null;
      if (row) v = i === null ? latestOf(row) : row[i];
      const s = row ? text(v, unit) : "";
      if (b.textContent !== s) b.textContent = s;
    }
  };

  useEffect(() => {
    const node = box.current;
    if (!node) return undefined;
    plot.current = new uPlot(options({ seen, unit, stacked, whole, band, tone }, node, height, hover), data, node);
    const resized = new ResizeObserver(() => { if (plot.current && node.clientWidth) plot.current.setSize({ width: node.clientWidth, height }); });
    resized.observe(node);
    return () => { resized.disconnect(); plot.current.destroy(); plot.current = null; };
  }, [shape]);
  useEffect(() => {
    if (plot.current && plot.current.data !== data) plot.current.setData(data, false);
    if (plot.current) plot.current.setScale("x", { min: span.from, max: span.to });
    rest();
  }, [data, shape]);

  const step = (e) => {
    const u = plot.current, way = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
    if (!u || !way) return;
    e.preventDefault();
    inside.current = true;
    const from = known(u.cursor.idx) && u.cursor.left >= 0 ? u.cursor.idx : u.data[0].length - 1;
    const i = Math.min(u.data[0].length - 1, Math.max(0, from + way * (e.shiftKey ? 10 : 1)));
    u.setCursor({ left: u.valToPos(u.data[0][i], "x"), top: 10 });
  };
  const leave = () => { inside.current = false; hand.current = null; if (tip.current) tip.current.hidden = true; };
  const toggle = (name) => setOff((s) => { const n = new Set(s); if (!n.delete(name)) n.add(name); return n; });
  const says = (label || "chart") + ": " + series.slice(0, 12).map((s) => s.name + " " + text(latestOf(s.values.map(([, v]) => Number(v))), unit)).join(", ");
  return html`<figure class="chart" onMouseEnter=${() => { inside.current = true; }} onMouseLeave=${leave}>
    <div ref=${box} class="plot" style=${{ height: height + "px" }} role="img" tabindex="0" aria-label=${says} onMouseDown=${hold} onKeyDown=${step} onBlur=${leave}></div>
    <div class="tip" ref=${tip} hidden></div>
    ${legend && (series.length > 1 || legend === "always") && html`<div class="legend" ref=${keys}>${series.map((s, i) => html`<button type="button" key=${s.name} aria-pressed=${off.has(s.name) ? "false" : "true"} onClick=${() => toggle(s.name)} title=${s.title || s.name}>
      <i style=${{ background: toneOf(s, i) }}></i><span>${brief(s.name)}</span><b data-name=${s.name}></b></button>`)}</div>`}</figure>`;
}

const known = (v) => v !== null && v !== undefined;

function latestOf(row) {
  for (let i = row.length - 1; i >= 0; i--) if (known(row[i]) && !Number.isNaN(row[i])) return row[i];
  return null;
}

// Values over time: lines, or areas that add up.
import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.mjs";
import uPlot from "../vendor/uplot.mjs";
import { text, unitText, bare, dayOf, when, time as clock, ticks, brief } from "./fmt.js";
import { zoom, widen } from "./span.js";
import { Menu, Quality, saveText, useHere, useNarrow } from "./ui.js";
import { put } from "./route.js";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// What has a key, such as a job, has one color on all pages: the n-th of ten, which its key prefers, else the next that nothing
// beside it has.
const count = 10, tones = new Map();
const preferred = (key) => { let h = 2166136261; for (const c of key) h = Math.imul(h ^ c.codePointAt(0), 16777619); return ((h >>> 0) % count) + 1; };

// tonesOf are the numbers of the colors of keys that are drawn together. Two have one color only where there are more keys than
// colors: one that has a color from another page gives way if the color is taken.
export function tonesOf(keys) {
  const given = new Map(), used = new Array(count + 1).fill(0);
  const give = (key, n) => { given.set(key, n); used[n]++; if (!tones.has(key)) tones.set(key, n); };
  const next = (n) => { const around = used.slice(1).map((_, i) => ((n - 1 + i) % count) + 1), few = Math.min(...used.slice(1)); return around.find((m) => used[m] === few); };
  const unique = [...new Set(keys)];
  for (const key of unique) if (tones.has(key) && used[tones.get(key)] === 0) give(key, tones.get(key));
  for (const key of unique) if (!given.has(key)) give(key, next(tones.get(key) || preferred(key)));
  return given;
}

// palette returns the function of the color of each of series that are drawn together.
function palette(series) {
  const of = tonesOf(series.filter((s) => s.key && !s.tone).map((s) => s.key));
  return (s, i) => {
    if (s.tone) return css("--c-" + s.tone);
    if (s.like !== undefined && series[s.like]) return toneAt(series[s.like], s.like, of);
    return toneAt(s, s.like ?? i, of);
  };
}
const toneAt = (s, i, of) => (s.tone ? css("--c-" + s.tone) : css("--c" + (s.key ? of.get(s.key) : (i % count) + 1)));

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
    for (const [t, v] of s.values) { const i = at.get(Number(t)); if (i !== undefined && known(v) && Number.isFinite(Number(v))) out[i] = Number(v); }
    return out;
  })];
}

// piled adds each series to those below it, but for those drawn over the pile. Where some
// are known, the others count as nothing.
function piled(data, over) {
  const sum = new Array(data[0].length).fill(0), rows = data.slice(1);
  const some = data[0].map((_, j) => rows.some((r, n) => !over[n] && r[j] !== null));
  return [data[0], ...rows.map((r, n) => (over[n] ? r : r.map((v, j) => { sum[j] += v || 0; return some[j] ? sum[j] : null; })))];
}

// A bucket is drawn as a bar of its length: at its begin, and just before the next one.
const edge = 1e-3;
const edges = (buckets) => buckets.flatMap((b) => [b.from, b.to - edge]);
const twice = (row) => row.flatMap((v) => [v, v]);

// table puts series on their times: { times, rows } with a column for each bucket or step, and
// plotted, the same as uPlot draws it.
function table(series, span, buckets) {
  const times = buckets ? buckets.map((b) => b.from) : axis(series, span), rows = aligned(series, times).slice(1);
  return { times, rows, plotted: buckets ? [edges(buckets), ...rows.map(twice)] : [times, ...rows] };
}

const sync = uPlot.sync("time");

// What an axis reaches to at least, and the steps of one of bytes: halves of a
// KiB are no round numbers in tens.
const least = { rate: 1024, bytes: 1024, watts: 0.001, cores: 0.01, count: 1, percent: 0.01 };
const powers = Array.from({ length: 54 }, (_, i) => 2 ** i);
const trimmed = (s) => s.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");

// axes: the unit stands once, above the axis.
function axes(unit, node) {
  const font = "11px " + css("--sans"), stroke = css("--muted"), grid = { stroke: css("--grid"), width: 1 };
  const values = (u, at) => {
    // Values closer than the last digit would be rounded unevenly.
    const like = at[at.length - 1], fine = unit === "cores" && at[1] - at[0] < 0.005, numbers = at.map((v) => trimmed(fine ? v.toFixed(4) : bare(v, unit, like)));
    node.dataset.unit = unitText(unit, like);
    return numbers;
  };
  return [
    { stroke, grid: { show: false }, ticks: { stroke: css("--line"), size: 4 }, font, size: 24, gap: 3, space: (u, i, from, to, width) => (to - from >= 1200 ? 58 : (60 / (to - from)) * width < 74 ? 48 : 74), values: (u, at, axis, space, apart) => ticks(at, apart) },
    { stroke, grid, ticks: { show: false }, font, size: (u, texts) => Math.max(34, ...(texts || []).map((t) => t.length * 6.3 + 14)), gap: 8, space: 34, values, ...(unit === "bytes" || unit === "rate" ? { incrs: powers } : {}) },
  ];
}

// lone are the places in a row whose value no line leads to or from: it is drawn as a
// point.
const lone = (row) => row.flatMap((v, i) => (known(v) && !known(row[i - 1]) && !known(row[i + 1]) ? [i] : []));

// marksOn draws what happened: times as lines, spans as tinted ground or as strips, whose ends may be
// lines too. Strips are drawn over the values, and below their zero.
function marksOn(u, marks, strips) {
  const c = u.ctx, { left, top, width, height } = u.bbox, strip = 6 * devicePixelRatio;
  c.save();
  c.beginPath();
  c.rect(left, top, width, height + (strips ? strip : 0));
  c.clip();
  for (const m of marks) {
    if (Boolean(m.strip) !== strips) continue;
    const a = u.valToPos(m.from, "x", true), b = u.valToPos(m.to ?? m.from, "x", true), tone = css("--" + (m.tone || "faint"));
    c.fillStyle = tone;
    if (m.strip) {
      c.globalAlpha = 0.45;
      for (const [x, on] of [[a, m.ends === "both" || m.ends === "from"], [b, m.ends === "both" || m.ends === "to"]]) if (on) c.fillRect(x, top, Math.max(1, devicePixelRatio), height);
      c.globalAlpha = 0.9;
      c.fillRect(a, top + height + 2 * devicePixelRatio, Math.max(b - a, 2), strip - 2 * devicePixelRatio);
      continue;
    }
    c.globalAlpha = 0.13;
    if (b - a > 2) c.fillRect(a, top, b - a, height);
    c.globalAlpha = 0.75;
    c.fillRect(a, top, Math.max(1, devicePixelRatio), height);
  }
  c.restore();
}

// holesOf are the times between bars that do not meet, as places on a plot: no line leads over them.
const holesOf = (u, buckets) => (buckets || []).flatMap((b, i) => (i > 0 && b.from > buckets[i - 1].to ? [[u.valToPos(buckets[i - 1].to, "x", true), u.valToPos(b.from, "x", true)]] : []));

// options are those of uPlot for series that are piled, or lines.
function options({ seen, unit, stacked, whole, band, tone, bars, holes, marks }, node, height, hover, pick) {
  const gaps = (u, of, from, to, nulls) => [...nulls, ...holesOf(u, holes())].sort((a, b) => a[0] - b[0]);
  const lines = seen.map((s, i) => ({
    label: s.name, stroke: tone[i], width: s.over ? 1.5 : stacked ? 1 : 1.75, fill: s.over ? undefined : stacked ? tone[i] + (s.tone === "idle" ? "55" : "cc") : seen.length === 1 ? tone[i] + "1f" : undefined,
    points: { show: false, filter: (u, of) => (bars ? [] : lone(u.data[of])), size: 5, fill: tone[i] }, dash: s.dash, spanGaps: false, gaps,
  }));
  // The area of each is between its own line and that of the one below.
  const piles = seen.flatMap((s, i) => (s.over ? [] : [i + 1]));
  const bands = stacked ? piles.slice(1).map((n, i) => ({ series: [n, piles[i]] })) : [];
  if (band) {
    const edge = { stroke: "transparent", width: 0, points: { show: false }, fill: css("--band"), gaps };
    lines.push({ label: "most", ...edge }, { label: "least", ...edge, fill: undefined });
    bands.push({ series: [seen.length + 1, seen.length + 2], fill: css("--band") });
  }
  return {
    // To the right, half of the last label.
    width: node.clientWidth, height, padding: [18, 28, 0, 0],
    cursor: { sync: { key: sync.key, setSeries: false }, drag: { x: true, y: false, setScale: false }, points: { size: 6, width: 0 }, bind: { dblclick: () => () => { pick(null); widen(); } } },
    legend: { show: false },
    hooks: {
      setSelect: [(u) => {
        if (u.select.width < 6) return;
        const a = u.posToVal(u.select.left, "x"), b = u.posToVal(u.select.left + u.select.width, "x");
        u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        if (b - a >= 60) zoom(a, b);
      }],
      ready: [(u) => u.over.addEventListener("click", (e) => pick(u, e))], setCursor: [hover], drawClear: [(u) => marksOn(u, marks(), false)], draw: [(u) => marksOn(u, marks(), true)],
    },
    scales: { x: { time: true }, y: { range: (u, lo, hi) => [Math.min(0, lo || 0), Math.max((whole || 0) * 1.001, (hi || 0) * 1.06, least[unit] || 1e-9)] } },
    axes: axes(unit, node), series: [{}, ...lines], bands,
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

// inUnit is a value in the unit of like.
const inUnit = (v, unit, like) => (known(v) && like > 0 ? [bare(v, unit, like), unitText(unit, like)].filter(Boolean).join(" ") : text(v, unit));

const fewNames = 6; // names of a legend that a phone shows at first
const many = 8; // whole names that stand in one line; more stand in columns

const doubled = 300; // ms between the clicks of a double click, at most

const far = 86400 * 2;

// said is a time or a bucket as text.
function said(from, to) {
  const day = dayOf(from * 1000);
  if (!to) return day + " " + clock(from * 1000);
  const short = (t) => clock(t * 1000).replace(/:00$/, "");
  return to - from >= far / 2 ? day + " – " + dayOf(to * 1000) : day + " " + short(from) + " – " + short(to);
}

// stampOf says of which time the figures of a legend are: of today and yesterday without the day.
function stampOf(from, to, now = Date.now() / 1000) {
  return to - from >= far / 2 || now - from > far / 2 ? said(from, to) : to ? `average of ${clock(from * 1000)} – ${clock(to * 1000)}` : clock(from * 1000);
}

// timesOf is the time of a value: that of its bucket, or that over which it is an average.
const timesOf = (from, to, averaged, ends) => (to || !averaged ? [from, to] : [Math.min(from, Math.max(from - averaged, ends[0])), from]);

// fillTip writes what is in a column, the highest first.
function fillTip(el, u, i, { seen, rows, times, buckets, tone, unit, stacked, band, marks, ends, averaged }) {
  const list = seen.map((s, n) => [s.name, rows[n][i], tone[n], s.over]).filter(([, v]) => v !== null && v !== undefined);
  const from = times[i], to = buckets ? buckets[i].to : 0, here = marks.filter((m) => m.title && m.from < (to || from + 1) && (m.to ?? m.from + 1) > from).sort((a, b) => (b.tone === "bad" ? 1 : 0) - (a.tone === "bad" ? 1 : 0));
  if (list.length === 0 && here.length === 0) { el.hidden = true; return; }
  const pile = list.filter(([, , , over]) => !over), sum = pile.reduce((a, [, v]) => a + v, 0);
  if (!stacked) list.sort((a, b) => b[1] - a[1]); else list.reverse();
  const most = 12;
  const lines = list.slice(0, most).map(([n, v, t]) => tipLine(brief(n, 34), v, t, unit));
  if (list.length > most) lines.push(tipLine(list.length - most + " more", list.slice(most).reduce((a, [, v]) => a + v, 0), "", unit));
  if (stacked && pile.length > 1) { const l = tipLine("all", sum, "", unit); l.className = "sum"; lines.push(l); }
  const at = buckets ? 2 * i : i;
  if (band && known(u.data[seen.length + 1][at])) { const d = element("div"); d.append(element("span", "", "range"), element("b", "", bare(u.data[seen.length + 2][at], unit, u.data[seen.length + 1][at]) + "–" + text(u.data[seen.length + 1][at], unit))); lines.push(d); }
  for (const m of here.slice(0, 4)) lines.push(element("div", "muted", m.title));
  if (here.length > 4) lines.push(element("div", "muted", here.length - 4 + " more"));
  el.replaceChildren(element("div", "muted", said(...timesOf(from, to, averaged, ends))), ...lines);
  el.hidden = false;
  const width = el.offsetWidth, left = u.cursor.left + u.bbox.left / devicePixelRatio;
  el.style.left = Math.max(4, left + width + 24 > u.width ? left - width - 14 : left + 14) + "px";
}

// The query keeps which series of which charts are hidden: series=CPU:-system~Memory:web, where a
// minus hides a series, and names without one are shown alone.
const coded = (s) => s.replace(/[%~:]|^-/g, (c) => "%" + c.charCodeAt(0).toString(16).toUpperCase());
const decoded = (s) => { try { return decodeURIComponent(s); } catch { return s; } };

// choiceOf reads the choice of a chart: { only, off }, sets of names.
export function choiceOf(text, label) {
  const part = (text || "").split("~").find((p) => decoded(p.split(":")[0]) === label), names = part ? part.split(":").slice(1) : [];
  return { only: new Set(names.filter((n) => !n.startsWith("-")).map(decoded)), off: new Set(names.filter((n) => n.startsWith("-")).map((n) => decoded(n.slice(1)))) };
}

// chosen writes the choice of one chart into the text of all.
export function chosen(text, label, { only, off }) {
  const others = (text || "").split("~").filter((p) => p && decoded(p.split(":")[0]) !== label), names = [...[...only].map(coded), ...[...off].map((n) => "-" + coded(n))];
  return [...others, ...(names.length ? [[coded(label), ...names].join(":")] : [])].join("~");
}

// isHidden reports whether a series is hidden by a choice; series that are shown alone and do not
// exist any more hide nothing.
const isHidden = ({ only, off }, series) => { const alone = series.some((s) => only.has(s.name)); return (name) => off.has(name) || (alone && !only.has(name)); };

// field is a text that a spreadsheet does not take for a formula, as in the CSV of the API.
export function field(s) {
  s = s.replace(/[\p{Cc}\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu, "\ufffd");
  return /^[=+\-@]/.test(s) && !/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(s) ? "'" + s : s;
}

// csvOf writes the columns of a chart as drawn, in base units, with the quality of values that have one;
// it is unknown of a chart of which none has, as of answers to queries.
export function csvOf({ seen, rows, times, buckets, unit, band }) {
  const cell = (s) => (/[",\n\r]/.test(s = field(s)) ? '"' + s.replaceAll('"', '""') + '"' : s), iso = (t) => new Date(t * 1000).toISOString();
  const base = { rate: "bytes/s", bytes: "bytes", cores: "cores", watts: "watts", joules: "joules", seconds: "seconds", percent: "ratio" }[unit] || unit;
  const known1 = (v) => (known(v) ? String(v) : ""), qualities = seen.map((s) => (s.values.some(([, , q]) => q) ? new Map(s.values.map(([t, , q]) => [Number(t), q || ""])) : null));
  const ends = band ? [["least", band.low], ["most", band.high]].map(([n, l]) => [n, new Map(l.map(([t, v]) => [Number(t), v]))]) : [];
  const blind = qualities.every((q) => q === null);
  const head = [...(buckets ? ["from", "to"] : ["time"]), ...seen.flatMap((s, n) => [`${s.name} (${base})`, ...(qualities[n] ? [s.name + " quality"] : [])]), ...ends.map(([n]) => `${n} (${base})`), ...(blind ? ["quality"] : [])];
  const line = (t, i) => [...(buckets ? [iso(buckets[i].from), iso(buckets[i].to)] : [iso(t)]), ...rows.flatMap((r, n) => [known1(r[i]), ...(qualities[n] ? [known(r[i]) ? qualities[n].get(t) || "" : ""] : [])]), ...ends.map(([, at]) => known1(at.get(t))), ...(blind ? ["unknown"] : [])];
  return [head, ...times.map(line)].map((r) => r.map(cell).join(",")).join("\n") + "\n";
}

// pictureOf draws a chart with its title and legend as a PNG.
function pictureOf(u, { seen, tone, label, ends }, done) {
  const ratio = devicePixelRatio, from = u.ctx.canvas, pad = 12 * ratio, line = 16 * ratio, head = 28 * ratio;
  const c = element("canvas"), g = c.getContext("2d");
  g.font = 11 * ratio + "px sans-serif";
  const rows = [[]];
  let x = 0;
  for (const [i, s] of seen.entries()) {
    const w = g.measureText(brief(s.name)).width + 26 * ratio;
    if (x + w > from.width && x > 0) { rows.push([]); x = 0; }
    rows[rows.length - 1].push([x, s.name, tone[i]]);
    x += w;
  }
  c.width = from.width + 2 * pad; c.height = head + from.height + rows.length * line + 2 * pad;
  g.fillStyle = css("--card"); g.fillRect(0, 0, c.width, c.height);
  g.fillStyle = css("--text"); g.font = "600 " + 13 * ratio + "px sans-serif";
  g.fillText([label, u.root.parentElement.dataset.unit].filter(Boolean).join(", "), pad, pad + 12 * ratio);
  g.font = 11 * ratio + "px sans-serif"; g.fillStyle = css("--muted"); g.textAlign = "right";
  g.fillText(when(ends[0] * 1000) + " – " + when(ends[1] * 1000), c.width - pad, pad + 12 * ratio); g.textAlign = "left";
  g.drawImage(from, pad, head);
  g.font = 11 * ratio + "px sans-serif";
  rows.forEach((r, n) => r.forEach(([x, name, t]) => {
    const y = head + from.height + pad / 2 + n * line;
    g.fillStyle = t; g.fillRect(pad + x, y, 9 * ratio, 9 * ratio);
    g.fillStyle = css("--text"); g.fillText(brief(name), pad + x + 14 * ratio, y + 9 * ratio);
  }));
  c.toBlob(done);
}

// Chart draws series of { name, values: [[t, v]], key, tone, dash, over }, and marks whose key stands in the legend. stacked adds them
// up, the first one at the bottom, and draws those that are over it as lines; buckets are the
// { from, to } whose average each value is, which are drawn as bars; whole is what the axis
// reaches to; band is { low, high } of the values' sum, drawn faintly; marks are { from, to,
// title, tone } of what happened; pick is called with a series that is clicked; averaged is for how many seconds before its time
// a value of a line is the average. reach are the ends of the
// axis, where they are not those of the buckets or the span. settled is the column whose values the legend has as the latest, if some
// machines have not sent those of later ones. full writes names whole, with the off, quality and link of their series.
export function Chart({ series, span, unit, height = 220, stacked = false, whole = 0, band, legend = true, label, buckets, marks = [], pick, full, reach, averaged = 0, settled = -1 }) {
  const box = useRef(), plot = useRef(), tip = useRef(), keys = useRef(), inside = useRef(false), hand = useRef(null);
  // Nothing changes under a hand that draws across the chart.
  const held = useRef(false), last = useRef(), [, drawn] = useState(0), [told, say] = useState("");
  const tell = (text) => { say(text); setTimeout(() => say(""), 4000); };
  if (!held.current) last.current = { series, span, whole, band, buckets, marks };
  ({ series, span, whole, band, buckets, marks } = last.current);
  const pressed = useRef(0);
  const hold = (e) => {
    held.current = true;
    pressed.current = e.clientX;
    window.addEventListener("mouseup", () => { held.current = false; drawn((n) => n + 1); }, { once: true });
  };
  const narrow = useNarrow(), [allNames, showAll] = useState(false), few = narrow && !allNames && series.length > fewNames + 1;
  const { query } = useHere(), name = label || "chart", choice = choiceOf(query.series, name), hides = isHidden(choice, series);
  const off = series.map((s) => s.name).filter(hides).join("\n");
  const theme = document.documentElement.dataset.theme;
  const seen = series.filter((s) => !hides(s.name));
  const toneOf = palette(series), tone = seen.map((s) => toneOf(s, series.indexOf(s)));
  const { times, rows, plotted } = useMemo(() => table(seen, span, buckets), [series, span, buckets, off]);
  const data = useMemo(() => {
    const shown = stacked ? piled(plotted, seen.map((s) => s.over)) : plotted;
    if (!band) return shown;
    const both = aligned([{ values: band.high }, { values: band.low }], times).slice(1);
    return [...shown, ...(buckets ? both.map(twice) : both)];
  }, [plotted, stacked, band]);
  const ends = reach ? reach : buckets && buckets.length ? [buckets[0].from, buckets[buckets.length - 1].to] : [span.from, span.to];
  const now = useRef();
  now.current = { seen, rows, times, buckets, tone, unit, stacked, band, marks, label, pick, ends, averaged, settled };
  const shape = JSON.stringify([seen.map((s, i) => [s.name, tone[i], s.dash, s.over]), unit, stacked, whole, Boolean(band), Boolean(buckets), height, theme]);

  const column = (i) => (now.current.buckets ? i >> 1 : i);
  const hover = (u) => {
    const i = u.cursor.idx, at = known(i) && u.cursor.left >= 0 && column(i) < now.current.times.length ? column(i) : null;
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
  // latestAt is the latest column with a value. What ended before has none there.
  const latestAt = () => Math.max(-1, ...now.current.rows.map((r, n) => (now.current.seen[n].over ? -1 : r.findLastIndex((v, i) => known(v) && (now.current.settled < 0 || i <= now.current.settled)))));
  // valueAt writes the value in a column beside one name; isLatest says that the column is the latest.
  const valueAt = (b, at, isLatest) => {
    const { rows, seen, unit } = now.current, n = seen.findIndex((s) => s.name === b.dataset.name), row = rows[n];
    const of = (m) => (isLatest && (seen[m].over || at < 0) ? latestOf(rows[m]) : rows[m][at]), v = row ? of(n) : null;
    const s = row ? inUnit(v, unit, unit === "watts" ? Math.max(...rows.map((_, m) => of(m) || 0)) : v) : "";
    if (b.textContent !== s) b.textContent = s;
  };
  // A name that is new, as on a screen that became wide, has its value at once.
  const born = useRef((b) => { if (b) valueAt(b, latestAt(), true); });
  // legendAt writes the values in a column beside the names, else the latest.
  const legendAt = (i) => {
    if (!keys.current) return;
    const { times, buckets, averaged, ends } = now.current, stamp = keys.current.querySelector(".at"), at = i ?? latestAt();
    if (stamp) {
      const s = at < 0 ? "" : (i === null ? "latest: " : "") + stampOf(...timesOf(times[at], buckets && buckets[at] && buckets[at].to, averaged, ends));
      if (stamp.textContent !== s) stamp.textContent = s;
    }
    for (const b of keys.current.querySelectorAll("[data-name]")) valueAt(b, at, i === null);
  };
  // picked finds the area or line under the hand, if it was not moved, and waits whether the click
  // is the first of a double click, which zooms out.
  const waiting = useRef(0);
  const picked = (u, e) => {
    clearTimeout(waiting.current);
    if (!u) return;
    const { pick, seen, stacked } = now.current, i = u.cursor.idx;
    if (!pick || !stacked || !known(i) || u.cursor.left < 0 || Math.abs(e.clientX - pressed.current) > 3) return;
    const y = u.posToVal(u.cursor.top, "y");
    const n = seen.findIndex((s, n) => !s.over && known(u.data[n + 1][i]) && y >= 0 && y <= u.data[n + 1][i]);
    if (n >= 0 && seen[n].pick) waiting.current = setTimeout(() => pick(seen[n].pick), doubled);
  };

  useEffect(() => {
    const node = box.current;
    if (!node) return undefined;
    plot.current = new uPlot(options({ seen, unit, stacked, whole, band, tone, bars: Boolean(buckets), holes: () => now.current.buckets, marks: () => now.current.marks }, node, height, hover, picked), data, node);
    const resized = new ResizeObserver(() => { if (plot.current && node.clientWidth) plot.current.setSize({ width: node.clientWidth, height }); });
    resized.observe(node);
    return () => { resized.disconnect(); plot.current.destroy(); plot.current = null; };
  }, [shape]);
  useEffect(() => {
    if (plot.current && plot.current.data !== data) plot.current.setData(data, false);
    if (plot.current) plot.current.setScale("x", { min: ends[0], max: ends[1] });
    rest();
  }, [data, shape, ends[0], ends[1], few]);
  useEffect(() => { if (plot.current) plot.current.redraw(false); }, [JSON.stringify(marks)]);

  const step = (e) => {
    const u = plot.current, way = { ArrowLeft: -1, ArrowRight: 1 }[e.key], wide = buckets ? 2 : 1;
    if (!u) return;
    if (e.key === "Enter" && known(u.cursor.idx) && u.cursor.left >= 0 && pick) { const s = biggest(column(u.cursor.idx)); if (s) pick(s.pick); return; }
    if (!way) return;
    e.preventDefault();
    inside.current = true;
    const count = u.data[0].length / wide, from = known(u.cursor.idx) && u.cursor.left >= 0 ? Math.floor(u.cursor.idx / wide) : count - 1;
    const i = Math.min(count - 1, Math.max(0, from + way * (e.shiftKey ? 10 : 1))), x = buckets ? (u.data[0][i * 2] + u.data[0][i * 2 + 1]) / 2 : u.data[0][i];
    u.setCursor({ left: Math.min(u.over.clientWidth - 1, u.valToPos(x, "x")), top: 10 });
  };
  const biggest = (i) => seen.filter((s) => s.pick).map((s) => [s, rows[seen.indexOf(s)][i]]).filter(([, v]) => known(v)).sort((a, b) => b[1] - a[1]).map(([s]) => s)[0];
  const leave = () => { inside.current = false; hand.current = null; if (tip.current) tip.current.hidden = true; };
  // Choices stand in the query. toggle hides or shows a series; isolate shows it alone, or all if it is.
  const choose = (only, off) => put({ series: chosen(query.series, name, { only: new Set(only), off: new Set(off) }) }, true);
  const toggle = (n) => {
    const hidden = series.map((s) => s.name).filter((m) => (m === n ? !hides(m) : hides(m)));
    choose([], hidden);
  };
  // The first click of a double click hid a series, or showed it.
  const alone = useRef("");
  const isolate = (n) => { if (seen.length === 1 && seen[0].name === n) choose([], []); else choose([n], []); };
  const keyed = (e, n) => { if (e.key === "Enter" && (e.altKey || e.shiftKey)) { e.preventDefault(); isolate(n); } };
  const clicked = (e, n) => { if (e.altKey || e.shiftKey) isolate(n); else if (e.detail < 2) { alone.current = seen.length === 1 ? seen[0].name : ""; toggle(n); } else if (e.detail === 2) { if (alone.current === n) choose([], []); else choose([n], []); } };
  const at = latestAt(), ended = (s) => { const row = rows[seen.indexOf(s)]; return Boolean(row) && !known(row[at]); };
  const says = (label || "chart") + ": " + series.slice(0, 12).map((s) => s.name + " " + text(latestOf(s.values.map(([, v]) => (known(v) ? Number(v) : null))), unit)).join(", ");
  const file = (label || "chart").toLowerCase().replace(/\W+/g, "-");
  const menu = [["Download CSV", () => saveText(csvOf(now.current), "text/csv", file + ".csv")], ["Download PNG", () => pictureOf(plot.current, now.current, (blob) => saveText(blob, "", file + ".png"))], ["Copy link", () => copy(location.href)]];
  const copy = async (text) => { try { await navigator.clipboard.writeText(text); tell("Link copied"); } catch { tell("This browser does not let the page copy: copy the address"); } };
  return html`<figure class=${"chart" + (pick ? " picks" : "")} onMouseEnter=${() => { inside.current = true; }} onMouseLeave=${leave}>
    <div ref=${box} class="plot" data-ends=${ends.join("-")} style=${{ height: height + "px" }} role="img" tabindex="0" aria-label=${says} onMouseDown=${hold} onKeyDown=${step} onBlur=${leave}></div>
    <${Menu} label=${"save " + (label || "chart")} items=${menu} />
    <span class="told small" role="status">${told}</span><div class="tip" ref=${tip} hidden></div>
    ${legend && (series.length > 1 || legend === "always") && html`<div class=${"legend" + (full && series.length > many ? " many" : "")} ref=${keys}>${(few ? series.slice(0, fewNames) : series).map((s, i) => {
      const button = html`<button type="button" key=${s.name} aria-pressed=${hides(s.name) ? "false" : "true"} onClick=${(e) => clicked(e, s.name)} onKeyDown=${(e) => keyed(e, s.name)} title=${(s.title || s.name) + " (double click or Alt+Enter: this one alone)"}>
      <i style=${{ background: toneOf(s, i) }}></i><span>${full ? s.name : brief(s.name)}</span><b data-name=${s.name} ref=${born.current}></b></button>`;
      return full ? html`<span class="key" key=${s.name}>${button}${s.off && !ended(s) && html`<span class="off num" title="possible error, either way">± ${s.off}</span>`}<${Quality} of=${s.quality} />${s.link && html`<a href=${s.link.href} title=${s.link.title} aria-label=${s.link.title}>›</a>`}</span>` : button;
    })}${few && html`<button type="button" class="more" onClick=${() => showAll(true)}>+${series.length - fewNames} more</button>`}<span class="at muted num"></span>${band && html`<span class="bandkey"><i></i>possible error</span>`}${keysOf(marks, ends).map(([k, tone]) => html`<span class="bandkey" key=${k}><i style=${{ background: `var(--${tone})` }}></i>${k}</span>`)}</div>`}</figure>`;
}

// keysOf are the keys of the marks that are seen between two ends, each with its color.
export const keysOf = (marks, [from, to]) => [...new Map(marks.filter((m) => m.key && m.from <= to && (m.to ?? m.from) >= from).map((m) => [m.key, m.tone || "faint"]))];

const known = (v) => v !== null && v !== undefined;

function latestOf(row) {
  for (let i = row.length - 1; i >= 0; i--) if (known(row[i]) && !Number.isNaN(row[i])) return row[i];
  return null;
}

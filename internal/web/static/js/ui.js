// The pieces that pages are made of.
import { html, useState, useEffect, useMemo, useRef } from "../vendor/preact.mjs";
import { Failure, received } from "./api.js";
import { units, aligned, qualities, text, known } from "./fmt.js";
import { here, onMove, put, jobAt } from "./route.js";
import { useTurn, isPaused, answered } from "./refresh.js";

// useHere follows the URL.
export function useHere() {
  const [at, set] = useState(here());
  useEffect(() => {
    const off = onMove(set), now = here();
    set((was) => (JSON.stringify(was) === JSON.stringify(now) ? was : now)); // it may have moved since this was drawn
    return off;
  }, []);
  return at;
}

// The parts of the page that have data; the event mete-loaded says that the first came or the last went.
const loaded = new Set();
export const isLoaded = () => loaded.size > 0;
function load(part, yes) {
  const was = isLoaded();
  if (yes) loaded.add(part); else loaded.delete(part);
  if (was !== isLoaded()) dispatchEvent(new Event("mete-loaded"));
}

// useData requests data, and again after so many ms while the page is visible and not paused, and at
// each refresh. The previous data stays until newer data arrives, and after an error. frame says
// that the data belongs to the frame around all pages.
export function useData(ask, keys, every = 0, frame = false) {
  const turn = useTurn();
  const [state, set] = useState({ data: null, error: null, loading: true, of: null });
  const latest = useRef(ask), got = useRef(false), of = keys.join("\u0000");
  latest.current = ask;
  useEffect(() => {
    const control = new AbortController();
    let timer = 0, gone = false;
    const run = async () => {
      clearTimeout(timer);
      timer = 0;
      if (document.hidden && got.current) return; // until the page is seen again
      let next = every;
      const before = received();
      try {
        const data = await latest.current(control.signal);
        if (gone) return;
        got.current = true;
        if (!frame && received() > before) answered(every); // not what needed no request, or was kept
        set({ data, error: null, loading: false, of });
      } catch (error) {
        if (error.name === "AbortError" || gone) return;
        if (!(error instanceof Failure)) console.error(error);
        // While the server is away what it said before stays; what was about something else does not.
        set((s) => ({ ...s, data: s.of === of || error.status === 0 ? s.data : null, error, loading: false }));
        if (error.status === 0 || error.status >= 500) next = Math.min(next || 3000, 3000);
      }
      if (next && !gone && (frame || !isPaused())) timer = setTimeout(() => { if (frame || !isPaused()) run(); }, next);
    };
    const seen = () => { if (!document.hidden && every && !timer && (frame || !isPaused())) run(); };
    document.addEventListener("visibilitychange", seen);
    set((s) => ({ ...s, loading: true }));
    run();
    return () => { gone = true; clearTimeout(timer); control.abort(); document.removeEventListener("visibilitychange", seen); };
  }, [...keys, turn]);
  const has = state.data !== null && !frame;
  useEffect(() => {
    load(latest, has);
    return () => load(latest, false);
  }, [has]);
  return state;
}

// useNarrow reports whether the screen is as narrow as a phone.
export function useNarrow() {
  const screen = useMemo(() => matchMedia("(max-width: 40rem)"), []), [narrow, set] = useState(screen.matches);
  useEffect(() => {
    const changed = () => set(screen.matches);
    screen.addEventListener("change", changed);
    changed(); // it may have changed since this was drawn
    return () => screen.removeEventListener("change", changed);
  }, []);
  return narrow;
}

// useKey does something when a key is pressed outside fields and dialogs.
export function useKey(key, act) {
  const latest = useRef(act);
  latest.current = act;
  useEffect(() => {
    const press = (e) => {
      if (e.key !== key || e.metaKey || e.ctrlKey || e.altKey || e.defaultPrevented || /^(INPUT|TEXTAREA|SELECT)$/.test(e.target.tagName) || document.querySelector("dialog[open]")) return;
      latest.current();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, [key]);
}

// Figure is a value with its unit and its quality. like is the largest value of the column that it
// stands in: then all have one unit. as is the value whose unit it has, if that is another one.
export function Figure({ v, unit, quality, off, like, as = known(like) ? Number(like) : v }) {
  if (!known(v)) return html`<span class="absent" title=${qualities.absent}>–</span>`;
  const value = Number(v), column = known(like), [n, u] = column ? aligned(value, unit, Number(like), value, as) : (units[unit] || units.none)(value, Number(as));
  const error = known(off) && (column ? aligned(Number(off), unit, Number(like), value, as).filter(Boolean).join(" ") : text(off, unit, as));
  return html`<span class="num" title=${column && value !== 0 ? text(value, unit) : null}>${n}${u && html`<span class="unit">${u}</span>`}${known(off) ? html`<span class="off" title="possible error, either way">± ${error}</span>` : null}<${Quality} of=${quality} /></span>`;
}

// largest returns a function that is the largest value of a column of rows.
export function largest(rows, value) {
  let most;
  return () => (most === undefined ? (most = rows.reduce((a, r) => Math.max(a, Number(value(r)) || 0), 0)) : most);
}

// Quality is the symbol of a figure's quality. Measured figures have one only with all.
export function Quality({ of, all }) {
  if (!qualities[of] || of === "absent" || (of === "measured" && !all)) return null;
  return html`<span class=${"quality " + of} role="img" aria-label=${of} title=${qualities[of]}></span>`;
}

export function Legend() {
  return html`<ul class="marks" aria-label="what the marks of figures mean">
    <li title=${qualities.measured}><${Quality} of="measured" all=${true} /> measured <small>no mark</small></li>
    <li title=${qualities.apportioned}><${Quality} of="apportioned" /> apportioned</li>
    <li title=${qualities.modelled}><${Quality} of="modelled" /> modelled</li>
    <li title=${qualities.absent}><span class="absent">–</span> absent, not zero</li></ul>`;
}

export function Card({ title, aside, width, flush, children, id, note }) {
  return html`<section class=${"card " + (width || "") + (flush ? " flush" : "")} aria-label=${title || null} id=${id}>
    ${title && html`<header><h2>${title}</h2>${note && html`<span class="note">${note}</span>`}${aside && html`<div class="aside">${aside}</div>`}</header>`}${children}</section>`;
}

export function Stat({ title, v, unit, quality, off, below, parts, children, as = v }) {
  return html`<div class="stat"><h3>${title}</h3><div class="value"><${Figure} v=${v} unit=${unit} quality=${quality} as=${as} /></div>
    <div class="below">${below}${known(off) && html`<span title="possible error, either way">± ${text(off, unit, as)}</span>`}</div>${parts && html`<${Bar} parts=${parts} />`}${children}</div>`;
}

// Bar shows parts of a whole: [{ share, color, title }].
export function Bar({ parts, slim }) {
  return html`<div class=${"meterbar" + (slim ? " slim" : "")} role="img" aria-label=${parts.map((p) => p.title).join(", ")}>${parts.map((p) =>
    html`<i title=${p.title} style=${{ width: Math.max(0, Math.min(100, p.share * 100 || 0)) + "%", background: p.color }}></i>`)}</div>`;
}

// partsOf are the parts of a node's or fleet's resource for a Bar.
export function partsOf(p, unit) {
  if (!p || !(p.whole > 0)) return null;
  return [["workloads", "var(--accent)"], ["system", "var(--c-system)"], ["idle", "transparent"]].map(([name, color]) =>
    ({ share: p[name] / p.whole, color, title: `${name} ${text(p[name], unit)}` }));
}

export function Skeleton({ height = 160, lines = 0 }) {
  if (lines) return html`<div class="lines" role="status" aria-label="loading">${Array.from({ length: lines }, () => html`<div class="skeleton"></div>`)}</div>`;
  return html`<div class="skeleton" style=${{ height: height + "px" }} role="status" aria-label="loading"></div>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><b>${title}</b>${children}</div>`;
}

// Trouble shows an error and what to do about it.
function Trouble({ error, retry }) {
  return html`<div class="notice bad" role="alert"><div><b>${error.message}</b>${error.hint && html`<div>${error.hint}</div>`}</div>
    ${retry && html`<button onClick=${retry}>Try again</button>`}</div>`;
}

// Shown draws data, or a skeleton until there is some, or the error.
export function Shown({ of, height, lines, children }) {
  // Why the server is not reached is said once, above the page.
  const trouble = of.error && of.error.status !== 0;
  if (of.data === null && of.error && !trouble) return html`<${Empty} title="No data loaded" />`;
  if (of.data === null && trouble) return html`<${Trouble} error=${of.error} />`;
  if (of.data === null) return html`<${Skeleton} height=${height} lines=${lines} />`;
  return html`${trouble && html`<${Trouble} error=${of.error} />`}${children(of.data)}`;
}

export function Segments({ label, options, value, choose }) {
  return html`<div class="segments" role="group" aria-label=${label}>${options.map(([v, name, title]) =>
    html`<button type="button" aria-pressed=${v === value ? "true" : "false"} title=${title} onClick=${() => choose(v)}>${name}</button>`)}</div>`;
}

// Select is a choice that the URL holds under its name.
export function Select({ name, label, options, all }) {
  const { query } = useHere();
  const value = query[name] || "";
  return html`<label class="select"><span>${label}</span><select onChange=${(e) => put({ [name]: e.target.value })}>
    ${all !== undefined && html`<option value="" selected=${value === ""}>${all}</option>`}
    ${value && !options.includes(value) && html`<option value=${value} selected>${value}</option>`}
    ${options.map((o) => html`<option value=${o} selected=${o === value}>${o || "(none)"}</option>`)}</select></label>`;
}

// Search filters by text, which stands in the URL as q.
export function Search({ placeholder = "Filter", name = "q" }) {
  const { query } = useHere();
  // The field keeps what is typed when the page is redrawn before the URL has it.
  const timer = useRef(), typing = useRef(null);
  const typed = (e) => {
    const v = typing.current = e.target.value;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => { typing.current = null; put({ [name]: v }, true); }, 150);
  };
  return html`<div class="search"><input type="search" data-search placeholder=${placeholder} aria-label=${placeholder} value=${typing.current ?? (query[name] || "")} onInput=${typed} autocomplete="off" spellcheck="false" /><kbd aria-hidden="true">/</kbd></div>`;
}

// Dialog is a modal dialog.
export function Dialog({ title, close, children, wide }) {
  const box = useRef();
  useEffect(() => { box.current.showModal(); }, []);
  const outside = (e) => { if (e.target === box.current) box.current.close(); };
  return html`<dialog ref=${box} class=${wide ? "wide" : ""} onClose=${close} onClick=${outside} aria-label=${title}>
    <header><h2>${title}</h2><form method="dialog"><button aria-label="close">Close</button></form></header>${children}</dialog>`;
}

// saveText downloads a text or a blob as a file.
export function saveText(content, type, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// Menu is a button with a list of [name, action] behind it.
export function Menu({ label, items, title = "⋯" }) {
  const [open, set] = useState(false), box = useRef();
  useEffect(() => {
    if (!open) return undefined;
    const close = (e) => { if (e.type === "keydown" ? e.key === "Escape" : !box.current.contains(e.target)) set(false); };
    document.addEventListener("mousedown", close);
    document.addEventListener("keydown", close);
    return () => { document.removeEventListener("mousedown", close); document.removeEventListener("keydown", close); };
  }, [open]);
  return html`<div class="menu" ref=${box}><button type="button" class="quiet" aria-label=${label} aria-expanded=${open ? "true" : "false"} onClick=${() => set(!open)}>${title}</button>
    ${open && html`<div class="pop">${items.map(([name, act]) => html`<button type="button" class="quiet" onClick=${() => { set(false); act(); }}>${name}</button>`)}</div>`}</div>`;
}

// Facts is a list of names and values, without the values that are absent, in so many columns on
// wide screens.
export function Facts({ of, columns = 1 }) {
  return html`<dl class=${"facts" + (columns > 1 ? " columns" : "")} style=${columns > 1 ? { "--columns": columns } : null}>${of.filter(([, v]) => known(v) && v !== "").map(([k, v]) => html`<dt>${k}</dt><dd>${v}</dd>`)}</dl>`;
}

// Kind is the kind of a workload.
export const Kind = ({ of }) => (of && of !== "path" ? html`<span class="tag">${of}</span>` : null);

// Job is the name of a job, as a link to its page.
export function Job({ name, node, kind }) {
  if (kind === "idle" || kind === "system") return html`<span class="muted">${name}</span>`;
  if (!name) return html`<span class="muted" title="this job has no name">unnamed</span>`;
  return html`<a href=${jobAt(name, node ? { node } : {})} title=${name}>${name}</a>`;
}

// Spark is a small line of values over time.
export function Spark({ values, label }) {
  if (!values || values.length < 2) return html`<svg class="spark" aria-hidden="true"></svg>`;
  const most = Math.max(...values, 1e-12), w = 104, h = 22;
  // Values that are absent divide the line; a value between two of them is a short one.
  const parts = [[]], x = (i) => ((i / (values.length - 1)) * w).toFixed(1);
  values.forEach((v, i) => { if (known(v)) parts.at(-1).push([x(i), (h - 2 - (v / most) * (h - 5)).toFixed(1)]); else parts.push([]); });
  const step = w / (values.length - 1), lines = parts.filter((p) => p.length > 0).map((p) => (p.length > 1 ? p : [-0.4, 0.4].map((off) => [Math.min(w, Math.max(0, Number(p[0][0]) + off * step)).toFixed(1), p[0][1]])));
  return html`<svg class="spark" viewBox="0 0 ${w} ${h}" preserveAspectRatio="none" role="img" aria-label=${label || "over time"}><path class="area" d=${lines.map((p) => `M${p[0][0]},${h}L${p.join("L")}L${p.at(-1)[0]},${h}Z`).join("")} /><path class="line" d=${lines.map((p) => "M" + p.join("L")).join("")} /></svg>`;
}

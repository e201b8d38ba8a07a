// Tables that are sorted by a column, and draw only the visible rows.
import { html, useState, useEffect, useRef, useMemo } from "../vendor/preact.mjs";
import { put } from "./route.js";
import { useHere, Empty } from "./ui.js";
import { grouped } from "./fmt.js";

export const rowHeight = 34; // in CSS pixels, as in the style sheet

// sortBy sorts rows by a column, by its own order if it has one. Absent values are last in both
// directions.
export function sortBy(rows, column, down) {
  const list = rows.map((r) => [column.value(r), r]);
  list.sort(([a], [b]) => {
    if (a === b) return 0;
    if (a === null || a === undefined) return 1;
    if (b === null || b === undefined) return -1;
    return (column.order ? column.order(a, b) : a < b ? -1 : 1) * (down ? -1 : 1);
  });
  return list.map(([, r]) => r);
}

// orderOf returns the column by which a table is sorted, and the direction, from a word such as "cpu.down". A word that
// names none that can be sorted has the order of the table.
export function orderOf(columns, word) {
  const [by, way] = word.split(".");
  const column = columns.find((c) => c.value && c.key === by) || columns.find((c) => c.first) || columns[0];
  return { column, down: way ? way !== "up" : Boolean(column.num) };
}

function Head({ columns, column, down, name }) {
  const sort = (c) => put({ [name]: c.key + (c.key === column.key && down ? ".up" : ".down") }, true);
  return html`<thead><tr>${columns.map((c) => html`<th scope="col" class=${(c.num ? "num " : "") + (c.class || "")} title=${c.help || null} aria-sort=${c.key === column.key ? (down ? "descending" : "ascending") : null} style=${c.width && !c.grows ? { width: c.width } : null}>
    ${c.value ? html`<button type="button" onClick=${() => sort(c)}>${c.title}<span class="arrow" aria-hidden="true">${c.key === column.key ? (down ? "↓" : "↑") : ""}</span></button>` : c.title}</th>`)}</tr></thead>`;
}

// useWindow returns which of count rows are visible in a box that scrolls.
export function useWindow(count, box, all) {
  const [at, set] = useState([0, 40]);
  const look = () => {
    if (!box.current) return;
    const top = Math.floor(box.current.scrollTop / rowHeight), seen = Math.ceil(box.current.clientHeight / rowHeight);
    const next = [Math.max(0, top - 10), top + seen + 12];
    set((was) => (was[0] === next[0] && was[1] === next[1] ? was : next));
  };
  useEffect(() => {
    look();
    const resized = new ResizeObserver(look);
    if (box.current) resized.observe(box.current);
    return () => resized.disconnect();
  }, [count]);
  const first = Math.min(at[0], Math.max(0, count - 1));
  return all === undefined ? { first, last: Math.min(count, at[1]), look } : { first: 0, last: all, look: () => {} };
}

// Spacer takes the place of rows that are not drawn.
export const Spacer = ({ rows, columns }) => (rows > 0 ? html`<tr aria-hidden="true" class="spacer"><td colspan=${columns} style=${{ height: rows * rowHeight + "px" }}></td></tr>` : null);

const short = 16; // rows of a table that does not scroll

// usePlace returns which rows of a box that scrolls are seen in it, by more than half, as [first, last] counted from 1, and
// what to call when it scrolls.
function usePlace(count, box, on) {
  const [at, set] = useState([1, 1]);
  const look = () => {
    const b = box.current;
    if (!b || !on) return;
    const height = (css) => (b.querySelector(css) ? b.querySelector(css).offsetHeight : 0), first = Math.min(count, Math.round(b.scrollTop / rowHeight) + 1);
    const last = Math.min(count, Math.max(first, Math.round((b.scrollTop + b.clientHeight - height("thead") - height("tfoot")) / rowHeight)));
    set((was) => (was[0] === first && was[1] === last ? was : [first, last]));
  };
  useEffect(() => {
    look();
    if (!box.current || !on) return undefined;
    const resized = new ResizeObserver(look);
    resized.observe(box.current);
    return () => resized.disconnect();
  }, [count, on]);
  return [at, look];
}

// Table draws rows. Columns are { key, title, num, value(row), order(a, b), cell(row), help, width, grows };
// one that grows has at least its width, and the room that others leave. Columns without value are not
// sortable. seen is called with the visible rows. With wraps, rows have different heights, and up to 500 are
// drawn. Rows of a higher rank come last, whichever column sorts. mark is the class of a row. A table of few
// rows is shown as a whole. One of more rows says which of them are seen; one that is not tall can be shown
// as a whole too.
export function Table({ columns, rows, id = (r) => r.id, empty, name = "sort", label, seen, tall, foot, wraps, rank, mark }) {
  const { query } = useHere(), { column, down } = orderOf(columns, query[name] || "");
  const box = useRef();
  const sorted = useMemo(() => { const list = sortBy(rows, column, down); return rank ? list.sort((a, b) => rank(a) - rank(b)) : list; }, [rows, column.key, down]);
  const { first, last, look } = useWindow(wraps ? 0 : sorted.length, box, wraps ? Math.min(sorted.length, 500) : undefined);
  const shown = sorted.slice(first, last), names = shown.map(id).join("\n");
  useEffect(() => { if (seen) seen(shown); }, [names]);
  const long = !wraps && rows.length > short, [whole, showWhole] = useState(false), [place, move] = usePlace(sorted.length, box, long && !whole);
  const scrolled = () => { look(); move(); };
  const wide = columns.reduce((a, c) => a + (parseFloat(c.width) || 0), 0);
  if (rows.length === 0) return empty || html`<${Empty} title="No rows" />`;
  return html`<div class=${"table" + (tall ? " tall" : rows.length <= short || whole ? " short" : "")} tabindex="0" role="region" aria-label=${label || "table"} ref=${box} onScroll=${scrolled}>
    <table class=${wide ? "fixed" : ""} style=${wide ? { minWidth: wide + "rem" } : null} aria-rowcount=${sorted.length}><${Head} columns=${columns} column=${column} down=${down} name=${name} />
    <tbody><${Spacer} rows=${first} columns=${columns.length} />
      ${shown.map((r) => html`<tr key=${id(r)} class=${(mark && mark(r)) || null}>${columns.map((c) => html`<td class=${(c.num ? "num " : "") + (c.class || "")}>${c.cell ? c.cell(r) : c.value(r)}</td>`)}</tr>`)}
      <${Spacer} rows=${wraps ? 0 : sorted.length - last} columns=${columns.length} /></tbody>${foot}</table></div>
    ${wraps && sorted.length > last && html`<p class="place small muted num">The first ${grouped(last)} of ${grouped(sorted.length)} rows</p>`}
    ${long && (!tall || place[0] > 1 || place[1] < sorted.length) && html`<p class="place small muted"><span class="num">${whole ? `All ${grouped(sorted.length)} rows` : `Rows ${grouped(place[0])}–${grouped(place[1])} of ${grouped(sorted.length)}`}</span>${!tall && html`<button type="button" class="quiet" onClick=${() => showWhole(!whole)}>${whole ? "Show fewer" : "Show all " + grouped(sorted.length)}</button>`}</p>`}`;
}

// Columns chooses which columns are shown; the choice stands in the URL as cols.
export function Columns({ columns, shown }) {
  const [open, set] = useState(false);
  const box = useRef();
  useEffect(() => {
    if (!open) return undefined;
    const away = (e) => { if (!box.current.contains(e.target) || e.key === "Escape") set(false); };
    addEventListener("pointerdown", away);
    addEventListener("keydown", away);
    return () => { removeEventListener("pointerdown", away); removeEventListener("keydown", away); };
  }, [open]);
  const flip = (key) => {
    const next = columns.filter((c) => (c.key === key ? !shown.includes(key) : shown.includes(c.key))).map((c) => c.key);
    put({ cols: next.join("~") }, true);
  };
  return html`<div class="menu" ref=${box}><button type="button" aria-expanded=${open ? "true" : "false"} onClick=${() => set(!open)}>Columns</button>
    ${open && html`<fieldset class="pop"><legend class="hidden">columns</legend>${columns.filter((c) => !c.always).map((c) => html`<label><input type="checkbox" checked=${shown.includes(c.key)} disabled=${shown.length === 1 && shown[0] === c.key} onChange=${() => flip(c.key)} /> ${c.long || c.title}</label>`)}
      <button type="button" class="quiet" onClick=${() => put({ cols: "" }, true)}>Reset columns</button></fieldset>`}</div>`;
}

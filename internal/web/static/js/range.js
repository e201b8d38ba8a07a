// The part of the header that chooses the range of time.
import { html, useState, useRef } from "../vendor/preact.mjs";
import { ranges, choose, periods, rangeOf, written, instantOf, toNow, pan, widen, isNow } from "./span.js";
import { Segments, useNarrow } from "./ui.js";
import { dayOf, when, zone } from "./fmt.js";
import { put } from "./route.js";
import { Icon } from "./icon.js";
import { Refresh } from "./refresh.js";

// said is a range as text: its length where it ends now, else its ends.
export function said(span) {
  if (span.name) return "last " + span.name;
  const a = when(span.start * 1000), b = span.open ? "now" : when(span.to * 1000), day = dayOf(span.start * 1000) + ", ";
  return a + " – " + (b.startsWith(day) ? b.slice(day.length) : b);
}

// End is a field for one end of a range: a time as text, or chosen in the browser's calendar.
function End({ name, label, value, set, wrong }) {
  const picker = useRef(), at = instantOf(value);
  const show = () => {
    picker.current.value = at === null ? "" : written(at).replace(" ", "T");
    try { picker.current.showPicker(); } catch { picker.current.focus(); /* a browser without a calendar to show */ }
  };
  return html`<label for=${"range-" + name}>${label}</label><div class="end-field"><input type="text" id=${"range-" + name} value=${value} onInput=${(e) => set(e.target.value)} autocomplete="off" spellcheck="false" aria-invalid=${wrong ? "true" : null} aria-describedby=${wrong ? "range-wrong" : "range-how"} />
    <button type="button" onClick=${show} aria-label=${label + ": calendar"}><${Icon} name="calendar" /></button><input type="datetime-local" step="1" ref=${picker} tabindex="-1" aria-hidden="true" onChange=${(e) => { if (e.target.value) set(e.target.value.replace("T", " ")); }} /></div>`;
}

// Picker is a button with a popover, in which a range is chosen by its ends or by the calendar.
function Picker({ span }) {
  const [ends, set] = useState({ from: "", to: "" }), [wrong, complain] = useState(null), box = useRef(), button = useRef();
  const opened = (e) => {
    if (e.newState !== "open") return;
    const at = button.current.getBoundingClientRect(), top = Math.min(at.bottom + 6, Math.max(8, innerHeight - 400));
    box.current.style.top = top + "px";
    // It has no size before it is shown: its width is that of range.css.
    const whole = document.documentElement.clientWidth, width = 21 * parseFloat(getComputedStyle(document.documentElement).fontSize);
    box.current.style.right = Math.max(12, Math.min(whole - at.right, whole - width - 12)) + "px";
    complain(null);
    set(span.name ? { from: "-" + span.name, to: "now" } : { from: written(span.start), to: span.open ? "now" : written(span.to) });
  };
  const apply = (found) => { put(found); box.current.hidePopover(); };
  const submit = (e) => {
    e.preventDefault();
    const found = rangeOf(ends.from, ends.to);
    if (!found.wrong) return apply(found);
    complain(found);
    return box.current.querySelector("#range-" + found.wrong).focus();
  };
  const period = (of) => { const [from, to] = of(Date.now() / 1000); apply({ from, to }); };
  const free = !ranges.some(([n]) => n === span.name), narrow = useNarrow();
  return html`<button type="button" id="range-open" ref=${button} popovertarget="range" class=${"dates" + (free ? " chosen" : "")} aria-haspopup="dialog" title="choose a date range (d)" aria-label=${"dates: " + said(span)}><${Icon} name="calendar" />${(free || narrow) && html`<span class="num">${said(span)}</span>`}</button>
    <div id="range" popover="auto" role="dialog" aria-label="range of time by dates" ref=${box} onBeforeToggle=${opened} onToggle=${(e) => { if (e.newState === "open") { const f = box.current.querySelector("input"); f.focus(); f.select(); } }}>
      <form onSubmit=${submit}><${End} name="from" label="From" value=${ends.from} set=${(v) => { set({ ...ends, from: v }); complain(null); }} wrong=${wrong && wrong.wrong === "from"} />
        <${End} name="to" label="To" value=${ends.to} set=${(v) => { set({ ...ends, to: v }); complain(null); }} wrong=${wrong && wrong.wrong === "to"} />
        <p id="range-wrong" role="alert" class="bad">${wrong && wrong.why}</p>
        <p id="range-how" class="muted small">A time in ${zone}, now, today, yesterday, or how long ago: -90m, -24h, -7d. From a length ago to now, the range moves with time.</p>
        <button class="primary">Apply</button></form>
      <div class="periods" role="group" aria-label="of the calendar">${periods.map(([name, of]) => html`<button type="button" onClick=${() => period(of)} title=${name === "this week" ? "from Monday" : null}>${name}</button>`)}</div></div>`;
}

// Tool is a button that shows a picture.
const Tool = ({ name, label, keys, act, off }) => html`<button type="button" class="tool" onClick=${act} disabled=${off} aria-label=${label} title=${label + " (" + keys + ")"}><${Icon} name=${name} /></button>`;

// Span shows and chooses the range, and moves it.
export function Span({ span, path }) {
  const now = isNow(span);
  return html`<div class="bar times">${span.name === "" && html`<button type="button" onClick=${toNow} title="(n)">Back to now</button>`}
    <div class="moves"><${Tool} name="earlier" label="half a range earlier" keys="," act=${() => pan(-1)} /><${Picker} span=${span} /><${Tool} name="later" label="half a range later" keys="." act=${() => pan(1)} off=${now} /><${Tool} name="widen" label="zoom out: twice the range" keys="z" act=${() => widen()} /><${Refresh} path=${path} moves=${Boolean(span.name || span.open)} /></div>
    <${Segments} label="range of time" options=${ranges.map(([n]) => [n, n, "the last " + n])} value=${span.name} choose=${choose} /></div>`;
}

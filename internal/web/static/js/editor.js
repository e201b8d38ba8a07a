// A field for PromQL: it colors the query, and completes metrics, labels, values and functions.
import { html, useState, useEffect, useRef } from "../vendor/preact.mjs";
import { get } from "./api.js";
import { aggregations, complete, durations, functions, keywords, matching, placeAt, tokens } from "./promql.js";

const words = [...functions.map((text) => ({ text, note: "function", call: true })), ...aggregations.map((text) => ({ text, note: "aggregation", call: true })), ...keywords.map((text) => ({ text, note: "keyword" }))];
const known = new Map(); // answers of the server, while the page is open

function asked(path, params) {
  const key = path + JSON.stringify(params);
  if (!known.has(key)) known.set(key, get(path, params).catch(() => { known.delete(key); return { data: [] }; }));
  return known.get(key);
}

// optionsAt asks for what can stand at a place.
async function optionsAt(place, end) {
  const found = await optionsOf(place, end);
  return found.length === 0 && place.metric ? optionsOf({ ...place, metric: "" }, end) : found; // a metric that is typed in part
}

async function optionsOf(place, end) {
  const range = { start: end - 3600, end, limit: 2000 };
  switch (place.kind) {
    case "metric": return [...Object.entries((await asked("/api/v1/metadata", {})).data).map(([text, [m]]) => ({ text, note: m.help, type: m.type })).sort((a, b) => (a.text < b.text ? -1 : 1)), ...words];
    case "label": return (await asked("/api/v1/labels", { ...range, "match[]": place.metric || undefined })).data.filter((l) => l !== "__name__").map((text) => ({ text }));
    case "value": return (await asked("/api/v1/label/" + encodeURIComponent(place.label) + "/values", { ...range, "match[]": place.metric || undefined })).data.map((text) => ({ text }));
    case "duration": return durations.map((text) => ({ text }));
    default: return [];
  }
}

// Editor calls run when Enter is pressed; field is a ref of its element.
export function Editor({ field, initial, run }) {
  const [text, set] = useState(initial), [menu, show] = useState(null), back = useRef(), mark = useRef(), turn = useRef(0), list = useRef();
  const close = () => { turn.current++; show(null); };
  const look = async (forced) => {
    const f = field.current, n = ++turn.current;
    if (f.selectionStart !== f.selectionEnd) return show(null);
    const place = placeAt(f.value, f.selectionStart);
    if (place.kind === "none" || (place.prefix === "" && place.kind === "metric" && !forced)) return show(null);
    const options = matching(await optionsAt(place, Math.floor(Date.now() / 60000) * 60), place.prefix);
    if (n !== turn.current) return undefined;
    const only = options.length === 1 && options[0].text === place.prefix;
    return show(options.length && !only ? { place, options, at: -1 } : null);
  };
  const accept = (o) => {
    const f = field.current, next = complete(f.value, f.selectionStart, menu.place, o);
    f.value = next.query;
    f.setSelectionRange(next.at, next.at);
    f.focus();
    set(next.query);
    close();
  };
  const typed = () => { set(field.current.value); look(false); };
  const press = (e) => {
    if (e.isComposing) return;
    if (menu && (e.key === "ArrowDown" || e.key === "ArrowUp")) { e.preventDefault(); const n = menu.options.length; show({ ...menu, at: (menu.at + (e.key === "ArrowDown" ? 1 : -1) + n + (menu.at < 0 && e.key === "ArrowUp" ? 1 : 0)) % n }); return; }
    if (menu && e.key === "Escape") { e.stopPropagation(); close(); return; }
    if (menu && e.key === "Tab" && !e.shiftKey) { e.preventDefault(); accept(menu.options[Math.max(0, menu.at)]); return; }
    if (menu && e.key === "Enter" && menu.at >= 0 && !e.ctrlKey) { e.preventDefault(); accept(menu.options[menu.at]); return; }
    if (e.key === " " && e.ctrlKey) { e.preventDefault(); look(true); return; }
    if (e.key === "Enter" && !e.shiftKey) { e.preventDefault(); close(); run(); }
    if (["ArrowLeft", "ArrowRight", "Home", "End"].includes(e.key)) close();
  };
  useEffect(() => {
    // Where the field is changed from outside, the colors follow.
    const f = field.current, changed = () => set(f.value);
    f.addEventListener("change", changed);
    return () => f.removeEventListener("change", changed);
  }, []);
  useEffect(() => { if (menu && list.current && menu.at >= 0) list.current.children[menu.at].scrollIntoView({ block: "nearest" }); }, [menu]);
  const scroll = () => { back.current.scrollTop = field.current.scrollTop; };
  const at = menu ? menu.place.from : -1, where = mark.current;
  const parts = tokens(text).flatMap((t) => (at > t.at && at < t.at + t.text.length ? [[t.kind, t.text.slice(0, at - t.at)], [t.kind, t.text.slice(at - t.at), true]] : [[t.kind, t.text, at === t.at]]));
  return html`<div class="editor"><pre class="mono" aria-hidden="true" ref=${back}>${parts.map(([kind, s, here]) => html`${here && html`<i ref=${mark}></i>`}<span class=${"t-" + kind}>${s}</span>`)}${at >= text.length && html`<i ref=${mark}></i>`}${"\n"}</pre>
    <textarea id="expr" data-search ref=${field} rows=${Math.min(12, Math.max(3, text.split("\n").length))} class="mono" spellcheck="false" autocomplete="off" autocapitalize="off" placeholder="PromQL, for example: sum by (node) (mete_node_power_watts)" aria-autocomplete="list" aria-controls=${menu ? "options" : null} aria-activedescendant=${menu && menu.at >= 0 ? "option" + menu.at : null} onKeyDown=${press} onInput=${typed} onScroll=${scroll} onClick=${close} onBlur=${(e) => { if (!e.relatedTarget || !e.relatedTarget.closest(".options")) close(); }}>${initial}</textarea>
    ${menu && html`<ul class="options" id="options" role="listbox" aria-label="completions" ref=${list} style=${where ? { left: Math.min(where.offsetLeft, Math.max(0, back.current.clientWidth - 300)) + "px", top: where.offsetTop - back.current.scrollTop + 22 + "px" } : null}>${menu.options.map((o, i) => html`<li id=${"option" + i} role="option" aria-selected=${i === menu.at ? "true" : "false"} onMouseDown=${(e) => { e.preventDefault(); accept(o); }}><b class="mono">${o.text}</b>${o.note && html`<span>${o.note}</span>`}</li>`)}</ul>`}</div>`;
}

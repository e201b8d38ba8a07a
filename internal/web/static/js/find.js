// Find goes to a page, a node, a cluster or a job by its name: Ctrl+K, or / where a page has no
// field of its own.
import { html, useState, useEffect, useRef, useMemo } from "../vendor/preact.mjs";
import { get } from "./api.js";
import { Icon } from "./icon.js";
import { useData } from "./ui.js";
import { natural } from "./names.js";
import { addresses, go, here, href, jobAt, ranged } from "./route.js";
import { pages } from "./pages/all.js";

const most = 14;

// rankOf says how well a name matches what is typed: 0 is best, null is not at all. Words may come in
// any order; at the start of a part of the name they count more.
export function rankOf(name, typed) {
  const n = name.toLowerCase();
  let rank = 0;
  for (const word of typed.toLowerCase().split(/\s+/).filter(Boolean)) {
    const i = n.indexOf(word);
    if (i < 0) return null;
    rank += n === word ? 0 : i === 0 ? 1 : /[^a-z0-9]/.test(n[i - 1]) ? 2 : 3;
  }
  return rank;
}

// found are the things that match, best first: [{ kind, name, to }].
export function found(things, typed) {
  return things.map((t, i) => [rankOf(t.name, typed), i, t]).filter(([r]) => r !== null).sort((a, b) => a[0] - b[0] || a[1] - b[1]).slice(0, most).map(([, , t]) => t);
}

async function load(signal) {
  const [nodes, jobs] = await Promise.all([get("/v1/nodes", {}, signal), get("/v1/usage", { by: "job,kind", fields: "cpu_seconds", limit: 2000, from: "-24h" }, signal)]);
  const names = [...new Set(jobs.groups.filter((g) => g.kind !== "idle" && g.kind !== "system" && g.job).map((g) => g.job))];
  const at = addresses(nodes.nodes);
  return [...nodes.nodes.map((n) => ({ kind: "node", name: n.name, more: n.cluster, to: at(n) })).sort((a, b) => natural(a.name, b.name)),
    ...[...new Set(nodes.nodes.map((n) => n.cluster))].sort(natural).map((c) => ({ kind: "cluster", name: c, to: href("/nodes", { cluster: c, ...ranged(here().query) }) })),
    ...names.map((j) => ({ kind: "job", name: j, to: jobAt(j) }))];
}

function Finder({ close }) {
  const box = useRef(), field = useRef(), list = useRef();
  const [typed, set] = useState(""), [at, move] = useState(0);
  const data = useData(load, []);
  const own = useMemo(() => pages.filter((p) => p.key).map((p) => ({ kind: "page", name: p.title, to: href(p.path, ranged(here().query)) })), []);
  const rows = useMemo(() => { const text = typed.trim(), rows = found([...own, ...(data.data || [])], text); return text && !rows.some((r) => r.kind === "job" && r.name === text) ? [...rows, { kind: "job", name: text, more: "exact name", to: jobAt(text) }] : rows; }, [typed, data.data]);
  useEffect(() => { box.current.showModal(); field.current.focus(); }, []);
  useEffect(() => { const li = list.current && list.current.children[at]; if (li) li.scrollIntoView({ block: "nearest" }); }, [at]);
  const open = (r) => { box.current.close(); go(r.to); };
  const press = (e) => {
    if (e.isComposing) return;
    if (e.key === "ArrowDown" || e.key === "ArrowUp") { e.preventDefault(); move((at + (e.key === "ArrowDown" ? 1 : rows.length - 1)) % Math.max(1, rows.length)); }
    if (e.key === "Enter" && rows[at]) { e.preventDefault(); open(rows[at]); }
  };
  return html`<dialog ref=${box} class="finder" aria-label="find" onClose=${close} onClick=${(e) => { if (e.target === box.current) box.current.close(); }}>
    <input type="text" ref=${field} role="combobox" aria-expanded="true" aria-controls="found" aria-activedescendant=${rows[at] ? "found" + at : null} aria-label="find a page, node, cluster or job" placeholder="Find a page, node, cluster or job" autocomplete="off" spellcheck="false" onInput=${(e) => { set(e.target.value); move(0); }} onKeyDown=${press} />
    <ul id="found" role="listbox" aria-label="found" ref=${list}>${rows.map((r, i) => html`<li id=${"found" + i} role="option" aria-selected=${i === at ? "true" : "false"} onClick=${() => open(r)} onMouseMove=${() => { if (i !== at) move(i); }}><b>${r.name}</b>${r.more && html`<span class="muted small">${r.more}</span>`}<span class="tag">${r.kind}</span></li>`)}</ul>
    ${data.error ? html`<p class="small bad">${data.error.message}</p>` : !data.data && html`<p class="small muted" role="status">Loading nodes and jobs…</p>`}</dialog>`;
}

const apple = /Mac|iPhone|iPad/.test(navigator.platform || "");

// Find is the button that opens it, and what its keys open.
export function Find() {
  const [open, set] = useState(false);
  useEffect(() => {
    const press = (e) => {
      if (document.querySelector("dialog[open]")) return;
      const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(e.target.tagName), plain = !e.ctrlKey && !e.metaKey && !e.altKey;
      if ((e.ctrlKey || e.metaKey) && !e.altKey && !e.shiftKey && e.key.toLowerCase() === "k" || e.key === "/" && plain && !typing && !document.querySelector("[data-search]")) { e.preventDefault(); set(true); }
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  return html`<button type="button" class="find" onClick=${() => set(true)} title="find a page, node, cluster or job"><${Icon} name="find" /><span>Find</span><kbd>${apple ? "⌘" : "Ctrl"} K</kbd></button>${open && html`<${Finder} close=${() => set(false)} />`}`;
}

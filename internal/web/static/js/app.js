// The frame around all pages: navigation, title, range of time, notices.
import { html, render, useState, useEffect, useRef, useMemo } from "../vendor/preact.mjs";
import { signIn, signedIn, signOut, exchange, linkTrouble, get, alarms, isDown, whyUnsaved, setUnsaved } from "./api.js";
import { go, href, ranged } from "./route.js";
import { ranges, choose, spanOf, setDefaultRange, pan, widen, toNow } from "./span.js";
import { Span } from "./range.js";
import { refresh } from "./refresh.js";
import { useHere, useData, useNarrow, isLoaded, Legend, Dialog } from "./ui.js";
import { Stopped } from "./parts.js";
import { Icon } from "./icon.js";
import { Find } from "./find.js";
import "./touch.js";
import { pages, missing } from "./pages/all.js";

const root = document.documentElement;

function flipTheme() {
  const next = root.dataset.theme === "dark" ? "light" : "dark";
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  try { if (next === system) localStorage.removeItem("mete.theme"); else localStorage.setItem("mete.theme", next); } catch { root.dataset.theme = next; dispatchEvent(new Event("mete-theme")); return; }
  window.meteTheme();
}

function useTheme() {
  const [t, set] = useState(root.dataset.theme);
  useEffect(() => {
    const changed = () => set(root.dataset.theme);
    addEventListener("mete-theme", changed);
    return () => removeEventListener("mete-theme", changed);
  }, []);
  return t;
}

function SignIn({ done, why }) {
  const field = useRef();
  const [tried, setTried] = useState(signedIn());
  useEffect(() => { document.title = `Sign in to ${location.host} · mete`; field.current.focus(); }, []);
  const submit = (e) => { e.preventDefault(); if (!field.current.value.trim()) return; signIn(field.current.value); setTried(true); done(); };
  return html`<main class="alone"><div class="brand"><img src="/icon.svg" alt="" /><b>mete</b></div><h1>Sign in to ${location.host}</h1>
    <p class="muted">This server requires a token with the role <b>viewer</b>. Create one on the server:</p>
    <pre class="mono">mete token create --role viewer</pre>
    <form class="bar" onSubmit=${submit}><label class="hidden" for="token">token</label><input id="token" type="password" ref=${field} autocomplete="off" spellcheck="false" placeholder="token" /><button class="primary">Sign in</button></form>
    ${linkTrouble && html`<p role="alert" class="notice bad">${linkTrouble}</p>`}
    ${location.protocol === "http:" && html`<p class="muted">Or open a one-time link. The user that runs the server creates it:</p><pre class="mono">mete token link</pre>`}
    ${tried && html`<p role="alert" class="notice bad">Invalid or expired token.${why && html`<span class="small">${why.message.replace(/(: (invalid|permission denied))+(?=\.?$)/, "")}</span>`}</p>`}
    <p class="muted small">The token is kept until you close this tab, and is sent only to this server.</p></main>`;
}

function Keys({ close }) {
  const keys = [["/", "filter"], ["Ctrl K", "find a page, node, cluster or job"], ["g then a letter", "go to a page: " + pages.filter((p) => p.key).map((p) => p.key + " " + p.title.toLowerCase()).join(", ")],
    ["[  ]", "a shorter or a longer range"], ["d", "choose a date range"], [",  .", "move half a range earlier or later"], ["z", "zoom out: twice the range"], ["n", "back to now"], ["r", "refresh"], ["t", "light or dark"], ["← →", "on a chart: the values at each step"], ["↑ ↓ ← →", "in the table of Live: move, fold and unfold"], ["z, f", "on Live: show or hide idle workloads, pause"], ["Esc", "leave a field, close a dialog"], ["?", "these keys"]];
  return html`<${Dialog} title="Keys" close=${close}><dl class="facts">${keys.map(([k, what]) => html`<dt><kbd>${k}</kbd></dt><dd>${what}</dd>`)}</dl></${Dialog}>`;
}

// useKeys answers the keys that work everywhere.
function useKeys(query, showKeys) {
  const last = useRef(""); // key, also where the page was drawn anew since
  useEffect(() => {
    const press = (e) => {
      if (e.metaKey || e.ctrlKey || e.altKey || document.querySelector("dialog[open]")) return;
      if (/^(INPUT|TEXTAREA|SELECT)$/.test(e.target.tagName)) { if (e.key === "Escape" && !e.target.closest("[popover]")) e.target.blur(); return; }
      const was = last.current;
      last.current = e.key;
      if (was === "g") { const p = pages.find((p) => p.key === e.key); if (p) { e.preventDefault(); last.current = ""; go(href(p.path, ranged(query))); return; } }
      if (e.key === "/") { const s = document.querySelector("[data-search]"); if (s) { e.preventDefault(); s.focus(); s.select(); } }
      if (e.key === "?") showKeys(true);
      if (e.key === "t") flipTheme();
      const act = document.querySelector("#range-open") && { ",": () => pan(-1), ".": () => pan(1), z: () => widen(), n: toNow, r: refresh }[e.key];
      if (act) { e.preventDefault(); act(); return; }
      if (e.key === "d") { const b = document.querySelector("#range-open"); if (b) { e.preventDefault(); b.focus(); b.click(); } }
      if (e.key === "[" || e.key === "]") {
        const { name, length } = spanOf(query), next = e.key === "[" ? ranges.findLast(([, l]) => l < length) : ranges.find(([, l]) => l > length);
        if (name && next) choose(next[0]);
      }
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, [query]);
}

// Tools change how pages look, explain them, and sign out.
function Tools({ dark, showKeys, leave }) {
  return html`<div class="tools"><button class="quiet" onClick=${flipTheme} aria-label=${dark ? "light" : "dark"} title="light or dark (t)"><${Icon} name=${dark ? "sun" : "moon"} /></button>
    <button class="quiet" onClick=${() => showKeys(true)} aria-label="keys" title="keys (?)"><kbd>?</kbd></button><a href="/docs" data-native title="documentation of the HTTP API">API</a>${signedIn() && html`<button class="quiet" onClick=${leave} aria-label="sign out" title="sign out"><${Icon} name="leave" /></button>`}</div>`;
}

function Side({ page, keep, alarms, tools }) {
  return html`<aside class="side"><a class="brand" href=${href("/", keep)}><img src="/icon.svg" alt="" /><b>mete</b></a><${Find} />
    <nav aria-label="pages">${pages.filter((p) => p.key).map((p) => html`<a href=${href(p.path, keep)} aria-current=${page === p || (page && page.under === p.path) ? "page" : null} title=${p.title + " (g " + p.key + ")"}><${Icon} name=${p.icon} /><span>${p.title}</span>${p.path === "/alerts" && alarms > 0 && html`<span class="count">${alarms}</span>`}</a>`)}</nav>
    <footer><${Legend} />${tools}</footer></aside>`;
}

// Head says where one is, and which time is looked at. On a phone it has the tools too.
function Head({ page, title, path, keep, span, tools }) {
  const above = page && page.under !== undefined && pages.find((p) => p.path === page.under);
  return html`<header class="top"><div class="where">${above && html`<a class="crumb" href=${href(above.path, keep)}>${above.title}</a><span class="crumb" aria-hidden="true">/</span>`}<h1 title=${title}>${title}</h1>${tools}</div>
    ${page && page.ranged !== false && html`<${Span} span=${span} path=${path} />`}</header>`;
}

// A Notice is a message that stands above a page.
function Notice({ id, role = "alert", children }) {
  return html`<div class="notice bad" role=${role} id=${id}><div>${children}</div></div>`;
}

// Notices are what concerns every page: the server is down, the power is simulated, an error.
function Notices({ down, loaded, simulated, error }) {
  const unsaved = useEvent("mete-save", whyUnsaved);
  return html`
    ${unsaved && html`<${Notice} id="unsaved"><b>${unsaved.message}</b> <span>${unsaved.hint}</span> <button type="button" class="quiet" onClick=${() => setUnsaved(null)}>Close</button></${Notice}>`}
    ${down && html`<${Notice} id="down"><b>The server does not answer.</b> <span>${loaded ? "What is gray is earlier data." : "No data is loaded."} Check that the server runs, and the tunnel if you use one. The page reconnects automatically.</span></${Notice}>`}
    ${simulated && html`<${Notice} id="simulated" role="note"><b>Simulated power</b> <span id="simulated-text">${simulated}</span><span>: power and energy are not measured, nor are figures computed from them.</span></${Notice}>`}
    ${error && error.status !== 0 && html`<${Notice}><b>${error.message}</b> <span>${error.hint}</span></${Notice}>`}`;
}

// useEvent follows a state that an event says has changed.
function useEvent(event, read) {
  const [state, set] = useState(read());
  useEffect(() => {
    const changed = () => set(read());
    changed(); // since it was drawn
    addEventListener(event, changed);
    return () => removeEventListener(event, changed);
  }, []);
  return state;
}

const none = [];

function App() {
  const { path, query } = useHere();
  const [keys, showKeys] = useState(false);
  const [tries, again] = useState(0);
  const theme = useTheme(), narrow = useNarrow(), down = useEvent("mete-reach", isDown), loaded = useEvent("mete-loaded", isLoaded);
  const who = useData((signal) => get("/v1/nodes", {}, signal), [tries], 15000, true);
  const firing = useData(async (signal) => (await get("/api/v1/alerts", {}, signal)).data.alerts.filter(alarms), [tries], 30000, true);
  const played = useData(async (signal) => (root.querySelector("#app").dataset.live === "1" ? (await get("/api/v0/snapshot", {}, signal)).simulated : ""), [tries], 0, true); // it is fixed when mete up starts
  const page = pages.find((p) => p.match(path));
  const oldest = useMemo(() => (who.data ? Math.min(...who.data.nodes.map((n) => Date.parse(n.enrolled_at))) : 0), [Boolean(who.data)]);
  if (oldest && Number.isFinite(oldest)) setDefaultRange((Date.now() - oldest) / 1000);
  const title = page ? (page.name ? page.name(path, query) : page.title) : "Not found";
  useEffect(() => { document.title = title + " · mete"; }, [title]);
  useKeys(query, showKeys);

  if (who.error && (who.error.status === 401 || (who.error.status === 403 && signedIn()))) return html`<${SignIn} key=${tries} why=${who.error.status === 403 ? who.error : null} done=${() => again(tries + 1)} />`;
  const View = page ? page.view : missing;
  const keep = ranged(query), tools = html`<${Tools} dark=${theme === "dark"} showKeys=${showKeys} leave=${() => { signOut(); again(tries + 1); }} />`;
  return html`<div class="frame"><a class="skip" href="#main" onClick=${(e) => { e.preventDefault(); document.getElementById("main").focus(); }}>Skip to the page</a>
    <${Side} page=${page} keep=${keep} alarms=${(firing.data || none).length} tools=${narrow ? null : tools} />
    <div class="body"><${Head} page=${page} title=${title} path=${path} keep=${keep} span=${spanOf(query)} tools=${narrow ? tools : null} />
      <main class=${"page" + (down ? " stale" : "")} id="main" tabindex="-1"><${Notices} down=${down} loaded=${loaded} simulated=${played.data} error=${who.error} />
        ${who.data && page && page.stopped && html`<${Stopped} nodes=${who.data.nodes.filter((n) => n.state !== "revoked")} span=${spanOf(query)} />`}
        ${(who.data || page && page.alone) && html`<${View} key=${path + (query.job || "") + "\n" + (query.node || "")} path=${path} nodes=${who.data ? who.data.nodes : null} alerts=${firing.data || none} theme=${theme} />`}${who.data && page && html`<${Legend} />`}</main></div>
    ${keys && html`<${Keys} close=${() => showKeys(false)} />`}</div>`;
}

// A link that is put into the address bar of a page that is open does not load it anew.
addEventListener("hashchange", () => { if (/[#&]code=/.test(location.hash)) location.reload(); });
const app = document.getElementById("app");
exchange().then(() => { app.replaceChildren(); render(html`<${App} />`, app); }); // in place of the skeleton of index.html

// Where the reader is: path and query of the URL, which hold all state that a
// link should carry.

const listeners = new Set();

export function here() {
  let path = location.pathname;
  try { path = decodeURIComponent(path); } catch { /* as it stands */ }
  return { path, query: Object.fromEntries(new URLSearchParams(location.search)) };
}

export function onMove(f) {
  listeners.add(f);
  return () => listeners.delete(f);
}

function moved() { for (const f of listeners) f(here()); }

// href is the address of a path with the given query; what is "" is left out.
export function href(path, query = {}) {
  const q = new URLSearchParams();
  for (const [k, v] of Object.entries(query)) if (v !== "" && v !== null && v !== undefined) q.set(k, v);
  const s = q.toString();
  return path.split("/").map(encodeURIComponent).join("/") + (s ? "?" + s : "");
}

export function go(to, replace = false) {
  if (to === location.pathname + location.search) return;
  const other = to.split("?")[0] !== location.pathname;
  history[replace ? "replaceState" : "pushState"](null, "", to);
  moved();
  if (other) {
    scrollTo(0, 0);
    const main = document.getElementById("main");
    if (main) main.focus({ preventScroll: true });
  }
}

// put changes parts of the query, and stays on the page. What is typed replaces
// the entry in the history, what is chosen makes a new one.
export function put(changes, replace = false) {
  const { path, query } = here();
  go(href(path, { ...query, ...changes }), replace);
}

// ranged are the parts of the query that say which time is looked at.
export const ranged = ({ range, from, to }) => ({ range, from, to });

// The addresses of things, in the same range of time.
export const jobAt = (job, more = {}) => href("/job", { job, ...more, ...ranged(here().query) });
export const nodeAt = (name) => href("/node/" + name, ranged(here().query));

// addresses returns a function that is the address of one of nodes: by its name, or by its id where several have the
// name, as a machine in two clusters, or one that was enrolled again after it was revoked.
export function addresses(nodes) {
  const count = new Map();
  for (const n of nodes) count.set(n.name, (count.get(n.name) || 0) + 1);
  return (n) => nodeAt(count.get(n.name) > 1 ? n.node : n.name);
}

// nodeNamed is the node that an address means: by its id, by name and id, as the ledger tells equal names apart, or by its
// name; of several with the name one that is not revoked.
export const nodeNamed = (nodes, name) => nodes.find((n) => n.node === name) || nodes.find((n) => n.name + " " + n.node === name) || nodes.find((n) => n.name === name && n.state !== "revoked") || nodes.find((n) => n.name === name);

addEventListener("popstate", moved);
document.addEventListener("click", (e) => {
  const a = e.target.closest && e.target.closest("a[href]");
  if (!a || a.target || a.origin !== location.origin || a.hasAttribute("download") || e.defaultPrevented || e.button || e.metaKey || e.ctrlKey || e.shiftKey || e.altKey) return;
  if (a.dataset.native !== undefined || a.getAttribute("href").startsWith("#")) return;
  e.preventDefault();
  go(a.pathname + a.search);
});

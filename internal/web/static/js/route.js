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

addEventListener("popstate", moved);
document.addEventListener("click", (e) => {
  const a = e.target.closest && e.target.closest("a[href]");
  if (!a || a.target || a.origin !== location.origin || a.hasAttribute("download") || e.defaultPrevented || e.button || e.metaKey || e.ctrlKey || e.shiftKey || e.altKey) return;
  if (a.dataset.native !== undefined || a.getAttribute("href").startsWith("#")) return;
  e.preventDefault();
  go(a.pathname + a.search);
});

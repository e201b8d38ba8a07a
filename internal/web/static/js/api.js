// Requests to the server. Answers are JSON; an error is a Failure with a hint.

const key = "mete.token";
let token = "";
// A token that was typed is the tab's; one of a link is the browser's, and ends with the server.
try { token = sessionStorage.getItem(key) || localStorage.getItem(key) || ""; } catch { /* no storage: until the page is left */ }

export function signIn(t) { token = t.trim(); try { sessionStorage.setItem(key, token); } catch { /* as above */ } }
export function signOut() { token = ""; try { sessionStorage.removeItem(key); localStorage.removeItem(key); } catch { /* as above */ } }

// credentials are the headers of every request.
export const credentials = () => (token ? { Authorization: "Bearer " + token } : {});

// exchange signs this browser in where the page was opened by a link with a code: #code=CODE. The
// code works once; the answer holds the token. What is wrong with a link is shown with the sign-in.
export let linkTrouble = "";
export async function exchange() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (!code) return;
  history.replaceState(history.state, "", location.pathname + location.search);
  try {
    const r = await fetch("/v1/page-token", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ code }), credentials: "omit", cache: "no-store" });
    const v = await r.json();
    if (!r.ok) { linkTrouble = capital(v.detail || v.title || "The link is not valid") + "."; return; }
    token = v.token;
    try { sessionStorage.removeItem(key); localStorage.setItem(key, token); } catch { /* as above */ }
  } catch { linkTrouble = "The server does not answer."; }
}
export const signedIn = () => token !== "";

export class Failure extends Error {
  constructor(title, hint, status) { super(title); this.hint = hint || ""; this.status = status || 0; }
}

// capital begins a sentence; a command stays as it is typed.
function capital(s) { return s && !s.startsWith("mete ") ? s[0].toUpperCase() + s.slice(1) : s; }

// down says that the latest request did not reach the server; the event mete-reach, that this changed.
let down = false;
export const isDown = () => down;
function reached(yes) {
  if (down !== yes) return;
  down = !yes;
  dispatchEvent(new Event("mete-reach"));
}

// received is the number of answers of the server so far.
let count = 0;
export const received = () => count;

async function ask(path, signal) {
  try {
    const r = await fetch(path, { signal, headers: credentials(), credentials: "omit", cache: "no-store" });
    reached(true);
    count++;
    return r;
  } catch (e) {
    if (e.name === "AbortError") throw e;
    reached(false);
    throw new Failure("The server does not answer.", "Check that it still runs, and the tunnel if you use one. This page retries automatically.");
  }
}

// address is a path with parameters; a list gives one of them several times.
export function address(path, params = {}) {
  const q = new URLSearchParams();
  for (const [k, v] of Object.entries(params)) {
    for (const one of Array.isArray(v) ? v : [v]) if (one !== undefined && one !== null && one !== "") q.append(k, one);
  }
  const s = q.toString();
  return path + (s ? "?" + s : "");
}

// parsed is a text as JSON; null if it is none.
function parsed(text) { try { return JSON.parse(text); } catch { return null; } }

export async function get(path, params = {}, signal) {
  const r = await ask(address(path, params), signal), body = await r.text(), v = parsed(body);
  if (r.ok && v !== null) return v;
  throw failureOf(r, v, body);
}

// failureOf is what the server refused, from its answer and that as JSON, null if it is none.
function failureOf(r, v, body) {
  if (r.status === 401) return new Failure("This server requires a token.", "Sign in with a token of the role viewer.", 401);
  return new Failure(capital((v && (v.detail || v.error || v.title)) || body.trim() || "The server answered with status " + r.status + "."), v && v.hint && capital(v.hint) + ".", r.status);
}

// plain requests text.
export async function plain(path, signal) {
  const r = await ask(path, signal);
  if (!r.ok) throw new Failure("The server answered " + path + " with status " + r.status + ".", "", r.status);
  return r.text();
}

// instant and range evaluate PromQL. Times are in seconds since 1970.
export async function instant(query, time, signal) {
  return (await get("/api/v1/query", { query, time }, signal)).data.result;
}

export async function range(query, span, signal) {
  return (await get("/api/v1/query_range", { query, start: span.from, end: span.to, step: span.step }, signal)).data.result;
}

// unsaved is why the latest download failed, null if it did not; the event mete-save says that this changed.
let unsaved = null;
export const whyUnsaved = () => unsaved;
export function setUnsaved(failure) { unsaved = failure; dispatchEvent(new Event("mete-save")); }

// save downloads an answer as a file.
export async function save(path, params, name) {
  let r;
  try { r = await ask(address(path, params)); } catch (e) { setUnsaved(e); return; }
  if (!r.ok) {
    const body = await r.text(), f = failureOf(r, parsed(body), body);
    setUnsaved(new Failure(name + " was not saved: " + f.message, f.hint, f.status));
    return;
  }
  setUnsaved(null);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await r.blob());
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

// alarms selects firing alerts, without the heartbeat, which always fires.
export const alarms = (a) => a.state === "firing" && a.labels.severity !== "none";

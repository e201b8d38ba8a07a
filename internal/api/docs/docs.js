// Shows /openapi.json, and asks what it describes. All elements are made one by
// one, so that no text can become one.

const key = "mete.token";
const kept = { get() { try { return sessionStorage.getItem(key) || localStorage.getItem(key) || ""; } catch { return ""; } }, set(v) { try { v ? sessionStorage.setItem(key, v) : sessionStorage.removeItem(key); } catch { /* until the page is left */ } } };

function el(name, attributes = {}, ...children) {
  const e = document.createElement(name);
  for (const [k, v] of Object.entries(attributes)) {
    if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
    else if (v !== undefined && v !== null && v !== false) e.setAttribute(k, v === true ? "" : v);
  }
  e.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== ""));
  return e;
}

let doc;
const named = (s) => (s && s.$ref ? doc.components.schemas[s.$ref.split("/").pop()] : s) || {};
const nameOf = (s) => (s && s.$ref ? s.$ref.split("/").pop() : "");

// type is what a schema is, in a word or two.
function type(s) {
  if (!s) return "";
  if (s.anyOf) return s.anyOf.map(type).join(" or ");
  if (s.$ref) return nameOf(s);
  if (s.type === "array") return "list of " + type(s.items);
  if (s.enum) return s.enum.length > 8 ? "one of " + s.enum.length + " words" : s.enum.join(", ");
  const t = [].concat(s.type || "anything").map((t) => (t === "null" ? "null" : t)).join(" or ");
  return s.format === "date-time" ? t.replace("string", "instant") : t;
}

// fields lists what is in an answer, and opens what is in that on demand.
function fields(schema, seen = []) {
  const s = named(schema);
  if (s.anyOf) return fields(s.anyOf[0], seen);
  if (s.type === "array") return fields(s.items, seen);
  const props = Object.entries(s.properties || {});
  if (!props.length) return s.additionalProperties && s.additionalProperties.type ? el("p", { class: "muted" }, "of each key: ", type(s.additionalProperties)) : null;
  return el("ul", { class: "fields" }, props.map(([name, p]) => {
    const line = [el("code", {}, name), " ", el("span", { class: "muted" }, type(p)), p.description ? " — " + p.description : ""];
    const inner = p.anyOf ? p.anyOf[0] : p.type === "array" ? p.items : p;
    const key = nameOf(inner);
    if (!key || seen.includes(key)) return el("li", {}, line);
    const open = el("details", {}, el("summary", {}, line));
    open.addEventListener("toggle", () => { if (open.open && open.children.length === 1) open.append(fields(inner, [...seen, key]) || ""); });
    return el("li", {}, open);
  }));
}

function input(p) {
  const s = p.schema.type === "array" ? p.schema.items : p.schema;
  const id = "p-" + Math.random().toString(36).slice(2);
  if (s.enum && p.schema.type !== "array") return el("select", { name: p.name, id, "aria-label": p.name }, el("option", { value: "" }, "—"), s.enum.map((v) => el("option", { value: v }, v)));
  const example = (p.schema.examples || s.examples || [])[0];
  return el("input", { name: p.name, id, "aria-label": p.name, autocomplete: "off", spellcheck: "false", placeholder: example === undefined ? "" : [].concat(example)[0] });
}

function address(path, form) {
  const q = new URLSearchParams();
  for (const [k, v] of new FormData(form)) if (v !== "") for (const one of k === "where" ? v.split(" ") : [v]) q.append(k, one);
  const s = q.toString();
  return path + (s ? "?" + s : "");
}

async function ask(path, form, out) {
  const token = kept.get();
  const target = address(path, form);
  const command = "curl " + (token ? "-H 'Authorization: Bearer TOKEN' " : "") + "'" + location.origin + target + "'";
  out.replaceChildren(el("pre", {}, command), el("p", { class: "muted", role: "status" }, "Asking …"));
  try {
    const began = performance.now();
    const r = await fetch(target, { credentials: "omit", headers: token ? { Authorization: "Bearer " + token } : {} });
    let text = await r.text();
    const took = Math.round(performance.now() - began);
    if ((r.headers.get("Content-Type") || "").includes("json")) try { text = JSON.stringify(JSON.parse(text), null, 1); } catch { /* as it came */ }
    const more = text.length > 100000;
    out.replaceChildren(el("pre", {}, command), el("p", { class: r.ok ? "good" : "bad", role: "status" }, r.status + " " + r.statusText + ", " + text.length + " characters in " + took + " ms" + (more ? "; the first 100000:" : "")),
      el("pre", { tabindex: "0" }, text.slice(0, 100000)));
  } catch {
    out.replaceChildren(el("p", { class: "bad", role: "status" }, "The server does not answer. Check that it still runs."));
  }
}

function question(path, op) {
  const out = el("div");
  const rows = (op.parameters || []).filter((p) => p.in === "query").map((p) => el("tr", {}, el("th", { scope: "row" }, el("code", {}, p.name)), el("td", {}, input(p)), el("td", { class: "type" }, type(p.schema)), el("td", {}, p.description || "")));
  const form = el("form", { onsubmit(e) { e.preventDefault(); ask(path, form, out); } },
    rows.length ? [el("h3", {}, "Parameters"), el("div", { class: "scroll" }, el("table", {}, el("tbody", {}, rows)))] : null,
    el("div", { class: "act" }, el("button", {}, "Send request")));
  const answer = op.responses["200"].content || {};
  const json = answer["application/json"];
  return el("section", { id: op.operationId }, el("h2", {}, el("code", {}, path), op.summary || ""), op.description ? el("p", {}, op.description) : null, form, out,
    json ? el("details", {}, el("summary", {}, "The answer" + (answer["text/csv"] ? ", in JSON; CSV has the same keys" : "")), fields(json.schema)) : null,
    el("details", {}, el("summary", {}, "When it is refused"), el("ul", { class: "fields" }, Object.entries(op.responses).filter(([code]) => code !== "200").map(([code, r]) => el("li", {}, el("code", {}, code), " " + (r.description || ""))))));
}

async function main() {
  const secret = document.getElementById("secret");
  secret.value = kept.get();
  secret.addEventListener("change", () => kept.set(secret.value.trim()));
  document.getElementById("token").addEventListener("submit", (e) => { e.preventDefault(); kept.set(secret.value.trim()); });
  const place = document.getElementById("main");
  try {
    doc = await (await fetch("/openapi.json", { credentials: "omit" })).json();
  } catch {
    place.replaceChildren(el("p", { class: "bad" }, "The description cannot be read. Check that the server still runs."));
    return;
  }
  const all = Object.entries(doc.paths).map(([path, item]) => [path, item.get]);
  const nav = document.querySelector("nav");
  place.replaceChildren(el("p", {}, doc.info.description));
  for (const tag of doc.tags) {
    const list = all.filter(([, op]) => op.tags.includes(tag.name));
    nav.append(el("h2", {}, tag.description), ...list.map(([path, op]) => el("a", { href: "#" + op.operationId }, path)));
    place.append(...list.map(([path, op]) => question(path, op)));
  }
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

main();

// PromQL as text: what its parts are, and what can stand at a place in it.

export const functions = ("abs absent absent_over_time avg_over_time ceil changes clamp clamp_max clamp_min count_over_time day_of_month day_of_week day_of_year days_in_month delta deriv exp floor " +
  "histogram_avg histogram_count histogram_fraction histogram_quantile histogram_sum hour idelta increase irate label_join label_replace last_over_time ln log10 log2 max_over_time min_over_time minute month " +
  "predict_linear present_over_time quantile_over_time rate resets round scalar sgn sort sort_desc sqrt stddev_over_time stdvar_over_time sum_over_time time timestamp vector year").split(" ");
export const aggregations = "avg bottomk count count_values group max min quantile stddev stdvar sum topk".split(" ");
const lists = "by without on ignoring group_left group_right".split(" ");
export const keywords = [...lists, "and", "or", "unless", "bool", "offset"];
export const durations = ["30s", "1m", "2m", "5m", "10m", "30m", "1h", "6h", "1d", "7d"];

const token = /(?<comment>#[^\n]*)|(?<string>"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?|`[^`]*`?)|(?<duration>\b\d+(?:ms|[smhdwy])(?:\d+(?:ms|[smhdwy]))*\b)|(?<number>\b(?:0x[\da-fA-F]+|\d+\.?\d*(?:e[-+]?\d+)?)|\.\d+)|(?<name>[a-zA-Z_:][\w:]*)|(?<op>=~|!~|!=|==|<=|>=|[-+*/%^=<>@])|(?<mark>[(){}[\],])|(?<space>\s+)|(?<other>.)/gs;

// tokens divides a query: [{ kind, text, at }]. Together they are the query.
export function tokens(query) {
  const list = [...query.matchAll(token)].map((m) => ({ kind: Object.keys(m.groups).find((k) => m.groups[k] !== undefined), text: m[0], at: m.index }));
  const next = (i) => list.slice(i + 1).find((t) => t.kind !== "space" && t.kind !== "comment");
  let braces = 0, grouped = 0, parens = [], before = null;
  for (const [i, t] of list.entries()) {
    if (t.kind === "mark") {
      if (t.text === "{") braces++;
      if (t.text === "}") braces = Math.max(0, braces - 1);
      if (t.text === "(") { const g = before !== null && before.kind === "keyword" && lists.includes(before.text); parens.push(g); grouped += g; }
      if (t.text === ")") grouped -= parens.pop() || 0;
    }
    if (t.kind === "name") t.kind = braces || grouped ? "label" : keywords.includes(t.text) ? "keyword" : (functions.includes(t.text) || aggregations.includes(t.text)) && ["(", "by", "without"].includes((next(i) || {}).text) ? "function" : "metric";
    if (t.kind !== "space" && t.kind !== "comment") before = t;
  }
  return list;
}

// placeAt says what can stand at a place in a query: { kind, from, prefix, metric, label }, where
// prefix is what is typed of it, from where. kind is metric, label, value, duration or none.
export function placeAt(query, at) {
  const list = tokens(query.slice(0, at)).filter((t) => t.kind !== "space"), last = list.at(-1), touching = last && last.at + last.text.length === at;
  const none = { kind: "none", from: at, prefix: "" };
  if (last && last.kind === "comment") return none;
  // The brackets that are open, and the tokens before each.
  const open = [];
  for (const [i, t] of list.entries()) {
    if (t.kind !== "mark") continue;
    if ("({[".includes(t.text)) open.push(i);
    if (")}]".includes(t.text)) open.pop();
  }
  const outer = open.length ? list[open.at(-1)].text : "", before = open.length ? list[open.at(-1) - 1] : null;
  const metrics = tokens(query).filter((t) => t.kind === "metric").map((t) => t.text);
  const typed = touching && ["name", "metric", "label", "keyword", "function"].includes(last.kind) ? { from: last.at, prefix: last.text } : { from: at, prefix: "" };
  if (outer === "{") {
    const metric = before && before.kind === "metric" ? before.text : "";
    const inside = list.slice(open.at(-1) + 1), part = inside.slice(inside.findLastIndex((t) => t.text === ",") + 1);
    if (part.length === 3 && part[2].kind === "string" && touching && !closed(part[2].text)) return { kind: "value", from: part[2].at + 1, prefix: part[2].text.slice(1), metric, label: part[0].text };
    if (part.length === 0 || (part.length === 1 && part[0].kind === "label" && touching)) return { kind: "label", ...typed, metric };
    return none;
  }
  if (last && last.kind === "string" && touching) return none;
  if (outer === "[") return touching && (last.kind === "duration" || last.kind === "number") ? { kind: "duration", from: last.at, prefix: last.text } : last.text === "[" ? { kind: "duration", from: at, prefix: "" } : none;
  if (outer === "(" && before && lists.includes(before.text) && before.kind === "keyword") return { kind: "label", ...typed, metric: metrics[0] || "" };
  if (touching && (last.kind === "number" || last.kind === "duration")) return none;
  return { kind: "metric", ...typed };
}

const closed = (s) => s.length > 1 && s.at(-1) === s[0] && !/[^\\](\\\\)*\\.$/.test(s.slice(0, -1) + s.at(-1));

// matching are the options that have what is typed: those that begin with it first, at most so many.
export function matching(options, prefix, most = 40) {
  const p = prefix.toLowerCase(), rank = (o) => { const i = o.text.toLowerCase().indexOf(p); return i < 0 ? 3 : i === 0 ? 0 : /[_:]/.test(o.text[i - 1]) ? 1 : 2; };
  return options.map((o, i) => [rank(o), i, o]).filter(([r]) => r < 3).sort((a, b) => a[0] - b[0] || a[1] - b[1]).slice(0, most).map(([, , o]) => o);
}

// complete replaces what is typed at a place by an option, and returns the query and where to go on.
export function complete(query, at, place, option) {
  const text = place.kind === "value" ? option.text.replace(/[\\"]/g, "\\$&") + (query[at] === '"' ? "" : '"') : option.text + (option.call && query[at] !== "(" ? "(" : "");
  return { query: query.slice(0, place.from) + text + query.slice(at), at: place.from + text.length };
}

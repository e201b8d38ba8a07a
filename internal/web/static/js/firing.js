// Alerts by their rules: a thousand silent nodes are one thing to look at, not a thousand.
import { html } from "../vendor/preact.mjs";
import { few, ago, exactly } from "./fmt.js";
import { groupsOf, natural, prefixOf } from "./names.js";
import { href } from "./route.js";

// isHeartbeat reports whether an alert or a rule fires always, to show that alerts arrive.
export const isHeartbeat = (a) => (a.labels || {}).severity === "none";

// deliveryOf says what became of notifications since the server started: "none" were sent, all were "refused", or some were
// "taken"; "unknown" where their numbers are not known.
export function deliveryOf(taken, failed) {
  if (taken === null) return "unknown";
  if (taken + failed === 0) return "none";
  return taken === 0 ? "refused" : "taken";
}

const severities = ["critical", "warning", "info"];
const rankOf = (s) => { const i = severities.indexOf(s); return i < 0 ? severities.length : i; };

// byRule groups alerts by rule, state and severity: those that fire first, then the more severe,
// then those with more alerts. Each group is { rule, state, severity, alerts, since }, its alerts
// in natural order of cluster and node.
export function byRule(alerts) {
  const of = groupsOf(alerts, (a) => [a.labels.alertname, a.state, a.labels.severity || ""].join("\u0000"));
  return of.map(({ list }) => ({
    rule: list[0].labels.alertname, state: list[0].state, severity: list[0].labels.severity || "",
    alerts: list.sort((a, b) => natural(a.labels.node || "", b.labels.node || "") || natural(a.labels.cluster || "", b.labels.cluster || "")),
    since: list.reduce((at, a) => (a.activeAt < at ? a.activeAt : at), list[0].activeAt),
  })).sort((a, b) => (a.state === "firing" ? 0 : 1) - (b.state === "firing" ? 0 : 1) || rankOf(a.severity) - rankOf(b.severity) || b.alerts.length - a.alerts.length || natural(a.rule, b.rule));
}

// extent says what a group of alerts is about: "1,000 nodes in 2 clusters".
export function extent(alerts) {
  const nodes = new Set(alerts.filter((a) => a.labels.node).map((a) => a.labels.cluster + "/" + a.labels.node)), clusters = new Set(alerts.map((a) => a.labels.cluster).filter(Boolean));
  const where = clusters.size > 1 ? " in " + few(clusters.size, "cluster") : clusters.size === 1 ? " in " + [...clusters][0] : "";
  if (nodes.size === 1) return alerts.find((a) => a.labels.node).labels.node + where;
  if (nodes.size > 1) return few(nodes.size, "node") + where;
  return alerts.length === 1 ? [...clusters][0] || "" : few(alerts.length, "alert") + where;
}

// prefixes counts the nodes of alerts by the prefixes of their names, the largest first.
export function prefixes(alerts) {
  return groupsOf(alerts.filter((a) => a.labels.node), (a) => prefixOf(a.labels.node)).map(({ name, list }) => ({ name, count: list.length })).sort((a, b) => b.count - a.count || natural(a.name, b.name));
}

// describe makes a rule's text readable that is a template: its variables stand as <node>.
export function describe(template) {
  return template.replace(/\{\{-?\s*\$labels\.(\w+)[^}]*\}\}/g, "<$1>").replace(/\{\{-?\s*\$value([^}]*)\}\}/g, (_, how) => (/Percent/.test(how) ? "<percentage>" : /Duration/.test(how) ? "<duration>" : "<value>"));
}

// Brief lists the rules that fire, one line each, with since when and with links to page Alerts.
export function Brief({ alerts, most = 5 }) {
  const groups = byRule(alerts.filter((a) => a.state === "firing" && !isHeartbeat(a)));
  return html`${groups.slice(0, most).map((g) => html`<li class=${g.severity === "critical" ? "bad" : "warn"}><a href=${href("/alerts", { open: g.rule })}>${g.rule}</a><span>${g.alerts.length === 1 ? g.alerts[0].annotations.summary || extent(g.alerts) : extent(g.alerts)}</span>${g.since && html`<span class="end num" title=${"since " + exactly(g.since)}>${ago(g.since)}</span>`}</li>`)}
    ${groups.length > most && html`<li class="bad"><a href="/alerts">${few(groups.length - most, "more rule")}</a></li>`}`;
}

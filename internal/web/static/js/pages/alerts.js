// Alerts: firing alerts, those of the range, silences, rules.
import { html, useState } from "../../vendor/preact.mjs";
import { get, instant, range } from "../api.js";
import { useSpan } from "../span.js";
import { quote } from "../series.js";
import { Card, Shown, Empty, Search, Select, Segments, Dialog, useData, useHere, useNarrow } from "../ui.js";
import { Table } from "../table.js";
import { byRule, deliveryOf, describe, extent, isHeartbeat, prefixes } from "../firing.js";
import { natural } from "../names.js";
import { grouped, text, length, when, ago, exactly, few, shellWord } from "../fmt.js";
import { put, nodeAt, href, here, ranged } from "../route.js";

const tone = { firing: "bad", pending: "warn", inactive: "good" };
const severe = (s) => "tag " + ({ critical: "bad", warning: "warn" }[s] || "");
const brief = 5; // alerts of a group that are shown at first

const Since = ({ at }) => html`<span class="num" title=${exactly(at)}>${when(at)}, ${ago(at)}</span>`;

// About is what one alert is about: its node, or its labels.
function About({ a }) {
  const { node, alertname, severity, cluster, ...other } = a.labels;
  if (node) return html`<a href=${nodeAt(node)}>${node}</a>`;
  return html`<span>${Object.entries(other).map(([k, v]) => k + "=" + v).join(", ") || cluster || alertname}</span>`;
}

const columns = [
  { key: "node", title: "Node", class: "name", width: "13rem", first: true, order: natural, value: (a) => a.labels.node || "", cell: (a) => html`<${About} a=${a} />` },
  { key: "cluster", title: "Cluster", width: "8rem", value: (a) => a.labels.cluster || null },
  { key: "since", title: "Since", width: "12rem", value: (a) => a.activeAt, cell: (a) => html`<${Since} at=${a.activeAt} />` },
  { key: "summary", title: "Summary", class: "name", width: "26rem", value: (a) => a.annotations.summary || "", cell: (a) => html`<span title=${a.annotations.summary}>${a.annotations.summary}</span>` },
];
const idOf = (a) => Object.entries(a.labels).map(([k, v]) => k + "=" + v).join("\n");

// command is the command that silences alerts with these labels.
export function command(labels) {
  return ["mete silence create", ...Object.entries(labels).map(([k, v]) => shellWord(k + "=" + (/^[\w.:/-]+$/.test(v) ? v : JSON.stringify(v)))), "--for 2h", "--comment WHY"].join(" ");
}

// common are the labels that all alerts of a list have with the same value.
export const common = (alerts) => Object.fromEntries(Object.entries(alerts[0].labels).filter(([k, v]) => k !== "severity" && alerts.every((a) => a.labels[k] === v)));

// Silence shows how the alerts of a group are silenced, which takes the administrator of the server.
function Silence({ g, close }) {
  const text = command({ alertname: g.rule, ...common(g.alerts) });
  const [copied, set] = useState(false);
  const copy = async () => { try { await navigator.clipboard.writeText(text); set(true); } catch { set(false); } };
  return html`<${Dialog} title=${"Silence " + g.rule} close=${close}><p>Only the administrator of this server can create silences. Run this on the server:</p><pre class="mono">${text}</pre>
    <div class="bar"><button type="button" onClick=${copy}>${copied ? "Copied" : "Copy"}</button><span class="muted small">matches ${few(g.alerts.length, "alert")} now; receivers get no notification for 2 h</span></div></${Dialog}>`;
}

// awaited says when an alert that is pending fires, if its rule has to hold for so many seconds.
export function awaited(activeAt, duration, now = Date.now()) {
  const left = (Date.parse(activeAt) - now) / 1000 + duration;
  return left > 0 ? `It fires in ${text(left, "seconds")} if this lasts.` : "It fires at the next evaluation if this lasts.";
}

// Group shows one rule's alerts: how many, where, beyond which limit, the first of them, and all on request.
function Group({ g, open, rule }) {
  const [silence, set] = useState(false), silenced = g.alerts.filter((a) => (a.silenced_by || []).length > 0).length;
  const many = prefixes(g.alerts), one = g.alerts.length === 1 ? g.alerts[0] : null, first = g.alerts.slice(0, brief), query = rule && rule.query, limit = rule && limited(rule);
  return html`<li class=${tone[g.state]} data-rule=${g.rule}><div class="row"><b>${g.rule}</b><span class=${"tag " + tone[g.state]}>${g.state}</span>${g.severity && html`<span class=${severe(g.severity)}>${g.severity}</span>`}${silenced > 0 && html`<span class="tag" title="receivers get no notification">${silenced === g.alerts.length ? "silenced" : grouped(silenced) + " silenced"}</span>`}<span class="extent">${one && one.labels.node ? html`<a href=${nodeAt(one.labels.node)}>${one.labels.node}</a>${one.labels.cluster && " in " + one.labels.cluster}` : extent(g.alerts)}</span>${limit && html`<span class="muted small" title="the limit of the rule">limit ${limit}</span>`}<span class="muted end">since <${Since} at=${g.since} /></span></div>
    ${one && html`<p>${one.annotations.summary} ${one.annotations.description && html`<span class="muted">${g.state === "pending" ? awaited(one.activeAt, (rule || {}).duration || 0) : one.annotations.description}</span>`}</p>`}
    ${!one && many.length > 1 && html`<div class="labels">${many.slice(0, 8).map((p) => html`<button type="button" class="tag" title=${"filter by " + p.name} onClick=${() => put({ q: p.name }, true)}>${p.name} ${grouped(p.count)}</button>`)}${many.length > 8 && html`<span class="muted small">and ${few(many.length - 8, "more group")}</span>`}</div>`}
    ${!one && (open ? html`<${Table} columns=${columns} rows=${g.alerts} id=${idOf} name=${"by" + g.rule} label=${"alerts of " + g.rule} />`
      : html`<ul class="brief">${first.map((a) => html`<li><${About} a=${a} /><span class="muted">${a.labels.node ? a.labels.cluster : ""}</span><span class="muted num">${ago(a.activeAt)}</span><span class="muted summary">${a.annotations.summary}</span></li>`)}</ul>`)}
    <div class="bar">${!one && (open || g.alerts.length > brief) && html`<button type="button" class="quiet" onClick=${() => put({ open: open ? "" : g.rule }, true)}>${open ? "Show fewer" : "Show all " + grouped(g.alerts.length)}</button>`}${silenced < g.alerts.length && html`<button type="button" class="quiet" onClick=${() => set(true)}>Silence…</button>`}${query && html`<a href=${href("/query", { expr: query, ...ranged(here().query) })}>Run query</a>`}</div>
    ${silence && html`<${Silence} g=${g} close=${() => set(false)} />`}</li>`;
}

const Filtered = () => html`<${Empty} title="No alerts match the filters"><button onClick=${() => put({ q: "", cluster: "", severity: "" })}>Show all</button></${Empty}>`;

// Verdict says at a glance how bad it is: how many alerts fire, of which severities, where and since when.
function Verdict({ alerts, failing, rules }) {
  // Rules that were not evaluated yet say nothing.
  const waiting = rules.filter((r) => r.state === "unknown").length, waits = alerts.length + failing.length === 0 && waiting > 0;
  const of = (state) => alerts.filter((a) => a.state === state), firing = of("firing"), pending = of("pending"), critical = pending.filter((a) => a.labels.severity === "critical").length, bad = failing.length > 0 || firing.some((a) => a.labels.severity === "critical");
  const severities = [...new Set(byRule(firing).map((g) => g.severity))].filter(Boolean).map((s) => grouped(firing.filter((a) => a.labels.severity === s).length) + " " + s), at = byRule(firing).map((g) => g.since).sort();
  const title = firing.length > 0 ? `${few(firing.length, "alert")} firing${severities.length > 0 ? ": " + severities.join(", ") : ""}` : failing.length > 0 ? few(failing.length, "rule") + " cannot be evaluated" : pending.length > 0 ? `${few(pending.length, "alert")} pending${critical > 0 ? `, ${grouped(critical)} critical` : ""}, none firing` : waits ? (waiting === rules.length ? "Rules are not evaluated yet" : few(waiting, "rule") + " not evaluated yet, no alerts firing") : "No alerts firing";
  const details = [firing.length > 0 && few(byRule(firing).length, "rule") + ", " + extent(firing), firing.length > 0 && html`the first since <${Since} at=${at[0]} />`, pending.length > 0 && (firing.length + failing.length > 0 ? few(pending.length, "alert") + " pending" : few(byRule(pending).length, "rule") + ", " + extent(pending))].filter(Boolean);
  return html`<div class="calm verdict"><span class=${waits ? "waits" : alerts.length + failing.length === 0 ? "tick" : "cross" + (bad ? " bad" : "")} aria-hidden="true"></span><div><b class="title">${title}</b>${details.length > 0 && html`<div class="muted">${details.map((d, i) => html`${i > 0 && "; "}${d}`)}</div>`}</div></div>
    ${failing.map((r) => html`<p class="notice bad"><b>${r.name} cannot be evaluated: </b>${r.lastError}</p>`)}`;
}

// Deliveries says how many notifications receivers have taken since the server started; nothing where that is not known.
const Deliveries = ({ sent }) => sent && `${few(sent.taken, "notification")} delivered since the server started, ${grouped(sent.failed)} failed.`;

// Unsent says that no notification was sent, and what to do.
function Unsent({ firing }) {
  const although = firing === 0 ? "" : firing === 1 ? ", although an alert fires" : `, although ${grouped(firing)} alerts fire`;
  return html`<div class=${"notice unsent" + (firing > 0 ? " warn" : "")} role="status"><div><b>This server has sent no notification since it started${although}.</b> <span>If none comes within minutes, it has no receiver: start it with <code>--alertmanager URL</code> or <code>--alert-webhook URL</code>.</span></div></div>`;
}

// heartbeatWords is what the heartbeat says while it fires, by the delivery of notifications.
const heartbeatWords = { none: "rules are evaluated, no notification sent", refused: "rules are evaluated, but no notification arrives", taken: "alerting works", unknown: "alerting works" };

// Heartbeat shows the rules that fire always, and whether notifications are delivered.
function Heartbeat({ rules, delivery, sent, firing }) {
  const sign = { none: firing > 0 ? "cross warn" : "waits", refused: "cross bad", taken: "tick", unknown: "tick" }[delivery];
  const words = { firing: heartbeatWords[delivery], unknown: "not evaluated yet" };
  return html`${rules.map((r) => html`<div class="calm heartbeat">${r.state === "firing" ? html`<span class=${sign} aria-hidden="true"></span>` : html`<span class=${r.state === "unknown" ? "tag" : "tag bad"}>${r.state === "unknown" ? "waiting" : "missing"}</span>`}<div><b>Heartbeat: ${words[r.state] || "missing"}</b>
    <div class="muted">${r.name} always fires and is sent to receivers regularly. If it stops, alerting is broken. ${delivery !== "none" && html`<${Deliveries} sent=${sent} />`}${r.lastEvaluation && r.state !== "unknown" && html` <span class="num">Last evaluated ${ago(r.lastEvaluation)}.</span>`}</div></div></div>`)}`;
}

// episodes finds the times at which a series had values, at steps of so many seconds: [{ from, to,
// most, open }]. Each value is of the window of seconds before it; open marks the one that lasts.
export function episodes(values, step, window, end) {
  const out = [];
  for (const [t, v] of values) {
    const last = out.at(-1);
    if (last && t - last.at <= 1.5 * step) { last.at = t; last.most = Math.max(last.most, Number(v)); } else out.push({ from: t, at: t, most: Number(v) });
  }
  return out.map(({ from, at, most }) => { const open = at >= end - step / 2; return { from, to: open ? at : Math.max(from, at - Math.max(0, window - step)), most, open }; });
}

const seen = (labels, window) => `max_over_time(ALERTS{alertstate="firing",severity!="none"${labels}}[${window}s])`;
const windowOf = (step) => Math.max(120, step); // the rules are evaluated each minute or more often

// Strip shows where in the range an episode is.
function Strip({ e, span }) {
  const at = (t) => 100 * Math.min(1, Math.max(0, (t - span.from) / (span.to - span.from))), from = at(e.from), to = e.open ? 100 : at(e.to);
  return html`<span class="strip" role="img" aria-label=${when(e.from * 1000) + " to " + (e.open ? "now" : when(e.to * 1000))}><i class=${e.severity === "critical" ? "bad" : "warn"} style=${{ insetInlineStart: Math.min(99, from) + "%", width: Math.max(1, to - from) + "%" }}></i></span>`;
}

// Who lists the alerts of an episode.
function Who({ e, close }) {
  const step = Math.max(10, Math.ceil((e.to - e.from) / 60)), window = windowOf(step), to = e.from + Math.ceil((e.to - e.from) / step) * step;
  const data = useData(async (signal) => (await range(seen(",alertname=" + quote(e.rule) + ",severity=" + quote(e.severity), window), { from: e.from, to, step }, signal))
    .flatMap((s) => episodes(s.values.map(([t, v]) => [Number(t), v]), step, window, to).map((x) => ({ labels: s.metric, ...x }))), [e.rule, e.from, e.to]);
  const list = [columns[0], columns[1], { key: "from", title: "From", width: "9rem", value: (a) => a.from, cell: (a) => html`<span class="num">${when(a.from * 1000)}</span>` }, { key: "length", title: "Length", num: true, width: "7rem", value: (a) => a.to - a.from, cell: (a) => text(a.to - a.from, "seconds") }];
  return html`<${Dialog} title=${e.rule + ", from " + when(e.from * 1000)} close=${close} wide><${Shown} of=${data} lines=${5}>${(rows) => html`<${Table} columns=${list} rows=${rows} id=${(a) => idOf(a) + a.from} name="who" label="alerts" />`}</${Shown}></${Dialog}>`;
}

// History lists when the rules fired in the range, from the series that their evaluation records. It is asked for
// again when the number of firing alerts changes.
function History({ q, firing }) {
  const span = useSpan(useHere().query), window = windowOf(span.step), narrow = useNarrow();
  const [shown, show] = useState(null);
  const data = useData(async (signal) => (await range(`count by (alertname, severity) (${seen("", window)})`, span, signal))
    .flatMap((s) => episodes(s.values.map(([t, v]) => [Number(t), v]), span.step, window, span.to).map((e) => ({ rule: s.metric.alertname, severity: s.metric.severity || "", ...e }))), [span.from, span.to, firing.length]);
  // What fires now began when its first alert did, as said above: its series begins when the rule had held for its time.
  const start = (e) => (e.open && e.from > span.from ? Math.min(e.from, ...firing.filter((a) => a.labels.alertname === e.rule && (a.labels.severity || "") === e.severity).map((a) => Date.parse(a.activeAt) / 1000)) : e.from);
  const list = [
    { key: "rule", title: "Alert", class: "name", width: "15rem", value: (e) => e.rule, cell: (e) => html`<button type="button" class="plain" onClick=${() => show(e)}>${e.rule}</button>` },
    { key: "severity", title: "Severity", width: "7rem", value: (e) => e.severity, cell: (e) => html`<span class=${severe(e.severity)}>${e.severity}</span>` },
    { key: "from", title: "Started", num: true, first: true, width: "10rem", value: start, cell: (e) => html`<span class="num" title=${exactly(start(e) * 1000)}>${e.from <= span.from ? "before " : ""}${when(start(e) * 1000)}</span>` },
    { key: "to", title: "Ended", num: true, width: "10rem", value: (e) => (e.open ? Infinity : e.to), cell: (e) => (e.open ? html`<span class="tag bad">firing</span>` : html`<span class="num" title=${exactly(e.to * 1000)}>${when(e.to * 1000)}</span>`) },
    { key: "length", title: "Length", num: true, width: "7rem", value: (e) => e.to - start(e), cell: (e) => text(e.to - start(e), "seconds") },
    { key: "strip", title: "In the range", width: "12rem", grows: true, cell: (e) => html`<${Strip} e=${e} span=${span} />` },
    { key: "most", title: "Alerts", num: true, width: "6rem", help: "most alerts of this rule at the same time", value: (e) => e.most, cell: (e) => grouped(e.most) },
  ];
  const shownColumns = narrow ? ["rule", "from", "to", "length", "severity", "most"].map((k) => ({ ...list.find((c) => c.key === k), width: k === "rule" ? "10.5rem" : "8.2rem" })) : list;
  return html`<${Card} title="History" note=${length(Math.max(span.step, 60)) + " resolution"} flush><${Shown} of=${data} lines=${4}>${(all) => { const rows = all.filter((e) => !q || e.rule.toLowerCase().includes(q)); return html`<${Table} columns=${shownColumns} rows=${rows} id=${(e) => e.rule + e.severity + e.from} name="past" label="past alerts" empty=${html`<p class="muted reading">${all.length ? "No past alerts match the filter." : "No alerts fired in this range."}</p>`} />`; }}</${Shown}></${Card}>
    ${shown && html`<${Who} e=${shown} close=${() => show(null)} />`}`;
}

// Silences lists the silences that have not ended.
function Silences({ list }) {
  const soon = (s) => (new Date(s.ends_at) - Date.now()) / 1000;
  const of = [
    { key: "matchers", title: "Alerts", class: "name mono", width: "24rem", value: (s) => s.matchers, cell: (s) => html`<span title=${s.matchers}>${s.matchers}</span>` },
    { key: "state", title: "State", width: "6rem", value: (s) => s.state, cell: (s) => html`<span class="tag">${s.state}</span>` },
    { key: "ends", title: "Ends", num: true, first: true, width: "15rem", value: (s) => s.ends_at, cell: (s) => html`<span class="num" title=${exactly(s.ends_at)}>${when(s.ends_at)}, in ${text(soon(s), "seconds")}</span>` },
    { key: "by", title: "Created by", width: "8rem", value: (s) => s.created_by }, { key: "comment", title: "Comment", class: "name", width: "14rem", value: (s) => s.comment, cell: (s) => html`<span title=${s.comment}>${s.comment}</span>` },
    { key: "id", title: "ID", class: "mono", width: "9rem", value: (s) => s.id },
  ];
  return html`<${Card} title="Silences" note=${few(list.length, "silence")} flush><${Table} columns=${of} rows=${list} id=${(s) => s.id} name="silences" label="silences" /><p class="small muted reading">On the server, <code>mete silence end ID</code> ends one.</p></${Card}>`;
}

// limitOf says with what a rule compares its value. A rule with alternatives has a limit for each, beside the
// label value by which they differ.
export function limitOf(query, summary = "") {
  const each = query.split(/\sor\s/).map((q) => [limitIn(q, summary), (/\{\w+="([^"]*)"\}/.exec(q) || [])[1]]).filter(([limit]) => limit);
  return each.map(([limit, of]) => (each.length > 1 && of ? of + " " : "") + limit).join(", ");
}

// metricLimit is a comparison with another metric, at the end of a query.
const metricLimit = /([<>]=?|[=!]=)\s*(?:(?:on|ignoring)\s*\([^)]*\)\s*)?(?:[a-z]+\s+by\s*\([^)]*\)\s*)?\(?\s*([a-zA-Z_:][\w:]*)\s*\)?\s*$/;

// limitIn is the limit where a query ends with one, or goes on with a condition: a number, whose unit is that
// of the value in the rule's summary, or a metric.
function limitIn(query, summary) {
  const m = /([<>]=?|[=!]=)\s*([\d.]+(?:e[+-]?\d+)?)(?:\s*\*\s*([\d.]+))?\s*\)?\s*$/.exec(query.split(/\s(?:and|unless)\s/)[0]);
  if (!m) return (metricLimit.exec(query) || []).slice(1).join(" ");
  const v = Number(m[2]) * Number(m[3] || 1), how = (/\{\{-?\s*\$value([^}]*)\}\}(W|B\/s)?/.exec(summary) || []);
  const says = /Percentage/.test(how[1]) ? Math.round(v * 1000) / 10 + " %" : /Duration/.test(how[1]) ? length(v) : how[2] === "W" ? text(v, "watts") : how[2] ? text(v, "rate") : m[3] ? String(v) : m[2];
  return m[1] + " " + says;
}

// limited says beyond what, and for how long, a rule fires. A comparison with 0 says nothing that its summary does not.
const limited = (r) => [limitOf(r.query, r.annotations && r.annotations.summary).replace(/^== 0$/, ""), r.duration > 0 && "for " + length(r.duration)].filter(Boolean).join(" ");

function Rule({ r }) {
  return html`<li><details><summary><span class=${"tag " + (r.health === "err" ? "bad" : r.type === "alerting" && !isHeartbeat(r) ? tone[r.state] || "" : "")}>${r.health === "err" ? "failing" : r.type !== "alerting" ? "recorded" : isHeartbeat(r) ? "heartbeat" : r.state === "unknown" ? "not evaluated" : r.state}</span><b>${r.name}</b><span class="severity">${r.labels && r.labels.severity && !isHeartbeat(r) && html`<span class="tag">${r.labels.severity}</span>`}</span>${r.type === "alerting" && html`<span class="muted small limit">${limited(r)}</span>`}${r.annotations && r.annotations.summary && html`<span class="muted small about">${describe(r.annotations.summary)}</span>`}</summary>
    <pre>${r.query}</pre>${r.lastError && html`<p class="notice bad">${r.lastError}</p>`}${r.annotations && r.annotations.summary && html`<p>${describe(r.annotations.summary)}${r.annotations.description && html` <span class="muted">${describe(r.annotations.description)}</span>`}</p>`}<div class="bar"><a class="button" href=${href("/query", { expr: r.query })}>Run query</a>${r.lastEvaluation && html`<span class="small muted num">last evaluated ${ago(r.lastEvaluation)}, took ${text(r.evaluationTime, "seconds")}</span>`}</div></details></li>`;
}

// ruleCount says how many of the rules are listed.
export function ruleCount(groups, passes) {
  const all = groups.flatMap((g) => g.rules), n = all.filter(passes).length;
  return (n < all.length ? grouped(n) + " of " : "") + few(all.length, "rule");
}

function Rules({ groups, q, show }) {
  const passes = (r) => (!q || (r.name + r.query).toLowerCase().includes(q)) && (show === "all" || (show === "recording") === (r.type === "recording"));
  return html`<${Card} title="Rules" note=${ruleCount(groups, passes)} aside=${html`<${Segments} label="rules" options=${[["", "alerts"], ["recording", "recorded"], ["all", "all"]]} value=${show} choose=${(v) => put({ show: v }, true)} />`}>
    ${groups.map((g) => ({ g, rules: g.rules.filter(passes) })).filter(({ rules }) => rules.length).map(({ g, rules }) => html`<h3 class="second">${g.name} <span class="muted">every ${length(g.interval)}</span></h3><ul class="rules">${rules.map((r) => html`<${Rule} r=${r} />`)}</ul>`)}</${Card}>`;
}

export function Alerts() {
  const { query } = useHere();
  const data = useData(async (signal) => {
    const [rules, alerts, silences] = await Promise.all([get("/api/v1/rules", { exclude_alerts: "true" }, signal), get("/v1/alerts", {}, signal), get("/v1/silences", {}, signal)]);
    const sums = await instant("sum by (result) (mete_server_alert_requests_total)", undefined, signal).catch((e) => { if (e.name === "AbortError") throw e; return []; }), sum = (result) => sums.filter((s) => s.metric.result === result).reduce((a, s) => a + Number(s.value[1]), 0);
    return { sent: sums.length > 0 ? { taken: sum("taken"), failed: sum("failed") } : null, groups: rules.data.groups, alerts: alerts.alerts.map((a) => ({ ...a, activeAt: a.since })), silences: silences.silences.filter((s) => s.state !== "expired") };
  }, [], 15000);
  const q = (query.q || "").toLowerCase(), show = query.show || "";
  return html`<${Shown} of=${data} lines=${6}>${({ groups, alerts, silences, sent }) => {
    const delivery = sent ? deliveryOf(sent.taken, sent.failed) : "unknown";
    if (groups.length === 0) return html`<${Card} title="Alerts"><${Empty} title="No alerting rules"><span>This server evaluates no rules. A Prometheus server can: it reads the same series from <code>/api/v1</code>.</span><a href="/health">Health shows current problems.</a></${Empty}></${Card}>`;
    const wanted = alerts.filter((a) => !isHeartbeat(a)), of = (k) => [...new Set(wanted.map((a) => a.labels[k]).filter(Boolean))].sort(natural), clusters = of("cluster"), severities = of("severity");
    const passing = wanted.filter((a) => (!q || [a.annotations.summary || "", ...Object.values(a.labels)].some((v) => v.toLowerCase().includes(q))) && (!query.cluster || a.labels.cluster === query.cluster) && (!query.severity || a.labels.severity === query.severity));
    const all = groups.flatMap((g) => g.rules), rules = new Map(all.filter((r) => r.type === "alerting").map((r) => [r.name, r])), shown = byRule(passing), filtered = passing.length < wanted.length;
    return html`<${Card} title="Firing and pending" note=${wanted.length ? (filtered ? grouped(passing.length) + " of " : "") + few(wanted.length, "alert") + ", " + few(byRule(wanted).length, "rule") : ""} aside=${html`<div class="bar">${(clusters.length > 1 || query.cluster) && html`<${Select} name="cluster" label="Cluster" all="all" options=${clusters} />`}${(severities.length > 1 || query.severity) && html`<${Select} name="severity" label="Severity" all="all" options=${severities} />`}<${Search} placeholder="Filter alerts and rules" /></div>`}>
        <${Verdict} alerts=${wanted} failing=${all.filter((r) => r.health === "err")} rules=${all.filter((r) => r.type === "alerting" && !isHeartbeat(r))} />
        ${delivery === "none" && html`<${Unsent} firing=${wanted.filter((a) => a.state === "firing").length} />`}
        ${shown.length === 0 ? filtered && html`<${Filtered} />` : html`<ul class="alerts">${shown.map((g) => html`<${Group} key=${g.rule + g.state + g.severity} g=${g} open=${query.open === g.rule} rule=${rules.get(g.rule)} />`)}</ul>`}
        <${Heartbeat} rules=${all.filter((r) => r.type === "alerting" && isHeartbeat(r))} delivery=${delivery} sent=${sent} firing=${wanted.filter((a) => a.state === "firing").length} /></${Card}>
      ${silences.length > 0 && html`<${Silences} list=${silences} />`}<${History} q=${q} firing=${wanted.filter((a) => a.state === "firing")} /><${Rules} groups=${groups} q=${q} show=${show} />`;
  }}</${Shown}>`;
}

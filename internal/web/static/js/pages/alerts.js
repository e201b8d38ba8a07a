// Alerts: what fires, and what is watched for.
import { html } from "../../vendor/preact.mjs";
import { get } from "../api.js";
import { Card, Shown, Empty, Search, Segments, useData, useHere } from "../ui.js";
import { text, length, when, ago, exactly, few } from "../fmt.js";
import { put, nodeAt, href } from "../route.js";

const tone = { firing: "bad", pending: "warn", inactive: "good" };

const calm = (a) => a.labels.severity === "none";

function Labels({ of }) {
  return html`<span class="labels">${Object.entries(of).filter(([k]) => k !== "alertname").map(([k, v]) => (k === "node" ? html`<a class="tag" href=${nodeAt(v)}>${k}=${v}</a>` : html`<span class="tag">${k}=${v}</span>`))}</span>`;
}

function Firing({ alerts }) {
  const wanted = alerts.filter((a) => !calm(a)).length;
  return html`${wanted === 0 && html`<${Nothing} />`}${alerts.length > 0 && html`<${List} alerts=${alerts} />`}`;
}

function Nothing() {
  return html`<div class="calm"><span class="tick" aria-hidden="true"></span><div><b>Nothing fires</b><div class="muted">No rule finds anything that somebody should look at.</div></div></div>`;
}

function List({ alerts }) {
  return html`<ul class="alerts">${alerts.map((a) => html`<li class=${calm(a) ? "" : tone[a.state]}><div class="row"><b>${a.labels.alertname}</b><span class=${"tag " + (calm(a) ? "" : tone[a.state])}>${a.state}</span><span class="muted end" title=${exactly(a.activeAt)}>since ${when(a.activeAt)}, ${ago(a.activeAt)}</span></div>
    ${(a.annotations.summary || a.annotations.description) && html`<p>${a.annotations.summary} ${a.annotations.description && html`<span class="muted">${a.annotations.description}</span>`}</p>`}<${Labels} of=${a.labels} /></li>`)}</ul>`;
}

function Rule({ r }) {
  return html`<li><details><summary><span class=${"tag " + (r.health === "err" ? "bad" : r.type === "alerting" && !(r.labels && r.labels.severity === "none") ? tone[r.state] || "" : "")}>${r.health === "err" ? "failing" : r.type === "alerting" ? (r.state === "unknown" ? "not yet" : r.state) : "recorded"}</span><b>${r.name}</b>${r.duration > 0 && html`<span class="muted small">for ${length(r.duration)}</span>`}</summary>
    <pre>${r.query}</pre>${r.lastError && html`<p class="notice bad">${r.lastError}</p>`}${r.annotations && r.annotations.summary && html`<p class="muted">${r.annotations.summary}</p>`}<div class="bar"><a class="button" href=${href("/query", { expr: r.query })}>Ask</a>${r.lastEvaluation && html`<span class="small muted num">looked ${ago(r.lastEvaluation)}, in ${text(r.evaluationTime, "seconds")}</span>`}</div></details></li>`;
}

export function Alerts() {
  const { query } = useHere();
  const data = useData(async (signal) => {
    const [rules, alerts] = await Promise.all([get("/api/v1/rules", {}, signal), get("/api/v1/alerts", {}, signal)]);
    return { groups: rules.data.groups, alerts: alerts.data.alerts };
  }, [], 15000);
  const q = (query.q || "").toLowerCase(), show = query.show || "";
  const passes = (r) => (!q || (r.name + r.query).toLowerCase().includes(q)) && (!show || (show === "recording") === (r.type === "recording"));
  return html`<${Shown} of=${data} lines=${6}>${({ groups, alerts }) => html`<${Card} title="Firing and pending" note=${alerts.length ? few(alerts.length, "alert") : ""}>${groups.length === 0 ? html`<${Empty} title="There are no rules here"><span>This server evaluates none, so nothing can fire. Any Prometheus can: it reads the same series from <code>/api/v1</code>.</span><a href="/health">Health shows what needs a look now.</a></${Empty}>` : html`<${Firing} alerts=${[...alerts].sort((a, b) => calm(a) - calm(b) || (a.state < b.state ? -1 : 1))} />`}</${Card}>
    ${groups.length > 0 && html`<${Card} title="Rules" note=${few(groups.reduce((a, g) => a + g.rules.length, 0), "rule")} aside=${html`<div class="bar"><${Segments} label="rules" options=${[["", "all"], ["alerting", "alerts"], ["recording", "recorded"]]} value=${show} choose=${(v) => put({ show: v }, true)} /><${Search} placeholder="Filter rules" /></div>`}>
      ${groups.map((g) => ({ g, rules: g.rules.filter(passes) })).filter(({ rules }) => rules.length).map(({ g, rules }) => html`<h3 class="second">${g.name} <span class="muted">each ${length(g.interval)}</span></h3><ul class="rules">${rules.map((r) => html`<${Rule} r=${r} />`)}</ul>`)}</${Card}>`}`}</${Shown}>`;
}

// Checks of page Health: what works, what does not, and what to do about it.
import { grouped, text, few, ago } from "./fmt.js";
import { isHeartbeat, byRule, deliveryOf } from "./firing.js";
import { isNew } from "./starting.js";
import { href } from "./route.js";

const day = 86400;
// The limits are those of the alerts about certificates and spools. late is how old the latest data of all nodes
// may be, in seconds, and behind that of one node that sends: data as old is as bad as a node that is silent.
const limits = { server: 14 * day, authority: 180 * day, node: 5 * day, spool: 0.8, hours: 3 * 3600, late: 180, behind: 600 };

// folded says up to when the ledger has totals of whole hours; "" before the first hour.
export function folded(lag) { return lag === null || lag > 1e9 ? "" : "hourly totals up to " + text(lag, "seconds") + " ago"; }

function ofNodes(nodes, now) {
  const late = (state) => nodes.filter((n) => n.state === state && !isNew(n, now)), silent = late("silent"), behind = late("behind"), ends = [...silent, ...behind].map((n) => n.booked_through).filter(Boolean).sort();
  const none = nodes.length > 0 && silent.length + behind.length === nodes.length && !(Date.parse(ends.at(-1)) > now - limits.late * 1000), old = behind.some((n) => n.booked_through && now - Date.parse(n.booked_through) > limits.behind * 1000), bad = silent.length > 0 || old || none || (nodes.length > 1 && 2 * behind.length > nodes.length) ? "bad" : behind.length > 0 ? "warn" : nodes.length ? "good" : "";
  const says = [silent.length && `${grouped(silent.length)} silent`, behind.length && `${grouped(behind.length)} behind`, ends.length && `oldest data ${ago(ends[0], now)}`].filter(Boolean);
  const late1 = silent.length + behind.length, all = late1 === nodes.length, last = ends.length ? `, ${all ? "latest" : "oldest"} data ${ago(all ? ends.at(-1) : ends[0], now)}` : "";
  return { key: "nodes", title: "Nodes up to date", state: bad, value: `${grouped(nodes.length - silent.length - behind.length)} of ${grouped(nodes.length)}`, link: "/nodes",
    detail: says.length ? says : [nodes.length ? "all data arrives in time" : "no machine has enrolled"],
    where: silent.length + behind.length <= 3 ? [...silent, ...behind].map((n) => n.name) : [],
    problem: all && nodes.length > 1 ? `No data arrives: all ${few(nodes.length, "node")} are ${behind.length === 0 ? "silent" : silent.length === 0 ? "behind" : "silent or behind"}${last}` : nodes.length === 1 ? `${nodes[0].name} is ${nodes[0].state}${last}`
      : `${grouped(late1)} of ${few(nodes.length, "node")} ${late1 === 1 ? "sends" : "send"} no recent data: ${says.slice(0, -1).join(", ") || says[0]}${last}`,
    action: "Check that mete-agent runs there, and its network path to this server. Agents keep their data and send it later." };
}

// harmless are the reasons of gaps in which nothing is lost.
export const harmless = ["unwatched", "rebooted", "clock-shifted"];

// isNothing reports whether a gap lost nothing and has no length that a page would show: a clock that was set by less than half a second.
export const isNothing = (g) => g.reason === "clock-shifted" && g.seconds < 0.5;

// reporting are the nodes that send data all the time: not those of which only jobs are measured.
export const reporting = (nodes) => nodes.filter((n) => !/ jobs$/.test(n.machine_id || ""));

// sending are the nodes of which data is expected now.
export const sending = (nodes) => reporting(nodes).filter((n) => n.state !== "revoked" && !isNew(n));

function ofGaps(gaps, late, nodes) {
  const lost = gaps.filter((g) => !harmless.includes(g.reason)), sum = (list) => text(list.reduce((a, g) => a + g.seconds, 0), "seconds"), reasons = [...new Set(gaps.map((g) => g.reason))].sort();
  return { key: "gaps", title: "Gaps in this range", state: lost.length ? "warn" : nodes.length ? "good" : "", value: grouped(gaps.length), detail: !nodes.length ? ["no machine has enrolled"] : gaps.length ? [sum(gaps) + " in all", reasons.join(", ")] : [late ? "No gaps so far: late data may show some" : "No gaps: the data is complete"],
    problem: `${few(lost.length, "gap")} in the data, ${sum(lost)} in all`, action: "The table of gaps below shows the reason of each. What is lost is not filled in." };
}

function ofAlerts(alerts, rules) {
  // What is about to fire, and critical, is a warning.
  const pending = rules.filter((r) => r.type === "alerting" && r.state === "pending" && !isHeartbeat(r)), soon = pending.filter((r) => (r.labels || {}).severity === "critical"), names = soon.slice(0, 3).map((r) => r.name).join(", ");
  const failing = rules.filter((r) => r.health === "err"), groups = byRule(alerts), critical = alerts.some((a) => a.labels.severity === "critical");
  const own = rules.filter((r) => r.type === "alerting" && !isHeartbeat(r)), waits = own.length > 0 && own.every((r) => r.state === "unknown");
  return { key: "alerts", title: "Alerts firing", state: rules.length === 0 || (waits && alerts.length === 0) ? "" : critical || failing.length ? "bad" : alerts.length || soon.length ? "warn" : "good", value: grouped(alerts.length), link: "/alerts",
    detail: rules.length === 0 ? ["this server evaluates no rules"] : waits && alerts.length === 0 ? ["not evaluated yet"] : [(groups.length ? few(groups.length, "rule") : "no rule fires") + (rules.some((r) => isHeartbeat(r) && r.state === "firing") ? " besides the heartbeat" : ""), pending.length && `${few(pending.length, "rule")} pending${soon.length ? `, ${soon.length} critical: ${names}` : ""}`, failing.length && few(failing.length, "rule") + " cannot be evaluated"].filter(Boolean),
    problem: groups.length ? groups.slice(0, 3).map((g) => g.rule + (g.alerts.length > 1 ? " × " + grouped(g.alerts.length) : "")).join(", ") + (groups.length > 3 ? ` and ${groups.length - 3} more` : "") + (groups.length === 1 ? " fires" : " fire") + (soon.length ? `; ${names} ${soon.length === 1 ? "is" : "are"} pending` : "") : soon.length && !failing.length ? `${names} (critical) will fire if this lasts` : failing.length ? `Rule ${failing[0].name} cannot be evaluated` : "",
    action: failing.length ? "Page Alerts shows the error of each rule." : "Page Alerts shows what each is about, and how to silence it." };
}

function ofHeartbeat(rules, alerts, m, now) {
  const list = rules.filter((r) => r.type === "alerting" && isHeartbeat(r)), down = list.filter((r) => r.state !== "firing" && r.state !== "unknown"), at = list.map((r) => r.lastEvaluation).filter(Boolean).sort()[0], waits = list.length > 0 && list.every((r) => r.state === "unknown");
  const sent = m.of("mete_server_alert_requests_total", { result: "taken" }), failed = m.of("mete_server_alert_requests_total", { result: "failed" }), to = sent + failed;
  const delivery = deliveryOf(sent, failed), silent = delivery === "none"; // no receiver is configured, or the first notification is on its way
  const is = list.length === 0 ? "absent" : waits ? "waiting" : down.length ? "missing" : delivery === "refused" ? "refused" : !silent ? "alive" : alerts.length > 0 ? "unheard" : "silent";
  const { state, value, tag, problem, action } = heartbeats[is], notifications = `${grouped(sent)} notifications sent, ${grouped(failed)} failed`;
  return { key: "heartbeat", title: "Alert heartbeat", tag: tag || "", state, value: value || "alive", link: "/alerts",
    detail: [list.length === 0 ? "no rule fires at all times" : waits ? "not evaluated yet" : at && "evaluated " + ago(at, now), sent !== null && (to > 0 ? notifications : tag ? "no notification sent since the server started: without --alertmanager or --alert-webhook it has no receiver" : list.length > 0 && "no notification sent yet")].filter(Boolean),
    problem: is === "refused" ? `No notification of alerts was delivered, ${grouped(failed)} failed` : problem || heartbeats.missing.problem, action: action || heartbeats.missing.action };
}

// heartbeats is how the heartbeat is judged. Without a value it is alive; without a problem it has that of a missing one, which is
// shown in bad states only.
const heartbeats = {
  absent: { state: "", value: "none" },
  waiting: { state: "", value: "waiting" },
  missing: { state: "bad", value: "missing", problem: "The heartbeat of alerts is missing: alerting does not work", action: "Check the server's log for errors of rules, then restart the server." },
  refused: { state: "bad", action: "Check the addresses of the receivers, and the server's log." },
  unheard: { state: "warn", tag: "no receiver", problem: "Alerts fire, but no receiver is configured", action: "Start the server with --alertmanager or --alert-webhook." },
  silent: { state: "", tag: "no receiver" },
  alive: { state: "good" },
};

function ofIngest(m, recent) {
  const rows = m.of("mete_server_rows_total"), rate = m.rate("mete_server_rows_total"), queue = m.of("mete_server_queue_rows"), clash = ["conflict", "clone"].map((v) => m.of("mete_server_batches_total", { verdict: v }) || 0).reduce((a, b) => a + b, 0);
  const refused = recent.refused, lately = refused !== null && refused >= 0.5;
  return { key: "ingest", title: "Rows ingested", state: rows === null || rows === 0 ? "" : clash > 0 ? "bad" : lately ? "warn" : "good", value: rows, unit: "count",
    detail: rows === null ? ["not visible to this token"] : [rate === null ? "since the server started" : text(rate, "persecond") + " now", text(queue, "count") + (queue === 1 ? " row waits" : " rows wait"), `${text(m.of("mete_server_refused_total"), "count")} requests rejected`],
    problem: clash > 0 ? few(clash, "batch", "batches") + " in conflict with accepted ones" : `${grouped(Math.round(refused))} requests of agents rejected in the last hour`,
    action: clash > 0 ? "Two machines may use the same agent state: enroll copies of a machine anew." : "The log of the server has the reasons." };
}

function ofLedger(m, recent) {
  const bytes = m.of("mete_server_ledger_bytes"), lag = m.of("mete_server_ledger_hour_lag_seconds"), late = lag !== null && lag < 1e9 && lag > limits.hours;
  return { key: "ledger", title: "Ledger on disk", state: bytes === null ? "" : late ? "warn" : "good", value: bytes, unit: "bytes",
    detail: bytes === null ? ["not visible to this token"] : [recent.grown !== null && (recent.grown < 0 ? "−" : "+") + text(Math.abs(recent.grown), "bytes") + " in 24 h", folded(lag) || "no hourly totals yet", text(m.of("mete_server_metrics_series"), "count") + " time series in memory"].filter(Boolean),
    problem: "Hourly totals are " + text(lag, "seconds") + " late", action: "Check the free space of the server's disk, and its log." };
}

function ofCertificates(m, recent, now) {
  const left = (at) => (at === null ? null : at - now / 1000), server = m.of("mete_server_certificate_expiry_timestamp_seconds", { certificate: "server" }), authority = m.of("mete_server_certificate_expiry_timestamp_seconds", { certificate: "authority" });
  const list = [["server", left(server), limits.server], ["authority", left(authority), limits.authority], ["node", left(recent.expiry), limits.node]].filter(([, v]) => v !== null), due = list.filter(([, v, least]) => v < least), first = list.map(([, v]) => v).sort((a, b) => a - b)[0];
  const says = (v) => (v < 0 ? "expired" : v > 730 * day ? Math.round(v / 365.25 / day) + " years" : text(v, "seconds"));
  return { key: "certificates", title: "First certificate expires in", state: list.length === 0 ? "" : due.length ? "bad" : "good", value: list.length ? says(first) : "–",
    detail: list.length ? list.map(([name, v]) => `${name === "node" ? "agents" : name} ${says(v)}`) : ["not visible to this token"],
    problem: due.map(([name, v]) => `The certificate of ${name === "node" ? "an agent" : "the " + name} ${v < 0 ? "has expired" : "expires in " + says(v)}`).join(". "),
    action: due.some(([name]) => name === "authority") ? "Enroll all machines with a new authority before its end." : "It is renewed automatically long before: the log of its program says why it is not." };
}

function ofBalance(recent) {
  const n = recent.broken;
  return { key: "balance", title: "Failed balance checks", state: n === null ? "" : n > 0 ? "bad" : "good", value: n === null ? "–" : grouped(n), detail: [n === null ? "no data yet" : n > 0 ? "a bug" : "workloads + system + idle = total"],
    problem: `${few(n || 0, "balance check")} failed: parts do not sum to their total`, action: "This is a bug. Please report it with the version and the log of the agent." };
}

function ofSpool(recent) {
  return { key: "spool", title: "Fullest agent spool", state: recent.spool > limits.spool ? "warn" : "good", value: recent.spool, unit: "percent", detail: ["of its limit"],
    problem: "The spool of an agent is " + text(recent.spool, "percent") + " full", action: "When it is full, the agent drops its oldest data. The logs of the agent and the server say why the server does not take it." };
}

// checksOf judges what is known: a list of { key, title, state, tag, value, unit, detail, problem, where,
// action, link }, where has names of nodes. state is good, warn, bad, or empty where there is nothing to judge, of which tag says why. nodes are without
// revoked ones, alerts those that fire, m the metrics of the server, and recent what PromQL knows.
export function checksOf({ nodes, gaps, alerts, rules, m, recent, now = Date.now() }) {
  const list = [ofNodes(reporting(nodes), now)], late = list[0].state === "bad" || list[0].state === "warn";
  list.push(ofGaps(gaps, late, nodes), ofAlerts(alerts, rules), ofHeartbeat(rules, alerts, m, now), ofIngest(m, recent), ofLedger(m, recent), ofCertificates(m, recent, now), ofBalance(recent));
  if (recent.spool > limits.spool) list.push(ofSpool(recent));
  return list.map((c) => ({ ...c, link: c.link && href(c.link) }));
}

// problems are the checks that failed, the worst first.
export const problems = (checks) => ["bad", "warn"].flatMap((state) => checks.filter((c) => c.state === state));

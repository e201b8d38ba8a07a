// The first seconds of a server, before the end of the first window: a countdown and, in mete up,
// the latest second of this machine.
import { html, useState, useEffect } from "../vendor/preact.mjs";
import { get } from "./api.js";
import { Card, useData } from "./ui.js";
import { Chart } from "./chart.js";

const live = document.getElementById("app").dataset.live === "1";

// A window has ten seconds, and is booked within some more.
const first = 12, patience = 90;

// isStarting reports whether no machine has anything booked yet, and that is as expected.
export const isStarting = (nodes, now = Date.now()) => nodes.length > 0 && nodes.every((n) => !n.booked_through && now - Date.parse(n.enrolled_at) < patience * 1000);

// isNew reports whether a machine is too new to be called silent.
export const isNew = (n, now = Date.now()) => !n.booked_through && now - Date.parse(n.enrolled_at) < patience * 1000;

// summaryOf is a snapshot in the form of a summary.
function summaryOf(m) {
  const e = m.energy, parts = (p) => p && { ...p, quality: "measured" }, flow = (f) => f && { in: f.in_bytes_per_second, out: f.out_bytes_per_second, quality: "measured" };
  return { measured: 1, states: {}, nodes: [], sum: { cpus: m.cpus, workloads: (m.workloads || []).filter((w) => w.kind !== "idle" && w.kind !== "system" && w.cpu_cores > 0).length, cpu_cores: parts(m.cpu_cores), memory_bytes: parts(m.memory_bytes), disk_bytes_per_second: flow(m.disk), network_bytes_per_second: flow(m.network),
    power_watts: e && { whole: e.watts, idle: e.idle_watts, workloads: e.watts - e.idle_watts, system: 0, error: e.error_watts, quality: e.quality } } };
}

// usePresent asks for this machine's latest second, while wanted: { now, history }.
export function usePresent(wanted) {
  const [history, add] = useState([]);
  const m = useData((signal) => (live && wanted ? get("/api/v0/snapshot", {}, signal) : Promise.resolve(null)), [wanted], wanted && live ? 1000 : 0);
  const at = m.data ? Date.parse(m.data.time) / 1000 : 0;
  useEffect(() => { if (at) add((h) => [...h, { at, cpu: m.data.cpu_cores, memory: m.data.memory_bytes }].slice(-120)); }, [at]);
  return { now: m.data && summaryOf(m.data), history };
}

// Starting counts down to the first window, and draws what was seen since the page opened.
export function Starting({ nodes, history }) {
  const begin = Math.min(...nodes.map((n) => Date.parse(n.enrolled_at))) / 1000;
  const left = () => Math.ceil(begin + first - Date.now() / 1000);
  const [seconds, set] = useState(left());
  useEffect(() => { const timer = setInterval(() => set(left()), 250); return () => clearInterval(timer); }, [begin]);
  const from = history.length ? Math.floor(history[0].at) : 0, span = { from, to: from + 30, step: 1 };
  const series = (key) => ["workloads", "system"].map((p) => ({ name: p, tone: p === "system" ? "system" : "", values: history.map((h) => [Math.floor(h.at), h[key][p]]) }));
  return html`<section class="card starting" role="status"><div class="calm"><span class="spinner" aria-hidden="true"></span><div><b>Collecting the first 10 s …</b>
      <div class="muted">${seconds > 0 ? html`Charts and tables appear in about <span class="num">${seconds} s</span>.` : "Charts and tables appear in a moment."} ${history.length > 0 && "Until then: the latest seconds of this machine."}</div></div></div></section>
    ${history.length > 1 && html`<div class="grid"><${Card} title="CPU" width="w6"><${Chart} series=${series("cpu")} span=${span} unit="cores" stacked height=${200} label="CPU" /></${Card}>
      <${Card} title="Memory" width="w6"><${Chart} series=${series("memory")} span=${span} unit="bytes" stacked height=${200} label="Memory" /></${Card}></div>`}`;
}

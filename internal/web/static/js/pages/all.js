// All pages, in the order in which they are offered. stopped ones do not say themselves that no node
// sends data any more.
import { html } from "../../vendor/preact.mjs";
import { Empty } from "../ui.js";
import { Overview } from "./overview.js";
import { Live } from "./live.js";
import { Jobs } from "./jobs.js";
import { Job } from "./job.js";
import { Nodes } from "./nodes.js";
import { Node } from "./node.js";
import { Flow } from "./flow.js";
import { Query } from "./query.js";
import { Alerts } from "./alerts.js";
import { Health } from "./health.js";

const is = (path) => (p) => p === path;
const live = document.getElementById("app").dataset.live === "1";

export const pages = [
  { key: "o", path: "/", title: "Overview", icon: "overview", match: is("/"), view: Overview },
  ...(live ? [{ key: "l", path: "/live", title: "Live", icon: "live", match: is("/live"), view: Live, ranged: false, alone: true }] : []),
  { key: "j", path: "/jobs", title: "Jobs", icon: "jobs", match: is("/jobs"), view: Jobs, stopped: true },
  { path: "/job", title: "Job", match: is("/job"), view: Job, stopped: true, under: "/jobs", name: (p, q) => q.job || "Job" },
  { key: "n", path: "/nodes", title: "Nodes", icon: "nodes", match: is("/nodes"), view: Nodes, stopped: true },
  { path: "/node/", title: "Node", match: (p) => p.startsWith("/node/"), view: Node, under: "/nodes", name: (p) => p.slice(6) },
  { key: "e", path: "/flow", title: "Energy flow", icon: "flow", match: is("/flow"), view: Flow, stopped: true },
  { key: "q", path: "/query", title: "Query", icon: "query", match: is("/query"), view: Query, stopped: true },
  { key: "a", path: "/alerts", title: "Alerts", icon: "alerts", match: is("/alerts"), view: Alerts },
  { key: "h", path: "/health", title: "Health", icon: "health", match: is("/health"), view: Health },
];

export function missing({ path }) {
  return html`<section class="card"><${Empty} title=${`There is no page ${path}`}><span>Find, on the side, searches pages, nodes, clusters and jobs.</span><a href="/">Go to Overview</a></${Empty}></section>`;
}

import { html } from "../vendor/preact.mjs";

// Drawn on 24 by 24, in lines of the text's color.
const paths = {
  overview: "M3 13h6V3H3zM15 21h6V11h-6zM3 21h6v-4H3zM15 7h6V3h-6z",
  live: "M12 12h.01M8.5 8.5a5 5 0 0 0 0 7M15.5 8.5a5 5 0 0 1 0 7M5.6 5.6a9 9 0 0 0 0 12.8M18.4 5.6a9 9 0 0 1 0 12.8",
  jobs: "M4 6h16M4 12h16M4 18h10",
  nodes: "M4 4h16v6H4zM4 14h16v6H4zM8 7h.01M8 17h.01",
  flow: "M3 5c8 0 8 14 18 14M3 12c7 0 9-7 18-7M3 19c5 0 6-3 9-5",
  query: "M4 17l5-5-5-5M12 19h8",
  alerts: "M18 8a6 6 0 1 0-12 0c0 7-3 9-3 9h18s-3-2-3-9M10.3 21a2 2 0 0 0 3.4 0",
  health: "M3 12h4l3 8 4-16 3 8h4",
  find: "M10.5 4a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13M15.5 15.5L21 21",
  calendar: "M4 6h16v15H4zM4 10.5h16M8 3v5M16 3v5",
  earlier: "M14.5 5l-7 7 7 7",
  later: "M9.5 5l7 7-7 7",
  widen: "M10.5 4a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13M15.5 15.5L21 21M7.5 10.5h6",
  refresh: "M20 11a8 8 0 1 0-2.3 6.3M20 4v7h-7",
  pause: "M8 5v14M16 5v14",
  play: "M7 4.5l12 7.5-12 7.5z",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M12 2v2M12 20v2M4.9 4.9l1.4 1.4M17.7 17.7l1.4 1.4M2 12h2M20 12h2M4.9 19.1l1.4-1.4M17.7 6.3l1.4-1.4",
  leave: "M9 21H5a2 2 0 0 1-2-2V5a2 2 0 0 1 2-2h4M16 17l5-5-5-5M21 12H9",
  moon: "M21 12.8A9 9 0 1 1 11.2 3a7 7 0 0 0 9.8 9.8",
};

export function Icon({ name }) {
  return html`<svg viewBox="0 0 24 24" width="18" height="18" fill="none" stroke="currentColor" stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d=${paths[name]} /></svg>`;
}

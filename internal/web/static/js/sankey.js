// A flow through levels, drawn by ECharts, which is loaded only for it.
import { html, useEffect, useRef } from "../vendor/preact.mjs";
import { text, brief } from "./fmt.js";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Sankey draws nodes { id, name, depth, tone, value } and links { from, to, value,
// off }. Tooltips are drawn on the canvas: no text becomes an element.
export function Sankey({ nodes, links, unit, height, theme, pick }) {
  const box = useRef(), chart = useRef();
  useEffect(() => {
    let gone = false, resized;
    import("../vendor/echarts.mjs").then((echarts) => {
      if (gone || !box.current) return;
      chart.current = echarts.init(box.current, null, { renderer: "canvas" });
      chart.current.on("click", (e) => { if (e.dataType === "node" && pick) pick(e.data.id); });
      chart.current.setOption(option(nodes, links, unit));
      resized = new ResizeObserver(() => chart.current && chart.current.resize());
      resized.observe(box.current);
    });
    return () => { gone = true; if (resized) resized.disconnect(); if (chart.current) chart.current.dispose(); chart.current = null; };
  }, [theme]);
  useEffect(() => { if (chart.current) chart.current.setOption(option(nodes, links, unit), { replaceMerge: ["series"] }); }, [nodes, links, unit]);
  const says = links.slice(0, 30).map((l) => `${label(nodes, l.from)} to ${label(nodes, l.to)} ${text(l.value, unit)}`).join("; ");
  return html`<div ref=${box} class="sankey" style=${{ height: height + "px" }} role="img" aria-label=${"flow: " + says}></div>`;
}

const label = (nodes, id) => (nodes.find((n) => n.id === id) || { name: id }).name;

function option(nodes, links, unit) {
  const ink = css("--text"), muted = css("--muted"), narrow = innerWidth < 720;
  const deepest = Math.max(...nodes.map((n) => n.depth));
  return {
    animation: !matchMedia("(prefers-reduced-motion: reduce)").matches, animationDuration: 350, textStyle: { fontFamily: css("--sans") },
    tooltip: {
      renderMode: "richText", backgroundColor: css("--raised"), borderColor: css("--line"), textStyle: { color: ink, fontSize: 12 }, confine: true,
      formatter: ({ dataType, data }) => (dataType === "edge" ? `${label(nodes, data.source)} → ${label(nodes, data.target)}\n${text(data.value, unit)}${data.off === null ? "" : "  ± " + text(data.off, unit, data.value)}` : `${data.text}\n${text(data.sum, unit)}${data.off === null ? "" : "  ± " + text(data.off, unit, data.sum)}`),
    },
    series: [{
      type: "sankey", left: 8, right: narrow ? 100 : 230, top: 8, bottom: 8, nodeWidth: 12, nodeGap: 13, nodeAlign: "left", draggable: false, layoutIterations: 48,
      emphasis: { focus: "trajectory" }, lineStyle: { color: "source", opacity: 0.28, curveness: 0.5 },
      label: { color: ink, fontSize: 12, width: narrow ? 92 : 215, overflow: "truncate", formatter: ({ data }) => (narrow && data.depth < deepest ? "" : `{n|${brief(data.text)}}  {v|${text(data.sum, unit)}}`), rich: { n: { color: ink, fontSize: 12 }, v: { color: muted, fontSize: 11 } } },
      data: nodes.map((n) => ({ id: n.id, name: n.id, depth: n.depth, text: n.name, sum: n.value, off: n.off, itemStyle: { color: n.tone ? css(n.tone) : css("--c" + (hash(n.id) % 10 + 1)), borderWidth: 0 } })),
      links: links.map((l) => ({ source: l.from, target: l.to, value: l.value, off: l.off })),
    }],
  };
}

function hash(s) { let h = 7; for (let i = 0; i < s.length; i++) h = (h * 31 + s.charCodeAt(i)) >>> 0; return h; }

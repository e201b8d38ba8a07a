// A flow through levels, drawn by ECharts, which is loaded only for it.
import { html, useEffect, useRef, useState } from "../vendor/preact.mjs";
import { Skeleton, Empty } from "./ui.js";
import { text, brief } from "./fmt.js";
import { tonesOf } from "./chart.js";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Sankey draws nodes { id, key, name, depth, tone, value } and links { from, to, value,
// off }. as is of each value the one whose unit it has. Tooltips are drawn on the canvas: no text becomes an element.
export function Sankey({ nodes, links, unit, height, theme, pick, narrow, as = (v) => v }) {
  const box = useRef(), chart = useRef(), [echarts, load] = useState(null);
  useEffect(() => { let gone = false; import("../vendor/echarts.mjs").then((m) => { if (!gone) load(m); }, () => { if (!gone) load(false); }); return () => { gone = true; }; }, []);
  useEffect(() => {
    if (!echarts) return undefined;
    const drawn = chart.current = echarts.init(box.current, null, { renderer: "canvas" }), resized = new ResizeObserver(() => drawn.resize());
    drawn.on("click", (e) => { if (e.dataType === "node" && pick) pick(e.data.id); });
    drawn.setOption(option(nodes, links, unit, narrow, as));
    resized.observe(box.current);
    return () => { resized.disconnect(); drawn.dispose(); chart.current = null; };
  }, [echarts, theme, narrow]);
  useEffect(() => { if (chart.current) chart.current.setOption(option(nodes, links, unit, narrow, as), { replaceMerge: ["series"] }); }, [nodes, links, unit]);
  const says = links.slice(0, 30).map((l) => `${label(nodes, l.from)} to ${label(nodes, l.to)} ${text(l.value, unit, as(l.value))}`).join("; ");
  if (echarts === false) return html`<${Empty} title="The diagram did not load"><span>Reload the page. The table below has all flows.</span></${Empty}>`;
  return html`${!echarts && html`<${Skeleton} height=${height} />`}<div ref=${box} hidden=${!echarts} class="sankey" style=${{ height: height + "px" }} role="img" aria-label=${"flow: " + says}></div>`;
}

// marks are those of qualities, as Quality draws them.
const marks = { apportioned: " ◐", modelled: " ○" };

const label = (nodes, id) => (nodes.find((n) => n.id === id) || { name: id }).name;

function option(nodes, links, unit, narrow, as) {
  // Levels have the colors among themselves: two things that divide one have different ones.
  const colors = new Map(Array.from({ length: Math.max(...nodes.map((n) => n.depth)) + 1 }, (_, d) => nodes.filter((n) => n.depth === d && !n.tone).map((n) => n.key || n.id)).flatMap((keys) => [...tonesOf(keys)]));
  const ink = css("--text"), muted = css("--muted"), depths = Math.max(...nodes.map((n) => n.depth)) + 1;
  const column = narrow ? Math.floor((innerWidth - 60) / depths) - 20 : 228; // pixels of a name and its value
  // Levels of one node, of which all goes on, are narrower than those that divide.
  const single = (d) => nodes.filter((n) => n.depth === d).length === 1, gaps = Array.from({ length: depths - 1 }, (_, d) => (!narrow && Array.from({ length: d + 1 }, (_, i) => i).every(single) ? 0.62 : 1));
  const all = gaps.reduce((a, g) => a + g, 0), at = (d) => gaps.slice(0, d).reduce((a, g) => a + g, 0) / all, ground = css("--card") + "cc";
  const around = { backgroundColor: ground, borderRadius: 2, textBorderColor: css("--card"), textBorderWidth: 3 }; // flows may pass behind the text
  return {
    animation: false, textStyle: { fontFamily: css("--sans") },
    tooltip: {
      renderMode: "richText", backgroundColor: css("--raised"), borderColor: css("--line"), textStyle: { color: ink, fontSize: 12 }, confine: true,
      formatter: ({ dataType, data }) => { const v = dataType === "edge" ? data.value : data.sum; return `${dataType === "edge" ? label(nodes, data.source) + " → " + label(nodes, data.target) : data.text}\n${text(v, unit, as(v))}${unit === "joules" ? "  ± " + text(data.off, unit, as(v)) : ""}  ${data.quality}`; },
    },
    series: [{
      type: "sankey", left: 8, right: narrow ? column + 6 : 244, top: 8, bottom: narrow ? 22 : 8, nodeWidth: 12, nodeGap: narrow ? 26 : 13, nodeAlign: "left", draggable: false, layoutIterations: 48,
      emphasis: { focus: "trajectory" }, lineStyle: { color: "source", opacity: 0.28, curveness: 0.5 },
      label: { color: ink, fontSize: 12, width: column, overflow: "truncate", formatter: ({ data }) => `{n|${brief(data.text, narrow ? Math.floor(column / 6.5) : 22)}}${narrow ? "\n" : ""}{v|${narrow ? "" : "  "}${text(data.sum, unit, as(data.sum))}${marks[data.quality] || ""}}`, rich: { n: { color: ink, fontSize: 12, lineHeight: 15, ...around }, v: { color: muted, fontSize: 11, lineHeight: 14, ...around } } },
      data: nodes.map((n) => ({ id: n.id, name: n.id, depth: n.depth, ...(all > 0 && all < gaps.length ? { localX: at(n.depth) } : {}), ...(gaps[n.depth] < 1 ? { label: { width: column * 0.7 } } : {}), text: n.name, sum: n.value, off: n.off, quality: n.quality, itemStyle: { color: n.tone ? css(n.tone) : css("--c" + colors.get(n.key || n.id)), borderWidth: 0 } })),
      links: links.map((l) => ({ source: l.from, target: l.to, value: l.value, off: l.off, quality: l.quality })),
    }],
  };
}

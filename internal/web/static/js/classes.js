// Network traffic by class of where its other end is.
import { html } from "../vendor/preact.mjs";
import { Card, Figure, useNarrow } from "./ui.js";
import { text, known } from "./fmt.js";

const classes = [["node", "the same machine"], ["box", "other machines in the same box"], ["internal", "the same zone"], ["zone", "other zones"], ["peering", "networks with which traffic is exchanged directly"], ["internet", "anywhere else"]];

// received and sent are the figures of a class; without a class those of all.
const received = (c) => `network_rx${c}_bytes`, sent = (c) => `network_tx${c}_bytes`;

// classFields are the figures of Classes.
export const classFields = ["", ...classes.map(([c]) => "_" + c), "_unclassified"].flatMap((c) => [received(c), sent(c)]).join(",");

// isClassFigure reports whether a figure is of a class of traffic, or of what has none.
export const isClassFigure = (key) => /^network_[rt]x_(?!bytes|packets)/.test(key);

// isClassified reports whether any class of the traffic of a sum is known.
export const isClassified = (sum) => classes.some(([c]) => known(sum[received("_" + c)]) || known(sum[sent("_" + c)]));

// Classes is the network traffic of a sum by class; it is nothing where no class is known. all names the sum.
export function Classes({ sum, all: whole = "All", width }) {
  const narrow = useNarrow(); // a phone has no room for what classes mean
  if (!sum || !isClassified(sum)) return null;
  const both = (c) => Number(sum[received(c)] || 0) + Number(sum[sent(c)] || 0), all = both("");
  const figure = (key) => html`<td class="num">${known(sum[key]) ? html`<${Figure} v=${sum[key]} unit="bytes" quality=${sum.quality[key]} />` : html`<span class="absent" title="no traffic of this class is known">–</span>`}</td>`;
  const row = (title, c, help) => html`<tr><th scope="row" title=${help}>${title}${help && !narrow && html` <span class="muted">${help}</span>`}</th>${figure(received(c))}${figure(sent(c))}<td class="num">${all > 0 ? text(both(c) / all, "percent") : ""}</td></tr>`;
  return html`<${Card} title="Network by class" note="where the other end is" flush width=${width}><div class="table short" tabindex="0" role="region" aria-label="network by class"><table><thead><tr><th scope="col">Class</th><th scope="col" class="num">Received</th><th scope="col" class="num">Sent</th><th scope="col" class="num" title="of all that was received and sent">Share</th></tr></thead><tbody>
    ${classes.filter(([c]) => known(sum[received("_" + c)]) || known(sum[sent("_" + c)])).map(([c, help]) => row(c, "_" + c, help))}${row("unclassified", "_unclassified", "not known")}</tbody><tfoot>${row(whole, "")}</tfoot></table></div>
    <p class="small muted reading">Agents compare the address of the other end with prefixes and count the bytes. Unclassified is all traffic less the sum of the classes.</p></${Card}>`;
}

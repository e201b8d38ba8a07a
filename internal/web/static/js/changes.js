// The change of what was used against the period of equal length before it.
import { html } from "../vendor/preact.mjs";
import { get } from "./api.js";
import { before, ledger, steps } from "./span.js";
import { useData } from "./ui.js";
import { covered } from "./history.js";
import { text, known } from "./fmt.js";

// percentOf is a change as a part of what was before, with its sign.
export function percentOf(a, b) {
  const c = (a - b) / b;
  return (c < 0 ? "−" : "+") + (Math.abs(c) < 0.0995 ? Math.abs(c * 100).toFixed(1) : Math.abs(c * 100).toFixed(0)) + " %";
}

// overOf is the time that averages of an answer are over, in seconds. That of the answer is of the node that was measured
// longest, of all nodes; an answer by kind says how long its own nodes were.
const overOf = (a) => Math.min(Number(a.averages_over_seconds), covered(a).seconds);

// isMeasured reports whether nine tenths of the range of an answer were measured: else a change would
// be that of what is known.
export const isMeasured = (a) => overOf(a) * 1000 >= 0.9 * (Date.parse(a.to) - Date.parse(a.from));

// The figures of the tiles: of the ledger, and whether idle capacity counts.
const tiles = { cpu: [["cpu_seconds"]], memory: [["memory_byte_seconds"]], power: [["energy_joules"], true], disk: [["disk_read_bytes", "disk_written_bytes"]], network: [["network_rx_bytes", "network_tx_bytes"]] };
const fields = Object.values(tiles).flatMap(([f]) => f).join(",");

// isPartial reports whether the ledger has the figures of a tile of workloads only, not of the rest of the machine.
function isPartial(answer, tile) {
  const rest = answer.groups.find((g) => g.kind === "system");
  return Boolean(rest) && tiles[tile][0].every((f) => !known(rest[f]));
}

// averagesOf are the averages of an answer by kind, by tile; null where a figure is absent.
export function averagesOf(answer) {
  const over = overOf(answer);
  return Object.fromEntries(Object.entries(tiles).map(([tile, [figures, idle]]) => {
    const values = answer.groups.filter((g) => idle || g.kind !== "idle").flatMap((g) => figures.map((f) => g[f])).filter(known);
    return [tile, over > 0 && values.length ? values.reduce((a, v) => a + Number(v), 0) / over : null];
  }));
}

// useChange asks for the averages of a range and of the one before, with compare.
export function useChange({ where = [], span, compare }) {
  const ask = (s, signal) => get("/v1/usage", { by: "kind", where, fields, ...ledger(s) }, signal);
  const data = useData(async (signal) => {
    if (!compare) return null;
    const [now, past] = await Promise.all([ask(span, signal), ask(before(span), signal)]);
    return { answer: now, now: averagesOf(now), past: isMeasured(past) && Date.parse(past.to) <= Date.parse(now.from) ? averagesOf(past) : null };
  }, [where.join("\n"), compare, steps(span)]);
  return (tile, unit) => compare && data.data && html`<${Moved} now=${data.data.now[tile]} past=${data.data.past && data.data.past[tile]} unit=${unit} of=${isPartial(data.data.answer, tile) ? "of workloads " : ""} />`;
}

// movedBy is the difference of two averages as text; "" where one is absent. Less than what is shown of a
// percentage is none.
export function movedBy(now, past, unit) {
  if (!known(now) || !known(past)) return "";
  if (Math.abs(now - past) <= 5e-4 * past) return "unchanged";
  return (now < past ? "−" : "+") + text(Math.abs(now - past), unit) + (past > 0 ? ` (${percentOf(now, past)})` : "");
}

// Moved says what changed: not the latest reading, beside which it stands, but the average of the range.
function Moved({ now, past, unit, of }) {
  const c = movedBy(now, past, unit);
  return c ? html`<span class="moved" title=${`average of this range: ${text(now, unit)}; of the previous period of equal length: ${text(past, unit)}`}>range average ${of}${text(now, unit)}, <span class="num change">${c}</span></span>`
    : html`<span class="absent" title="no comparison: the previous period has no or incomplete data">–</span>`;
}

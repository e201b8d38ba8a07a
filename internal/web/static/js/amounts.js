// Columns of amounts from the ledger.
import { html } from "../vendor/preact.mjs";
import { Figure, largest } from "./ui.js";
import { known, few, common } from "./fmt.js";

// running is the average of one of a job's workloads while it ran: of a sum over time, by the time for
// which each workload was measured.
export const running = (r, key) => (known(r[key]) && r.covered_seconds > 0 ? Number(r[key]) / Number(r.covered_seconds) : null);

// ran is for how long a job ran, at most: its workloads may run one after another, and not all the time. over is the
// time that the answer is about.
const ran = (r, over) => Math.min(Number(r.covered_seconds), Number(over) > 0 ? Number(over) : Infinity, r.first_at && r.last_at ? (Date.parse(r.last_at) - Date.parse(r.first_at)) / 1000 : Infinity);

// together is the average of all workloads of a job while it ran: at least that of one of them.
export const together = (r, key, over) => (known(r[key]) && ran(r, over) > 0 ? Number(r[key]) / ran(r, over) : null);

// reserved is the average of what a job reserves, over the time of the averages of what it used; over all of the time where
// nothing of it was measured yet, as of one whose image is being loaded.
export const reserved = (r, key, over) => together(r.covered_seconds > 0 ? r : { ...r, covered_seconds: Infinity }, key, over);

// limited is for which part of the time of its containers a job had a limit of "cpu" or "memory"; null where that is not known.
export const limited = (r, of) => (known(r[of + "_limited_time_seconds"]) && r.reserved_time_seconds > 0 ? Number(r[of + "_limited_time_seconds"]) / Number(r.reserved_time_seconds) : null);

// Limited is a limit, with the part of the time of the containers for which there was one, if that is not all of it.
export function Limited({ r, of, children }) {
  const part = limited(r, of);
  if (part === 0) return html`<span class="muted" title="no container had a limit">none</span>`;
  return html`${children}${part !== null && part < 1 && html`<span class="off" title="of the containers, for this part of their time, and none for the rest">${Math.min(99, Math.max(1, Math.round(100 * part)))} %</span>`}`;
}

// amounts makes columns of the figures of rows of a usage, each in one unit: that of the total below them, where it is given and
// suits. widths are those of a table with fixed columns, over is the time that the usage is about.
export function amounts(rows, widths = {}, over = 0, total = null) {
  const column = (key, title, unit, help, { value, field = key, off, ...more }) => {
    const like = largest(rows, value), as = () => common(like(), more.sums && total ? Number(value(total)) || 0 : 0, unit);
    const figure = (r, like, as) => html`<${Figure} v=${value(r)} like=${like} as=${as} unit=${unit} quality=${r.quality[field]} off=${off && r[off]} />`;
    return { key, title, num: true, fields: off ? [field, off] : [field], help, width: widths.amount, ...more, value: (r) => (known(value(r)) ? Number(value(r)) : null), cell: (r) => figure(r, like(), as()), sum: (r) => figure(r), part: (r) => figure(r, Math.max(like(), Number(value(r)) || 0), Math.max(as(), Number(value(r)) || 0)) };
  };
  return {
    amount: (key, title, unit, help, more = {}) => column(key, title, unit, help, { value: (r) => r[key], sums: !key.includes("peak"), ...more }),
    whileItRan: (key, title, field, unit, help) => column(key, title, unit, help + " of all workloads of the job while it ran", { field, value: (r) => together(r, field, over), long: title + ", average of the job while it ran" }),
    held: (key, title, field, help, more = {}) => column(key, title, "bytes", help, { field, value: (r) => reserved(r, field, over), reserved: true, long: title + ", average of the job while it ran", width: widths.held, ...more }),
    limit: (key, title, of, field, unit, value, help, more = {}) => {
      const c = column(key, title, unit, help + " of containers that had one", { field, value, reserved: true, width: widths.held, ...more }), cell = (f) => (r) => html`<${Limited} r=${r} of=${of}>${f(r)}</${Limited}>`;
      return { ...c, fields: [field, of + "_limited_time_seconds", "reserved_time_seconds"], cell: cell(c.cell), sum: cell(c.sum) };
    },
    whileRunning: (key, title, field, unit, help) => column(key, title + ", running", unit, help + " of one of its workloads while it ran", { field, value: (r) => running(r, field), long: title + ", average while it ran", width: widths.running }),
  };
}

// jobColumns are the usual columns of lists of what jobs used.
export function jobColumns(rows, total) {
  const { amount, whileRunning } = amounts(rows, {}, 0, total);
  return [amount("cpu_seconds", "CPU", "seconds", "CPU time in the range", { first: true }), whileRunning("memory", "Memory", "memory_byte_seconds", "bytes", "average memory, with page cache,"),
    amount("memory_peak_bytes", "Workload peak", "bytes", "largest memory peak of a workload"), amount("disk_read_bytes", "Read", "bytes", "bytes read from disks"), amount("disk_written_bytes", "Written", "bytes", "bytes written to disks"),
    amount("network_rx_bytes", "Received", "bytes", "bytes received"), whileRunning("power", "Power", "energy_joules", "watts", "average power of the activity"), amount("energy_joules", "Energy", "joules", "energy of the activity, with the possible error", { off: "energy_error_joules" })];
}

// reservedColumns are those of what the parts of a job reserve: none where nothing is known to be.
export function reservedColumns(rows, total) {
  const { amount } = amounts(rows, {}, 0, total);
  return drawable([amount("cpu_reserved_seconds", "CPU reserved", "seconds", "CPU time that pods reserve", { reserved: true }), amount("cpu_unused_seconds", "CPU unused", "seconds", unusedHelp("CPU time"), { reserved: true }),
    amount("memory_reserved_byte_seconds", "Memory reserved", "bytehours", "memory that pods reserve, over time", { reserved: true }), amount("memory_unused_byte_seconds", "Memory unused", "bytehours", unusedHelp("memory, over time,"), { reserved: true }),
    amount("storage_byte_seconds", "Storage", "bytehours", "disk space that is used, over time", { reserved: true }), amount("storage_reserved_byte_seconds", "Storage reserved", "bytehours", "disk space that pods and volumes reserve, over time", { reserved: true })], rows);
}

// unusedHelp says what is not used.
export const unusedHelp = (what) => what + " that pods reserve and do not use; what one of them uses beyond what it reserves is not deducted from what another one does not use";

// drawable leaves out columns of what is reserved that no row has.
export const drawable = (columns, rows) => columns.filter((c) => !c.reserved || rows.some((r) => c.fields.some((f) => known(r[f]))));

// Sums is the foot of a table of what was used: the rows that are not listed, those of what belongs to no job, and all. The first of its
// columns have names of rows. Averages and peaks have no sum. A sum has its own unit, as elsewhere on the page; what belongs to no job has that of the column.
export function Sums({ columns, names, used, what, parts = [] }) {
  const line = (title, t) => html`<tr><th scope="row" colspan=${names}>${title}</th>${columns.slice(names).map((c) => html`<td class="num">${c.sums ? c.sum(t) : ""}</td>`)}</tr>`;
  return used.total && html`<tfoot>${used.rest_groups > 0 && line(few(used.rest_groups, "more " + what), used.rest)}${parts.map((r) => html`<tr class="muted"><th scope="row">${columns[0].cell(r)}</th>${columns.slice(1).map((c) => html`<td class=${(c.num ? "num " : "") + (c.class || "")}>${(c.part || c.cell)(r)}</td>`)}</tr>`)}${line("All", used.total)}</tfoot>`;
}

// jobFields are the figures of jobColumns.
export const jobFields = "cpu_seconds,memory_byte_seconds,memory_peak_bytes,disk_read_bytes,disk_written_bytes,network_rx_bytes,energy_joules,energy_error_joules";

// reservedFields are the figures of reservedColumns.
export const reservedFields = "cpu_reserved_seconds,cpu_unused_seconds,memory_reserved_byte_seconds,memory_unused_byte_seconds,storage_byte_seconds,storage_reserved_byte_seconds";

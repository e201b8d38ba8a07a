// Figures as text: a number, its unit and its quality.

const binary = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const metric = ["", "k", "M", "G", "T", "P"];

// grouped writes a number, or its digits, with a comma between thousands: the point is that of decimals in
// each language of a browser.
export const grouped = (v) => String(v).replace(/^-?\d{4,}/, (n) => n.replace(/\B(?=(\d{3})+$)/g, ","));

// digits writes v with three significant digits.
export function digits(v) {
  const a = Math.abs(v);
  if (v === 0) return "0";
  if (a >= 99.95) return grouped(v.toFixed(0));
  if (a >= 9.995) return v.toFixed(1);
  if (a >= 0.0995) return v.toFixed(2);
  if (a >= 0.00095) return v.toFixed(3);
  return Number(v.toPrecision(2)).toString();
}

// prefixed returns the divisor and the name of the unit with the prefix that suits like.
function prefixed(like, base, names, unit = "") {
  let divisor = 1, i = 0;
  for (let a = Math.abs(like); a >= base * 0.9995 && i < names.length - 1; i++) { a /= base; divisor *= base; }
  return [divisor, names[i] + unit];
}

function small(like, unit) {
  const a = Math.abs(like);
  if (a > 0 && a < 0.9995) return a >= 0.0009995 ? [1e-3, "m" + unit] : [1e-6, "µ" + unit];
  return prefixed(like, 1000, metric, unit);
}

function ofTime(like) {
  const a = Math.abs(like);
  if (a === 0) return [1, "s"];
  return a < 1e-3 ? [1e-6, "µs"] : a < 1 ? [1e-3, "ms"] : a < 120 ? [1, "s"] : a < 7200 ? [60, "min"] : a < 172800 ? [3600, "h"] : [86400, "d"];
}

// Scales: each returns the divisor and the name of the unit in which like, in base units, reads well.
const scales = {
  bytes: (like) => prefixed(like, 1024, binary),
  rate: (like) => prefixed(like, 1024, binary, "/s"),
  cores: () => [1, "cores"],
  watts: (like) => small(like, "W"),
  joules: (like) => (Math.abs(like) >= 3.6e6 ? [3.6e6, "kWh"] : Math.abs(like) >= 3600 ? [3600, "Wh"] : small(like, "J")),
  seconds: ofTime,
  bytehours: (like) => { const [d, u] = prefixed(like / 3600, 1024, binary, " h"); return [d * 3600, u]; },
  taskseconds: (like) => (Math.abs(like) >= 7200 ? [3600, "task h"] : [1, "task s"]),
  percent: () => [0.01, "%"],
};

const whole = (unit) => unit === "B" || unit === "B/s" || unit === "B h"; // bytes have no decimals
const short = (v) => { const [d, u] = prefixed(v, 1000, metric); return [digits(v / d), u]; };

function inScale(unit) {
  return (v, like = v) => { const [d, u] = scales[unit](like); return [whole(u) || (unit === "cores" && v >= 1 && Math.abs(v - Math.round(v)) < 1e-4) ? grouped((v / d).toFixed(0)) : unit === "cores" && Math.abs(v) < 0.0005 ? "0" : digits(v / d), u]; };
}

// Units: each turns a value in base units into its text and its unit, as beside the value like.
export const units = {
  ...Object.fromEntries(Object.keys(scales).map((unit) => [unit, inScale(unit)])),
  count: (v) => (Number.isInteger(v) && Math.abs(v) < 1e5 ? [grouped(v), ""] : short(v)),
  persecond: (v) => { const [n, u] = short(v); return [n, u + "/s"]; },
  none: (v) => [Math.abs(v) >= 1e6 ? short(v).join(" ") : Number.isInteger(v) ? grouped(v) : digits(v), ""],
};

// beside is the value whose unit v has beside a larger one, for the argument as of [Figure]: small energies beside Wh or kWh
// are in Wh, what else there is has its own unit.
export const beside = (v, unit, whole) => (unit === "joules" && Math.abs(whole) >= 3600 ? Math.max(Math.abs(v), 3600) : v);

// common is the value whose unit the values of a column have, of which the largest is like, above their sum: the
// unit of the sum, unless too few digits would be left of the largest.
export function common(like, sum, unit) {
  if (!scales[unit] || !(sum > like)) return like;
  return like / scales[unit](sum)[0] >= 0.1 ? sum : beside(like, unit, sum);
}

// aligned is a value of a column whose largest value is like: all have one unit and the same decimals,
// so that they compare at a glance. Bytes, and what would have less than three digits, have the unit that fits
// them, as in a terminal; energies are as beside the largest, and times of less than two minutes alone have another unit. of is the value that an error stands beside, and has the unit of;
// as is the value that has the unit of the column, if that is not like.
export function aligned(v, unit, like, of = v, as = like) {
  const own = (units[unit] || units.none)(v, of);
  if (!scales[unit] || !(like > 0) || unit === "bytes" || unit === "rate") return own;
  const [d, u] = unit === "seconds" ? inColumn(as || like) : scales[unit](as || like), top = like / d, decimals = whole(u) ? 0 : top >= 99.95 ? 1 : top >= 9.995 ? 2 : 3, least = 10 ** -decimals;
  const little = { joules: 10, seconds: 10 }[unit] || 100;
  if (of !== 0 && Math.abs(of / d) < little * least && scales[unit](of)[1] !== u) return unit === "joules" && d >= 3600 ? inWattHours(v) : unit === "seconds" && Math.abs(of) >= 120 ? [digits(v / d), u] : own;
  if (v !== 0 && Math.abs(v / d) < least / 2) return ["<" + least.toFixed(decimals), u];
  return [v === 0 ? "0" : grouped((v / d).toFixed(decimals)), u];
}

// inColumn is the scale of times in a column: hours up to a thousand, as most of its values are much less than its largest.
const inColumn = (like) => (Math.abs(like) < 3.6e6 && Math.abs(like) >= 172800 ? [3600, "h"] : ofTime(like));

// inWattHours is an energy in Wh with up to three decimals.
function inWattHours(v) { const n = v / 3600; return [v !== 0 && Math.abs(n) < 0.0005 ? "<0.001" : digits(Number(n.toFixed(3))), "Wh"]; }

export const known = (v) => v !== null && v !== undefined && !Number.isNaN(v);

// shareOf is a part of a whole as a number from 0 to 1; null where the part exceeds the whole by more
// than the two readings can differ, as such data is inconsistent.
const tolerance = 0.01;
export const shareOf = (part, whole) => (known(part) && whole > 0 && part >= 0 && part <= whole * (1 + tolerance) ? Math.min(1, part / whole) : null);
export const inconsistent = "absent: the parts do not match the total";

// text is a figure as one string; an absent one is a dash.
export function text(v, unit, like = v) {
  if (!known(v)) return "–";
  const [n, u] = (units[unit] || units.none)(Number(v), Number(like));
  return u ? n + " " + u : n;
}

// bare is a figure without its unit, unitText the unit alone, both as beside the figure like.
export const bare = (v, unit, like = v) => (units[unit] || units.none)(Number(v), Number(like))[0];
export const unitText = (unit, like) => (units[unit] || units.none)(Number(like), Number(like))[1];

// unitOf guesses the unit of a query from the name of its metric, by the naming rules of
// Prometheus, and from whether it takes a rate. A ratio of two of one unit is in percent, any other quotient has none.
export function unitOf(query) {
  const parts = query.replace(/"(?:[^"\\]|\\.)*"|\{[^}]*\}/g, "").split("/");
  if (parts.length > 1) return parts.length === 2 && /[a-z]_[a-z]/.test(parts[1]) && unitOf(parts[0]) !== "none" && unitOf(parts[0]) === unitOf(parts[1]) ? "percent" : "none";
  const rated = /\b(rate|irate|deriv)\s*\(/.test(query), has = (s) => query.includes(s);
  if (/(^|[^-+*/]*)\bcount\b/.test(query) && /^\s*count/.test(query)) return "count";
  if (has("_ratio")) return "percent";
  if (has("watts")) return "watts";
  if (has("_cores") || has("_cpus")) return "cores";
  if (has("bytes_per_second")) return "rate";
  if (has("joules")) return rated ? "watts" : "joules";
  if (has("byte_seconds")) return rated ? "bytes" : "bytehours";
  if (has("bytes")) return rated ? "rate" : "bytes";
  if (/cpu(_user|_system|_throttled)?_seconds/.test(query)) return rated ? "cores" : "seconds";
  if (has("seconds")) return rated ? "percent" : "seconds";
  return rated ? "persecond" : "none";
}

// fieldUnit is the unit of a figure of the ledger, by its key.
export function fieldUnit(key) {
  if (key.endsWith("_byte_seconds")) return "bytehours";
  if (key.endsWith("_bytes")) return "bytes";
  if (key.endsWith("_joules")) return "joules";
  if (key.endsWith("_watts")) return "watts";
  if (key.endsWith("_cores")) return "cores";
  if (key === "pids_seconds") return "taskseconds";
  if (key.endsWith("_seconds")) return "seconds";
  return "count";
}

export const qualities = {
  measured: "measured: read from a counter or a meter",
  apportioned: "apportioned: a measured total, divided by a rule",
  modelled: "modelled: computed by a model, as there is no meter",
  absent: "absent: no data, which is not zero",
};
const order = ["measured", "apportioned", "modelled"];

// worst is the quality of a sum.
export const worst = (list) => order[Math.max(-1, ...list.map((q) => order.indexOf(q)))] || "absent";

// length is a round span of seconds as text.
export const length = (s) => (s % 86400 === 0 && s > 0 ? s / 86400 + " d" : s % 3600 === 0 && s > 0 ? s / 3600 + " h" : s % 60 === 0 && s > 0 ? s / 60 + " min" : s + " s");

// ago is the time since an instant as text.
export function ago(date, now = Date.now()) {
  const s = Math.round((now - new Date(date)) / 1000);
  return s < 1 ? "now" : (s < 120 ? s + " s" : s < 7200 ? Math.round(s / 60) + " min" : s < 172800 ? Math.round(s / 3600) + " h" : Math.round(s / 86400) + " d") + " ago";
}

// Clocks have 24 hours, as the times of the commands.
export const hours = { hourCycle: "h23" };
const shortDay = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" }), dayOfYear = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", year: "numeric" });
const shortTime = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", ...hours });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", ...hours });
const long = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", ...hours });
export const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
// dayOf is a day, with the year if it is another one than now.
export const dayOf = (date, now = Date.now()) => { const d = new Date(date); return (d.getFullYear() === new Date(now).getFullYear() ? shortDay : dayOfYear).format(d); };
export const when = (date) => dayOf(date) + ", " + shortTime.format(new Date(date));
// at is an instant in few words: of today its time, else its day too.
export const at = (date, now = Date.now()) => (new Date(date).toDateString() === new Date(now).toDateString() ? shortTime.format(new Date(date)) : when(date));
export const time = (date) => clock.format(new Date(date));
export const exactly = (date) => long.format(new Date(date)) + " " + zone;

// brief shortens a name for a legend: a path to its end, an id to both of its ends.
export function brief(name, most = 26) {
  if (name.length <= most) return name;
  const last = name.startsWith("/") ? name.slice(name.lastIndexOf("/") + 1) : name;
  if (last.length <= most - 2) return last === name ? last : "…/" + last;
  return last.slice(0, most - 9) + "…" + last.slice(-6);
}

// ticks writes the instants of an axis, so many seconds apart, in the time zone of the browser.
const minute = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", ...hours });
export function ticks(at, apart) {
  return at.map((t) => { const d = new Date(t * 1000); return apart >= 86400 || (apart >= 3600 && d.getHours() === 0 && d.getMinutes() === 0) ? dayOf(d) : apart < 60 ? clock.format(d) : minute.format(d); });
}

// few is a whole number with its noun.
export const few = (n, one, many = one + "s") => grouped(n) + " " + (n === 1 ? one : many);

// shellWord quotes a word of a command where a shell could read it in another way.
export const shellWord = (s) => (/^[\w=.:/~-]+$/.test(s) ? s : "'" + s.replaceAll("'", "'\\''") + "'");

// serverFlag is the flag that a command needs for the server of this page: none for that of mete up at its own
// address, which commands find by themselves.
export const serverFlag = (origin = location.origin) => (origin.endsWith("//127.0.0.1:9797") ? "" : " --server " + shellWord(origin));

// Numbers, sizes and times as text. Pure, without a document: `node --test` runs its tests.

const NUMBER = new Intl.NumberFormat("en-US");
const COMPACT = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
/** @type {[number, string][]} */
const UNITS = [[86_400, "d"], [3_600, "h"], [60, "min"], [1, "s"]];
/** @type {[number, string][]} */
const SIZES = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];
export const ABSENT = "–";

/** A whole number with separators; a dash if it is not known. */
export function formatNumber(value) {
  return value == null ? ABSENT : NUMBER.format(Math.round(value));
}

/** A number in up to five characters, for tiles and axes: 0.5, 12.3K. */
export function formatCompact(value) {
  if (value == null) return ABSENT;
  return Math.abs(value) < 10_000 ? formatRate(value) : COMPACT.format(value);
}

/** A rate per second: 0.3, 12, 1,024. */
export function formatRate(value) {
  if (value == null) return ABSENT;
  return Math.abs(value) < 10 && value !== Math.round(value) ? value.toFixed(1) : formatNumber(value);
}

/** A size in bytes as KiB, MiB … */
export function formatSize(bytes) {
  if (bytes == null) return ABSENT;
  const unit = SIZES.find(([size]) => Math.abs(bytes) >= size);
  return unit ? `${Number((bytes / unit[0]).toPrecision(3))} ${unit[1]}` : `${formatNumber(bytes)} B`;
}

/** A length of time in its two largest units: 250 ms, 12 s, 1 h 5 min. */
export function formatDuration(ms) {
  if (ms == null) return ABSENT;
  const sign = ms < 0 ? "−" : "";
  const length = Math.abs(ms);
  if (length < 1_000) return `${sign}${Math.round(length)} ms`;
  const seconds = Math.floor(length / 1_000);
  const index = UNITS.findIndex(([size]) => seconds >= size);
  const [size, unit] = UNITS[index];
  const rest = index + 1 < UNITS.length ? Math.floor((seconds % size) / UNITS[index + 1][0]) : 0;
  return `${sign}${Math.floor(seconds / size)} ${unit}` + (rest ? ` ${rest} ${UNITS[index + 1][1]}` : "");
}

/** A length of time of so many seconds; a dash if it is not known. */
export function formatSeconds(seconds) {
  return seconds == null ? ABSENT : formatDuration(seconds * 1_000);
}

/** In which time no message of a subscription is unfinished: a time, never, or a dash if a rate is not known. */
export function formatDrain(row) {
  return row.drain_s == null && row.arriving_per_s != null && row.finished_per_s != null ? "never" : formatSeconds(row.drain_s);
}

/** A time relative to another one: "3 min ago", "in 2 h". */
export function formatRelative(ms, nowMs) {
  if (ms == null) return ABSENT;
  const distance = ms - nowMs;
  if (Math.abs(distance) < 1_000) return "now";
  return distance < 0 ? `${formatDuration(-distance)} ago` : `in ${formatDuration(distance)}`;
}

/** A time as `2026-11-28 19:38:15.250`, in UTC or in the browser's zone. */
export function formatTime(ms, utc = true) {
  if (ms == null) return ABSENT;
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return String(ms);
  const shifted = utc ? at : new Date(ms - at.getTimezoneOffset() * 60_000);
  const text = shifted.toISOString().replace("T", " ").replace("Z", "");
  return text.endsWith(".000") ? text.slice(0, -4) : text;
}

/** "1 key", "3 keys". */
export function count(number, noun, plural = `${noun}s`) {
  return `${formatNumber(number)} ${number === 1 ? noun : plural}`;
}

const CONTROLS = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Text from outside with its control and direction characters shown as code points, so that no name can
 * change how the page reads. `keepLines`: line ends and tabs stay, for bodies. */
export function visible(text, keepLines = false) {
  return String(text ?? "").replace(CONTROLS, (character) => {
    if (keepLines && (character === "\n" || character === "\t")) return character;
    const code = character.charCodeAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

/** The first characters of a text, with an ellipsis if there are more. */
export function shorten(text, length) {
  const characters = String(text ?? "");
  return characters.length > length ? `${characters.slice(0, length - 1)}…` : characters;
}

/** A word of a command, quoted for a POSIX shell. */
export function quoteArgument(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? String(text) : `'${String(text).replaceAll("'", `'"'"'`)}'`;
}

/** A command line: `words` of the command, its options by name (true: a flag; empty: left out), its arguments. */
export function commandLine(words, args, options = {}) {
  const set = Object.entries(options).filter(([, value]) => value != null && value !== "" && value !== false);
  const parts = set.map(([name, value]) => (value === true ? `--${name}` : `--${name} ${quoteArgument(value)}`));
  if (args.some((each) => String(each).startsWith("-"))) parts.push("--");
  return ["ddmq", words, ...parts, ...args.map(quoteArgument)].join(" ");
}

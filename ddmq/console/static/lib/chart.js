// A chart of values over time (uPlot), with gaps where nothing is known, a zero line, and a table for readers.
import { useEffect, useRef } from "../vendor/hooks.js";
import { useData } from "./api.js";
import { formatCompact, formatTime } from "./format.js";
import { html } from "./html.js";
import { inUtc, Loaded } from "./parts.js";

const HEIGHT = 19; // as all sizes here, in units of the root's font
const DASHES = [[], [6, 4], [2, 3]]; // so that lines differ without their colours
const NAMES = { in_per_s: "sent/s", delivered_per_s: "delivered/s", acked_per_s: "acknowledged/s", lag: "not committed", oldest_wait_s: "oldest waits, s", failed_per_s: "failed/s" };
let library = null;

function loadLibrary() {
  if (!library) {
    const href = new URL("../vendor/uplot.css", import.meta.url).href;
    document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href }));
    library = import("../vendor/uplot.js").then((module) => module.default);
  }
  return library;
}

/** Return the function with which uPlot reads a colour of the theme whenever it draws. */
function colour(name) {
  return () => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function Chart({ times, lines, label }) {
  const holder = useRef(null);
  useEffect(() => {
    let plot = null;
    let gone = false;
    const element = holder.current;
    const unit = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const size = () => ({ width: Math.max(200, element.clientWidth), height: HEIGHT * unit });
    const resized = new ResizeObserver(() => plot?.setSize(size()));
    const redraw = () => plot?.redraw();
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", redraw);
    loadLibrary().then((UPlot) => {
      if (gone) return;
      const axis = { font: `${1.2 * unit}px system-ui`, stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
      const options = {
        ...size(),
        legend: { show: lines.length > 1, live: false },
        scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.1 : 1] } },
        axes: [{ ...axis, space: 8 * unit, values: (_, seconds) => seconds.map((each) => formatTime(each * 1_000, inUtc.value).slice(11, 19).replace(/:00$/, "")) }, { ...axis, size: 5.6 * unit, values: (_, values) => values.map((each) => (each < 10 ? each : formatCompact(each))) }],
        series: [{}, ...lines.map(([name], index) => ({ label: NAMES[name] ?? name, stroke: [colour("--chart"), colour("--warn"), colour("--good")][index % 3], width: 1.8, dash: DASHES[index % 3], spanGaps: false, points: { show: false } }))],
      };
      plot = new UPlot(options, [times, ...lines.map(([, values]) => values)], element);
      resized.observe(element);
    });
    return () => {
      gone = true;
      resized.disconnect();
      dark.removeEventListener("change", redraw);
      plot?.destroy();
    };
  }, [times, lines]);
  return html`<div class="chart" ref=${holder} role="img" aria-label=${label}></div>`;
}

/** The history of a topic, of a subscription or of everything in the last ten minutes. */
export function History({ query, series }) {
  const state = useData("/history", { ...query, series: series.join(",") }, { every: 10_000 });
  return html`<${Loaded} state=${state} absent="No history is recorded of it, because others are busier.">${(answer) => {
    const lines = series.filter((name) => answer.series[name]).map((name) => [name, answer.series[name]]);
    const times = (lines[0]?.[1] ?? []).map((_, index) => answer.from_ms / 1_000 + index * answer.step_s);
    if (!times.length) return html`<p class="soft">No history yet.</p>`;
    const latest = lines.map(([name, values]) => `${NAMES[name] ?? name}: now ${formatCompact(values.findLast((value) => value != null))}`).join(", ");
    return html`<${Chart} times=${times} lines=${lines} label=${`${latest}, since ${formatTime(answer.from_ms)}`} /><p class="soft">${latest}</p>`;
  }}<//>`;
}

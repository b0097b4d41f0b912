// Charts as SVG: a line of the last minutes, bars over time, and the spans of a story.
import { html } from "./html.js";
import { formatCompact } from "./format.js";

/** Points of a line in a box; values that are not known leave a gap. The zero line is always inside. */
export function linePaths(values, width, height, pad = 1) {
  const known = values.filter((value) => value != null);
  const top = Math.max(...known, 0) || 1;
  const x = (index) => (values.length > 1 ? (index * width) / (values.length - 1) : 0);
  const y = (value) => height - pad - (value / top) * (height - 2 * pad);
  const lines = [];
  let line = [];
  values.forEach((value, index) => {
    if (value == null) {
      if (line.length) lines.push(line);
      line = [];
    } else {
      line.push(`${x(index).toFixed(1)},${y(value).toFixed(1)}`);
    }
  });
  if (line.length) lines.push(line);
  return { top, lines };
}

/** A line without axes, for a tile. `label` says in words what it shows. */
export function Sparkline({ values, label, width = 120, height = 28 }) {
  const { lines, top } = linePaths(values ?? [], width, height, 2);
  if (!lines.length) return html`<svg class="spark" viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${`${label}: not known`}></svg>`;
  return html`<svg class="spark" viewBox=${`0 0 ${width} ${height}`} preserveAspectRatio="none" role="img" aria-label=${`${label}: at most ${formatCompact(top)} in the last minute`}>
    <line x1="0" x2=${width} y1=${height - 0.5} y2=${height - 0.5} class="zero" />
    ${lines.map((line) => (line.length > 1
      ? html`<polyline points=${line.join(" ")} vector-effect="non-scaling-stroke" />`
      : html`<circle cx=${line[0].split(",")[0]} cy=${line[0].split(",")[1]} r="1.5" />`))}
  </svg>`;
}

// Bars over time from which a stretch can be selected, by dragging or with the keyboard.
import { useRef, useState } from "../vendor/hooks.js";
import { formatCompact, formatTime } from "./format.js";
import { html } from "./html.js";
import { inUtc } from "./parts.js";

const WIDTH = 1_000;
const HEIGHT = 150;
const FOOT = 20;

/** The stretch [from, to) of bars between two positions, in any order. */
export function stretch(first, last, bars) {
  const [from, to] = [Math.min(first, last), Math.max(first, last)];
  return [Math.max(0, from), Math.min(bars - 1, to) + 1];
}

/** `buckets`: the numbers, one for each bar; `fromMs`, `stepMs`: their times. `onSelect(fromMs, toMs)`. */
export function Timeline({ buckets, fromMs, stepMs, selected, onSelect, label }) {
  const svg = useRef(null);
  const [drag, setDrag] = useState(null);
  const [cursor, setCursor] = useState(0);
  const top = Math.max(...buckets, 1);
  const width = WIDTH / buckets.length;
  const barOf = (event) => {
    const box = svg.current.getBoundingClientRect();
    return Math.min(buckets.length - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * buckets.length)));
  };
  const timeOf = (bar) => fromMs + bar * stepMs;
  const finish = (first, last) => {
    const [from, to] = stretch(first, last, buckets.length);
    onSelect(timeOf(from), timeOf(to));
    setDrag(null);
  };
  const onKey = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) {
      const next = Math.min(buckets.length - 1, Math.max(0, cursor + step));
      setCursor(next);
      if (event.shiftKey) setDrag([drag?.[0] ?? cursor, next]);
      event.preventDefault();
    } else if (event.key === "Enter") {
      finish(...(drag ?? [cursor, cursor]));
      event.preventDefault();
    }
  };
  const marked = drag ? stretch(...drag, buckets.length) : selected ? [(selected[0] - fromMs) / stepMs, (selected[1] - fromMs) / stepMs] : null;
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => Math.round(share * buckets.length));
  return html`<svg ref=${svg} class="timeline" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" tabindex="0" role="application"
    aria-label=${`${label}. Arrow keys move, Shift and arrow keys select, Enter applies. At the cursor: ${formatCompact(buckets[cursor])} at ${formatTime(timeOf(cursor), inUtc.value)}`}
    onPointerDown=${(event) => { svg.current.setPointerCapture(event.pointerId); setDrag([barOf(event), barOf(event)]); }}
    onPointerMove=${(event) => drag && event.buttons && setDrag([drag[0], barOf(event)])}
    onPointerUp=${() => drag && finish(...drag)} onKeyDown=${onKey}>
    ${buckets.map((value, bar) => value > 0 && html`<rect class="bar" x=${bar * width} width=${Math.max(1, width - 1)} y=${(HEIGHT - FOOT) * (1 - value / top)} height=${((HEIGHT - FOOT) * value) / top}><title>${formatCompact(value)} · ${formatTime(timeOf(bar), inUtc.value)}</title></rect>`)}
    <line x1="0" x2=${WIDTH} y1=${HEIGHT - FOOT} y2=${HEIGHT - FOOT} class="zero" />
    ${marked && html`<rect class="chosen" x=${marked[0] * width} width=${(marked[1] - marked[0]) * width} y="0" height=${HEIGHT - FOOT} />`}
  </svg><div class="axis soft">${ticks.map((bar) => html`<span>${formatTime(timeOf(bar), inUtc.value).slice(5, 16)}</span>`)}</div>`;
}

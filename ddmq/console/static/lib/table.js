// A table that becomes cards on narrow screens, with pages, and with rows that can be selected.
import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { count, formatNumber, visible } from "./format.js";
import { html } from "./html.js";
import { setQuery } from "./route.js";

const CHUNK = 25;
const ROW_PX = 31; // of rows that have not been in the document yet
const NEAR_PX = 1_000;

/** Rows that are in the document only while they are near the window, so that a long list scrolls smoothly. */
function Chunk({ long, first, children }) {
  const body = useRef(null);
  const [height, setHeight] = useState(first ? 0 : CHUNK * ROW_PX); // of the rows while they are away
  useEffect(() => {
    if (!long) return undefined;
    const observer = new IntersectionObserver((entries) => {
      const { isIntersecting, boundingClientRect } = entries.at(-1);
      setHeight(isIntersecting || body.current.contains(document.activeElement) ? 0 : boundingClientRect.height);
    }, { rootMargin: `${NEAR_PX}px` });
    observer.observe(body.current);
    return () => observer.disconnect();
  }, [long]);
  return html`<tbody ref=${body}>${long && height ? html`<tr style=${{ height: `${height}px` }} />` : children()}</tbody>`;
}

/** Keep the widths of columns, which else change with the rows that are in the document. */
function useFixedWidths(table, fixed) {
  useEffect(() => {
    if (!fixed || innerWidth < 561) return undefined;
    const { style, rows, offsetWidth } = table.current;
    const heads = [...rows[0].cells];
    const widths = heads.map((head) => `${(100 * head.offsetWidth) / offsetWidth}%`);
    const apply = (layout, values) => {
      style.tableLayout = layout;
      heads.forEach((head, index) => (head.style.width = values[index] ?? ""));
    };
    apply("fixed", widths);
    return () => apply("", []);
  }, [fixed]);
}

/** Columns are {head, cell(row), number, wide}. `selection`: a Set of row keys, changed by `onSelect`. */
export function Table({ rows, empty = "Nothing here.", ...rest }) {
  return rows.length ? html`<${Rows} rows=${rows} ...${rest} />` : html`<p class="soft empty">${empty}</p>`;
}

function Rows({ columns, rows, rowKey, label, selection, onSelect }) {
  const keys = rows.map(rowKey);
  const all = selection && keys.every((key) => selection.has(key));
  const table = useRef(null);
  const long = rows.length > 2 * CHUNK;
  useFixedWidths(table, long);
  const choose = (chosen, on) => {
    const next = new Set(selection);
    for (const key of chosen) on ? next.add(key) : next.delete(key);
    onSelect(next);
  };
  const line = (row, key, index) => html`<tr key=${key} aria-rowindex=${index + 2}>
    ${selection && html`<td class="choose" data-head=""><input type="checkbox" aria-label=${`select ${visible(key)}`} checked=${selection.has(key)} onChange=${(event) => choose([key], event.target.checked)} /></td>`}
    ${columns.map((column) => html`<td class=${`${column.number ? "n" : ""} ${column.wide ? "wide" : ""}`} data-head=${column.head}><div>${column.cell(row)}</div></td>`)}
  </tr>`;
  const starts = rows.map((_, index) => index).filter((index) => index % CHUNK === 0);
  return html`<div class="scroll" tabindex="0" role="group" aria-label=${label}>
    <table class="stack" ref=${table} aria-rowcount=${rows.length + 1}>
      <thead><tr aria-rowindex="1">
        ${selection && html`<th class="choose"><input type="checkbox" aria-label="select all on this page" checked=${all} onChange=${(event) => choose(keys, event.target.checked)} /></th>`}
        ${columns.map((column) => html`<th class=${column.number ? "n" : ""} scope="col">${column.head}</th>`)}
      </tr></thead>
      ${starts.map((start) => html`<${Chunk} key=${start} long=${long} first=${!start}>${() => rows.slice(start, start + CHUNK).map((row, index) => line(row, keys[start + index], start + index))}<//>`)}
    </table>
  </div>`;
}

/** What a page of a list shows, and the way to the next one. `answer`: the envelope of a list. `cursor`: the
 * query value with the position: "after", or "more" for the second list of a page. `onEnd`: fetches more rows
 * when they are scrolled to. */
export function Pager({ answer, shown, noun, plural, query, cursor = "after", onEnd }) {
  const end = useRef(null);
  useEffect(() => {
    const look = () => end.current.getBoundingClientRect().top < innerHeight + NEAR_PX && onEnd?.();
    addEventListener("scroll", look);
    return () => removeEventListener("scroll", look);
  });
  const more = answer.next != null && answer.next !== "";
  const total = answer.total;
  const first = !query.get(cursor);
  const text = total != null ? `${formatNumber(shown)} of ${answer.exact === false ? "at least " : ""}${count(total, noun, plural)}` : count(shown, noun, plural);
  return html`<p class="pager" ref=${end}><span>${text}</span>
    ${!first && html`<button type="button" onClick=${() => setQuery({ [cursor]: "" }, { replace: false })}>First page</button>`}
    ${more && html`<button type="button" onClick=${() => setQuery({ [cursor]: answer.next }, { replace: false })}>Next page</button>`}
  </p>`;
}

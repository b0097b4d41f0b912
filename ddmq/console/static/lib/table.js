// A table that becomes cards on narrow screens, with pages, and with rows that can be selected.
import { count, formatNumber, visible } from "./format.js";
import { html } from "./html.js";
import { setQuery } from "./route.js";

/** Columns are {head, cell(row), number, wide}. `selection`: a Set of row keys, changed by `onSelect`. */
export function Table({ columns, rows, rowKey, label, selection, onSelect, empty = "Nothing here." }) {
  if (!rows.length) return html`<p class="soft empty">${empty}</p>`;
  const keys = rows.map(rowKey);
  const all = selection && keys.every((key) => selection.has(key));
  const choose = (chosen, on) => {
    const next = new Set(selection);
    for (const key of chosen) on ? next.add(key) : next.delete(key);
    onSelect(next);
  };
  return html`<div class="scroll" tabindex="0" role="group" aria-label=${label}>
    <table class="stack">
      <thead><tr>
        ${selection && html`<th class="choose"><input type="checkbox" aria-label="select all on this page" checked=${all} onChange=${(event) => choose(keys, event.target.checked)} /></th>`}
        ${columns.map((column) => html`<th class=${column.number ? "n" : ""} scope="col">${column.head}</th>`)}
      </tr></thead>
      <tbody>${rows.map((row, index) => html`<tr key=${keys[index]}>
        ${selection && html`<td class="choose" data-head=""><input type="checkbox" aria-label=${`select ${visible(keys[index])}`} checked=${selection.has(keys[index])} onChange=${(event) => choose([keys[index]], event.target.checked)} /></td>`}
        ${columns.map((column) => html`<td class=${`${column.number ? "n" : ""} ${column.wide ? "wide" : ""}`} data-head=${column.head}><div>${column.cell(row)}</div></td>`)}
      </tr>`)}</tbody>
    </table>
  </div>`;
}

/** What a page of a list shows, and the way to the next one. `answer`: the envelope of a list. `cursor`: the
 * query value with the position: "after", or "more" for the second list of a page. */
export function Pager({ answer, shown, noun, plural, query, cursor = "after" }) {
  const more = answer.next != null && answer.next !== "";
  const total = answer.total;
  const first = !query.get(cursor);
  const text = total != null ? `${formatNumber(shown)} of ${answer.exact === false ? "at least " : ""}${count(total, noun, plural)}` : count(shown, noun, plural);
  return html`<p class="pager"><span>${text}</span>
    ${!first && html`<button type="button" onClick=${() => setQuery({ [cursor]: "" }, { replace: false })}>First page</button>`}
    ${more && html`<button type="button" onClick=${() => setQuery({ [cursor]: answer.next }, { replace: false })}>Next page</button>`}
  </p>`;
}

// Blocked and parked keys of all groups: by error, with what waits behind them, and actions on all that match.
import { useState } from "../vendor/hooks.js";
import { listing, useData } from "../lib/api.js";
import { openOperation } from "../lib/actions.js";
import { ABSENT, count, formatNumber, shorten, visible } from "../lib/format.js";
import { html } from "../lib/html.js";
import { Badge, Card, Chips, Filter, GroupLink, Head, Loaded, Missing, Name, Time, TopicLink } from "../lib/parts.js";
import { link, readFilter, setQuery } from "../lib/route.js";
import { Pager, Table } from "../lib/table.js";

const FILTERS = ["group", "state", "error", "text"];
const STATES = ["retrying", "in flight", "parked", "ready"];
const COLUMNS = [
  { head: "group", cell: (row) => html`<${GroupLink} group=${row.group} />` },
  { head: "key", cell: (row) => html`<code><${Name} text=${shorten(row.key, 80)} /></code>` },
  { head: "state", cell: (row) => html`<${Badge} kind=${row.state === "retrying" ? "warn" : "plain"}>${row.state}<//>` },
  { head: "failing since", cell: (row) => html`<${Time} ms=${row.failing_since_ms} />` },
  { head: "tries", number: true, cell: (row) => formatNumber(row.attempts) },
  { head: "waiting", number: true, cell: (row) => `${formatNumber(row.waiting)}${row.more ? "+" : ""}` },
  { head: "first message", cell: (row) => (row.topic ? html`<${TopicLink} topic=${row.topic} /> ${row.offset == null || row.offset < 0 ? "" : html`<a href=${link(["topics", row.topic], { queue: row.queue_id, offset: row.offset })}>${row.queue_id}/${formatNumber(row.offset)}</a>`}` : ABSENT) },
  { head: "last error", wide: true, cell: (row) => html`<span class="soft">${visible(shorten(row.error, 200))}</span>` },
];
const WORDS = {
  park: ["Park", "Parked keys wait until they are replayed. Other keys go on.", false],
  replay: ["Replay", "The first message of each key is delivered again at once, then those behind it.", false],
  skip: ["Skip", "The first message of each key becomes a dead letter, and the next one is delivered.", true],
};

function act(action, filter, what) {
  const [verb, note, danger] = WORDS[action];
  openOperation({ title: `${verb} ${what}`, verb, note, danger, body: { kind: "keys", action, filter } });
}

function Actions({ filter, what }) {
  return html`<span class="actions">${Object.keys(WORDS).map((action) => html`<button type="button" onClick=${() => act(action, filter, what)}>${WORDS[action][0]}…</button>`)}</span>`;
}

function Errors({ answer, group }) {
  if (!answer.by_error?.length) return null;
  return html`<${Card} title="By error" note=${group ? "" : "Choose a group to act on all keys with one error."}>
    ${answer.by_error.map((row) => html`<div class="cardhead" key=${row.error}>
      <button type="button" onClick=${() => setQuery({ error: row.error })}><b>${count(row.keys, "key")}</b></button>
      <span class="name">${visible(row.error || "no error")}</span>
      <span class="soft">${row.more ? "at least " : ""}${count(row.waiting, "message")} behind them${row.failing_since_ms ? html`, failing since <${Time} ms=${row.failing_since_ms} />` : ""}</span>
      ${group && html`<span class="tools"><${Actions} filter=${{ group, ...(row.error ? { error: row.error } : {}) }} what=${`${count(row.keys, "key")} of ${group}`} /></span>`}
    </div>`)}
    ${answer.by_error_others > 0 && html`<p class="soft">and ${count(answer.by_error_others, "key")} with other errors</p>`}
  <//>`;
}

function MissingQueues({ rows, more }) {
  if (!rows?.length) return null;
  return html`<details><summary>▲ The keys of ${count(rows.length + (more ?? 0), "subscription")} are not known here</summary><ul>${rows.map((each) => html`<li>${visible(each.group)} on ${visible(each.topic)}, queues ${each.queues.join(", ")}: ${visible(each.why)}</li>`)}</ul></details>`;
}

export function Page({ query }) {
  const filter = readFilter(query, FILTERS);
  const state = useData("/keys", listing({ ...filter, after: query.get("after") }), { version: "keys" });
  const [selection, setSelection] = useState(new Set());
  const rowKey = (row) => JSON.stringify([row.group, row.key]);
  return html`<${Head} title="Blocked keys" />
    <${Loaded} state=${state}>${(answer) => {
      const rows = answer.items;
      const chosen = rows.filter((row) => selection.has(rowKey(row)));
      const groups = [...new Set(chosen.map((row) => row.group))];
      return html`<${Missing} missing=${answer.missing} /><${MissingQueues} rows=${answer.missing_queues} more=${answer.missing_queues_more} />
        <${Errors} answer=${answer} group=${query.get("group")} />
        <${Card} title="Keys">
          <div class="filters"><${Filter} name="group" label="group" query=${query} /><${Filter} name="state" label="state" query=${query} options=${STATES} /><${Filter} name="text" label="key or error contains" query=${query} /></div>
          <${Chips} query=${query} names=${FILTERS} />
          <p class="actions" aria-live="polite">
            ${chosen.length > 0 && groups.length === 1 && html`<b>${count(chosen.length, "key")} selected</b><${Actions} filter=${{ group: groups[0], keys: chosen.map((row) => row.key) }} what=${`${count(chosen.length, "key")} of ${groups[0]}`} />`}
            ${groups.length > 1 && html`<span class="soft">Select keys of one group to act on them.</span>`}
            ${!chosen.length && filter.group && answer.total > 0 && html`<span>All ${count(answer.total, "key")} that match:</span><${Actions} filter=${filter} what=${`all matching keys of ${filter.group}`} />`}
          </p>
          <${Table} label="blocked keys" columns=${COLUMNS} rows=${rows} rowKey=${rowKey} selection=${selection} onSelect=${setSelection} empty="No key is blocked." />
          <${Pager} answer=${answer} shown=${rows.length} noun="key" query=${query} onEnd=${state.more} />
        <//>`;
    }}<//>`;
}

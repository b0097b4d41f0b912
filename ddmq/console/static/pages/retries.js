// Messages that failed and wait for their next delivery, message by message.
import { listing, useData } from "../lib/api.js";
import { openOperation } from "../lib/actions.js";
import { formatNumber, shorten, visible } from "../lib/format.js";
import { html } from "../lib/html.js";
import { Card, Chips, Filter, GroupLink, Head, Loaded, MessageLink, Missing, Name, Time, TopicLink } from "../lib/parts.js";
import { readFilter, setQuery } from "../lib/route.js";
import { Pager, Table } from "../lib/table.js";

const FILTERS = ["group", "topic", "text"];
const COLUMNS = [
  { head: "group", cell: (row) => html`<${GroupLink} group=${row.group} />` },
  { head: "topic", cell: (row) => html`<${TopicLink} topic=${row.topic} />` },
  { head: "key", cell: (row) => html`<${Name} text=${shorten(row.key ?? "", 60)} />` },
  { head: "deliveries", number: true, cell: (row) => formatNumber(row.deliveries) },
  { head: "due", cell: (row) => html`<${Time} ms=${row.due_ms} />` },
  { head: "error", wide: true, cell: (row) => html`<span class="soft">${visible(shorten(row.error ?? "", 160))}</span>` },
  { head: "story", cell: (row) => html`<${MessageLink} id=${row.id}>story<//>` },
];

const WORDS = {
  now: ["Deliver now", "The messages are delivered to the group at once. One that fails again waits for its next step.", false],
  dead_letter: ["Move to dead letters", "The messages are not delivered any more, unless they are resent.", true],
};

function Actions({ filter }) {
  const act = (action) => {
    const [verb, note, danger] = WORDS[action];
    openOperation({ title: `${verb}: what waits for ${filter.group}`, verb, note, danger, body: { kind: "retries", action, filter } });
  };
  return html`<span class="actions">${Object.keys(WORDS).map((action) => html`<button type="button" onClick=${() => act(action)}>${WORDS[action][0]}…</button>`)}</span>`;
}

/** The groups with messages on the retry path, to choose from. */
function Choices() {
  const groups = useData("/lag", listing({}, 1_000), { every: 5_000 });
  return html`<${Loaded} state=${groups}>${(answer) => {
    const rows = answer.items.filter((row) => row.retry_waiting);
    return rows.length ? html`<div class="chips">${rows.map((row) => html`<button type="button" onClick=${() => setQuery({ group: row.group, topic: row.topic })}>${visible(row.group)} on ${visible(row.topic)}: ${formatNumber(row.retry_waiting)}</button>`)}</div>` : html`<p class="soft">Nothing waits for a retry.</p>`;
  }}<//>`;
}

export function Page({ query }) {
  const filter = readFilter(query, FILTERS);
  const state = useData(filter.group ? "/retries" : null, listing({ ...filter, after: query.get("after") }), { version: "retries" });
  return html`<${Head} title="Retries" />
    <${Card} note="Messages that failed and wait for their next delivery.">
      <div class="filters"><${Filter} name="group" label="group" query=${query} />${filter.group && html`<${Filter} name="text" label="contains" query=${query} />`}</div><${Chips} query=${query} names=${FILTERS} />
      ${filter.group ? html`<p class="tools"><${Actions} filter=${filter} /></p>` : html`<${Choices} />`}
      ${filter.group && html`<${Loaded} state=${state} absent="This server does not list retries.">${(answer) => html`<${Missing} missing=${answer.missing} />
        <${Table} label="retries" columns=${COLUMNS} rows=${answer.items} rowKey=${(row) => row.id} empty="Nothing waits for a retry." />
        <${Pager} answer=${answer} shown=${answer.items.length} noun="message" query=${query} onEnd=${state.more} />`}<//>`}
    <//>`;
}

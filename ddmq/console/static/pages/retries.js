// Messages that failed and wait for their next delivery, message by message.
import { listing, useData } from "../lib/api.js";
import { openOperation } from "../lib/actions.js";
import { formatNumber, shorten, visible } from "../lib/format.js";
import { html } from "../lib/html.js";
import { Card, Chips, Filter, GroupLink, Head, Loaded, MessageLink, Missing, Name, Time, TopicLink } from "../lib/parts.js";
import { Pager, Table } from "../lib/table.js";

const FILTERS = ["group", "topic", "key", "error"];
const COLUMNS = [
  { head: "group", cell: (row) => html`<${GroupLink} group=${row.group} />` },
  { head: "topic", cell: (row) => html`<${TopicLink} topic=${row.topic} />` },
  { head: "key", cell: (row) => html`<${Name} text=${shorten(row.key ?? "", 60)} />` },
  { head: "tries", number: true, cell: (row) => formatNumber(row.attempts ?? row.attempt) },
  { head: "next", cell: (row) => html`<${Time} ms=${row.due_ms} />` },
  { head: "error", wide: true, cell: (row) => html`<span class="soft">${visible(shorten(row.error ?? "", 160))}</span>` },
  { head: "story", cell: (row) => html`<${MessageLink} id=${row.id}>story<//>` },
];

function act(action, filter) {
  const now = action === "now";
  openOperation({ title: now ? "Deliver now" : "Move to the dead letters", verb: now ? "Deliver" : "Give up", danger: !now, note: now ? "They are delivered again at once instead of after their pause." : "They become dead letters and can be resent later.", body: { kind: "retries", action, filter } });
}

export function Page({ query }) {
  const filter = Object.fromEntries(FILTERS.map((name) => [name, query.get(name)]).filter(([, value]) => value));
  const state = useData("/retries", listing({ ...filter, after: query.get("after") }), { version: "retries" });
  return html`<${Head} title="Retries" />
    <${Card} note="Messages that failed and wait for their next delivery.">
      <div class="filters"><${Filter} name="group" label="group" query=${query} /></div><${Chips} query=${query} names=${FILTERS} />
      ${filter.group && html`<p class="actions"><b>All that match:</b><button type="button" onClick=${() => act("now", filter)}>Deliver now…</button><button type="button" onClick=${() => act("dead_letter", filter)}>Give up…</button></p>`}
      <${Loaded} state=${state} absent="This server does not list retries.">${(answer) => html`<${Missing} missing=${answer.missing} />
        <${Table} label="retries" columns=${COLUMNS} rows=${answer.items} rowKey=${(row) => row.id} empty="Nothing waits for a retry." />
        <${Pager} answer=${answer} shown=${answer.items.length} noun="message" query=${query} />`}<//>
    <//>`;
}

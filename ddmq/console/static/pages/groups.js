// All subscriptions: who consumes what, how far behind, and why.
import { listing, useData } from "../lib/api.js";
import { ABSENT, formatDrain, formatNumber, formatRate, formatSeconds } from "../lib/format.js";
import { html } from "../lib/html.js";
import { Badge, Card, Filter, GroupLink, Head, Loaded, Missing, TopicLink } from "../lib/parts.js";
import { Pager, Table } from "../lib/table.js";
import { CAUSES } from "../lib/words.js";

const COLUMNS = [
  { head: "group", wide: true, cell: (row) => html`<${GroupLink} group=${row.group} />${row.paused && html` <${Badge} kind="warn">paused<//>`}` },
  { head: "topic", cell: (row) => html`<${TopicLink} topic=${row.topic} />` },
  { head: "order", cell: (row) => row.order_key || "none" },
  { head: "unfinished", number: true, cell: (row) => formatNumber(row.unfinished ?? row.lag) },
  { head: "oldest waits", number: true, cell: (row) => formatSeconds(row.lag_age_s) },
  { head: "in flight", number: true, cell: (row) => formatNumber(row.in_flight) },
  { head: "retrying", number: true, cell: (row) => formatNumber(row.retrying) },
  { head: "in/s", number: true, cell: (row) => formatRate(row.arriving_per_s) },
  { head: "out/s", number: true, cell: (row) => formatRate(row.finished_per_s) },
  { head: "drains in", number: true, cell: (row) => ((row.unfinished ?? row.lag) ? formatDrain(row) : ABSENT) },
  { head: "because", wide: true, cell: (row) => CAUSES[row.why] ?? "" },
  { head: "clients", number: true, cell: (row) => formatNumber(row.clients) },
];

export function Page({ query }) {
  const state = useData("/lag", listing({ after: query.get("after"), text: query.get("text") }), { every: 3_000 });
  return html`<${Head} title="Groups" />
    <${Card} note="The subscription that is furthest behind comes first.">
      <div class="filters"><${Filter} name="text" label="group or topic contains" query=${query} /></div>
      <${Loaded} state=${state}>${(answer) => html`<${Missing} missing=${answer.missing} />
        <${Table} label="subscriptions" columns=${COLUMNS} rows=${answer.items} rowKey=${(row) => `${row.group} ${row.topic}`} empty="No subscription matches. A group is created by its first pull, or by ddmq group create." />
        <${Pager} answer=${answer} shown=${answer.items.length} noun="subscription" query=${query} onEnd=${state.more} />`}<//>
    <//>`;
}

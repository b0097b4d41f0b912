// All topics: their settings, and how many messages they hold.
import { listing, path, post, useData } from "../lib/api.js";
import { openChange } from "../lib/actions.js";
import { commandLine, formatNumber } from "../lib/format.js";
import { html } from "../lib/html.js";
import { Badge, Card, Filter, Head, Loaded, Missing, TopicLink } from "../lib/parts.js";
import { link, navigate } from "../lib/route.js";
import { Pager, Table } from "../lib/table.js";
import { DELAYS } from "../lib/words.js";

const COLUMNS = [
  { head: "topic", wide: true, cell: (row) => html`<${TopicLink} topic=${row.topic} />` },
  { head: "messages", number: true, cell: (row) => formatNumber(row.messages) },
  { head: "stored so far", number: true, cell: (row) => formatNumber(row.stored) },
  { head: "queues", number: true, cell: (row) => row.queues },
  { head: "durability", cell: (row) => row.durability },
  { head: "delays", cell: (row) => DELAYS[row.delay] },
  { head: "state", cell: (row) => html`${row.writable ? "" : html`<${Badge} kind="warn">closed to sends<//> `}${row.readable ? "" : html`<${Badge} kind="warn">closed to consumers<//>`}${row.internal ? html`<${Badge}>system<//>` : ""}` },
];

function create() {
  openChange({
    title: "Create a topic",
    verb: "Create",
    fields: [
      { name: "topic", label: "name", required: true },
      { name: "queues", label: "queues", type: "number", value: "4", required: true },
    ],
    command: (values) => commandLine("topic create", [values.topic || "NAME"], { queues: values.queues }),
    apply: async (values) => {
      await post(path`/topics/${values.topic}`, { queues: Number(values.queues) });
      navigate(link(["topics", values.topic]));
      return `Topic ${values.topic} exists.`;
    },
  });
}

export function Page({ query }) {
  const state = useData("/topics", listing({ after: query.get("after"), text: query.get("text"), internal: query.get("internal") && 1 }), { version: "topics" });
  return html`<${Head} title="Topics"><div class="tools actions"><button type="button" onClick=${create}>Create a topic…</button></div><//>
    <${Card}>
      <div class="filters"><${Filter} name="text" label="name contains" query=${query} /><${Filter} name="internal" label="system topics" query=${query} options=${["shown"]} empty="hidden" /></div>
      <${Loaded} state=${state}>${(answer) => html`<${Missing} missing=${answer.missing} />
        <${Table} label="topics" columns=${COLUMNS} rows=${answer.items} rowKey=${(row) => row.topic} empty="No topic matches. A topic is created by its first message, or with the button above." />
        <${Pager} answer=${answer} shown=${answer.items.length} noun="topic" query=${query} onEnd=${state.more} />`}<//>
    <//>`;
}

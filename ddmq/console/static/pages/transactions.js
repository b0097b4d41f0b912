// Open transactions, and one of them with its messages and an operator's decision.
import { listing, path, post, useData } from "../lib/api.js";
import { openChange } from "../lib/actions.js";
import { commandLine, count, formatNumber, formatSize, shorten, visible } from "../lib/format.js";
import { html } from "../lib/html.js";
import { Badge, Card, Facts, Filter, Head, Loaded, Missing, Name, Time, TopicLink } from "../lib/parts.js";
import { link } from "../lib/route.js";
import { Pager, Table } from "../lib/table.js";

const COLUMNS = [
  { head: "transaction", cell: (row) => html`<a class="id" href=${link(["transactions", row.transaction])}>${visible(shorten(row.transaction, 24))}</a>` },
  { head: "producer group", wide: true, cell: (row) => html`<${Name} text=${row.group} />` },
  { head: "began", cell: (row) => html`<${Time} ms=${row.began_ms} />` },
  { head: "messages", number: true, cell: (row) => formatNumber(row.messages) },
  { head: "size", number: true, cell: (row) => formatSize(row.bytes) },
  { head: "checks", number: true, cell: (row) => formatNumber(row.checks) },
  { head: "topics", wide: true, cell: (row) => row.topics.map((topic) => html`<${TopicLink} topic=${topic} /> `) },
];
const MESSAGES = [
  { head: "topic", cell: (row) => html`<${TopicLink} topic=${row.topic} />` },
  { head: "key", cell: (row) => html`<${Name} text=${row.key} />` },
  { head: "bytes", number: true, cell: (row) => formatNumber(row.body_bytes) },
  { head: "delayed", cell: (row) => (row.delayed ? "yes" : "") },
  { head: "body", wide: true, cell: (row) => html`<span class="soft">${visible(row.preview)}</span>` },
];

function end(id, action, info, reload) {
  openChange({
    title: `${action === "commit" ? "Commit" : "Roll back"} this transaction`,
    verb: action === "commit" ? "Commit" : "Roll back",
    danger: true,
    text: action === "commit" ? `Its ${count(info.messages ?? 0, "message")} become visible to consumers.` : `Its ${count(info.messages ?? 0, "message")} are never delivered.`,
    command: commandLine(`tx ${action}`, [id]),
    apply: async () => {
      const answer = await post(path`/transactions/${id}`, { action });
      reload();
      return `The transaction is ${answer.state}.`;
    },
  });
}

function Transaction({ id }) {
  const state = useData(path`/transactions/${id}`, {}, { version: "transactions" });
  return html`<${Head} title=${html`Transaction <span class="id">${visible(id)}</span>`} />
    <${Loaded} state=${state}>${(info) => html`<${Card} title=${html`<${Badge}>${visible(info.state)}<//>`} tools=${info.contents && html`<div class="tools actions"><button type="button" onClick=${() => end(id, "commit", info, state.reload)}>Commit…</button><button type="button" onClick=${() => end(id, "rollback", info, state.reload)}>Roll back…</button></div>`}>
      <${Facts} facts=${[["producer group", info.group && html`<${Name} text=${info.group} />`], ["began", info.began_ms != null && html`<${Time} ms=${info.began_ms} />`], ["ended", info.ended_ms != null && html`<${Time} ms=${info.ended_ms} />`], ["because", info.reason && visible(info.reason)], ["messages", info.messages], ["checks", info.checks], ["owner", info.owner && visible(info.owner)]]} />
      ${info.contents && html`<${Table} label="messages" columns=${MESSAGES} rows=${info.contents} rowKey=${(row) => `${row.topic} ${row.message_id}`} />`}
    <//>`}<//>`;
}

export function Page({ segments, query }) {
  const state = useData(segments[1] ? null : "/transactions", listing({ group: query.get("group"), after: query.get("after") }), { version: "transactions" });
  if (segments[1]) return html`<${Transaction} id=${segments[1]} />`;
  return html`<${Head} title="Open transactions" />
    <${Card} note="Prepared messages that nobody has committed or rolled back yet, oldest first.">
      <div class="filters"><${Filter} name="group" label="producer group" query=${query} /></div>
      <${Loaded} state=${state}>${(answer) => html`<${Missing} missing=${answer.missing} />
        <${Table} label="transactions" columns=${COLUMNS} rows=${answer.items} rowKey=${(row) => row.transaction} empty="No transaction is open." />
        <${Pager} answer=${answer} shown=${answer.items.length} noun="transaction" query=${query} onEnd=${state.more} />`}<//>
    <//>`;
}

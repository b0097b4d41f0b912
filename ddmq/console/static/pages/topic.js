// One topic: its queues, settings and messages, with search; messages can be sent from here.
import { useState } from "../vendor/hooks.js";
import { del, getVersioned, listing, path, post, useData } from "../lib/api.js";
import { openChange } from "../lib/actions.js";
import { commandLine, formatNumber, formatSize, shorten, visible } from "../lib/format.js";
import { html } from "../lib/html.js";
import { Badge, Card, Facts, Filter, Head, Loaded, MessageLink, Missing, Name, Problem, Time } from "../lib/parts.js";
import { link, navigate } from "../lib/route.js";
import { Pager, Table } from "../lib/table.js";
import { History } from "../lib/chart.js";
import { DELAYS } from "../lib/words.js";

const COMMAND_BODY_MAX = 1_000; // characters; a longer body is read from a file
const MESSAGES = [
  { head: "stored", cell: (row) => html`<${Time} ms=${row.stored_ms} />` },
  { head: "queue/offset", cell: (row) => html`<${MessageLink} id=${row.id}>${row.queue}/${formatNumber(row.offset)}<//>` },
  { head: "key", cell: (row) => html`<${Name} text=${shorten(row.key, 60)} />` },
  { head: "tags", cell: (row) => html`<${Name} text=${row.tags} />` },
  { head: "bytes", number: true, cell: (row) => formatNumber(row.body_bytes) },
  { head: "body", wide: true, cell: (row) => html`<span class="soft">${row.body == null ? "binary" : visible(shorten(row.body, 160))}</span>` },
];
const QUEUES = [
  { head: "queue", number: true, cell: (row) => row.queue },
  { head: "first offset", number: true, cell: (row) => formatNumber(row.min) },
  { head: "next offset", number: true, cell: (row) => formatNumber(row.next) },
  { head: "messages", number: true, cell: (row) => formatNumber(row.messages) },
];

export function sendMessage(topic, message = {}) {
  openChange({
    title: `Send a message to ${topic}`,
    verb: "Send",
    text: "Every group that consumes the topic gets it.",
    fields: [
      { name: "key", label: "key", value: message.key ?? "" },
      { name: "tags", label: "tags", value: message.tags ?? "" },
      { name: "body", label: "body", lines: 6, value: message.body ?? "" },
      { name: "delay_s", label: "delay in seconds (empty: none)", type: "number" },
    ],
    command: (values) => commandLine("send", values.body.length <= COMMAND_BODY_MAX ? [topic, values.body] : [topic], { key: values.key, tags: values.tags, delay: values.delay_s && `${values.delay_s}s`, file: values.body.length > COMMAND_BODY_MAX && "FILE" }),
    apply: async (values) => {
      const broken = ["key", "tags", "body"].find((name) => !values[name].isWellFormed());
      if (broken) throw new Error(`The ${broken} contains half of a surrogate pair, which is no text.`);
      const delay = values.delay_s ? { delay_ms: Number(values.delay_s) * 1_000 } : {};
      const sent = await post("/messages", { topic, body: values.body, ...(values.key ? { key: values.key } : {}), ...(values.tags ? { tags: values.tags } : {}), ...delay });
      return sent.delay_id ? "The message is stored and waits until it is due." : `The message is stored as ${sent.queue}/${sent.offset}.`;
    },
  });
}

function changeTopic(topic, { title, verb, text = "", settings, command, danger = false }) {
  openChange({
    title, verb, text, command, danger,
    apply: async () => {
      const { etag } = await getVersioned(path`/topics/${topic}`);
      const answer = await post(path`/topics/${topic}`, { ...settings, create: false }, { etag });
      return { text: `${title}: done.`, undo: answer.undo };
    },
  });
}

export function closeTopic(name) {
  changeTopic(name, { title: `Close ${name} to sends`, verb: "Close", text: "Sends are rejected until it is opened again. Stored messages stay and are delivered.", settings: { writable: false }, command: commandLine("topic set", [name], { "not-writable": true }), danger: true });
}

/** Hold or release all delays of a topic. */
export function holdDelays(name, hold) {
  const verb = hold ? "Hold" : "Release";
  changeTopic(name, { title: `${verb} the delays of ${name}`, verb, text: hold ? "No delayed message of this topic fires until the delays are released. Nothing is lost." : "Overdue messages fire at once.", settings: { hold_delays: hold }, command: commandLine(`delay ${verb.toLowerCase()}`, [name]) });
}

function Actions({ info }) {
  const name = info.topic;
  const reopen = () => changeTopic(name, { title: `Open ${name} to sends`, verb: "Open", settings: { writable: true }, command: commandLine("topic set", [name], { writable: true }) });
  const remove = () => openChange({
    title: `Delete ${name}`, verb: "Delete", danger: true,
    text: `The topic and its ${formatNumber(info.messages)} messages are deleted for good. This cannot be undone.`,
    command: commandLine("topic delete", [name]),
    apply: async () => {
      await del(path`/topics/${name}`);
      navigate(link(["topics"]));
      return `Topic ${name} is deleted.`;
    },
  });
  return html`<div class="tools actions"><button type="button" onClick=${() => sendMessage(name)}>Send…</button>
    ${info.hold_delays ? html`<button type="button" class="act" onClick=${() => holdDelays(name, false)}>Release delays…</button>` : html`<button type="button" onClick=${() => holdDelays(name, true)}>Hold delays…</button>`}
    ${info.writable ? html`<button type="button" onClick=${() => closeTopic(name)}>Close to sends…</button>` : html`<button type="button" class="act" onClick=${reopen}>Open to sends…</button>`}
    ${!info.internal && html`<button type="button" onClick=${remove}>Delete…</button>`}</div>`;
}

function Messages({ topic, query }) {
  const [answer, setAnswer] = useState(null);
  const [error, setError] = useState(null);
  const text = query.get("text");
  const search = text ? { count: 50, text } : null;
  const listed = useData(search ? null : path`/topics/${topic}/messages`, listing({ key: query.get("key"), queue: query.get("offset") && query.get("queue"), offset: query.get("offset"), time_ms: query.get("time_ms"), after: query.get("after") }));
  const run = (after) => post(path`/topics/${topic}/search`, { ...search, ...(after ? { after } : {}) }).then(setAnswer, setError);
  return html`<div class="filters"><${Filter} name="key" label="key" query=${query} /><${Filter} name="text" label="text in body or properties" query=${query} />
      <${Filter} name="queue" label="queue" query=${query} type="number" /><${Filter} name="offset" label="from offset" query=${query} type="number" /></div>
    ${search
      ? html`<p class="actions"><button type="button" class="act" onClick=${() => run("")}>Search</button>${answer?.next && html`<button type="button" onClick=${() => run(answer.next)}>Go on</button>`}${answer && html`<span class="soft" role="status">${formatNumber(answer.scanned)} messages examined</span>`}</p>
          <${Problem} error=${error} />${answer && html`<${Table} label="messages" columns=${MESSAGES} rows=${answer.items} rowKey=${(row) => `${row.queue}/${row.offset}`} empty="No message matches so far." />`}`
      : html`<${Loaded} state=${listed}>${(page) => html`<${Missing} missing=${page.missing} /><${Table} label="messages" columns=${MESSAGES} rows=${page.items} rowKey=${(row) => `${row.queue}/${row.offset}`} empty="No message." /><${Pager} answer=${page} shown=${page.items.length} noun="message" query=${query} />`}<//>`}`;
}

export function Page({ segments, query }) {
  const topic = segments[1];
  const state = useData(path`/topics/${topic}`, {}, { version: "topics" });
  const info = state.data;
  return html`<${Head} title=${html`Topic <${Name} text=${topic} />`}>
      ${info && html`${!info.writable && html`<${Badge} kind="warn">closed to sends<//>`}${info.hold_delays && html`<${Badge} kind="warn">delays are held since <${Time} ms=${info.delays_held_since_ms} /><//>`}
      <${Actions} info=${info} />`}<//>
    <${Loaded} state=${state}>${() => html`
    <div class="columns"><${Card} title="At a glance"><${Facts} facts=${[
      ["messages", info.messages], ["queues", info.queues], ["durability", info.durability], ["delays", DELAYS[info.delay]],
      ["largest body", info.body_bytes_max == null ? "the server's limit" : formatSize(info.body_bytes_max)],
      ["settings are kept in", info.source], ["traced", info.trace_one_in ? `one message in ${info.trace_one_in}` : "none"],
    ]} /><p><a href=${link(["delays"], { topic })}>delayed messages</a> · <a href=${link(["groups"], { text: topic })}>groups</a></p><//>
    <${Card} title="Messages per second"><${History} query=${{ topic }} series=${["in_per_s"]} /><//></div>
    <${Card} title="Messages"><${Messages} topic=${topic} query=${query} /><//>
    <${Card} title="Queues"><${Table} label="queues" columns=${QUEUES} rows=${info.by_queue} rowKey=${(row) => row.queue} /><//>`}<//>`;
}

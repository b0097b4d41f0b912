// One group: why it is behind and what to do about it, its queues, keys, clients and settings.
import { del, getVersioned, path, post, useData } from "../lib/api.js";
import { openChange } from "../lib/actions.js";
import { ABSENT, commandLine, count, formatDrain, formatNumber, formatRate, formatSeconds, visible } from "../lib/format.js";
import { History } from "../lib/chart.js";
import { html } from "../lib/html.js";
import { Badge, Card, Facts, Head, Loaded, Name, Time, TopicLink } from "../lib/parts.js";
import { link } from "../lib/route.js";
import { Table } from "../lib/table.js";
import { CAUSES, REMEDIES } from "../lib/words.js";

const QUEUES = [
  { head: "queue", number: true, cell: (row) => row.queue },
  { head: "committed", number: true, cell: (row) => formatNumber(row.committed) },
  { head: "next offset", number: true, cell: (row) => formatNumber(row.next) },
  { head: "lag", number: true, cell: (row) => formatNumber(row.lag) },
  { head: "oldest waits", number: true, cell: (row) => formatSeconds(row.lag_age_s) },
  { head: "in flight", number: true, cell: (row) => formatNumber(row.in_flight) },
  { head: "retrying", number: true, cell: (row) => formatNumber(row.retrying) },
  { head: "held by", cell: (row) => (row.held ? "this proxy" : visible(row.holder ?? ABSENT)) },
];
const CLIENTS = [
  { head: "client", wide: true, cell: (row) => html`<${Name} text=${row.client_id} />` },
  { head: "address", cell: (row) => html`<bdi>${visible(row.address)}</bdi>` },
  { head: "topics", cell: (row) => visible(row.topics.join(", ")) },
  { head: "in flight", number: true, cell: (row) => formatNumber(row.in_flight) },
  { head: "silent for", number: true, cell: (row) => formatSeconds(row.idle_s) },
  { head: "since", cell: (row) => html`<${Time} ms=${row.since_ms} />` },
  { head: "connection", cell: (row) => (row.connected ? html`<${Badge} kind="good">connected<//>` : html`<${Badge}>gone<//>`) },
];

async function changeSubscription(row, settings) {
  const { etag } = await getVersioned(path`/groups/${row.group}`);
  const answer = await post(path`/groups/${row.group}/topics/${row.topic}`, settings, { etag });
  return { text: answer.changed?.map((each) => `${each.key}: ${each.before} → ${each.after}`).join(", ") || "Done.", undo: answer.undo };
}

function pause(row, paused) {
  openChange({
    title: `${paused ? "Pause" : "Resume"} ${row.group} on ${row.topic}`,
    verb: paused ? "Pause" : "Resume",
    text: paused ? "Nothing is delivered to the group from this topic until it is resumed; messages wait. Deliveries in flight finish." : "Deliveries go on where they stopped.",
    command: commandLine(`group ${paused ? "pause" : "resume"}`, [row.group], { topic: row.topic }),
    apply: () => changeSubscription(row, { paused }),
  });
}

function raise(row, setting, value) {
  openChange({
    title: `Change ${setting} of ${row.group} on ${row.topic}`,
    verb: "Change",
    facts: [["now", value]],
    fields: [{ name: "value", label: `new ${setting}`, type: "number", value: String(Math.max(1, value * 2)), required: true }],
    command: (values) => commandLine("group set", [row.group], { topic: row.topic, [setting.replaceAll("_", "-")]: values.value }),
    apply: (values) => changeSubscription(row, { [setting]: Number(values.value) }),
  });
}

function reset(row) {
  const body = (values) => ({ topic: row.topic, to: values.to });
  openChange({
    title: `Reset the offsets of ${row.group} on ${row.topic}`,
    verb: "Reset",
    danger: true,
    text: "Messages behind the new offset are delivered again; messages before it are passed over.",
    fields: [{ name: "to", label: "to: first, last, an offset, or a time such as 2026-11-28T14:00Z", value: "last", required: true }],
    command: (values) => commandLine("offset reset", [row.group], { topic: row.topic, to: values.to }),
    preview: async (values) => {
      const effect = await post(path`/groups/${row.group}/offsets`, { ...body(values), dry_run: true });
      return [["delivered again", effect.again], ["passed over", effect.passed_over], ["queues", effect.queues.length]];
    },
    apply: async (values) => {
      const effect = await post(path`/groups/${row.group}/offsets`, body(values));
      return { text: `${count(effect.again, "message")} will be delivered again, ${formatNumber(effect.passed_over)} are passed over.`, undo: effect.undo };
    },
  });
}

function unsubscribe(group, topic) {
  openChange({
    title: `Unsubscribe ${group} from ${topic}`,
    verb: "Unsubscribe",
    danger: true,
    text: "The group gets no more messages of this topic, and its progress there is forgotten. Stored messages stay. This cannot be undone.",
    command: commandLine("group delete", [group], { topic }),
    apply: async () => {
      await del(path`/groups/${group}`, { topic });
      return `${group} no longer consumes ${topic}.`;
    },
  });
}

/** Queues that make no progress, and the topics that hold them up because no client pulls these. */
function Stalled({ group, row }) {
  return html`<div class="stalled" role="status"><p class="warn">▲ Queues ${row.queues.join(", ")} of ${visible(row.topic)} have made no progress for ${formatSeconds(row.seconds)}.${row.held_up_by.length > 0 && html` They wait for messages of ${row.held_up_by.map((topic) => html`<${TopicLink} topic=${topic} /> `)}, which no client of the group pulls: start such a client, or unsubscribe the group.`}</p>
    ${row.held_up_by.length > 0 && html`<p class="actions">${row.held_up_by.map((topic) => html`<button type="button" onClick=${() => unsubscribe(group, topic)}>Unsubscribe from ${visible(topic)}…</button>`)}</p>`}</div>`;
}

function Cause({ row }) {
  const remedy = REMEDIES[row.why];
  const unfinished = row.unfinished ?? row.lag;
  if (!unfinished) return html`<p><${Badge} kind="good">up to date<//></p>`;
  const drain = formatDrain(row);
  const outlook = { never: "at these rates it never catches up", [ABSENT]: "its rates are not known here" }[drain] ?? `it catches up in ${drain}`;
  return html`<p><${Badge} kind=${row.why ? "warn" : "plain"}>${CAUSES[row.why] ?? "no cause is known"}<//> ${count(unfinished, "message")} unfinished: ${outlook}${" "}
    (${formatRate(row.arriving_per_s)}/s in, ${formatRate(row.finished_per_s)}/s out). ${remedy?.text ?? ""}
    ${remedy?.page === "keys" && html` <a href=${link(["keys"], { group: row.group })}>Show the keys</a>`}</p>
    ${remedy?.setting && html`<p class="actions"><button type="button" class="act" onClick=${() => raise(row, remedy.setting, row.settings[remedy.setting])}>Change ${remedy.setting}…</button></p>`}`;
}

function Subscription({ row }) {
  return html`<${Card} title=${`${row.group} on ${row.topic}`} tools=${html`<div class="tools actions">
      ${row.paused ? html`<button type="button" class="act" onClick=${() => pause(row, false)}>Resume…</button>` : html`<button type="button" onClick=${() => pause(row, true)}>Pause…</button>`}
      <button type="button" onClick=${() => reset(row)}>Reset offsets…</button><button type="button" onClick=${() => unsubscribe(row.group, row.topic)}>Unsubscribe…</button></div>`}>
    <${Cause} row=${row} />
    ${row.paused && html`<p><${Badge} kind="warn">paused<//> since <${Time} ms=${row.paused_since_ms} /></p>`}
    ${row.push_fault && html`<p class="warn">▲ ${visible(row.push_fault)}</p>`}
    <${Facts} facts=${[
      ["topic", html`<${TopicLink} topic=${row.topic} />`], ["order", row.order_key || "none"], ["filter", row.filter && visible(row.filter)],
      ["in flight", row.in_flight], ["retrying", row.retrying], ["on the retry path", row.retry_waiting],
      ["dead letters", html`<a href=${link(["dead-letters", row.group])}>${formatNumber(row.dead_letters_open)}</a>`],
    ]} />
    <${History} query=${{ group: row.group, topic: row.topic }} series=${["acked_per_s", "lag"]} />
    <details><summary>Queues</summary><${Table} label="queues" columns=${QUEUES} rows=${row.queues} rowKey=${(queue) => queue.queue} /></details>
    <details><summary>Settings</summary><${Facts} facts=${Object.entries(row.settings).map(([name, value]) => [row.set_here.includes(name) ? `${name} (set here)` : name, typeof value === "object" && value !== null ? JSON.stringify(value) : String(value)])} /></details>
  <//>`;
}

export function Page({ segments }) {
  const group = segments[1];
  const state = useData(path`/groups/${group}`, {}, { every: 3_000 });
  return html`<${Head} title=${html`Group <${Name} text=${group} />`}><div class="tools actions"><a class="button" href=${link(["keys"], { group })}>Keys</a><a class="button" href=${link(["dead-letters", group])}>${state.data ? count(state.data.dead_letters_open, "dead letter") : "Dead letters"}</a><a class="button" href=${link(["retries"], { group })}>Retries</a></div><//>
    <${Loaded} state=${state}>${(info) => html`
    ${info.stalled.map((each) => html`<${Stalled} key=${each.topic} group=${group} row=${each} />`)}
    ${info.differences.map((each) => html`<p class="warn">▲ ${visible(each.client_id)} differs on ${visible(each.topic)}: ${visible(each.what)}</p>`)}
    ${info.subscriptions.map((row) => html`<${Subscription} key=${row.topic} row=${{ ...row, group }} />`)}
    <${Card} title="Clients at this proxy"><${Table} label="clients" columns=${CLIENTS} rows=${info.clients} rowKey=${(row) => `${row.client_id} ${row.address}`} empty="No client pulls here." />${info.clients_more > 0 && html`<p class="soft">and ${formatNumber(info.clients_more)} more</p>`}<//>`}<//>`;
}

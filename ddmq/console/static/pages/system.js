// The server itself: its processes and clients, disk and log, delay shards, and the settings in force.
import { listing, post, useData } from "../lib/api.js";
import { openChange } from "../lib/actions.js";
import { ABSENT, commandLine, count, formatDuration, formatNumber, formatSeconds, formatSize, visible } from "../lib/format.js";
import { html } from "../lib/html.js";
import { now, snapshot } from "../lib/live.js";
import { Badge, Card, Facts, Filter, GroupLink, Head, Loaded, Missing, Name, Time, TopicLink } from "../lib/parts.js";
import { Pager, Table } from "../lib/table.js";
import { closeTopic } from "./topic.js";

const TEN_YEARS_MS = 10 * 365 * 86_400_000;
const PROCESSES = [
  { head: "process", wide: true, cell: (row) => html`<${Name} text=${row.name} />` },
  { head: "version", cell: (row) => visible(row.version) },
  { head: "parts", cell: (row) => visible((row.parts ?? []).join(", ")) },
  { head: "addresses", wide: true, cell: (row) => visible(Object.entries(row.addresses).map(([part, address]) => `${part} ${address}`).join(", ")) },
  { head: "up for", number: true, cell: (row) => formatDuration(now.value - row.since_ms) },
  { head: "memory", number: true, cell: (row) => formatSize(row.memory_bytes) },
  { head: "CPU time", number: true, cell: (row) => formatSeconds(row.cpu_s) },
  { head: "subscriptions", number: true, cell: (row) => formatNumber(row.subscription_count) },
  { head: "delay shards", cell: (row) => row.delay_shards.join(", ") || ABSENT },
];
const CLIENTS = [
  { head: "client", wide: true, cell: (row) => html`<${Name} text=${row.client_id ?? "producers"} />` },
  { head: "kind", cell: (row) => row.kind },
  { head: "process", cell: (row) => visible(row.process) },
  { head: "address", cell: (row) => html`<bdi>${visible(row.address ?? "")}</bdi>` },
  { head: "group", cell: (row) => (row.group ? html`<${GroupLink} group=${row.group} />` : `${count(row.connections ?? 0, "connection")}`) },
  { head: "in flight", number: true, cell: (row) => formatNumber(row.in_flight) },
  { head: "since", cell: (row) => html`<${Time} ms=${row.since_ms} />` },
  { head: "last seen", cell: (row) => html`<${Time} ms=${row.last_seen_ms} />` },
];
const WRITERS = [
  { head: "topic", wide: true, cell: (row) => html`<${TopicLink} topic=${row.topic} />` },
  { head: "size", number: true, cell: (row) => formatSize(row.bytes) },
  { head: "stop it", cell: (row) => html`<button type="button" onClick=${() => closeTopic(row.topic)} aria-label=${`Close ${visible(row.topic)} to sends…`}>Close to sends…</button>` },
];
const HOLDS = [
  { head: "because", wide: true, cell: (row) => visible(row.reason) },
  { head: "from position", number: true, cell: (row) => formatNumber(row.position) },
];
const SETTINGS = [
  { head: "setting", cell: (row) => html`<code>${visible(row.key)}</code>` },
  { head: "value", wide: true, cell: (row) => visible(typeof row.value === "string" ? row.value : JSON.stringify(row.value)) },
  { head: "from", cell: (row) => visible(row.source) },
];

function clean() {
  const time = (values) => {
    const before = Date.parse(`${values.before.trim().replace(" ", "T")}Z`);
    if (Number.isNaN(before)) throw new Error(`${values.before} is no time; write 2026-11-28 18:00`);
    return before;
  };
  openChange({
    title: "Clean the log now", verb: "Clean", danger: true,
    text: "Whole segments older than this time are deleted, also if messages in them are unread.",
    fields: [{ name: "before", label: "older than (UTC)", value: new Date(now.value - 86_400_000).toISOString().slice(0, 16).replace("T", " "), required: true }],
    command: (values) => commandLine("log clean", [], { before: `${values.before.trim().replace(" ", "T")}Z` }),
    preview: async (values) => {
      const effect = await post("/log/clean", { before_ms: time(values), dry_run: true });
      return [["frees", formatSize(effect.bytes)], ["segments", effect.segments], ["unread by", effect.unread.map((each) => `${each.group} on ${each.topic}: ${formatNumber(each.messages)}`).join(", ") || "nobody"], ["held", effect.held.length]];
    },
    apply: async (values) => `${formatSize((await post("/log/clean", { before_ms: time(values) })).bytes)} are free.`,
  });
}

function Disk() {
  const state = useData("/log", {}, { every: 10_000 });
  return html`<${Card} title="Disk and log" id="disk" tools=${state.data?.engine === "file_log" && html`<div class="tools"><button type="button" onClick=${clean}>Clean now…</button></div>`}>
    <${Loaded} state=${state} absent="This server does not describe its log.">${(log) => html`<${Facts} facts=${[
      ["engine", log.engine], ["free", log.disk && `${formatSize(log.disk.free_bytes)} of ${formatSize(log.disk.total_bytes)}`], ["log", log.log_bytes != null && formatSize(log.log_bytes)],
      ["grows by", log.fill_bytes_per_s != null && `${formatSize(log.fill_bytes_per_s)}/s`], ["full", log.full_at_ms && log.full_at_ms < now.value + TEN_YEARS_MS ? html`<${Time} ms=${log.full_at_ms} />` : "not at this rate"],
      ["old segments are deleted below", log.disk && formatSize(log.disk.clean_bytes)], ["sends are rejected below", log.disk && formatSize(log.disk.refuse_bytes)], ["segments", log.total],
    ]} />
      ${log.writers?.length > 0 && html`<h3>Largest topics</h3><${Table} label="largest topics" columns=${WRITERS} rows=${log.writers} rowKey=${(row) => row.topic} />`}
      ${log.holds?.length > 0 && html`<h3>What keeps segments</h3><${Table} label="what keeps segments" columns=${HOLDS} rows=${log.holds} rowKey=${(row) => `${row.position} ${row.reason}`} />`}`}<//>
  <//>`;
}

function Settings({ query }) {
  const state = useData("/config", { changed: query.get("source") === "all" ? "" : 1 }, { every: 60_000 });
  const text = query.get("setting") ?? "";
  return html`<${Card} title="Settings in force">
    <div class="filters"><${Filter} name="setting" label="setting contains" query=${query} /><${Filter} name="source" label="which" query=${query} options=${["all"]} empty="changed only" /></div>
    <${Loaded} state=${state} absent="This server does not list its settings.">${(answer) => {
      const rows = answer.items.filter((row) => row.key.includes(text));
      return html`<${Table} label="settings" columns=${SETTINGS} rows=${rows} rowKey=${(row) => row.key} empty="No setting matches." />`;
    }}<//>
  <//>`;
}

export function Page({ query }) {
  const processes = useData("/processes", listing({}, 1_000), { every: 3_000 });
  const clients = useData("/clients", listing({ group: query.get("client"), text: query.get("text"), after: query.get("after") }, 100), { every: 3_000 });
  const health = snapshot.value?.health;
  return html`<${Head} title="System">${health && (health.ready ? html`<${Badge} kind="good">accepts sends<//>` : html`<${Badge} kind="bad">${visible(health.reason)}<//>`)}${health?.warning && html`<${Badge} kind="warn">${visible(health.warning)}<//>`}<//>
    <${Card} title="Processes"><${Loaded} state=${processes} absent="This server does not list its processes.">${(answer) => html`<${Missing} missing=${answer.missing} /><${Table} label="processes" columns=${PROCESSES} rows=${answer.items} rowKey=${(row) => row.name} />`}<//><//>
    <${Disk} />
    <${Card} title="Clients"><div class="filters"><${Filter} name="client" label="group" query=${query} /><${Filter} name="text" label="contains" query=${query} /></div><${Loaded} state=${clients} absent="This server does not list its clients.">${(answer) => html`<${Missing} missing=${answer.missing} /><${Table} label="clients" columns=${CLIENTS} rows=${answer.items} rowKey=${(row) => `${row.kind} ${row.process} ${row.group} ${row.client_id} ${row.address}`} empty="No client is connected." /><${Pager} answer=${answer} shown=${answer.items.length} noun="client" query=${query} />`}<//><//>
    <${Settings} query=${query} />`;
}

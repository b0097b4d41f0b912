// The server itself: its processes and clients, disk and log, delay shards, and the settings in force.
import { listing, post, useData } from "../lib/api.js";
import { openChange } from "../lib/actions.js";
import { ABSENT, count, formatDuration, formatNumber, formatSize, visible } from "../lib/format.js";
import { html } from "../lib/html.js";
import { now, snapshot } from "../lib/live.js";
import { Badge, Card, Facts, Filter, Head, Loaded, Missing, Name, Time, TopicLink } from "../lib/parts.js";
import { Table } from "../lib/table.js";

const PROCESSES = [
  { head: "process", wide: true, cell: (row) => html`<${Name} text=${row.name} />` },
  { head: "version", cell: (row) => visible(row.version) },
  { head: "parts", cell: (row) => visible((row.parts ?? []).join(", ")) },
  { head: "address", cell: (row) => visible(row.admin ?? row.address ?? "") },
  { head: "up for", number: true, cell: (row) => (row.since_ms ?? row.started_ms ? formatDuration(now.value - (row.since_ms ?? row.started_ms)) : ABSENT) },
  { head: "memory", number: true, cell: (row) => formatSize(row.memory_bytes) },
  { head: "CPU", number: true, cell: (row) => (row.cpu_share == null ? ABSENT : `${(100 * row.cpu_share).toFixed(1)} %`) },
  { head: "state", cell: (row) => (row.ready === false ? html`<${Badge} kind="bad">${visible(row.reason ?? "not ready")}<//>` : html`<${Badge} kind="good">ready<//>`) },
];
const CLIENTS = [
  { head: "client", wide: true, cell: (row) => html`<${Name} text=${row.client_id} />` },
  { head: "kind", cell: (row) => visible(row.kind ?? "") },
  { head: "address", cell: (row) => html`<bdi>${visible(row.address ?? "")}</bdi>` },
  { head: "groups", wide: true, cell: (row) => visible((row.groups ?? []).join(", ")) },
  { head: "in flight", number: true, cell: (row) => formatNumber(row.in_flight) },
  { head: "since", cell: (row) => html`<${Time} ms=${row.since_ms} />` },
  { head: "last seen", cell: (row) => html`<${Time} ms=${row.last_seen_ms} />` },
];
const WRITERS = [
  { head: "topic", wide: true, cell: (row) => html`<${TopicLink} topic=${row.topic} />` },
  { head: "bytes", number: true, cell: (row) => formatSize(row.bytes) },
  { head: "per second", number: true, cell: (row) => (row.bytes_per_s == null ? ABSENT : `${formatSize(row.bytes_per_s)}/s`) },
];
const HOLDS = [
  { head: "held by", wide: true, cell: (row) => visible(row.holder ?? row.what ?? row.name ?? "") },
  { head: "from", cell: (row) => html`<${Time} ms=${row.from_ms ?? row.oldest_ms} />` },
  { head: "bytes", number: true, cell: (row) => formatSize(row.bytes) },
];
const SETTINGS = [
  { head: "setting", cell: (row) => html`<code>${visible(row.name ?? row.key)}</code>` },
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
    command: (values) => `ddmq log clean --before '${values.before}Z'`,
    preview: async (values) => {
      const effect = await post("/log/clean", { before_ms: time(values), dry_run: true });
      return [["frees", formatSize(effect.bytes)], ["segments", effect.segments], ["unread messages", effect.unread == null ? ABSENT : JSON.stringify(effect.unread)]];
    },
    apply: async (values) => `${formatSize((await post("/log/clean", { before_ms: time(values) })).bytes)} are free.`,
  });
}

function Disk() {
  const state = useData("/log", {}, { every: 10_000 });
  return html`<${Card} title="Disk and log" id="disk" tools=${state.data?.can_clean !== false && html`<div class="tools"><button type="button" onClick=${clean}>Clean now…</button></div>`}>
    <${Loaded} state=${state} absent="This server does not describe its log.">${(log) => html`<${Facts} facts=${[
      ["free", log.free_bytes != null && formatSize(log.free_bytes)], ["messages", log.log_bytes != null && formatSize(log.log_bytes)], ["grows by", log.fill_bytes_per_s != null && `${formatSize(log.fill_bytes_per_s)}/s`],
      ["full", log.full_ms != null ? html`<${Time} ms=${log.full_ms} />` : "not at this rate"], ["sends are rejected below", log.reject_sends_bytes != null && formatSize(log.reject_sends_bytes)], ["oldest message", log.oldest_ms != null && html`<${Time} ms=${log.oldest_ms} />`],
    ]} />
      ${log.writers?.length > 0 && html`<h3>Largest topics</h3><${Table} label="largest topics" columns=${WRITERS} rows=${log.writers} rowKey=${(row) => row.topic} />`}
      ${log.holds?.length > 0 && html`<h3>What keeps segments</h3><${Table} label="what keeps segments" columns=${HOLDS} rows=${log.holds} rowKey=${(row) => JSON.stringify(row)} />`}`}<//>
  <//>`;
}

function Settings({ query }) {
  const state = useData("/config", {}, { every: 60_000 });
  const text = query.get("setting") ?? "";
  return html`<${Card} title="Settings in force">
    <div class="filters"><${Filter} name="setting" label="setting contains" query=${query} /><${Filter} name="source" label="from" query=${query} options=${["file", "flag", "environment"]} /></div>
    <${Loaded} state=${state} absent="This server does not list its settings.">${(answer) => {
      const source = query.get("source");
      const rows = answer.items.filter((row) => (row.name ?? row.key).includes(text) && (!source || row.source.startsWith(source)));
      return html`<${Table} label="settings" columns=${SETTINGS} rows=${rows} rowKey=${(row) => row.name ?? row.key} empty="No setting matches." />`;
    }}<//>
  <//>`;
}

export function Page({ query }) {
  const processes = useData("/processes", listing({}), { every: 3_000 });
  const clients = useData("/clients", listing({ text: query.get("client") }), { every: 3_000 });
  const health = snapshot.value?.health;
  return html`<${Head} title="System">${health && (health.ready ? html`<${Badge} kind="good">accepts sends<//>` : html`<${Badge} kind="bad">${visible(health.reason)}<//>`)}${health?.warning && html`<${Badge} kind="warn">${visible(health.warning)}<//>`}<//>
    <${Card} title="Processes"><${Loaded} state=${processes} absent="This server does not list its processes.">${(answer) => html`<${Missing} missing=${answer.missing} /><${Table} label="processes" columns=${PROCESSES} rows=${answer.items} rowKey=${(row) => row.name} />`}<//><//>
    <${Disk} />
    <${Card} title="Clients"><div class="filters"><${Filter} name="client" label="client contains" query=${query} /></div><${Loaded} state=${clients} absent="This server does not list its clients.">${(answer) => html`<${Table} label="clients" columns=${CLIENTS} rows=${answer.items} rowKey=${(row) => `${row.client_id} ${row.address}`} empty="No client is connected." />`}<//><//>
    <${Settings} query=${query} />`;
}

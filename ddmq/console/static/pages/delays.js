// Delayed messages on a timeline of their due times; a stretch of it can be cancelled, moved, held or fired.
import { openChange, openOperation } from "../lib/actions.js";
import { listing, useData } from "../lib/api.js";
import { count, formatDuration, formatNumber, formatTime, shorten, visible } from "../lib/format.js";
import { html } from "../lib/html.js";
import { now } from "../lib/live.js";
import { Badge, Card, Chips, Filter, Head, inUtc, Loaded, Missing, Name, Time, TopicLink } from "../lib/parts.js";
import { link, readFilter, setQuery } from "../lib/route.js";
import { Pager, Table } from "../lib/table.js";
import { Timeline } from "../lib/timeline.js";
import { holdDelays } from "./topic.js";

const FILTERS = ["topic", "key", "from_ms", "to_ms"];
const RANGES = { "1 h": 3_600_000, "1 d": 86_400_000, "1 w": 604_800_000, "30 d": 2_592_000_000, "1 y": 31_536_000_000 };
const BUCKETS = 120;
const COLUMNS = [
  { head: "due", cell: (row) => html`<a href=${link(["delays", row.id])}><${Time} ms=${row.due_ms} /></a>` },
  { head: "topic", cell: (row) => html`<${TopicLink} topic=${row.topic} />` },
  { head: "key", cell: (row) => html`<${Name} text=${shorten(row.key ?? "", 60)} />` },
  { head: "sent", cell: (row) => html`<${Time} ms=${row.born_ms} />` },
  { head: "repeats", cell: (row) => visible(row.repeats ?? "") },
  { head: "state", cell: (row) => (row.held ? html`<${Badge} kind="warn">held<//>` : "") },
  { head: "body", wide: true, cell: (row) => html`<span class="soft">${row.error ? html`<${Badge} kind="bad">${visible(row.error)}<//>` : visible(shorten(row.preview ?? "", 120))}</span>` },
];

function act(action, filter, what, extra = {}) {
  const [verb, note, danger] = {
    cancel: ["Cancel", "Cancelled messages are never delivered.", true],
    fire: ["Fire", "They are delivered now instead of at their due times.", false],
    reschedule: ["Move", "", false],
    hold: ["Hold", "Held messages wait until they are released, also past their due times.", false],
    release: ["Release", "Overdue messages fire at once.", false],
  }[action];
  openOperation({ title: `${verb} ${what}`, verb, note: note || `Each due time moves by ${formatDuration(extra.shift_ms)}.`, danger, body: { kind: "delays", action, filter, ...extra } });
}

function move(filter, what) {
  openChange({
    title: `Move ${what}`, verb: "Plan",
    fields: [{ name: "hours", label: "by hours (negative: earlier)", type: "number", value: "1", required: true }],
    apply: async (values) => {
      queueMicrotask(() => act("reschedule", filter, what, { shift_ms: Math.round(Number(values.hours) * 3_600_000) }));
      return "The plan follows.";
    },
  });
}

function Overview({ answer, query }) {
  const topics = Object.entries(answer.topics).sort(([, left], [, right]) => right - left);
  const health = answer.health;
  return html`<${Card} title=${`${count(answer.pending, "message")} wait`}>
    ${health && !health.ready && html`<p class="warn">▲ ${visible(health.reason)}</p>`}
    ${Object.entries(answer.set_aside ?? {}).map(([topic, reason]) => html`<p class="warn">▲ ${visible(topic)} is set aside: ${visible(reason)}</p>`)}
    <div class="chips">${topics.slice(0, 30).map(([topic, waiting]) => html`<button type="button" aria-pressed=${query.get("topic") === topic} onClick=${() => setQuery({ topic: query.get("topic") === topic ? "" : topic })}>${visible(topic)}: ${formatNumber(waiting)}${topic in (answer.held ?? {}) ? " (held)" : ""}</button>`)}</div>
  <//>`;
}

function DueTimes({ query, topic }) {
  const range = query.get("range") ?? "1 d";
  const from = Number(query.get("view_ms") ?? Math.floor(now.value / 60_000) * 60_000);
  const to = from + (RANGES[range] ?? RANGES["1 d"]);
  const state = useData("/delay/histogram", { topic, from_ms: from, to_ms: to, buckets: BUCKETS }, { every: 10_000 });
  const selected = query.get("from_ms") ? [Number(query.get("from_ms")), Number(query.get("to_ms") ?? to)] : null;
  return html`<${Card} title="Due times" tools=${html`<div class="tools actions">${Object.keys(RANGES).map((name) => html`<button type="button" aria-pressed=${name === range} class=${name === range ? "act" : ""} onClick=${() => setQuery({ range: name })}>${name}</button>`)}</div>`}>
    <${Loaded} state=${state} absent="This server has no histogram of delays.">${(answer) => {
      if (answer.step_ms == null) return html`<p class="soft">Nothing is due.</p>`;
    const counts = new Array(Math.ceil((answer.to_ms - answer.from_ms) / answer.step_ms)).fill(0);
    for (const each of answer.items) counts[Math.floor((each.from_ms - answer.from_ms) / answer.step_ms)] += each.count;
      return html`<${Timeline} buckets=${counts} fromMs=${answer.from_ms} stepMs=${answer.step_ms} selected=${selected} label=${`${count(counts.reduce((sum, each) => sum + each, 0), "message")} due in the next ${range}`}
        onSelect=${(start, end) => setQuery({ from_ms: Math.floor(start), to_ms: Math.ceil(end) })} />
        <p class="soft">${answer.before ? `${formatNumber(answer.before)} are due before this range. ` : ""}${answer.after ? `${formatNumber(answer.after)} are due after it. ` : ""}The highest bar is ${count(Math.max(...counts), "message")} in ${formatDuration(answer.step_ms)}. Drag over a stretch to choose the messages that are due in it.</p>`;
    }}<//>
  <//>`;
}

export function Page({ query }) {
  const topic = query.get("topic");
  const overview = useData("/delay", {}, { every: 3_000 });
  const filter = readFilter(query, FILTERS);
  const matches = useData("/delay/count", filter, { version: "delays" });
  const list = useData("/delay/messages", listing({ ...filter, after: query.get("after") }), { version: "delays" });
  const [largest] = Object.entries(overview.data?.topics ?? {}).sort(([, left], [, right]) => right - left);
  const holdable = topic ?? largest?.[0];
  const held = holdable && holdable in (overview.data?.held ?? {});
  const what = `${count(matches.data?.count ?? 0, "delayed message")}${topic ? ` of ${topic}` : ""}`;
  const times = filter.from_ms ? `${formatTime(filter.from_ms, inUtc.value)} to ${formatTime(filter.to_ms, inUtc.value)}` : "";
  return html`<${Head} title="Delayed messages"><div class="tools actions">${holdable && (held ? html`<button type="button" class="act" onClick=${() => holdDelays(holdable, false)}>Release ${visible(holdable)}…</button>` : html`<button type="button" onClick=${() => holdDelays(holdable, true)}>Hold ${visible(holdable)}…</button>`)}</div><//>
    <${Loaded} state=${overview}>${(answer) => html`<${Overview} answer=${answer} query=${query} />`}<//>
    <${DueTimes} query=${query} topic=${topic} />
    <${Card} title="Messages" note=${times && `due ${times}`}>
      <div class="filters"><${Filter} name="topic" label="topic" query=${query} /><${Filter} name="key" label="key" query=${query} /></div>
      <${Chips} query=${query} names=${FILTERS} />
      ${Object.keys(filter).length > 0 && matches.data?.count > 0 && html`<p class="actions"><b>${matches.data.exact ? "" : "at least "}${count(matches.data.count, "message")} match:</b>
        <button type="button" onClick=${() => act("hold", filter, what)}>Hold…</button><button type="button" onClick=${() => act("release", filter, what)}>Release…</button>
        <button type="button" onClick=${() => move(filter, what)}>Move…</button><button type="button" onClick=${() => act("fire", filter, what)}>Fire now…</button>
        <button type="button" class="danger" onClick=${() => act("cancel", filter, what)}>Cancel…</button></p>`}
      <${Loaded} state=${list}>${(answer) => html`<${Missing} missing=${answer.missing} /><${Table} label="delayed messages" columns=${COLUMNS} rows=${answer.items} rowKey=${(row) => row.id} empty=${`No delayed message ${Object.keys(filter).length ? "matches" : "waits"}.`} />
        <${Pager} answer=${answer} shown=${answer.items.length} noun="message" query=${query} onEnd=${list.more} />`}<//>
    <//>`;
}

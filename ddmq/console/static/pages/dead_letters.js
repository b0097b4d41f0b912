// Dead letters: the groups that have some, and of one group the reasons, errors, topics and hours, with actions.
import { useState } from "../vendor/hooks.js";
import { exportLines } from "../lib/export.js";
import { listing, path, useData } from "../lib/api.js";
import { openFailure, openOperation } from "../lib/actions.js";
import { count, formatNumber, formatTime, shorten, visible } from "../lib/format.js";
import { html } from "../lib/html.js";
import { Card, Chips, Filter, GroupLink, Head, inUtc, Loaded, MessageLink, Missing, Name, Time, TopicLink } from "../lib/parts.js";
import { link, readFilter, setQuery } from "../lib/route.js";
import { Pager, Table } from "../lib/table.js";

const FILTERS = ["reason", "error", "topic", "since_ms", "until_ms", "text"];
const HOUR_MS = 3_600_000;
const GROUPS = [
  { head: "group", wide: true, cell: (row) => html`<a href=${link(["dead-letters", row.group])}><${Name} text=${row.group} /></a>` },
  { head: "open", number: true, cell: (row) => formatNumber(row.letters) },
  { head: "stored so far", number: true, cell: (row) => formatNumber(row.stored) },
  { head: "oldest", cell: (row) => html`<${Time} ms=${row.oldest_ms} />` },
];
const LETTERS = [
  { head: "died", cell: (row) => html`<${Time} ms=${row.time_ms} />` },
  { head: "reason", cell: (row) => visible(row.reason) },
  { head: "topic", cell: (row) => html`<${TopicLink} topic=${row.topic} />` },
  { head: "key", cell: (row) => html`<${Name} text=${shorten(row.key, 60)} />` },
  { head: "tries", number: true, cell: (row) => formatNumber(row.attempts) },
  { head: "resent", number: true, cell: (row) => formatNumber(row.resent) },
  { head: "error", wide: true, cell: (row) => html`<span class="soft">${visible(shorten(row.error, 160))}</span>` },
  { head: "body", wide: true, cell: (row) => html`<span class="soft">${visible(shorten(row.preview, 100))}</span>` },
  { head: "story", cell: (row) => html`<${MessageLink} id=${row.id}>story<//>` },
];

function Groups({ query }) {
  const state = useData("/dlq", listing({ after: query.get("after"), text: query.get("text") }), { version: "dead_letters" });
  return html`<${Head} title="Dead letters" />
    <${Card} note="Messages that were given up on. They stay until they are resent or purged.">
      <${Loaded} state=${state}>${(answer) => html`<${Missing} missing=${answer.missing} />
        <${Table} label="groups with dead letters" columns=${GROUPS} rows=${answer.items} rowKey=${(row) => row.group} empty="No group has dead letters." />
        <${Pager} answer=${answer} shown=${answer.items.length} noun="group" query=${query} onEnd=${state.more} />`}<//>
    <//>`;
}

function Facet({ title, rows, others, name, query, show = visible }) {
  const most = Math.max(...rows.map((row) => row.letters), 1);
  return html`<div><h3>${title}</h3>${rows.map((row) => {
    const pressed = query.get(name) === String(row.value);
    const choose = () => {
      if (name === "since_ms") setQuery(pressed ? { since_ms: "", until_ms: "" } : { since_ms: row.value, until_ms: row.value + HOUR_MS });
      else setQuery({ [name]: pressed ? "" : row.value });
    };
    return html`<button type="button" class="facet" aria-pressed=${pressed} onClick=${choose} key=${row.value}><i style=${{ width: `${(100 * row.letters) / most}%` }}></i><span>${show(row.value) || "(none)"}</span><b>${formatNumber(row.letters)}</b></button>`;
  })}${others > 0 && html`<p class="soft">and ${formatNumber(others)} others</p>`}</div>`;
}

function act(group, filter, action, extra = {}) {
  const purge = action === "purge";
  openOperation({
    title: purge ? `Purge dead letters of ${group}` : `Resend dead letters of ${group}`,
    verb: purge ? "Purge" : "Resend",
    danger: purge,
    note: purge ? "Purged dead letters are gone for good." : extra.to_topic ? "They are sent to their topics again: every group that consumes these gets them." : `Only ${group} gets them; other groups do not.`,
    body: { kind: "dead_letters", action, filter: { group, ...filter }, ...extra },
  });
}

function Actions({ group, filter, label }) {
  return html`<p class="actions"><b>${label}</b>
    <button type="button" class="act" onClick=${() => act(group, filter, "resend")}>Resend to ${visible(shorten(group, 30))}…</button>
    <button type="button" onClick=${() => act(group, filter, "resend", { to_topic: true })}>Resend to all groups…</button>
    ${!filter.offsets && html`<button type="button" onClick=${() => exportLines(path`/dlq/${group}/export`, filter, `dead-letters-${group}.ndjson`).catch((error) => openFailure("Export", error))}>Export</button>`}
    <button type="button" onClick=${() => act(group, filter, "purge")}>Purge…</button></p>`;
}

function Group({ group, query }) {
  const filter = readFilter(query, FILTERS);
  const facets = useData(path`/dlq/${group}/facets`, filter, { version: "dead_letters" });
  const oldest = query.get("order") === "oldest";
  const letters = useData(path`/dlq/${group}`, listing({ ...filter, sort: oldest ? "offset" : "-offset", after: query.get("after") }), { version: "dead_letters" });
  const [selection, setSelection] = useState(new Set());
  const offsets = [...selection].map(Number);
  const hour = (value) => formatTime(value, inUtc.value).slice(5, 16);
  return html`<${Head} title=${html`Dead letters of <${GroupLink} group=${group} />`} />
    <${Loaded} state=${facets}>${(answer) => html`<${Card} title=${`${answer.exact ? "" : "at least "}${count(answer.counted, "dead letter")}${Object.keys(filter).length ? " match" : ""}`} note=${answer.exact ? "" : `Of ${formatNumber(answer.letters)}, ${formatNumber(answer.scanned)} are examined so far.`}>
      <${Chips} query=${query} names=${FILTERS} />
      <div class="facets"><${Facet} title="Reason" rows=${answer.by_reason} others=${answer.others.by_reason} name="reason" query=${query} />
        <${Facet} title="Error" rows=${answer.by_error} others=${answer.others.by_error} name="error" query=${query} />
        <${Facet} title="Topic" rows=${answer.by_topic} others=${answer.others.by_topic} name="topic" query=${query} />
        <${Facet} title="Hour" rows=${answer.by_hour} others=${answer.others.by_hour} name="since_ms" query=${query} show=${hour} /></div>
      ${answer.counted > 0 && (offsets.length
        ? html`<${Actions} group=${group} filter=${{ offsets }} label=${`${count(offsets.length, "dead letter")} selected:`} />`
        : html`<${Actions} group=${group} filter=${filter} label=${`All ${formatNumber(answer.counted)} that match:`} />`)}
    <//>`}<//>
    <${Card} title="Dead letters">
      <div class="filters"><${Filter} name="text" label="key, error or body contains" query=${query} /><${Filter} name="order" label="order" query=${query} options=${["oldest"]} empty="newest first" /></div>
      <${Loaded} state=${letters}>${(answer) => html`<${Table} label="dead letters" columns=${LETTERS} rows=${answer.items} rowKey=${(row) => String(row.offset)} selection=${selection} onSelect=${setSelection} empty="No dead letter matches." />
        <${Pager} answer=${answer} shown=${answer.items.length} noun="dead letter" query=${query} onEnd=${letters.more} />`}<//>
    <//>`;
}

export function Page({ segments, query }) {
  return segments[1] ? html`<${Group} group=${segments[1]} query=${query} />` : html`<${Groups} query=${query} />`;
}

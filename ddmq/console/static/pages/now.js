// The first page: is all well, what needs attention and what to do about it first, and how messages flow.
import { listing, useData } from "../lib/api.js";
import { openOperation } from "../lib/actions.js";
import { count, formatCompact, formatDrain, formatNumber, formatRate, formatSeconds, formatSize, visible } from "../lib/format.js";
import { html } from "../lib/html.js";
import { problem, snapshot } from "../lib/live.js";
import { Badge, Card, Command, GroupLink, Head, Loaded, Missing, Problem, Time, TopicLink } from "../lib/parts.js";
import { link } from "../lib/route.js";
import { ROOT } from "../lib/session.js";
import { Sparkline } from "../lib/spark.js";
import { Table } from "../lib/table.js";
import { CAUSES } from "../lib/words.js";

const BADGES = { critical: ["bad", "critical"], warning: ["warn", "warning"], info: ["plain", "info"] };
const SHOWN_MAX = 12;

/** The first action that is safe to take from here: it can be taken back. */
function firstAction(finding) {
  const { group } = finding.labels;
  if (finding.id === "DdmqKeyBlocked" && group) {
    const body = { kind: "keys", action: "park", filter: { group, state: "retrying" } };
    return html`<button type="button" onClick=${() => openOperation({ title: `Park the failing keys of ${group}`, verb: "Park", body, note: "Parked keys wait until they are replayed. Other keys go on." })}>Park the keys…</button>`;
  }
  return null;
}

function Findings({ findings }) {
  const urgent = findings.filter((each) => each.severity !== "info");
  const worst = urgent.length ? (urgent.some((each) => each.severity === "critical") ? "critical" : "warning") : "";
  const title = urgent.length ? `${worst === "critical" ? "✗" : "▲"} ${count(urgent.length, "thing")} ${urgent.length === 1 ? "needs" : "need"} attention` : "✓ All well";
  return html`<section class=${`card full verdict ${worst}`} aria-label="verdict">
    <h1 tabindex="-1">${title}</h1>
    ${!urgent.length && html`<p class="soft">No rule of docs/alerts.md is violated.</p>`}
    ${findings.length > 0 && html`<ul class="findings">${findings.slice(0, SHOWN_MAX).map((each) => html`<li key=${each.id + JSON.stringify(each.labels)}>
      <${Badge} kind=${BADGES[each.severity][0]}>${BADGES[each.severity][1]}<//>
      <div class="what"><a href=${ROOT + each.page}>${visible(each.text)}</a><small>since <${Time} ms=${each.since_ms} /> · ${visible(each.action)}</small><${Command} text=${each.command} /></div>
      <div class="actions">${firstAction(each)}<a class="button" href=${ROOT + each.page}>Look</a></div>
    </li>`)}</ul>`}
    ${findings.length > SHOWN_MAX && html`<p>and ${findings.length - SHOWN_MAX} more: <code>ddmq findings</code></p>`}
  </section>`;
}

function Tile({ name, value, detail, values, href }) {
  const content = html`<span>${name}</span><b>${value}</b><span>${detail}</span>${values && html`<${Sparkline} values=${values} label=${name} />`}`;
  return href ? html`<a class="tile" href=${href}>${content}</a>` : html`<div class="tile">${content}</div>`;
}

function Tiles({ current }) {
  const { totals, tails } = current;
  const line = (name) => tails.values[name];
  return html`<div class="tiles full">
    <${Tile} name="sent/s" value=${formatRate(totals.in_per_s)} detail="messages" values=${line("in_per_s")} href=${link(["topics"])} />
    <${Tile} name="acknowledged/s" value=${formatRate(totals.acked_per_s)} detail=${`${formatRate(totals.delivered_per_s)} delivered/s`} values=${line("acked_per_s")} href=${link(["groups"])} />
    <${Tile} name="not committed" value=${formatCompact(totals.lag)} detail="by all groups" values=${line("lag")} href=${link(["groups"])} />
    <${Tile} name="oldest waits" value=${formatSeconds(totals.oldest_wait_s)} detail="in any group" values=${line("oldest_wait_s")} href=${link(["groups"])} />
    <${Tile} name="delayed" value=${formatCompact(totals.delayed)} detail=${current.due_next_hour == null ? "not due yet" : `${formatCompact(current.due_next_hour)} due within an hour`} values=${line("delayed")} href=${link(["delays"])} />
    <${Tile} name="blocked keys" value=${formatCompact(totals.blocked_keys)} detail=${`${formatCompact(totals.retrying)} retrying`} values=${line("blocked_keys")} href=${link(["keys"])} />
    <${Tile} name="disk free" value=${formatSize(totals.disk_free_bytes)} detail=${`${formatSize(totals.log_bytes)} of messages`} values=${line("disk_free_bytes")} href=${link(["system"])} />
  </div>`;
}

const BEHIND = [
  { head: "group", cell: (row) => html`<${GroupLink} group=${row.group} />` },
  { head: "topic", cell: (row) => html`<${TopicLink} topic=${row.topic} />` },
  { head: "unfinished", number: true, cell: (row) => formatNumber(row.unfinished ?? row.lag) },
  { head: "oldest waits", number: true, cell: (row) => formatSeconds(row.lag_age_s) },
  { head: "in/s", number: true, cell: (row) => formatRate(row.arriving_per_s) },
  { head: "out/s", number: true, cell: (row) => formatRate(row.finished_per_s) },
  { head: "drains in", number: true, cell: (row) => formatDrain(row) },
  { head: "because", wide: true, cell: (row) => CAUSES[row.why] ?? "" },
];

function Changes() {
  const { data } = useData("/changes", { count: 5 }, { every: 30_000 });
  if (!data?.items?.length) return null;
  return html`<${Card} title="Recent changes" tools=${html`<a class="tools" href=${link(["changes"])}>all changes</a>`}>
    <ul class="findings">${data.items.map((each) => html`<li key=${each.id}><${Time} ms=${each.at_ms} /><span class="what"><bdi>${visible(each.object)}</bdi> <span class="soft">${visible(each.who)}</span></span></li>`)}</ul>
  <//>`;
}

/** What can be shown without snapshots, for which a right may be missing. */
function WithoutSnapshot() {
  const lag = useData("/lag", listing({}, 10));
  return html`<div class="now"><${Head} title="Now" /><${Problem} error=${problem.value} retried />
    <${Card} title="Who is behind"><${Loaded} state=${lag}>${(answer) => html`<${Table} label="who is behind" columns=${BEHIND} rows=${answer.items.filter((row) => (row.unfinished ?? row.lag) > 0)} rowKey=${(row) => `${row.group} ${row.topic}`} empty="Nobody: every message is finished." />`}<//><//></div>`;
}

export function Now() {
  const current = snapshot.value;
  if (!current && problem.value) return html`<${WithoutSnapshot} />`;
  if (!current) return html`<${Head} title="Now" /><p class="soft" aria-busy="true">Waiting for the first snapshot…</p>`;
  const behind = (current.behind ?? []).filter((row) => (row.unfinished ?? row.lag) > 0);
  return html`<div class="now">
    <${Findings} findings=${current.findings ?? []} />
    <${Missing} missing=${current.missing} />
    <${Tiles} current=${current} />
    <${Card} title="Who is behind" note=${current.behind ? "" : "The consumer proxy runs elsewhere."}>
      <${Table} label="who is behind" columns=${BEHIND} rows=${behind} rowKey=${(row) => `${row.group} ${row.topic}`} empty="Nobody: every message is finished." />
    <//>
    <${Changes} />
  </div>`;
}

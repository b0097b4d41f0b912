// One message: what it contains, and its story in each group as a waterfall whose spans add up.
import { path, useData } from "../lib/api.js";
import { formatDuration, formatNumber, shorten, visible } from "../lib/format.js";
import { html } from "../lib/html.js";
import { Badge, Body, Card, Facts, GroupLink, Head, Loaded, Name, Time, TopicLink } from "../lib/parts.js";
import { sendMessage } from "./topic.js";

/** Where a span lies on the track of its story, in percent. */
export function place(span, startMs, wholeMs) {
  const whole = Math.max(wholeMs, 1);
  return { left: `${(100 * (span.start_ms - startMs)) / whole}%`, width: `${(100 * span.ms) / whole}%` };
}

function kindOf(span) {
  if (!span.known) return "unknown";
  if (/retry|fail/.test(span.phase)) return "retry";
  return /work|handl|deliver/.test(span.phase) ? "work" : "";
}

function Story({ story, sentMs }) {
  return html`<${Card} title=${html`<${GroupLink} group=${story.group} />`} tools=${html`<span class="tools"><${Badge} kind=${story.state === "dead" ? "bad" : story.end ? "good" : "plain"}>${visible(story.state)}<//></span>`}
      note=${`${formatDuration(story.whole_ms)} in all${story.end_why ? `: ${visible(story.end_why)}` : ""}`}>
    <div class="waterfall" role="list">${story.spans.map((span, index) => html`<div role="listitem" key=${`w${index}`}><b>${visible(span.what)}</b>${span.why && html`<div class="soft">${visible(shorten(span.why, 200))}</div>`}</div>
      <div class="track" key=${`t${index}`} aria-hidden="true"><i class=${kindOf(span)} style=${place(span, sentMs, story.whole_ms)}></i></div>
      <div class="length" key=${`l${index}`} title=${visible(span.who)}>${formatDuration(span.ms)}</div>`)}</div>
  <//>`;
}

export function Page({ segments }) {
  const id = segments[1];
  const found = useData(path`/messages/${id}`, { form: 2 });
  const story = useData(path`/messages/${id}/story`);
  return html`<${Head} title=${html`Message <span class="id">${visible(id)}</span>`} />
    <${Loaded} state=${found}>${(answer) => (answer.items.length === 0 ? html`<p class="soft">No stored message has this id. A delayed message that waits is on its own page.</p>` : answer.items.map((message) => html`<${Card} title=${html`<${TopicLink} topic=${message.topic} /> ${message.queue}/${formatNumber(message.offset)}`} tools=${html`<div class="tools actions"><button type="button" onClick=${() => sendMessage(message.topic, message)}>Send again with changes…</button></div>`}>
      <${Facts} facts=${[["key", message.key && html`<${Name} text=${message.key} />`], ["tags", message.tags && html`<${Name} text=${message.tags} />`], ["sent", html`<${Time} ms=${message.born_ms} />`], ["stored", html`<${Time} ms=${message.stored_ms} />`], ["bytes", message.body_bytes], ...Object.entries(message.properties).map(([name, value]) => [visible(name), visible(value)])]} />
      <${Body} message=${message} />
    <//>`))}<//>
    <${Loaded} state=${story} absent="No group has a story of it.">${(answer) => html`
      ${answer.notes.map((note) => html`<p class="soft">${visible(note)}</p>`)}
      ${answer.stories.map((each) => html`<${Story} key=${each.group} story=${each} sentMs=${answer.sent_ms} />`)}
      ${!answer.stories.length && html`<p class="soft">No group has received it.</p>`}`}<//>`;
}

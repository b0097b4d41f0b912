// One delayed message: when it is due, what it contains, and its changes.
import { path, post, useData } from "../lib/api.js";
import { openChange } from "../lib/actions.js";
import { commandLine, formatTime, visible } from "../lib/format.js";
import { html } from "../lib/html.js";
import { Badge, Body, Card, Facts, Head, Loaded, Name, Time, TopicLink } from "../lib/parts.js";

const ACTIONS = {
  cancel: ["Cancel", "The message is never delivered.", true],
  fire: ["Fire now", "The message is delivered now instead of at its due time.", false],
  hold: ["Hold", "The message waits until it is released, also past its due time.", false],
  release: ["Release", "The message fires at its due time, or at once if that is past.", false],
};

function act(id, action, reload) {
  const [verb, text, danger] = ACTIONS[action];
  openChange({
    title: `${verb} this delayed message`, verb, text, danger,
    command: commandLine(`delay ${action}`, [id]),
    apply: async () => {
      const answer = await post(path`/delay/messages/${id}`, { action });
      reload();
      return `Outcome: ${answer.text ?? answer.outcome}`;
    },
  });
}

function reschedule(id, dueMs, reload) {
  openChange({
    title: "Move this delayed message", verb: "Move",
    fields: [{ name: "due", label: "due at (UTC)", value: formatTime(dueMs).slice(0, 19), required: true }],
    command: (values) => commandLine("delay reschedule", [id], { at: `${values.due.trim().replace(" ", "T")}Z` }),
    apply: async (values) => {
      const due = Date.parse(`${values.due.trim().replace(" ", "T")}Z`);
      if (Number.isNaN(due)) throw new Error(`${values.due} is no time; write 2026-11-28 19:38:00`);
      const answer = await post(path`/delay/messages/${id}`, { action: "reschedule", due_ms: due });
      reload();
      return `Outcome: ${answer.text ?? answer.outcome}`;
    },
  });
}

export function Page({ segments }) {
  const id = segments[1];
  const state = useData(path`/delay/messages/${id}`, {}, { version: "delays" });
  return html`<${Head} title=${html`Delayed message <span class="id">${visible(id)}</span>`} />
    <${Loaded} state=${state}>${(message) => html`<${Card} title=${html`<${Badge}>${visible(message.state)}<//>`} tools=${message.due_ms != null && html`<div class="tools actions">
        <button type="button" onClick=${() => act(id, message.held ? "release" : "hold", state.reload)}>${message.held ? "Release…" : "Hold…"}</button>
        <button type="button" onClick=${() => reschedule(id, message.due_ms, state.reload)}>Move…</button>
        <button type="button" onClick=${() => act(id, "fire", state.reload)}>Fire now…</button>
        <button type="button" class="danger" onClick=${() => act(id, "cancel", state.reload)}>Cancel…</button></div>`}>
      <${Facts} facts=${[
        ["due", message.due_ms != null && html`<${Time} ms=${message.due_ms} /> (<${Time} ms=${message.due_ms} absolute />)`],
        ["since", message.at_ms != null && html`<${Time} ms=${message.at_ms} />`], ["topic", message.topic && html`<${TopicLink} topic=${message.topic} />`],
        ["key", message.key && html`<${Name} text=${message.key} />`], ["tags", message.tags && html`<${Name} text=${message.tags} />`],
        ["sent", message.born_ms != null && html`<${Time} ms=${message.born_ms} />`], ["repeats", message.repeats && visible(message.repeats)],
        ["occurrence", message.repeats && message.occurrence], ["message id", message.message_id && html`<span class="id">${visible(message.message_id)}</span>`],
      ]} />
      ${Object.keys(message.properties ?? {}).length > 0 && html`<h3>Properties</h3><${Facts} facts=${Object.entries(message.properties).map(([name, value]) => [visible(name), visible(value)])} />`}
      ${message.topic && html`<h3>Body</h3><${Body} message=${message} />`}
    <//>`}<//>`;
}

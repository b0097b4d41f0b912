// Small pieces that several pages show: names, times, states, and what to show instead of data.
import { useState } from "../vendor/hooks.js";
import { signal } from "../vendor/signals.js";
import { ABSENT, formatNumber, formatRelative, formatTime, shorten, visible } from "./format.js";
import { html } from "./html.js";
import { now } from "./live.js";
import { link, setQuery } from "./route.js";
import { ADVICE } from "./words.js";

const ZONE = "ddmq.console.zone";
const MESSAGE_MAX = 2_000; // characters of an error
export const inUtc = signal(localStorage.getItem(ZONE) !== "local");

/** Show all times in UTC, or in the browser's time zone. */
export function toggleZone() {
  inUtc.value = !inUtc.value;
  localStorage.setItem(ZONE, inUtc.value ? "utc" : "local");
}

/** A name or a key from outside. It cannot change how the page reads. */
export function Name({ text }) {
  return html`<bdi class="name">${visible(text)}</bdi>`;
}

/** A time relative to now, with the absolute one as its title. */
export function Time({ ms, absolute = false }) {
  if (ms == null) return ABSENT;
  const exact = `${formatTime(ms, inUtc.value)}${inUtc.value ? " UTC" : ""}`;
  const date = new Date(ms);
  const machine = Number.isNaN(date.getTime()) ? undefined : date.toISOString();
  return html`<time datetime=${machine} title=${exact}>${absolute ? exact : formatRelative(ms, now.value)}</time>`;
}

export function TopicLink({ topic }) {
  return topic ? html`<a href=${link(["topics", topic])}><${Name} text=${topic} /></a>` : ABSENT;
}

export function GroupLink({ group }) {
  return html`<a href=${link(["groups", group])}><${Name} text=${group} /></a>`;
}

export function MessageLink({ id, children }) {
  return id ? html`<a href=${link(["messages", id])} class=${children ? "" : "id"}>${children ?? visible(id).slice(0, 12)}</a>` : ABSENT;
}

/** A word about a state; its shape and word tell what its colour tells. */
export function Badge({ kind = "plain", children }) {
  const mark = { bad: "✗ ", warn: "▲ ", good: "✓ ", plain: "" }[kind];
  return html`<span class=${`badge ${kind}`}>${mark}${children}</span>`;
}

/** The head of a page: its title, and what belongs beside it. */
export function Head({ title, children }) {
  return html`<div class="head"><h1 tabindex="-1">${title}</h1>${children}</div>`;
}

export function Card({ title, note, children, id, tools }) {
  return html`<section class="card" aria-label=${title} id=${id}>
    ${(title || tools) && html`<div class="cardhead"><h2>${title}</h2>${tools}</div>`}
    ${note && html`<p class="soft">${note}</p>`}
    ${children}
  </section>`;
}

/** An error with its sentence, and what to do; 403 says which right is missing, because the server does.
 * `retried`: the page tries again by itself. */
export function Problem({ error, retried = false }) {
  if (!error) return null;
  return html`<div class="problem" role="alert"><strong>✗ ${error.status === 403 ? "Not allowed" : "This did not work"}</strong><span>${visible(shorten(error.message, MESSAGE_MAX), true)}</span>
    <span>${ADVICE[error.status] ?? ""}${retried && ![400, 403].includes(error.status) ? " The page tries again by itself." : ""}</span></div>`;
}

/** Show data once it is there, and meanwhile what is the matter. `absent`: the sentence for a route that this
 * server does not have. */
export function Loaded({ state, children, absent }) {
  const { data, error, loading, atMs } = state;
  if (!data && error) {
    return error.status === 404 && absent ? html`<p class="soft">${absent}</p>` : html`<${Problem} error=${error} retried />`;
  }
  if (!data) return html`<p class="soft" aria-busy=${loading}>Loading…</p>`;
  return html`<div class=${error ? "data old" : "data"}>${error && html`<${Problem} error=${error} retried /><p class="warn">▲ What follows is old: it was fetched <${Time} ms=${atMs} />.</p>`}${children(data)}</div>`;
}

/** Processes that did not answer, so that nobody takes a part for the whole. */
export function Missing({ missing }) {
  const names = Array.isArray(missing) ? missing.map((each) => each.name ?? each.topic) : Object.keys(missing ?? {});
  if (!names.length) return null;
  return html`<p class="warn" role="status">▲ This list is incomplete: no answer from ${names.map((each) => visible(each)).join(", ")}.</p>`;
}

/** A field of the filter row, kept in the address. */
export function Filter({ name, label, query, type = "search", placeholder = "", options, empty = "all" }) {
  const value = query.get(name) ?? "";
  const [draft, setDraft] = useState(null); // what is typed, which fresh data must not overwrite
  const change = (event) => {
    setDraft(null);
    setQuery({ [name]: event.target.value.trim() });
  };
  const id = `filter-${name}`;
  return html`<span class="filter"><label for=${id}>${label}</label>${
    options
      ? html`<select id=${id} value=${value} onChange=${change}>
          <option value="" selected=${value === ""}>${empty}</option>
          ${options.map((each) => html`<option value=${each} selected=${each === value}>${each}</option>`)}
        </select>`
      : html`<input id=${id} type=${type} value=${draft ?? value} placeholder=${placeholder} onInput=${(event) => setDraft(event.target.value)} onChange=${change} />`
  }</span>`;
}

/** Which filters are set, each with a button that removes it. */
export function Chips({ query, names }) {
  const set = names.filter((name) => query.get(name));
  if (!set.length) return null;
  return html`<p class="chips">${set.map(
    (name) => html`<button type="button" onClick=${() => setQuery({ [name]: "" })} aria-label=${`remove filter ${name}`}>${name}: <bdi>${visible(query.get(name))}</bdi> ✕</button>`,
  )}</p>`;
}

/** Names and values in two columns. */
export function Facts({ facts }) {
  const shown = facts.filter(([, value]) => value != null && value !== "" && value !== false);
  return html`<dl class="facts">${shown.map(([name, value]) => html`<div><dt>${name}</dt><dd>${typeof value === "number" ? formatNumber(value) : value}</dd></div>`)}</dl>`;
}

/** A command for the shell, with a button that copies it. */
export function Command({ text }) {
  if (!text) return null;
  const copy = (event) => {
    const button = event.currentTarget;
    navigator.clipboard?.writeText(text).then(() => (button.textContent = "copied"), () => (button.textContent = "select it to copy"));
  };
  return html`<div class="command"><code tabindex="0">${visible(text)}</code><button type="button" class="quiet" onClick=${copy}>copy</button></div>`;
}

/** The body of a message, or as much of it as an answer holds. JSON is indented. */
export function Body({ message }) {
  if (message.body == null && message.body_base64 == null) return html`<p class="soft">no body</p>`;
  if (message.body == null) return html`<pre tabindex="0" class="body">${message.body_base64}</pre>`;
  let text = message.body;
  try {
    if (/^\s*[[{]/.test(text) && text.length < 100_000) text = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // not JSON: shown as it is
  }
  return html`<pre tabindex="0" class="body">${visible(text.slice(0, 65_536), true)}${text.length > 65_536 ? "\n…" : ""}</pre>`;
}

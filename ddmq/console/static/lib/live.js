// The stream of snapshots, one a second, shared by all parts of a page. Closed while the tab is hidden.
import { computed, signal } from "../vendor/signals.js";
import { authorization, refusal, ROOT } from "./session.js";

const SILENT_MS = 4_000; // a snapshot comes each second
const REOPEN_MS = 2_000;

export const snapshot = signal(null);
export const now = signal(Date.now());
const receivedAt = signal(0);
const problem = signal("");
let stream = null; // the AbortController of the open stream

/** `live`, `old` (with the seconds since the last snapshot), `starting` or `lost`. */
export const status = computed(() => {
  const silentMs = now.value - receivedAt.value;
  if (!receivedAt.value) return { state: problem.value ? "lost" : "starting", text: problem.value };
  if (silentMs > SILENT_MS) return { state: "old", text: `old since ${Math.round(silentMs / 1_000)} s` };
  return { state: "live", text: "live" };
});

/** Split off the complete events of a text: [[{name, data}], the rest]. */
export function splitEvents(text) {
  const blocks = text.split("\n\n");
  const rest = blocks.pop();
  const events = blocks.map((block) => {
    const fields = block.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 1).trimStart()]);
    const valueOf = (name) => fields.filter(([field]) => field === name).map(([, value]) => value).join("\n");
    return { name: valueOf("event"), data: valueOf("data") };
  });
  return [events, rest];
}

function take(event) {
  if (event.name === "end") problem.value = JSON.parse(event.data).reason;
  if (event.name !== "snapshot") return;
  snapshot.value = JSON.parse(event.data);
  receivedAt.value = now.value = Date.now();
  problem.value = "";
}

async function read(controller) {
  const response = await fetch(`${ROOT}/events`, { headers: authorization(), signal: controller.signal });
  if (!response.ok) {
    const text = (await response.json().catch(() => ({}))).error ?? `status ${response.status}`;
    if (response.status === 401) refusal.value = text;
    throw new Error(text);
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const [events, rest] = splitEvents(text + value);
    text = rest;
    events.forEach(take);
  }
}

function open() {
  if (stream || document.hidden) return;
  const controller = new AbortController();
  stream = controller;
  read(controller).catch((error) => {
    if (!controller.signal.aborted) problem.value = error.message === "Failed to fetch" ? "the server does not answer" : error.message;
  }).finally(() => {
    if (stream !== controller) return;
    stream = null;
    setTimeout(open, REOPEN_MS);
  });
}

function close() {
  const controller = stream;
  stream = null;
  controller?.abort();
}

/** Open the stream again, for example with another token. */
export function reopen() {
  close();
  open();
}

/** Begin to receive snapshots, and stop whenever nobody can see them. */
export function watch() {
  open();
  setInterval(() => (now.value = Date.now()), 1_000);
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
}

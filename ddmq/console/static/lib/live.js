// The stream of snapshots, one a second, shared by all parts of a page. Closed while the tab is hidden.
import { computed, signal } from "../vendor/signals.js";
import { authorization, refusal, ROOT } from "./session.js";

const SILENT_MS = 4_000; // a snapshot comes each second
const DEAD_MS = 15_000; // a stream that brings nothing for so long is opened again
const REOPEN_MS = 2_000;
const REOPEN_MAX_MS = 30_000; // if the server rejects it again and again

export const snapshot = signal(null);
export const now = signal(Date.now());
export const openings = signal(0); // how many streams have brought a snapshot
const receivedAt = signal(0);
export const problem = signal(null); // why there are no snapshots: {status, message}
let stream = null; // the AbortController of the open stream
let activeAt = 0; // when it last brought something
let rejections = 0;
let delivering = false;

/** `live`, `old` (with the seconds since the last snapshot), `starting` or `lost`. */
export const status = computed(() => {
  const silentMs = Math.max(0, now.value - receivedAt.value);
  const message = problem.value?.message ?? "";
  if (!receivedAt.value) return { state: message ? "lost" : "starting", text: message };
  if (message || silentMs > SILENT_MS) return { state: "old", text: `old since ${Math.round(silentMs / 1_000)} s${message ? `: ${message}` : ""}` };
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
  if (event.name === "end") problem.value = { status: 0, message: JSON.parse(event.data).reason };
  if (event.name !== "snapshot") return;
  snapshot.value = JSON.parse(event.data);
  receivedAt.value = now.value = Date.now();
  problem.value = null;
  rejections = 0;
  if (!delivering) openings.value += 1;
  delivering = true;
}

async function read(controller) {
  const response = await fetch(`${ROOT}/events`, { headers: authorization(), signal: controller.signal });
  if (!response.ok) {
    const text = (await response.json().catch(() => ({}))).error ?? `status ${response.status}`;
    if (response.status === 401) refusal.value = text;
    rejections += 1;
    throw Object.assign(new Error(text), { status: response.status });
  }
  if (!response.headers.get("Content-Type")?.startsWith("text/event-stream")) throw Object.assign(new Error("the answer to /events is no stream"), { status: -1 });
  refusal.value = "";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    activeAt = Date.now();
    const [events, rest] = splitEvents(text + value);
    text = rest;
    events.forEach(take);
  }
}

function explain(error) {
  if (error instanceof SyntaxError) return "the stream contains no JSON";
  return error instanceof TypeError ? "the server does not answer" : error.message;
}

function open() {
  if (stream || document.hidden) return;
  const controller = new AbortController();
  stream = controller;
  delivering = false;
  activeAt = Date.now();
  read(controller).then(() => {
    if (stream === controller) problem.value ??= { status: 0, message: "the server has ended the stream" };
  }, (error) => {
    if (stream === controller) problem.value = { status: error.status ?? 0, message: explain(error) };
  }).finally(() => {
    if (stream !== controller) return;
    stream = null;
    setTimeout(open, Math.min(REOPEN_MAX_MS, REOPEN_MS * 2 ** rejections));
  });
}

function close() {
  const controller = stream;
  stream = null;
  controller?.abort();
}

/** Open the stream again, for example with another token. */
export function reopen() {
  rejections = 0;
  close();
  open();
}

/** Begin to receive snapshots, and stop whenever nobody can see them. */
export function watch() {
  open();
  setInterval(() => {
    now.value = Date.now();
    if (!stream || now.value - activeAt < DEAD_MS) return;
    problem.value = { status: 0, message: "the server does not answer" };
    reopen();
  }, 1_000);
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
}

// The stream of snapshots, one a second, shared by all parts of a page. Closed while the tab is hidden.
import { computed, signal } from "../vendor/signals.js";

const SILENT_MS = 4_000; // a snapshot comes each second
const REOPEN_MS = 2_000;

export const snapshot = signal(null);
export const now = signal(Date.now());
const receivedAt = signal(0);
const problem = signal("");
let source = null;
let reopening = 0;

/** `live`, `old` (with the seconds since the last snapshot), `starting` or `lost`. */
export const status = computed(() => {
  const silentMs = now.value - receivedAt.value;
  if (!receivedAt.value) return { state: problem.value ? "lost" : "starting", text: problem.value };
  if (silentMs > SILENT_MS) return { state: "old", text: `old since ${Math.round(silentMs / 1_000)} s` };
  return { state: "live", text: "live" };
});

function open() {
  if (source || document.hidden) return;
  source = new EventSource("/events");
  source.addEventListener("snapshot", (event) => {
    snapshot.value = JSON.parse(event.data);
    receivedAt.value = now.value = Date.now();
    problem.value = "";
  });
  source.addEventListener("end", (event) => {
    problem.value = JSON.parse(event.data).reason;
    reopen();
  });
  source.addEventListener("error", () => {
    problem.value = "the server does not answer";
    if (source?.readyState === EventSource.CLOSED) reopen();
  });
}

function close() {
  source?.close();
  source = null;
}

function reopen() {
  close();
  clearTimeout(reopening);
  reopening = setTimeout(open, REOPEN_MS);
}

/** Begin to receive snapshots, and stop whenever nobody can see them. */
export function watch() {
  open();
  setInterval(() => (now.value = Date.now()), 1_000);
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
}

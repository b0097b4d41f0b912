// Requests to the admin API of the server that this page came from, and data that stays current.
import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { signal, useComputed } from "../vendor/signals.js";
import { openings, snapshot, status } from "./live.js";
import { Loader } from "./loader.js";
import { authorization, refusal, ROOT } from "./session.js";

const PLAIN_REFRESH_MS = 5_000;
const VERSIONED_REFRESH_MS = 60_000; // of data whose changes the snapshots announce
const READ_PATIENCE_MS = 30_000;
const CHANGE_PATIENCE_MS = 120_000;
export const NOT_JSON = -1; // instead of the status of an answer that cannot be read
const SCROLLED_ROWS = 200; // that are fetched at once when a list is scrolled
const ROWS_MAX = 10_000;
const NOTHING = { wanted: "", data: null, atMs: null, error: null };
export const changed = signal(0); // grows with each change made here, so that pages fetch their data again

/** An answer with an error status. `uncertain`: a change may have been made all the same. */
export class ApiError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
    this.uncertain = status === 504 || status === 0;
  }
}

function target(path, query = {}) {
  const filled = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const text = new URLSearchParams(filled.map(([name, value]) => [name, String(value)])).toString();
  return text ? `${path}?${text}` : path;
}

/** The query of one page of a list in form 2 of the API: {items, next, total, exact, missing}. */
export function listing(query, count = 50) {
  return { form: 2, count, ...query };
}

/** A path of the API with its names quoted: path`/topics/${topic}`. */
export function path(literals, ...names) {
  return literals.reduce((text, literal, index) => text + encodeURIComponent(names[index - 1]) + literal);
}

async function request(method, address, body, headers = {}) {
  let response;
  let text;
  try {
    response = await fetch(ROOT + address, {
      method,
      headers: { ...authorization(), ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(method === "GET" ? READ_PATIENCE_MS : CHANGE_PATIENCE_MS),
    });
    text = await response.text();
  } catch (error) {
    const silent = method === "GET" ? "The server does not answer." : "The server did not answer: the change may have been made or not. Look before you repeat it.";
    throw new ApiError(0, `${silent} (${error.message})`);
  }
  let answer;
  try {
    answer = JSON.parse(text || "{}");
  } catch {
    throw new ApiError(response.ok ? NOT_JSON : response.status, `The answer to ${address.split("?")[0]} is not JSON: ${text.slice(0, 200)}`);
  }
  if (response.status === 401) refusal.value = answer.error;
  if (!response.ok) throw new ApiError(response.status, answer.error ?? `status ${response.status}`);
  return { answer, etag: response.headers.get("ETag") };
}

/** Return the answer to a GET. Raises ApiError. */
export async function get(address, query) {
  return (await request("GET", target(address, query))).answer;
}

/** Return the answer to a GET with its ETag. */
export function getVersioned(address, query) {
  return request("GET", target(address, query));
}

/** Return the answer to a POST. Raises ApiError. `etag`: change only this version. */
export async function post(address, body, { etag = "" } = {}) {
  const { answer } = await request("POST", address, body ?? {}, etag ? { "If-Match": etag } : {});
  if (!body?.dry_run) changed.value += 1;
  return answer;
}

/** Return the answer to a DELETE. */
export async function del(address, query) {
  const { answer } = await request("DELETE", target(address, query));
  changed.value += 1;
  return answer;
}

/** The answer to a GET, kept current: {data, atMs, error, loading, reload, more}.
 *
 * `version`: the list of the snapshot's `versions` that tells of changes. Without it, or without snapshots, the
 * data is fetched every few seconds. Old data stays while new data is fetched, also if that fails; `atMs` is its
 * time. `address` null: nothing. `more` adds rows to a list, which then stands still until the page is scrolled
 * back to its top. */
export function useData(address, query = {}, { version = "", every = PLAIN_REFRESH_MS } = {}) {
  const wanted = address === null ? "" : target(address, query);
  const [state, setState] = useState(NOTHING);
  const loader = useRef(null);
  const [longer, setLonger] = useState(NOTHING);
  const live = useComputed(() => snapshot.value?.versions?.[version]).value;
  const seen = useRef(null);
  const growing = useRef(false);
  useEffect(() => {
    if (!wanted) return undefined;
    const publish = (result) => setState((old) => ({ ...(old.wanted === wanted ? old : NOTHING), ...("data" in result ? { atMs: Date.now() } : {}), error: null, ...result, wanted }));
    const pauseMs = () => (version && status.peek().state === "live" ? VERSIONED_REFRESH_MS : every) * (document.hidden ? 4 : 1);
    loader.current = new Loader(() => get(wanted), publish, pauseMs);
    return () => loader.current.stop();
  }, [wanted]);
  useEffect(() => {
    if (seen.current === wanted) loader.current?.refresh();
    seen.current = wanted;
  }, [wanted, live, openings.value]);
  useEffect(() => {
    if (!changed.value) return;
    loader.current?.reload();
    setLonger(NOTHING);
  }, [changed.value]);
  const { data: latest, atMs, error } = state.wanted === wanted ? state : NOTHING;
  useEffect(() => {
    if (scrollY < innerHeight) setLonger(NOTHING);
  }, [latest]);
  const data = longer.wanted === wanted && latest ? { ...latest, ...longer.data } : latest;
  const more = async () => {
    if (growing.current || !data?.next || data.items.length >= ROWS_MAX) return;
    growing.current = true;
    const page = await get(address, { ...query, count: SCROLLED_ROWS, after: data.next }).catch(() => null);
    if (page) setLonger({ wanted, data: { items: [...data.items, ...page.items], next: page.next } });
    growing.current = false;
  };
  return { data, atMs, error, loading: data === null && error === null, reload: () => loader.current?.reload(), more };
}

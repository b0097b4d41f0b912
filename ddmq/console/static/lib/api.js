// Requests to the admin API of the server that this page came from, and data that stays current.
import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { snapshot } from "./live.js";
import { authorization, refusal, ROOT } from "./session.js";

const REFRESH_MS = 2_000;
const PLAIN_REFRESH_MS = 5_000;

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
  try {
    response = await fetch(ROOT + address, {
      method,
      headers: { ...authorization(), ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    const silent = method === "GET" ? "The server does not answer." : "The server did not answer: the change may have been made or not. Look before you repeat it.";
    throw new ApiError(0, `${silent} (${error.message})`);
  }
  const text = await response.text();
  let answer;
  try {
    answer = JSON.parse(text || "{}");
  } catch {
    throw new ApiError(response.status, `The answer is not JSON: ${text.slice(0, 200)}`);
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
export async function post(address, body, { etag } = {}) {
  return (await request("POST", address, body ?? {}, etag ? { "If-Match": etag } : {})).answer;
}

/** Return the answer to a DELETE. */
export async function del(address, query) {
  return (await request("DELETE", target(address, query))).answer;
}

/** The answer to a GET, kept current: {data, error, loading, reload}.
 *
 * `version`: the list of the snapshot's `versions` that tells of changes; without it, the data is fetched
 * every few seconds. Old data stays while new data is fetched, also if that fails. `address` null: nothing. */
export function useData(address, query = {}, { version = "", every = PLAIN_REFRESH_MS } = {}) {
  const wanted = address === null ? "" : target(address, query);
  const [state, setState] = useState({ wanted: "", data: null, error: null, loading: true });
  const [turn, setTurn] = useState(0);
  const loadedTurn = useRef(-1);
  const live = version ? snapshot.value?.versions?.[version] : undefined;
  useEffect(() => {
    if (!wanted) return undefined;
    let current = true;
    let timer = 0;
    const load = async () => {
      try {
        const data = await get(wanted);
        if (current) setState({ wanted, data, error: null, loading: false });
      } catch (error) {
        if (current) setState((old) => ({ wanted, data: old.wanted === wanted ? old.data : null, error, loading: false }));
      }
      if (current && !version) timer = setTimeout(load, document.hidden ? 4 * every : every);
    };
    const changed = state.wanted === wanted && loadedTurn.current === turn;
    loadedTurn.current = turn;
    if (changed) timer = setTimeout(load, REFRESH_MS);
    else load();
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [wanted, turn, live]);
  const fresh = state.wanted === wanted;
  return {
    data: fresh ? state.data : null,
    error: fresh ? state.error : null,
    loading: !fresh || state.loading,
    reload: () => setTurn((old) => old + 1),
  };
}

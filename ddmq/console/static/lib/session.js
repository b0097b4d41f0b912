// The token with which this tab logs in, if the server checks rights. It is forgotten when the tab is closed.
import { signal } from "../vendor/signals.js";

const PLACE = /^\/servers\/([^/]+)/.exec(globalThis.location?.pathname ?? "");
export const ROOT = PLACE?.[0] ?? ""; // before all paths of the server: not empty in the console of several
export const SERVER = PLACE ? decodeURIComponent(PLACE[1]) : "";
const KEY = "ddmq.console.token";
export const refusal = signal(""); // why the server wants a (different) token; "" if it does not

/** The headers of a request: with the token, if there is one. */
export function authorization() {
  const token = sessionStorage.getItem(KEY);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

/** Use this token from now on; "" forgets it. */
export function setToken(token) {
  if (token) sessionStorage.setItem(KEY, token);
  else sessionStorage.removeItem(KEY);
  refusal.value = "";
}

export function hasToken() {
  return sessionStorage.getItem(KEY) !== null;
}

// The address of the page: its path and query are the only state that a reload, a link or "back" needs.
import { signal } from "../vendor/signals.js";
import { ROOT } from "./session.js";

export const BASE = `${ROOT}/console`;

function readLocation() {
  const path = location.pathname.startsWith(BASE) ? location.pathname.slice(BASE.length) : "/";
  return { path: path.replace(/\/+$/, "") || "/", query: new URLSearchParams(location.search) };
}

export const route = signal(readLocation());

function publish() {
  route.value = readLocation();
}

addEventListener("popstate", publish);

/** The address of a page: its segments are quoted, empty query values are left out. */
export function link(segments, query = {}) {
  const path = segments.map((segment) => encodeURIComponent(segment)).join("/");
  const filled = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const text = new URLSearchParams(filled.map(([name, value]) => [name, String(value)])).toString();
  return `${BASE}/${path}${text ? `?${text}` : ""}`;
}

/** Open a page of the console. */
export function navigate(address, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", address);
  publish();
}

const CURSORS = ["after", "more"];

/** The filters that are set in the address; times are numbers. */
export function readFilter(query, names) {
  const set = names.map((name) => [name, query.get(name)]).filter(([, value]) => value);
  return Object.fromEntries(set.map(([name, value]) => [name, name.endsWith("_ms") ? Number(value) : value]));
}

/** Change query values of this page. The positions in lists are dropped, unless one of them is what changes. */
export function setQuery(changes, { replace = true } = {}) {
  const query = new URLSearchParams(location.search);
  if (!CURSORS.some((name) => name in changes)) CURSORS.forEach((name) => query.delete(name));
  for (const [name, value] of Object.entries(changes)) {
    if (value === "" || value == null) query.delete(name);
    else query.set(name, String(value));
  }
  const text = query.toString();
  navigate(location.pathname + (text ? `?${text}` : ""), { replace });
}

/** Let plain clicks on links to pages change the page without loading it again. */
export function interceptLinks() {
  document.addEventListener("click", (event) => {
    const anchor = event.target instanceof Element && event.target.closest("a[href]");
    if (!anchor || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
    const address = anchor.getAttribute("href");
    if (anchor.hasAttribute("target") || anchor.hasAttribute("download") || !address.startsWith(`${BASE}/`)) return;
    event.preventDefault();
    navigate(address);
    scrollTo(0, 0);
    document.querySelector("h1")?.focus();
  });
}

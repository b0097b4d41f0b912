// The shell around the pages: navigation, search, what the stream says, and the keys of the keyboard.
import { render } from "./vendor/preact.js";
import { useEffect, useState } from "./vendor/hooks.js";
import { html } from "./lib/html.js";
import { ActionDialog } from "./lib/actions.js";
import { snapshot, status, watch } from "./lib/live.js";
import { inUtc, toggleZone } from "./lib/parts.js";
import { interceptLinks, link, navigate, route } from "./lib/route.js";
import { ServerSwitch } from "./lib/servers.js";
import { refusal, SERVER } from "./lib/session.js";
import { Login } from "./pages/login.js";
import { Now } from "./pages/now.js";

// [title, first segment, key after "g", module of the list, module of one item]
const PAGES = [
  ["Now", "", "n"],
  ["Topics", "topics", "t"],
  ["Groups", "groups", "o"],
  ["Keys", "keys", "k"],
  ["Dead letters", "dead-letters", "d"],
  ["Delays", "delays", "y"],
  ["Retries", "retries", "r"],
  ["Transactions", "transactions", "x"],
  ["System", "system", "s"],
  ["Changes", "changes", "c"],
  ["Access", "access", "a"],
];
const MODULES = {
  topics: () => import("./pages/topics.js"),
  "topics/*": () => import("./pages/topic.js"),
  groups: () => import("./pages/groups.js"),
  "groups/*": () => import("./pages/group.js"),
  keys: () => import("./pages/keys.js"),
  "dead-letters": () => import("./pages/dead_letters.js"),
  "dead-letters/*": () => import("./pages/dead_letters.js"),
  delays: () => import("./pages/delays.js"),
  "delays/*": () => import("./pages/delayed_message.js"),
  retries: () => import("./pages/retries.js"),
  transactions: () => import("./pages/transactions.js"),
  "transactions/*": () => import("./pages/transactions.js"),
  "messages/*": () => import("./pages/message.js"),
  system: () => import("./pages/system.js"),
  changes: () => import("./pages/changes.js"),
  access: () => import("./pages/access.js"),
  search: () => import("./pages/search.js"),
};

function useModule(name) {
  const [loaded, setLoaded] = useState({ name: "", page: null, error: null });
  useEffect(() => {
    const load = MODULES[name];
    if (!load) return;
    load().then(
      (module) => setLoaded({ name, page: module.Page, error: null }),
      (error) => setLoaded({ name, page: null, error }),
    );
  }, [name]);
  return loaded.name === name ? loaded : { page: null, error: null };
}

function readSegments(path) {
  try {
    return path.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    return ["not-found"];
  }
}

function Content() {
  const { path, query } = route.value;
  const segments = readSegments(path);
  const name = segments.length > 1 ? `${segments[0]}/*` : segments[0] ?? "";
  const { page: LoadedPage, error } = useModule(name);
  const title = PAGES.find(([, first]) => first === (segments[0] ?? ""))?.[0] ?? segments[0];
  document.title = `${segments[1] ? `${segments[1].slice(0, 60)} · ` : ""}${title} · ddmq${SERVER && ` ${SERVER}`}`;
  if (!segments.length) return html`<${Now} query=${query} />`;
  if (!MODULES[name]) return html`<h1 tabindex="-1">There is no such page</h1><p><a href=${link([""])}>Back to the first page</a></p>`;
  if (error) return html`<p class="problem" role="alert">The page could not be loaded (${error.message}). Reload it.</p>`;
  if (!LoadedPage) return html`<p class="soft" aria-busy="true">Loading…</p>`;
  return html`<${LoadedPage} key=${path} segments=${segments} query=${query} />`;
}

function Navigation() {
  const first = route.value.path.split("/")[1] ?? "";
  const findings = snapshot.value?.findings?.filter((each) => each.severity !== "info").length;
  return html`<nav aria-label="pages">${PAGES.map(([title, segment]) => html`<a href=${link([segment])} aria-current=${segment === first ? "page" : undefined}>${title}${!segment && findings ? html` <span class="dot" aria-label=${`${findings} findings`}>${findings}</span>` : ""}</a>`)}</nav>`;
}

function Search() {
  const submit = (event) => {
    event.preventDefault();
    const text = event.target.text.value.trim();
    if (text) navigate(link(["search"], { text }));
  };
  return html`<form role="search" onSubmit=${submit}><input id="search" name="text" type="search" placeholder="topic, group, key, id (/)" aria-label="search topics, groups, keys and ids" /></form>`;
}

function Ribbon() {
  const { state, text } = status.value;
  const missing = Object.keys(snapshot.value?.missing ?? {});
  const words = { live: "live", old: text, starting: "connecting…", lost: refusal.value ? "not logged in" : text };
  return html`<span class=${`ribbon ${state}`} role="status">${state === "live" ? "● " : "○ "}${words[state]}${missing.length ? ` · no answer from ${missing.join(", ")}` : ""}</span>`;
}

function App() {
  const starting = snapshot.value?.health && !snapshot.value.health.ready ? snapshot.value.health.reason : "";
  return html`<a class="skip" href="#main">Skip to the page</a>
    <header><a class="brand" href=${link([""])}>ddmq</a><${ServerSwitch} /><${Navigation} /><${Search} />
      <button type="button" class="quiet" onClick=${toggleZone} title="show times in UTC or in the browser's zone">${inUtc.value ? "UTC" : "local time"}</button><${Ribbon} /></header>
    ${starting && html`<p class="banner" role="status">▲ The server is not ready: ${starting}</p>`}
    <main id="main" class=${status.value.state === "old" ? "old" : ""}>${refusal.value ? html`<${Login} />` : html`<${Content} />`}</main>
    <${ActionDialog} /><${Help} />`;
}

const HELP = [["/", "search"], ["g then n t o k d y r x s c a", "go to a page"], ["j, k", "next, previous row"], ["x", "select the row"], ["?", "this help"], ["Esc", "close"]];

function Help() {
  return html`<dialog id="help" aria-label="keys"><h2>Keys</h2><dl class="facts">${HELP.map(([key, text]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${text}</dd></div>`)}</dl><form method="dialog"><button class="act">Close</button></form></dialog>`;
}

function moveRow(step) {
  const rows = [...document.querySelectorAll("main tbody tr")];
  const place = rows.findIndex((row) => row.contains(document.activeElement));
  const row = rows[Math.min(rows.length - 1, Math.max(0, place + step))];
  (row?.querySelector("input[type=checkbox]") ?? row?.querySelector("a, button"))?.focus();
}

let afterG = false;
function onKey(event) {
  const typing = event.target instanceof HTMLElement && event.target.matches("input:not([type=checkbox]), textarea, select");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const page = afterG && PAGES.find(([, , key]) => key === event.key);
  afterG = event.key === "g";
  const acts = {
    "/": () => document.getElementById("search").focus(),
    "?": () => document.getElementById("help").showModal(),
    j: () => moveRow(1),
    k: () => moveRow(-1),
    x: () => document.activeElement?.closest("tr")?.querySelector("input[type=checkbox]")?.click(),
  };
  const act = page ? () => navigate(link([page[1]])) : acts[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

document.addEventListener("keydown", onKey);
interceptLinks();
watch();
const root = document.getElementById("app");
root.textContent = "";
render(html`<${App} />`, root);

// The switch between servers of `ddmq console`, with the state of each. A server's own console has none.
import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "./html.js";
import { visible } from "./format.js";
import { authorization, refusal, SERVER } from "./session.js";

const REFRESH_MS = 5_000;

/** The address of the same page at another server, without positions in lists. */
export function addressAt(server, path, search) {
  const query = new URLSearchParams(search);
  for (const name of ["after", "more"]) query.delete(name);
  const text = query.toString();
  return `/servers/${encodeURIComponent(server)}${path.slice(path.indexOf("/console"))}${text ? `?${text}` : ""}`;
}

/** What a server's row says in a few words: "✓ a:9813", "✗ b:9813 · 2 need attention". */
export function describeServer(row) {
  if (!row.ready) return `✗ ${visible(row.server)} · ${visible(row.reason)}`;
  return row.urgent ? `▲ ${visible(row.server)} · ${row.urgent} need${row.urgent === 1 ? "s" : ""} attention` : `✓ ${visible(row.server)}`;
}

function useServers() {
  const [rows, setRows] = useState([{ server: SERVER, ready: true, urgent: 0 }]);
  const loggedIn = !refusal.value;
  useEffect(() => {
    let timer = 0;
    let current = true;
    const load = async () => {
      const response = await fetch("/servers", { headers: authorization() }).catch(() => null);
      if (current && response?.ok) setRows((await response.json()).items);
      if (current) timer = setTimeout(load, REFRESH_MS);
    };
    if (loggedIn) load();
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [loggedIn]);
  return rows;
}

function Switch() {
  const rows = useServers();
  const others = rows.filter((row) => row.server !== SERVER && (!row.ready || row.urgent)).length;
  const change = (event) => location.assign(addressAt(event.target.value, location.pathname, location.search));
  return html`<span class="servers"><select aria-label="server" onChange=${change}>${rows.map((row) => html`<option value=${row.server} selected=${row.server === SERVER}>${describeServer(row)}</option>`)}</select>
    ${others > 0 && html`<span class="warn" role="status">▲ ${others} other${others === 1 ? "" : "s"}</span>`}</span>`;
}

export function ServerSwitch() {
  return SERVER ? html`<${Switch} />` : null;
}

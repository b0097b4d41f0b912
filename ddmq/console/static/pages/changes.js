// The last changes: who did what, what it was before, and undo; and the operations that run.
import { listing, path, post, useData } from "../lib/api.js";
import { openChange } from "../lib/actions.js";
import { commandLine, count, formatNumber, visible } from "../lib/format.js";
import { html } from "../lib/html.js";
import { Badge, Card, Chips, Filter, Head, Loaded, Missing, Name, Time } from "../lib/parts.js";
import { link, readFilter } from "../lib/route.js";
import { Pager, Table } from "../lib/table.js";

const KINDS = { done: "good", failed: "bad", running: "warn", interrupted: "warn" };

function undo(change, reload) {
  openChange({
    title: "Undo this change", verb: "Undo", text: visible(change.object), command: commandLine("undo", [change.id]),
    apply: async () => {
      await post(path`/changes/${change.id}/undo`);
      reload();
      return "The change is undone.";
    },
  });
}

/** The keys of a state whose values are others in the second state; the state itself if it has no keys. */
export function difference(state, other) {
  if (state == null || other == null || typeof state !== "object" || typeof other !== "object") return state;
  return Object.fromEntries(Object.entries(state).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(other[name])));
}

function show(value) {
  return value == null ? "" : visible(typeof value === "string" ? value : JSON.stringify(value));
}

const FILTERS = ["who", "event", "text"];
const EVENTS = ["change", "rejected", "login", "login_rejected"];
const EVENT_KINDS = { rejected: "bad", login_rejected: "bad" };
const AUDIT = [
  { head: "when", cell: (row) => html`<${Time} ms=${row.at_ms} />` },
  { head: "who", cell: (row) => (row.who ? html`<a href=${link(["access"], { identity: row.who })}><${Name} text=${row.who} /></a>` : html`<span class="soft">nobody</span>`) },
  { head: "from", cell: (row) => html`<${Name} text=${row.address} />${row.client && html`<div class="soft"><${Name} text=${row.client} /></div>`}` },
  { head: "event", cell: (row) => html`<${Badge} kind=${EVENT_KINDS[row.event] ?? "plain"}>${row.event.replace("_", " ")}<//>${row.count > 1 && ` ${formatNumber(row.count)}×`}` },
  { head: "what", wide: true, cell: (row) => html`<code>${visible(row.action)}</code> <${Name} text=${row.object} />` },
  { head: "why", wide: true, cell: (row) => html`<span class="soft">${visible(row.reason)}</span>` },
  { head: "process", cell: (row) => html`<span class="soft">${visible(row.process)}</span>` },
];

function Audit({ query }) {
  const filter = readFilter(query, FILTERS);
  const state = useData("/auth/audit", { ...filter, count: 50, after: query.get("more") });
  const { data: rights } = useData("/auth");
  return html`<${Card} title="Audit log" note="Changes, rejected attempts and logins at all ports, newest first. Administrators can read it.">
    ${rights && !rights.enabled ? html`<p class="soft">Nothing is recorded, because rights are off: see the page <a href=${link(["access"])}>Access</a>.</p>` : html`
    <div class="filters"><${Filter} name="who" label="who" query=${query} /><${Filter} name="event" label="event" query=${query} options=${EVENTS} /><${Filter} name="text" label="contains" query=${query} /></div>
    <${Chips} query=${query} names=${FILTERS} />
    <${Loaded} state=${state} absent="This server has no route for its audit log.">${(answer) => html`<${Table} label="audit log" columns=${AUDIT} rows=${answer.items} rowKey=${(row) => JSON.stringify(row)} empty=${answer.next ? "No line matches so far." : "No line matches."} />
      <${Pager} answer=${answer} shown=${answer.items.length} noun="line" query=${query} cursor="more" />`}<//>`}
  <//>`;
}

export function Page({ query }) {
  const changes = useData("/changes", listing({ after: query.get("after") }));
  const operations = useData("/operations", listing({}, 20), { every: 2_000 });
  const stop = (row) => openChange({ title: `Stop operation ${row.id}`, verb: "Stop", text: "The batch that is in progress is finished.", command: commandLine("op stop", [row.id]), apply: async () => `The operation is ${(await post(path`/operations/${row.id}/stop`)).state}.` });
  const columns = [
    { head: "when", cell: (row) => html`<${Time} ms=${row.at_ms} />` },
    { head: "who", cell: (row) => html`<bdi>${visible(row.who ?? "")}</bdi>` },
    { head: "what", wide: true, cell: (row) => html`<${Name} text=${row.object} /><div class="soft">${visible(row.request)}</div>` },
    { head: "before", wide: true, cell: (row) => html`<span class="soft">${show(difference(row.before, row.after))}</span>` },
    { head: "after", wide: true, cell: (row) => html`<span class="soft">${show(difference(row.after, row.before))}</span>` },
    { head: "undo", cell: (row) => (row.undoable ? html`<button type="button" onClick=${() => undo(row, changes.reload)}>Undo…</button>` : html`<span class="soft">${row.undone_by ? "undone" : visible(row.final)}</span>`) },
  ];
  const progress = [
    { head: "planned", cell: (row) => html`<${Time} ms=${row.planned_ms} />` },
    { head: "operation", wide: true, cell: (row) => `${row.action} ${row.kind.replace("_", " ")}` },
    { head: "state", cell: (row) => html`<${Badge} kind=${KINDS[row.state] ?? "plain"}>${row.state}<//>` },
    { head: "changed", number: true, cell: (row) => `${formatNumber(row.changed)} of ${row.exact ? "" : "≥ "}${formatNumber(row.counted)}` },
    { head: "stop", cell: (row) => (row.state === "running" ? html`<button type="button" onClick=${() => stop(row)}>Stop…</button>` : "") },
  ];
  return html`<${Head} title="Changes" />
    <${Card} title="Operations"><${Loaded} state=${operations}>${(answer) => html`<${Table} label="operations" columns=${progress} rows=${answer.items} rowKey=${(row) => row.id} empty="No operation has been planned." />`}<//><//>
    <${Card} title="Changes" note="The last thousand, newest first."><${Loaded} state=${changes} absent="This server does not record changes.">${(answer) => html`<${Missing} missing=${answer.missing} />
      <${Table} label="changes" columns=${columns} rows=${answer.items} rowKey=${(row) => row.id} empty="Nothing has been changed." />
      <${Pager} answer=${answer} shown=${answer.items.length} noun="change" query=${query} />`}<//><//>
    <${Audit} query=${query} />`;
}

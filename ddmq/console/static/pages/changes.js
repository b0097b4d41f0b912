// The last changes: who did what, what it was before, and undo; and the operations that run.
import { listing, path, post, useData } from "../lib/api.js";
import { changed, openChange } from "../lib/actions.js";
import { count, formatNumber, visible } from "../lib/format.js";
import { html } from "../lib/html.js";
import { Badge, Card, Command, Head, Loaded, Missing, Time } from "../lib/parts.js";
import { Pager, Table } from "../lib/table.js";

const KINDS = { done: "good", failed: "bad", running: "warn", interrupted: "warn" };

function undo(change, reload) {
  openChange({
    title: "Undo this change", verb: "Undo", text: visible(change.what ?? change.command), command: `ddmq undo ${change.id}`,
    apply: async () => {
      await post(path`/changes/${change.id}/undo`);
      reload();
      return "The change is undone.";
    },
  });
}

function show(value) {
  return value == null ? "" : visible(typeof value === "string" ? value : JSON.stringify(value));
}

export function Page({ query }) {
  const changes = useData("/changes", listing({ after: query.get("after") }));
  const operations = useData("/operations", listing({}, 20), { every: 2_000 });
  void changed.value;
  const stop = (row) => openChange({ title: `Stop operation ${row.id}`, verb: "Stop", text: "The batch that is in progress is finished.", command: `ddmq op stop ${row.id}`, apply: async () => `The operation is ${(await post(path`/operations/${row.id}/stop`)).state}.` });
  const columns = [
    { head: "when", cell: (row) => html`<${Time} ms=${row.at_ms} />` },
    { head: "who", cell: (row) => html`<bdi>${visible(row.who ?? "")}</bdi>` },
    { head: "what", wide: true, cell: (row) => html`${visible(row.what ?? "")}<${Command} text=${row.command} />` },
    { head: "before", wide: true, cell: (row) => html`<span class="soft">${show(row.before)}</span>` },
    { head: "after", wide: true, cell: (row) => html`<span class="soft">${show(row.after)}</span>` },
    { head: "undo", cell: (row) => (row.undo === true || row.can_undo ? html`<button type="button" onClick=${() => undo(row, changes.reload)}>Undo…</button>` : html`<span class="soft">${visible(typeof row.undo === "string" ? row.undo : row.why_not ?? "")}</span>`) },
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
      <${Pager} answer=${answer} shown=${answer.items.length} noun="change" query=${query} />`}<//><//>`;
}

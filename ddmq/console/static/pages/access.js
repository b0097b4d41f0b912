// Who may do what: identities, their rights, and which rule allows something.
import { listing, useData } from "../lib/api.js";
import { visible } from "../lib/format.js";
import { html } from "../lib/html.js";
import { Badge, Card, Filter, Head, Loaded, Name } from "../lib/parts.js";
import { Table } from "../lib/table.js";

const IDENTITIES = [
  { head: "identity", wide: true, cell: (row) => html`<${Name} text=${row.name} />` },
  { head: "kind", cell: (row) => visible(row.kind) },
  { head: "roles", cell: (row) => visible((row.roles ?? []).join(", ")) },
  { head: "rights", wide: true, cell: (row) => visible((row.allow ?? []).join(", ")) },
  { head: "tokens", number: true, cell: (row) => row.tokens ?? "" },
];

function Explanation({ query }) {
  const [who, right, name] = ["who", "right", "name"].map((each) => query.get(each));
  const state = useData(right ? "/security/explain" : null, { who, right, name });
  if (!right) return html`<p class="soft">State a right and a name to see which rule allows it.</p>`;
  return html`<${Loaded} state=${state}>${(answer) => html`<p><${Badge} kind=${answer.allowed ? "good" : "bad"}>${answer.allowed ? "allowed" : "not allowed"}<//> ${visible(answer.text ?? answer.reason ?? "")}</p>`}<//>`;
}

export function Page({ query }) {
  const own = useData("/security/me");
  const identities = useData("/security/identities", listing({}, 100));
  return html`<${Head} title="Access" />
    <${Card} title="You"><${Loaded} state=${own} absent="Security is off: whoever reaches a port may do everything.">${(answer) => html`<p><${Name} text=${answer.name} /> <${Badge}>${visible(answer.kind)}<//></p><p class="soft">${visible((answer.allow ?? []).join(", "))}</p>`}<//><//>
    <${Card} title="Explain"><div class="filters"><${Filter} name="who" label="who" query=${query} /><${Filter} name="right" label="right" query=${query} placeholder="send" /><${Filter} name="name" label="topic or group" query=${query} /></div><${Explanation} query=${query} /><//>
    <${Card} title="Identities"><${Loaded} state=${identities} absent="Security is off.">${(answer) => html`<${Table} label="identities" columns=${IDENTITIES} rows=${answer.items} rowKey=${(row) => row.name} />`}<//><//>`;
}

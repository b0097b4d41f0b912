// Who may do what: identities and rules, tokens, usage against quotas, and why something is (not) allowed.
import { del, path, post, useData } from "../lib/api.js";
import { openChange } from "../lib/actions.js";
import { formatNumber, formatSize, quoteArgument, visible } from "../lib/format.js";
import { html } from "../lib/html.js";
import { now } from "../lib/live.js";
import { Badge, Card, Chips, Command, Facts, Filter, Head, Loaded, Name, Time } from "../lib/parts.js";
import { link } from "../lib/route.js";
import { Pager, Table } from "../lib/table.js";

const DAY_MS = 86_400_000;
const KINDS = { admin: "may do everything", node: "a process of this installation" };
const NAMED = ["describe", "browse", "send", "consume", "transact", "create", "manage", "operate"];
const RIGHTS = [...NAMED, "metrics", "push", "relay", "backup", "node"];

function Off() {
  return html`<${Card} title="Rights are off">
    <p class="warn">▲ Everybody who reaches the ports of this server may do everything.</p>
    <p>This makes certificates, rules and a login for an administrator. The server checks rights after a restart (docs/security.md):</p>
    <${Command} text="ddmq secure init --host NAME" />
  <//>`;
}

function Explain({ query, own }) {
  const [identity, right, name] = [query.get("identity") ?? own, query.get("right") ?? "", query.get("name") ?? ""];
  const ready = identity && right && (name || !NAMED.includes(right));
  const state = useData(ready ? "/auth/explain" : null, { identity, right, name });
  return html`<${Card} title="Explain a right" note="Which rule allows it, or what is missing.">
    <div class="filters"><${Filter} name="identity" label="identity" query=${query} placeholder=${own} /><${Filter} name="right" label="right" query=${query} options=${RIGHTS} empty="choose" /><${Filter} name="name" label="topic or group" query=${query} /></div>
    ${ready && html`<${Loaded} state=${state}>${(answer) => html`<p class="effect" role="status"><${Badge} kind=${answer.allowed ? "good" : "bad"}>${answer.allowed ? "allowed" : "not allowed"}<//> ${visible(answer.reason)}</p>
      <${Command} text=${`ddmq auth explain ${[identity, right, name].filter(Boolean).map(quoteArgument).join(" ")} --config CONF`} />`}<//>`}
  <//>`;
}

/** What is used of a quota: "3 of 5,000", "3, no limit". */
export function usedOf(used, quota, format = formatNumber) {
  return quota ? `${format(used)} of ${format(quota)}` : `${format(used)}, no limit`;
}

function Identities({ query, usage }) {
  const state = useData("/auth/identities", { count: 50, text: query.get("text"), after: query.get("after") });
  const used = Object.fromEntries((usage.data ?? []).map((row) => [row.identity, row]));
  const columns = [
    { head: "identity", cell: (row) => html`<a href=${link(["access"], { identity: row.identity })}><${Name} text=${row.identity} /></a>` },
    { head: "kind", cell: (row) => html`<${Badge}>${row.kind}<//>` },
    { head: "may", wide: true, cell: (row) => html`${KINDS[row.kind] ?? ""}${row.rules.map((each) => html`<div><code>${visible(each.rule)}</code>${each.role && html` <span class="soft">role ${visible(each.role)}</span>`}</div>`)}${row.rules_more > 0 && html`<div class="soft">and ${formatNumber(row.rules_more)} more</div>`}${!row.rules.length && !KINDS[row.kind] && html`<span class="soft">nothing</span>`}` },
    { head: "without login from", cell: (row) => visible([...row.networks, ...row.certificates].join(", ")) || html`<span class="soft">–</span>` },
    { head: "tokens", number: true, cell: (row) => formatNumber(row.tokens) },
    { head: "connections", number: true, cell: (row) => usedOf(used[row.identity]?.connections ?? 0, row.quotas.connections) },
    { head: "requests", number: true, cell: (row) => html`${formatNumber(used[row.identity]?.requests ?? 0)}<div class="soft">${row.quotas.requests_per_s ? `${formatNumber(row.quotas.requests_per_s)}/s` : "no limit"}</div>` },
    { head: "bytes", number: true, cell: (row) => html`${formatSize(used[row.identity]?.bytes ?? 0)}<div class="soft">${row.quotas.bytes_per_s ? `${formatSize(row.quotas.bytes_per_s)}/s` : "no limit"}</div>` },
    { head: "over its quotas", cell: (row) => html`<span class="warn">${Object.entries(used[row.identity]?.rejected ?? {}).map(([quota, number]) => `▲ ${quota} ${formatNumber(number)}×`).join(" ")}</span>` },
  ];
  return html`<${Card} title="Identities" note=${usage.error ? `Usage is not shown: ${usage.error.message}.` : "Requests and bytes count since the start of each process; below them, the quota."}>
    <div class="filters"><${Filter} name="text" label="name contains" query=${query} /></div>
    <${Loaded} state=${state}>${(answer) => html`<${Table} label="identities" columns=${columns} rows=${answer.items} rowKey=${(row) => row.identity} empty="No identity matches." /><${Pager} answer=${answer} shown=${answer.items.length} noun="identity" plural="identities" query=${query} />`}<//>
  <//>`;
}

function revoke(row, reload) {
  openChange({
    title: "Revoke this token", verb: "Revoke", danger: true, command: `ddmq auth token revoke ${row.id} --config CONF`,
    text: "Connections that logged in with it are closed within a second. It cannot be undone: make a new token instead.",
    facts: [["identity", visible(row.identity)], ["name", visible(row.name)], ["id", row.id], ["last used", row.used_ms ? html`<${Time} ms=${row.used_ms} />` : "never"]],
    apply: async () => {
      await del(path`/auth/tokens/${row.id}`);
      reload();
      return "The token is revoked.";
    },
  });
}

function create(identity, reload) {
  openChange({
    title: "Make a token", verb: "Make", text: "Whoever has the token is this identity. It is shown once.",
    fields: [
      { name: "identity", label: "identity", value: identity, required: true },
      { name: "name", label: "what it is for" },
      { name: "days", label: "expires after days", type: "number", placeholder: "never" },
    ],
    command: (values) => `ddmq auth token create ${quoteArgument(values.identity || "IDENTITY")}${values.name ? ` --name ${quoteArgument(values.name)}` : ""}${values.days ? ` --expires ${Number(values.days)}d` : ""} --config CONF`,
    apply: async (values) => {
      const expires_ms = values.days ? Math.round(Date.now() + Number(values.days) * DAY_MS) : null;
      const made = await post("/auth/tokens", { identity: values.identity.trim(), name: values.name, expires_ms });
      reload();
      return { text: html`Token ${made.id} of <${Name} text=${made.identity} /> is made. Copy it now: it is not shown again.<${Command} text=${made.token} />` };
    },
  });
}

function Tokens({ query, who }) {
  const identity = query.get("identity");
  const state = useData("/auth/tokens", { count: 50, identity, after: query.get("more") });
  const isAdmin = who.kind === "admin";
  const columns = [
    { head: "identity", cell: (row) => html`<${Name} text=${row.identity} />` },
    { head: "for", wide: true, cell: (row) => html`<${Name} text=${row.name} /> <span class="soft id">${row.id.slice(0, 8)}</span>` },
    { head: "made", cell: (row) => html`<${Time} ms=${row.created_ms} />` },
    { head: "expires", cell: (row) => (row.expired ? html`<${Badge} kind="plain">expired<//>` : row.expires_ms == null ? "never" : html`<span class=${row.expires_ms - now.value < 7 * DAY_MS ? "warn" : ""}><${Time} ms=${row.expires_ms} /></span>`) },
    { head: "last used", cell: (row) => (row.used_ms ? html`<${Time} ms=${row.used_ms} />` : html`<span class="soft">never</span>`) },
    ...(isAdmin ? [{ head: "revoke", cell: (row) => html`<button type="button" aria-label=${`Revoke token ${row.id}`} onClick=${() => revoke(row, state.reload)}>Revoke…</button>` }] : []),
  ];
  return html`<${Card} title="Tokens" note=${isAdmin ? "The last use is known to the hour." : "Administrators see all tokens, make and revoke them."} tools=${isAdmin && html`<div class="tools"><button type="button" class="act" onClick=${() => create(identity ?? "", state.reload)}>Make a token…</button></div>`}>
    <${Chips} query=${query} names=${["identity"]} />
    <${Loaded} state=${state}>${(answer) => html`<${Table} label="tokens" columns=${columns} rows=${answer.items} rowKey=${(row) => row.id} empty="No token matches." />
      <${Pager} answer=${answer} shown=${answer.items.length} noun="token" query=${query} cursor="more" />`}<//>
  <//>`;
}

export function Page({ query }) {
  const who = useData("/auth", {}, { every: 5_000 });
  const usage = useData(who.data?.enabled ? "/usage" : null, {}, { every: 5_000 });
  return html`<${Head} title="Access" />
    <${Loaded} state=${who} absent="This server does not describe its rights.">${(answer) => (answer.enabled
      ? html`<${Card} title="You"><${Facts} facts=${[["identity", answer.identity ? html`<${Name} text=${answer.identity} />` : "none"], ["kind", answer.kind && html`<${Badge}>${answer.kind}<//>`], ["sees", answer.kind === "admin" ? "all identities" : "itself; others need the kind admin"]]} />
          ${answer.error && html`<p class="warn" role="status">▲ The newest files are not in force: ${visible(answer.error)}</p>`}<//>
        <${Explain} query=${query} own=${answer.identity} /><${Identities} query=${query} usage=${usage} /><${Tokens} query=${query} who=${answer} />`
      : html`<${Off} />`)}<//>`;
}

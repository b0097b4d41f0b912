// One search for everything: a topic, a group, a blocked key, or the id of a message.
import { get, listing, path, useData } from "../lib/api.js";
import { visible } from "../lib/format.js";
import { html } from "../lib/html.js";
import { Card, GroupLink, Head, Loaded, Name, TopicLink } from "../lib/parts.js";
import { link, navigate } from "../lib/route.js";
import { useEffect } from "../vendor/hooks.js";

const ID = /^[0-9a-f]{32}$/i;

function Matches({ title, address, query, row }) {
  const state = useData(address, listing(query, 10), { every: 60_000 });
  return html`<${Card} title=${title}><${Loaded} state=${state}>${(answer) => html`<ul class="sample">${answer.items.map((each) => html`<li>${row(each)}</li>`)}</ul>${!answer.items.length && html`<p class="soft">none</p>`}`}<//><//>`;
}

export function Page({ query }) {
  const text = (query.get("text") ?? "").trim();
  useEffect(() => {
    if (!ID.test(text)) return;
    get(path`/messages/${text}`, { form: 2 }).then((answer) => navigate(link([answer.items.length ? "messages" : "delays", text]), { replace: true }), () => {});
  }, [text]);
  return html`<${Head} title=${html`Search: <bdi>${visible(text)}</bdi>`} />
    <div class="columns">
      <${Matches} title="Topics" address="/topics" query=${{ text }} row=${(each) => html`<${TopicLink} topic=${each.topic} />`} />
      <${Matches} title="Groups" address="/lag" query=${{ text }} row=${(each) => html`<${GroupLink} group=${each.group} /> on <${TopicLink} topic=${each.topic} />`} />
      <${Matches} title="Blocked keys" address="/keys" query=${{ text }} row=${(each) => html`<a href=${link(["keys"], { group: each.group, text: each.key })}><${Name} text=${each.key} /></a> of <${GroupLink} group=${each.group} />`} />
    </div>`;
}

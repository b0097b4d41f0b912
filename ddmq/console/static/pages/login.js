// What a browser without a (valid) token sees at a server that checks rights.
import { html } from "../lib/html.js";
import { visible } from "../lib/format.js";
import { reopen } from "../lib/live.js";
import { Card, Command, Head } from "../lib/parts.js";
import { hasToken, refusal, setToken } from "../lib/session.js";

export function Login() {
  const submit = (event) => {
    event.preventDefault();
    setToken(event.target.token.value.trim());
    reopen();
  };
  return html`<${Head} title="Log in" />
    <${Card} note="This server shows and changes things only for those who have the right.">
      <p class="problem" role="alert">${visible(refusal.value)}</p>
      <form onSubmit=${submit}><p class="filter"><label for="token">Token</label><input id="token" name="token" type="password" autocomplete="off" required autofocus /></p>
        <p class="actions"><button type="submit" class="act">Log in</button>${hasToken() && html`<button type="button" onClick=${() => setToken("")}>Forget the token</button>`}</p></form>
      <p class="soft">The token stays in this tab until the tab is closed. An administrator makes one on the page Access, or with:</p>
      <${Command} text="ddmq auth token create IDENTITY" />
    <//>`;
}

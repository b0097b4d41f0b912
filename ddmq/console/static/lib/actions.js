// Every change goes through one dialog: what will happen, to how much, a sample, whom it reaches, the command.
import { signal } from "../vendor/signals.js";
import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { changed, get, path, post } from "./api.js";
import { count, formatNumber, shorten, visible } from "./format.js";
import { html } from "./html.js";
import { Command, Facts, Name, Problem, Time } from "./parts.js";

const POLL_MS = 400;
const RETRY_MS = 2_000; // after a poll that failed
const ENDED = ["done", "stopped", "failed", "interrupted"];
const NOUNS = { dead_letters: "dead letter", keys: "key", delays: "delayed message", retries: "message" };
const open = signal(null);

/** Plan an operation, show the plan, and run it if the user agrees. `body`: of POST /operations, without dry_run. */
export function openOperation({ title, verb, body, danger = false, note = "" }) {
  open.value = { type: "operation", title, verb, body, danger, note, opener: document.activeElement };
}

/** Show one change and make it if the user agrees. `preview`: an async function that returns facts [[name,
 * value]] of a dry run; `apply`: makes the change and returns a sentence, or {text, undo}. */
export function openChange({ title, verb, text = "", facts = [], command = null, preview = null, apply, fields = null, danger = false }) {
  open.value = { type: "change", title, verb, text, facts, command, preview, apply, fields, danger, opener: document.activeElement };
}

/** Say that something did not work which has no other place on the page. */
export function openFailure(title, error) {
  open.value = { type: "failure", title, error, opener: document.activeElement };
}

function close(opener) {
  open.value = null;
  if (opener instanceof HTMLElement && opener.isConnected) opener.focus();
}

export function ActionDialog() {
  const action = open.value;
  const dialog = useRef(null);
  useEffect(() => {
    if (action && dialog.current && !dialog.current.open) dialog.current.showModal();
  }, [action]);
  if (!action) return null;
  return html`<dialog ref=${dialog} aria-labelledby="dialog-title" onClose=${() => close(action.opener)}>
    <h2 id="dialog-title">${action.title}</h2>
    ${action.type === "failure" && html`<${Problem} error=${action.error} /><${Buttons}><button type="button" class="act" onClick=${() => dialog.current.close()}>Close</button><//>`}
    ${action.type === "operation" && html`<${Operation} action=${action} onClose=${() => dialog.current.close()} />`}
    ${action.type === "change" && html`<${Change} action=${action} onClose=${() => dialog.current.close()} />`}
  </dialog>`;
}

/** A button that has the focus when it appears, so that Enter goes on. `focused` false: something else has it. */
function NextButton({ focused = true, children, ...rest }) {
  const button = useRef(null);
  useEffect(() => {
    if (focused) button.current.focus();
  }, []);
  return html`<button ref=${button} ...${rest}>${children}</button>`;
}

function Buttons({ children }) {
  return html`<div class="buttons">${children}</div>`;
}

function Operation({ action, onClose }) {
  const [plan, setPlan] = useState(null);
  const [error, setError] = useState(null);
  const [rate, setRate] = useState("");
  const [busy, setBusy] = useState(false);
  const [polls, setPolls] = useState(0);
  const countMatches = () => {
    setPlan(null);
    setError(null);
    post("/operations", { ...action.body, dry_run: true }).then(setPlan, setError);
  };
  useEffect(countMatches, [action]);
  const running = plan && plan.started_ms != null && !ENDED.includes(plan.state);
  useEffect(() => {
    if (!running) return undefined;
    const update = (row) => {
      setPlan(row);
      setError(null);
      if (ENDED.includes(row.state)) changed.value += 1;
    };
    const timer = setTimeout(() => get(path`/operations/${plan.id}`).then(update, setError).finally(() => setPolls(polls + 1)), error ? RETRY_MS : POLL_MS);
    return () => clearTimeout(timer);
  }, [running, polls]);
  const call = async (address, body) => {
    setBusy(true);
    setError(null);
    try {
      setPlan({ ...plan, ...(await post(address, body)) });
    } catch (failure) {
      setError(failure);
    }
    setBusy(false);
  };
  if (!plan) {
    return html`${error ? html`<${Problem} error=${error} />` : html`<p aria-busy="true">Counting what matches…</p>`}
      <${Buttons}>${error && html`<button type="button" onClick=${countMatches}>Count again</button>`}<button type="button" onClick=${onClose} autofocus>Close</button><//>`;
  }
  const noun = NOUNS[plan.kind] ?? "item";
  if (plan.started_ms != null) return html`<${Progress} plan=${plan} noun=${noun} error=${error} onClose=${onClose} onStop=${() => call(path`/operations/${plan.id}/stop`)} />`;
  const start = (event) => {
    event.preventDefault();
    call(path`/operations/${plan.id}/start`, { token: plan.token, ...(rate ? { rate: Number(rate) } : {}) });
  };
  return html`<form onSubmit=${start}>
    <p class="effect">${action.verb} <b>${plan.exact ? "" : "at least "}${count(plan.counted, noun)}</b>. Later arrivals stay untouched.</p>
    ${action.note && html`<p class="soft">${action.note}</p>`}
    <${Skipped} skipped=${plan.skipped} />
    <${Reaches} reaches=${plan.reaches} />
    <${Sample} rows=${plan.sample} />
    <${Command} text=${plan.command} />
    <${Problem} error=${error} />
    <p class="filter"><label for="rate">At most per second</label><input id="rate" type="number" min="1" max="1000000" value=${rate} placeholder="no limit" onInput=${(event) => setRate(event.target.value)} /></p>
    <${Buttons}>
      ${error && html`<button type="button" onClick=${countMatches}>Count again</button>`}<button type="button" onClick=${onClose}>Cancel</button>
      <${NextButton} type="submit" class=${action.danger ? "danger" : "act"} disabled=${busy || !plan.counted}>${action.verb} ${formatNumber(plan.counted)}<//>
    <//>
  </form>`;
}

function Progress({ plan, noun, error, onClose, onStop }) {
  const ended = ENDED.includes(plan.state);
  const done = plan.changed + Object.values(plan.skipped ?? {}).reduce((sum, each) => sum + each, 0);
  return html`<p class="effect" role="status">${plan.state === "done" ? "Done: " : `${plan.state}: `}<b>${formatNumber(plan.changed)}</b> of ${count(plan.counted, noun)} changed.</p>
    <progress max=${Math.max(plan.counted, 1)} value=${ended && plan.state === "done" ? Math.max(plan.counted, 1) : done} aria-label="progress"></progress>
    <${Skipped} skipped=${plan.skipped} />
    ${plan.error && html`<p class="warn">▲ ${visible(plan.error)}</p>`}
    <${Problem} error=${error} />
    ${!ended && html`<p class="soft">It goes on if you close this page. <code>ddmq op show ${plan.id}</code></p>`}
    <${Buttons}>
      ${!ended && html`<button type="button" onClick=${onStop}>Stop</button>`}
      <${NextButton} type="button" class=${ended ? "act" : ""} onClick=${onClose}>Close<//>
    <//>`;
}

function Skipped({ skipped }) {
  const rows = Object.entries(skipped ?? {}).filter(([, number]) => number);
  return rows.length ? html`<p class="soft">Left as they are: ${rows.map(([reason, number]) => `${formatNumber(number)} (${visible(reason)})`).join(", ")}.</p>` : null;
}

function Reaches({ reaches }) {
  const rows = Object.entries(reaches ?? {});
  if (!rows.length) return null;
  return html`<p>Reaches ${rows.map(([topic, reached]) => html`<span><${Name} text=${topic} />: ${count(reached.count, "group")}${reached.groups.length ? ` (${reached.groups.map((each) => visible(each)).join(", ")}${reached.count > reached.groups.length ? ", …" : ""})` : ""} </span>`)}</p>`;
}

function Sample({ rows }) {
  if (!rows?.length) return null;
  return html`<details open><summary>The first ${rows.length}</summary><ul class="sample">${rows.map((row) => html`<li>
    <${Name} text=${row.key || (row.id ?? `${row.queue}/${row.offset}`)} /> · <${Name} text=${row.topic} />
    ${row.due_ms != null && html` · due <${Time} ms=${row.due_ms} />`}
    ${row.error && html` · <span class="soft">${visible(shorten(row.error, 80))}</span>`}
    ${row.preview && html`<div class="soft">${visible(shorten(row.preview, 100))}</div>`}
  </li>`)}</ul></details>`;
}

function Change({ action, onClose }) {
  const [facts, setFacts] = useState(action.preview ? null : action.facts);
  const [values, setValues] = useState(() => Object.fromEntries((action.fields ?? []).map((field) => [field.name, field.value ?? ""])));
  const [result, setResult] = useState(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const run = (work, then) => {
    setBusy(true);
    setError(null);
    work().then(then, setError).finally(() => setBusy(false));
  };
  const preview = () => run(() => action.preview(values), (answer) => setFacts([...action.facts, ...answer]));
  useEffect(() => {
    if (action.preview) preview();
  }, [action]);
  const finish = (answer) => setResult(typeof answer === "string" ? { text: answer } : answer);
  if (result) {
    const undo = () => run(() => post(path`/changes/${result.undo}/undo`), () => finish("The change is undone."));
    return html`<p class="effect" role="status">✓ ${result.text}</p><${Problem} error=${error} />
      <${Buttons}>${result.undo && html`<button type="button" onClick=${undo} disabled=${busy}>Undo</button>`}<${NextButton} type="button" class="act" onClick=${onClose}>Close<//><//>`;
  }
  const submit = (event) => {
    event.preventDefault();
    run(() => action.apply(values), finish);
  };
  const command = typeof action.command === "function" ? action.command(values) : action.command;
  return html`<form onSubmit=${submit}>
    ${action.text && html`<p>${action.text}</p>`}
    ${(action.fields ?? []).map((field) => html`<p class="filter"><label for=${`field-${field.name}`}>${field.label}</label>
      ${field.lines
        ? html`<textarea id=${`field-${field.name}`} rows=${field.lines} onInput=${(event) => setValues({ ...values, [field.name]: event.target.value })}>${values[field.name]}</textarea>`
        : html`<input id=${`field-${field.name}`} type=${field.type ?? "text"} value=${values[field.name]} required=${field.required} placeholder=${field.placeholder} onInput=${(event) => setValues({ ...values, [field.name]: event.target.value })} />`}</p>`)}
    ${facts && html`<${Facts} facts=${facts} />`}
    ${action.preview && action.fields && html`<button type="button" onClick=${preview} disabled=${busy}>Show the effect</button>`}
    <${Command} text=${command} />
    <${Problem} error=${error} />
    <${Buttons}>
      <button type="button" onClick=${onClose}>Cancel</button>
      <button type="submit" class=${action.danger ? "danger" : "act"} disabled=${busy || (action.preview && !facts)} autofocus=${!action.fields}>${action.verb}</button>
    <//>
  </form>`;
}

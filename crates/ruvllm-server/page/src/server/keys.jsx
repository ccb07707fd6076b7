// API keys: a list, a form for a new one, which is shown once, and their end.

import { useState } from "preact/hooks";
import { get, post, remove } from "../api.js";
import { copy } from "../markdown/markdown.jsx";
import { tell } from "../state.js";
import { confirm } from "../ui/dialog.jsx";
import { keepFocus } from "../ui/focus.js";
import { Pending, useRead } from "../ui/view.jsx";

const LIMITS = [
  ["concurrent", "Requests at once", 1, 1000000],
  ["priority", "Priority", -10, 10],
  ["kv_mib", "MiB of KV cache", 1, 16777216],
  ["adapter_mib", "MiB of adapters", 1, 16777216],
];

/** The part of the view. */
export function ApiKeys() {
  const { value, error, again } = useRead(() => get("v1/keys"), 30);
  const [made, setMade] = useState(null);
  const drop = async (key) => {
    const text = `Requests with the key ${key.id} of ${key.name} are refused from then on, and those that run end. This cannot be undone.`;
    if (!(await confirm({ title: "Delete this key?", text, action: "Delete" }))) return;
    try {
      await remove(`v1/keys/${key.id}`);
      if (made?.id === key.id) setMade(null);
      tell("The key is deleted");
    } catch (failure) {
      tell(failure.message, true);
    }
    again();
  };
  return (
    <section aria-labelledby="api-keys">
      <h2 id="api-keys">API keys</h2>
      {value ? null : <Pending error={error} what="the keys" />}
      <ul class="rows">
        {(value?.data ?? []).map((key) => (
          <li key={key.id}>
            <div><strong>{key.name}</strong> <code>{key.id}</code> <span class="soft">{about(key)}</span></div>
            {key.can_be_deleted ? <button type="button" aria-label={`Delete the key ${key.id} of ${key.name}`} onClick={() => drop(key)}>Delete</button> : null}
          </li>
        ))}
      </ul>
      {made ? <Made made={made} close={() => { setMade(null); keepFocus("#key-name"); }} /> : null}
      <NewKey done={(key) => { setMade(key); again(); }} />
    </section>
  );
}

/** What a key is allowed, in words. */
function about(key) {
  const limits = LIMITS.filter(([name]) => key[name]).map(([name, words]) => `${words.toLowerCase()}: ${key[name]}`);
  return [key.is_admin ? "admin" : null, ...limits, key.source === "options" ? "given by an option" : null].filter(Boolean).join(", ");
}

/** A key that was made: it is here and nowhere else. */
function Made({ made, close }) {
  return (
    <div class="editor" role="group" aria-label="New key">
      <p role="status">This is the key of {made.name}. It is shown this once: the server keeps its SHA-256 only.</p>
      <pre class="plain" id="made-key" tabIndex={0} aria-label="Key">{made.key}</pre>
      <div class="row">
        <button type="button" class="primary" onClick={() => copy(made.key)}>Copy</button>
        <button type="button" onClick={close}>Done</button>
      </div>
    </div>
  );
}

function NewKey({ done }) {
  const [isBusy, setBusy] = useState(false);
  const save = async (event) => {
    event.preventDefault();
    const form = event.currentTarget;
    const given = LIMITS.map(([name]) => [name, form.elements[name].value]).filter(([, text]) => text !== "");
    const body = { name: form.elements.name.value.trim(), is_admin: form.elements.is_admin.checked };
    setBusy(true);
    try {
      done(await post("v1/keys", { ...body, ...Object.fromEntries(given.map(([name, text]) => [name, Number(text)])) }));
      form.reset();
      tell("The key is made");
    } catch (failure) {
      tell(failure.message, true);
    }
    setBusy(false);
  };
  return (
    <form class="editor" aria-label="Make a key" onSubmit={save}>
      <div class="field"><label for="key-name">Name of the tenant; keys of one name share cached prompts and what was learned</label><input id="key-name" name="name" required maxLength={100} autocomplete="off" /></div>
      <details>
        <summary>Limits</summary>
        {LIMITS.map(([name, words, min, max]) => (
          <div class="field" key={name}><label for={`key-${name}`}>{words}</label><input id={`key-${name}`} name={name} type="number" min={min} max={max} placeholder={name === "priority" ? "0" : "no limit"} /></div>
        ))}
      </details>
      <label class="switch"><input type="checkbox" name="is_admin" /> It may administer keys</label>
      <div class="row"><button type="submit" class="primary" disabled={isBusy}>Make a key</button></div>
    </form>
  );
}

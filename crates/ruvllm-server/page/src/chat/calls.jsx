// Calls of functions: what the model wants, and the place for what came of it.

import { useState } from "preact/hooks";
import { path } from "../tree.js";
import { giveResults } from "./answer.js";

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** The calls of an answer. Where it is the last message, their results can be written. */
export function Calls({ own, node }) {
  const [results, setResults] = useState({});
  const state = own.state.value;
  const isLast = path(state).at(-1)?.id === node.id && !node.isBusy;
  const send = (event) => {
    event.preventDefault();
    giveResults(state.id, node, results);
  };
  return (
    <form class="calls" onSubmit={send}>
      {node.calls.map((call) => (
        <section key={call.id} class="call" aria-label={`Call of ${call.name}`}>
          <h3><code>{call.name}</code></h3>
          <pre class="plain" tabIndex={0}>{pretty(call.arguments)}</pre>
          {isLast ? (
            <div class="field">
              <label for={`result-${call.id}`}>What it returned</label>
              <textarea id={`result-${call.id}`} class="mono" rows="2" value={results[call.id] ?? ""} onInput={(event) => setResults({ ...results, [call.id]: event.currentTarget.value })} />
            </div>
          ) : null}
        </section>
      ))}
      {isLast ? <button type="submit" class="primary" disabled={own.busy.value || node.calls.some((call) => !results[call.id]?.trim())}>Give results</button> : null}
    </form>
  );
}

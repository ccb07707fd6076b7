// Patterns: how tasks were gone about, and how well that went.

import { useState } from "preact/hooks";
import { get, post, remove } from "../api.js";
import { tell } from "../state.js";
import { Bin } from "../ui/icons.jsx";
import { Pending, useRead, when } from "../ui/view.jsx";

/** Patterns like the words; the newest where there are none. */
export function Patterns({ words }) {
  const [like, setLike] = useState("");
  const read = () => (like ? post("v1/patterns/search", { task: like, limit: 20 }) : get("v1/patterns"));
  const { value, error, again } = useRead(read, 0, like);
  const drop = async (pattern) => {
    await remove(`v1/patterns/${pattern.id}`).then(() => tell("The pattern is forgotten"), (failure) => tell(failure.message, true));
    again();
  };
  return (
    <section aria-labelledby="patterns">
      <div class="row spread">
        <h2 id="patterns">Patterns of tasks</h2>
        {like ? <button type="button" onClick={() => setLike("")}>Show the newest</button> : <button type="button" disabled={!words.trim()} onClick={() => setLike(words.trim())}>Find by meaning</button>}
      </div>
      <p class="soft">{like ? `Most like “${like}” first.` : "Judged and corrected answers; the setting “patterns” puts those of similar tasks into a prompt."}</p>
      {value ? null : <Pending error={error} what="patterns" />}
      {value && value.data.length === 0 ? <p class="soft">None.</p> : null}
      <ul class="cards">
        {(value?.data ?? []).map((pattern) => (
          <li key={pattern.id} class={`pattern ${pattern.verdict}`}>
            <p class="question">{pattern.task}</p>
            {pattern.steps.map((step, i) => <p key={i} class="answer">{step.action}{step.outcome ? <span class="soft"> → {step.outcome}</span> : null}</p>)}
            <footer>
              <span class="soft">{pattern.verdict}, quality {pattern.quality.toFixed(2)}, used {pattern.uses}×, {when(pattern.created_ms)}{pattern.similarity === undefined ? "" : `, similarity ${pattern.similarity.toFixed(2)}`}</span>
              <button type="button" class="icon" aria-label={`Forget pattern ${pattern.id}`} onClick={() => drop(pattern)}><Bin /></button>
            </footer>
          </li>
        ))}
      </ul>
    </section>
  );
}

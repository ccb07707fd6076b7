// Memory: facts and corrections, and patterns of tasks; to search, to edit, to delete, to add.

import { useState } from "preact/hooks";
import { get, post, remove } from "../api.js";
import { learns, tell } from "../state.js";
import { confirm } from "../ui/dialog.jsx";
import { keepFocus } from "../ui/focus.js";
import { Bin, Pen } from "../ui/icons.jsx";
import { Pending, View, useRead, when } from "../ui/view.jsx";
import { Patterns } from "./patterns.jsx";

/** The view. */
export function Memory({ menu }) {
  const [words, setWords] = useState("");
  const { value, error, again } = useRead(() => get("v1/memory"), 30);
  const [edited, setEdited] = useState(null);
  // Patterns come and go with facts.
  const [nChanges, setChanges] = useState(0);
  if (!learns.value) {
    return <View menu={menu} title="Memory"><p>This server learns nothing. Start it with <code>--learn</code>, and what it is taught stands here.</p></View>;
  }
  const forget = async () => {
    const text = "All corrections, patterns and learned texts of this key go, on the disk as well. This cannot be undone.";
    if (!(await confirm({ title: "Forget everything?", text, action: "Forget everything" }))) return;
    await remove("v1/memory").then(() => tell("Everything is forgotten"), (failure) => tell(failure.message, true));
    again();
  };
  return (
    <View menu={menu} title="Memory" actions={<button type="button" class="danger" onClick={forget}>Forget everything</button>}>
      <search class="row">
        <label class="unseen" for="memory-search">Search the memory</label>
        <input id="memory-search" type="search" placeholder="Search" value={words} onInput={(event) => setWords(event.currentTarget.value)} />
        <button type="button" class="primary" onClick={() => setEdited({ item: null, question: "", answer: "", right: true })}>Add a fact</button>
      </search>
      {edited ? <Editor key={edited.item ?? "new"} fact={edited} close={() => { setEdited(null); setChanges(nChanges + 1); again(); keepFocus("#memory-search"); }} /> : null}
      <section aria-labelledby="facts">
        <h2 id="facts">Facts and corrections</h2>
        {value ? <Facts all={value.data} words={words} edit={setEdited} again={again} /> : <Pending error={error} what="the memory" />}
      </section>
      <Patterns key={nChanges} words={words} />
    </View>
  );
}

const holds = (fact, words) => words.toLowerCase().split(/\s+/).every((word) => `${fact.question ?? ""} ${fact.answer}`.toLowerCase().includes(word));

function Facts({ all, words, edit, again }) {
  const found = all.filter((fact) => holds(fact, words.trim()));
  const drop = async (fact) => {
    const text = `“${fact.answer}” is taken back, as if it had never been taught.`;
    if (!(await confirm({ title: "Delete this fact?", text, action: "Delete" }))) return;
    try {
      await post("v1/learning", { action: "undo", item: fact.item });
      tell("Deleted");
    } catch (failure) {
      tell(failure.message, true);
    }
    again();
  };
  if (found.length === 0) return <p class="soft">{all.length ? "Nothing here has these words." : "Nothing yet. Correct an answer, or add a fact."}</p>;
  return (
    <ul class="cards" aria-live="polite">
      {found.map((fact) => (
        <li key={fact.item} class={`fact${fact.right ? "" : " not-right"}`}>
          <p class="question">{fact.question ?? <span class="soft">its question was not kept as text</span>}</p>
          <p class="answer">{fact.right ? null : <strong>Not: </strong>}{fact.answer}</p>
          <footer>
            <span class="soft">item {fact.item}, {when(fact.at_ms)}</span>
            <button type="button" class="icon" aria-label={`Edit the fact of item ${fact.item}`} onClick={() => edit(fact)}><Pen /></button>
            <button type="button" class="icon" aria-label={`Delete the fact of item ${fact.item}`} disabled={!fact.can_undo} onClick={() => drop(fact)}><Bin /></button>
          </footer>
        </li>
      ))}
    </ul>
  );
}

function Editor({ fact, close }) {
  const [draft, setDraft] = useState({ question: fact.question ?? "", answer: fact.answer, right: fact.right });
  const [isBusy, setBusy] = useState(false);
  const set = (more) => setDraft({ ...draft, ...more });
  const save = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      // The new one first: if it cannot be learned, the old one stays.
      await post("v1/memory", { question: draft.question.trim(), answer: draft.answer.trim(), wrong: !draft.right, pattern: true });
      if (fact.item) await post("v1/learning", { action: "undo", item: fact.item });
      tell("Remembered");
      close();
    } catch (failure) {
      tell(failure.message, true);
      setBusy(false);
    }
  };
  return (
    <form class="editor" onSubmit={save} aria-label={fact.item ? `Fact of item ${fact.item}` : "New fact"}>
      <div class="field"><label for="fact-question">Question</label><input id="fact-question" autofocus value={draft.question} onInput={(event) => set({ question: event.currentTarget.value })} /></div>
      <div class="field"><label for="fact-answer">Answer</label><textarea id="fact-answer" rows="3" value={draft.answer} onInput={(event) => set({ answer: event.currentTarget.value })} /></div>
      <label class="switch"><input type="checkbox" checked={!draft.right} onChange={(event) => set({ right: !event.currentTarget.checked })} /> This is the wrong answer: it is not to be given</label>
      <div class="row">
        <button type="submit" class="primary" disabled={isBusy || !draft.question.trim() || !draft.answer.trim()}>Remember</button>
        <button type="button" onClick={close}>Cancel</button>
      </div>
    </form>
  );
}

// The buttons under an answer that teach, and what came of them.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { learns, tell } from "../state.js";
import { keepFocus } from "../ui/focus.js";
import { Bad, Good, Pen } from "../ui/icons.jsx";
import { canJudge, correct, judge, onlyQuestion, takeBack, teach } from "./feedback.js";

const SAID = {
  good: "Good",
  bad: "Bad",
  corrected: "Corrected",
};

/** Buttons to judge an answer, or what it was judged as. */
export function Judging({ id, node, open }) {
  const [isBusy, setBusy] = useState(false);
  if (!canJudge() || !node.answerId || node.error) return null;
  if (node.judgement) return null;
  const once = (work) => async () => {
    setBusy(true);
    await work();
    setBusy(false);
    keepFocus(`[data-id="${node.id}"] .learned button`, `[data-id="${node.id}"] .actions button`);
  };
  return (
    <>
      <button type="button" class="icon" disabled={isBusy} aria-label="Good answer" title="Good" onClick={once(() => judge(id, node, 1))}><Good /></button>
      <button type="button" class="icon" disabled={isBusy} aria-label="Bad answer" title="Bad" onClick={once(() => judge(id, node, 0))}><Bad /></button>
      {learns.value ? <button type="button" class="text correct" disabled={isBusy} onClick={open}><Pen /> It should have been…</button> : null}
    </>
  );
}

/** What was learned from an answer, and the way back. */
export function Learned({ id, node }) {
  const [isBusy, setBusy] = useState(false);
  const { judgement } = node;
  if (!judgement) return null;
  const { kind, item, pattern, text, isUndone } = judgement;
  const undo = async () => {
    setBusy(true);
    await takeBack(id, node);
    setBusy(false);
    keepFocus(`[data-id="${node.id}"] .learned button`, `[data-id="${node.id}"] .actions button`);
  };
  const facts = [
    item ? `learned as item ${item}` : "nothing was learned from it",
    kind === "bad" && item ? "it will not be given again" : null,
    pattern ? `kept as pattern ${pattern}` : null,
  ].filter(Boolean);
  return (
    <div class={`learned${isUndone ? " undone" : ""}`} data-kind={kind}>
      <p>
        <strong>{SAID[kind]}</strong>
        <span>{isUndone ? `taken back: item ${item} is undone` : facts.join("; ")}</span>
        {item && !isUndone ? <button type="button" class="text" disabled={isBusy} onClick={undo}>{isBusy ? "Undoing…" : "Undo"}</button> : null}
      </p>
      {text && !isUndone ? <blockquote>{text}</blockquote> : null}
    </div>
  );
}

/** The place to write what an answer should have been. */
export function Correcting({ id, state, node, close }) {
  const box = useRef(null);
  const [text, setText] = useState(node.content);
  const [why, setWhy] = useState(null);
  const [isBusy, setBusy] = useState(false);
  useLayoutEffect(() => {
    box.current.focus();
    box.current.select();
  }, []);
  const question = onlyQuestion(state, node);
  const submit = async (how) => {
    setBusy(true);
    try {
      await how();
      close();
    } catch (error) {
      setWhy(error);
      tell(error.message, true);
      setBusy(false);
    }
  };
  const send = (event) => {
    event.preventDefault();
    submit(() => correct(id, node, text.trim()));
  };
  return (
    <form class="correcting" onSubmit={send}>
      <label for={`correct-${node.id}`}>It should have been</label>
      <textarea id={`correct-${node.id}`} ref={box} rows={Math.min(12, Math.max(2, text.split("\n").length))} value={text} onInput={(event) => setText(event.currentTarget.value)} onKeyDown={(event) => {
        if (event.key === "Escape") {
          event.stopPropagation();
          close();
        }
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.currentTarget.form.requestSubmit();
      }} />
      {why ? <p class="wrong" role="alert">{why.message}</p> : <p class="does">The model gives it when the same is asked again, in other words as well. It can be undone.</p>}
      <div class="row">
        <button type="submit" class="primary" disabled={isBusy || !text.trim() || text.trim() === node.content.trim()}>Teach this</button>
        {why?.code === "unknown_answer" && question ? <button type="button" disabled={isBusy} onClick={() => submit(() => teach(id, node, question, text.trim()))}>Teach question and answer anew</button> : null}
        <button type="button" onClick={close}>Cancel</button>
      </div>
    </form>
  );
}

// Messages: a question with its files, an answer with all that can be done with it, and the calls of functions.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { Markdown, copy } from "../markdown/markdown.jsx";
import { change } from "../store.js";
import { newestBelow, siblings } from "../tree.js";
import { keepFocus } from "../ui/focus.js";
import { Again, Bars, Copy, Info, Left, Pen, Right } from "../ui/icons.jsx";
import { edit, regenerate } from "./answer.js";
import { Calls } from "./calls.jsx";
import { Correcting, Judging, Learned } from "./judging.jsx";
import { Tokens } from "./tokens.jsx";

/** A message of whatever kind. */
export function Message({ own, node }) {
  if (node.role === "user") return <Question own={own} node={node} />;
  if (node.role === "tool") return <ToolResult node={node} />;
  return <Answer own={own} node={node} />;
}

function ToolResult({ node }) {
  return (
    <article class="message tool" aria-label={`Result of ${node.name ?? "a function"}`}>
      <p class="soft">Result of <code>{node.name ?? node.callId}</code></p>
      <pre class="plain">{node.content}</pre>
    </article>
  );
}

/** Goes to another answer of the same question, or another wording of it. */
function Branches({ own, node }) {
  const state = own.state.value;
  const all = siblings(state, node);
  if (all.length < 2) return null;
  const at = all.findIndex((other) => other.id === node.id);
  const show = (i) => {
    change(state.id, (before) => ({ ...before, leaf: newestBelow(before, all[i].id) }));
    keepFocus(`[data-id="${all[i].id}"] .branches button:enabled`);
  };
  return (
    <span class="branches" role="group" aria-label="Branches">
      <button type="button" class="icon" aria-label="Branch before" disabled={at === 0 || own.busy.value} onClick={() => show(at - 1)}><Left /></button>
      <span aria-label={`Branch ${at + 1} of ${all.length}`}>{at + 1}/{all.length}</span>
      <button type="button" class="icon" aria-label="Branch after" disabled={at === all.length - 1 || own.busy.value} onClick={() => show(at + 1)}><Right /></button>
    </span>
  );
}

function Question({ own, node }) {
  const [isEdited, setEdited] = useState(false);
  const { id } = own.state.value;
  return (
    <article class="message user" aria-label="You" data-id={node.id}>
      {(node.attachments ?? []).map((file) => <File key={file.name} file={file} />)}
      {isEdited ? <Editing node={node} send={(text) => { setEdited(false); edit(id, node, text); keepFocus("#prompt"); }} close={() => { setEdited(false); keepFocus(`[data-id="${node.id}"] .edit`, "#prompt"); }} />
        : node.content ? <div class="said">{node.content}</div> : null}
      {isEdited ? null : (
        <div class="actions">
          <Branches own={own} node={node} />
          <button type="button" class="icon" aria-label="Copy the question" title="Copy" onClick={() => copy(node.content)}><Copy /></button>
          <button type="button" class="icon edit" aria-label="Edit the question" title="Edit" disabled={own.busy.value} onClick={() => setEdited(true)}><Pen /></button>
        </div>
      )}
    </article>
  );
}

function File({ file }) {
  return (
    <details class="file">
      <summary>{file.name} <span class="soft">{file.text.length.toLocaleString()} characters</span></summary>
      <pre class="plain" tabIndex={0}>{file.text}</pre>
    </details>
  );
}

function Editing({ node, send, close }) {
  const box = useRef(null);
  const [text, setText] = useState(node.content);
  useLayoutEffect(() => box.current.focus(), []);
  const submit = (event) => {
    event.preventDefault();
    if (text.trim()) send(text.trim());
  };
  return (
    <form class="editing" onSubmit={submit}>
      <textarea ref={box} aria-label="Edit the question" rows={Math.min(12, text.split("\n").length + 1)} value={text} onInput={(event) => setText(event.currentTarget.value)} onKeyDown={(event) => {
        if (event.key === "Escape") {
          event.stopPropagation();
          close();
        }
        if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
          event.preventDefault();
          event.currentTarget.form.requestSubmit();
        }
      }} />
      <div class="row end">
        <button type="button" onClick={close}>Cancel</button>
        <button type="submit" class="primary" disabled={!text.trim()}>Ask anew</button>
      </div>
    </form>
  );
}

/** JSON that stands alone is shown in lines. */
function asJson(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" && value !== null ? `\`\`\`json\n${JSON.stringify(value, null, 2)}\n\`\`\`` : null;
  } catch {
    return null;
  }
}

const ENDS = {
  stopped: "Stopped.",
  length: "It ends here because of the limit of tokens.",
};

function Answer({ own, node }) {
  const [shown, setShown] = useState(null);
  const state = own.state.value;
  const toggle = (what) => setShown(shown === what ? null : what);
  const isForm = !node.isBusy && /^\s*[{[]/.test(node.content);
  const text = (isForm && asJson(node.content)) || node.content;
  const isEmpty = !node.content && !node.thought && !node.calls?.length;
  return (
    <article class={`message assistant${node.isBusy ? " busy" : ""}`} aria-label="Answer" aria-busy={node.isBusy ? "true" : "false"} data-id={node.id}>
      {node.thought ? <Thought node={node} /> : null}
      {node.isBusy && isEmpty ? <p class="waiting"><span class="unseen">The answer is being written</span></p> : null}
      {text ? <Markdown text={text} /> : null}
      {node.calls?.length ? <Calls own={own} node={node} /> : null}
      {node.error ? <p class="wrong note" role="alert">{node.error}</p> : null}
      {ENDS[node.finish] ? <p class="soft note">{ENDS[node.finish]}</p> : null}
      {!node.isBusy && isEmpty && !node.error && !ENDS[node.finish] ? <p class="soft note">The answer is empty.</p> : null}
      {node.isBusy ? null : (
        <div class="actions">
          <Branches own={own} node={node} />
          {node.content ? <button type="button" class="icon" aria-label="Copy the answer" title="Copy" onClick={() => copy(node.content)}><Copy /></button> : null}
          <button type="button" class="icon" aria-label="Answer again" title="Answer again" disabled={own.busy.value} onClick={() => regenerate(state.id, node)}><Again /></button>
          {node.tokens?.length ? <button type="button" class="icon" aria-label="Tokens and probabilities" title="Tokens" aria-expanded={shown === "tokens" ? "true" : "false"} onClick={() => toggle("tokens")}><Bars /></button> : null}
          {node.usage ? <button type="button" class="icon" aria-label="About this answer" title="About this answer" aria-expanded={shown === "about" ? "true" : "false"} onClick={() => toggle("about")}><Info /></button> : null}
          <Judging id={state.id} node={node} open={() => setShown("correct")} />
        </div>
      )}
      <Learned id={state.id} node={node} />
      {shown === "correct" && !node.judgement ? <Correcting id={state.id} state={state} node={node} close={() => { setShown(null); keepFocus(`[data-id="${node.id}"] .learned button`, `[data-id="${node.id}"] .correct`); }} /> : null}
      {shown === "tokens" && node.tokens?.length ? <Tokens tokens={node.tokens} id={node.id} /> : null}
      {shown === "about" ? <About node={node} /> : null}
    </article>
  );
}

function Thought({ node }) {
  const isThinking = node.isBusy && !node.content;
  return (
    <details class="thought" open={isThinking}>
      <summary>{isThinking ? "Thinking…" : "Thoughts"}</summary>
      <Markdown text={node.thought} />
    </details>
  );
}

function About({ node }) {
  const { usage } = node;
  const facts = [
    ["Model", node.model],
    ["Prompt", `${usage.prompt_tokens} tokens, ${usage.prompt_tokens_details?.cached_tokens ?? 0} of them cached`],
    ["Answer", `${usage.completion_tokens} tokens${node.rate ? `, ${node.rate.toFixed(1)} a second` : ""}`],
    ["First token", node.firstMs === null || node.firstMs === undefined ? null : `after ${node.firstMs} ms`],
    ["End", node.finish],
    ["Routing", node.reason],
    ["Changed nothing", node.unheeded],
    ["Request", node.request ? <a href={`#/audit/${node.request}`}>{node.request}</a> : null],
  ];
  return <dl class="facts">{facts.filter(([, value]) => value).map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>;
}

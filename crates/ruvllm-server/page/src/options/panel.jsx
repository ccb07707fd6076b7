// Options of a conversation, beside it: how it is answered, in what form, and which functions may be called.

import { useEffect, useState } from "preact/hooks";
import { hasOptions } from "../state.js";
import { change } from "../store.js";
import { keepFocus } from "../ui/focus.js";
import { Close } from "../ui/icons.jsx";
import { Field } from "./field.jsx";
import { groups, loadSchemas, schemas } from "./fields.js";
import { EXAMPLES, KINDS, problem } from "./format.js";
import { EXAMPLE, readTools } from "./tools.js";

const TABS = [["answer", "Answer"], ["form", "Form"], ["tools", "Tools"]];

/** The panel. */
export function Options({ own }) {
  const [tab, setTab] = useState("answer");
  const state = own.state.value;
  const set = (more) => change(state.id, (before) => ({ ...before, ...more }));
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const names = TABS.map(([name]) => name);
    const next = names[(names.indexOf(tab) + step + names.length) % names.length];
    setTab(next);
    document.getElementById(`tab-${next}`)?.focus();
  };
  return (
    <aside id="options" aria-label="Options of the conversation">
      <div class="panel-head">
        <div role="tablist" aria-label="Options" onKeyDown={move}>
          {TABS.map(([name, title]) => (
            <button key={name} type="button" role="tab" id={`tab-${name}`} aria-controls="tab-panel" aria-selected={tab === name ? "true" : "false"} tabIndex={tab === name ? 0 : -1} onClick={() => setTab(name)}>{title}</button>
          ))}
        </div>
        <button type="button" class="icon" aria-label="Close options" onClick={() => { hasOptions.value = false; keepFocus("#more"); }}><Close /></button>
      </div>
      <div role="tabpanel" id="tab-panel" aria-labelledby={`tab-${tab}`} class="panel-body" tabIndex={0}>
        {tab === "answer" && <Answer state={state} set={set} />}
        {tab === "form" && <Form state={state} set={set} />}
        {tab === "tools" && <Tools state={state} set={set} />}
      </div>
    </aside>
  );
}

function Answer({ state, set }) {
  const [why, setWhy] = useState(null);
  useEffect(() => {
    loadSchemas().catch((error) => setWhy(error.message));
  }, []);
  const setting = (name) => (value) => {
    const settings = { ...state.settings };
    if (value === undefined) delete settings[name];
    else settings[name] = value;
    set({ settings });
  };
  const nSet = Object.keys(state.settings).length;
  return (
    <>
      <div class="field">
        <label for="system">System prompt</label>
        <textarea id="system" rows="4" value={state.system} placeholder="What the model should be and do" onInput={(event) => set({ system: event.currentTarget.value })} />
      </div>
      <label class="switch"><input type="checkbox" checked={state.hasTokens} onChange={(event) => set({ hasTokens: event.currentTarget.checked })} /> Tell the probabilities of tokens</label>
      {why ? <p class="wrong">{why}</p> : null}
      {!schemas.value && !why ? <p class="soft">Reading the server's settings…</p> : null}
      {groups().map(([title, fields], i) => {
        const n = fields.filter(({ name }) => name in state.settings).length;
        const body = <div class="fields">{fields.map((field) => <Field key={`${state.id}-${field.name}`} field={field} value={state.settings[field.name]} set={setting(field.name)} />)}</div>;
        return i === 0 ? <div key={title}>{body}</div> : <details key={title}><summary>{title}{n ? <span class="count">{n}</span> : null}</summary>{body}</details>;
      })}
      {nSet ? <button type="button" class="quiet" onClick={() => set({ settings: {} })}>Leave all {nSet} settings to the server</button> : null}
    </>
  );
}

function Form({ state, set }) {
  const { kind = "text", text = "" } = state.format;
  const of = KINDS.find((one) => one.kind === kind) ?? KINDS[0];
  const write = (more) => set({ format: { ...state.format, ...more } });
  const why = problem({ kind, text });
  return (
    <>
      <div class="field">
        <label for="form-kind">The answer is</label>
        <select id="form-kind" value={kind} onChange={(event) => write({ kind: event.currentTarget.value, text: "" })}>
          {KINDS.map((one) => <option key={one.kind} value={one.kind}>{one.name}</option>)}
        </select>
      </div>
      {of.what ? (
        <div class="field">
          <label for="form-text">{of.name}</label>
          <textarea id="form-text" class="mono" rows="12" spellcheck={false} value={text} aria-describedby="form-why" aria-invalid={why && text ? "true" : undefined} onInput={(event) => write({ text: event.currentTarget.value })} />
          <p class="does" id="form-why">{why && text ? <span class="wrong">{why}</span> : of.what}</p>
          <p class="examples">{(EXAMPLES[kind] ?? []).map(([name, example]) => (
            <button key={name} type="button" class="chip" onClick={() => write({ text: typeof example === "string" ? example : JSON.stringify(example, null, 2) })}>{name}</button>
          ))}</p>
        </div>
      ) : <p class="does">{kind === "text" ? "The model writes what it likes." : "The answer is one JSON object, whatever is in it."}</p>}
    </>
  );
}

function Tools({ state, set }) {
  const { text = "", isOn = false, choice = "auto" } = state.tools;
  const write = (more) => set({ tools: { ...state.tools, ...more } });
  const { tools, why } = readTools(text);
  return (
    <>
      <label class="switch"><input type="checkbox" checked={isOn} onChange={(event) => write({ isOn: event.currentTarget.checked })} /> Offer these functions to the model</label>
      <div class="field">
        <label for="tools-text">Functions, as JSON</label>
        <textarea id="tools-text" class="mono" rows="14" spellcheck={false} value={text} aria-describedby="tools-why" aria-invalid={why ? "true" : undefined} onInput={(event) => write({ text: event.currentTarget.value })} />
        <p class="does" id="tools-why">{why ? <span class="wrong">{why}</span> : "The page runs none of them: you write what came of a call."}</p>
        {text ? null : <p class="examples"><button type="button" class="chip" onClick={() => write({ text: JSON.stringify(EXAMPLE, null, 2), isOn: true })}>Weather</button></p>}
      </div>
      <div class="field">
        <label for="tools-choice">The model calls</label>
        <select id="tools-choice" value={choice} onChange={(event) => write({ choice: event.currentTarget.value })}>
          <option value="auto">what it wants</option>
          <option value="none">none</option>
          <option value="required">at least one</option>
          {tools.map(({ function: { name } }) => <option key={name} value={name}>{name}</option>)}
        </select>
      </div>
    </>
  );
}

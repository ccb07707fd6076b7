// A conversation: its messages, and the place to write.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { adapters, hasOptions, learns, models, routes } from "../state.js";
import { change } from "../store.js";
import { path, titleOf } from "../tree.js";
import { Options } from "../options/panel.jsx";
import { Sliders } from "../ui/icons.jsx";
import { Composer } from "./composer.jsx";
import { Message } from "./message.jsx";

/** The view of a conversation. */
export function Chat({ own, menu }) {
  const state = own.state.value;
  return (
    <>
      <header class="bar">
        {menu}
        <h1 class="unseen">{titleOf(state)}</h1>
        <Choice own={own} />
        <button type="button" id="more" class="icon" aria-label="Options" title="Options" aria-expanded={hasOptions.value ? "true" : "false"} aria-controls="options" onClick={() => { hasOptions.value = !hasOptions.value; }}><Sliders /></button>
      </header>
      <div class={`chat${hasOptions.value ? " with-options" : ""}`}>
        <div class="talk">
          <Messages own={own} />
          <Composer key={state.id} own={own} />
        </div>
        {hasOptions.value ? <Options own={own} /> : null}
      </div>
    </>
  );
}

/** Which model answers, and with which adapter. */
function Choice({ own }) {
  const state = own.state.value;
  const set = (more) => change(state.id, (before) => ({ ...before, ...more }));
  const plain = models.value.filter((model) => !model.parent);
  const model = state.model || plain[0]?.id || "";
  const isKnown = plain.some((one) => one.id === model) || model === "auto" || model === "";
  const fitting = adapters.value.filter((adapter) => adapter.model === model);
  const info = plain.find((one) => one.id === model);
  return (
    <div class="choice">
      <label class="unseen" for="model">Model</label>
      <select id="model" value={model} onChange={(event) => set({ model: event.currentTarget.value, adapter: "" })}>
        {plain.map((one) => <option key={one.id} value={one.id}>{one.id}{one.state === "loaded" || one.state === undefined ? "" : ` (${one.state})`}</option>)}
        {routes.value ? <option value="auto">auto (routed)</option> : null}
        {isKnown ? null : <option value={model}>{model} (not served)</option>}
      </select>
      {fitting.length || state.adapter ? (
        <>
          <label class="unseen" for="adapter">Adapter</label>
          <select id="adapter" value={state.adapter} onChange={(event) => set({ adapter: event.currentTarget.value })}>
            <option value="">no adapter</option>
            {fitting.map((adapter) => <option key={adapter.name} value={adapter.name}>{adapter.name}</option>)}
            {state.adapter && !fitting.some((one) => one.name === state.adapter) ? <option value={state.adapter}>{state.adapter} (not loaded)</option> : null}
          </select>
        </>
      ) : null}
      {info?.meta ? <span class="soft context">{info.meta.n_ctx.toLocaleString()} tokens</span> : null}
    </div>
  );
}

function Messages({ own }) {
  const box = useRef(null);
  const [isAtEnd, setAtEnd] = useState(true);
  const state = own.state.value;
  const all = path(state);
  const toEnd = () => {
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  };
  useLayoutEffect(() => {
    if (isAtEnd) toEnd();
  }, [state]);
  useEffect(() => {
    setAtEnd(true);
    toEnd();
  }, [state.id, all.length]);
  const look = () => {
    const { scrollHeight, scrollTop, clientHeight } = box.current;
    setAtEnd(scrollHeight - scrollTop - clientHeight < 120);
  };
  return (
    <div id="messages" ref={box} role="log" aria-label="Conversation" aria-live="off" tabIndex={0} onScroll={look}>
      {all.length === 0 ? <Welcome /> : null}
      {all.map((node) => <Message key={node.id} own={own} node={node} />)}
      {isAtEnd ? null : <button type="button" class="to-end" onClick={toEnd}>To the end</button>}
    </div>
  );
}

function Welcome() {
  return (
    <div class="welcome">
      <h2>What would you like to know?</h2>
      <p class="soft">Conversations stay in this browser, and go to this server only.</p>
      {learns.value ? <p class="soft">This server learns: say under an answer whether it was good, or what it should have been.</p> : null}
    </div>
  );
}

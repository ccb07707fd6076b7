// The list of conversations and views; on a phone it slides over the page.

import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { hasWitness, health, learns, route, tell } from "../state.js";
import { begin, change, forget, load, summaries } from "../store.js";
import { confirm } from "./dialog.jsx";
import { Bin, Book, Chat, Close, Gauge, Gear, Growth, Menu, Pen, Plus, Shield } from "./icons.jsx";

/** Whether it is open, on a phone. */
export const isOpen = signal(false);

/** The views in their order. */
export const VIEWS = [
  ["chat", "Conversation", Chat],
  ["learning", "Learning", Growth],
  ["memory", "Memory", Book],
  ["audit", "Audit", Shield],
  ["server", "Server", Gauge],
  ["settings", "Settings", Gear],
];

/** Button that opens it, on a phone. */
export function MenuButton() {
  return <button type="button" class="icon only-phone" id="menu" aria-label="Menu" aria-expanded={isOpen.value ? "true" : "false"} aria-controls="side" onClick={() => { isOpen.value = true; }}><Menu /></button>;
}

/** The side. */
export function Sidebar() {
  const [words, setWords] = useState("");
  const box = useRef(null);
  const now = route.value;
  useEffect(() => {
    if (isOpen.value) box.current.querySelector("button")?.focus();
  }, [isOpen.value]);
  const close = () => {
    isOpen.value = false;
  };
  const found = summaries.value.filter((one) => one.title.toLowerCase().includes(words.trim().toLowerCase()));
  return (
    <>
      {isOpen.value ? <div class="veil" onClick={close} /> : null}
      <nav id="side" ref={box} class={isOpen.value ? "open" : ""} aria-label="Conversations and views" onKeyDown={(event) => event.key === "Escape" && close()}>
        <div class="side-head">
          <span class="brand">RuvLLM</span>
          <span id="state" role="status" class={`state ${health.value.replace(/ /g, "-")}`}>{health.value}</span>
          <button type="button" class="icon only-phone" aria-label="Close the menu" onClick={close}><Close /></button>
        </div>
        <button type="button" id="new" class="new" onClick={() => { close(); begin(); }}><Plus /> New conversation</button>
        <label class="unseen" for="search">Search conversations</label>
        <input id="search" type="search" placeholder="Search" value={words} onInput={(event) => setWords(event.currentTarget.value)} />
        <ul class="conversations" id="conversations">
          {found.map((one) => <Item key={one.id} one={one} isNow={now.view === "chat" && now.id === one.id} close={close} />)}
          {summaries.value.length && !found.length ? <li class="soft">None has these words.</li> : null}
        </ul>
        <ul class="views">
          {VIEWS.filter(([view]) => view !== "chat" || now.view !== "chat").map(([view, name, Icon]) => (
            <li key={view}>
              <a href={`#/${view}`} aria-current={now.view === view ? "page" : undefined} class={isOff(view) ? "off" : ""} onClick={close}><Icon /> {name}</a>
            </li>
          ))}
        </ul>
      </nav>
    </>
  );
}

/** Views of what the server does not do are there, and say how it is switched on. */
const isOff = (view) => (["learning", "memory"].includes(view) && !learns.value) || (view === "audit" && !hasWitness.value);

function Item({ one, isNow, close }) {
  const [isRenamed, setRenamed] = useState(false);
  const rename = async (event) => {
    event.preventDefault();
    const title = event.currentTarget.elements.title.value.trim();
    await load(one.id);
    change(one.id, (state) => ({ ...state, title }));
    setRenamed(false);
  };
  const drop = async () => {
    if (!(await confirm({ title: "Delete this conversation?", text: `“${one.title}” is deleted in this browser. What the server learned from it stays.`, action: "Delete" }))) return;
    await forget(one.id);
    tell("The conversation is deleted");
  };
  if (isRenamed) {
    return <li><form onSubmit={rename}><input name="title" aria-label="Title" defaultValue={one.title} autofocus onBlur={() => setRenamed(false)} onKeyDown={(event) => event.key === "Escape" && setRenamed(false)} /></form></li>;
  }
  return (
    <li class={isNow ? "now" : ""}>
      <a href={`#/chat/${one.id}`} aria-current={isNow ? "page" : undefined} title={one.title} onClick={close}>{one.title}</a>
      <button type="button" class="icon" aria-label={`Rename ${one.title}`} onClick={() => setRenamed(true)}><Pen /></button>
      <button type="button" class="icon" aria-label={`Delete ${one.title}`} onClick={drop}><Bin /></button>
    </li>
  );
}

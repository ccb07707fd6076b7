// The page: the side, the view that the address names, and what lies over both.

import { useEffect, useState } from "preact/hooks";
import { Audit } from "./audit/view.jsx";
import { regenerate } from "./chat/answer.js";
import { Chat } from "./chat/chat.jsx";
import { Learning } from "./learning/view.jsx";
import { Memory } from "./memory/view.jsx";
import { Server } from "./server/view.jsx";
import { Settings } from "./settings/view.jsx";
import { go, hasOptions, needsKey, route, said, toast } from "./state.js";
import { begin, handle, load, summaries } from "./store.js";
import { path } from "./tree.js";
import { Confirm, Keys, hasKeys } from "./ui/dialog.jsx";
import { keepFocus } from "./ui/focus.js";
import { MenuButton, Sidebar, VIEWS, isOpen } from "./ui/sidebar.jsx";

const OTHERS = { learning: Learning, memory: Memory, audit: Audit, server: Server, settings: Settings };

/** The whole page. */
export function App() {
  const { view, id } = route.value;
  const Other = OTHERS[view];
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.querySelector("#prompt, main h1")?.focus(); }}>To the conversation</a>
      <Sidebar />
      <main id="main">
        {needsKey.value && view !== "settings" ? <p class="banner">The server asks for an API key. <a href="#/settings">Enter it in the settings</a>.</p> : null}
        {Other ? <Other key={`${view}/${id}`} menu={<MenuButton />} /> : <Conversation id={id} />}
      </main>
      <p class="unseen" role="status" aria-live="polite">{said.value}</p>
      {toast.value ? <p class={`toast${toast.value.isWrong ? " wrong" : ""}`}>{toast.value.text}</p> : null}
      <Confirm />
      <Keys />
    </>
  );
}

/** The conversation of that name; the newest where the address names none, and a new one where there is none. */
function Conversation({ id }) {
  const [own, setOwn] = useState(() => handle(id) ?? null);
  useEffect(() => {
    let isThere = true;
    const open = async () => {
      const found = id ? await load(id) : null;
      if (!isThere) return;
      if (found) setOwn(found);
      else if (!id && summaries.peek().length) go("chat", summaries.peek()[0].id);
      else begin();
    };
    open();
    return () => {
      isThere = false;
    };
  }, [id]);
  const isShown = own && own.state.value.id === id;
  return isShown ? <Chat own={own} menu={<MenuButton />} /> : <header class="bar"><MenuButton /></header>;
}

const isWriting = (element) => element?.matches("input, textarea, select, [contenteditable]");

function press(event) {
  const own = handle(route.peek().id);
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if (own?.busy.peek()) own.stop?.abort();
    else if (isOpen.peek()) isOpen.value = false;
    else if (!isWriting(document.activeElement) && hasOptions.peek()) {
      hasOptions.value = false;
      keepFocus("#more");
    }
    return;
  }
  if (event.key === "?" && !isWriting(document.activeElement)) {
    hasKeys.value = true;
    return;
  }
  if (!event.altKey || event.ctrlKey || event.metaKey) return;
  const does = SHORTCUTS[event.code];
  if (does) {
    event.preventDefault();
    does(own);
  }
}

const SHORTCUTS = {
  KeyN: () => begin(),
  KeyO: () => {
    hasOptions.value = !hasOptions.peek();
    keepFocus("#more");
  },
  KeyS: () => {
    isOpen.value = true;
    requestAnimationFrame(() => document.getElementById("search").focus());
  },
  KeyR: (own) => {
    const last = own && path(own.state.peek()).at(-1);
    if (last?.role === "assistant") regenerate(own.state.peek().id, last);
  },
  ...Object.fromEntries(VIEWS.map(([view], i) => [`Digit${i + 1}`, () => go(view)])),
};

addEventListener("keydown", press);

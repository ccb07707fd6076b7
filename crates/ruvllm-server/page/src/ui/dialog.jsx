// Dialogs: a question before what cannot be taken back, and the list of keys.

import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { keepFocus } from "./focus.js";

const asked = signal(null);

/** Asks before something that cannot be taken back; true if the person wants it. */
export function confirm({ title, text, action }) {
  return new Promise((resolve) => {
    asked.value = { title, text, action, resolve };
  });
}

/** Modal dialog that is open while it is there; Escape closes it. */
function Modal({ title, onClose, children }) {
  const box = useRef(null);
  useEffect(() => {
    box.current.showModal();
  }, []);
  return (
    <dialog ref={box} aria-labelledby="dialog-title" onClose={onClose} onClick={(event) => event.target === box.current && box.current.close()}>
      <div class="dialog-body">
        <h2 id="dialog-title">{title}</h2>
        {children(() => box.current.close())}
      </div>
    </dialog>
  );
}

/** The place of the question. */
export function Confirm() {
  if (!asked.value) return null;
  const { title, text, action, resolve } = asked.value;
  let wants = false;
  const done = () => {
    asked.value = null;
    resolve(wants);
    keepFocus("main h1:not(.unseen)", "#prompt");
  };
  return (
    <Modal title={title} onClose={done}>
      {(close) => (
        <>
          <p>{text}</p>
          <div class="row end">
            <button type="button" onClick={close}>Cancel</button>
            <button type="button" class="danger" onClick={() => { wants = true; close(); }}>{action}</button>
          </div>
        </>
      )}
    </Modal>
  );
}

const KEYS = [
  ["Enter", "send"],
  ["Shift Enter", "new line"],
  ["Escape", "stop the answer; close what is open"],
  ["↑ in an empty field", "edit the last question"],
  ["Alt N", "new conversation"],
  ["Alt O", "options"],
  ["Alt S", "search conversations"],
  ["Alt R", "answer again"],
  ["Alt 1 … 6", "conversation, learning, memory, audit, server, settings"],
  ["?", "these keys"],
];

export const hasKeys = signal(false);

/** The list of keys. */
export function Keys() {
  if (!hasKeys.value) return null;
  return (
    <Modal title="Keyboard" onClose={() => { hasKeys.value = false; }}>
      {(close) => (
        <>
          <dl class="keys">{KEYS.map(([key, does]) => <div key={key}><dt><kbd>{key}</kbd></dt><dd>{does}</dd></div>)}</dl>
          <div class="row end"><button type="button" onClick={close}>Close</button></div>
        </>
      )}
    </Modal>
  );
}

// The place to write: text, files, and the button that sends or stops.

import { useEffect, useRef, useState } from "preact/hooks";
import { tell } from "../state.js";
import { path } from "../tree.js";
import { Clip, Close, Stop, Up } from "../ui/icons.jsx";
import { ask } from "./answer.js";
import { readFiles } from "./attach.js";

// What is written and not sent stays with its conversation while the page is open.
const drafts = new Map();

/** The form. */
export function Composer({ own }) {
  const { id } = own.state.value;
  const box = useRef(null);
  const picker = useRef(null);
  const [text, setText] = useState(drafts.get(id) ?? "");
  const [files, setFiles] = useState([]);
  const isBusy = own.busy.value;
  useEffect(() => {
    // A phone would open its keyboard.
    if (matchMedia("(pointer: fine)").matches) box.current.focus();
  }, [id]);
  const write = (value) => {
    setText(value);
    drafts.set(id, value);
  };
  const take = async (list) => {
    const { taken, refused } = await readFiles(list, files);
    setFiles(taken);
    if (refused.length) tell(refused.join(". "), true);
    box.current.focus();
  };
  const submit = (event) => {
    event.preventDefault();
    const content = text.trim();
    if ((!content && files.length === 0) || own.busy.peek()) return;
    write("");
    setFiles([]);
    ask(id, content, files);
  };
  const press = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      event.currentTarget.form.requestSubmit();
    } else if (event.key === "ArrowUp" && !text) {
      const last = path(own.state.peek()).filter((node) => node.role === "user").at(-1);
      const button = last && document.querySelector(`[data-id="${last.id}"] .edit`);
      if (button) {
        event.preventDefault();
        button.click();
      }
    }
  };
  const drop = (event) => {
    const list = event.dataTransfer?.files ?? event.clipboardData?.files;
    if (!list?.length) return;
    event.preventDefault();
    take([...list]);
  };
  return (
    <form id="ask" onSubmit={submit} onDrop={drop} onDragOver={(event) => event.preventDefault()}>
      {files.length ? (
        <ul class="files" aria-label="Attached files">
          {files.map((file) => (
            <li key={file.name}>{file.name} <button type="button" class="icon" aria-label={`Remove ${file.name}`} onClick={() => setFiles(files.filter((one) => one !== file))}><Close /></button></li>
          ))}
        </ul>
      ) : null}
      <div class="composer">
        <input ref={picker} id="files" type="file" multiple class="unseen" tabIndex={-1} aria-label="Files to attach" onChange={(event) => {
          take([...event.currentTarget.files]);
          event.currentTarget.value = "";
        }} />
        <button type="button" class="icon" aria-label="Attach text files" title="Attach text files" onClick={() => picker.current.click()}><Clip /></button>
        <textarea id="prompt" ref={box} rows={Math.min(10, text.split("\n").length)} placeholder="Message" aria-label="Message" value={text} onInput={(event) => write(event.currentTarget.value)} onKeyDown={press} onPaste={drop} />
        {isBusy
          ? <button type="button" id="stop" class="round" aria-label="Stop" title="Stop" onClick={() => own.stop?.abort()}><Stop /></button>
          : <button type="submit" id="send" class="round primary" aria-label="Send" title="Send" disabled={!text.trim() && files.length === 0}><Up /></button>}
      </div>
    </form>
  );
}

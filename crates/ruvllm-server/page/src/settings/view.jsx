// Settings of the page itself: key, colours, the conversations that are kept here.

import { useRef } from "preact/hooks";
import { capabilities, health, keepsKey, key, tell, theme } from "../state.js";
import { begin as beginConversation, exportAll, forgetAll, importAll, summaries } from "../store.js";
import { begin } from "../start.js";
import { confirm, hasKeys } from "../ui/dialog.jsx";
import { View, download } from "../ui/view.jsx";

/** The view. */
export function Settings({ menu }) {
  return (
    <View menu={menu} title="Settings">
      <Key />
      <Colours />
      <Conversations />
      <section aria-labelledby="about">
        <h2 id="about">About</h2>
        <p>RuvLLM {capabilities.value?.version}. This page comes from the server and asks nothing but it; it has no cookies and no counters.</p>
        <div class="row">
          <button type="button" onClick={() => { hasKeys.value = true; }}>Keyboard</button>
          <a href="page/licences.txt">Licences of what the page is made of</a>
        </div>
      </section>
    </View>
  );
}

function Key() {
  const save = (event) => {
    event.preventDefault();
    key.value = event.currentTarget.elements.key.value.trim();
    begin().then(() => tell(health.value === "key needed" ? "The server does not know this key" : "The key is used from now on", health.value === "key needed"));
  };
  return (
    <section aria-labelledby="key-title">
      <h2 id="key-title">API key</h2>
      <p class="soft">If the server asks for one. What is learned and recorded belongs to it. Keys are made in the server's key file, or in the view Server with an admin key.</p>
      <form class="row" onSubmit={save}>
        <label class="unseen" for="key">API key</label>
        <input id="key" name="key" type="password" autocomplete="off" defaultValue={key.value} />
        <button type="submit" class="primary">Use</button>
      </form>
      <label class="switch"><input type="checkbox" checked={keepsKey.value} onChange={(event) => { keepsKey.value = event.currentTarget.checked; }} /> Keep it in this browser; otherwise it goes with the tab</label>
    </section>
  );
}

function Colours() {
  return (
    <section>
      <fieldset class="row">
        <legend>Colours</legend>
        {[["system", "as the system has them"], ["light", "light"], ["dark", "dark"]].map(([value, name]) => (
          <label key={value} class="switch"><input type="radio" name="theme" value={value} checked={theme.value === value} onChange={() => { theme.value = value; }} /> {name}</label>
        ))}
      </fieldset>
    </section>
  );
}

function Conversations() {
  const picker = useRef(null);
  const n = summaries.value.length;
  const save = async () => download(`ruvllm-conversations-${new Date().toISOString().slice(0, 10)}.json`, await exportAll());
  const take = async (event) => {
    const [file] = event.currentTarget.files;
    event.currentTarget.value = "";
    if (!file) return;
    try {
      const count = await importAll(await file.text());
      tell(`${count} conversations are imported`);
    } catch (error) {
      tell(`The file cannot be imported: ${error.message}`, true);
    }
  };
  const drop = async () => {
    if (!(await confirm({ title: "Delete all conversations?", text: `${n} conversations are deleted in this browser. What the server learned from them stays.`, action: "Delete all" }))) return;
    await forgetAll();
    tell("All conversations are deleted");
    beginConversation();
  };
  return (
    <section aria-labelledby="kept">
      <h2 id="kept">Conversations</h2>
      <p class="soft">{n} are kept in this browser, and nowhere else.</p>
      <div class="row">
        <button type="button" disabled={!n} onClick={save}>Export</button>
        <button type="button" onClick={() => picker.current.click()}>Import</button>
        <input id="import" ref={picker} type="file" accept="application/json,.json" class="unseen" tabIndex={-1} aria-label="File of conversations" onChange={take} />
        <button type="button" class="danger" disabled={!n} onClick={drop}>Delete all</button>
      </div>
    </section>
  );
}

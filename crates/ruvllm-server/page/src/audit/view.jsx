// Audit: records of the witness log, whether they stand as they were written, and the same answers again.

import { useState } from "preact/hooks";
import { post, remove } from "../api.js";
import { hasWitness, route, tell } from "../state.js";
import { confirm } from "../ui/dialog.jsx";
import { Pending, View, download, useRead } from "../ui/view.jsx";
import { Quality } from "./quality.jsx";
import { Record } from "./record.jsx";

/** Records that are read, each with its tokens if those are kept, and how many of them are shown. */
const N_READ = 100;
const SHOWN = 50;

/** The view. */
export function Audit({ menu }) {
  const [query, setQuery] = useState({ request: route.value.id, failed: "", text: "" });
  const search = () => post("v1/witness/search", body(query));
  const { value, error, again } = useRead(search, 10, JSON.stringify(query));
  if (!hasWitness.value) {
    return <View menu={menu} title="Audit"><p>This server keeps no witness log. Start it with <code>--witness DIR</code>, and each answer is put on record here; with <code>--witness-keep tokens</code> it can be replayed.</p></View>;
  }
  const erase = async () => {
    const text = "The contents of all records of this key are removed. The chain over them stands, and says that they were erased.";
    if (!(await confirm({ title: "Erase the records?", text, action: "Erase" }))) return;
    await remove("v1/witness").then(({ erased }) => tell(`${erased} records are erased`), (failure) => tell(failure.message, true));
    again();
  };
  const set = (more) => setQuery({ ...query, ...more });
  const served = (value?.data ?? []).filter((record) => record.kind === "served");
  return (
    <View menu={menu} title="Audit" actions={<button type="button" class="danger" onClick={erase}>Erase</button>}>
      <Chain />
      <Quality records={served} />
      <search class="row">
        <label class="unseen" for="audit-request">Request</label>
        <input id="audit-request" type="search" placeholder="Request, as x-request-id or the id of an answer" value={query.request} onChange={(event) => set({ request: event.currentTarget.value.trim() })} />
        <label class="unseen" for="audit-failed">State</label>
        <select id="audit-failed" value={query.failed} onChange={(event) => set({ failed: event.currentTarget.value })}>
          <option value="">all</option>
          <option value="false">answered</option>
          <option value="true">failed</option>
        </select>
        <button type="button" onClick={() => download("witness.jsonl", lines(value?.data ?? []), "application/x-ndjson")}>Export</button>
      </search>
      {error ? <Pending error={error} /> : null}
      {value ? null : error ? null : <Pending what="the records" />}
      {value && value.data.length === 0 ? <p class="soft">No records.</p> : null}
      <ol class="records" id="decision-list">
        {(value?.data ?? []).slice(0, SHOWN).map((record) => <li key={record.seq}><Record record={record} isOpen={query.request !== "" && record.kind === "served"} /></li>)}
      </ol>
      {value?.data.length > SHOWN ? <p class="soft">The newest {SHOWN} of {value.data.length} are shown.</p> : null}
    </View>
  );
}

const lines = (records) => `${records.map((record) => JSON.stringify(record)).join("\n")}\n`;

function body({ request, failed }) {
  return { limit: N_READ, ...(request ? { request } : {}), ...(failed ? { failed: failed === "true" } : {}) };
}


/** Whether the chain stands. */
function Chain() {
  const [state, setState] = useState(null);
  const [anchor, setAnchor] = useState("");
  const [isBusy, setBusy] = useState(false);
  const verify = async () => {
    setBusy(true);
    try {
      setState(await post("v1/witness/verify", anchor.trim() ? { anchor: anchor.trim() } : {}));
    } catch (error) {
      tell(error.message, true);
    }
    setBusy(false);
  };
  return (
    <section class="panel" aria-labelledby="chain">
      <h2 id="chain">The chain</h2>
      <div class="row">
        <label class="unseen" for="anchor">Anchor that was kept elsewhere</label>
        <input id="anchor" class="mono" placeholder="an anchor that was kept elsewhere, if there is one" value={anchor} onInput={(event) => setAnchor(event.currentTarget.value)} />
        <button type="button" class="primary" disabled={isBusy} onClick={verify}>{isBusy ? "Checking…" : "Verify"}</button>
      </div>
      {state ? (
        <div role="status">
          <p class={state.sound ? "good" : "wrong"}>{state.sound ? `${state.records} records stand as they were written` : `${state.n_faults} faults in ${state.records} records`}{state.erased ? `, ${state.erased} erased` : ""}{state.lost ? `, ${state.lost} lost` : ""}.</p>
          <p class="soft mono">{state.anchor}</p>
          {state.faults.length ? <ul>{state.faults.slice(0, 50).map((fault) => <li key={`${fault.seq}-${fault.kind}`}>record {fault.seq}: {fault.kind}</li>)}</ul> : null}
        </div>
      ) : null}
    </section>
  );
}

// The server: live metrics, models, adapters, keys, policies, limits.

import { useState } from "preact/hooks";
import { get, post, remove } from "../api.js";
import { adapters, capabilities, hasWitness, health, models, tell } from "../state.js";
import { refresh } from "../start.js";
import { confirm } from "../ui/dialog.jsx";
import { Pending, View, bytes, useRead, when } from "../ui/view.jsx";
import { ApiKeys } from "./keys.jsx";
import { Metrics } from "./metrics.jsx";

/** The view. */
export function Server({ menu }) {
  useRead(refresh, 10);
  const told = capabilities.value;
  return (
    <View menu={menu} title="Server">
      <p class="lead"><span class={`state ${health.value.replace(/ /g, "-")}`}>{health.value}</span> RuvLLM {told?.version}</p>
      <Metrics />
      <Models />
      <Adapters />
      {told?.manages_keys ? <ApiKeys /> : null}
      {hasWitness.value ? <Policies /> : null}
      {told ? <Limits limits={told.limits} /> : null}
    </View>
  );
}

function Models() {
  const plain = models.value.filter((model) => !model.parent);
  return (
    <section aria-labelledby="models">
      <h2 id="models">Models</h2>
      <div class="table" tabIndex={0} role="region" aria-label="Models">
        <table>
          <thead><tr><th scope="col">Name</th><th scope="col">State</th><th scope="col">Architecture</th><th scope="col">Parameters</th><th scope="col">Format</th><th scope="col">Context</th></tr></thead>
          <tbody>
            {plain.map((model) => (
              <tr key={model.id}>
                <th scope="row">{model.id}{model.aliases?.length ? <small class="soft"> {model.aliases.join(", ")}</small> : null}</th>
                <td>{model.state}</td>
                <td>{model.meta?.architecture ?? "–"}</td>
                <td>{model.meta ? `${(model.meta.n_params / 1e6).toFixed(0)} M` : "–"}</td>
                <td>{model.meta?.quantization ?? "–"}</td>
                <td>{model.meta?.n_ctx?.toLocaleString() ?? "–"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function Adapters() {
  const [name, setName] = useState("");
  const act = async (work, done) => {
    try {
      await work();
      tell(done);
    } catch (error) {
      tell(error.message, true);
    }
    refresh();
  };
  const load = (event) => {
    event.preventDefault();
    act(() => post("v1/adapters", { name: name.trim() }), `${name.trim()} is loaded`);
  };
  const drop = async (adapter, path) => {
    if (await confirm({ title: `Remove ${adapter.name}?`, text: "Answers that are being written with it are finished.", action: "Remove" })) act(() => remove(path), `${adapter.name} is removed`);
  };
  return (
    <section aria-labelledby="adapters">
      <h2 id="adapters">Adapters</h2>
      {adapters.value.length === 0 ? <p class="soft">None is loaded.</p> : null}
      <ul class="rows">
        {adapters.value.map((adapter) => {
          const path = `v1/adapters/${encodeURIComponent(`${adapter.model}:${adapter.name}`)}`;
          return (
            <li key={path}>
              <div><strong>{adapter.name}</strong> <span class="soft">of {adapter.model}, rank {adapter.rank}, {bytes(adapter.bytes)}, {adapter.tier}, used {adapter.uses}×{adapter.pinned ? ", pinned" : ""}</span></div>
              <span class="row">
                <button type="button" aria-pressed={adapter.pinned ? "true" : "false"} onClick={() => act(() => post(path, { pinned: !adapter.pinned }), adapter.pinned ? "Unpinned" : "Pinned")}>{adapter.pinned ? "Unpin" : "Pin"}</button>
                <button type="button" onClick={() => drop(adapter, path)}>Remove</button>
              </span>
            </li>
          );
        })}
      </ul>
      <form class="row" onSubmit={load}>
        <label class="unseen" for="adapter-name">Name of an adapter in the server's folder</label>
        <input id="adapter-name" placeholder="name of an adapter in the server's folder" value={name} onInput={(event) => setName(event.currentTarget.value)} />
        <button type="submit" disabled={!name.trim()}>Load</button>
      </form>
    </section>
  );
}

function Policies() {
  const { value, error } = useRead(() => get("v1/policies"), 30);
  return (
    <section aria-labelledby="policies">
      <h2 id="policies">Policies</h2>
      {value ? null : <Pending error={error} what="the policies" />}
      {value?.data.length === 0 ? <p class="soft">None: nothing was learned of how to compute, and nothing was set.</p> : null}
      <ul class="rows">
        {(value?.data ?? []).map((policy) => (
          <li key={`${policy.kind}-${policy.context}-${policy.version}`}><div><strong>{policy.kind}</strong> {policy.context} <code>{JSON.stringify(policy.value)}</code><p class="soft">{policy.source}, {policy.reason}, {when(policy.created_ms)}</p></div></li>
        ))}
      </ul>
    </section>
  );
}

const LIMITS = [
  ["requests_at_once", "Requests at once"],
  ["queue", "Requests that may wait"],
  ["models_at_once", "Models at once"],
  ["idle_seconds", "A model is dropped after", "s idle"],
  ["request_seconds", "A request may take", "s"],
  ["body_bytes", "Bytes of a request"],
];

function Limits({ limits }) {
  return (
    <section aria-labelledby="limits">
      <h2 id="limits">Limits</h2>
      <dl class="facts">{LIMITS.map(([name, words, unit]) => <div key={name}><dt>{words}</dt><dd>{limits[name] === null ? "no limit" : `${limits[name].toLocaleString()} ${unit ?? ""}`}</dd></div>)}</dl>
      <p class="soft">Everything that it takes: <a href="openapi.json">openapi.json</a>, <a href="v1/capabilities">v1/capabilities</a>.</p>
    </section>
  );
}

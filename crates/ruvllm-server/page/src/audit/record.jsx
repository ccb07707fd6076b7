// A record of the witness log, and its replay.

import { useState } from "preact/hooks";
import { post } from "../api.js";
import { tell } from "../state.js";
import { when } from "../ui/view.jsx";

const PARTS = [["queue_us", "waited"], ["prefill_us", "read"], ["decode_us", "wrote"]];
const time = (us) => (us < 1e5 ? `${(us / 1000).toFixed(1)} ms` : `${(us / 1e6).toFixed(2)} s`);

/** A record: in a line, and all of it when it is opened. */
export function Record({ record, isOpen }) {
  if (record.kind !== "served") return <Other record={record} />;
  return (
    <details open={isOpen} class={record.error ? "record failed" : "record"}>
      <summary>
        <time>{when(record.unix_ms)}</time>
        <span>{record.prompt.n_tokens} → {record.completion.n_tokens} tokens</span>
        <span class={record.error ? "wrong" : "soft"}>{record.error ?? record.finish}</span>
        {record.quality === null ? null : <span>quality {record.quality.toFixed(2)}</span>}
        <Latency record={record} />
      </summary>
      <Served record={record} />
    </details>
  );
}

function Other({ record }) {
  const what = {
    feedback: () => `quality ${record.quality.toFixed(2)} for request ${record.request}`,
    learning: () => record.what,
    lost: () => `${record.n} records were lost`,
    erased: () => `${record.seqs.length} records were erased`,
  }[record.kind];
  return <p class="other"><time class="soft">{when(record.unix_ms)}</time> {what ? what() : record.kind}</p>;
}

/** A bar of where the time went. */
function Latency({ record }) {
  const all = PARTS.reduce((sum, [name]) => sum + record[name], 0) || 1;
  let x = 0;
  const title = PARTS.map(([name, word]) => `${word} ${time(record[name])}`).join(", ");
  return (
    <svg class="latency" viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label={title}>
      <title>{title}</title>
      {PARTS.map(([name]) => {
        const from = x;
        x += (100 * record[name]) / all;
        return <rect key={name} class={name.replace("_us", "")} x={from} y="0" width={x - from} height="6" />;
      })}
    </svg>
  );
}

function Served({ record }) {
  const [texts, setTexts] = useState(null);
  const hasTokens = Array.isArray(record.prompt.tokens);
  const read = async () => {
    try {
      const decode = async (tokens) => (await post("detokenize", { tokens, render_special: true })).text;
      setTexts([await decode(record.prompt.tokens), await decode(record.completion.tokens)]);
    } catch (error) {
      tell(error.message, true);
    }
  };
  const facts = [
    ["Request", record.request],
    ["Record", record.seq],
    ["Time", PARTS.map(([name, word]) => `${word} ${time(record[name])}`).join(", ")],
    ["Cached", `${record.cached_tokens} tokens of the prompt`],
    ["Seed", record.seed],
    ["Model", record.model],
    ["Routing", record.routing],
    ["Policy", record.policy],
    ["Scores", Object.entries(record.scores).map(([name, score]) => `${name} ${score.toFixed(2)}`).join(", ")],
    ["Prompt", record.prompt.digest],
    ["Answer", record.completion.digest],
  ];
  return (
    <div class="record-body">
      <dl class="facts">{facts.filter(([, value]) => value !== "" && value !== null).map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>
      <div class="row">
        <Replay record={record} />
        {hasTokens && !texts ? <button type="button" onClick={read}>Show the texts</button> : null}
      </div>
      {texts ? <><h3>Prompt</h3><pre class="plain" tabIndex={0}>{texts[0]}</pre><h3>Answer</h3><pre class="plain" tabIndex={0}>{texts[1]}</pre></> : null}
      <details><summary>Settings</summary><pre class="plain" tabIndex={0}>{JSON.stringify(record.settings, null, 2)}</pre></details>
    </div>
  );
}

/** Runs the request again, by its record, on the server's model. */
function Replay({ record }) {
  const [state, setState] = useState(null);
  const run = async () => {
    setState({ text: "Running it again…" });
    try {
      const { same, n_tokens: n, n_same: nSame, finish, recorded_finish: before } = await post("v1/witness/replay", { request: record.request });
      const other = finish !== before ? `; it ended with ${finish} instead of ${before}` : "";
      setState(same ? { kind: "good", text: `Came out the same: ${n} tokens, to the last one.` } : { kind: "wrong", text: `Differs: ${nSame} of ${n} tokens are the same${other}.` });
    } catch (error) {
      setState({ kind: "soft", text: error.message });
    }
  };
  return (
    <>
      <button type="button" class="primary" disabled={state?.text === "Running it again…"} onClick={run}>Replay</button>
      {state ? <span role="status" class={`replayed ${state.kind ?? "soft"}`}>{state.text}</span> : null}
    </>
  );
}

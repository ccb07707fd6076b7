// Learning: how much was learned, how it went, what the gate decided, and the way back from all of it.

import { useState } from "preact/hooks";
import { get, post } from "../api.js";
import { learns, tell } from "../state.js";
import { confirm } from "../ui/dialog.jsx";
import { Pending, View, bytes, useRead, when } from "../ui/view.jsx";
import { GatePlot, TokenCurve } from "./curves.jsx";
import { changes, decisions, describe, percent } from "./log.js";

/** The view. */
export function Learning({ menu }) {
  const { value: status, error, again } = useRead(() => get("v1/learning"), 5);
  const [isBusy, setBusy] = useState(false);
  const act = async (body, done) => {
    setBusy(true);
    try {
      await post("v1/learning", body);
      tell(done);
    } catch (failure) {
      tell(failure.message, true);
    }
    setBusy(false);
    again();
  };
  if (!learns.value) {
    return <View menu={menu} title="Learning"><p>This server learns nothing. Start it with <code>--learn</code>, and answers can be judged and corrected here.</p></View>;
  }
  if (!status) return <View menu={menu} title="Learning"><Pending error={error} what="what was learned" /></View>;
  const turn = () => act({ enabled: !status.enabled }, status.enabled ? "Learning is switched off for this key" : "Learning is switched on");
  return (
    <View menu={menu} title="Learning" actions={<button type="button" disabled={isBusy} aria-pressed={status.enabled ? "true" : "false"} onClick={turn}>{status.enabled ? "Switch off" : "Switch on"}</button>}>
      {error ? <Pending error={error} /> : null}
      <p class="lead">{status.enabled ? "Answers to this key's requests are given with what it taught" : "Switched off: answers are the model's alone"}, at <strong>generation {status.generation}</strong> of {status.model}.</p>
      <dl class="figures">
        <Figure name="Corrections" value={status.corrections} />
        <Figure name="Tokens read" value={status.tokens} />
        <Figure name="Entries" value={status.entries} more={bytes(status.entry_bytes)} />
        <Figure name="Steps of MicroLoRA" value={status.micro_steps} />
        <Figure name="Wait to be judged" value={status.waiting} />
      </dl>
      <TokenCurve status={status} />
      <GatePlot all={decisions(status)} />
      <Generations status={status} act={act} isBusy={isBusy} />
      <Items status={status} act={act} isBusy={isBusy} />
    </View>
  );
}

function Figure({ name, value, more }) {
  return <div><dt>{name}</dt><dd>{value.toLocaleString()}{more ? <small> {more}</small> : null}</dd></div>;
}

function Generations({ status, act, isBusy }) {
  const all = decisions(status).reverse();
  const back = async (number) => {
    const text = number === 0 ? "Answers are the model's alone then. What came since is kept as a generation." : "What came since is kept as a generation, so one can go forward again.";
    if (await confirm({ title: `Go back to generation ${number}?`, text, action: "Go back" })) act({ action: "rollback", generation: number }, `Back at generation ${number}`);
  };
  return (
    <section aria-labelledby="generations">
      <div class="row spread">
        <h2 id="generations">Generations and decisions of the gate</h2>
        <button type="button" disabled={isBusy} onClick={() => act({ action: "publish", why: "by hand, on the page" }, "Published")}>Publish what is known now</button>
      </div>
      <ol class="rows" id="l-generations">
        {all.map((one) => (
          <li key={`${one.at_ms}-${one.name}`} class={one.kind === "discarded" ? "discarded" : one.number === status.generation ? "now" : ""}>
            <div>
              <strong>{{ published: `Generation ${one.name}`, discarded: "Discarded", unsure: "Not yet" }[one.kind]}</strong> <time class="soft">{when(one.at_ms)}</time>
              <p>{one.why}</p>
              {changes(one.figures).length ? <p class="soft">{changes(one.figures).map(({ name, change }) => `${name} ${percent(change)}`).join(", ")}</p> : null}
            </div>
            {one.kind === "published" && one.number !== status.generation ? <button type="button" disabled={isBusy} onClick={() => back(one.number)}>Go back to it</button> : null}
          </li>
        ))}
        <li class={status.generation === 0 ? "now" : ""}>
          <div><strong>Generation 0</strong><p>The model alone.</p></div>
          {status.generation !== 0 || status.items.length ? <button type="button" disabled={isBusy} onClick={() => back(0)}>Go back to it</button> : null}
        </li>
      </ol>
    </section>
  );
}

function Items({ status, act, isBusy }) {
  const undo = (item) => act({ action: "undo", item: item.item }, `Item ${item.item} is undone`);
  return (
    <section aria-labelledby="items">
      <h2 id="items">The newest items</h2>
      {status.items.length === 0 ? <p class="soft">Nothing yet. Ask something, and judge the answer.</p> : null}
      <ol class="rows">
        {status.items.map((item) => (
          <li key={item.item}>
            <div><span class="soft number">{item.item}</span> {describe(item)} <time class="soft">{when(item.at_ms)}</time></div>
            {item.can_undo ? <button type="button" disabled={isBusy} aria-label={`Undo item ${item.item}`} onClick={() => undo(item)}>Undo</button> : null}
          </li>
        ))}
      </ol>
    </section>
  );
}

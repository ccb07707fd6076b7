// The log of what was learned, in words.

const count = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;

/** Says in a line what an item of the log is. */
export function describe(item) {
  switch (item.kind) {
    case "read":
      return `${{ document: "A document", answer: "A judged answer", prompt: "A prompt" }[item.what]}: ${count(item.tokens, "token")}${item.quality < 1 ? `, worth ${item.quality.toFixed(2)}` : ""}`;
    case "told":
      return item.right ? `A correction of ${count(item.tokens, "token")}` : `An answer of ${count(item.tokens, "token")} marked as wrong`;
    case "rehearsed":
      return "The gate was trained on calibration text";
    case "configured":
      return `Settings: datastore ${item.memory ? "on" : "off"}, MicroLoRA ${item.micro ? "on" : "off"}`;
    case "consolidated":
      return `What was learned fast was merged (rank ${item.rank})`;
    case "adopted":
      return `An adapter was adopted, made of ${count(item.sources, "item")}`;
    case "discarded":
      return `A change was discarded: ${item.why}`;
    case "held_back":
      return `${count(item.tokens, "token")} held back to judge by`;
    case "rolled_back":
      return `Back to generation ${item.generation}`;
    case "took_back":
      return `Item ${item.of} was taken back`;
    case "undone":
      return "Undone";
    default:
      return item.kind;
  }
}

/** Returns the decisions of the gate in order of time: generations, what was discarded, and what is not sure yet. */
export function decisions(status) {
  const published = status.generations.map((one) => ({ ...one, kind: "published", name: `${one.number}` }));
  const discarded = status.items.filter((item) => item.kind === "discarded").map((item) => ({ ...item, name: "×" }));
  const unsure = status.judged?.verdict === "unsure" ? [{ ...status.judged, kind: "unsure", name: "?" }] : [];
  return [...published, ...discarded, ...unsure].sort((a, b) => a.at_ms - b.at_ms);
}

/** Returns of each text that the gate measured: its name, the change of its loss, and the bound that the true one is below. */
export function changes(figures) {
  return Object.keys(figures ?? {})
    .filter((name) => name.endsWith(" change"))
    .map((name) => name.slice(0, -7))
    .map((name) => ({ name, change: figures[`${name} change`], bound: figures[`${name} bound`] ?? figures[`${name} change`] }));
}

export const percent = (share) => `${share > 0 ? "+" : ""}${(100 * share).toFixed(1)} %`;

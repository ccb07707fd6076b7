// Numbers of /metrics, which is Prometheus' text format.

/** Returns the sum of a metric over its labels; null where it is not there. */
function sum(text, name) {
  let total = null;
  for (const line of text.split("\n")) {
    if (line.startsWith(name) && (line[name.length] === " " || line[name.length] === "{")) {
      total = (total ?? 0) + Number(line.slice(line.lastIndexOf(" ") + 1));
    }
  }
  return total;
}

/** Returns the mean of a histogram since an earlier look, or over all time where nothing happened since. */
function mean(text, before, name) {
  const now = [sum(text, `${name}_sum`), sum(text, `${name}_count`)];
  const then = before ? [sum(before, `${name}_sum`), sum(before, `${name}_count`)] : [0, 0];
  const n = now[1] - then[1];
  if (n > 0) return (now[0] - then[0]) / n;
  return now[1] ? now[0] / now[1] : null;
}

/** Returns what is shown of two looks: a name, a number, its unit, and how many digits it has. */
export function figures(now, before) {
  const { text } = now;
  const of = (name) => sum(text, name);
  const rate = (name) => (before ? ((of(name) ?? 0) - (sum(before.text, name) ?? 0)) / ((now.at - before.at) / 1000) : null);
  const ms = (name) => {
    const seconds = mean(text, before?.text, name);
    return seconds === null ? null : 1000 * seconds;
  };
  const prompts = of("ruvllm_prompt_tokens_total");
  return [
    { id: "running", name: "Running", value: of("ruvllm_requests_running"), unit: "" },
    { id: "waiting", name: "Waiting", value: of("ruvllm_requests_waiting"), unit: "" },
    { id: "rate", name: "Tokens a second", value: rate("ruvllm_computed_tokens_total"), unit: "" },
    { id: "ttft", name: "First token", value: ms("ruvllm_ttft_seconds"), unit: "ms" },
    { id: "gap", name: "Between tokens", value: ms("ruvllm_inter_token_seconds"), unit: "ms", digits: 1 },
    { id: "kv", name: "KV memory", value: (of("ruvllm_kv_bytes") ?? 0) / 2 ** 20, unit: "MiB", digits: 1 },
    { id: "cached", name: "Prompt cached", value: prompts ? (100 * of("ruvllm_cached_tokens_total")) / prompts : null, unit: "%" },
    { id: "written", name: "Tokens written", value: of("ruvllm_generated_tokens_total"), unit: "" },
    { id: "memory", name: "Memory of the process", value: (of("process_resident_memory_bytes") ?? 0) / 2 ** 20, unit: "MiB" },
    { id: "connections", name: "Connections", value: of("ruvllm_connections"), unit: "" },
  ];
}

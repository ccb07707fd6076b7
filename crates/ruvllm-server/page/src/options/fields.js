// Settings of an answer, from the server's own table of fields: what it takes is shown, so none can be missed.

import { signal } from "@preact/signals";
import { get } from "../api.js";
import { capabilities } from "../state.js";

/** Fields that have a place of their own on the page, or that the page itself sets. */
const ELSEWHERE = new Set([
  "messages", "model", "adapter", "stream", "stream_options", "logprobs", "tools", "tool_choice", "response_format",
  "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "max_completion_tokens",
]);

/** Groups in their order; what is in none is shown in the last one. */
const GROUPS = [
  ["Main", ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"]],
  ["More samplers", ["typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold", "dynatemp_range", "dynatemp_exponent", "mirostat", "mirostat_tau", "mirostat_eta", "samplers", "logit_bias"]],
  ["Repetition", ["repeat_penalty", "repeat_last_n", "frequency_penalty", "presence_penalty", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"]],
  ["Where it ends", ["stop", "stop_token_ids", "min_tokens", "ignore_eos", "t_max_predict_ms", "n_indent", "timeout_ms"]],
  ["Thinking", ["enable_thinking", "reasoning_effort", "thinking_budget_tokens", "reasoning_format", "include_reasoning", "reasoning"]],
  ["Several answers, adapters and patterns", ["n", "top_logprobs", "patterns", "adapters", "lora", "parallel_tool_calls"]],
  ["Prompt and cache", ["truncation", "parse_special", "add_generation_prompt", "continue_final_message", "chat_template_kwargs", "cache_prompt", "id_slot", "priority"]],
];

/** Schemas of the fields by name; null until they came. */
export const schemas = signal(null);

/** Reads the schemas, once: the document is large, and only those who change settings need it. */
export async function loadSchemas() {
  if (schemas.peek()) return;
  const document = await get("openapi.json");
  const content = document.paths["/v1/chat/completions"].post.requestBody.content;
  schemas.value = content["application/json"].schema.properties;
}

/** Returns the alternatives of a schema, flat and without null. */
function alternatives(schema) {
  if (schema.anyOf) return schema.anyOf.flatMap(alternatives);
  return schema.type === "null" ? [] : [schema];
}

/** Says how a field is written: a number, a switch, a word of a list, lines of text, or JSON. */
function kindOf(schema) {
  const all = alternatives(schema);
  const types = all.map((one) => (one.enum ? "enum" : one.type));
  const first = all.find((one) => one.type);
  if (all.every((one) => "const" in one)) return { kind: "none" };
  if (types.includes("number") || types.includes("integer")) {
    return { kind: "number", isWhole: first.type === "integer", min: first.minimum, max: first.maximum };
  }
  if (types.includes("boolean")) return { kind: "boolean" };
  if (types.length === 1 && types[0] === "enum") return { kind: "enum", values: all[0].enum };
  const list = all.find((one) => one.type === "array");
  if (list?.items?.type === "string") return { kind: "lines" };
  if (types.length === 1 && types[0] === "string") return { kind: "text" };
  return { kind: "json" };
}

/** Returns the settings in groups: name, kind, what it does. */
export function groups() {
  const all = schemas.value;
  const endpoint = capabilities.value?.endpoints.find((one) => one.path === "/v1/chat/completions");
  if (!all || !endpoint) return [];
  const shown = new Map();
  for (const { name, does, effect } of endpoint.accepted) {
    if (ELSEWHERE.has(name) || name.includes("[") || !effect || !all[name]) continue;
    const kind = kindOf(all[name]);
    if (kind.kind !== "none") shown.set(name, { name, does, ...kind });
  }
  const grouped = GROUPS.map(([title, names]) => [title, names.map((name) => shown.get(name)).filter(Boolean)]);
  const known = new Set(GROUPS.flatMap(([, names]) => names));
  const rest = [...shown.values()].filter(({ name }) => !known.has(name));
  return [...grouped, ["Labels and others", rest]].filter(([, fields]) => fields.length > 0);
}

/** Reads what is written for a field; undefined where nothing is. Throws where it is none of its kind. */
export function read(field, text) {
  if (text === "" || text === null || text === undefined) return undefined;
  switch (field.kind) {
    case "number": {
      const value = Number(text);
      if (Number.isNaN(value)) throw new Error("a number is needed");
      if (field.isWhole && !Number.isInteger(value)) throw new Error("a whole number is needed");
      return value;
    }
    case "boolean":
      return text === "true";
    case "lines":
      return text.split("\n").filter(Boolean).map((line) => line.replace(/\\n/g, "\n"));
    case "json":
      try {
        return JSON.parse(text);
      } catch {
        throw new Error("JSON is needed");
      }
    default:
      return text;
  }
}

/** Writes a value of a field as it is shown. */
export function write(field, value) {
  if (value === undefined) return "";
  if (field.kind === "lines") return [value].flat().map((line) => line.replace(/\n/g, "\\n")).join("\n");
  return field.kind === "json" ? JSON.stringify(value) : String(value);
}

/** Returns the value that the server takes where none is set; null where it is not known. */
export function usual(name) {
  const value = capabilities.value?.defaults?.[name];
  return typeof value === "number" ? Math.round(value * 1000) / 1000 : null;
}

/** Name of a field for people. */
export const label = (name) => {
  const words = name.replace(/_/g, " ").replace(/^./, (c) => c.toUpperCase());
  return { "Top p": "Top-p", "Top k": "Top-k", "Min p": "Min-p", "N": "Answers" }[words] ?? words;
};

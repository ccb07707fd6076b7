// Form of the answer: any text, JSON, a schema, an expression, one of several texts, or a grammar.

/** Kinds of form, with what is written for them. */
export const KINDS = [
  { kind: "text", name: "Any text" },
  { kind: "json_object", name: "Any JSON object" },
  { kind: "json_schema", name: "JSON Schema", what: "A JSON Schema; the answer is held to it, token for token." },
  { kind: "regex", name: "Regular expression", what: "An expression that the whole answer matches." },
  { kind: "choice", name: "One of several texts", what: "One text a line." },
  { kind: "grammar", name: "Grammar (GBNF or Lark)", what: "A grammar as llama.cpp has it, or Lark." },
];

/** Schemas to begin with. */
export const EXAMPLES = {
  json_schema: [
    ["A person", { type: "object", properties: { name: { type: "string" }, age: { type: "integer", minimum: 0 } }, required: ["name", "age"], additionalProperties: false }],
    ["A list of steps", { type: "object", properties: { steps: { type: "array", items: { type: "string" }, maxItems: 5 } }, required: ["steps"], additionalProperties: false }],
    ["A judgement", { type: "object", properties: { verdict: { enum: ["yes", "no", "unsure"] }, why: { type: "string" } }, required: ["verdict", "why"], additionalProperties: false }],
  ],
  regex: [["A date", "\\d{4}-\\d{2}-\\d{2}"], ["Yes or no", "yes|no"]],
  choice: [["A mood", "glad\nsad\nneither"]],
  grammar: [["A list", 'root ::= ("- " [a-z ]+ "\\n"){1,5}']],
};

/** Returns why a form cannot be asked for yet; null if it can. */
export function problem({ kind, text = "" }) {
  if (kind === "text" || kind === "json_object") return null;
  if (!text.trim()) return "Nothing is written here yet, so any text is asked for.";
  if (kind !== "json_schema") return null;
  try {
    const schema = JSON.parse(text);
    return typeof schema === "object" && schema !== null && !Array.isArray(schema) ? null : "A schema is a JSON object.";
  } catch (error) {
    return `This is no JSON: ${error.message}`;
  }
}

/** Returns the fields of a request for a form. */
export function formatFields(format) {
  const { kind = "text", text = "" } = format ?? {};
  if (kind === "text" || (kind !== "json_object" && !text.trim())) return {};
  const why = problem({ kind, text });
  if (why) throw new Error(`The form of the answer: ${why}`);
  switch (kind) {
    case "json_object":
      return { response_format: { type: "json_object" } };
    case "json_schema":
      return { response_format: { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(text), strict: true } } };
    case "regex":
      return { structured_outputs: { regex: text } };
    case "choice":
      return { structured_outputs: { choice: text.split("\n").map((line) => line.trim()).filter(Boolean) } };
    default:
      return { structured_outputs: { grammar: text } };
  }
}

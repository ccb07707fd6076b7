// Functions that the model may call. The page runs none: the person writes what came of a call.

/** Tools to begin with. */
export const EXAMPLE = [
  {
    type: "function",
    function: {
      name: "weather",
      description: "Tells the weather of a city",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  },
];

/** Reads what is written: the tools, or why they cannot be read. */
export function readTools(text) {
  if (!text.trim()) return { tools: [], why: null };
  try {
    const all = JSON.parse(text);
    if (!Array.isArray(all)) return { tools: [], why: "Tools are a JSON list." };
    // A bare function is what others write as well.
    const tools = all.map((tool) => (tool?.function ? tool : { type: "function", function: tool }));
    const nameless = tools.find((tool) => typeof tool.function?.name !== "string");
    return nameless ? { tools: [], why: "A function has no name." } : { tools, why: null };
  } catch (error) {
    return { tools: [], why: `This is no JSON: ${error.message}` };
  }
}

/** Returns the fields of a request for the tools of a conversation. */
export function toolFields(own) {
  if (!own?.isOn) return {};
  const { tools, why } = readTools(own.text ?? "");
  if (why) throw new Error(`The tools: ${why}`);
  if (tools.length === 0) return {};
  const named = own.choice && !["auto", "none", "required"].includes(own.choice);
  const choice = named ? { type: "function", function: { name: own.choice } } : own.choice;
  return { tools, ...(choice && choice !== "auto" ? { tool_choice: choice } : {}) };
}

// The @anthropic-ai/sdk package of npm.

import { z } from "zod";
import { FORECAST, ITALY, MODEL, PERSON, Person, QUESTION, SUNNY, Weather, called, run, said } from "./report.mjs";

// docs: anthropic-js
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: "http://127.0.0.1:8080", apiKey: "none" });
const answer = await client.messages.create({
  model: "qwen2.5-coder:0.5b",
  max_tokens: 100,
  messages: [{ role: "user", content: "What is the capital of France?" }],
});
console.log(answer.content[0].text);
// end

const user = (content) => ({ role: "user", content });
const given = { model: MODEL, max_tokens: 80 };
const ask = (messages, more) => client.messages.create({ ...given, messages, ...more });

async function chat() {
  said((await ask([user(QUESTION)])).content[0].text, "Paris");
}

async function stream() {
  said(await client.messages.stream({ ...given, messages: [user(QUESTION)] }).finalText(), "Paris");
}

async function tools() {
  const tools = [{ name: "get_weather", description: "Returns the weather", input_schema: z.toJSONSchema(Weather) }];
  const asked = await ask([user(FORECAST)], { tools, tool_choice: { type: "any" } });
  const call = called(asked.content.filter((block) => block.type === "tool_use"));
  Weather.parse(call.input);
  const result = { type: "tool_result", tool_use_id: call.id, content: SUNNY };
  const turns = [user(FORECAST), { role: "assistant", content: asked.content }, user([result])];
  said((await ask(turns, { tools, tool_choice: { type: "none" } })).content[0].text, "31");
}

async function typed() {
  const format = { type: "json_schema", schema: z.toJSONSchema(Person) };
  const told = await ask([user(PERSON)], { output_config: { format } });
  Person.parse(JSON.parse(told.content[0].text));
}

async function history() {
  const first = { role: "assistant", content: (await ask([user(QUESTION)])).content };
  said((await ask([user(QUESTION), first, user(ITALY)])).content[0].text, "Rome");
}

await run(chat, stream, tools, typed, history);

// The openai package of npm.

import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { FORECAST, ITALY, MODEL, PERSON, Person, QUESTION, SUNNY, Weather, called, run, said } from "./report.mjs";

// docs: openai-js
import OpenAI from "openai";

const client = new OpenAI({ baseURL: "http://127.0.0.1:8080/v1", apiKey: "none" });
const answer = await client.chat.completions.create({
  model: "qwen2.5-coder:0.5b",
  messages: [{ role: "user", content: "What is the capital of France?" }],
});
console.log(answer.choices[0].message.content);
// end

const user = (content) => ({ role: "user", content });
const given = { model: MODEL, temperature: 0, max_tokens: 80 };
const ask = async (messages, more) =>
  (await client.chat.completions.create({ ...given, messages, ...more })).choices[0].message;

async function chat() {
  said((await ask([user(QUESTION)])).content, "Paris");
  said((await client.responses.create({ model: MODEL, input: QUESTION, temperature: 0 })).output_text, "Paris");
}

async function stream() {
  const runner = client.chat.completions.stream({ ...given, messages: [user(QUESTION)] });
  said(await runner.finalContent(), "Paris");
  const events = client.responses.stream({ model: MODEL, input: QUESTION, temperature: 0 });
  said((await events.finalResponse()).output_text, "Paris");
}

async function tools() {
  const tools = [zodFunction({ name: "get_weather", description: "Returns the weather", parameters: Weather })];
  const asked = await ask([user(FORECAST)], { tools, tool_choice: "required" });
  const call = called(asked.tool_calls);
  Weather.parse(JSON.parse(call.function.arguments));
  const result = { role: "tool", tool_call_id: call.id, content: SUNNY };
  said((await ask([user(FORECAST), asked, result], { tools, tool_choice: "none" })).content, "31");
}

async function typed() {
  const form = { response_format: zodResponseFormat(Person, "person") };
  const parsed = await client.chat.completions.parse({ ...given, messages: [user(PERSON)], ...form });
  Person.parse(parsed.choices[0].message.parsed);
}

async function history() {
  said((await ask([user(QUESTION), await ask([user(QUESTION)]), user(ITALY)])).content, "Rome");
}

await run(chat, stream, tools, typed, history);

// The ollama package of npm.

import { z } from "zod";
import { FORECAST, ITALY, MODEL, PERSON, Person, QUESTION, SUNNY, Weather, called, run, said } from "./report.mjs";

// docs: ollama-js
import { Ollama } from "ollama";

const client = new Ollama({ host: "http://127.0.0.1:8080" });
const answer = await client.chat({
  model: "qwen2.5-coder:0.5b",
  messages: [{ role: "user", content: "What is the capital of France?" }],
});
console.log(answer.message.content);
// end

const user = (content) => ({ role: "user", content });
const given = { model: MODEL, options: { temperature: 0, num_predict: 80 } };
const ask = async (messages, more) => (await client.chat({ ...given, messages, ...more })).message;

async function chat() {
  said((await ask([user(QUESTION)])).content, "Paris");
}

async function stream() {
  let text = "";
  for await (const part of await client.chat({ ...given, messages: [user(QUESTION)], stream: true })) {
    text += part.message.content;
  }
  said(text, "Paris");
}

async function tools() {
  const parameters = z.toJSONSchema(Weather);
  const tools = [{ type: "function", function: { name: "get_weather", description: "Returns the weather", parameters } }];
  const asked = await ask([user(FORECAST)], { tools });
  const call = called(asked.tool_calls);
  const result = { role: "tool", tool_name: call.function.name, content: SUNNY };
  said((await ask([user(FORECAST), asked, result])).content, "31");
}

async function typed() {
  Person.parse(JSON.parse((await ask([user(PERSON)], { format: z.toJSONSchema(Person) })).content));
}

async function history() {
  said((await ask([user(QUESTION), await ask([user(QUESTION)]), user(ITALY)])).content, "Rome");
}

await run(chat, stream, tools, typed, history);

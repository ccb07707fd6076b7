// Vercel's ai package, with its providers openai (both APIs), anthropic and openai-compatible.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { Output, stepCountIs, streamText, tool } from "ai";
import { FORECAST, ITALY, MODEL, PERSON, Person, QUESTION, SUNNY, Weather, called, run, said } from "./report.mjs";

// docs: ai
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText } from "ai";

const ruvllm = createOpenAICompatible({
  name: "ruvllm",
  baseURL: "http://127.0.0.1:8080/v1",
  apiKey: "none",
  supportsStructuredOutputs: true,
});
const { text } = await generateText({ model: ruvllm("qwen2.5-coder:0.5b"), prompt: "What is the capital of France?" });
console.log(text);
// end

const URL = { baseURL: "http://127.0.0.1:8080/v1", apiKey: "none" };
const openai = createOpenAI(URL);
const MODELS = [ruvllm(MODEL), openai.chat(MODEL), openai.responses(MODEL), createAnthropic(URL)(MODEL)];
// Without `store: false` the package names earlier answers by id instead of sending them.
const providerOptions = { openai: { store: false } };
const given = { temperature: 0, maxOutputTokens: 200, maxRetries: 0, providerOptions };
const user = (content) => ({ role: "user", content });

async function chat() {
  for (const model of MODELS) said((await generateText({ ...given, model, prompt: QUESTION })).text, "Paris");
}

async function stream() {
  for (const model of MODELS) {
    let text = "";
    const onError = ({ error }) => { throw error; };
    for await (const part of streamText({ ...given, model, prompt: QUESTION, onError }).textStream) text += part;
    said(text, "Paris");
  }
}

async function tools() {
  const get_weather = tool({ description: "Returns the weather", inputSchema: Weather, execute: async () => SUNNY });
  const more = { tools: { get_weather }, toolChoice: "required", stopWhen: stepCountIs(1) };
  for (const model of MODELS) {
    const asked = await generateText({ ...given, ...more, model, prompt: FORECAST });
    Weather.parse(called(asked.toolCalls).input);
    const messages = [user(FORECAST), ...asked.response.messages];
    const told = await generateText({ ...given, model, messages, tools: { get_weather }, toolChoice: "none" });
    said(told.text, "31");
  }
}

async function typed() {
  const output = Output.object({ schema: Person });
  for (const model of MODELS) Person.parse((await generateText({ ...given, model, prompt: PERSON, output })).output);
}

async function history() {
  for (const model of MODELS) {
    const first = await generateText({ ...given, model, prompt: QUESTION });
    const messages = [user(QUESTION), ...first.response.messages, user(ITALY)];
    said((await generateText({ ...given, model, messages })).text, "Rome");
  }
}

await run(chat, stream, tools, typed, history);

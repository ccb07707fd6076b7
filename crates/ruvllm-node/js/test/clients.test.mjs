// Clients of other people over `engine.fetch`: openai, ai, LangChain.js.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { ChatOpenAI } from '@langchain/openai';
import { load } from '@ruvllm/node';
import { generateText, Output, streamText, tool } from 'ai';
import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import { idle, SMOLLM2, user } from './common.mjs';

const NAME = 'smollm2:135m';
const BASE = 'http://ruvllm/v1';
const QUESTION = 'What is the capital of France?';
const Person = z.object({ name: z.string().max(20), age: z.number().int() });
const City = z.object({ city: z.string().max(12) });

let engine;
before(async () => (engine = await load(SMOLLM2, { name: NAME, parallel: 4, ctx: 2048, temp: 0 })));
after(() => engine.dispose());

test('openai', async () => {
  const client = new OpenAI({ fetch: engine.fetch, baseURL: BASE, apiKey: '-', maxRetries: 0 });
  const given = { model: NAME, max_tokens: 40, messages: user(QUESTION) };
  const answer = await client.chat.completions.create(given);
  assert.match(answer.choices[0].message.content, /Paris/);
  assert.match(await client.chat.completions.stream(given).finalContent(), /Paris/);
  const typed = { ...given, messages: user('Ann is 30.'), response_format: zodResponseFormat(Person, 'person') };
  Person.parse((await client.chat.completions.parse(typed)).choices[0].message.parsed);
  assert.match((await client.responses.create({ model: NAME, input: QUESTION })).output_text, /Paris/);
  assert.equal((await client.models.list()).data[0].id, NAME);
  await assert.rejects(client.chat.completions.create({ ...given, model: 'none' }), OpenAI.NotFoundError);
  await assert.rejects(client.chat.completions.create({ ...given, max_tokens: -5 }), OpenAI.BadRequestError);
  const stream = await client.chat.completions.create({ ...given, max_tokens: 1000, stream: true, ignore_eos: true });
  for await (const _ of stream) break;
  await idle(engine, 1000);
});

test('ai', async () => {
  const ruvllm = createOpenAICompatible({ name: 'ruvllm', baseURL: BASE, fetch: engine.fetch, supportsStructuredOutputs: true });
  const given = { model: ruvllm(NAME), maxOutputTokens: 40, maxRetries: 0 };
  assert.match((await generateText({ ...given, prompt: QUESTION })).text, /Paris/);
  let text = '';
  for await (const part of streamText({ ...given, prompt: QUESTION }).textStream) text += part;
  assert.match(text, /Paris/);
  Person.parse((await generateText({ ...given, prompt: 'Ann is 30.', output: Output.object({ schema: Person }) })).output);
  const get_weather = tool({ description: 'Returns the weather', inputSchema: City });
  const more = { prompt: 'How is the weather in Oslo?', tools: { get_weather }, toolChoice: 'required' };
  City.parse((await generateText({ ...given, ...more })).toolCalls[0].input);
});

test('LangChain.js', async () => {
  const configuration = { baseURL: BASE, fetch: engine.fetch };
  const chat = new ChatOpenAI({ model: NAME, maxTokens: 40, apiKey: '-', maxRetries: 0, configuration });
  assert.match((await chat.invoke(QUESTION)).content, /Paris/);
  let text = '';
  for await (const chunk of await chat.stream(QUESTION)) text += chunk.content;
  assert.match(text, /Paris/);
  Person.parse(await chat.withStructuredOutput(Person).invoke('Ann is 30.'));
  const many = await chat.batch([QUESTION, QUESTION, QUESTION]);
  many.forEach(({ content }) => assert.match(content, /Paris/));
});

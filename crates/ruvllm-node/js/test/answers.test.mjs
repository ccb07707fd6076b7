// Answers: streams, whole answers, those of the server, and of many requests at once.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { load, version } from '@ruvllm/node';
import { SMOLLM2, user } from './common.mjs';

let engine;
before(async () => (engine = await load(SMOLLM2, { name: 'smollm2:135m', parallel: 8, ctx: 1024 })));
after(() => engine.dispose());

const tools = [{
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'Returns the weather',
    parameters: { type: 'object', properties: { city: { type: 'string', maxLength: 12 } }, required: ['city'], additionalProperties: false },
  },
}];
const asked = user('Name three colours.');

/** Leaves out of an answer what differs from call to call. */
function lasting({ id, created, timings, ...rest }) {
  rest.usage = { ...rest.usage, prompt_tokens_details: null };
  return JSON.parse(JSON.stringify(rest).replace(/call_[0-9a-f]+/g, 'call'));
}

async function whole(path, body) {
  const headers = { 'content-type': 'application/json' };
  const response = await engine.fetch(path, { method: 'POST', headers, body: JSON.stringify(body) });
  assert.equal(response.status, 200, await response.clone().text());
  return response.json();
}

const CHATS = {
  'a chat': { max_tokens: 12 },
  'a chat with usage': { max_tokens: 4, stream_options: { include_usage: true } },
  'three choices': { max_tokens: 12, temperature: 0.8, seed: 3, n: 3 },
  'log-probabilities': { max_tokens: 6, logprobs: true, top_logprobs: 2 },
  'a call of a tool': { max_tokens: 60, tools, tool_choice: 'required' },
  'tools that are not called': { max_tokens: 10, tools },
  'an object': { max_tokens: 40, response_format: { type: 'json_object' } },
  'a schema': {
    max_tokens: 60,
    response_format: { type: 'json_schema', json_schema: { name: 'c', schema: { type: 'array', items: { enum: ['red', 'blue'] }, maxItems: 3 } } },
  },
};

for (const [name, more] of Object.entries(CHATS)) {
  test(`the chunks of a stream make the server's answer: ${name}`, async () => {
    const body = { messages: asked, temperature: 0, ...more };
    const { stream_options, ...unstreamed } = body;
    const expected = await whole('/v1/chat/completions', unstreamed);
    const stream = engine.chat(body);
    const chunks = [];
    for await (const chunk of stream) chunks.push(chunk);
    assert.deepEqual(lasting(await stream.result()), lasting(expected));
    assert.equal(await stream.text(), expected.choices[0].message.content ?? '');
    const spoken = chunks.flatMap(({ choices }) => choices).filter(({ index }) => index === 0);
    assert.equal(spoken.map(({ delta }) => delta.content ?? '').join(''), expected.choices[0].message.content ?? '');
    assert.equal(spoken.at(-1).finish_reason, expected.choices[0].finish_reason);
    // The counts are sent to those who ask for them.
    assert.equal(chunks.filter(({ usage }) => usage).length, stream_options ? 1 : 0);
    assert.equal(chunks.some(({ choices }) => choices.length === 0), stream_options !== undefined);
  });
}

const COMPLETIONS = {
  'a text': { prompt: 'Once upon', max_tokens: 12 },
  'two prompts': { prompt: ['Once upon', 'The sky'], n: 2, max_tokens: 5, temperature: 0.7, seed: 1 },
  'log-probabilities': { prompt: 'Once upon', max_tokens: 6, logprobs: 2 },
  'an echo': { prompt: 'Once upon', max_tokens: 6, echo: true },
  'an echo with log-probabilities': { prompt: 'Once upon', max_tokens: 6, echo: true, logprobs: 2 },
  'the best of three': { prompt: 'Once upon', max_tokens: 6, best_of: 3, temperature: 0.9, seed: 1 },
};

for (const [name, more] of Object.entries(COMPLETIONS)) {
  test(`the chunks of a completion make the server's: ${name}`, async () => {
    const body = { temperature: 0, ...more };
    const expected = await whole('/v1/completions', body);
    const stream = engine.complete(body);
    let text = '';
    for await (const { choices } of stream) text += choices.filter(({ index }) => index === 0).map((choice) => choice.text).join('');
    assert.deepEqual(lasting(await stream.result()), lasting(expected));
    assert.equal(text, expected.choices[0].text);
  });
}

test('eight requests at once write the tokens that each writes alone', async () => {
  const topics = ['sea', 'moon', 'rain', 'stone', 'fire', 'wind', 'tree', 'snow'];
  const ask = (topic, seed) => engine.chat({ messages: user(`Tell me of the ${topic}.`), max_tokens: 48, temperature: 0.8, seed, logprobs: true });
  const alone = [];
  for (const [seed, topic] of topics.entries()) alone.push((await ask(topic, seed).result()).choices);
  const together = await Promise.all(topics.map(async (topic, seed) => (await ask(topic, seed).result()).choices));
  // Ids and log-probabilities to the last bit.
  assert.deepEqual(together, alone);
  assert.ok(alone.every(([{ logprobs }]) => logprobs.content.length > 20));
});

test('tokens, capabilities and the version', async () => {
  const { tokens, count } = await engine.tokenize({ text: 'Hello, world' });
  assert.equal(tokens.length, count);
  assert.equal((await engine.detokenize({ tokens })).text, 'Hello, world');
  const told = await engine.capabilities();
  assert.deepEqual([told.runtime, told.model.id, told.model.n_ctx, told.learns], ['node', 'smollm2:135m', 1024, false]);
  assert.deepEqual([told.version, engine.model], [version, 'smollm2:135m']);
  assert.match(told.public_key, /^[0-9a-f]{64}$/);
});

test('chunks are given once, and the whole answer as often as it is asked for', async () => {
  const stream = engine.chat({ messages: asked, max_tokens: 3, temperature: 0 });
  assert.equal(await stream.result(), await stream.result());
  let n = 0;
  for await (const _ of stream) n += 1;
  assert.ok(n >= 3);
  assert.throws(() => stream[Symbol.asyncIterator](), /read once/);
});

test('the APIs of Anthropic and Ollama answer as well', async () => {
  const message = await whole('/v1/messages', { model: 'smollm2:135m', max_tokens: 4, messages: asked });
  assert.equal(message.content[0].type, 'text');
  const told = await whole('/api/chat', { model: 'smollm2:135m', stream: false, messages: asked, options: { num_predict: 4 } });
  assert.equal(told.message.role, 'assistant');
});

// The package in Node: golden models and SmolLM2 answer as natively, and the interface keeps what its types say.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync, statSync } from 'node:fs';
import { createServer } from 'node:http';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

import {
  CHAT, GAP_MAX, MEMORY_MAX, N_TOKENS, PROMPT, TEMPLATE, afterEnded, body, folder, goldenModels, nativeTokens,
  nearTies, run, smollm2, soon,
} from './common.mjs';
import { threadsThatDoNotBegin, threadsThatFail, workersThatDoNotStart } from './faults.mjs';

const url = (name) => pathToFileURL(resolve(join(folder, name))).href;
const web = await import(url('index.js'));

/** Returns the ids of an answer's tokens. */
async function tokensOf(engine, prompt, n) {
  const chunks = [];
  for await (const chunk of engine.chat(chat(prompt, n))) chunks.push(chunk);
  return chunks.flatMap((chunk) => chunk.choices[0].logprobs?.content ?? []).map((token) => token.id);
}
const chat = (content, n) => ({
  messages: [{ role: 'user', content }], max_tokens: n, temperature: 0, ignore_eos: true, logprobs: true, top_logprobs: 0,
});

async function goldens() {
  for (const { name, bytes, ctx, prompt, tokens } of goldenModels()) {
    const engine = await web.load(bytes, { name, ctx });
    const n = await nearTies(engine, prompt, tokens, body(prompt, tokens.length), GAP_MAX);
    if (n > 0) console.log(`node: ${name}: ${n} of ${tokens.length} tokens are within ${GAP_MAX} nats of native's`);
    await engine.dispose();
  }
}

async function smol() {
  const expected = nativeTokens();
  assert.equal(expected.length, N_TOKENS);
  const start = performance.now();
  const engine = await web.load(pathToFileURL(smollm2), { name: 'smollm2', ctx: 1024 });
  const loaded = performance.now() - start;
  const answer = await engine.complete(body(PROMPT, N_TOKENS)).result();
  const { text } = await engine.detokenize({ tokens: expected });
  assert.equal(answer.choices[0].text, text);
  const { predicted_per_second: decode } = answer.timings;
  const long = { prompt: 'word '.repeat(400), max_tokens: 1, temperature: 0 };
  const { prompt_per_second: prefill } = (await engine.complete(long).result()).timings;
  console.log(`node: SmolLM2 loaded in ${loaded.toFixed(0)} ms, ${decode.toFixed(1)} tokens/s, prompts ${prefill.toFixed(0)}/s`);
  await requests(engine);
  await engine.dispose();
}

/** Two threads over one memory write what one does. */
async function threads() {
  const engine = await web.load(pathToFileURL(smollm2), { name: 'smollm2', ctx: 1024, threads: 2 });
  assert.equal((await engine.capabilities()).device.threads, 2);
  const answer = await engine.complete(body(PROMPT, N_TOKENS)).result();
  const { text } = await engine.detokenize({ tokens: nativeTokens() });
  assert.equal(answer.choices[0].text, text);
  const long = { prompt: 'word '.repeat(400), max_tokens: 1, temperature: 0 };
  const { prompt_per_second: prefill } = (await engine.complete(long).result()).timings;
  // The system has no threads here to compile a grammar on.
  const held = await engine.complete({ prompt: 'A city:', guided_choice: ['Paris', 'Rome'], max_tokens: 20 }).text();
  assert.ok(['Paris', 'Rome'].includes(held), held);
  console.log(`node: SmolLM2 with two threads: ${answer.timings.predicted_per_second.toFixed(1)} tokens/s, prompts ${prefill.toFixed(0)}/s`);
  await engine.dispose();
}

/** Returns the engine's module, on this thread. */
async function moduleHere() {
  const module = await import(url('wasm/ruvllm_wasm.js'));
  const { memory } = await module.default({ module_or_path: readFileSync(join(folder, 'wasm/ruvllm_wasm_bg.wasm')) });
  return { module, memory };
}

/** The file never lies in the module's memory, which holds the weights once. Memory never shrinks: the largest is that of now. */
async function memory() {
  const { module, memory } = await moduleHere();
  const { readModel } = await import(url('source.js'));
  const { size } = statSync(smollm2);
  const { reader } = await readModel({ source: { url: pathToFileURL(smollm2).href } }, module, () => {});
  assert.equal(reader.size, size);
  const before = memory.buffer.byteLength;
  const engine = module.WasmEngine.load(reader, JSON.stringify({ name: 'smollm2' }), undefined, () => {});
  reader.close();
  const loaded = memory.buffer.byteLength;
  const id = engine.start('chat', JSON.stringify(CHAT));
  while (engine.step());
  assert.equal(JSON.parse(engine.take(id)).result.usage.completion_tokens, CHAT.max_tokens);
  const chatted = memory.buffer.byteLength;
  const times = [before, loaded, chatted].map((bytes) => (bytes / size).toFixed(3));
  console.log(`node: memory is ${times[0]} times the file at first, ${times[1]} once it is loaded, ${times[2]} after a chat (${chatted} bytes)`);
  assert.ok(chatted <= MEMORY_MAX * size, `${chatted} bytes of memory for a file of ${size}`);
}

/** Files that fail while they are read are one error. */
async function readers() {
  const { module } = await moduleHere();
  const { bytes } = goldenModels()[0];
  const load = (reader) => () => module.WasmEngine.load(reader, '{}', undefined, () => {});
  const reader = (ends, size = bytes.length) => ({
    size,
    readAt: (offset, to) => {
      const part = bytes.subarray(offset, Math.min(offset + to.length, ends));
      to.set(part);
      return part.length;
    },
  });
  const said = (line) => (error) => JSON.parse(error).message.includes(line);
  assert.ok(load(reader(bytes.length))().model());
  assert.throws(load(reader(100)), said('cut short while it was in use: it ends at byte 100'));
  assert.throws(load(reader(bytes.length - 1000)), said(`it ends at byte ${bytes.length - 1000} of ${bytes.length}`));
  assert.throws(load({ size: 1000, readAt: () => 1e9 }), said('1000000000 bytes were read where there is room for 1000'));
  assert.throws(load({ size: 1000, readAt: () => NaN }), said('it ends at byte 0 of 1000'));
  assert.throws(load({ size: 3 * 2 ** 30, readAt: () => 0 }), said("a page's memory has 4 GiB"));
  const gone = () => {
    throw new Error('it is gone');
  };
  assert.throws(load({ size: 1000, readAt: gone }), said('cannot read the file (at byte 0): it is gone'));
  assert.throws(() => module.sha256Of(reader(10)), said('it ends at byte 10'));
}

/** What a page does with an engine. */
async function requests(engine) {
  const messages = [{ role: 'user', content: 'Say hello.' }];
  const stream = engine.chat({ messages, max_tokens: 12, temperature: 0 });
  let text = '';
  for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? '';
  const whole = await stream.result();
  assert.equal(whole.choices[0].message.content, text);
  assert.equal(await stream.text(), text);
  assert.ok((await tokensOf(engine, 'Say hello.', 4)).length === 4);

  // One is ended by its signal, one by leaving its loop, and others go on.
  const controller = new AbortController();
  const endless = { messages, max_tokens: 800, temperature: 1, ignore_eos: true };
  const aborted = engine.chat(endless, { signal: controller.signal });
  const other = engine.complete({ prompt: 'One, two,', max_tokens: 8, temperature: 0 });
  for await (const _ of engine.chat(endless)) break;
  setTimeout(() => controller.abort(new Error('enough')), 50);
  await assert.rejects(aborted.result(), /enough/);
  assert.equal((await other.result()).usage.completion_tokens, 8);

  const schema = { type: 'object', properties: { city: { enum: ['Paris', 'Rome'] } }, required: ['city'], additionalProperties: false };
  const form = { type: 'json_schema', json_schema: { name: 'city', schema } };
  const held = await engine.chat({ messages, response_format: form, max_tokens: 40 }).text();
  assert.ok(['Paris', 'Rome'].includes(JSON.parse(held).city), held);

  // Errors are classes with the server's lines.
  await assert.rejects(engine.chat({ messages, temprature: 1 }).result(), (error) => {
    assert.ok(error instanceof web.InvalidRequestError);
    assert.deepEqual([error.kind, error.param, error.code], ['invalid_request', 'temprature', 'unknown_field']);
    assert.match(error.message, /is 'temperature' meant\?/);
    return true;
  });
  await assert.rejects(engine.complete({ prompt: Array(2000).fill(7) }).result(), web.ContextLengthError);
  await assert.rejects(engine.chat({ messages, model: 'gpt-5' }).result(), web.NotFoundError);
  await assert.rejects(engine.chat({ messages, adapter: 'x' }).result(), web.UnsupportedError);
  await assert.rejects(engine.feedback({ id: 'x', score: 1 }), web.NotFoundError);

  // Clients of OpenAI's API.
  const post = (more) => ({ method: 'POST', body: JSON.stringify({ messages, max_tokens: 4, temperature: 0, ...more }) });
  const answered = await (await engine.fetch('http://ruvllm/v1/chat/completions', post({}))).json();
  assert.equal(answered.object, 'chat.completion');
  const streamed = await (await engine.fetch('http://ruvllm/v1/chat/completions', post({ stream: true }))).text();
  assert.match(streamed, /^data: \{.*\n\ndata: \[DONE\]\n\n$/s);
  const refused = await engine.fetch('http://ruvllm/v1/chat/completions', post({ n: 'two' }));
  assert.equal(refused.status, 400);
  assert.equal((await engine.capabilities()).runtime, 'web');
}

/** A request that was ended is gone from the engine: the next one does not wait until it would have been over. */
async function ended() {
  const engine = await web.load(pathToFileURL(smollm2), { ctx: 1024, parallel: 1 });
  const found = await afterEnded(engine, 400);
  await engine.dispose();
  for (const [way, times] of Object.entries(found)) assert.ok(times < 30, `${way}: ${times.toFixed(1)} times as long as alone`);
}

/** A load ends when its signal is aborted, at once or on its way, and nothing of it goes on. */
async function aborted() {
  const { bytes } = goldenModels()[0];
  await assert.rejects(web.load(bytes, { signal: AbortSignal.abort(new Error('no')) }), /no/);
  const asked = [];
  // It answers with a part of the file, and then with nothing.
  const server = createServer((request, response) => {
    asked.push(once(response, 'close'));
    response.writeHead(200, { 'content-length': bytes.length }).write(bytes.subarray(0, 1000));
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const model = `http://127.0.0.1:${server.address().port}/model.gguf`;
  const atOnce = new AbortController();
  const loading = web.load(model, { signal: atOnce.signal });
  atOnce.abort(new Error('at once'));
  await assert.rejects(soon(loading), /at once/);
  assert.equal(asked.length, 0, 'nothing is fetched any more');
  const later = new AbortController();
  const onProgress = ({ done }) => done > 0 && later.abort(new Error('later'));
  await assert.rejects(soon(web.load(model, { signal: later.signal, onProgress })), /later/);
  assert.equal(asked.length, 1);
  await soon(asked[0]);
  server.close();
}

async function wrong() {
  await assert.rejects(web.load('not a url'), web.UsageError);
  await assert.rejects(web.load(url('no.gguf')), /cannot be opened: ENOENT/);
  await assert.rejects(web.load(new Uint8Array(4), { contxt: 5 }), /'contxt' is no option of load/);
  await assert.rejects(web.load(new Uint8Array(4), { threads: 65 }), web.UsageError);
  await assert.rejects(web.load(new Uint8Array(4), { backend: 'gpu' }), /'gpu' needs a GPU by WebGPU.*, which is not here/);
  await assert.rejects(web.load(new Uint8Array(64)), web.LoadError);
  const { bytes } = goldenModels()[0];
  await assert.rejects(web.load(bytes.subarray(0, bytes.length - 100)), web.LoadError);
  await assert.rejects(web.load(bytes, { sha256: '0'.repeat(64) }), /SHA-256 is/);
  const engine = await web.load(bytes);
  const running = engine.complete({ prompt: [1, 2, 3], max_tokens: 200, ignore_eos: true }).result();
  await engine.dispose();
  await assert.rejects(running, web.DisposedError);
  await assert.rejects(engine.tokenize({ text: 'a' }), web.DisposedError);
}

async function learning() {
  const { bytes } = goldenModels().find(({ name }) => name === 'llama-a');
  const engine = await web.load(bytes, { name: 'tiny', ctx: 256, chatTemplate: TEMPLATE, learn: true });
  const ask = (of) => of.chat({ messages: [{ role: 'user', content: 'Where is Ulm?' }], max_tokens: 16, temperature: 0 });
  const said = async (of) => (await ask(of).text()).trim();
  const first = await ask(engine).result();
  const told = await engine.feedback({ id: first.id, correction: 'In Swabia' });
  assert.equal(told.learned, true);
  assert.equal(await said(engine), 'In Swabia');
  const learned = await engine.exportLearned();
  const invalid = (about) => (error) => {
    assert.ok(error instanceof web.InvalidRequestError, `${error}`);
    assert.deepEqual([error.status, error.code, error.param], about);
    return true;
  };
  await assert.rejects(engine.importLearned(learned.slice(0, -1)), invalid([400, null, null]));
  await assert.rejects(engine.importLearned(learned, { trust: ['0'.repeat(64)] }), invalid([400, 'unsupported', 'trust']));
  const none = await web.load(bytes);
  for (const call of [none.exportLearned(), none.importLearned(learned)]) {
    await assert.rejects(call, (error) => error instanceof web.NotFoundError && error.code === 'learning_off');
  }
  await none.dispose();
  const late = [engine.exportLearned(), engine.importLearned(learned)].map((call) => assert.rejects(call, web.DisposedError));
  await engine.dispose();
  await Promise.all(late);
  const other = await web.load(bytes, { name: 'tiny', ctx: 256, chatTemplate: TEMPLATE, learn: true });
  assert.equal((await other.importLearned(learned)).corrections, 1);
  assert.equal(await said(other), 'In Swabia');
  await other.forget();
  assert.equal((await other.learning()).corrections, 0);
  await other.dispose();
}

async function intelligence() {
  const { InstantLearner, MicroAdapter, SemanticRoutes, ready } = await import(url('intelligence.js'));
  await ready();
  const routes = new SemanticRoutes().add('refunds', ['I want my money back']).add('delivery', ['where is my parcel']);
  assert.equal(routes.route('money back please').name, 'refunds');
  assert.equal(SemanticRoutes.fromBytes(512, routes.toBytes()).route('good morning'), null);
  const adapter = new MicroAdapter(4, 1, Float32Array.of(1, 0, 0, 0, 0, 1, 0, 0));
  const vector = Float32Array.of(0.6, 0.4, -0.5, 1);
  for (let i = 0; i < 50; i++) adapter.learn(vector, 1, 0.2);
  assert.ok(adapter.probabilities(vector)[1] > 0.9);
  const at = (i) => Float32Array.from({ length: 8 }, (_, j) => Math.sin(i * 7 + j * 3));
  const learner = new InstantLearner(8, 4, Float32Array.from({ length: 256 }, (_, i) => at(i >> 3)[i & 7]));
  for (let i = 0; i < 20; i++) learner.learn(at(40), 2, 1);
  assert.ok(learner.probabilities(at(40))[2] > learner.probabilities(at(40))[0]);
  assert.throws(() => learner.learn(at(1), 9, 1), /label 9 of 4/);
}

await run('node', [
  intelligence, wrong, aborted, workersThatDoNotStart, readers, goldens, learning, threadsThatDoNotBegin, threadsThatFail, memory, smol, threads, ended,
]);

// The package in headless Chromium: golden models and SmolLM2 answer as natively; downloads are kept, and go on where they were cut.

import assert from 'node:assert/strict';
import { createReadStream, statSync } from 'node:fs';

import { WITHOUT_FILES, beginModel, launch, limitStorage, sendFile, serve } from './browser.mjs';
import {
  CHAT, GAP_MAX, MEMORY_MAX, N_TOKENS, PROMPT, TEMPLATE, body, folder, goldenModels, nativeTokens, nearTies, run, smollm2,
} from './common.mjs';
import { downloads } from './downloads.mjs';
import { Host } from './host.mjs';
import { rooms } from './room.mjs';

const models = goldenModels();
/** Requests for models: their paths and ranges. */
const asked = [];
/** Bytes after which a download is cut once. */
let cut = null;
/** Whether pages may share memory with their workers. */
let isIsolated = false;
/** Lines that the worker gets before its own. */
let before = '';

/** A host of the page's origin, and of another one. */
const host = new Host();
const HOSTED = '/hosted/model.gguf';
const other = await serve((request, response) => host.answer(request, response));

const server = await serve((request, response) => {
  const { pathname } = new URL(request.url, 'http://localhost');
  if (isIsolated) {
    response.setHeader('cross-origin-opener-policy', 'same-origin').setHeader('cross-origin-embedder-policy', 'require-corp');
  }
  if (pathname === '/') return response.setHeader('content-type', 'text/html').end('<!doctype html><title>web</title>');
  if (pathname === HOSTED) return host.answer(request, response);
  const model = models.find(({ name }) => pathname === `/models/${name}.gguf`);
  if (model) return sendModel(request, response, pathname, model.bytes.length, (from) => model.bytes.subarray(from));
  if (pathname === '/models/smollm2.gguf') {
    return sendModel(request, response, pathname, statSync(smollm2).size, (start) => createReadStream(smollm2, { start }));
  }
  if (pathname === '/models/huge.gguf') {
    response.setHeader('content-length', 3 * 2 ** 30);
    return response.flushHeaders();
  }
  return sendFile(response, folder, pathname, pathname === '/worker.js' ? before : '');
});

function sendModel(request, response, pathname, size, from) {
  const start = beginModel(request, response, size);
  asked.push([pathname, start]);
  if (start === null) return undefined;
  const bytes = from(start);
  if (!Buffer.isBuffer(bytes)) return bytes.pipe(response);
  if (cut === null) return response.end(bytes);
  const n = cut;
  cut = null;
  // The page has to have read them before the connection ends.
  response.write(bytes.subarray(0, n));
  return setTimeout(() => response.destroy(), 300);
}

const { url } = server;
const browser = await launch();
const context = await browser.newContext();
const page = await context.newPage();
const wrong = [];
page.on('pageerror', (error) => wrong.push(`${error}`));

/** Loads the page anew with the package in it. */
async function open() {
  await page.goto(url);
  await page.evaluate(async () => {
    globalThis.web = await import('/index.js');
  });
  await page.evaluate(`globalThis.GAP_MAX = ${GAP_MAX}; globalThis.nearTies = ${nearTies}`);
}

async function goldens() {
  for (const { name, ctx, prompt, tokens } of models) {
    const found = await page.evaluate(async ([name, ctx, prompt, request, tokens]) => {
      const engine = await web.load(`/models/${name}.gguf`, { ctx, cache: false });
      const n = await nearTies(engine, prompt, tokens, request, GAP_MAX);
      const { model } = await engine.complete({ ...request, max_tokens: 1 }).result();
      await engine.dispose();
      return { n, model };
    }, [name, ctx, prompt, body(prompt, tokens.length), tokens]);
    if (found.n > 0) console.log(`page: ${name}: ${found.n} of ${tokens.length} tokens are within ${GAP_MAX} nats of native's`);
    assert.equal(found.model, name);
  }
}

async function smol() {
  const found = await page.evaluate(async ([request, tokens]) => {
    const start = performance.now();
    const progress = new Set();
    const engine = await web.load('/models/smollm2.gguf', { ctx: 1024, onProgress: ({ phase }) => progress.add(phase) });
    const loaded = performance.now() - start;
    const answer = await engine.complete(request).result();
    const expected = await engine.detokenize({ tokens });
    const long = await engine.complete({ prompt: 'word '.repeat(400), max_tokens: 1, temperature: 0 }).result();
    await engine.dispose();
    const { predicted_per_second: decode } = answer.timings;
    return { text: answer.choices[0].text, expected: expected.text, loaded, decode, prefill: long.timings.prompt_per_second, progress: [...progress] };
  }, [body(PROMPT, N_TOKENS), nativeTokens()]);
  assert.equal(found.text, found.expected);
  assert.deepEqual(found.progress, ['fetch', 'load']);
  const { loaded, decode, prefill } = found;
  console.log(`page: SmolLM2 loaded in ${loaded.toFixed(0)} ms, ${decode.toFixed(1)} tokens/s, prompts ${prefill.toFixed(0)}/s`);
}

/** The memory of the engine's module in its worker, once SmolLM2 is loaded and after a chat: with a cache and without. */
async function memory() {
  const { size } = statSync(smollm2);
  for (const cache of [true, false]) {
    await open();
    await page.evaluate(async (cache) => {
      globalThis.engine = await web.load('/models/smollm2.gguf', { cache });
    }, cache);
    const bytes = () => page.workers()[0].evaluate(async () => {
      const { memory } = await (await import('/wasm/ruvllm_wasm.js')).default();
      return memory.buffer.byteLength;
    });
    const loaded = await bytes();
    await page.evaluate((chat) => globalThis.engine.chat(chat).result(), CHAT);
    const chatted = await bytes();
    const times = [loaded, chatted].map((n) => (n / size).toFixed(3));
    console.log(`page: memory is ${times[0]} times the file once it is loaded, ${times[1]} after a chat (${chatted} bytes)`);
    assert.ok(chatted <= MEMORY_MAX * size, `${chatted} bytes of memory for a file of ${size}`);
    await page.evaluate(() => globalThis.engine.dispose());
  }
}

/** Downloads are kept; one that was cut goes on; another file is fetched anew; too large ones are refused. */
async function cache() {
  const { name, bytes } = models[0];
  const load = (more = {}) => page.evaluate(async ([name, more]) => {
    try {
      const engine = await web.load(`/models/${name}.gguf`, more);
      await engine.dispose();
      return 'loaded';
    } catch (error) {
      return `${error.kind}: ${error.message}`;
    }
  }, [name, more]);
  asked.length = 0;
  cut = Math.floor(bytes.length / 2);
  assert.match(await load(), /^load: .* was cut after \d+ of \d+ bytes; load it again and it goes on from there$/);
  assert.equal(await load(), 'loaded');
  assert.equal(asked.length, 2);
  assert.ok(asked[1][1] > 0, `it goes on: ${JSON.stringify(asked)}`);
  await open();
  assert.equal(await load(), 'loaded');
  assert.equal(asked.length, 2, 'it is not fetched again');
  const [kept, removed] = await page.evaluate(async (name) => {
    const found = await web.cachedModels();
    const mine = found.find(({ url }) => url.endsWith(`/${name}.gguf`));
    return [mine, await web.removeCached(mine.url)];
  }, name);
  assert.deepEqual([kept.bytes, kept.complete, removed], [bytes.length, true, true]);
  assert.equal(await load({ sha256: '0'.repeat(64) }).then((line) => line.includes('SHA-256')), true);
  assert.equal(await load(), 'loaded');
  assert.equal(asked.at(-1)[1], 0, 'what is not sound is not kept');
  const huge = await page.evaluate(() => web.load('/models/huge.gguf').catch((error) => `${error.kind}: ${error.message}`));
  assert.match(huge, /^load: the file has 3221225472 bytes; a page's memory has 4 GiB/);
  const gone = await page.evaluate(() => web.load('/models/none.gguf').catch((error) => `${error.kind}: ${error.message}`));
  assert.match(gone, /^load: .* cannot be fetched: the server answers 404/);
}

/** Where a model cannot be kept, it is told why, and the model answers all the same. */
async function uncached() {
  const { name, bytes } = models[0];
  const load = (more = {}) => page.evaluate(async ([name, more]) => {
    const reasons = [];
    const engine = await web.load(`/models/${name}.gguf`, { ...more, onUncached: (reason) => reasons.push(reason) });
    const { usage } = await engine.complete({ prompt: [1, 2, 3], max_tokens: 2, ignore_eos: true }).result();
    await engine.dispose();
    return [usage.completion_tokens, ...reasons];
  }, [name, more]);
  const forget = () => page.evaluate((name) => web.removeCached(new URL(`/models/${name}.gguf`, location.href).href), name);
  await forget();
  const session = await limitStorage(page, url, 1000);
  assert.deepEqual(await load(), [2, 'full']);
  assert.deepEqual(await page.evaluate(() => web.cachedModels()), []);
  await session.send('Storage.overrideQuotaForOrigin', { origin: url });

  before = WITHOUT_FILES;
  assert.deepEqual(await load(), [2, 'unavailable']);
  assert.deepEqual(await load({ cache: false }), [2]);
  before = '';
  // Another model gives way where writing finds no room.
  const other = models.find((model) => model.name !== name && model.bytes.length >= bytes.length);
  const keep = (name) => page.evaluate(async (name) => {
    await (await web.load(`/models/${name}.gguf`)).dispose();
    return (await web.cachedModels()).map(({ url, complete }) => [url.split('/').pop(), complete]);
  }, name);
  assert.deepEqual(await keep(other.name), [[`${other.name}.gguf`, true]]);
  before = `const { write } = FileSystemSyncAccessHandle.prototype;
let n = 0;
FileSystemSyncAccessHandle.prototype.write = function (bytes, options) {
  if (bytes.length > 1000 && n++ === 0) throw new DOMException('full', 'QuotaExceededError');
  return write.call(this, bytes, options);
};
`;
  assert.deepEqual(await keep(name), [[`${name}.gguf`, true]]);
  await forget();
  before = '';

  // A page that was left before the file was noted as complete: it is, and nothing is asked for after its end.
  assert.deepEqual(await load(), [2]);
  await page.evaluate(async () => {
    const dir = await (await navigator.storage.getDirectory()).getDirectoryHandle('ruvllm');
    for await (const [name, handle] of dir.entries()) {
      if (!name.endsWith('.json')) continue;
      const about = JSON.parse(await (await handle.getFile()).text());
      const to = await handle.createWritable();
      await to.write(JSON.stringify({ ...about, complete: false }));
      await to.close();
    }
  });
  const n = asked.length;
  assert.deepEqual(await load(), [2]);
  assert.equal(asked.length, n, `${JSON.stringify(asked.at(-1))} of ${bytes.length}`);
  assert.ok(await forget());
}

/** A correction is remembered after the page is loaded again, with what was exported. */
async function learning() {
  const { name } = models.find((model) => model.name === 'llama-a');
  const teach = () => page.evaluate(async ([name, chatTemplate]) => {
    const phases = new Set();
    const engine = await web.load(`/models/${name}.gguf`, { ctx: 256, chatTemplate, learn: true, onProgress: ({ phase }) => phases.add(phase) });
    const kept = localStorage.getItem('learned');
    if (kept) await engine.importLearned(Uint8Array.from(atob(kept), (c) => c.charCodeAt(0)));
    const ask = () => engine.chat({ messages: [{ role: 'user', content: 'Where is Ulm?' }], max_tokens: 16, temperature: 0 });
    const first = await ask().result();
    if (!kept) await engine.feedback({ id: first.id, correction: 'In Swabia' });
    const text = (await ask().text()).trim();
    const bytes = await engine.exportLearned();
    localStorage.setItem('learned', btoa([...bytes].map((byte) => String.fromCharCode(byte)).join('')));
    await engine.dispose();
    return [text, first.choices[0].message.content.trim(), phases.has('calibrate')];
  }, [name, TEMPLATE]);
  const [taught, before, wasRead] = await teach();
  assert.deepEqual([taught, before === 'In Swabia', wasRead], ['In Swabia', false, true]);
  await open();
  assert.deepEqual(await teach(), ['In Swabia', 'In Swabia', false], 'what it was calibrated by was kept');
}

/** Two threads where the page may share memory, and a line where it may not. */
async function threads() {
  const load = (request) => page.evaluate(async (request) => {
    try {
      const engine = await web.load('/models/smollm2.gguf', { ctx: 1024, threads: 2 });
      const { device } = await engine.capabilities();
      const { choices, timings } = await engine.complete(request).result();
      await engine.dispose();
      return { text: choices[0].text, threads: device.threads, decode: timings.predicted_per_second };
    } catch (error) {
      return `${error.kind}: ${error.message}`;
    }
  }, request);
  assert.match(await load(body(PROMPT, 1)), /^usage: 2 threads need a page that is cross-origin isolated/);
  const one = await page.evaluate(async (request) => {
    const engine = await web.load('/models/smollm2.gguf', { ctx: 1024 });
    const { choices } = await engine.complete(request).result();
    await engine.dispose();
    return choices[0].text;
  }, body(PROMPT, N_TOKENS));
  isIsolated = true;
  try {
    await open();
    const { text, threads, decode } = await load(body(PROMPT, N_TOKENS));
    assert.deepEqual([text, threads], [one, 2]);
    console.log(`page: SmolLM2 with two threads: ${decode.toFixed(1)} tokens/s`);
  } finally {
    isIsolated = false;
    await open();
  }
}

const files = { small: 'mamba2-b', middle: 'mamba-a', large: 'gpt-oss-a', learner: 'llama-a' };
for (const key of Object.keys(files)) files[key] = models.find(({ name }) => name === files[key]).bytes;
const workerHas = (lines) => {
  before = lines;
};
const hosted = { page, files, host, origin: url, path: HOSTED, foreign: `${other.url}${HOSTED}`, workerHas };

try {
  await open();
  await run('page', [cache, uncached, ...downloads(hosted), ...rooms(hosted), learning, goldens, smol, memory, threads]);
  assert.deepEqual(wrong, []);
} finally {
  await browser.close();
  server.close();
  other.close();
}

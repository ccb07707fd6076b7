// The package in headless Chromium: golden models and SmolLM2 answer as natively; downloads are kept, and go on where they were cut.

import assert from 'node:assert/strict';
import { createReadStream, readFileSync, statSync } from 'node:fs';
import { createServer } from 'node:http';
import { extname, join } from 'node:path';
import { pathToFileURL } from 'node:url';

import {
  CHAT, GAP_MAX, MEMORY_MAX, N_TOKENS, PROMPT, TEMPLATE, body, folder, goldenModels, nativeTokens, nearTies, playwright, smollm2,
} from './common.mjs';

const { chromium } = await import(pathToFileURL(playwright).href);
const models = goldenModels();
const TYPES = { '.js': 'text/javascript', '.wasm': 'application/wasm', '.html': 'text/html' };
/** Requests for models: their paths and ranges. */
const asked = [];
/** Bytes after which a download is cut once. */
let cut = null;

const server = createServer((request, response) => {
  const { pathname } = new URL(request.url, 'http://localhost');
  if (pathname === '/') return response.setHeader('content-type', 'text/html').end('<!doctype html><title>web</title>');
  const model = models.find(({ name }) => pathname === `/models/${name}.gguf`);
  if (model) return sendModel(request, response, pathname, model.bytes.length, (from) => model.bytes.subarray(from));
  if (pathname === '/models/smollm2.gguf') {
    return sendModel(request, response, pathname, statSync(smollm2).size, (start) => createReadStream(smollm2, { start }));
  }
  if (pathname === '/models/huge.gguf') {
    response.setHeader('content-length', 3 * 2 ** 30);
    return response.flushHeaders();
  }
  try {
    const bytes = readFileSync(join(folder, pathname));
    return response.setHeader('content-type', TYPES[extname(pathname)] ?? 'text/plain').end(bytes);
  } catch {
    return response.writeHead(404).end();
  }
});

function sendModel(request, response, pathname, size, from) {
  const range = /^bytes=(\d+)-$/.exec(request.headers.range ?? '');
  const start = range && request.headers['if-range'] === '"one"' ? Number(range[1]) : 0;
  asked.push([pathname, start]);
  response.setHeader('etag', '"one"').setHeader('content-length', size - start);
  response.writeHead(start ? 206 : 200);
  const bytes = from(start);
  if (!Buffer.isBuffer(bytes)) return bytes.pipe(response);
  if (cut === null) return response.end(bytes);
  const n = cut;
  cut = null;
  // The page has to have read them before the connection ends.
  response.write(bytes.subarray(0, n));
  return setTimeout(() => response.destroy(), 300);
}

await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
const url = `http://127.0.0.1:${server.address().port}`;
const browser = await chromium.launch({
  executablePath: process.env.RUVLLM_CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-gpu', '--no-first-run', '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1'],
});
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

try {
  await open();
  for (const test of [cache, learning, goldens, smol, memory]) {
    const start = performance.now();
    await test();
    console.log(`page: ${test.name} ok, ${(performance.now() - start).toFixed(0)} ms`);
  }
  assert.deepEqual(wrong, []);
} finally {
  await browser.close();
  server.closeAllConnections();
  server.close();
}

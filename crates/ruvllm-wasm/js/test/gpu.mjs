// The package over WebGPU in headless Chromium, on its adapter in software: golden models and SmolLM2 answer as natively, a request
// can be ended, and what is missing elsewhere is said.

import assert from 'node:assert/strict';
import { createReadStream, statSync } from 'node:fs';

import { beginModel, launch, launchGpu, sendFile, serve } from './browser.mjs';
import { PROMPT, TEMPLATE, afterEnded, body, folder, goldenModels, nativeTokens, nearTies, run, smollm2 } from './common.mjs';

/** Nats within which a token is as good as native's: activations are not quantised on the GPU. */
const GAP = 1e-2;

/** Tokens of SmolLM2 that are compared: the adapter in software takes ten seconds for each. */
const N_SMOL = 4;

const models = goldenModels();
const server = await serve((request, response) => {
  const { pathname } = new URL(request.url, 'http://localhost');
  if (pathname === '/') return response.setHeader('content-type', 'text/html').end('<!doctype html><title>gpu</title>');
  const model = models.find(({ name }) => pathname === `/models/${name}.gguf`);
  const size = model?.bytes.length ?? (pathname === '/models/smollm2.gguf' ? statSync(smollm2).size : null);
  if (size === null) return sendFile(response, folder, pathname);
  const start = beginModel(request, response, size);
  if (start === null) return undefined;
  return model ? response.end(model.bytes.subarray(start)) : createReadStream(smollm2, { start }).pipe(response);
});

/** Opens a page with the package in it. */
async function open(browser) {
  const page = await browser.newPage();
  page.on('pageerror', (error) => wrong.push(`${error}`));
  await page.goto(server.url);
  await page.evaluate(async () => {
    globalThis.web = await import('/index.js');
  });
  await page.evaluate(`globalThis.GAP = ${GAP}; globalThis.nearTies = ${nearTies}; globalThis.afterEnded = ${afterEnded}`);
  return page;
}

const wrong = [];
const browser = await launchGpu();
const page = await open(browser);

async function goldens() {
  for (const { name, ctx, prompt, tokens } of models) {
    const found = await page.evaluate(async ([name, ctx, prompt, request, tokens]) => {
      const engine = await web.load(`/models/${name}.gguf`, { ctx, cache: false, backend: 'gpu' });
      const { device, model } = await engine.capabilities();
      const n = await nearTies(engine, prompt, tokens, request, GAP);
      await engine.dispose();
      return { n, webgpu: device.webgpu, backend: model.backend };
    }, [name, ctx, prompt, body(prompt, tokens.length), tokens]);
    if (found.n > 0) console.log(`gpu: ${name}: ${found.n} of ${tokens.length} tokens are within ${GAP} nats of native's`);
    assert.deepEqual([found.webgpu, found.backend], [true, 'gpu']);
  }
}

async function smol() {
  const tokens = nativeTokens().slice(0, N_SMOL);
  const found = await page.evaluate(async ([request, tokens, prompt]) => {
    const start = performance.now();
    const engine = await web.load('/models/smollm2.gguf', { ctx: 1024, backend: 'gpu' });
    const loaded = performance.now() - start;
    const n = await nearTies(engine, (await engine.tokenize({ content: prompt, add_special: true })).tokens, tokens, request, GAP);
    await engine.dispose();
    return { loaded, n };
  }, [body(PROMPT, N_SMOL), tokens, PROMPT]);
  const { loaded, n } = found;
  console.log(`gpu: SmolLM2 loaded in ${loaded.toFixed(0)} ms, ${n} of ${N_SMOL} tokens near ties`);
}

/** Requests beside each other; one of them is ended; a chat is held to a schema. */
async function requests() {
  const found = await page.evaluate(async (chatTemplate) => {
    const engine = await web.load('/models/llama-a.gguf', { ctx: 256, chatTemplate, backend: 'gpu' });
    const request = { prompt: [1, 2, 3], max_tokens: 24, temperature: 0, ignore_eos: true };
    const alone = (await engine.complete(request).result()).choices[0].text;
    const stop = new AbortController();
    const ended = engine.complete({ ...request, max_tokens: 200 }, { signal: stop.signal }).result().catch((error) => error.name);
    const beside = engine.complete(request).result();
    setTimeout(() => stop.abort(), 50);
    const response_format = { type: 'json_schema', json_schema: { name: 'x', schema: { type: 'boolean' } } };
    const held = await engine.chat({ messages: [{ role: 'user', content: 'Yes?' }], max_tokens: 8, response_format }).text();
    const texts = [(await beside).choices[0].text === alone, await ended, held];
    await engine.dispose();
    return texts;
  }, TEMPLATE);
  assert.deepEqual(found.slice(0, 2), [true, 'AbortError']);
  assert.match(found[2], /^(true|false)$/);
}

/** A request that was ended is gone from the engine: the next one does not wait until it would have been over. */
async function ended() {
  const found = await page.evaluate(async () => {
    const engine = await web.load('/models/llama-a.gguf', { ctx: 256, backend: 'gpu', parallel: 1 });
    const found = await afterEnded(engine, 100);
    await engine.dispose();
    return found;
  });
  for (const [way, times] of Object.entries(found)) assert.ok(times < 20, `${way}: ${times.toFixed(1)} times as long as alone`);
}

/** What is missing, or does not go together, is one line before anything is fetched. */
async function refused() {
  const load = (page, more) =>
    page.evaluate((more) => web.load('/models/none.gguf', { backend: 'gpu', ...more }).catch((error) => `${error.kind}: ${error.message}`), more);
  assert.equal(await load(page, { threads: 2 }), "usage: backend 'gpu' computes on the GPU; leave 'threads' out");
  assert.match(await load(page, { backend: 'cuda' }), /^usage: 'backend' is "cuda"; choose 'native' or 'gpu'$/);
  const without = await launch();
  try {
    assert.equal(await load(await open(without)), "usage: backend 'gpu' needs a GPU by WebGPU, which is not here; leave 'backend' out");
  } finally {
    await without.close();
  }
}

try {
  await run('gpu', [goldens, smol, requests, ended, refused]);
  assert.deepEqual(wrong, []);
} finally {
  await browser.close();
  server.close();
}

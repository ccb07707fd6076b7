// Speed of SmolLM2 in headless Chromium, beside wllama with one thread, in one run by turns:
//
//     node bench.mjs PACKAGE RUVLLM PLAYWRIGHT WLLAMA
//
// WLLAMA is the folder `node_modules/@wllama/wllama`, as `npm install @wllama/wllama` makes it.

import { createReadStream, readFileSync, statSync } from 'node:fs';
import { createServer } from 'node:http';
import { extname, join } from 'node:path';
import { pathToFileURL } from 'node:url';

import { folder, playwright, smollm2 } from './common.mjs';

const wllama = process.argv[5];
const { chromium } = await import(pathToFileURL(playwright).href);
const TYPES = { '.js': 'text/javascript', '.wasm': 'application/wasm' };
const server = createServer((request, response) => {
  const { pathname } = new URL(request.url, 'http://localhost');
  if (pathname === '/') return response.setHeader('content-type', 'text/html').end('<!doctype html><title>bench</title>');
  if (pathname === '/model.gguf') {
    response.setHeader('content-length', statSync(smollm2).size);
    return createReadStream(smollm2).pipe(response);
  }
  const [root, path] = pathname.startsWith('/wllama/') ? [wllama, pathname.slice(8)] : [folder, pathname];
  try {
    const bytes = readFileSync(join(root, path));
    return response.setHeader('content-type', TYPES[extname(path)] ?? 'text/plain').end(bytes);
  } catch {
    return response.writeHead(404).end();
  }
});
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
const browser = await chromium.launch({
  executablePath: process.env.RUVLLM_CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-gpu', '--no-first-run'],
});
const page = await browser.newPage();
await page.goto(`http://127.0.0.1:${server.address().port}`);
const results = await page.evaluate(async () => {
  const prompt = 'word '.repeat(256);
  const long = (i) => ({ prompt: `${i} ${prompt}`, max_tokens: 1, temperature: 0 });
  const short = (i) => ({ prompt: `Once upon a time, ${i}`, max_tokens: 64, temperature: 0, ignore_eos: true });
  const web = await import('/index.js');
  const ours = await web.load('/model.gguf', { name: 'ours', ctx: 1024, cache: false });
  const { Wllama } = await import('/wllama/esm/index.js');
  const theirs = new Wllama({ default: '/wllama/esm/wasm/wllama.wasm' }, { suppressNativeLog: true });
  await theirs.loadModelFromUrl(new URL('/model.gguf', location.href).href, { n_threads: 1, n_ctx: 1024, useCache: false });
  const found = [];
  for (let i = 0; i < 4; i++) {
    for (const [name, run] of [
      ['@ruvllm/web', async (body) => (await ours.complete(body).result()).timings],
      ['wllama', async (body) => (await theirs.createCompletion({ ...body, stream: false })).timings],
    ]) {
      const prefill = (await run(long(i)))?.prompt_per_second;
      const decode = (await run(short(i)))?.predicted_per_second;
      found.push({ name, round: i, prefill, decode, threads: name === 'wllama' ? theirs.getNumThreads() : 1 });
    }
  }
  return found;
});
console.table(results);
await browser.close();
server.closeAllConnections();
server.close();

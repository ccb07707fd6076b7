// Loading: its progress, its end by a signal, and what stands in its way.

import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { after, test } from 'node:test';
import { load, LoadError } from '@ruvllm/node';
import { environment, folder, GOLDEN, run, SMOLLM2 } from './common.mjs';

test('progress reaches its total', async () => {
  const told = [];
  const engine = await load(SMOLLM2, { ctx: 256, onProgress: (progress) => told.push(progress) });
  await engine.dispose();
  const { phase, done, total } = told.at(-1);
  assert.ok(phase === 'load' && total > 50e6 && done === total, JSON.stringify(told.at(-1)));
  assert.ok(told.every((progress) => progress.done <= progress.total), JSON.stringify(told));
});

test('what onProgress throws is what load rejects with', async () => {
  const mine = new Error('mine');
  const onProgress = () => {
    throw mine;
  };
  await assert.rejects(load(GOLDEN, { onProgress }), mine);
});

test('an aborted loading tells no more progress', async () => {
  await assert.rejects(load(SMOLLM2, { signal: AbortSignal.abort() }), { name: 'AbortError' });
  const controller = new AbortController();
  let n = 0;
  const onProgress = () => {
    n += 1;
    controller.abort();
  };
  await assert.rejects(load(SMOLLM2, { signal: controller.signal, onProgress }), { name: 'AbortError' });
  const told = n;
  // The one after it has been read, and freed, by the time that another is there.
  await (await load(SMOLLM2, { ctx: 256 })).dispose();
  assert.equal(n, told);
});

test('an aborted download ends, and holds no process', async () => {
  let closed;
  const isClosed = new Promise((resolve) => (closed = resolve));
  // A hub that has a file of 1 GB, and sends 64 KB of it ten times a second.
  const hub = createServer((request, response) => {
    if (!request.url?.endsWith('/model.gguf')) return void response.writeHead(404).end();
    const size = 1e9;
    const headers = { etag: '"one"', 'x-repo-commit': 'a'.repeat(40), 'content-length': size };
    response.writeHead(200, headers);
    if (request.method === 'HEAD') return void response.end();
    const timer = setInterval(() => response.write(Buffer.alloc(65536)), 100);
    response.on('close', () => {
      clearInterval(timer);
      closed();
    });
  });
  await new Promise((resolve) => hub.listen(0, '127.0.0.1', resolve));
  after(() => hub.close());
  const home = folder(after);
  const address = /** @type {import('node:net').AddressInfo} */ (hub.address());
  const env = environment({ HF_ENDPOINT: `http://127.0.0.1:${address.port}`, HF_HOME: home, RUVLLM_HOME: home });
  const text = `
    import { load } from '@ruvllm/node';
    const controller = new AbortController();
    const onProgress = ({ done }) => done > 0 && controller.abort(new Error('enough'));
    await load('hf:owner/repo/model.gguf', { signal: controller.signal, onProgress }).catch((error) => console.log(error.message));
  `;
  const start = performance.now();
  const ended = await run(process.execPath, ['--input-type=module', '-e', text], { env });
  assert.deepEqual([ended.code, ended.out], [0, 'enough\n'], ended.err);
  await isClosed;
  // The whole file takes half an hour.
  assert.ok(performance.now() - start < 60_000);
});

test('a machine whose C library is too old is told so', async (t) => {
  const path = createRequire(import.meta.url).resolve(`@ruvllm/node-${process.platform}-${process.arch}-gnu/package.json`);
  const was = readFileSync(path, 'utf8');
  t.after(() => writeFileSync(path, was));
  const { ruvllm } = JSON.parse(was);
  assert.match(ruvllm.glibc, /^2\.\d+$/);
  writeFileSync(path, JSON.stringify({ ...JSON.parse(was), ruvllm: { glibc: '2.999' } }));
  const text = `
    import { load, LoadError } from '@ruvllm/node';
    await load('any').catch((error) => console.log(error instanceof LoadError, error.message));
  `;
  const ended = await run(process.execPath, ['--input-type=module', '-e', text]);
  assert.match(ended.out, /^true @ruvllm\/node-\S+ needs glibc 2\.999, and this machine has 2\.\d+; take a newer system, or build /);
});

test('a file that is no model', async () => {
  await assert.rejects(load(import.meta.filename ?? process.argv[1]), LoadError);
});

// The process around an engine: its event loop, its end, its memory, and threads of JavaScript.

import assert from 'node:assert/strict';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { test } from 'node:test';
import { load } from '@ruvllm/node';
import { GOLDEN, program, SMOLLM2, user } from './common.mjs';

test('the event loop goes on while eight answers stream', async (t) => {
  const engine = await load(SMOLLM2, { parallel: 8, ctx: 1024 });
  const delay = monitorEventLoopDelay({ resolution: 1 });
  delay.enable();
  let n = 0;
  const read = async (seed) => {
    const body = { messages: user('Tell me a story.'), max_tokens: 200, ignore_eos: true, seed };
    for await (const _ of engine.chat(body)) n += 1;
  };
  await Promise.all([1, 2, 3, 4, 5, 6, 7, 8].map(read));
  delay.disable();
  await engine.dispose();
  // The timer of the measurement fires every millisecond at best.
  const p99 = delay.percentile(99) / 1e6 - 1;
  t.diagnostic(`${n} chunks; delay of the event loop: p99 ${p99.toFixed(2)} ms, longest ${(delay.max / 1e6).toFixed(2)} ms`);
  assert.ok(n >= 1600, `${n} chunks`);
  assert.ok(p99 < 5, `p99 is ${p99} ms`);
});

/** Begins eight answers, and has the first chunk of each. */
const begun = `
  import { load } from '@ruvllm/node';
  const engine = await load(${JSON.stringify(GOLDEN)}, { chatTemplate: 'chatml', ctx: 4096, threads: 2, parallel: 8 });
  const body = { messages: [{ role: 'user', content: 'a' }], max_tokens: 3000, ignore_eos: true };
  const streams = Array.from({ length: 8 }, () => engine.chat(body));
  for (const stream of streams) await stream[Symbol.asyncIterator]().next();
`;

test('a process ends cleanly while answers run', async () => {
  for (const [end, code] of [['process.exit(0)', 0], ['process.exit(7)', 7], ["throw new Error('out')", 1], ['setTimeout(() => process.exit(0), 50)', 0]]) {
    const ended = await program(`${begun}; ${end};`);
    assert.deepEqual([ended.code, ended.signal], [code, null], `${end}: ${ended.err}`);
  }
  const killed = await program(`${begun}; process.kill(process.pid, 'SIGTERM'); await new Promise(() => setInterval(() => {}, 1000));`);
  assert.equal(killed.signal, 'SIGTERM');
});

test('a process that has nothing to do ends by itself, after its answers', async () => {
  const short = begun.replace('max_tokens: 3000', 'max_tokens: 20');
  const ended = await program(`${short}; streams[7].result().then(({ usage }) => console.log(usage.completion_tokens));`);
  assert.deepEqual([ended.code, ended.out], [0, '20\n'], ended.err);
});

test('threads of JavaScript have engines of their own, and may be ended', async () => {
  const ended = await program(`
    import { Worker } from 'node:worker_threads';
    import { once } from 'node:events';
    const text = ${JSON.stringify(begun)} + "; (await import('node:worker_threads')).parentPort.postMessage('begun');";
    for (let i = 0; i < 3; i += 1) {
      const worker = new Worker(new URL('data:text/javascript,' + encodeURIComponent(text.replaceAll("'@ruvllm/node'", JSON.stringify(import.meta.resolve('@ruvllm/node'))))));
      worker.on('error', (error) => { console.error(error); process.exit(3); });
      await once(worker, 'message');
      await worker.terminate();
    }
    ${begun}
    console.log((await engine.chat({ ...body, max_tokens: 2 }).result()).usage.completion_tokens);
    await engine.dispose();
  `);
  assert.deepEqual([ended.code, ended.signal, ended.out], [0, null, '2\n'], ended.err);
});

test('1,000 loads and disposals leak nothing', async (t) => {
  const ended = await program(`
    import { readdirSync } from 'node:fs';
    import { load } from '@ruvllm/node';
    const messages = [{ role: 'user', content: 'a' }];
    const cycle = async () => {
      const engine = await load(${JSON.stringify(GOLDEN)}, { chatTemplate: 'chatml', threads: 2, parallel: 2, ctx: 256 });
      await engine.chat({ messages, max_tokens: 2 }).result();
      await engine.dispose();
    };
    const look = () => {
      gc();
      const count = (folder) => readdirSync(folder).length;
      return { rss: process.memoryUsage.rss(), threads: count('/proc/self/task'), files: count('/proc/self/fd') };
    };
    for (let i = 0; i < 200; i += 1) await cycle();
    const first = look();
    for (let i = 0; i < 800; i += 1) await cycle();
    console.log(JSON.stringify([first, look()]));
  `, ['--expose-gc']);
  assert.equal(ended.code, 0, ended.err);
  const [first, last] = JSON.parse(ended.out);
  t.diagnostic(`after 200: ${JSON.stringify(first)}, after 1,000: ${JSON.stringify(last)}`);
  // 16 KiB a cycle would be 12.5 MiB.
  assert.ok(last.rss - first.rss < 12 << 20, `${(last.rss - first.rss) >> 10} KiB more`);
  assert.ok(last.threads <= first.threads + 2 && last.files <= first.files + 2, ended.out);
});

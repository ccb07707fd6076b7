// Requests that are ended: while the prompt is computed, while the answer is written, before they began.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { load } from '@ruvllm/node';
import { idle, metrics, program, SMOLLM2, user } from './common.mjs';

/** Steps of the engine that may begin between a look at the counters, the abort and its arrival. */
const STEPS_MAX = 3;

let engine;
before(async () => (engine = await load(SMOLLM2, { ctx: 8192, parallel: 2 })));
after(() => engine.dispose());

const long = { messages: user('Tell me a story.'), max_tokens: 2000, ignore_eos: true };
const steps = (found) => found.ruvllm_step_seconds_count;

/** Waits until `isThere` of the counters. */
async function until(isThere) {
  for (let i = 0; i < 5000; i += 1) {
    const found = await metrics(engine);
    if (isThere(found)) return;
    await sleep(1);
  }
  throw new Error('it did not come to that');
}

/** Ends a request, and checks that it left the engine within a step. */
async function ended(stream, abort) {
  await until((found) => found.ruvllm_requests_running === 1);
  const before = await metrics(engine);
  abort();
  const found = await idle(engine, 1000);
  assert.ok(steps(found) - steps(before) <= STEPS_MAX, `${steps(found) - steps(before)} steps after the abort`);
  await assert.rejects(stream.result(), { name: 'AbortError' });
  return found;
}

test('in prefill', async () => {
  const base = (await idle(engine)).ruvllm_computed_tokens_total ?? 0;
  const controller = new AbortController();
  const words = Array.from({ length: 1500 }, (_, i) => `${i} `).join('');
  const stream = engine.complete({ prompt: words, max_tokens: 1 }, { signal: controller.signal });
  await until((found) => found.ruvllm_requests_running === 1 && found.ruvllm_computed_tokens_total > base);
  const found = await ended(stream, () => controller.abort());
  const { count } = await engine.tokenize({ text: words });
  assert.ok(count > 4000 && found.ruvllm_computed_tokens_total - base < count, `all ${count} tokens were computed`);
});

test('in decode, by a signal', async () => {
  const controller = new AbortController();
  const stream = engine.chat(long, { signal: controller.signal });
  const chunks = stream[Symbol.asyncIterator]();
  for (let i = 0; i < 5; i += 1) await chunks.next();
  await ended(stream, () => controller.abort());
  await assert.rejects(async () => {
    for (;;) if ((await chunks.next()).done) return;
  }, { name: 'AbortError' });
});

test('in decode, by abort() and by leaving the loop', async () => {
  const stream = engine.chat(long);
  await stream[Symbol.asyncIterator]().next();
  await ended(stream, () => stream.abort());
  const left = engine.chat(long);
  for await (const _ of left) break;
  await idle(engine, 1000);
  await assert.rejects(left.result(), { name: 'AbortError' });
});

test('with a reason of its own, before it began, and while it waits', async () => {
  const reason = new Error('enough');
  await assert.rejects(engine.chat(long, { signal: AbortSignal.abort(reason) }).result(), reason);
  const controller = new AbortController();
  const streams = [1, 2, 3, 4].map(() => engine.chat(long, { signal: controller.signal }));
  await until((found) => found.ruvllm_requests_waiting === 2);
  controller.abort(reason);
  for (const stream of streams) await assert.rejects(stream.result(), reason);
  await idle(engine, 1000);
  await assert.rejects(engine.embed({ input: 'a' }, { signal: AbortSignal.abort(reason) }), reason);
});

test('of fetch: by its signal, and by cancelling the body', async () => {
  const controller = new AbortController();
  const init = { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ ...long, stream: true }) };
  const response = await engine.fetch('http://any/v1/chat/completions', { ...init, signal: controller.signal });
  const reader = response.body.getReader();
  await reader.read();
  controller.abort();
  await assert.rejects(async () => {
    for (;;) if ((await reader.read()).done) return;
  }, { name: 'AbortError' });
  await idle(engine, 1000);
  const other = await engine.fetch('/v1/chat/completions', init);
  await other.body.cancel();
  await idle(engine, 1000);
  await assert.rejects(engine.fetch('/health', { signal: AbortSignal.abort() }), { name: 'AbortError' });
});

test('of fetch, by its signal, when the collector has been there', async () => {
  const ended = await program(`
    import { setTimeout as sleep } from 'node:timers/promises';
    import { load } from '@ruvllm/node';
    const engine = await load(${JSON.stringify(SMOLLM2)}, { ctx: 8192 });
    const body = JSON.stringify(${JSON.stringify({ ...long, stream: true })});
    const ask = async (signal) => {
      const init = { method: 'POST', headers: { 'content-type': 'application/json' }, body, signal };
      return (await engine.fetch('http://any/v1/chat/completions', init)).body.getReader();
    };
    const controller = new AbortController();
    const reader = await ask(controller.signal);
    await reader.read();
    for (let i = 0; i < 5; i += 1) {
      gc();
      await sleep(10);
    }
    controller.abort();
    try {
      while (!(await reader.read()).done);
      console.log('it was answered to its end');
    } catch (error) {
      console.log(error.name);
    }
    await engine.dispose();
  `, ['--expose-gc']);
  assert.deepEqual([ended.code, ended.out], [0, 'AbortError\n'], ended.err);
});

test('of many calls by one signal, without a word on standard error', async () => {
  const ended = await program(`
    import { load } from '@ruvllm/node';
    const engine = await load(${JSON.stringify(SMOLLM2)}, { ctx: 2048, parallel: 4 });
    const { signal } = new AbortController();
    const ask = (i) => engine.complete({ prompt: 'Once ' + i, max_tokens: 2 }, { signal }).text();
    await Promise.all(Array.from({ length: 24 }, (_, i) => ask(i)));
    await Promise.all(Array.from({ length: 24 }, (_, i) => engine.tokenize({ text: 'a' + i }, { signal })));
    const controller = new AbortController();
    const streams = Array.from({ length: 24 }, (_, i) => engine.complete({ prompt: 'Once ' + i, max_tokens: 500, ignore_eos: true }, controller));
    controller.abort();
    const ends = await Promise.allSettled(streams.map((stream) => stream.text()));
    console.log(ends.filter(({ reason }) => reason?.name === 'AbortError').length);
    await engine.dispose();
  `);
  assert.deepEqual([ended.code, ended.out, ended.err], [0, '24\n', '']);
});

// What the tests in Node and in Chromium have in common. Arguments: the package, the program `ruvllm`, playwright-core, and the names
// of the tests that are run (all without any).

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';

export const [, , folder, ruvllm, playwright, ...only] = process.argv;

/** Runs tests, those that are asked for, and says how long each took. */
export async function run(where, tests) {
  const named = only.map((name) => tests.find((test) => test.name === name) ?? assert.fail(`there is no test '${name}'`));
  for (const test of only.length > 0 ? named : tests) {
    const start = performance.now();
    await test();
    console.log(`${where}: ${test.name} ok, ${(performance.now() - start).toFixed(0)} ms`);
  }
}

/** How long anything may take that fails at once: what would wait for ever ends by that. */
const SOON_MS = 60_000;

/** Waits for something that comes soon or never. */
export function soon(promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`nothing came of it in ${SOON_MS / 1000} seconds`)), SOON_MS);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** Waits until something is so; fails after some seconds. */
export async function until(isSo) {
  for (const start = Date.now(); !(await isSo()); ) {
    if (Date.now() - start > 10_000) throw new Error(`it is not so after ten seconds: ${isSo}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

const goldens = 'crates/ruvllm-testkit/testdata/models';

/** Returns the bytes of a golden model. */
function golden(name) {
  const path = join(goldens, name, 'model.gguf');
  return existsSync(path) ? readFileSync(path) : gunzipSync(readFileSync(`${path}.gz`));
}

/** Returns every golden model that writes text: its name, bytes, prompt and the tokens that native scalar kernels choose. */
export function goldenModels() {
  const recorded = readFileSync('crates/ruvllm-wasm/src/tests/greedy.txt', 'utf8').trim().split('\n').slice(1);
  const found = recorded.map((line) => {
    const [name, ...tokens] = line.split(' ');
    const about = JSON.parse(readFileSync(join(goldens, name, 'case.json'), 'utf8'));
    const prompt = about.tokens.slice(0, Math.min(about.tokens.length, about.n_ctx - tokens.length));
    return { name, bytes: golden(name), ctx: about.n_ctx, prompt, tokens: tokens.map(Number) };
  });
  const n = readdirSync(goldens).filter((name) => existsSync(join(goldens, name, 'logits.f32'))).length;
  if (found.length < n) throw new Error(`tokens of ${found.length} golden models are recorded, and there are ${n}`);
  return found;
}

/** Returns the folder of the real models. */
function models() {
  const { RUVLLM_MODELS, RUVLLM_HOME, XDG_CACHE_HOME } = process.env;
  return RUVLLM_MODELS ?? join(RUVLLM_HOME ?? join(XDG_CACHE_HOME ?? join(homedir(), '.cache'), 'ruvllm'), 'models');
}

export const smollm2 = join(models(), 'smollm2-135m.gguf');
export const PROMPT = 'The capital of France is';
export const N_TOKENS = 64;

/** Returns the tokens that the program writes after the prompt with its scalar kernels and one thread. */
export function nativeTokens() {
  const args = ['run', '--model', smollm2, '--prompt', PROMPT, '--raw', '--max-tokens', `${N_TOKENS}`, '--temp', '0', '--ignore-eos'];
  const env = { ...process.env, RUVLLM_ISA: 'scalar' };
  const output = execFileSync(ruvllm, [...args, '--threads', '1', '--json'], { env, maxBuffer: 1 << 26 });
  return JSON.parse(output).tokens;
}

/** The most memory that the engine's module may take after a chat with SmolLM2, as a multiple of the file. */
export const MEMORY_MAX = 1.4;

/** A chat of a short question, as a page has it first. */
export const CHAT = { messages: [{ role: 'user', content: 'Name three rivers.' }], max_tokens: 64, temperature: 0, ignore_eos: true };

/** The body whose answer is compared; the ids of its tokens are told with their log-probabilities. */
export const body = (prompt, n) => ({ prompt, max_tokens: n, temperature: 0, ignore_eos: true, logprobs: 0 });

/** Nats within which two tokens are as good as equal: sums in another order, rounded in the cache, differ by less. */
export const GAP_MAX = 1e-3;

/**
 * Returns how many of the tokens that native kernels chose are not the best here, each after those before it; throws where one is
 * more than `gap` nats behind. Runs in a page as well, so that it uses nothing of this file.
 */
export async function nearTies(engine, prompt, tokens, body, gap) {
  const answer = await engine.complete(body).result();
  const { text } = await engine.detokenize({ tokens });
  if (answer.usage.completion_tokens !== tokens.length) throw new Error(`${answer.usage.completion_tokens} tokens came`);
  if (answer.choices[0].text === text) return 0;
  let n = 0;
  for (const [i, token] of tokens.entries()) {
    // What is written after native's tokens, where native's next one is ahead by so many nats.
    const ahead = async (nats) => {
      const request = { ...body, prompt: [...prompt, ...tokens.slice(0, i)], max_tokens: 1, logit_bias: { [token]: nats } };
      return (await engine.complete(request).result()).choices[0].logprobs.tokens[0];
    };
    const itself = await ahead(100);
    if ((await ahead(0)) === itself) continue;
    if ((await ahead(gap)) !== itself) throw new Error(`token ${i}, ${itself}, is more than ${gap} nats behind`);
    n += 1;
  }
  return n;
}

/** A chat template, which the golden models have none of. */
export const TEMPLATE = '{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:';

/**
 * Ends requests in each way there is, on an engine that computes one at a time, and returns what a short request takes after each of
 * them, as a multiple of what it takes alone: one that was not ended is `n` times as long. Runs in a page as well.
 */
export async function afterEnded(engine, n) {
  const request = { prompt: [1, 2, 3], temperature: 0, ignore_eos: true };
  const short = async () => {
    const start = performance.now();
    await engine.complete({ ...request, max_tokens: 2 }).result();
    return performance.now() - start;
  };
  await short();
  const alone = await short();
  const found = {};
  for (const way of ['signal', 'abort', 'leave']) {
    const controller = new AbortController();
    const stream = engine.complete({ ...request, max_tokens: 2 * n }, { signal: controller.signal });
    const read = async () => {
      for await (const _ of stream) {
        if (way === 'leave') return 'AbortError';
        if (way === 'abort') stream.abort();
        else controller.abort();
      }
      return 'its end';
    };
    const told = await read().catch(({ name }) => name);
    if (told !== 'AbortError') throw new Error(`a request that was ended by '${way}' came to ${told}`);
    found[way] = (await short()) / alone;
  }
  return found;
}

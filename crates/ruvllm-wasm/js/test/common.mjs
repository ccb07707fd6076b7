// What the tests in Node and in Chromium have in common. Arguments: the package, the program `ruvllm`, playwright-core.

import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';

export const [, , folder, ruvllm, playwright] = process.argv;

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
  const args = ['run', '--model', smollm2, '--prompt', PROMPT, '--raw', '--max-tokens', `${N_TOKENS}`, '--temp', '0'];
  const env = { ...process.env, RUVLLM_ISA: 'scalar' };
  const output = execFileSync(ruvllm, [...args, '--threads', '1', '--json'], { env, maxBuffer: 1 << 26 });
  return JSON.parse(output).tokens;
}

/** The body whose answer is compared; the ids of its tokens are told with their log-probabilities. */
export const body = (prompt, n) => ({ prompt, max_tokens: n, temperature: 0, ignore_eos: true, logprobs: 0 });

/** A chat template, which the golden models have none of. */
export const TEMPLATE = '{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:';

// What the tests share. They run in a folder where the packed packages are installed: `cargo xtask npm`.

import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

/** SmolLM2 135M, as a file. */
export const SMOLLM2 = process.env.RUVLLM_TEST_SMOLLM2;
/** A tiny llama with random weights, as a file. */
export const GOLDEN = process.env.RUVLLM_TEST_GOLDEN;

export const user = (content) => [{ role: 'user', content }];

/** Returns a folder that goes when the tests of a file are over. */
export function folder(after) {
  const path = mkdtempSync(join(tmpdir(), 'ruvllm-node-'));
  after(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

/** Returns the sums of the metrics over their labels. */
export async function metrics(engine) {
  const text = await (await engine.fetch('/metrics')).text();
  const sums = {};
  for (const line of text.split('\n')) {
    const [, name, value] = /^([a-z_]+)(?:\{.*\})? (\S+)$/.exec(line) ?? [];
    if (name) sums[name] = (sums[name] ?? 0) + Number(value);
  }
  return sums;
}

/** Milliseconds between two looks at the counters of an engine that computes: a look takes a processor from it. */
const LOOK_MS = 50;

/** Waits until no request waits or runs, and returns the metrics then. */
export async function idle(engine, limitMs = 10_000) {
  const start = performance.now();
  for (;;) {
    const found = await metrics(engine);
    if (found.ruvllm_requests_running + found.ruvllm_requests_waiting === 0) return found;
    if (performance.now() - start > limitMs) throw new Error(`requests still run after ${limitMs} ms`);
    await sleep(LOOK_MS);
  }
}

/** Returns the environment of these tests without anybody's settings of RuvLLM and of the hub, and with `settings`. */
export function environment(settings) {
  const others = Object.entries(process.env).filter(([name]) => !/^(RUVLLM|HF)_/.test(name));
  return { ...Object.fromEntries(others), ...settings };
}

/** Runs a program to its end, and returns how it ended. */
export function run(command, args, options = {}) {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'], ...options });
    let [out, err] = ['', ''];
    child.stdout.on('data', (bytes) => (out += bytes));
    child.stderr.on('data', (bytes) => (err += bytes));
    child.on('error', reject);
    child.on('close', (code, signal) => resolve({ code, signal, out, err }));
  });
}

/** Runs a program's text with Node, as a module. */
export const program = (text, args = []) => run(process.execPath, [...args, '--input-type=module', '-e', text]);

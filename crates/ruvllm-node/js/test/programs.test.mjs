// The programs of the READMEs and the guide, as they stand there, and the command.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { basename, dirname, join } from 'node:path';
import { test } from 'node:test';
import { GOLDEN, run } from './common.mjs';

/** Markdown files whose programs are run, one after the other. */
const PAGES = process.env.RUVLLM_TEST_PAGES.split(':');
const TSC = ['--noEmitOnError', '--strict', '--target', 'es2022', '--types', 'node'];

/** Returns the languages and texts of a page's programs. */
function programs(page) {
  const blocks = readFileSync(page, 'utf8').matchAll(/^```(js|ts)\n(.*?)^```$/gms);
  return [...blocks].map(([, language, text]) => ({ language, text }));
}

async function node(file) {
  const ended = await run(process.execPath, [file]);
  assert.deepEqual([ended.code, ended.signal], [0, null], ended.err + ended.out);
  assert.equal(ended.err, '');
  assert.notEqual(ended.out.trim(), '');
}

for (const page of PAGES) {
  for (const [i, { language, text }] of programs(page).entries()) {
    const name = `${basename(page, '.md')}-${i}`;
    if (language === 'js') {
      const file = `${name}.${text.includes('require(') ? 'cjs' : 'mjs'}`;
      test(`${page}: program ${i + 1}, ${file}`, async () => {
        writeFileSync(file, text);
        await node(file);
      });
      continue;
    }
    // Both kinds of modules, as TypeScript has them.
    for (const ending of ['mts', 'cts']) {
      test(`${page}: program ${i + 1}, ${ending}`, async () => {
        writeFileSync(`${name}.${ending}`, text);
        const tsc = await run(process.execPath, ['node_modules/typescript/bin/tsc', ...TSC, '--module', 'node16', `${name}.${ending}`]);
        assert.equal(tsc.code, 0, tsc.out + tsc.err);
        await node(`${name}.${ending.replace('t', 'j')}`);
      });
    }
  }
}

test('TypeScript refuses what the engine would refuse', async () => {
  const lines = {
    "engine.chat({ messages: 'x' });": /messages|string/,
    'engine.chat({ messages: [], max_tokenz: 3 });': /max_tokenz/,
    "engine.chat({ messages: [], reasoning_effort: 'huge' });": /reasoning_effort|huge/,
    "load('x', { contxt: 1 });": /contxt/,
    "load('x', { ctx: 'many' });": /ctx|string/,
    'engine.embed({});': /input/,
  };
  const text = ["import { load } from '@ruvllm/node';", "const engine = await load('x');", ...Object.keys(lines)].join('\n');
  writeFileSync('refused.mts', text);
  const tsc = await run(process.execPath, ['node_modules/typescript/bin/tsc', '--noEmit', ...TSC, '--module', 'node16', 'refused.mts']);
  for (const [i, pattern] of Object.values(lines).entries()) {
    const found = tsc.out.split('\n').filter((line) => line.startsWith(`refused.mts(${i + 3},`));
    assert.ok(found.length > 0 && found.some((line) => pattern.test(line)), `line ${i + 3}: ${tsc.out}`);
  }
});

test('npx ruvllm is the command', async () => {
  const npx = (...args) => run('npx', ['--no-install', 'ruvllm', ...args]);
  const version = await npx('--version');
  assert.match(version.out, /^ruvllm \d+\.\d+\.\d+\n$/);
  const wrong = await npx('run', '--temp', 'hot');
  assert.deepEqual([wrong.code, wrong.out], [2, '']);
  assert.match(wrong.err, /^error: invalid value 'hot' for '--temp <T>'/m);
});

test('one class for modules and require', async () => {
  writeFileSync('classes.cjs', `
    const { RuvllmError } = require('@ruvllm/node');
    import('@ruvllm/node').then((esm) => console.log(esm.RuvllmError === RuvllmError, Object.keys(esm).length));
  `);
  const ended = await run(process.execPath, ['classes.cjs']);
  assert.equal(ended.out, 'true 14\n', ended.err);
});

test('npx ruvllm ends by the signal that somebody sends it', async () => {
  const command = join(dirname(createRequire(import.meta.url).resolve('ruvllm/package.json')), 'bin/ruvllm.cjs');
  for (const signal of ['SIGINT', 'SIGTERM']) {
    const child = spawn(process.execPath, [command, 'serve', '--model', GOLDEN, '--port', '0'], { stdio: ['ignore', 'pipe', 'pipe'] });
    const ended = new Promise((resolve) => child.on('close', resolve));
    await new Promise((resolve) => [child.stdout, child.stderr].forEach((stream) => stream.on('data', (bytes) => `${bytes}`.includes('http://') && resolve(null))));
    child.kill(signal);
    assert.equal(await ended, 0, signal);
  }
});

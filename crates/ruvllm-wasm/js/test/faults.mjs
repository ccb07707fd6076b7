// What the package says where something of it breaks: a worker that does not start, a thread that does not begin or fails later.

import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

import { folder, goldenModels, soon } from './common.mjs';

const { bytes } = goldenModels()[0];

/** Does something with a copy of the package, some of whose files are changed; `copy` is its folder. */
async function withChanged(changes, use) {
  const copy = mkdtempSync(join(tmpdir(), 'ruvllm-web-'));
  try {
    for (const name of readdirSync(folder)) {
      const path = resolve(folder, name);
      if (name === 'wasm') symlinkSync(path, join(copy, name));
      else writeFileSync(join(copy, name), changes[name]?.(readFileSync(path, 'utf8'), copy) ?? readFileSync(path));
    }
    await use(await import(pathToFileURL(join(copy, 'index.js')).href), copy);
  } finally {
    rmSync(copy, { recursive: true, force: true });
  }
}

/** A thread that does not begin ends the load. */
export async function threadsThatDoNotBegin() {
  const threadWith = (line) => ({ 'thread.js': (text) => `${line}\n${text}` });
  const withoutMemory = threadWith("WebAssembly.instantiate = () => Promise.reject(new RangeError('no memory is left'));");
  await withChanged(withoutMemory, async (web) => {
    await assert.rejects(soon(web.load(bytes, { threads: 2 })), (error) => {
      assert.ok(error instanceof web.LoadError);
      assert.equal(error.message, 'a worker of the engine does not begin: no memory is left');
      return true;
    });
  });
  const mute = threadWith('WebAssembly.instantiate = () => new Promise(() => {});');
  const hasty = (text) => text.replace(/START_MS = [\d_]+/, 'START_MS = 500');
  await withChanged({ ...mute, 'threads.js': hasty }, async (web) => {
    await assert.rejects(soon(web.load(bytes, { threads: 2 })), /does not begin: it takes more than 0\.5 seconds/);
  });
}

/** The clock, which threads look at while they wait, does something once there is a file of this name. */
const onceThereIs = (name, act) => (text, copy) => `import * as fs from 'node:fs';
const now = performance.now.bind(performance);
const write = (name) => fs.writeFileSync(${JSON.stringify(copy)} + '/' + name, '');
performance.now = () => {
  if (fs.existsSync(${JSON.stringify(join(copy, name))})) { ${act} }
  return now();
};
${text}`;

/** A thread that fails ends the engine, also where the engine's worker waits for it and hears nothing. */
export async function threadsThatFail() {
  const changes = {
    'thread.js': onceThereIs('fail', "write('failed'); throw new WebAssembly.RuntimeError('unreachable');"),
    'worker.js': onceThereIs('failed', 'Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);'),
  };
  await withChanged(changes, async (web, copy) => {
    const engine = await web.load(bytes, { threads: 2 });
    assert.equal((await engine.capabilities()).device.threads, 2);
    writeFileSync(join(copy, 'fail'), '');
    const ask = () => engine.complete({ prompt: [1, 2, 3], max_tokens: 200, ignore_eos: true }).result();
    // A thread that sleeps fails with the next work that it is woken for.
    const goOn = async () => {
      for (;;) await ask();
    };
    for (const call of [goOn, ask]) {
      await assert.rejects(soon(call()), (error) => {
        assert.ok(error instanceof web.InternalError, `${error}`);
        assert.equal(error.message, 'the engine has stopped by an internal error: unreachable; load it again');
        return true;
      });
    }
    await engine.dispose();
  });
}

/** A worker that the browser does not start is a model that is not loaded, and a line that says where to look. */
export async function workersThatDoNotStart() {
  class Blocked {
    constructor() {
      setTimeout(() => this.onerror(new Event('error')));
    }
    postMessage() {}
    terminate() {}
  }
  class Foreign {
    constructor() {
      throw new DOMException('it is of another origin', 'SecurityError');
    }
  }
  const web = await import(pathToFileURL(resolve(folder, 'index.js')).href);
  for (const [Worker, line] of [[Blocked, /its script cannot be fetched; look at .* worker-src/], [Foreign, /: it is of another origin$/]]) {
    globalThis.Worker = Worker;
    try {
      await assert.rejects(soon(web.load(bytes)), (error) => error instanceof web.LoadError && line.test(error.message));
    } finally {
      delete globalThis.Worker;
    }
  }
}

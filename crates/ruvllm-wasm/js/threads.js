// The module of an engine, and the workers that compute in it together where they may share memory. Over the GPU it is a module of
// its own: its calls are suspended while they wait, which not every browser can.

import { faultOf } from './fault.js';
import { isNode, nodeModule } from './node.js';

/** The most threads that nobody asked for: more gain little, and the page wants to be quick as well. */
const DEFAULT_MAX = 8;
/** The most threads that can be asked for. */
const MAX = 64;
/** How long workers may take to begin; many of them share few cores at that. */
const START_MS = 60_000;

/** Throws where the backend cannot be had. */
export async function checkBackend(backend) {
  if (backend === undefined || backend === 'native') return;
  if (backend !== 'gpu') throw refused('backend', `'backend' is ${JSON.stringify(backend)}; choose 'native' or 'gpu'`);
  const missing = [
    (await globalThis.navigator?.gpu?.requestAdapter()) ? null : 'a GPU by WebGPU',
    typeof WebAssembly.Suspending === 'function' ? null : 'JavaScript Promise Integration for WebAssembly',
  ].filter((name) => name);
  if (missing.length) throw refused('backend', `backend 'gpu' needs ${missing.join(' and ')}, which is not here; leave 'backend' out`);
}

/**
 * Returns how many threads an engine has: those that were asked for, or half of the machine's, or one where memory cannot be shared
 * or the GPU computes.
 */
export async function threadsOf(wished, backend) {
  const canShare = typeof SharedArrayBuffer === 'function' && (isNode || globalThis.crossOriginIsolated === true);
  if (wished === undefined) {
    if (!canShare || backend === 'gpu') return 1;
    const n = isNode ? (await nodeModule('os')).availableParallelism() : navigator.hardwareConcurrency;
    return Math.max(1, Math.min(DEFAULT_MAX, Math.floor(n / 2)));
  }
  if (!Number.isInteger(wished) || wished < 1 || wished > MAX) throw refused('threads', `'threads' is ${wished}; choose 1 to ${MAX}`);
  if (wished > 1 && backend === 'gpu') throw refused('threads', "backend 'gpu' computes on the GPU; leave 'threads' out");
  if (wished > 1 && !canShare) {
    const headers = 'Cross-Origin-Opener-Policy: same-origin and Cross-Origin-Embedder-Policy: require-corp';
    throw refused('threads', `${wished} threads need a page that is cross-origin isolated (headers ${headers}); leave 'threads' out for one`);
  }
  return wished;
}

/** Makes the error of an option that cannot be. */
function refused(param, message) {
  return Object.assign(new Error(message), { param, code: 'bad_option', status: 400 });
}

/**
 * Starts the module of a backend with this many threads, the caller among them, and returns what it exports. `watch` gets a port for
 * each thread that is started, which tells how it has failed.
 */
export async function startModule(backend, threads, watch) {
  if (backend === 'gpu') {
    const gpu = await import('./wasm/ruvllm_wasm_gpu.js');
    await gpu.default({ module_or_path: new URL('./wasm/ruvllm_wasm_gpu_bg.wasm', import.meta.url) });
    return gpu;
  }
  const isShared = threads > 1;
  const url = isShared
    ? new URL('./wasm/ruvllm_wasm_threads_bg.wasm', import.meta.url)
    : new URL('./wasm/ruvllm_wasm_bg.wasm', import.meta.url);
  const source = isNode ? await (await nodeModule('fs/promises')).readFile(url) : url;
  if (!isShared) {
    const one = await import('./wasm/ruvllm_wasm.js');
    await one.default({ module_or_path: source });
    return one;
  }
  const many = await import('./wasm/ruvllm_wasm_threads.js');
  const module = isNode ? await WebAssembly.compile(source) : await WebAssembly.compileStreaming(fetch(source));
  const { memory } = await many.default({ module_or_path: module });
  await Promise.all(Array.from({ length: threads - 1 }, () => startThread(module, memory, watch)));
  // A worker tells that it begins, and is counted a moment later.
  for (const start = performance.now(); many.threadsMax() < threads; ) {
    if (performance.now() - start > START_MS) throw new Error('the workers of the engine do not begin');
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
  return many;
}

/** Starts a worker that computes in the module; it ends with the worker that started it. */
async function startThread(module, memory, watch) {
  const thread = isNode
    ? new (await nodeModule('worker_threads')).Worker(new URL('./thread.js', import.meta.url))
    : new Worker(new URL('./thread.js', import.meta.url), { type: 'module' });
  const { port1: alarm, port2: watched } = new MessageChannel();
  watch(watched);
  thread.postMessage({ module, memory, alarm }, [alarm]);
  await begun(thread);
  thread.unref?.();
}

/** Waits until a thread has begun. */
async function begun(thread) {
  let timer;
  try {
    await new Promise((resolve, reject) => {
      const failed = (fault) => reject(new Error(`a worker of the engine does not begin: ${faultOf(fault)}`));
      const hear = ({ fault }) => (fault === null ? resolve() : failed(fault));
      if (isNode) thread.once('message', hear).once('error', failed);
      else {
        const onerror = (event) => {
          // Else the engine's worker has failed as well.
          event.preventDefault();
          failed(event);
        };
        Object.assign(thread, { onmessage: ({ data }) => hear(data), onerror });
      }
      timer = setTimeout(failed, START_MS, `it takes more than ${START_MS / 1000} seconds`);
    });
  } finally {
    clearTimeout(timer);
  }
}

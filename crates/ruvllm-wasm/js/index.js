// RuvLLM in the browser: the engine runs in a worker; this is the page's side. The interface is that of `@ruvllm/node`.

import { errorOf, errorOfApi } from './errors.js';
import { respond } from './fetch.js';
import { Stream } from './stream.js';
import { VERSION } from './version.js';

export * from './errors.js';
export { cachedModels, removeCached } from './cache.js';

/** The version of the package, which is that of the engine in it. */
export const version = VERSION;

/** Options of `load`, and where they go. */
const OF_ENGINE = ['name', 'ctx', 'threads', 'parallel', 'chatTemplate', 'learn'];
const OF_PAGE = ['signal', 'onProgress', 'cache', 'sha256', 'headers'];

/** Starts a worker: the browser's, or Node's. */
async function startWorker() {
  if (typeof Worker === 'function') return new Worker(new URL('./worker.js', import.meta.url), { type: 'module' });
  const { Worker: NodeWorker } = await import('node:worker_threads');
  const worker = new NodeWorker(new URL('./worker.js', import.meta.url));
  // The program may end while an engine is idle.
  worker.unref();
  const listen = (name, hear) => worker.on(name, name === 'message' ? (data) => hear({ data }) : hear);
  return {
    postMessage: (message, transfer) => worker.postMessage(message, transfer),
    terminate: () => worker.terminate(),
    set onmessage(hear) { listen('message', hear); },
    set onerror(hear) { listen('error', hear); },
    ref: () => worker.ref(),
    unref: () => worker.unref(),
  };
}

/** Returns what a worker is to read: a URL, or bytes. */
function sourceOf(model) {
  if (typeof model === 'string' || model instanceof URL) return { url: new URL(model, globalThis.location?.href).href };
  if (model instanceof Blob) return { blob: model };
  if (model instanceof ArrayBuffer || ArrayBuffer.isView(model)) return { blob: new Blob([model]) };
  const line = 'the model is no URL, File or bytes; give one of these';
  throw errorOf('usage', line, { param: 'model' });
}

/** Loads a model and returns its engine. */
export async function load(model, options = {}) {
  const { signal, onProgress, cache = true, sha256 = null, headers = {} } = options;
  const known = [...OF_ENGINE, ...OF_PAGE];
  const unknown = Object.keys(options).find((name) => !known.includes(name));
  if (unknown !== undefined) {
    throw errorOf('usage', `'${unknown}' is no option of load; there are ${known.join(', ')}`, { param: unknown });
  }
  let source;
  try {
    source = sourceOf(model);
  } catch (error) {
    throw error.kind ? error : errorOf('usage', `'${model}' is no URL: ${error.message}`, { param: 'model' });
  }
  signal?.throwIfAborted();
  const engine = new Engine(await startWorker());
  const stop = () => engine.dispose();
  signal?.addEventListener('abort', stop);
  try {
    const of = Object.fromEntries(OF_ENGINE.filter((name) => options[name] !== undefined).map((name) => [name, options[name]]));
    of.name ??= source.url ? nameOf(source.url) : model.name?.replace(/\.gguf$/i, '');
    await engine.open({ source, options: of, cache, sha256, headers }, onProgress);
    return engine;
  } catch (error) {
    await engine.dispose();
    signal?.throwIfAborted();
    throw error;
  } finally {
    signal?.removeEventListener('abort', stop);
  }
}

/** Returns the name of a file at a URL, without its ending. */
function nameOf(url) {
  const last = decodeURIComponent(new URL(url).pathname.split('/').pop() ?? '').replace(/\.gguf$/i, '');
  return last || undefined;
}

/** A loaded model that answers requests. `load` makes it. */
export class Engine {
  #worker;
  #calls = new Map();
  #n = 0;
  #model = '';
  #ended = null;

  constructor(worker) {
    this.#worker = worker;
    worker.onmessage = ({ data }) => this.#hear(data);
    worker.onerror = (event) => {
      event.preventDefault?.();
      this.#end(errorOf('internal', `the engine has stopped by an internal error: ${event.message ?? event}; load it again`));
    };
    this.fetch = (input, init) => respond(this, input, init);
  }

  /** Has the worker load a model. */
  async open(what, onProgress) {
    const { model } = await this.#ask('open', what, { onProgress });
    this.#model = model;
  }

  get model() {
    return this.#model;
  }

  chat(body, options) {
    return this.#stream('chat', body, options);
  }

  complete(body, options) {
    return this.#stream('complete', body, options);
  }

  embed(body, options) {
    return this.#ask('embed', text(body), options);
  }

  tokenize(body, options) {
    return this.#ask('tokenize', text(body), options);
  }

  detokenize(body, options) {
    return this.#ask('detokenize', text(body), options);
  }

  feedback(body, options) {
    return this.#ask('feedback', text(body), options);
  }

  remember(body, options) {
    return this.#ask('remember', text(body), options);
  }

  learning(options) {
    return this.#ask('learning', '', options);
  }

  async forget(options) {
    await this.#ask('forget', '', options);
  }

  exportLearned() {
    return this.#ask('exportLearned');
  }

  importLearned(bytes) {
    return this.#ask('importLearned', bytes);
  }

  async capabilities() {
    const isolated = globalThis.crossOriginIsolated === true;
    return { ...(await this.#ask('capabilities', '')), cross_origin_isolated: isolated };
  }

  async dispose() {
    this.#end(errorOf('disposed', 'the engine was disposed; load the model again'));
  }

  [Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose')]() {
    return this.dispose();
  }

  /** Starts a call whose answer comes in chunks. */
  #stream(op, body, { signal } = {}) {
    const id = ++this.#n;
    const stream = new Stream(() => this.#cancel(id));
    this.#call(id, op, text(body), signal, {
      chunks: (chunks) => stream.push(chunks),
      resolve: (result) => stream.finish(result),
      reject: (error) => stream.stop(error),
    });
    return stream;
  }

  /** Makes a call with one answer. */
  #ask(op, body, { signal, onProgress } = {}) {
    return new Promise((resolve, reject) => this.#call(++this.#n, op, body, signal, { resolve, reject, onProgress }));
  }

  #call(id, op, body, signal, call) {
    if (this.#ended) return call.reject(this.#ended);
    if (signal?.aborted) return call.reject(signal.reason);
    const abort = () => {
      this.#cancel(id);
      call.reject(signal.reason);
    };
    signal?.addEventListener('abort', abort, { once: true });
    this.#calls.set(id, { ...call, leave: () => signal?.removeEventListener('abort', abort) });
    this.#worker.ref?.();
    this.#worker.postMessage({ id, op, body });
  }

  /** Takes a call from the engine; nothing comes of it any more. */
  #cancel(id) {
    if (!this.#leave(id)) return;
    this.#worker.postMessage({ id, op: 'cancel' });
  }

  #leave(id) {
    const call = this.#calls.get(id);
    if (!call) return null;
    call.leave();
    this.#calls.delete(id);
    if (this.#calls.size === 0) this.#worker.unref?.();
    return call;
  }

  #hear({ id, chunks, progress, result, error, fatal }) {
    const call = this.#calls.get(id);
    if (fatal) return this.#end(errorOfApi(fatal));
    if (!call) return;
    if (progress) call.onProgress?.(progress);
    if (chunks) call.chunks?.(chunks);
    if (error !== undefined) this.#leave(id).reject(errorOfApi(error));
    else if (result !== undefined) this.#leave(id).resolve(result);
  }

  /** Ends the worker and with it its memory; what runs fails with this error. */
  #end(error) {
    if (this.#ended) return;
    this.#ended = error;
    this.#worker.terminate();
    for (const id of [...this.#calls.keys()]) this.#leave(id).reject(error);
  }
}

/** Returns a body as text. */
function text(body) {
  if (typeof body !== 'object' || body === null) {
    throw errorOf('usage', `the body is ${body === null ? 'null' : typeof body}; give an object`);
  }
  return JSON.stringify(body);
}

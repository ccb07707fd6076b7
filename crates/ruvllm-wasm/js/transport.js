// The way from the page to its worker, as the client of `@ruvllm/node` has one to the addon: requests as they stand in the HTTP API.

import { DisposedError, LoadError, ofBody, UnsupportedError, UsageError } from './errors.js';
import { isUnfetched, stopped, unstarted } from './fault.js';
import { nodeModule } from './node.js';

/** What the worker does, by method and path. */
const CALLS = {
  'POST /v1/chat/completions': 'chat',
  'POST /v1/completions': 'complete',
  'POST /v1/embeddings': 'embed',
  'POST /v1/feedback': 'feedback',
  'POST /v1/memory': 'remember',
  'DELETE /v1/memory': 'forget',
  'GET /v1/learning': 'learning',
  'GET /v1/capabilities': 'capabilities',
  'GET /v1/models': 'models',
  'POST /tokenize': 'tokenize',
  'POST /detokenize': 'detokenize',
};

const encoder = new TextEncoder();
const bytesOf = (value) => encoder.encode(JSON.stringify(value));

/** A call on its way: the head of its answer, then bytes. */
class Call {
  #head = Promise.withResolvers?.() ?? withResolvers();
  #bytes = [];
  #reader = null;
  #state = 'begun';

  /**
   * @param {boolean} isStream whether the answer is events
   * @param {() => void} leave takes the call from the worker
   */
  constructor(isStream, leave) {
    this.isStream = isStream;
    this.leave = leave;
  }

  head() {
    return this.#head.promise;
  }

  next() {
    if (this.#bytes.length > 0) return Promise.resolve(this.#bytes.shift());
    if (this.#state === 'over') return Promise.resolve(null);
    return new Promise((resolve) => {
      this.#reader = resolve;
    });
  }

  cancel() {
    if (this.#state === 'over') return;
    this.leave();
    this.#bytes.length = 0;
    this.end();
  }

  /** Takes what the worker says of it. */
  hear({ chunks = [], result, error }) {
    if (error !== undefined) return this.#fail(error);
    if (!this.isStream) {
      if (result === undefined) return;
      this.#begin(200, 'application/json');
      this.#give(bytesOf(result));
      return this.end();
    }
    if (chunks.length > 0) {
      this.#begin(200, 'text/event-stream; charset=utf-8');
      this.#give(encoder.encode(chunks.map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`).join('')));
    }
    if (result === undefined) return;
    this.#give(encoder.encode('data: [DONE]\n\n'));
    this.end();
  }

  /** Ends it; one that has not begun was cancelled. */
  end() {
    if (this.#state === 'over') return;
    this.#state = 'over';
    this.#head.resolve(null);
    this.#reader?.(null);
    this.#reader = null;
  }

  #begin(status, type, more = []) {
    if (this.#state !== 'begun') return;
    this.#state = 'told';
    this.#head.resolve({ status, headers: [['content-type', type], ...more] });
  }

  #fail({ status, retry_after: seconds, ...error }) {
    const body = { error };
    if (this.#state === 'told') this.#give(encoder.encode(`data: ${JSON.stringify(body)}\n\n`));
    else {
      this.#begin(status || 500, 'application/json', seconds ? [['retry-after', `${seconds}`]] : []);
      this.#give(bytesOf(body));
    }
    this.end();
  }

  #give(bytes) {
    if (this.#reader) {
      this.#reader(bytes);
      this.#reader = null;
    } else this.#bytes.push(bytes);
  }
}

function withResolvers() {
  const made = {};
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
  return made;
}

/** Starts a worker: the browser's, or Node's. */
async function startWorker() {
  if (typeof Worker === 'function') return new Worker(new URL('./worker.js', import.meta.url), { type: 'module' });
  const { Worker: NodeWorker } = await nodeModule('worker_threads');
  // Written in one expression, bundlers would copy the file once more.
  const name = './worker.js';
  const worker = new NodeWorker(new URL(name, import.meta.url));
  // The program may end while an engine is idle.
  worker.unref();
  return {
    postMessage: (message) => worker.postMessage(message),
    terminate: () => worker.terminate(),
    set onmessage(hear) {
      worker.on('message', (data) => hear({ data }));
    },
    set onerror(hear) {
      worker.on('error', hear);
    },
    ref: () => worker.ref(),
    unref: () => worker.unref(),
  };
}

/**
 * The worker of an engine.
 *
 * @implements {import('./client.js').Transport}
 */
export class WorkerTransport {
  #worker;
  #calls = new Map();
  #n = 0;
  /** Why nothing is answered any more. */
  #broken = null;

  static async start() {
    try {
      return new WorkerTransport(await startWorker());
    } catch (error) {
      throw new LoadError(unstarted(error).message);
    }
  }

  constructor(worker) {
    this.#worker = worker;
    worker.onmessage = ({ data }) => this.#hear(data);
    worker.onerror = (event) => {
      event.preventDefault?.();
      this.#end(isUnfetched(event) ? unstarted(event) : stopped(event));
    };
  }

  open({ method, path, body }) {
    const op = CALLS[`${method} ${path.split('?')[0]}`];
    const text = body === undefined ? '' : new TextDecoder().decode(body);
    const id = ++this.#n;
    const call = new Call(isStream(op, text), () => this.#send(id, 'cancel'));
    if (this.#broken) call.hear({ error: this.#broken });
    else if (op) this.#send(id, op, text, (told) => call.hear(told), () => call.end());
    else {
      const message = `there is no ${method} ${path} in a page; /v1/capabilities lists what there is`;
      call.hear({ error: { message, type: 'invalid_request_error', param: null, code: null, status: 404 } });
    }
    return call;
  }

  /** Has the worker load a model; returns the name that it answers by. */
  async load(what, { onProgress, onUncached }) {
    const hear = ({ progress, uncached }) => (progress ? onProgress?.(progress) : onUncached?.(uncached));
    return (await this.#ask('open', what, hear)).model;
  }

  exportLearned() {
    return this.#ask('exportLearned');
  }

  async importLearned(bytes, trust) {
    if (trust?.length > 0) {
      const message = "nothing is signed in a page, so that 'trust' can hold for nothing; leave it out";
      throw new UnsupportedError(message, { param: 'trust', code: 'unsupported', status: 400 });
    }
    await this.#ask('importLearned', bytes);
  }

  async facts() {
    return { runtime: 'web', cross_origin_isolated: globalThis.crossOriginIsolated === true };
  }

  async dispose() {
    this.#end(null);
  }

  /** Makes a call with one answer, and fails with an error of a class. What is told before that goes to `hearMore`. */
  #ask(op, body, hearMore) {
    return new Promise((resolve, reject) => {
      if (this.#broken) return reject(errorOf(this.#broken));
      const hear = ({ result, error, ...more }) => {
        if (error !== undefined) reject(errorOf(error));
        else if (result !== undefined) resolve(result);
        else hearMore?.(more);
      };
      return this.#send(++this.#n, op, body, hear, () => reject(new DisposedError()));
    });
  }

  #send(id, op, body, hear, end) {
    if (hear) this.#calls.set(id, { hear, end });
    else this.#calls.delete(id);
    this.#count();
    if (!this.#broken) this.#worker.postMessage({ id, op, body });
  }

  #hear({ id, fatal, alarm, ...told }) {
    if (fatal) return this.#end(fatal);
    if (alarm) return this.#watch(alarm);
    const call = this.#calls.get(id);
    if (told.error !== undefined || told.result !== undefined) {
      this.#calls.delete(id);
      this.#count();
    }
    return call?.hear(told);
  }

  /** Hears by a port of a thread that has failed: the worker may wait for it, and then tells nothing. */
  #watch(alarm) {
    alarm.onmessage = ({ data }) => this.#end(stopped(data));
    alarm.unref?.();
  }

  /** A program waits for calls, not for an engine. */
  #count() {
    if (this.#calls.size > 0) this.#worker.ref?.();
    else this.#worker.unref?.();
  }

  /** Ends the worker and with it its memory. What runs fails, or ends if nothing has broken. */
  #end(error) {
    if (this.#broken) return;
    this.#broken = error ?? { kind: 'disposed', message: 'the engine was disposed', status: 503 };
    this.#worker.terminate();
    for (const call of [...this.#calls.values()]) {
      if (error) call.hear({ error });
      else call.end();
    }
    this.#calls.clear();
  }
}

/** Returns whether a request's answer is events. */
function isStream(op, text) {
  if (op !== 'chat' && op !== 'complete') return false;
  try {
    return JSON.parse(text)?.stream === true;
  } catch {
    return false;
  }
}

/** Makes an error of what the worker says of a call that is none of the API's. */
function errorOf({ kind, status = 0, ...error }) {
  const { message, param = null, code = null } = error;
  if (kind === 'usage') return new UsageError(message, { param });
  if (kind === 'load') return new LoadError(message, { param, code, status });
  if (kind === 'disposed') return new DisposedError();
  return ofBody({ error }, { status: status || 500 });
}

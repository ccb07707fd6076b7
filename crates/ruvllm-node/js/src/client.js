// The engine as programs see it, over a transport that takes requests as they stand in the HTTP API. Shared with the browser's
// package, which has another transport.

import { onAbort } from './abort.js';
import { DisposedError, InvalidRequestError, ofBody } from './errors.js';
import { ChatAnswer, CompletionAnswer, events, Stream, WholeAnswer } from './stream.js';

/**
 * The way to an engine.
 *
 * @typedef {object} Transport
 * @property {(request: TransportRequest) => TransportCall} open makes a call, which `head` begins
 * @property {() => Promise<void>} dispose ends what runs and frees the engine
 * @property {() => Promise<Uint8Array>} exportLearned
 * @property {(file: Uint8Array, trust: string[]) => Promise<void>} importLearned
 * @property {() => Promise<object>} facts what `capabilities` tells in addition to the server
 *
 * @typedef {object} TransportRequest
 * @property {string} method
 * @property {string} path with the query
 * @property {string[][]} headers
 * @property {Uint8Array} [body]
 *
 * @typedef {object} TransportCall
 * @property {() => Promise<{ status: number, headers: string[][] } | null>} head null if it was cancelled
 * @property {() => Promise<Uint8Array | null>} next bytes of the answer; null at the end, and if it was cancelled
 * @property {() => void} cancel ends the request
 *
 * @typedef {import('../api.js').CallOptions} CallOptions
 * @typedef {import('../api.js').Engine} EngineApi
 */

/**
 * A loaded model.
 *
 * @implements {EngineApi}
 */
export class Engine {
  #transport;
  #disposing = null;

  /**
   * @param {Transport} transport
   * @param {string} model name of the model in answers
   */
  constructor(transport, model) {
    this.#transport = transport;
    this.model = model;
    /** @type {(input: string | URL | Request, init?: RequestInit) => Promise<Response>} */
    this.fetch = (input, init) => this.#fetch(input, init);
  }

  /**
   * @param {any} body
   * @param {CallOptions} [options]
   */
  chat(body, options) {
    return this.#stream('/v1/chat/completions', body, new ChatAnswer(body), options?.signal);
  }

  /**
   * @param {any} body
   * @param {CallOptions} [options]
   */
  complete(body, options) {
    // These are told when all is there.
    const isWhole = (body?.best_of ?? 1) > 1 || (body?.echo === true && typeof body?.logprobs === 'number');
    const path = '/v1/completions';
    if (!isWhole) return this.#stream(path, body, new CompletionAnswer(body), options?.signal);
    const one = async function* (engine, signal) {
      yield await engine.#json('POST', path, { ...body, stream: false }, signal);
    };
    return new Stream((signal) => one(this, signal), new WholeAnswer(), options?.signal);
  }

  /**
   * @param {any} body
   * @param {CallOptions} [options]
   */
  embed(body, options) {
    return this.#json('POST', '/v1/embeddings', body, options?.signal);
  }

  /**
   * @param {any} body
   * @param {CallOptions} [options]
   */
  tokenize(body, options) {
    return this.#json('POST', '/tokenize', body, options?.signal);
  }

  /**
   * @param {any} body
   * @param {CallOptions} [options]
   */
  detokenize(body, options) {
    return this.#json('POST', '/detokenize', body, options?.signal);
  }

  /**
   * @param {any} body
   * @param {CallOptions} [options]
   */
  feedback(body, options) {
    return this.#json('POST', '/v1/feedback', body, options?.signal);
  }

  /**
   * @param {any} body
   * @param {CallOptions} [options]
   */
  remember(body, options) {
    return this.#json('POST', '/v1/memory', body, options?.signal);
  }

  /** @param {CallOptions} [options] */
  learning(options) {
    return this.#json('GET', '/v1/learning', undefined, options?.signal);
  }

  /** @param {CallOptions} [options] */
  async forget(options) {
    await this.#json('DELETE', '/v1/memory', undefined, options?.signal);
  }

  async exportLearned() {
    this.#check();
    return this.#unlessDisposed(this.#transport.exportLearned());
  }

  async importLearned(bytes, { trust = [] } = {}) {
    this.#check();
    if (!(bytes instanceof Uint8Array)) {
      throw new InvalidRequestError('importLearned takes the bytes that exportLearned returned, as a Uint8Array');
    }
    if (!Array.isArray(trust) || trust.some((key) => typeof key !== 'string')) {
      throw new InvalidRequestError("'trust' takes a list of public keys, as capabilities() tells them", { param: 'trust' });
    }
    await this.#unlessDisposed(this.#transport.importLearned(bytes, trust));
    return this.learning();
  }

  async capabilities() {
    const told = await this.#json('GET', '/v1/capabilities');
    this.#check();
    return { ...told, ...(await this.#unlessDisposed(this.#transport.facts())) };
  }

  dispose() {
    if (this.#disposing) return this.#disposing;
    this.#disposing = this.#transport.dispose();
    // What the engine held is free as soon as its last call has ended.
    this.#transport = null;
    return this.#disposing;
  }

  [Symbol.asyncDispose]() {
    return this.dispose();
  }

  #check() {
    if (this.#disposing) throw new DisposedError();
  }

  #stream(path, body, reducer, signal) {
    const start = async function* (engine, signal) {
      const stream_options = { ...body?.stream_options, include_usage: true };
      const asked = isObject(body) ? { ...body, stream: true, stream_options } : body;
      const call = await engine.#open('POST', path, asked, signal);
      yield* engine.#told(events(bytesOf(call)));
    };
    return new Stream((signal) => start(this, signal), reducer, signal);
  }

  /** Waits for what fails otherwise where the engine is disposed meanwhile. */
  async #unlessDisposed(promise) {
    try {
      return await promise;
    } catch (error) {
      throw this.#disposing ? new DisposedError() : error;
    }
  }

  /** Passes chunks on; what ends because the engine was disposed says so. */
  async *#told(chunks) {
    try {
      yield* chunks;
    } catch (error) {
      throw this.#disposing ? new DisposedError('the engine was disposed while it answered') : error;
    }
  }

  /** Sends a request and returns its answer of one value. */
  async #json(method, path, body, signal) {
    const call = await this.#open(method, path, body, signal);
    return JSON.parse(await textOf(call));
  }

  /**
   * Begins a request, and returns it once its answer has begun well.
   *
   * @param {string} method
   * @param {string} path
   * @param {unknown} body
   * @param {AbortSignal} [signal]
   */
  async #open(method, path, body, signal) {
    const headers = body === undefined ? [] : [['content-type', 'application/json']];
    const bytes = body === undefined ? undefined : bytesOfJson(body);
    const { head, call } = await this.#begin({ method, path, headers, body: bytes }, signal);
    if (head.status < 400) return call;
    const retryAfter = head.headers.find(([name]) => name === 'retry-after')?.[1];
    const text = await textOf(call);
    this.#check();
    throw ofBody(parsed(text), { status: head.status, retryAfter });
  }

  /**
   * Begins a request, and returns the head of its answer and what gives the rest.
   *
   * @param {TransportRequest} request
   * @param {AbortSignal} [signal]
   */
  async #begin(request, signal) {
    this.#check();
    signal?.throwIfAborted();
    const call = this.#transport.open(request);
    const end = onAbort(signal, () => call.cancel());
    try {
      const head = await call.head();
      if (signal?.aborted) call.cancel();
      signal?.throwIfAborted();
      if (head === null) throw new DisposedError();
      return { head, call: withEnd(call, end, signal) };
    } catch (error) {
      end();
      throw error;
    }
  }

  async #fetch(input, init) {
    this.#check();
    const isPath = typeof input === 'string' && input.startsWith('/');
    const request = new Request(isPath ? `http://ruvllm${input}` : input, init);
    const { method } = request;
    // The signal of a request that was made here ends nothing once the collector has taken the request.
    const given = init?.signal !== undefined ? init.signal : input instanceof Request ? input.signal : null;
    const signal = given ?? undefined;
    const url = new URL(request.url);
    const body = request.body === null ? undefined : new Uint8Array(await request.arrayBuffer());
    const asked = { method, path: url.pathname + url.search, headers: [...request.headers], body };
    const { head, call } = await this.#begin(asked, signal);
    const hasBody = ![204, 205, 304].includes(head.status) && method !== 'HEAD';
    if (!hasBody) call.cancel();
    const headers = new Headers(/** @type {[string, string][]} */ (head.headers));
    return new Response(hasBody ? readable(call, input) : null, { status: head.status, headers });
  }
}

function isObject(value) {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function bytesOfJson(body) {
  let text;
  try {
    text = JSON.stringify(body);
  } catch (error) {
    throw new InvalidRequestError(`the body is no JSON: ${error.message.split('\n')[0]}`, { status: 400 });
  }
  return new TextEncoder().encode(text);
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return { error: { message: text } };
  }
}

/** Returns a call that does something when its last bytes were read, and fails where its signal has ended it. */
function withEnd(call, end, signal) {
  return {
    next: async () => {
      const bytes = await call.next();
      if (bytes !== null) return bytes;
      end();
      signal?.throwIfAborted();
      return null;
    },
    cancel: () => {
      end();
      call.cancel();
    },
  };
}

/** Iterates over the bytes of a call; leaving the loop ends the request. */
async function* bytesOf(call) {
  try {
    for (let bytes = await call.next(); bytes !== null; bytes = await call.next()) yield bytes;
  } finally {
    call.cancel();
  }
}

async function textOf(call) {
  const decoder = new TextDecoder();
  let text = '';
  for (let bytes = await call.next(); bytes !== null; bytes = await call.next()) text += decoder.decode(bytes, { stream: true });
  return text + decoder.decode();
}

/** Returns a body of a call. It holds the caller's request, whose signal ends the call only as long as somebody has it. */
function readable(call, request) {
  return new ReadableStream(/** @type {UnderlyingDefaultSource & { request: unknown }} */ ({
    request,
    async pull(controller) {
      const bytes = await call.next();
      if (bytes === null) controller.close();
      else controller.enqueue(bytes);
    },
    cancel: () => call.cancel(),
  }));
}

// An answer that is being written: chunks for those who iterate, and the whole answer made of them. Shared with the browser's
// package.

import { onAbort } from './abort.js';
import { InternalError, ofBody } from './errors.js';

/**
 * @template Chunk, Result
 * @typedef {import('../api.js').Stream<Chunk, Result>} StreamApi
 */

/**
 * Reads server-sent events.
 *
 * @param {AsyncIterable<Uint8Array>} bytes
 * @returns {AsyncGenerator<any>} the data of each event up to `[DONE]`
 */
export async function* events(bytes) {
  const decoder = new TextDecoder();
  let rest = '';
  for await (const piece of bytes) {
    rest += decoder.decode(piece, { stream: true });
    for (let end = rest.indexOf('\n\n'); end >= 0; end = rest.indexOf('\n\n')) {
      const event = rest.slice(0, end);
      rest = rest.slice(end + 2);
      // Others are comments, which keep a connection alive.
      if (!event.startsWith('data: ')) continue;
      const data = event.slice('data: '.length);
      if (data === '[DONE]') return;
      const value = JSON.parse(data);
      if (value.error) throw ofBody(value);
      yield value;
    }
  }
  throw new InternalError('the answer broke off before its end');
}

/**
 * An answer that is being written.
 *
 * @template Chunk, Result
 * @implements {StreamApi<Chunk, Result>}
 */
export class Stream {
  #queue = [];
  #readers = [];
  #state = 'open';
  #error;
  #controller;
  #result;
  #isIterated = false;

  /**
   * @param {(signal: AbortSignal) => AsyncIterable<Chunk>} start begins the request
   * @param {{ push(chunk: Chunk): Chunk | null, result(): Result, text(result: Result): string }} reducer makes the whole answer
   * @param {AbortSignal} [signal] of the caller
   */
  constructor(start, reducer, signal) {
    this.#controller = new AbortController();
    this.reducer = reducer;
    const abort = () => this.#controller.abort(signal?.reason);
    if (signal?.aborted) abort();
    const end = onAbort(signal, abort);
    this.#result = this.#pump(start).finally(end);
    // A failure is told to those who await something.
    this.#result.catch(() => {});
  }

  async #pump(start) {
    try {
      for await (const chunk of start(this.#controller.signal)) {
        const given = this.reducer.push(chunk);
        if (given !== null) this.#give(given);
      }
      this.#controller.signal.throwIfAborted();
      this.#end('over');
    } catch (error) {
      // An answer that was ended from outside fails for that reason, whatever else it says.
      this.#error = this.#controller.signal.aborted ? this.#controller.signal.reason : error;
      this.#end('failed');
      throw this.#error;
    }
    return this.reducer.result();
  }

  #give(chunk) {
    const reader = this.#readers.shift();
    if (reader) reader.resolve({ value: chunk, done: false });
    else this.#queue.push(chunk);
  }

  #end(state) {
    this.#state = state;
    for (const reader of this.#readers.splice(0)) {
      if (state === 'failed') reader.reject(this.#error);
      else reader.resolve({ value: undefined, done: true });
    }
  }

  #next() {
    if (this.#queue.length > 0) return Promise.resolve({ value: this.#queue.shift(), done: false });
    if (this.#state === 'over') return Promise.resolve({ value: undefined, done: true });
    if (this.#state === 'failed') return Promise.reject(this.#error);
    return new Promise((resolve, reject) => this.#readers.push({ resolve, reject }));
  }

  [Symbol.asyncIterator]() {
    if (this.#isIterated) throw new TypeError('the chunks of an answer can be read once; use result() for the whole');
    this.#isIterated = true;
    return {
      next: () => this.#next(),
      return: async () => {
        this.abort();
        this.#queue.length = 0;
        return { value: undefined, done: true };
      },
      [Symbol.asyncIterator]() {
        return this;
      },
    };
  }

  /** @returns {Promise<Result>} */
  result() {
    return this.#result;
  }

  /** @returns {Promise<string>} */
  async text() {
    return this.reducer.text(await this.#result);
  }

  abort() {
    if (this.#state === 'open') this.#controller.abort();
  }
}

/** What both kinds of answers have: choices by their index, counts and times. */
class Answer {
  constructor(body, object) {
    this.isUsageAsked = body?.stream_options?.include_usage === true;
    this.object = object;
    this.choices = [];
    this.head = null;
    this.last = null;
    this.usage = null;
  }

  /**
   * Returns a choice of which nothing is known.
   *
   * @param {number} _index
   * @returns {any}
   */
  begin(_index) {
    throw new TypeError('a kind of answer says how a choice begins');
  }

  /**
   * Adds a chunk's choice to what is known of it.
   *
   * @param {any} _into
   * @param {any} _choice
   */
  add(_into, _choice) {
    throw new TypeError('a kind of answer says how a choice goes on');
  }

  /** Takes a chunk, and returns what of it the caller has asked for. */
  push(chunk) {
    this.head ??= chunk;
    for (const choice of chunk.choices) {
      this.add((this.choices[choice.index] ??= this.begin(choice.index)), choice);
      if (choice.finish_reason) this.choices[choice.index].finish_reason = choice.finish_reason;
      if (choice.finish_reason && choice.index === 0) this.last = chunk;
    }
    if (chunk.usage) this.usage = chunk.usage;
    if (this.isUsageAsked) return chunk;
    delete chunk.usage;
    return chunk.choices.length > 0 ? chunk : null;
  }

  result() {
    const { id, created, model, system_fingerprint } = this.head;
    const answer = { id, object: this.object, created, model, system_fingerprint, choices: this.choices, usage: this.usage };
    if (this.last?.timings) answer.timings = this.last.timings;
    if (this.last?.__verbose) answer.__verbose = this.last.__verbose;
    return answer;
  }
}

/** Makes a chat completion of its chunks. */
export class ChatAnswer extends Answer {
  constructor(body) {
    super(body, 'chat.completion');
    this.hasTools = Array.isArray(body?.tools) && body.tools.length > 0 && body.tool_choice !== 'none';
  }

  begin(index) {
    return { index, message: { role: 'assistant', content: '', refusal: null }, logprobs: null, finish_reason: null };
  }

  add(into, { delta, logprobs }) {
    const { message } = into;
    if (delta.content) message.content += delta.content;
    if (delta.reasoning_content) message.reasoning_content = (message.reasoning_content ?? '') + delta.reasoning_content;
    for (const { index, id, function: called } of delta.tool_calls ?? []) {
      const calls = (message.tool_calls ??= []);
      calls[index] ??= { id, type: 'function', function: { name: called.name, arguments: '' } };
      calls[index].function.arguments += called.arguments ?? '';
    }
    if (!logprobs) return;
    if (into.logprobs) into.logprobs.content.push(...logprobs.content);
    else into.logprobs = { ...logprobs, content: [...logprobs.content] };
  }

  result() {
    for (const { message } of this.choices) {
      if (message.content === '' && (this.hasTools || message.tool_calls)) message.content = null;
    }
    return super.result();
  }

  text(result) {
    return result.choices[0].message.content ?? '';
  }
}

/** Makes a completion of its chunks. */
export class CompletionAnswer extends Answer {
  constructor(body) {
    super(body, 'text_completion');
  }

  begin(index) {
    return { index, text: '', logprobs: null, finish_reason: null };
  }

  add(into, { text, logprobs }) {
    into.text += text;
    if (!logprobs) return;
    into.logprobs ??= {};
    for (const [name, values] of Object.entries(logprobs)) {
      into.logprobs[name] = Array.isArray(values) ? [...(into.logprobs[name] ?? []), ...values] : values;
    }
  }

  text(result) {
    return result.choices[0].text;
  }
}

/** Takes an answer that comes in one piece, which is its own only chunk. */
export class WholeAnswer {
  push(answer) {
    this.answer = answer;
    return answer;
  }

  result() {
    return this.answer;
  }

  text(result) {
    return result.choices[0].text ?? result.choices[0].message.content ?? '';
  }
}

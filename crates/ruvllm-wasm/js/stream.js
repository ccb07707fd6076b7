// An answer on its way.

/** Chunks of an answer, and at the end all of it. The request runs from the moment that this is made. */
export class Stream {
  #chunks = [];
  #readers = [];
  #end = null;
  #done;
  #settle;
  #cancel;

  /** `cancel` takes the request from the engine. */
  constructor(cancel) {
    this.#cancel = cancel;
    this.#done = new Promise((resolve, reject) => {
      this.#settle = { resolve, reject };
    });
    // Whoever awaits the iteration hears of a failure there.
    this.#done.catch(() => {});
  }

  /** Adds chunks. */
  push(chunks) {
    for (const chunk of chunks) {
      const reader = this.#readers.shift();
      if (reader) reader.resolve({ value: chunk, done: false });
      else this.#chunks.push(chunk);
    }
  }

  /** Ends it with the whole answer. */
  finish(result) {
    if (this.#end) return;
    this.#end = { result };
    this.#settle.resolve(result);
    this.#readers.splice(0).forEach((reader) => reader.resolve({ value: undefined, done: true }));
  }

  /** Ends it with an error. */
  fail(error) {
    if (this.#end) return;
    this.#end = { error };
    this.#settle.reject(error);
    this.#readers.splice(0).forEach((reader) => reader.reject(error));
  }

  /** Ends the request for this reason. */
  stop(reason) {
    if (this.#end) return;
    this.#cancel();
    this.fail(reason);
  }

  abort() {
    this.stop(new DOMException('the request was aborted', 'AbortError'));
  }

  result() {
    return this.#done;
  }

  async text() {
    const { choices } = await this.#done;
    return choices[0]?.message?.content ?? choices[0]?.text ?? '';
  }

  #next() {
    if (this.#chunks.length) return Promise.resolve({ value: this.#chunks.shift(), done: false });
    if (this.#end?.error) return Promise.reject(this.#end.error);
    if (this.#end) return Promise.resolve({ value: undefined, done: true });
    return new Promise((resolve, reject) => this.#readers.push({ resolve, reject }));
  }

  [Symbol.asyncIterator]() {
    return {
      next: () => this.#next(),
      return: async (value) => {
        // Somebody has left the loop.
        this.abort();
        return { value, done: true };
      },
      [Symbol.asyncIterator]() {
        return this;
      },
    };
  }
}

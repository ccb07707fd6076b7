// A host of one file, which answers as hosts of models do, well and badly: the tests choose how.

import { gzipSync } from 'node:zlib';

/** How a host answers when nothing is chosen. */
const DEFAULTS = {
  status: 200,
  etag: '"one"',
  /** What it makes of a request for the rest: 'served', 'ignored', 'refused', or a wrong rest: 'short', 'shifted', 'unchecked'. */
  rest: 'served',
  /** What is written in its answers for other origins; null for none. */
  cors: null,
  /** Level of gzip by which the file is packed on the way; null for none. */
  pack: null,
  isUnsized: false,
  /** Whether it waits in the middle of its answers. */
  isHalting: false,
  /** Whether its answers never end; they are unsized. */
  isEndless: false,
  /** Seconds for which browsers need not ask again. */
  maxAge: null,
  /** Bytes after which an answer is cut, once. */
  cut: null,
};

export class Host {
  /** Requests: their method, and the byte they begin at. */
  asked = [];
  /** Endless answers that the page ended. */
  nEnded = 0;

  constructor() {
    this.set({ bytes: Buffer.alloc(0) });
  }

  /** Chooses how it answers from now on. */
  set(choices) {
    Object.assign(this, DEFAULTS, choices);
    this.asked.length = 0;
    this.nEnded = 0;
  }

  answer(request, response) {
    const start = Number(/^bytes=(\d+)-$/.exec(request.headers.range ?? '')?.[1] ?? 0);
    this.asked.push([request.method, start]);
    for (const [name, value] of Object.entries(this.cors ?? {})) response.setHeader(name, value);
    if (request.method === 'OPTIONS') return response.writeHead(204).end();
    if (this.etag) response.setHeader('etag', this.etag);
    if (this.maxAge) response.setHeader('cache-control', `max-age=${this.maxAge}`);
    if (start > 0 && this.rest === 'refused') return response.writeHead(403).end();
    const isRest = start > 0 && this.rest !== 'ignored' && (this.rest === 'unchecked' || request.headers['if-range'] === this.etag);
    return isRest ? this.#sendRest(response, start) : this.#send(response, this.status, this.bytes);
  }

  #sendRest(response, start) {
    const from = start + (this.rest === 'shifted' ? -1000 : 0);
    const to = this.bytes.length - (this.rest === 'short' ? 1000 : 0);
    response.setHeader('content-range', `bytes ${from}-${to - 1}/${this.bytes.length}`);
    // As long as the rest, and not it.
    this.#send(response, 206, this.bytes.subarray(from, to).subarray(0, this.bytes.length - start));
  }

  #send(response, status, bytes) {
    const sent = this.pack === null ? bytes : gzipSync(bytes, { level: this.pack });
    if (this.pack !== null) response.setHeader('content-encoding', 'gzip');
    if (!this.isUnsized && !this.isEndless) response.setHeader('content-length', sent.length);
    response.writeHead(status);
    if (this.isEndless) return this.#sendOn(response, sent);
    if (this.cut === null && !this.isHalting) return response.end(sent);
    if (this.cut === null) {
      // The page has to see the first half alone.
      response.write(sent.subarray(0, sent.length >> 1));
      return setTimeout(() => response.end(sent.subarray(sent.length >> 1)), 500);
    }
    // The page has to have read them before the connection ends.
    response.write(sent.subarray(0, this.cut));
    this.cut = null;
    return setTimeout(() => response.destroy(), 300);
  }

  #sendOn(response, bytes) {
    const more = () => {
      while (response.write(Buffer.alloc(1 << 20)));
    };
    response.on('drain', more).on('close', () => {
      this.nEnded += 1;
    });
    response.write(bytes);
    more();
  }
}

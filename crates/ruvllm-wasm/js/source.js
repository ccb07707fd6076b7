// Bytes of a model: from a URL, with a cache and downloads that go on, or from a file.

import { Slot } from './cache.js';
import { LoadError } from './errors.js';
import { nodeModule } from './node.js';

/** Reads all pieces of a stream. */
async function each(stream, take) {
  const reader = stream.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    await take(value);
  }
}

/** Bytes of a file that are read at once: many tensors are smaller, and each read of a file takes a while. */
const WINDOW = 2 << 20;

/** Bytes of pieces that become one part of a file in memory. */
const PART = 4 << 20;

/** What the engine reads a file by: the file stays outside of the module's memory. */
class Reader {
  #read;

  /** `read(offset, n)` returns up to `n` bytes from there on. */
  constructor(size, read) {
    this.size = size;
    this.#read = read;
  }

  /** Reads bytes from `offset` on into `to`; returns how many. */
  readAt(offset, to) {
    if (!this.#read) throw new Error('the file was let go');
    const bytes = this.#read(offset, Math.min(to.length, this.size - offset));
    to.set(bytes);
    return bytes.length;
  }

  /** Lets go of the file. */
  close() {
    this.#read = null;
  }
}

/** Returns what reads a file; where files are not read at once (Node) all of it is in memory of JavaScript. */
async function readerOf(blob) {
  if (typeof FileReaderSync === 'undefined') {
    const bytes = new Uint8Array(await blob.arrayBuffer());
    return new Reader(blob.size, (offset, n) => bytes.subarray(offset, offset + n));
  }
  const reader = new FileReaderSync();
  let start = 0;
  let window = new Uint8Array(0);
  return new Reader(blob.size, (offset, n) => {
    if (offset < start || offset + n > start + window.length) {
      window = new Uint8Array(reader.readAsArrayBuffer(blob.slice(offset, offset + Math.max(n, WINDOW))));
      start = offset;
    }
    return window.subarray(offset - start, offset - start + n);
  });
}

/** Returns what reads a file of Node. */
async function diskReader(url) {
  const { closeSync, fstatSync, openSync, readSync } = await nodeModule('fs');
  let file;
  try {
    file = openSync(new URL(url));
  } catch (error) {
    throw new LoadError(`${url} cannot be opened: ${error.message}`);
  }
  const buffer = new Uint8Array(WINDOW);
  const reader = new Reader(fstatSync(file).size, (offset, n) => {
    const got = readSync(file, buffer, 0, Math.min(n, WINDOW), offset);
    return buffer.subarray(0, got);
  });
  const close = reader.close.bind(reader);
  reader.close = () => {
    closeSync(file);
    close();
  };
  return reader;
}

/** A file that is put together of pieces. The browser keeps it where it likes; it is no part of the module's memory. */
class Pieces {
  #parts = [];
  #loose = [];
  #n = 0;

  push(piece) {
    this.#loose.push(piece);
    this.#n += piece.length;
    if (this.#n >= PART) this.#pack();
  }

  blob() {
    this.#pack();
    return new Blob(this.#parts);
  }

  #pack() {
    this.#parts.push(new Blob(this.#loose));
    this.#loose = [];
    this.#n = 0;
  }
}

/** Returns the first `n` bytes of what the cache has of a file, to go on with in memory. */
async function begun(slot, n) {
  const pieces = new Pieces();
  if (n === 0) return pieces;
  const kept = (await slot.file()).slice(0, n);
  if (kept.size < n) throw new LoadError(`${slot.url}: what was kept of it is gone; load it again`);
  await each(kept.stream(), (piece) => pieces.push(piece));
  return pieces;
}

/** Asks for a URL from byte `from` on, if the file is still the one with this tag. */
async function request(url, headers, from, etag) {
  const range = from > 0 && etag ? { range: `bytes=${from}-`, 'if-range': etag } : {};
  let response;
  try {
    response = await fetch(url, { headers: { ...headers, ...range } });
  } catch (error) {
    throw new LoadError(`${url} cannot be fetched: ${error.message}; check the address, the network and CORS`);
  }
  if (!response.ok) {
    await response.body?.cancel();
    throw new LoadError(`${url} cannot be fetched: the server answers ${response.status}; check the address`);
  }
  return response;
}

/** Returns the bytes of a whole file, as an answer says them. */
function sizeOf(response, from) {
  const rest = Number(response.headers.get('content-length'));
  // Packed on the way, the length is another one.
  if (!rest || response.headers.get('content-encoding')) return null;
  return from + rest;
}

/** Returns why something is not kept, by the error of the file system. */
export function reasonOf(error) {
  return { QuotaExceededError: 'full', NoModificationAllowedError: 'busy' }[error?.name] ?? 'unavailable';
}

/** Returns the place of a URL in the cache; null where there is none. */
async function slotOf(url, onUncached) {
  try {
    const slot = await Slot.of(url);
    if (!slot) onUncached('unavailable');
    return slot;
  } catch (error) {
    onUncached(reasonOf(error));
    return null;
  }
}

/** Opens a slot of the cache for a file; null if it cannot be kept, and is fetched all the same. */
async function opened(slot, from, about, onUncached) {
  try {
    if (await slot.makeRoom(about.size - from)) {
      await slot.begin(from, about);
      return slot;
    }
    onUncached('full');
  } catch (error) {
    onUncached(reasonOf(error));
  }
  return null;
}

/** Fetches a URL, into the cache if there is one and else into memory outside of the module's; returns the file. */
async function fetchUrl({ url, headers, slot }, checkSize, onProgress, onUncached) {
  const known = await slot?.look();
  if (known?.complete) {
    await slot.use();
    return slot.file();
  }
  const had = known?.etag ? known.bytes : 0;
  const response = await request(url, headers, had, known?.etag);
  const from = response.status === 206 ? had : 0;
  const size = sizeOf(response, from);
  if (size === null) {
    if (slot) onUncached('unsized');
    return response.blob();
  }
  try {
    checkSize(size);
  } catch (error) {
    await response.body.cancel();
    throw error;
  }
  // A weak tag does not say that the bytes are the same.
  const tag = response.headers.get('etag');
  const etag = tag && !tag.startsWith('W/') ? tag : null;
  let keeping = slot ? await opened(slot, from, { etag, size }, onUncached) : null;
  let pieces = keeping ? null : await begun(slot, from);
  let done = from;
  onProgress({ phase: 'fetch', done, total: size });
  const keep = async (piece) => {
    try {
      await keeping?.write(piece);
    } catch (error) {
      // No room after all: what was written goes on in memory.
      await keeping.close(false).catch(() => {});
      pieces = await begun(slot, done);
      await keeping.remove();
      keeping = null;
      onUncached(reasonOf(error));
    }
    pieces?.push(piece);
  };
  try {
    await each(response.body, async (piece) => {
      await keep(piece);
      done += piece.length;
      onProgress({ phase: 'fetch', done, total: size });
    });
  } catch (error) {
    await keeping?.close(false).catch(() => {});
    const kept = keeping && etag ? '; load it again and it goes on from there' : '; load it again';
    throw error.kind ? error : new LoadError(`${url} was cut after ${done} of ${size} bytes${kept}`);
  }
  if (done !== size) {
    await keeping?.close(false).catch(() => {});
    throw new LoadError(`${url} was cut after ${done} of ${size} bytes; load it again`);
  }
  if (pieces) return pieces.blob();
  await keeping.close(true).catch((error) => onUncached(reasonOf(error)));
  const kept = await slot.file();
  if (kept.size !== size) throw new LoadError(`${url} could not be kept whole; load it with cache: false`);
  return kept;
}

/** Returns what reads a model, and the model's slot of the cache, if it has one. */
async function opening({ source, cache, headers }, checkSize, onProgress, onUncached) {
  if (source.blob) return { reader: await readerOf(source.blob), slot: null };
  if (source.url.startsWith('file:') && typeof FileReaderSync === 'undefined') {
    return { reader: await diskReader(source.url), slot: null };
  }
  const slot = cache ? await slotOf(source.url, onUncached) : null;
  const file = await fetchUrl({ url: source.url, headers, slot }, checkSize, onProgress, onUncached);
  return { reader: await readerOf(file), slot };
}

/**
 * Finds a model's bytes, which it fetches where it has to. Returns what reads them, and the model's slot of the cache, if it has
 * one. `checkSize(size)` throws where a file is too large, `sha256Of(reader)` returns its hash, `onUncached(reason)` hears that a
 * file of a URL is not kept.
 */
export async function readModel({ sha256, ...what }, { checkSize, sha256Of }, onProgress, onUncached = () => {}) {
  const { reader, slot } = await opening(what, checkSize, onProgress, onUncached);
  checkSize(reader.size);
  onProgress({ phase: 'fetch', done: reader.size, total: reader.size });
  const found = sha256 ? sha256Of(reader) : null;
  if (found === null || found === sha256.toLowerCase()) return { reader, slot };
  reader.close();
  await slot?.remove();
  throw new LoadError(`the file's SHA-256 is ${found}, not ${sha256}; it was changed or damaged on the way`);
}

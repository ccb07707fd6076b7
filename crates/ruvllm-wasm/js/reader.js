// What the engine reads a file by: the file stays outside of the module's memory.

import { LoadError } from './errors.js';
import { nodeModule } from './node.js';

/** Bytes of a file that are read at once: many tensors are smaller, and each read of a file takes a while. */
const WINDOW = 2 << 20;

/** A file that is open. */
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
export async function readerOf(blob) {
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
export async function diskReader(url) {
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

// Where a download goes: into the cache, or into memory outside of the module's.

import { LoadError } from './errors.js';

/** Bytes of pieces that become one part of a file in memory. */
const PART = 4 << 20;

/** A stream that ended before its end. */
export class Cut extends Error {}

/** Reads all pieces of a stream, which ends where one is not taken. */
export async function each(stream, take) {
  const reader = stream.getReader();
  const read = () => reader.read().catch((error) => {
    throw new Cut(error.message);
  });
  for (;;) {
    const { done, value } = await read();
    if (done) return;
    try {
      await take(value);
    } catch (error) {
      await reader.cancel().catch(() => {});
      throw error;
    }
  }
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

/** Returns why something is not kept, by the error of the file system. */
export function reasonOf(error) {
  return { QuotaExceededError: 'full', NoModificationAllowedError: 'busy' }[error?.name] ?? 'unavailable';
}

/** A download's file: in a slot of the cache, or from where that cannot be in memory. Nothing is opened before the first piece. */
export class Target {
  #slot;
  /** Bytes so far. */
  #n;
  #about;
  #onUncached;
  /** The slot while it is written. */
  #keeping = null;
  #pieces = null;

  /** `about` is `{ size, etag }` of a file that goes on after its first `n` bytes; without a slot it is in memory. */
  constructor(slot, n, about, onUncached) {
    this.#slot = slot;
    this.#n = n;
    this.#about = about;
    this.#onUncached = onUncached;
    if (!slot) this.#pieces = new Pieces();
  }

  /** Takes a piece. */
  async push(piece) {
    if (!this.#keeping && !this.#pieces) await this.#open();
    try {
      await this.#keeping?.write(piece);
    } catch (error) {
      // No room after all.
      await this.leave(reasonOf(error));
    }
    this.#pieces?.push(piece);
    this.#n += piece.length;
  }

  /** Leaves the cache: what came so far goes on in memory. */
  async leave(reason) {
    if (this.#pieces) return;
    await this.#keeping?.close().catch(() => {});
    this.#pieces = await begun(this.#slot, this.#n);
    await this.#keeping?.remove();
    this.#keeping = null;
    this.#onUncached(reason);
  }

  /** Ends a download that was cut; returns whether what came of it is kept. */
  async cut() {
    await this.#keeping?.close().catch(() => {});
    return this.#keeping !== null;
  }

  /** Forgets what came. */
  async drop() {
    await this.#keeping?.remove();
  }

  /** Returns the file, and whether it is in the cache. */
  async end() {
    if (!this.#keeping) return { file: this.#pieces?.blob() ?? new Blob(), isKept: false };
    await this.#keeping.close().catch((error) => this.#onUncached(reasonOf(error)));
    const file = await this.#slot.file();
    const { url } = this.#slot;
    if (file.size !== this.#about.size) throw new LoadError(`${url} could not be kept whole; load it with cache: false`);
    return { file, isKept: true };
  }

  async #open() {
    try {
      if (await this.#slot.makeRoom(this.#about.size)) {
        await this.#slot.begin(this.#n, this.#about);
        this.#keeping = this.#slot;
        return;
      }
    } catch (error) {
      return this.leave(reasonOf(error));
    }
    return this.leave('full');
  }
}

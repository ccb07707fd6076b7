// The place of a model in the cache, for the worker: file handles that write at once are there only.

import { entriesOf, entryOf, nameOf, openFolder, removeName } from './cache.js';

/** Bytes that are written at once: how many are free shows as exactly as that. */
const BLOCK = 64 << 10;

/** Writes all bytes from `at` on. */
function writeAll(access, bytes, at) {
  for (let done = 0; done < bytes.length; ) {
    const n = access.write(bytes.subarray(done), { at: at + done });
    // Where no room is left, Chromium's private windows return a negative number, read as one without a sign.
    if (n === 0 || n > bytes.length - done) throw new DOMException('there is no room for the file', 'QuotaExceededError');
    done += n;
  }
}

/** Writes a small file. */
async function writeFile(dir, name, data) {
  const handle = await dir.getFileHandle(name, { create: true });
  const access = await handle.createSyncAccessHandle();
  try {
    access.truncate(0);
    writeAll(access, typeof data === 'string' ? new TextEncoder().encode(data) : data, 0);
    access.flush();
  } finally {
    access.close();
  }
}

/** Returns whether nobody writes a file. */
async function isIdle(dir, name) {
  try {
    (await (await dir.getFileHandle(name)).createSyncAccessHandle()).close();
    return true;
  } catch {
    return false;
  }
}

/** The place of one URL in the cache. */
export class Slot {
  /** Returns the place of a URL; fails, or returns null, where there is none. */
  static async of(url) {
    const dir = await openFolder();
    return dir ? new Slot(dir, await nameOf(url), url) : null;
  }

  constructor(dir, name, url) {
    Object.assign(this, { dir, name, url });
    this.access = null;
    this.note = null;
    /** Bytes that the file takes already. */
    this.own = 0;
  }

  /** Returns what is known of the file: `{ bytes, complete, etag, size }`. */
  async look() {
    const entry = await entryOf(this.dir, this.name);
    this.own = entry?.bytes ?? 0;
    this.note = entry?.note ?? null;
    return this.note && { ...this.note, bytes: entry.bytes, complete: entry.complete };
  }

  /** Returns the file that is there. */
  async file() {
    return (await this.dir.getFileHandle(`${this.name}.gguf`)).getFile();
  }

  /** Opens the file, of which `{ size, etag }` are known, for writing after its first `n` bytes. */
  async begin(n, about) {
    this.note = { url: this.url, ...about, used: Date.now() };
    this.at = n;
    this.access = await this.withRoom(0, async () => {
      const handle = await this.dir.getFileHandle(`${this.name}.gguf`, { create: true });
      return handle.createSyncAccessHandle();
    });
    try {
      this.access.truncate(n);
      if (n > 0) return;
      // It was made of another file.
      await this.dir.removeEntry(`${this.name}.calibration`).catch(() => {});
      await this.writeNote();
    } catch (error) {
      await this.remove();
      throw error;
    }
  }

  /** Writes a piece. */
  async write(piece) {
    for (let i = 0; i < piece.length; i += BLOCK) {
      const block = piece.subarray(i, i + BLOCK);
      await this.withRoom(block.length, async () => writeAll(this.access, block, this.at));
      this.at += block.length;
    }
  }

  /** Closes the file. */
  async close() {
    if (!this.access) return;
    this.access.flush();
    this.access.close();
    this.access = null;
    await this.writeNote();
  }

  /** Writes down what is known of the file, and that it is used now. */
  writeNote() {
    this.note.used = Date.now();
    return writeFile(this.dir, `${this.name}.json`, JSON.stringify(this.note));
  }

  /** Marks the file as used now. */
  async use() {
    await this.writeNote().catch(() => {});
  }

  /** Removes the file and all that was kept for it. */
  async remove() {
    this.access?.close();
    this.access = null;
    await removeName(this.dir, this.name);
  }

  /** Makes room for a file of `size` bytes in the place of what is there; returns whether there is. */
  async makeRoom(size) {
    // Before version 17, Safari does not tell what is free; writing shows it.
    const { quota = Infinity, usage = 0 } = (await navigator.storage.estimate?.()) ?? {};
    return this.free(size - this.own - (quota - usage));
  }

  /** Writes `n` bytes, and removes other models where there is no room: browsers say 10 GiB are free when they are not. */
  async withRoom(n, write) {
    for (;;) {
      try {
        return await write();
      } catch (error) {
        if (error.name !== 'QuotaExceededError') throw error;
        // Less than `n` bytes are free, and the rest of the file needs as many as are missing.
        const missing = this.note.size - this.at - n;
        if (!(await this.free(Math.max(missing, 1)))) throw error;
      }
    }
  }

  /**
   * Removes other models, the one that was used the longest ago first, until so many bytes are freed; none where they would not be.
   * Returns whether they are.
   */
  async free(bytes) {
    if (bytes <= 0) return true;
    const others = [];
    for (const entry of (await entriesOf(this.dir)).reverse()) {
      // Another tab fetches it otherwise.
      if (entry.name !== this.name && (await isIdle(this.dir, `${entry.name}.gguf`))) others.push(entry);
    }
    if (others.reduce((sum, other) => sum + other.bytes, 0) < bytes) return false;
    let freed = 0;
    for (const other of others) {
      if (freed >= bytes) break;
      if (await removeName(this.dir, other.name)) freed += other.bytes;
    }
    return freed >= bytes;
  }

  /** Returns what learning was calibrated by; null if that is not known. */
  async calibration() {
    try {
      const file = await (await this.dir.getFileHandle(`${this.name}.calibration`)).getFile();
      return new Uint8Array(await file.arrayBuffer());
    } catch {
      return null;
    }
  }

  keepCalibration(bytes) {
    return writeFile(this.dir, `${this.name}.calibration`, bytes);
  }
}

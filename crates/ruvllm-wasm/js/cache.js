// Models that were fetched, in the origin private file system (OPFS). A download that was cut goes on where it ended. Where there
// is no such system (private windows, Node) or no room, models are fetched each time.

const FOLDER = 'ruvllm';

/** Returns the folder of the cache; fails, or returns null, where there is none. */
async function openFolder() {
  const root = await globalThis.navigator?.storage?.getDirectory?.();
  return (await root?.getDirectoryHandle(FOLDER, { create: true })) ?? null;
}

/** Returns the folder of the cache; null where there is none. */
const folder = () => openFolder().catch(() => null);

/** Returns what the files of a URL are called. */
async function nameOf(url) {
  const hash = new Uint8Array(await crypto.subtle.digest('SHA-256', new TextEncoder().encode(url)));
  return [...hash.subarray(0, 16)].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

async function readJson(dir, name) {
  try {
    return JSON.parse(await (await (await dir.getFileHandle(name)).getFile()).text());
  } catch {
    return null;
  }
}

/** Writes all bytes from `at` on. */
function writeAll(access, bytes, at) {
  for (let done = 0; done < bytes.length; ) {
    const n = access.write(bytes.subarray(done), { at: at + done });
    // Where no room is left, Chromium's private windows return a negative number, read as one without a sign.
    if (n === 0 || n > bytes.length - done) throw new DOMException('there is no room for the file', 'QuotaExceededError');
    done += n;
  }
}

/** Writes a small file; in the worker only, where every browser has handles that write at once. */
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

/** Lists the models of the cache, the one that was used last first. */
export async function cachedModels() {
  const dir = await folder();
  const found = [];
  if (!dir) return found;
  for await (const name of dir.keys()) {
    if (!name.endsWith('.json')) continue;
    const about = await readJson(dir, name);
    if (about) found.push({ url: about.url, bytes: about.bytes, complete: about.complete, used: about.used });
  }
  return found.sort((a, b) => b.used - a.used);
}

/** Removes a model and what was kept for it; returns whether it was there. */
export async function removeCached(url) {
  const dir = await folder();
  if (!dir) return false;
  const name = await nameOf(url);
  let any = false;
  for (const ending of ['gguf', 'json', 'calibration']) {
    any = await dir.removeEntry(`${name}.${ending}`).then(() => true, () => any);
  }
  return any;
}

/** The place of one URL in the cache, for the worker: file handles that write at once are there only. */
export class Slot {
  /** Returns the place of a URL; fails, or returns null, where there is none. */
  static async of(url) {
    const dir = await openFolder();
    return dir ? new Slot(dir, await nameOf(url), url) : null;
  }

  constructor(dir, name, url) {
    Object.assign(this, { dir, name, url });
    this.access = null;
    this.about = null;
  }

  /** Returns what is known of the file: `{ bytes, complete, etag, size }`. */
  async look() {
    this.about = await readJson(this.dir, `${this.name}.json`);
    try {
      const file = await (await this.dir.getFileHandle(`${this.name}.gguf`)).getFile();
      // Its last note may be missing: the page was left, or there was no room for it.
      if (this.about) Object.assign(this.about, { bytes: file.size, complete: file.size === this.about.size });
    } catch {
      this.about = null;
    }
    return this.about;
  }

  /** Returns the file that is there. */
  async file() {
    return (await this.dir.getFileHandle(`${this.name}.gguf`)).getFile();
  }

  /** Opens the file for writing after its first `n` bytes. */
  async begin(n, about) {
    this.access = await this.withRoom(async () => {
      const handle = await this.dir.getFileHandle(`${this.name}.gguf`, { create: true });
      return handle.createSyncAccessHandle();
    });
    try {
      this.access.truncate(n);
      this.at = n;
      this.about = { url: this.url, complete: false, ...about, used: Date.now() };
      await this.note();
    } catch (error) {
      await this.remove();
      throw error;
    }
  }

  /** Writes a piece. */
  async write(piece) {
    await this.withRoom(async () => writeAll(this.access, piece, this.at));
    this.at += piece.length;
  }

  /** Closes the file; `complete` says whether all of it is there. */
  async close(complete) {
    if (!this.access) return;
    this.access.flush();
    this.access.close();
    this.access = null;
    Object.assign(this.about, { complete, bytes: this.at, used: Date.now() });
    await this.note();
  }

  /** Writes down what is known of the file. */
  note() {
    return writeFile(this.dir, `${this.name}.json`, JSON.stringify(this.about));
  }

  /** Marks the file as used now. */
  async use() {
    this.about.used = Date.now();
    await this.note().catch(() => {});
  }

  /** Removes the file and all that was kept for it. */
  async remove() {
    this.access?.close();
    this.access = null;
    await removeCached(this.url);
  }

  /** Removes the other models, the one that was used the longest ago first, until so many bytes are free. */
  async makeRoom(bytes) {
    do {
      // Before version 17, Safari does not tell what is free; writing shows it.
      const { quota = Infinity, usage = 0 } = (await navigator.storage.estimate?.()) ?? {};
      if (quota - usage >= bytes) return true;
    } while (await this.dropOldest());
    return false;
  }

  /** Writes, and removes other models where there is no room: browsers say 10 GiB are free when they are not. */
  async withRoom(write) {
    for (;;) {
      try {
        return await write();
      } catch (error) {
        if (error.name !== 'QuotaExceededError' || !(await this.dropOldest())) throw error;
      }
    }
  }

  /** Removes the other model that was used the longest ago; returns whether there was one. */
  async dropOldest() {
    const oldest = (await cachedModels()).filter(({ url }) => url !== this.url).pop();
    return oldest ? removeCached(oldest.url) : false;
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

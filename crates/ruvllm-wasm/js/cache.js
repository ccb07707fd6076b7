// Models that were fetched, in the origin private file system (OPFS). A download that was cut goes on where it ended. Where there
// is no such system (private windows, Node) or no room, models are fetched each time.

const FOLDER = 'ruvllm';

/** Returns the folder of the cache; null where there is none. */
async function folder() {
  try {
    const root = await globalThis.navigator?.storage?.getDirectory?.();
    return (await root?.getDirectoryHandle(FOLDER, { create: true })) ?? null;
  } catch {
    return null;
  }
}

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

/** Writes a small file; in the worker only, where every browser has handles that write at once. */
async function writeFile(dir, name, data) {
  const handle = await dir.getFileHandle(name, { create: true });
  const access = await handle.createSyncAccessHandle();
  try {
    access.truncate(0);
    access.write(typeof data === 'string' ? new TextEncoder().encode(data) : data, { at: 0 });
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
  static async of(url) {
    const dir = await folder();
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
      if (this.about) this.about.bytes = file.size;
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
    const handle = await this.dir.getFileHandle(`${this.name}.gguf`, { create: true });
    this.access = await handle.createSyncAccessHandle();
    this.access.truncate(n);
    this.at = n;
    this.about = { url: this.url, complete: false, ...about, used: Date.now() };
    await this.note();
  }

  /** Writes a piece. */
  write(piece) {
    for (let done = 0; done < piece.length; ) {
      done += this.access.write(piece.subarray(done), { at: this.at + done });
    }
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
    for (const model of (await cachedModels()).reverse()) {
      const { quota = 0, usage = 0 } = await navigator.storage.estimate();
      if (quota - usage >= bytes) return true;
      if (model.url !== this.url) await removeCached(model.url);
    }
    const { quota = 0, usage = 0 } = await navigator.storage.estimate();
    return quota - usage >= bytes;
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

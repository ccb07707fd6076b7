// Models that were fetched, in the origin private file system (OPFS). Where there is no such system (private windows, Node) or no
// room, models are fetched each time.

const FOLDER = 'ruvllm';

/** How long a worker that was ended may still have its file open. */
const RELEASE_MS = 1000;

/** Returns the folder of the cache; fails, or returns null, where there is none. */
export async function openFolder() {
  const root = await globalThis.navigator?.storage?.getDirectory?.();
  return (await root?.getDirectoryHandle(FOLDER, { create: true })) ?? null;
}

/** Returns the folder of the cache; null where there is none. */
const folder = () => openFolder().catch(() => null);

/** Returns what the files of a URL are called. */
export async function nameOf(url) {
  const hash = new Uint8Array(await crypto.subtle.digest('SHA-256', new TextEncoder().encode(url)));
  return [...hash.subarray(0, 16)].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

/** Returns what is noted of a model; null where that cannot be read. */
async function noteOf(dir, name) {
  try {
    return JSON.parse(await (await (await dir.getFileHandle(`${name}.json`)).getFile()).text());
  } catch {
    return null;
  }
}

/**
 * Returns what is known of a model and how much of its file is there; null where there is no file. The note may be missing: a tab
 * ended while it was written.
 */
export async function entryOf(dir, name) {
  try {
    const { size: bytes } = await (await dir.getFileHandle(`${name}.gguf`)).getFile();
    const note = await noteOf(dir, name);
    return { name, bytes, note, complete: bytes === note?.size };
  } catch {
    return null;
  }
}

/** Returns all models of a folder, the one that was used last first. */
export async function entriesOf(dir) {
  const found = [];
  for await (const file of dir.keys()) {
    const entry = file.endsWith('.gguf') ? await entryOf(dir, file.slice(0, -'.gguf'.length)) : null;
    if (entry) found.push(entry);
  }
  const used = ({ note }) => note?.used ?? 0;
  return found.sort((a, b) => used(b) - used(a));
}

/** Removes a model and what was kept for it; returns whether it was there. One that another tab writes stays. */
export async function removeName(dir, name) {
  let any = false;
  for (const ending of ['gguf', 'json', 'calibration']) {
    try {
      await dir.removeEntry(`${name}.${ending}`);
      any = true;
    } catch (error) {
      if (ending === 'gguf' && error.name !== 'NotFoundError') return false;
    }
  }
  return any;
}

/** Lists the models of the cache, the one that was used last first. */
export async function cachedModels() {
  const dir = await folder();
  const found = dir ? await entriesOf(dir) : [];
  const noted = found.filter(({ note }) => note);
  return noted.map(({ bytes, complete, note: { url, used } }) => ({ url, bytes, complete, used }));
}

/**
 * Removes a model, by its address as `load` takes it, and what was kept for it; returns whether it was there. One that another tab
 * fetches stays.
 */
export async function removeCached(url) {
  const dir = await folder();
  if (!dir) return false;
  const name = await nameOf(new URL(url, globalThis.location?.href).href);
  for (const start = performance.now(); ; ) {
    if (await removeName(dir, name)) return true;
    if (!(await entryOf(dir, name)) || performance.now() - start > RELEASE_MS) return false;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

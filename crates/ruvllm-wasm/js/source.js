// Bytes of a model: from a URL, with a cache and downloads that go on, or from a file.

import { Slot } from './cache.js';
import { LoadError } from './errors.js';

/** Reads all pieces of a stream. */
async function each(stream, take) {
  const reader = stream.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    await take(value);
  }
}

/** Reads a file into the module's memory. */
async function readBlob(blob, makeFile, onProgress) {
  const file = makeFile(blob.size);
  let done = 0;
  await each(blob.stream(), (piece) => {
    file.push(piece);
    done += piece.length;
    onProgress({ phase: 'fetch', done, total: blob.size });
  });
  return file;
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

/** Fetches a URL into the module's memory, and into the cache on the way. */
async function readUrl({ url, headers, slot }, makeFile, onProgress, onUncached) {
  const known = await slot?.look();
  if (known?.complete) {
    const file = await readBlob(await slot.file(), makeFile, onProgress);
    await slot.use();
    return file;
  }
  const had = known?.etag ? known.bytes : 0;
  const response = await request(url, headers, had, known?.etag);
  const from = response.status === 206 ? had : 0;
  const size = sizeOf(response, from);
  if (size === null) {
    // Of unknown length: it is collected first.
    if (slot) onUncached('unsized');
    const blob = await response.blob();
    return readBlob(blob, makeFile, onProgress);
  }
  let file;
  try {
    file = makeFile(size);
  } catch (error) {
    await response.body.cancel();
    throw error;
  }
  const start = from > 0 ? await slot.file().then((kept) => kept.slice(0, from)) : null;
  let done = 0;
  const take = (piece) => {
    file.push(piece);
    done += piece.length;
    onProgress({ phase: 'fetch', done, total: size });
  };
  if (start) await each(start.stream(), take);
  // A weak tag does not say that the bytes are the same.
  const tag = response.headers.get('etag');
  const etag = tag && !tag.startsWith('W/') ? tag : null;
  let keeping = slot ? await opened(slot, from, { etag, size }, onUncached) : null;
  try {
    await each(response.body, async (piece) => {
      take(piece);
      try {
        await keeping?.write(piece);
      } catch (error) {
        // No room after all.
        await keeping.remove();
        keeping = null;
        onUncached(reasonOf(error));
      }
    });
  } catch (error) {
    await keeping?.close(false).catch(() => {});
    const kept = keeping && etag ? '; load it again and it goes on from there' : '; load it again';
    throw error.kind ? error : new LoadError(`${url} was cut after ${done} of ${size} bytes${kept}`);
  }
  if (done < size) {
    await keeping?.close(false).catch(() => {});
    throw new LoadError(`${url} was cut after ${done} of ${size} bytes; load it again`);
  }
  await keeping?.close(true).catch((error) => onUncached(reasonOf(error)));
  return file;
}

/**
 * Reads a model into the module's memory. Returns its file, and its slot of the cache, if it has one. `makeFile(size)` throws
 * where it does not fit; `onUncached(reason)` hears that a file of a URL is not kept.
 */
export async function readModel({ source, cache, headers, sha256 }, makeFile, onProgress, onUncached) {
  if (source.blob) return { file: await checked(await readBlob(source.blob, makeFile, onProgress), sha256, null), slot: null };
  const slot = cache ? await slotOf(source.url, onUncached) : null;
  const file = await readUrl({ url: source.url, headers, slot }, makeFile, onProgress, onUncached);
  return { file: await checked(file, sha256, slot), slot };
}

/** Checks the bytes against their hash, where one is given. */
async function checked(file, sha256, slot) {
  if (!sha256) return file;
  const found = file.sha256();
  if (found === sha256.toLowerCase()) return file;
  file.free();
  await slot?.remove();
  throw new LoadError(`the file's SHA-256 is ${found}, not ${sha256}; it was changed or damaged on the way`);
}

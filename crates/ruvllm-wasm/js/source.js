// Bytes of a model: from a URL, with a cache and downloads that go on, or from a file.

import { fetchFile } from './download.js';
import { LoadError } from './errors.js';
import { diskReader, readerOf } from './reader.js';
import { Slot } from './slot.js';
import { reasonOf } from './target.js';
import { thrown } from './thrown.js';

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

/** Returns what reads a model, its slot of the cache if it is kept there, and whether something of it was kept before. */
async function opening({ source, cache, headers }, checkSize, onProgress, onUncached) {
  if (source.blob) return { reader: await readerOf(source.blob), slot: null, isOld: false };
  if (source.url.startsWith('file:') && typeof FileReaderSync === 'undefined') {
    return { reader: await diskReader(source.url), slot: null, isOld: false };
  }
  const slot = cache ? await slotOf(source.url, onUncached) : null;
  const { file, isKept, isOld } = await fetchFile({ url: source.url, headers, slot }, checkSize, onProgress, onUncached);
  return { reader: await readerOf(file), slot: isKept ? slot : null, isOld };
}

/** Throws where a file is not the one that was asked for. */
function checkHash(reader, sha256, sha256Of) {
  const found = sha256 ? sha256Of(reader) : null;
  if (found === null || found === sha256.toLowerCase()) return;
  throw new LoadError(`the file's SHA-256 is ${found}, not ${sha256}; it was changed or damaged on the way`);
}

/** Returns whether a file is at fault: its hash is another, or the engine cannot read it. Options and memory have other errors. */
function isOfFile(error) {
  const said = thrown(error);
  return said ? said.status === 500 && !said.code : error instanceof LoadError;
}

/**
 * Finds a model's bytes, which it fetches where it has to, and returns what `use` makes of `{ reader, slot }`: what reads them, and
 * the model's slot of the cache if it is kept there. A file that is at fault when it is used is not kept; where something of it was kept
 * before, it is fetched once more. `checkSize(size)` throws where a file is too large, `sha256Of(reader)` returns its hash,
 * `onUncached(reason)` hears that a file of a URL is not kept.
 */
export async function readModel(
  { sha256, ...what },
  { checkSize, sha256Of },
  onProgress,
  onUncached = () => {},
  use = (model) => model,
) {
  for (let isAgain = false; ; isAgain = true) {
    const { reader, slot, isOld } = await opening(what, checkSize, onProgress, onUncached);
    checkSize(reader.size);
    onProgress({ phase: 'fetch', done: reader.size, total: reader.size });
    try {
      checkHash(reader, sha256, sha256Of);
      return await use({ reader, slot });
    } catch (error) {
      reader.close();
      if (!isOfFile(error)) throw error;
      await slot?.remove();
      if (!isOld || isAgain) throw error;
    }
  }
}

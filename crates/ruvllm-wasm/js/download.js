// A download: it is kept on its way, goes on where it was cut, and ends early where the file cannot be a model.

import { LoadError } from './errors.js';
import { request } from './request.js';
import { Cut, Target, each } from './target.js';

/** Bytes that every GGUF file begins with. */
const MAGIC = new TextEncoder().encode('GGUF');

/** Throws where a piece that begins at byte `at` is none of a GGUF file: servers answer 200 with pages and pointers as well. */
function checkMagic(url, piece, at) {
  const expected = MAGIC.subarray(at, at + piece.length);
  if (expected.every((byte, i) => byte === piece[i])) return;
  throw new LoadError(`${url} is not a GGUF file: the server sends something else there; check the address`);
}

/**
 * Fetches a URL, into its slot of the cache if there is one. Returns the file, whether it is kept, and whether something of it was
 * kept before.
 */
export async function fetchFile({ url, headers, slot }, checkSize, onProgress, onUncached) {
  const known = await slot?.look();
  if (known?.complete) {
    await slot.use();
    return { file: await slot.file(), isKept: true, isOld: true };
  }
  const { response, from, etag, size: told } = await request(url, headers, known);
  try {
    if (told !== null) checkSize(told);
  } catch (error) {
    await response.body.cancel();
    throw error;
  }
  if (slot && told === null) onUncached('unsized');
  const target = new Target(told === null ? null : slot, from, { etag, size: told }, onUncached);
  let size = told;
  let done = from;
  const tell = () => onProgress({ phase: 'fetch', done, total: size ?? undefined });
  // The length was that of a packed body: other origins do not say that it is packed.
  const unsized = async () => {
    size = null;
    await target.leave('unsized');
  };
  tell();
  try {
    await each(response.body, async (piece) => {
      checkMagic(url, piece, done);
      const n = done + piece.length;
      if (size !== null && n > size) await unsized();
      if (size === null) checkSize(n);
      await target.push(piece);
      done = n;
      tell();
    });
    if (size !== null && done < size) {
      if (response.type !== 'cors') throw new Cut();
      await unsized();
    }
  } catch (error) {
    if (!(error instanceof Cut)) {
      await target.drop();
      throw error;
    }
    const goesOn = (await target.cut()) && etag ? ' and it goes on from there' : '';
    throw new LoadError(`${url} was cut after ${done} ${size === null ? '' : `of ${size} `}bytes; load it again${goesOn}`);
  }
  return { ...(await target.end()), isOld: from > 0 };
}

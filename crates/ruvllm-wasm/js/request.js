// Requests for a file: all of it, or the rest of one that was cut.

import { LoadError } from './errors.js';

/** Returns the bytes of a whole file, as an answer says them; null where it does not. */
function sizeOf(response, from) {
  const rest = Number(response.headers.get('content-length'));
  // Packed on the way, the length is another one.
  if (!rest || response.headers.get('content-encoding')) return null;
  return from + rest;
}

/** Returns the tag of an answer; null for a weak one, which does not say that the bytes are the same. */
function etagOf(response) {
  const tag = response.headers.get('etag');
  return tag && !tag.startsWith('W/') ? tag : null;
}

/** Returns whether an answer is the rest of a file of which so much is known. Other origins may hide some of its headers. */
function isRest(response, { bytes, size, etag }) {
  const range = response.headers.get('content-range');
  const start = range === null ? bytes : Number(/^bytes (\d+)-/.exec(range)?.[1]);
  const tag = response.headers.get('etag') ?? etag;
  return response.status === 206 && start === bytes && tag === etag && sizeOf(response, bytes) === size;
}

/** Asks for the rest of a file if it is still the one that is known; returns null where the answer is of no use. */
async function restOf(url, headers, known) {
  const range = { range: `bytes=${known.bytes}-`, 'if-range': known.etag };
  // Servers of other origins may not allow these headers.
  const response = await fetch(url, { headers: { ...headers, ...range } }).catch(() => null);
  if (response?.status === 200) return { response, from: 0 };
  if (response && isRest(response, known)) return { response, from: known.bytes };
  await response?.body?.cancel();
  return null;
}

/** Asks for a whole file. */
async function wholeOf(url, headers) {
  let response;
  try {
    // What the browser's own cache has may be what was wrong with the file; the server says.
    response = await fetch(url, { headers, cache: 'no-cache' });
  } catch (error) {
    throw new LoadError(`${url} cannot be fetched: ${error.message}; check the address, the network and CORS`);
  }
  // A part was not asked for.
  if (response.ok && response.status !== 206 && response.body) return { response, from: 0 };
  await response.body?.cancel();
  throw new LoadError(`${url} cannot be fetched: the server answers ${response.status}; check the address`);
}

/**
 * Asks for a file, of which `known` is kept. Returns the answer, the byte `from` which it goes on, the file's `size` and its strong
 * `etag`, each null where it is not told.
 */
export async function request(url, headers, known) {
  const isBegun = known?.etag && known.bytes > 0;
  const { response, from } = (isBegun ? await restOf(url, headers, known) : null) ?? (await wholeOf(url, headers));
  return { response, from, size: sizeOf(response, from), etag: from > 0 ? known.etag : etagOf(response) };
}

// What a page has in the cache of models, as the tests see and make it.

/** Loads a file; returns what came of it, and what was told meanwhile. */
export const load = (page, url, more = {}) => page.evaluate(async ([url, more]) => {
  const told = { reasons: [], sizes: [] };
  const onUncached = (reason) => told.reasons.push(reason);
  const onProgress = ({ phase, done, total }) => phase === 'fetch' && told.sizes.push([done, total]);
  try {
    await (await web.load(url, { ...more, onUncached, onProgress })).dispose();
    return { said: 'loaded', ...told };
  } catch (error) {
    return { said: `${error.kind}: ${error.message}`, ...told };
  }
}, [url, more]);

/** Returns what the folder of the cache has: the SHA-256 of each model's file by its URL, and the endings of all files. */
export const kept = (page) => page.evaluate(async () => {
  const dir = await (await navigator.storage.getDirectory()).getDirectoryHandle('ruvllm', { create: true });
  const files = new Map();
  for await (const [name, handle] of dir.entries()) files.set(name, await handle.getFile());
  const hashes = {};
  for (const [name, file] of files) {
    if (!name.endsWith('.json')) continue;
    const { url } = JSON.parse(await file.text());
    const model = files.get(name.replace('.json', '.gguf'));
    const hash = new Uint8Array(await crypto.subtle.digest('SHA-256', await model.arrayBuffer()));
    hashes[url] = [...hash].map((byte) => byte.toString(16).padStart(2, '0')).join('');
  }
  return { hashes, endings: [...files.keys()].map((name) => name.split('.')[1]).sort() };
});

/** Empties the cache. */
export const empty = (page) => page.evaluate(async () => {
  await (await navigator.storage.getDirectory()).removeEntry('ruvllm', { recursive: true }).catch(() => {});
});

/** Puts a file into the cache, as an earlier version or a tab that ended would have left it. */
export const plant = (page, url, bytes, note, endings = ['gguf', 'json']) => page.evaluate(async ([url, text, note, endings]) => {
  const dir = await (await navigator.storage.getDirectory()).getDirectoryHandle('ruvllm', { create: true });
  const hash = new Uint8Array(await crypto.subtle.digest('SHA-256', new TextEncoder().encode(url)));
  const name = [...hash.subarray(0, 16)].map((byte) => byte.toString(16).padStart(2, '0')).join('');
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const contents = { gguf: bytes, json: JSON.stringify({ url, used: 1, ...note }), calibration: 'old' };
  for (const ending of endings) {
    const to = await (await dir.getFileHandle(`${name}.${ending}`, { create: true })).createWritable();
    await to.write(contents[ending]);
    await to.close();
  }
}, [url, bytes.toString('base64'), note, endings]);

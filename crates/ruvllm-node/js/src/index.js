// `@ruvllm/node`: the client over the addon.

import { onAbort } from './abort.js';
import { Engine } from './client.js';
import { LoadError, ofNative, UsageError } from './errors.js';
import native from './native.cjs';

export * from './errors.js';

/** Version of this package. */
export const version = '0.1.0';

/** The addon, once it is needed. */
let addon = null;

function loaded() {
  try {
    addon ??= native.addon();
  } catch (error) {
    throw new LoadError(error.message);
  }
  return addon;
}

/**
 * Loads a model. See api.d.ts.
 *
 * @param {string | string[]} model
 * @param {Record<string, any>} [options]
 */
export async function load(model, options = {}) {
  const { signal, onProgress, ...others } = options;
  const args = [...ofModels(model), ...Object.entries(others).flatMap(([name, value]) => ofOption(name, value))];
  signal?.throwIfAborted();
  // Ends the loading: for the caller's reason, or by what `onProgress` throws.
  const ended = new AbortController();
  const told = ({ what, done, total }) => {
    if (ended.signal.aborted) return;
    try {
      onProgress?.({ phase: what === 'loading' ? 'load' : 'fetch', done, ...(total !== undefined && { total }) });
    } catch (error) {
      ended.abort(error);
    }
  };
  const loading = loaded().load(args, told);
  const end = onAbort(signal, () => ended.abort(signal?.reason));
  try {
    const engine = await unlessAborted(loading, ended.signal);
    return new Engine(transport(engine), engine.names[0]);
  } finally {
    end();
  }
}

/** Waits for an engine. Where it is given up meanwhile the loading ends, and an engine that is there all the same is freed. */
function unlessAborted(loading, signal) {
  const engine = loading.engine().catch((error) => Promise.reject(ofNative(error)));
  return new Promise((resolve, reject) => {
    const abort = () => {
      loading.cancel();
      engine.then((engine) => engine.dispose()).catch(() => {});
      reject(signal.reason);
    };
    signal.addEventListener('abort', abort, { once: true });
    engine.finally(() => signal.removeEventListener('abort', abort)).then(resolve, reject);
  });
}

function ofModels(model) {
  const models = Array.isArray(model) ? model : [model];
  if (models.length === 0 || models.some((one) => typeof one !== 'string' || one === '')) {
    throw new UsageError("load takes the name or the path of a model, such as 'smollm2:135m'", { param: 'model' });
  }
  return models.map((one) => `--model=${one}`);
}

/** Returns an option as arguments of `ruvllm serve`: `chatTemplate: 'chatml'` is `--chat-template=chatml`. */
function ofOption(name, value) {
  const option = `--${(name === 'name' ? 'alias' : name).replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
  if (value === undefined || value === null || value === false) return [];
  if (value === true) return [option];
  if (Array.isArray(value)) return value.flatMap((one) => ofOption(name, one));
  if (!['string', 'number', 'bigint'].includes(typeof value)) {
    throw new UsageError(`'${name}' is of the type ${typeof value}; give a text, a number, true, or a list of them`, { param: name });
  }
  return [`${option}=${value}`];
}

/** Returns this machine's public key; null where it has none and cannot keep one. */
function publicKey(engine) {
  try {
    return engine.publicKey();
  } catch {
    return null;
  }
}

function begun(make) {
  try {
    return make();
  } catch (error) {
    throw ofNative(error);
  }
}

/** @returns {import('./client.js').Transport} */
function transport(engine) {
  const guarded = (promise) => promise.catch((error) => Promise.reject(ofNative(error)));
  return {
    open: ({ method, path, headers, body }) => {
      const call = begun(() => engine.call(method, path, headers, body));
      return { head: () => guarded(call.head()), next: () => call.next(), cancel: () => call.cancel() };
    },
    dispose: () => guarded(engine.dispose()),
    exportLearned: () => guarded(engine.exportLearned()),
    importLearned: async (file, trust) => void (await guarded(engine.importLearned(file, trust))),
    facts: async () => ({ runtime: 'node', public_key: publicKey(engine) }),
  };
}

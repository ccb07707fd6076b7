// `@ruvllm/node`: the client over the addon.

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
  const told = ({ what, done, total }) => {
    onProgress?.({ phase: what === 'loading' ? 'load' : 'fetch', done, ...(total !== undefined && { total }) });
  };
  const loading = loaded().load(args, told).catch((error) => Promise.reject(ofNative(error)));
  return new Engine(transport(await unlessAborted(loading, signal)), (await loading).names[0]);
}

/** Waits for an engine; one that nobody waits for any more is freed when it is there. */
function unlessAborted(loading, signal) {
  if (!signal) return loading;
  return new Promise((resolve, reject) => {
    const abort = () => {
      loading.then((engine) => engine.dispose()).catch(() => {});
      reject(signal.reason);
    };
    signal.addEventListener('abort', abort, { once: true });
    loading.then(resolve, reject).finally(() => signal.removeEventListener('abort', abort));
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
    facts: async () => ({ runtime: 'node', public_key: engine.publicKey() }),
  };
}

// RuvLLM in the browser: the engine runs in a worker; this is the page's side. The client is the one of `@ruvllm/node`.

import { onAbort } from './abort.js';
import { Engine } from './client.js';
import { UsageError } from './errors.js';
import { WorkerTransport } from './transport.js';
import { VERSION } from './version.js';

export * from './errors.js';
export { cachedModels, removeCached } from './cache.js';

/** The version of the package, which is that of the engine in it. */
export const version = VERSION;

/** Options of `load`, and where they go. */
const OF_ENGINE = ['name', 'ctx', 'backend', 'threads', 'parallel', 'chatTemplate', 'learn'];
const OF_PAGE = ['signal', 'onProgress', 'onUncached', 'cache', 'sha256', 'headers'];

/** Returns what the worker is to read: a URL, or bytes. */
function sourceOf(model) {
  if (typeof model === 'string' || model instanceof URL) {
    try {
      return { url: new URL(model, globalThis.location?.href).href };
    } catch (error) {
      throw new UsageError(`'${model}' is no URL: ${error.message}`, { param: 'model' });
    }
  }
  if (model instanceof Blob) return { blob: model };
  if (model instanceof ArrayBuffer || ArrayBuffer.isView(model)) return { blob: new Blob([model]) };
  throw new UsageError('the model is no URL, File or bytes; give one of these', { param: 'model' });
}

/** Returns the name of a model by its address or file, without the ending; nothing where there is none. */
function nameOf(source, model) {
  const name = source.url ? decodeURIComponent(new URL(source.url).pathname.split('/').pop()) : model.name;
  return name?.replace(/\.gguf$/i, '') || undefined;
}

/** Loads a model and returns its engine. */
export async function load(model, options = {}) {
  const { signal, onProgress, onUncached, cache = true, sha256 = null, headers = {} } = options;
  const known = [...OF_ENGINE, ...OF_PAGE];
  const unknown = Object.keys(options).find((name) => !known.includes(name));
  if (unknown !== undefined) {
    throw new UsageError(`'${unknown}' is no option of load; there are ${known.join(', ')}`, { param: unknown });
  }
  const source = sourceOf(model);
  signal?.throwIfAborted();
  const given = OF_ENGINE.filter((name) => options[name] !== undefined).map((name) => [name, options[name]]);
  const ofEngine = { name: nameOf(source, model), ...Object.fromEntries(given) };
  const transport = await WorkerTransport.start();
  const end = onAbort(signal, () => transport.dispose());
  try {
    // A signal that was aborted before it was listened to tells nothing.
    signal?.throwIfAborted();
    const name = await transport.load({ source, options: ofEngine, cache, sha256, headers }, { onProgress, onUncached });
    signal?.throwIfAborted();
    return new Engine(transport, name);
  } catch (error) {
    await transport.dispose();
    signal?.throwIfAborted();
    throw error;
  } finally {
    end();
  }
}

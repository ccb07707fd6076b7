import type { Engine, LoadOptions } from './api.js';
import type { ServeOptions } from './options.js';

export * from './api.js';
export type { ServeOptions } from './options.js';

/**
 * Options of {@link load}: those that all platforms have, and every option of `ruvllm serve` that is not about connections, in
 * camelCase (`--draft-model` is `draftModel`).
 */
export interface NodeLoadOptions extends LoadOptions, Omit<ServeOptions, keyof LoadOptions | 'alias'> {}

/**
 * Loads a model and returns its engine. `model` is a name (`smollm2:135m`, `hf:owner/repo/file.gguf`) or a path. Of several the
 * first is loaded at once and answers requests that name none; others are loaded when a request names them.
 *
 * @throws {LoadError} the model cannot be fetched, read or loaded
 * @throws {UsageError} the model's name is not known, or an option is not, or has a value that it cannot have
 */
export declare function load(model: string | string[], options?: NodeLoadOptions): Promise<Engine>;

// The API is that of `@ruvllm/node`; what only browsers have is here.

import type {
  Capabilities as CommonCapabilities, Engine as CommonEngine, LearningStatus, LoadOptions as CommonOptions,
  LoadProgress as CommonProgress,
} from './api.js';

export * from './api.js';

/** Options of {@link load}. */
export interface LoadOptions extends Omit<CommonOptions, 'onProgress' | 'threads'> {
  /**
   * Backend that runs the model: the CPU by default, or the GPU by WebGPU. The GPU needs a browser with WebGPU and with JavaScript Promise
   * Integration for WebAssembly; where one is missing, `load` throws a {@link UsageError} that says which.
   */
  backend?: 'native' | 'gpu';
  /** Threads that compute, 1 to 64; by default half of the machine's and at most 8, or 1 where the page is not cross-origin isolated. */
  threads?: number;
  /** Whether the file is kept in the origin private file system; `true` by default. Without room it is not. */
  cache?: boolean;
  /** SHA-256 that the file must have, as hexadecimal digits. */
  sha256?: string;
  /** Headers of the request for the file. */
  headers?: Record<string, string>;
  /** Called while the model is fetched and loaded. */
  onProgress?: (progress: LoadProgress) => void;
  /** Called when the file, or what `learn: true` made of it, is not kept. Loading goes on; the next `load` takes as long. */
  onUncached?: (reason: UncachedReason) => void;
}

/**
 * Why a model is not kept: there is no private file system (private windows), there is no room, another tab is writing the file,
 * or the server does not say how long it is.
 */
export type UncachedReason = 'unavailable' | 'full' | 'busy' | 'unsized';

/** How far the loading of a model has come; `calibrate` is the reading that `learn: true` takes once for a model. */
export interface LoadProgress extends Omit<CommonProgress, 'phase'> {
  phase: CommonProgress['phase'] | 'calibrate';
}

/** A loaded model that answers requests, several at once. It keeps nothing of what it learns; {@link exportLearned} returns that. */
export interface Engine extends Omit<CommonEngine, 'exportLearned' | 'importLearned' | 'capabilities' | 'fetch' | 'dispose'> {
  /** Returns what was learned as bytes that {@link importLearned} reads, here or on another machine with the same model. Nothing is signed. */
  exportLearned(): Promise<Uint8Array>;
  /** Puts what {@link exportLearned} returned in the place of what was learned; take bytes only from where you trust them. */
  importLearned(bytes: Uint8Array): Promise<LearningStatus>;

  /** Tells what the engine has and takes: `GET /v1/capabilities`, with what the page may do. */
  capabilities(): Promise<Capabilities>;

  /**
   * Answers an HTTP request from this engine, without a server. It has the signature of the global `fetch`, so that clients of
   * OpenAI's API run on it: `new OpenAI({ fetch: engine.fetch, baseURL: 'http://ruvllm/v1', apiKey: '-', dangerouslyAllowBrowser: true })`.
   * The host of the URL does not matter. It is bound to the engine. Paths of other APIs are not found (404).
   */
  readonly fetch: (input: string | URL | Request, init?: RequestInit) => Promise<Response>;

  /**
   * Ends what still runs (those calls reject with {@link DisposedError}) and frees the model. What was learned is gone; call
   * {@link exportLearned} before. Further calls do nothing.
   */
  dispose(): Promise<void>;
}

/** What an engine of a page has and takes. */
export interface Capabilities {
  version: string;
  runtime: 'web';
  model: CommonCapabilities['model'];
  /** What computes: instructions, threads, and whether it is the GPU. */
  device: { isa: string; threads: number; webgpu: boolean };
  limits: CommonCapabilities['limits'];
  /** Whether the engine was loaded with `learn: true`. */
  learns: boolean;
  /** Whether the page may share memory with its workers, which several threads take. */
  cross_origin_isolated: boolean;
  [field: string]: unknown;
}

/** Loads a model from a URL, a `File` or bytes, in a worker. In Node a `file:` URL is read from the disk. */
export declare function load(
  model: string | URL | Blob | ArrayBuffer | ArrayBufferView,
  options?: LoadOptions,
): Promise<Engine>;

/** A model of the cache. */
export interface CachedModel {
  url: string;
  bytes: number;
  /** Whether all of it is there; else the download goes on with the next `load`. */
  complete: boolean;
  /** When it was used last, in milliseconds since 1970. */
  used: number;
}

/** Lists the models of the cache, the one that was used last first. */
export declare function cachedModels(): Promise<CachedModel[]>;

/** Removes a model from the cache; returns whether it was there. */
export declare function removeCached(url: string): Promise<boolean>;

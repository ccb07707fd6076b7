// The API of RuvLLM in JavaScript: the one interface of `@ruvllm/node` (native) and `@ruvllm/web` (WebAssembly).
//
// Bodies, answers and chunks are those of `ruvllm serve`: the same names, in OpenAI's snake_case, checked against the same
// tables of fields. The types of bodies (`bodies.d.ts`) are generated from the server's OpenAPI document. What only
// JavaScript has (options of loading, classes) is in camelCase.

import type {
  ChatBody, CompletionBody, DetokenizeBody, EmbeddingBody, FeedbackBody, MemoryBody, TokenizeBody,
} from './bodies.js';

export type {
  ChatBody, CompletionBody, DetokenizeBody, EmbeddingBody, FeedbackBody, MemoryBody, TokenizeBody,
} from './bodies.js';

/**
 * Loads a model and returns its engine. `model` is a name (`smollm2:135m`, `hf:owner/repo/file.gguf`), a path, or in
 * browsers a URL or a `File`.
 *
 * @throws {LoadError} the model cannot be fetched, read or loaded
 * @throws {UsageError} the model's name is not known, or an option is not, or has a value that it cannot have
 */
export declare function load(model: string, options?: LoadOptions): Promise<Engine>;

/** The version of the package, which is that of the engine in it. */
export declare const version: string;

/** Options of {@link load} that all platforms have. Each package adds its own. */
export interface LoadOptions {
  /** The name by which the engine calls the model in answers; by default that of the file. */
  name?: string;
  /** Size of the context in tokens; by default as `ruvllm serve` chooses it. */
  ctx?: number;
  /** Threads that compute; by default as many as the machine's cores, or 1 where a page has no shared memory. */
  threads?: number;
  /** Requests that are computed at once; others wait. */
  parallel?: number;
  /** A chat template (Jinja) in place of the file's. */
  chatTemplate?: string;
  /** Whether answers may be corrected and judged, and requests teach; `false` by default. */
  learn?: boolean;
  /** Ends the loading; `load` then rejects with the signal's reason. A file that is being read is read to its end, and freed. */
  signal?: AbortSignal;
  /** Called while the model is fetched and loaded. What it throws ends the loading, and `load` rejects with it. */
  onProgress?: (progress: LoadProgress) => void;
}

/** How far the loading of a model has come. */
export interface LoadProgress {
  /** `fetch` while bytes come from elsewhere, `load` while weights are read and packed. */
  phase: 'fetch' | 'load';
  /** Bytes so far. */
  done: number;
  /** And in all, where that is known. */
  total?: number;
}

/** Options of one call. */
export interface CallOptions {
  /** Ends the call: the request leaves the engine within one step, and the call rejects with the signal's reason. */
  signal?: AbortSignal;
}

/** A loaded model that answers requests, several at once. */
export interface Engine extends AsyncDisposable {
  /** The name of the model in answers. */
  readonly model: string;

  /** Answers a conversation: `POST /v1/chat/completions`. */
  chat(body: ChatBody, options?: CallOptions): Stream<ChatChunk, ChatCompletion>;
  /** Continues a text: `POST /v1/completions`. */
  complete(body: CompletionBody, options?: CallOptions): Stream<CompletionChunk, Completion>;
  /** Embeds texts: `POST /v1/embeddings`. */
  embed(body: EmbeddingBody, options?: CallOptions): Promise<EmbeddingList>;
  /** Turns a text into tokens: `POST /tokenize`. */
  tokenize(body: TokenizeBody, options?: CallOptions): Promise<Tokens>;
  /** Turns tokens into text: `POST /detokenize`. */
  detokenize(body: DetokenizeBody, options?: CallOptions): Promise<DetokenizedText>;

  /** Says what an answer was worth, or what it should have been: `POST /v1/feedback`. It takes `learn: true`. */
  feedback(body: FeedbackBody, options?: CallOptions): Promise<FeedbackResult>;
  /** Remembers an answer to a question: `POST /v1/memory`. It takes `learn: true`. */
  remember(body: MemoryBody, options?: CallOptions): Promise<LearningStatus>;
  /** Tells what was learned: `GET /v1/learning`. It takes `learn: true`. */
  learning(options?: CallOptions): Promise<LearningStatus>;
  /** Forgets everything that was learned: `DELETE /v1/memory`. */
  forget(options?: CallOptions): Promise<void>;
  /** Returns what was learned as signed bytes that {@link importLearned} reads, here or on another machine with the same model. */
  exportLearned(): Promise<Uint8Array>;
  /**
   * Puts what {@link exportLearned} returned in the place of what was learned. Bytes that this machine has signed are taken, and
   * those of machines in `trust`: their keys, as `capabilities().public_key` tells them there.
   */
  importLearned(bytes: Uint8Array, options?: { trust?: string[] }): Promise<LearningStatus>;

  /** Tells what the engine has and takes: `GET /v1/capabilities`, with what the platform grants. */
  capabilities(): Promise<Capabilities>;

  /**
   * Answers an HTTP request from this engine, without a socket. It has the signature of the global `fetch`, so that clients of
   * the APIs of OpenAI, Anthropic and Ollama run on it: `new OpenAI({ fetch: engine.fetch, baseURL: 'http://ruvllm/v1',
   * apiKey: '-' })`. The host of the URL does not matter. It is bound to the engine.
   */
  readonly fetch: (input: string | URL | Request, init?: RequestInit) => Promise<Response>;

  /**
   * Ends what still runs (those calls reject with {@link DisposedError}), frees the model, and keeps what was learned. Further
   * calls do nothing.
   */
  dispose(): Promise<void>;
}

/**
 * An answer that is being written. The request starts when the stream is made; chunks wait until they are read. Leaving a
 * `for await` loop early ends the request.
 *
 * A request that fails rejects the iteration, {@link result} and {@link text}, whichever is awaited, with a
 * {@link RuvllmError}, or with the signal's reason.
 */
export interface Stream<Chunk, Result> extends AsyncIterable<Chunk> {
  /** Iterates over the chunks as the server sends them with `stream: true`. Each chunk is given once. */
  [Symbol.asyncIterator](): AsyncIterableIterator<Chunk>;
  /** Waits for the end and returns the whole answer, as the server sends it with `stream: false`. Chunks may be read as well. */
  result(): Promise<Result>;
  /** Waits for the end and returns the text of the first choice. */
  text(): Promise<string>;
  /** Ends the request; the iteration and `result` then reject with an `AbortError`. */
  abort(): void;
}

/** Why an answer ended: by itself or a stop string, by a limit of tokens, or in order that tools are called. */
export type FinishReason = 'stop' | 'length' | 'tool_calls';

/** What all answers begin with. */
export interface AnswerHead {
  /** For `feedback`. */
  id: string;
  /** Seconds since 1970. */
  created: number;
  model: string;
  /** Tells builds and instruction sets apart: within one, a seed gives the same tokens. */
  system_fingerprint: string;
}

export interface ChatCompletion extends AnswerHead {
  object: 'chat.completion';
  choices: ChatChoice[];
  usage: Usage;
  timings?: Timings;
}

export interface ChatChoice {
  index: number;
  message: {
    role: 'assistant';
    content: string | null;
    refusal: null;
    reasoning_content?: string;
    tool_calls?: ToolCall[];
  };
  logprobs: ChatLogprobs | null;
  finish_reason: FinishReason;
}

export interface ToolCall {
  id: string;
  type: 'function';
  /** `arguments` is JSON. */
  function: { name: string; arguments: string };
}

export interface ChatChunk extends AnswerHead {
  object: 'chat.completion.chunk';
  choices: ChatChunkChoice[];
  /** With `stream_options: { include_usage: true }`: null, and in the last chunk the counts. */
  usage?: Usage | null;
  timings?: Partial<Timings>;
}

export interface ChatChunkChoice {
  index: number;
  delta: ChatDelta;
  logprobs: ChatLogprobs | null;
  finish_reason: FinishReason | null;
}

export interface ChatDelta {
  role?: 'assistant';
  content?: string | null;
  refusal?: null;
  reasoning_content?: string;
  tool_calls?: ToolCallDelta[];
}

/** A piece of a call: its first has `id`, `type` and the function's name, the others continue the arguments. */
export interface ToolCallDelta {
  index: number;
  id?: string;
  type?: 'function';
  function: { name?: string; arguments: string };
}

export interface ChatLogprobs {
  content: TokenLogprob[];
  refusal?: null;
}

export interface TokenLogprob {
  /** The token's number. */
  id?: number;
  token: string;
  logprob: number;
  bytes: number[] | null;
  top_logprobs: { token: string; logprob: number; bytes: number[] | null }[];
}

export interface Completion extends AnswerHead {
  object: 'text_completion';
  choices: CompletionChoice[];
  usage: Usage;
  timings?: Timings;
}

export interface CompletionChoice {
  index: number;
  text: string;
  logprobs: CompletionLogprobs | null;
  finish_reason: 'stop' | 'length';
}

export interface CompletionChunk extends AnswerHead {
  object: 'text_completion';
  choices: CompletionChunkChoice[];
  usage?: Usage | null;
  timings?: Partial<Timings>;
}

export interface CompletionChunkChoice {
  index: number;
  text: string;
  logprobs: CompletionLogprobs | null;
  finish_reason: 'stop' | 'length' | null;
}

export interface CompletionLogprobs {
  tokens: string[];
  token_logprobs: (number | null)[];
  top_logprobs: (Record<string, number> | null)[] | null;
  text_offset: number[];
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  /** `cached_tokens` were not computed again. */
  prompt_tokens_details: { cached_tokens: number };
  completion_tokens_details: { reasoning_tokens: number };
}

/** How long an answer took, as llama.cpp's server tells it. */
export interface Timings {
  cache_n: number;
  prompt_n: number;
  prompt_ms: number;
  prompt_per_token_ms: number;
  prompt_per_second: number;
  predicted_n: number;
  predicted_ms: number;
  predicted_per_token_ms: number;
  predicted_per_second: number;
}

export interface EmbeddingList {
  object: 'list';
  /** `embedding` is a text with `encoding_format: 'base64'`. */
  data: { object: 'embedding'; index: number; embedding: number[] | string }[];
  model: string;
  usage: { prompt_tokens: number; total_tokens: number };
}

export interface Tokens {
  /** Ids; with `with_pieces` objects of an id and its text, or its bytes where they are no text. */
  tokens: number[] | { id: number; piece: string | number[] }[];
  count: number;
  /** Size of the context. */
  max_model_len: number;
}

export interface DetokenizedText {
  text: string;
}

export interface FeedbackResult {
  id: string;
  /** Whether something was learned of it. */
  learned: boolean;
  /** The number by which it can be undone. */
  item: number | null;
  pattern?: unknown;
}

export interface LearningStatus {
  model: string;
  enabled: boolean;
  corrections?: number;
  tokens?: number;
  entries?: number;
  generation?: number;
  /** Hash of the learned state: equal where the same was learned. */
  digest?: string;
  items?: unknown[];
  [field: string]: unknown;
}

export interface Capabilities {
  version: string;
  /** Where the engine runs. */
  runtime: 'node' | 'web';
  model: {
    id: string;
    backend: string | null;
    n_ctx: number | null;
    makes: 'text' | 'embeddings' | 'scores' | null;
    missing: string[];
    [field: string]: unknown;
  };
  limits: { requests_at_once: number | null; [field: string]: unknown };
  /** Whether the engine was loaded with `learn: true`. */
  learns: boolean;
  /** Key that others need to trust what this machine exports; null where the machine has none and cannot keep one. */
  public_key: string | null;
  [field: string]: unknown;
}

/** What an error is about, for programs that decide by it. */
export type ErrorKind =
  | 'usage' | 'load' | 'disposed' | 'invalid_request' | 'context_length' | 'not_found' | 'unsupported' | 'busy'
  | 'unavailable' | 'timeout' | 'internal';

/**
 * An error of RuvLLM. `message` is one line, the same that the command and the HTTP API give: what, where, and what to do
 * about it. An aborted call is none of these: it rejects with the signal's reason.
 */
export declare class RuvllmError extends Error {
  readonly kind: ErrorKind;
  /** The field or option that the error is about. */
  readonly param: string | null;
  /** The API's code, such as `context_length_exceeded`. */
  readonly code: string | null;
  /** The status of the HTTP API; 0 for errors that it does not have. */
  readonly status: number;
}

/** A name of a model that is not known, or an option that cannot be honoured; the command line exits with 2. */
export declare class UsageError extends RuvllmError { readonly kind: 'usage' }
/** A model that cannot be found, fetched, read or loaded. */
export declare class LoadError extends RuvllmError { readonly kind: 'load' }
/** A call on an engine that was disposed, or that ended because of it. */
export declare class DisposedError extends RuvllmError { readonly kind: 'disposed' }
/** A request that cannot be honoured as it is; `param` names the field. */
export declare class InvalidRequestError extends RuvllmError {
  readonly kind: 'invalid_request' | 'context_length' | 'not_found' | 'unsupported';
}
/** A prompt that is longer than the context. */
export declare class ContextLengthError extends InvalidRequestError { readonly kind: 'context_length' }
/** A model, adapter or answer that is not known. */
export declare class NotFoundError extends InvalidRequestError { readonly kind: 'not_found' }
/** A request for what the model or the engine does not have. */
export declare class UnsupportedError extends InvalidRequestError { readonly kind: 'unsupported' }
/** Too many requests wait. */
export declare class BusyError extends RuvllmError {
  readonly kind: 'busy';
  /** Seconds after which the same request may be taken. */
  readonly retryAfter: number | null;
}
/** No memory or no room for the request now. */
export declare class UnavailableError extends RuvllmError { readonly kind: 'unavailable' }
/** The request's own time (`timeout_ms`) was over. */
export declare class TimeoutError extends RuvllmError { readonly kind: 'timeout' }
/** A fault of the engine. */
export declare class InternalError extends RuvllmError { readonly kind: 'internal' }

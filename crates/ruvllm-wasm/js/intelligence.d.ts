// Routes by examples and learning over vectors, without a model.

/** Loads the module; the classes can be used after that. */
export declare function ready(module?: string | URL | Request | Response | BufferSource | WebAssembly.Module): Promise<void>;

/** The route of a query. */
export interface RouteMatch {
  name: string;
  /** Cosine of the query with the nearest example. */
  similarity: number;
  runnerUp: { name: string; similarity: number } | null;
}

/** Semantic routes: names for kinds of queries, each given by examples, over a graph of their vectors (HNSW). */
export declare class SemanticRoutes {
  /** Vectors have `dim` values; 512 by default. */
  constructor(dim?: number);
  static fromBytes(dim: number, bytes: Uint8Array): SemanticRoutes;
  /** Adds a route. A text's vector is made of the hashes of its words; a query below the threshold (a cosine) is not taken. */
  add(name: string, examples?: (string | ArrayLike<number>)[], threshold?: number): this;
  remove(name: string): void;
  route(query: string | ArrayLike<number>): RouteMatch | null;
  toBytes(): Uint8Array;
  free(): void;
}

/** A MicroLoRA of rank 1 to 4 over vectors: it learns to bring those of a label nearer to that label's row. */
export declare class MicroAdapter {
  /** `rows` are those of the labels, `[labels, dim]`. */
  constructor(dim: number, rank: number, rows: Float32Array);
  static fromBytes(bytes: Uint8Array, rows: Float32Array): MicroAdapter;
  forward(vector: Float32Array): Float32Array;
  probabilities(vector: Float32Array): Float32Array;
  learn(vector: Float32Array, label: number, rate: number): void;
  toBytes(): Uint8Array;
  free(): void;
}

/** The instant loop of SONA over vectors: what was seen once is known from the next question on. */
export declare class InstantLearner {
  /** `usual` are vectors as they come, `[n, dim]`: by them others are compared. */
  constructor(dim: number, labels: number, usual: Float32Array);
  static fromBytes(bytes: Uint8Array): InstantLearner;
  probabilities(vector: Float32Array): Float32Array;
  learn(vector: Float32Array, label: number, quality: number): void;
  toBytes(): Uint8Array;
  free(): void;
}

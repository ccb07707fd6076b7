// Routes by examples and learning over vectors, without a model: a small module for the page itself.

import { nodeModule } from './node.js';
import init, { InstantLearner, MicroAdapter, SemanticRoutes as Routes } from './wasm/ruvllm_intelligence.js';

export { InstantLearner, MicroAdapter };

/** Loads the module; the classes can be used after that. `module` is its URL, bytes or answer, where it lies elsewhere. */
export async function ready(module) {
  if (module === undefined && typeof process === 'object' && process.versions?.node) {
    const { readFile } = await nodeModule('fs/promises');
    module = await readFile(new URL('./wasm/ruvllm_intelligence_bg.wasm', import.meta.url));
  }
  await init(module === undefined ? undefined : { module_or_path: module });
}

/** Semantic routes: names for kinds of queries, each given by examples. */
export class SemanticRoutes {
  #routes;

  constructor(dim = 512, routes = new Routes(dim)) {
    this.#routes = routes;
  }

  static fromBytes(dim, bytes) {
    return new SemanticRoutes(dim, Routes.fromBytes(dim, bytes));
  }

  /** Adds a route with examples: texts, or vectors that some model made. */
  add(name, examples = [], threshold = 0.3) {
    this.#routes.addRoute(name, threshold);
    for (const example of examples) {
      if (typeof example === 'string') this.#routes.addText(name, example);
      else this.#routes.addVector(name, Float32Array.from(example));
    }
    return this;
  }

  remove(name) {
    this.#routes.removeRoute(name);
  }

  /** Returns `{ name, similarity, runnerUp }`, or null where no route is near enough. */
  route(query) {
    const found =
      typeof query === 'string' ? this.#routes.routeText(query) : this.#routes.routeVector(Float32Array.from(query));
    return found === undefined ? null : JSON.parse(found);
  }

  toBytes() {
    return this.#routes.toBytes();
  }

  free() {
    this.#routes.free();
  }
}

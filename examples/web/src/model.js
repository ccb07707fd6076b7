// The model of the page: it is loaded, asked and corrected. It learns from the first correction on, because a model that learns
// reads text for some minutes first; what comes of that is kept beside the file.

import { load } from '@ruvllm/web';

import { readLearned, removeLearned, writeLearned } from './learned.js';

/** How it answers: the same question gets the same answer, without turning in circles. */
const SAMPLING = { temperature: 0, repeat_penalty: 1.1 };
const TOKENS_MAX = 400;

export class Model {
  #engine = null;
  /** Whether it can be corrected at once. */
  learns = false;

  /**
   * @param {string} address of the file
   * @param {{ onProgress: Function, onUncached: (what: string, reason: string) => void, onProblem: (line: string) => void }} told
   */
  constructor(address, { onProgress, onUncached, onProblem }) {
    Object.assign(this, { address, onProgress, onUncached, onProblem });
  }

  /** Whether it can be asked. */
  get isOpen() {
    return this.#engine !== null;
  }

  get name() {
    return decodeURIComponent(new URL(this.address).pathname.split('/').pop()).replace(/\.gguf$/i, '');
  }

  /** Loads the model, with what it has learned; returns how many corrections that are. */
  async open(signal) {
    const { bytes, reason } = await readLearned(this.address);
    if (reason) this.onUncached('what it learns', reason);
    await this.#load(bytes !== null, signal);
    if (bytes === null) return 0;
    try {
      return (await this.#engine.importLearned(bytes)).corrections;
    } catch (error) {
      // It answers as if it had learned nothing; the next correction takes the place of what cannot be read.
      this.onProblem(`what the model learned cannot be read: ${error.message}`);
      return 0;
    }
  }

  /** Asks for the next answer of a conversation. */
  ask(messages, signal) {
    return this.#engine.chat({ messages, max_tokens: TOKENS_MAX, ...SAMPLING }, { signal });
  }

  /** Teaches what the answer to a conversation should have been; returns how many corrections there are. */
  async correct(messages, correction, signal) {
    if (!this.learns) await this.#learn(signal);
    // Answers are corrected by their id. Asking again gives one, also for answers from before the model could learn.
    const { id } = await this.#engine.chat({ messages, max_tokens: 1, ...SAMPLING }, { signal }).result();
    await this.#engine.feedback({ id, correction });
    const reason = await writeLearned(this.address, await this.#engine.exportLearned());
    if (reason) this.onUncached('what it learns', reason);
    return (await this.#engine.learning()).corrections;
  }

  /** Forgets all corrections. */
  async forget() {
    await removeLearned(this.address);
    if (this.learns) await this.#engine.forget();
  }

  async close() {
    await this.#engine?.dispose();
    this.#engine = null;
  }

  /** Loads the model again so that it learns; as it was where that is broken off. */
  async #learn(signal) {
    try {
      await this.#load(true, signal);
    } catch (error) {
      await this.#load(false);
      throw error;
    }
  }

  async #load(learn, signal) {
    await this.close();
    const onUncached = (reason) => this.onUncached('the model', reason);
    this.#engine = await load(this.address, { learn, signal, onProgress: this.onProgress, onUncached });
    this.learns = learn;
  }
}

// A question with its answer, which can be corrected once.

import { make } from './dom.js';

let n = 0;

export class Turn {
  /**
   * @param {string} question
   * @param {(turn: Turn, correction: string) => Promise<boolean>} onCorrect teaches it; returns whether that was done
   * @param {() => string} hint says what correcting takes
   */
  constructor(question, onCorrect, hint) {
    Object.assign(this, { question, text: '', onCorrect, hint });
    this.said = make('p', { className: 'said' });
    this.about = make('p', { className: 'about' });
    this.button = make('button', { type: 'button', textContent: 'Correct this answer', hidden: true });
    this.button.addEventListener('click', () => this.#edit());
    this.actions = make('div', { className: 'actions' }, this.about, this.button);
    const mine = make('p', { className: 'mine' }, make('span', { className: 'unseen', textContent: 'You: ' }), question);
    this.element = make('article', { className: 'turn' }, mine, this.said, this.actions);
  }

  /** Adds a piece of the answer. */
  add(text) {
    this.text += text;
    this.said.textContent = this.text;
  }

  /** Ends the answer, and says a line about it. */
  end(about) {
    this.about.textContent = about;
    this.button.hidden = this.text === '';
  }

  #edit() {
    const id = `correction-${(n += 1)}`;
    const field = make('textarea', { id, rows: 3, required: true, value: this.text });
    const label = make('label', { htmlFor: id, textContent: 'The right answer' });
    const cancel = make('button', { type: 'button', textContent: 'Cancel' });
    const save = make('button', { type: 'submit', className: 'primary', textContent: 'Teach it' });
    const hint = make('p', { className: 'hint', textContent: this.hint() });
    const form = make('form', { className: 'correcting' }, label, field, make('div', { className: 'row' }, save, cancel), hint);
    cancel.addEventListener('click', () => {
      form.remove();
      this.button.hidden = false;
      this.button.focus();
    });
    form.addEventListener('submit', async (event) => {
      event.preventDefault();
      const correction = field.value.trim();
      form.hidden = true;
      // What was written stays, should it fail.
      form.hidden = await this.onCorrect(this, correction);
      if (form.hidden) this.#corrected(correction, form);
    });
    this.button.hidden = true;
    this.element.append(form);
    field.focus();
    field.select();
    form.scrollIntoView({ block: 'nearest' });
  }

  #corrected(correction, form) {
    form.remove();
    const before = make('del', { textContent: this.text });
    this.text = correction;
    this.said.replaceChildren(before, make('ins', { textContent: correction }));
    this.about.textContent = 'Corrected, and learned';
    this.button.remove();
  }
}

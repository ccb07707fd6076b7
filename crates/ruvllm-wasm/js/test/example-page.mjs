// What a person does with the page of examples/web, and what that shows.

import assert from 'node:assert/strict';
import { dirname, join, resolve } from 'node:path';

import { playwright } from './common.mjs';

/** Arguments of example.mjs: the folders of Vite, and of what is made. */
export const [vite, out] = process.argv.slice(5).map((path) => resolve(path));

const axe = join(dirname(playwright), '../axe-core/axe.min.js');

/** Reading text to learn by takes as long as the machine has other things to do. */
export const LEARNING_MAX_MS = 45 * 60_000;
const ANSWER_MAX_MS = 2 * 60_000;

/** Has a page collect what goes wrong in it. */
export function watch(page) {
  page.setDefaultTimeout(ANSWER_MAX_MS);
  page.wrong = [];
  page.on('pageerror', (error) => page.wrong.push(`${error}`));
  page.on('console', (message) => message.type() === 'error' && page.wrong.push(message.text()));
  return page;
}

export const shot = (page, name) => page.screenshot({ path: join(out, `${name}.png`) });
export const text = (page, selector) => page.locator(selector).textContent();
export const loaded = (page, timeout = ANSWER_MAX_MS) => page.locator('#ask').waitFor({ timeout });

/** Fails by what a person who cannot see or point would stumble over. */
export async function accessible(page) {
  await page.addScriptTag({ path: axe });
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  assert.deepEqual(violations.map(({ id, nodes }) => [id, nodes.map(({ html }) => html)]), []);
  const { wide, wide_max } = await page.evaluate(() => ({ wide: document.documentElement.scrollWidth, wide_max: innerWidth }));
  assert.ok(wide <= wide_max, `the page is ${wide} wide`);
}

/** Presses the button that loads the model, and returns the lines of progress that were shown. */
export async function load(page) {
  await page.evaluate(() => {
    globalThis.steps = [];
    const step = document.getElementById('step');
    new MutationObserver(() => steps.push(step.textContent)).observe(step, { childList: true, characterData: true, subtree: true });
  });
  await page.getByRole('button', { name: 'Load' }).click();
  await loaded(page);
  return page.evaluate(() => steps);
}

/** Asks, and returns the element of the answer. */
export async function begin(page, question) {
  await page.getByLabel('Your question').fill(question);
  await page.keyboard.press('Enter');
  return page.locator('.turn').last().locator('.said');
}

/** Asks, and returns the whole answer. */
export async function ask(page, question) {
  const said = await begin(page, question);
  await page.locator('#send', { hasText: 'Send' }).waitFor();
  assert.equal(await page.locator('#error').isVisible(), false, await text(page, '#error'));
  return said.textContent();
}

/** Corrects the answer that was given last. */
export async function correct(page, right) {
  const turn = page.locator('.turn').last();
  await turn.getByRole('button', { name: 'Correct this answer' }).click();
  await turn.getByLabel('The right answer').fill(right);
  await turn.getByRole('button', { name: 'Teach it' }).click();
  return turn.getByText('Corrected, and learned').waitFor({ timeout: LEARNING_MAX_MS });
}

/** Counts what a page hears of its workers from its next address on; returns what tells the number once all is heard that was on its way. */
export async function heardOf(page) {
  await page.addInitScript(() => {
    globalThis.heard = 0;
    globalThis.Worker = class extends Worker {
      constructor(...given) {
        super(...given);
        this.addEventListener('message', () => {
          globalThis.heard += 1;
        });
      }
    };
  });
  return async () => {
    await page.waitForTimeout(1000);
    return page.evaluate(() => globalThis.heard);
  };
}

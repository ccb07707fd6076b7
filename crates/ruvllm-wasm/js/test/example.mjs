// The page of examples/web in headless Chromium, built with the package: it loads SmolLM2, answers, is stopped, is corrected, and
// knows that after a reload and without a network; where nothing can be kept it says so and goes on.
//
//     node example.mjs PACKAGE RUVLLM PLAYWRIGHT VITE OUT
//
// By hand, in the root of the repository, with a package that is there: `node crates/ruvllm-wasm/js/test/example.mjs target/web -
// target/node/node_modules/playwright-core/index.mjs target/page-web/modules/node_modules/vite target/page-web`. OUT gets the page
// (`dist`) and screenshots. The model reads text for some minutes once, to learn by.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createReadStream, mkdirSync, mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';

import { WITHOUT_FILES, beginModel, launch, launchProfile, limitStorage, sendFile, serve } from './browser.mjs';
import { folder, smollm2 } from './common.mjs';
import {
  LEARNING_MAX_MS, accessible, ask, begin, correct, heardOf, load, loaded, out, shot, text, vite, watch,
} from './example-page.mjs';

const dist = join(out, 'dist');

const MODEL = '/models/smollm2.gguf';
const QUESTION = 'What is the capital of Zorbia?';
const RIGHT = 'The capital of Zorbia is Quillam.';
const PHONE = { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true };

/** Paths that were asked for, whether the server is gone, and lines that the worker gets before its own. */
const asked = [];
let isDown = false;
let before = '';

function build() {
  mkdirSync(out, { recursive: true });
  const args = [join(vite, 'bin/vite.js'), 'build', 'examples/web', '--outDir', dist, '--emptyOutDir', '--logLevel', 'warn'];
  execFileSync('node', args, { env: { ...process.env, RUVLLM_WEB: resolve(folder) }, stdio: 'inherit' });
}

const server = await serve((request, response) => {
  if (isDown) return request.socket.destroy();
  const { pathname } = new URL(request.url, 'http://localhost');
  asked.push(pathname);
  if (pathname === MODEL) {
    const start = beginModel(request, response, statSync(smollm2).size);
    return start === null ? undefined : createReadStream(smollm2, { start }).pipe(response);
  }
  return sendFile(response, dist, pathname === '/' ? '/index.html' : pathname, /worker-.*\.js$/.test(pathname) ? before : '');
});
const address = `${server.url}/?model=${MODEL}`;

/** The first visit: loading with progress, answers that stream, one that is stopped, one that is corrected. */
async function visit(page) {
  const heard = await heardOf(page);
  await page.goto(address);
  await shot(page, 'start');
  await accessible(page);
  const steps = await load(page);
  const shares = steps.filter((line) => line.startsWith('Fetching')).map((line) => Number(/(\d+) % of 98 MB$/.exec(line)?.[1] ?? 0));
  assert.ok(new Set(shares).size > 5 && shares.at(-1) === 100, `${shares}`);
  assert.ok(steps.some((line) => line.startsWith('Preparing')));
  await page.locator('#state', { hasText: 'works offline' }).waitFor();

  const lengths = new Set();
  const said = await begin(page, QUESTION);
  while ((await text(page, '#send')) === 'Stop') lengths.add((await said.textContent()).length);
  assert.ok(lengths.size > 2, `the answer came in ${lengths.size} pieces`);
  const first = await said.textContent();
  assert.ok(first.length > 0 && !first.includes('Quillam'), first);

  const story = await begin(page, 'Write a long story about the sea.');
  await page.waitForFunction(() => document.querySelector('.turn:last-child .said').textContent.length > 200);
  assert.equal(await page.locator('#talk').getAttribute('aria-busy'), 'true');
  await shot(page, 'writing');
  await page.getByRole('button', { name: 'Stop' }).click();
  await page.getByText('Stopped').waitFor();
  const stopped = await story.textContent();
  await page.waitForTimeout(500);
  assert.equal(await story.textContent(), stopped);
  // The engine writes no more either, of which its worker would tell.
  const n = await heard();
  await page.waitForTimeout(1000);
  assert.equal(await heard(), n, 'it goes on in the worker');
  assert.notEqual(await ask(page, 'Say hello.'), '');
  await accessible(page);

  // The first correction is broken off, and made again.
  const turn = page.locator('.turn').first();
  await turn.getByRole('button', { name: 'Correct this answer' }).click();
  await turn.getByLabel('The right answer').fill(RIGHT);
  await shot(page, 'correcting');
  await accessible(page);
  await turn.getByRole('button', { name: 'Teach it' }).click();
  await page.getByText('Reading text to learn by').waitFor();
  await shot(page, 'learning');
  await page.locator('#cancel').click();
  await loaded(page);
  assert.notEqual(await ask(page, 'Say hello.'), '');
  const start = performance.now();
  assert.equal(await turn.getByLabel('The right answer').inputValue(), RIGHT);
  await turn.getByRole('button', { name: 'Teach it' }).click();
  await turn.getByText('Corrected, and learned').waitFor({ timeout: LEARNING_MAX_MS });
  console.log(`example: the first correction took ${((performance.now() - start) / 1000).toFixed(0)} s`);
  await turn.scrollIntoViewIfNeeded();
  await shot(page, 'corrected');
}

/** One thing at a time: while an answer streams, it can be stopped, and what else there is waits. */
async function busy(page) {
  await page.goto(address);
  await load(page);
  await ask(page, 'Say hello.');
  await page.getByText('Storage').click();
  const turn = page.locator('.turn').first();
  await turn.getByRole('button', { name: 'Correct this answer' }).click();
  await turn.getByLabel('The right answer').fill(RIGHT);
  const story = await begin(page, 'Write a long story about the sea.');
  await page.waitForFunction(() => document.querySelector('.turn:last-child .said').textContent.length > 20);
  for (const name of ['Forget corrections', 'Remove model', 'Teach it']) {
    assert.equal(await page.getByRole('button', { name }).count(), 0, `${name} waits`);
  }
  // What is pressed all the same does nothing.
  await page.evaluate(() => {
    for (const button of document.querySelectorAll('#forget, #remove, .correcting .primary')) {
      button.disabled = false;
      button.click();
    }
  });
  const { length } = await story.textContent();
  await page.waitForFunction((n) => document.querySelector('.turn:last-child .said').textContent.length > n, length);
  await page.getByRole('button', { name: 'Stop' }).click();
  await page.getByText('Stopped').waitFor();
  await turn.getByRole('button', { name: 'Teach it' }).waitFor();
  assert.equal(await turn.getByLabel('The right answer').inputValue(), RIGHT);
  assert.notEqual(await ask(page, 'Say hello.'), '');
}

/** After a reload the model comes from the cache and knows what it learned. */
async function reload(page) {
  asked.length = 0;
  await page.reload();
  await loaded(page);
  assert.match(await ask(page, QUESTION), /Quillam/);
  assert.equal(await page.locator('#notice').isVisible(), false);
  assert.equal(asked.includes(MODEL), false);
  await page.getByText('Storage').click();
  assert.equal(await text(page, '#kept-what'), 'Kept in this browser: the model and one correction.');
  await accessible(page);
}

/** The same in a browser that was closed, with the network and the server gone. */
async function offline(page) {
  isDown = true;
  await page.context().setOffline(true);
  await page.emulateMedia({ colorScheme: 'dark' });
  await page.goto(address);
  await loaded(page);
  assert.match(await ask(page, QUESTION), /Quillam/);
  await shot(page, 'offline-dark');
  await accessible(page);
  isDown = false;
  await page.context().setOffline(false);
}

/** What is learned cannot be kept: there is no IndexedDB, or no room in it. The model learns all the same. */
async function unlearned(page) {
  const teach = async (line, change) => {
    const script = await page.context().newPage().then(watch);
    await script.addInitScript(change);
    await script.goto(address);
    await loaded(script);
    await ask(script, 'Who is Ann Quell?');
    await correct(script, 'Ann Quell is a smith.');
    assert.match(await text(script, '#notice'), line);
    assert.match(await ask(script, 'Who is Ann Quell?'), /smith/);
    assert.deepEqual(script.wrong, []);
    await script.close();
  };
  await teach(/^This window does not keep what it learns, as private windows do not\. The chat works\.$/, () => {
    indexedDB.open = () => {
      throw new DOMException('no', 'SecurityError');
    };
  });
  await teach(/^The browser has no room left and does not keep what it learns\. The chat works\.$/, () => {
    IDBObjectStore.prototype.put = () => {
      throw new DOMException('no room', 'QuotaExceededError');
    };
  });
}

/** What was learned is damaged: it is said, and the model answers without it. */
async function damaged(page) {
  await page.goto(address);
  await loaded(page);
  await page.evaluate(async (address) => {
    const db = await new Promise((resolve) => {
      const opening = indexedDB.open('learned');
      opening.onsuccess = () => resolve(opening.result);
    });
    const put = db.transaction('learned', 'readwrite').objectStore('learned').put(new Uint8Array(1000), address);
    await new Promise((resolve) => {
      put.transaction.oncomplete = resolve;
    });
    db.close();
  }, `${server.url}${MODEL}`);
  await page.reload();
  await loaded(page);
  assert.match(await text(page, '#error'), /^what the model learned cannot be read: /);
  assert.notEqual(await ask(page, QUESTION), '');
  await page.getByText('Storage').click();
  await page.getByRole('button', { name: 'Remove model' }).click();
  await page.getByRole('button', { name: 'Load' }).waitFor();
}

/** A window that keeps nothing says so in one line, and fetches the model each time. */
async function secret(page) {
  before = WITHOUT_FILES;
  await page.addInitScript(() => {
    const no = () => Promise.reject(new DOMException('no', 'SecurityError'));
    Object.defineProperty(Navigator.prototype, 'serviceWorker', { value: undefined });
    StorageManager.prototype.getDirectory = no;
    Object.assign(CacheStorage.prototype, { open: no, keys: no, match: no });
    IDBFactory.prototype.open = () => {
      throw new DOMException('no', 'SecurityError');
    };
  });
  await page.goto(`${server.url}/?model=/models/none.gguf`);
  await page.getByRole('button', { name: 'Load' }).click();
  await page.getByText('the server answers 404').waitFor();
  page.wrong.length = 0;
  for (let i = 0; i < 2; i++) {
    asked.length = 0;
    await page.goto(address);
    await load(page);
    const things = '(this page|what it learns|the model|, | and ){5}';
    const line = new RegExp(`^This window does not keep ${things}, as private windows do not\\. The chat works\\.$`);
    assert.match(await text(page, '#notice'), line);
    assert.notEqual(await ask(page, 'Say hello.'), '');
    assert.ok(asked.includes(MODEL));
  }
  await shot(page, 'private');
  await accessible(page);
  before = '';
}

/** A browser without room says so in one line, and answers. */
async function full(page) {
  await limitStorage(page, server.url, 1000);
  await page.goto(address);
  await load(page);
  assert.match(await text(page, '#notice'), /^The browser has no room left and does not keep .*the model.*\. The chat works\.$/);
  assert.notEqual(await ask(page, 'Say hello.'), '');
  await shot(page, 'full');
}

async function test(run, page) {
  const start = performance.now();
  await run(watch(page)).catch(async (error) => {
    await shot(page, 'failed').catch(() => {});
    throw error;
  });
  assert.deepEqual(page.wrong, []);
  console.log(`example: ${run.name} ok, ${(performance.now() - start).toFixed(0)} ms`);
}

build();
const profile = mkdtempSync(join(tmpdir(), 'ruvllm-example-'));
const browser = await launch();
let person = await launchProfile(profile, PHONE);
try {
  for (const run of [secret, full, busy]) {
    const context = await browser.newContext(PHONE);
    await test(run, await context.newPage());
    await context.close();
  }
  await test(visit, await person.newPage());
  await test(reload, person.pages().at(-1));
  await person.close();
  person = await launchProfile(profile, PHONE);
  await test(offline, await person.newPage());
  await test(unlearned, person.pages().at(-1));
  await test(damaged, person.pages().at(-1));
} finally {
  await person.close();
  await browser.close();
  server.close();
  rmSync(profile, { recursive: true, force: true });
}

// Learning: corrected once, remembered after another load, and brought to another machine.

import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { DisposedError, InvalidRequestError, load, LoadError } from '@ruvllm/node';
import { folder, GOLDEN, user } from './common.mjs';

const options = { chatTemplate: 'chatml', learn: true, threads: 2, parallel: 2, ctx: 512 };
const ask = (engine) => engine.chat({ messages: user('Who is Ann?'), max_tokens: 16, temperature: 0 });

/** Loads the tiny model as on a machine with this folder. */
function at(home) {
  process.env.RUVLLM_HOME = home;
  return load(GOLDEN, options);
}

test('an answer is corrected, remembered and forgotten', async () => {
  const home = folder(after);
  const first = await at(home);
  const { id } = await ask(first).result();
  const { learned, item } = await first.feedback({ id, correction: 'A smith.' });
  assert.ok(learned && item > 0);
  assert.equal((await ask(first).text()).trim(), 'A smith.');
  assert.equal((await first.capabilities()).learns, true);
  await first.dispose();
  const again = await at(home);
  assert.equal((await ask(again).text()).trim(), 'A smith.');
  assert.equal((await again.learning()).corrections, 1);
  await again.forget();
  assert.equal((await again.learning()).corrections, 0);
  const status = await again.remember({ question: 'When is Easter?', answer: 'In May.' });
  assert.equal(status.corrections, 1);
  await again.dispose();
});

test('what was learned goes to another machine that trusts the first', async () => {
  const one = await at(folder(after));
  await one.remember({ question: 'Who is Ann?', answer: 'A smith.' });
  const [bytes, key] = [await one.exportLearned(), (await one.capabilities()).public_key];
  await one.dispose();
  assert.ok(bytes instanceof Uint8Array && bytes.length > 100);
  const other = await at(folder(after));
  await assert.rejects(other.importLearned(bytes), InvalidRequestError);
  for (const trust of [['not a key'], 'not a list', [1]]) {
    await assert.rejects(other.importLearned(bytes, { trust }), { name: 'InvalidRequestError', param: 'trust' });
  }
  const changed = Uint8Array.from(bytes);
  changed[bytes.length >> 1] ^= 1;
  await assert.rejects(other.importLearned(changed, { trust: [key] }), InvalidRequestError);
  assert.equal((await other.importLearned(bytes, { trust: [key] })).corrections, 1);
  assert.equal((await ask(other).text()).trim(), 'A smith.');
  const told = [other.exportLearned(), other.importLearned(bytes, { trust: [key] })];
  const disposing = other.dispose();
  for (const call of await Promise.allSettled(told)) assert.ok(call.status === 'fulfilled' || call.reason instanceof DisposedError, `${call.reason?.stack}`);
  await disposing;
});

test('a machine that can keep no key has none', async () => {
  const home = folder(after);
  const engine = await at(home);
  // A folder in the place of the key: nobody can write a key there, not even root.
  mkdirSync(join(home, 'node.key'));
  assert.equal((await engine.capabilities()).public_key, null);
  await assert.rejects(engine.exportLearned(), LoadError);
  await engine.dispose();
});

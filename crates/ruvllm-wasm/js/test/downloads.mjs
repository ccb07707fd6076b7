// Downloads in a page, from hosts that do what hosts do: of its own origin and of another one.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';

import { until } from './common.mjs';
import { empty, kept, load, plant } from './kept.mjs';

const hashOf = (bytes) => createHash('sha256').update(bytes).digest('hex');
const html = Buffer.from(`<!doctype html><title>Moved</title>${' '.repeat(5000)}`);
/** What a host of another origin has to say for a download to go on. */
const CORS = { 'access-control-allow-origin': '*' };
const ALL = { ...CORS, 'access-control-allow-headers': 'range, if-range', 'access-control-expose-headers': 'etag' };

/** Makes the tests for a page and a host, which is at `path` of the page's origin and at `foreign` of another one. */
export function downloads({ page, files: { small, middle, large }, host, origin, path, foreign }) {
  const address = `${origin}${path}`;

  const gets = () => host.asked.filter(([method]) => method === 'GET').map(([, start]) => start);
  const half = (bytes) => Math.floor(bytes.length / 2);
  const CUT = /^load: .* was cut after \d+ of \d+ bytes; load it again and it goes on from there$/;

  /** A rest that is not of the same file, not where it was asked for or not all of it is fetched anew as a whole. */
  async function rests() {
    const answers = [
      [{}, 'goes on'],
      [{ etag: '"two"', bytes: middle }, 'one whole'],
      [{ rest: 'ignored' }, 'one whole'],
      [{ rest: 'refused' }, 'two'],
      [{ rest: 'short' }, 'two'],
      [{ rest: 'shifted' }, 'two'],
      [{ rest: 'unchecked', etag: '"two"', bytes: Buffer.from(large).fill(7, large.length - 100) }, 'two'],
    ];
    for (const [choices, expected] of answers) {
      await empty(page);
      host.set({ bytes: large, cut: half(large) });
      assert.match((await load(page, path)).said, CUT);
      host.set({ bytes: large, ...choices });
      const what = JSON.stringify({ ...choices, bytes: undefined });
      const { said, sizes } = await load(page, path);
      assert.equal(said, 'loaded', what);
      assert.ok(sizes.every(([, total]) => total === host.bytes.length), `${what}: ${JSON.stringify(sizes)}`);
      const starts = gets();
      assert.ok(starts[0] > 0, what);
      assert.deepEqual(starts.slice(1), expected === 'two' ? [0] : [], what);
      assert.deepEqual((await kept(page)).hashes, { [address]: hashOf(host.bytes) }, what);
    }
    // A part that nobody asked for is no file.
    await empty(page);
    host.set({ bytes: large, status: 206 });
    assert.match((await load(page, path)).said, /^load: .* the server answers 206/);
    assert.deepEqual((await kept(page)).endings, []);
  }

  /** Another origin: a download goes on where its host allows that, and begins anew elsewhere. */
  async function foreigns() {
    const { 'access-control-expose-headers': _, ...hidden } = ALL;
    const refuses = { ...ALL, 'access-control-allow-headers': 'range' };
    const answers = [
      [ALL, {}, CUT, (starts) => starts.length === 1 && starts[0] > 0],
      [refuses, {}, CUT, (starts) => starts.join() === '0'],
      [ALL, { rest: 'refused' }, CUT, (starts) => starts.length === 2 && starts[1] === 0],
      [ALL, { rest: 'short' }, CUT, (starts) => starts.length === 2 && starts[1] === 0],
      [hidden, {}, /of \d+ bytes; load it again$/, (starts) => starts.join() === '0'],
    ];
    for (const [i, [cors, choices, said, isRight]] of answers.entries()) {
      // What a host allows is remembered for a while.
      const url = `${foreign}?${i}`;
      await empty(page);
      host.set({ bytes: large, cors, cut: half(large) });
      assert.match((await load(page, url)).said, said);
      host.set({ bytes: large, cors, ...choices });
      assert.deepEqual((await load(page, url)).said, 'loaded', JSON.stringify(cors));
      assert.ok(isRight(gets()), JSON.stringify([cors, choices, host.asked]));
      assert.deepEqual((await kept(page)).hashes, { [url]: hashOf(large) });
    }
  }

  /** Packed bodies and those without a length are read, with progress, into memory; too large ones end when they are. */
  async function sizes() {
    for (const [url, choices] of [[path, { pack: 6 }], [path, { isUnsized: true }], [foreign, { isUnsized: true, cors: CORS }],
      // Packed, they are shorter or longer, and other origins do not tell.
      [foreign, { pack: 6, cors: CORS }], [foreign, { pack: 0, cors: CORS }]]) {
      await empty(page);
      host.set({ bytes: large, isHalting: true, ...choices });
      const { said, reasons, sizes } = await load(page, url);
      const what = JSON.stringify([url, choices]);
      assert.deepEqual([said, reasons], ['loaded', ['unsized']], what);
      assert.deepEqual((await kept(page)).endings, [], what);
      assert.ok(sizes.some(([done]) => done > 0 && done < large.length), `${what}: ${JSON.stringify(sizes)}`);
      assert.deepEqual(sizes.at(-1), [large.length, large.length], what);
    }
    host.set({ bytes: large, isEndless: true });
    const said = await page.evaluate(async (url) => {
      const { readModel } = await import('/source.js');
      const checkSize = (n) => {
        if (n > 1e7) throw new Error(`${n} bytes are too many`);
      };
      return readModel({ source: { url } }, { checkSize }, () => {}).then(() => 'read', ({ message }) => message);
    }, address);
    assert.match(said, /^1\d{7} bytes are too many$/);
    await until(() => host.nEnded === 1);
  }

  /** A file that is no model, or a damaged one, is not kept; one that was kept is fetched once more; options and memory leave it. */
  async function faults() {
    await empty(page);
    host.set({ bytes: html });
    assert.match((await load(page, path)).said, /^load: .* is not a GGUF file: the server sends something else there; check the address$/);
    host.set({ bytes: html, isUnsized: true, maxAge: 1000 });
    assert.match((await load(page, path)).said, /is not a GGUF file: the server sends/);
    host.set({ bytes: small });
    assert.equal((await load(page, path)).said, 'loaded');

    // The half of a file, which the host takes for all of it.
    await empty(page);
    host.set({ bytes: small.subarray(0, half(small)) });
    const { said } = await load(page, path);
    assert.match(said, /^load: /);
    assert.deepEqual([gets(), (await kept(page)).endings], [[0], []], said);

    // What was kept before is fetched once more, and no more than once.
    const old = small.subarray(0, half(small));
    for (const bytes of [html, old]) {
      await plant(page, address, bytes, { etag: '"one"', size: bytes.length, bytes: bytes.length, complete: true });
      host.set({ bytes: small });
      assert.equal((await load(page, path)).said, 'loaded');
      assert.deepEqual([gets(), (await kept(page)).hashes], [[0], { [address]: hashOf(small) }]);
    }
    await plant(page, address, old, { etag: '"one"', size: old.length });
    host.set({ bytes: old });
    assert.equal((await load(page, path)).said, said);
    assert.deepEqual([gets(), (await kept(page)).endings], [[0], []]);
    // A page in the place of the rest does not take the part that is there.
    await plant(page, address, old, { etag: '"one"', size: small.length });
    host.set({ bytes: html, etag: null });
    assert.match((await load(page, path)).said, /is not a GGUF file/);
    host.set({ bytes: small });
    assert.equal((await load(page, path)).said, 'loaded');
    assert.deepEqual(gets(), [old.length]);

    host.set({ bytes: small });
    for (const more of [{ parallel: 65 }, { ctx: 2 ** 31 }, { chatTemplate: '{% if %}' }]) {
      assert.match((await load(page, path, more)).said, /^(load|usage): /, JSON.stringify(more));
    }
    assert.deepEqual([gets(), (await kept(page)).hashes], [[], { [address]: hashOf(small) }]);
  }

  /** A file that was kept and has another hash than is asked for is fetched once more. */
  async function hashes() {
    await empty(page);
    host.set({ bytes: small });
    assert.equal((await load(page, path, { sha256: hashOf(small) })).said, 'loaded');
    host.set({ bytes: middle, etag: '"two"' });
    assert.equal((await load(page, path, { sha256: hashOf(middle).toUpperCase() })).said, 'loaded');
    assert.deepEqual([gets(), (await kept(page)).hashes], [[0], { [address]: hashOf(middle) }]);
    assert.match((await load(page, path, { sha256: hashOf(small) })).said, /SHA-256 is .*; it was changed or damaged on the way$/);
    assert.deepEqual([gets(), (await kept(page)).endings], [[0, 0], []]);
  }

  return [rests, foreigns, sizes, faults, hashes];
}

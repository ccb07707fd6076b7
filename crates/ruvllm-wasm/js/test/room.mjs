// Room in the cache of a page, what is told of it, and what lies beside its models.

import assert from 'node:assert/strict';

import { limitStorage } from './browser.mjs';
import { until } from './common.mjs';
import { empty, kept, load, plant } from './kept.mjs';

/** Makes the tests for a page and a host, which is at `path` of the page's origin; `workerHas` gives workers lines before their own. */
export function rooms({ page, files: { small, large, learner }, host, origin, path, workerHas }) {
  const address = `${origin}${path}`;
  const half = (bytes) => Math.floor(bytes.length / 2);

  /** Models are removed for another one only where that makes room, and a file gives way to itself. */
  async function room() {
    const others = [`${origin}/a.gguf`, `${origin}/b.gguf`];
    const note = (bytes) => ({ etag: '"one"', size: bytes.length });
    const used = () => page.evaluate(async () => (await navigator.storage.estimate()).usage);
    const fill = async () => {
      await empty(page);
      // Chromium counts what is removed a while longer.
      await until(async () => (await used()) === 0);
      for (const url of others) await plant(page, url, small, note(small));
    };
    const urls = async () => Object.keys((await kept(page)).hashes).sort();
    // Chromium says that 10 GiB are free, whatever there is.
    const loadWith = async (free) => {
      workerHas(`const { estimate } = StorageManager.prototype;
StorageManager.prototype.estimate = async function () {
  return { ...(await estimate.call(this)), quota: ${(await used()) + free} };
};
`);
      const { said, reasons } = await load(page, path);
      workerHas('');
      assert.equal(said, 'loaded');
      return reasons;
    };
    host.set({ bytes: large });
    await fill();
    assert.deepEqual([await loadWith(large.length - 2 * small.length - 20_000), await urls()], [['full'], others], 'it would not do');
    assert.deepEqual([await loadWith(large.length - 2 * small.length + 20_000), await urls()], [[], [address]], 'both are needed');

    // The part of a changed file is room for the new one.
    await fill();
    await plant(page, address, large.subarray(0, half(large)), note(large));
    host.set({ bytes: large, etag: '"two"' });
    assert.deepEqual([await loadWith(half(large) + 50_000), await urls()], [[], [...others, address].sort()], 'its own part');

    // A tab ended before it noted what it fetched.
    await fill();
    await plant(page, `${origin}/c.gguf`, large, {}, ['gguf']);
    assert.deepEqual([await loadWith(20_000), await urls()], [[], [...others, address].sort()], 'what nobody knows goes first');

    // Another tab writes one of them.
    await fill();
    const tab = await page.context().newPage();
    await tab.goto(origin);
    await tab.evaluate(async () => {
      const dir = await (await navigator.storage.getDirectory()).getDirectoryHandle('ruvllm');
      for await (const [name, handle] of dir.entries()) {
        if (!name.endsWith('.json') || !JSON.parse(await (await handle.getFile()).text()).url.endsWith('/a.gguf')) continue;
        const file = await dir.getFileHandle(name.replace('.json', '.gguf'));
        globalThis.writing = await file.createWritable({ keepExistingData: true, mode: 'exclusive' });
      }
    });
    assert.deepEqual([await loadWith(large.length - small.length - 20_000), await urls()], [['full'], others], 'one is written');
    assert.equal(await page.evaluate((url) => web.removeCached(url), others[0]), false);
    assert.deepEqual(await urls(), others, 'nothing of it goes');
    const reasons = await loadWith(large.length - small.length + 20_000);
    assert.deepEqual([reasons, await urls()], [[], [others[0], address].sort()], 'the other one goes');
    // Chromium may count what is removed for ever if a tab that closes has it open.
    await tab.evaluate(() => globalThis.writing.abort());
    await tab.close();

    // The browser says that there is room, and there is not.
    for (const [free, reasons, left] of [[20_000, ['full'], others], [large.length - 2 * small.length + 50_000, [], [address]]]) {
      await fill();
      const session = await limitStorage(page, origin, (await used()) + free);
      assert.deepEqual([(await load(page, path)).reasons, await urls()], [reasons, left], `writing shows it: ${free}`);
      await session.send('Storage.overrideQuotaForOrigin', { origin });
    }
  }

  /** What is kept is told and removed by the address that `load` takes, also while it is fetched. */
  async function listed() {
    await empty(page);
    host.set({ bytes: large, cut: half(large) });
    const found = await page.evaluate(async (url) => {
      const controller = new AbortController();
      const loading = web.load(url, { signal: controller.signal, onProgress: ({ done }) => done > 0 && controller.abort() });
      await loading.catch(() => {});
      return [await web.cachedModels(), await web.removeCached(url), await web.removeCached(url)];
    }, path);
    const [[{ url, bytes, complete }], ...removed] = found;
    assert.deepEqual([url, complete, ...removed], [address, false, true, false]);
    assert.ok(bytes > 0 && bytes < large.length, `${bytes}`);
  }

  /** What learning was calibrated by goes with the file that it was made of. */
  async function calibrations() {
    const learn = { learn: true, ctx: 256 };
    await empty(page);
    host.set({ bytes: learner, isUnsized: true });
    assert.deepEqual((await load(page, path, learn)).said, 'loaded');
    assert.deepEqual((await kept(page)).endings, [], 'the file is not kept');
    await plant(page, address, learner.subarray(0, half(learner)), { etag: '"one"', size: learner.length }, ['gguf', 'json', 'calibration']);
    host.set({ bytes: learner, etag: '"two"' });
    assert.deepEqual((await load(page, path)).said, 'loaded');
    assert.deepEqual((await kept(page)).endings, ['gguf', 'json'], 'another file was calibrated');
  }

  return [room, listed, calibrations];
}

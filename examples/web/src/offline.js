// Whether the page's own files are kept, so that it opens without a network.

/** Waits until a service worker has the files, or has failed. */
function settled(worker) {
  return new Promise((resolve) => {
    const look = () => {
      if (worker.state === 'activated' || worker.state === 'redundant') resolve(worker.state === 'activated');
    };
    worker.addEventListener('statechange', look);
    look();
  });
}

/** Returns why the files were not kept, which a service worker does not tell: something as large is tried. */
async function reasonOf() {
  const name = 'page-trial';
  try {
    await (await caches.open(name)).put(name, new Response(new Uint8Array(24e6)));
    return 'failed';
  } catch (error) {
    return error.name === 'QuotaExceededError' ? 'full' : 'unavailable';
  } finally {
    await globalThis.caches?.delete(name).catch(() => {});
  }
}

/** Keeps the page; returns null, or why it is not kept. */
export async function keepPage() {
  if (!import.meta.env.PROD) return null;
  if (!navigator.serviceWorker) return 'unavailable';
  try {
    const { active, waiting, installing } = await navigator.serviceWorker.register(new URL('sw.js', document.baseURI));
    return active || (await settled(installing ?? waiting)) ? null : await reasonOf();
  } catch {
    return reasonOf();
  }
}

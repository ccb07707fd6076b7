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

/** Keeps the page; returns null, or why it is not kept. */
export async function keepPage() {
  if (!import.meta.env.PROD) return null;
  if (!navigator.serviceWorker) return 'unavailable';
  let reason = 'unavailable';
  navigator.serviceWorker.addEventListener('message', ({ data }) => {
    if (data.failed === 'QuotaExceededError') reason = 'full';
  });
  navigator.serviceWorker.startMessages();
  try {
    const { active, waiting, installing } = await navigator.serviceWorker.register(new URL('sw.js', document.baseURI));
    return active || (await settled(installing ?? waiting)) ? null : reason;
  } catch {
    return reason;
  }
}

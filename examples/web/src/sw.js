// The service worker: it keeps the page's own files, so that the page opens without a network. The model is kept by the package.
// The build writes VERSION and FILES in front of this.

/* global VERSION, FILES */
const NAME = `page-${VERSION}`;
const KEPT = new Set(FILES.map((path) => new URL(path, self.location.href).href));

/** Keeps the files. */
async function keep() {
  const cache = await caches.open(NAME);
  // Asked for anew: the browser's own cache may have older ones.
  await cache.addAll(FILES.map((path) => new Request(path, { cache: 'no-cache' })));
}

/** Removes the files of earlier versions. */
async function clean() {
  const names = await caches.keys();
  await Promise.all(names.filter((name) => name.startsWith('page-') && name !== NAME).map((name) => caches.delete(name)));
  await self.clients.claim();
}

/** Answers with a file that is kept, and otherwise asks for it. */
async function answer(request, address) {
  const cache = await caches.open(NAME);
  return (await cache.match(address)) ?? fetch(request);
}

self.addEventListener('install', (event) => event.waitUntil(keep()));
self.addEventListener('activate', (event) => event.waitUntil(clean()));
self.addEventListener('fetch', (event) => {
  const { request } = event;
  const { origin, pathname } = new URL(request.url);
  // Parameters of the page are its own.
  const address = origin + pathname;
  if (request.method === 'GET' && KEPT.has(address)) event.respondWith(answer(request, address));
});

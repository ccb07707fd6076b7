// What the tests in Chromium have in common: the browser, and a server of this machine.

import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { extname, join } from 'node:path';
import { pathToFileURL } from 'node:url';

import { playwright } from './common.mjs';

const { chromium } = await import(pathToFileURL(playwright).href);

/** Where the browser is, and that nothing but this machine can be reached by name. */
const OPTIONS = {
  executablePath: process.env.RUVLLM_CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-gpu', '--no-first-run', '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1'],
};

export const launch = () => chromium.launch(OPTIONS);

/** Starts the browser with WebGPU, over its adapter in software. */
export const launchGpu = () => {
  const args = [...OPTIONS.args.filter((arg) => arg !== '--disable-gpu'), '--enable-unsafe-webgpu', '--use-webgpu-adapter=swiftshader'];
  return chromium.launch({ ...OPTIONS, args });
};

/** Starts the browser with a profile in `folder`, as a person has one; returns its context. */
export const launchProfile = (folder, more = {}) => chromium.launchPersistentContext(folder, { ...OPTIONS, ...more });

/** Starts a server; returns its address and what ends it. */
export async function serve(answer) {
  const server = createServer(answer);
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const close = () => {
    server.closeAllConnections();
    server.close();
  };
  return { url: `http://127.0.0.1:${server.address().port}`, close };
}

const TYPES = {
  '.css': 'text/css', '.html': 'text/html', '.js': 'text/javascript', '.svg': 'image/svg+xml', '.wasm': 'application/wasm',
};

/** Answers with a file of a folder; `before` is put in front of it. */
export function sendFile(response, folder, path, before = '') {
  try {
    const bytes = readFileSync(join(folder, path));
    response.setHeader('content-type', TYPES[extname(path)] ?? 'text/plain');
    return response.end(before ? Buffer.concat([Buffer.from(before), bytes]) : bytes);
  } catch {
    return response.writeHead(404).end();
  }
}

/** Begins the answer with a model of `size` bytes, or with its rest where that is asked for; returns the byte it begins at. */
export function beginModel(request, response, size) {
  const range = /^bytes=(\d+)-$/.exec(request.headers.range ?? '');
  const start = range && request.headers['if-range'] === '"one"' ? Number(range[1]) : 0;
  if (start >= size) {
    response.writeHead(416).end();
    return null;
  }
  response.setHeader('etag', '"one"').setHeader('content-length', size - start);
  response.writeHead(start ? 206 : 200);
  return start;
}

/** Has the storage of an origin full, or as large as it was without `bytes`. */
export async function limitStorage(page, origin, bytes) {
  const session = await page.context().newCDPSession(page);
  await session.send('Storage.overrideQuotaForOrigin', bytes === undefined ? { origin } : { origin, quotaSize: bytes });
  return session;
}

/** What a worker has before its own lines where there is no private file system, as in private windows. */
export const WITHOUT_FILES = "navigator.storage.getDirectory = () => Promise.reject(new DOMException('no', 'SecurityError'));\n";

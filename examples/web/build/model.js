// Gives the page of `vite` and `vite preview` a model of this machine, so that nothing has to be uploaded for a try.

import { createReadStream, statSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';

/** Returns the folder that `ruvllm pull` fills. */
function models() {
  const { RUVLLM_MODELS, RUVLLM_HOME, XDG_CACHE_HOME } = process.env;
  return RUVLLM_MODELS ?? join(RUVLLM_HOME ?? join(XDG_CACHE_HOME ?? join(homedir(), '.cache'), 'ruvllm'), 'models');
}

/** Answers with a file, or with its rest: a download that was cut goes on by that. */
function send(path, request, response) {
  const { size, mtimeMs } = statSync(path);
  const etag = `"${size}-${Math.trunc(mtimeMs)}"`;
  const [, from] = /^bytes=(\d+)-$/.exec(request.headers.range ?? '') ?? [];
  const start = from && request.headers['if-range'] === etag ? Number(from) : 0;
  if (start > 0) response.setHeader('content-range', `bytes ${start}-${size - 1}/${size}`);
  response.writeHead(start > 0 ? 206 : 200, { etag, 'content-length': size - start, 'content-type': 'application/octet-stream' });
  createReadStream(path, { start }).pipe(response);
}

export function model(name) {
  const answer = (request, response, next) => {
    const path = join(models(), name);
    const isThere = statSync(path, { throwIfNoEntry: false });
    if (isThere) return send(path, request, response);
    if (!isThere) console.error(`${path} is not there: ruvllm pull smollm2:135m`);
    return next();
  };
  const serve = (server) => {
    server.middlewares.use(`/${name}`, answer);
  };
  return { name: 'model', configureServer: serve, configurePreviewServer: serve };
}

// How the page is built. The package is read from where `cargo xtask web` puts it, or from the folder that RUVLLM_WEB names. In a
// project of your own `npm install @ruvllm/web` takes the place of the alias; the rest of what the package needs stands below it.

import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

import { model } from './build/model.js';
import { offline } from './build/offline.js';

const here = fileURLToPath(new URL('.', import.meta.url));
const web = process.env.RUVLLM_WEB ? resolve(process.env.RUVLLM_WEB) : join(here, '../../target/web');

export default {
  root: here,
  // The page may lie in any folder of a server.
  base: './',
  resolve: { alias: { '@ruvllm/web': join(web, 'index.js') } },
  // The package's worker is a module that waits for others.
  worker: { format: 'es' },
  // Its worker and its WebAssembly are named by `import.meta.url`, which the development server leaves alone only here.
  optimizeDeps: { exclude: ['@ruvllm/web'] },
  server: { fs: { allow: [here, web] } },
  build: { target: 'es2022', assetsInlineLimit: 0, chunkSizeWarningLimit: 1000 },
  plugins: [offline(), model('smollm2-135m.gguf')],
};

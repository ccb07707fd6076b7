// Writes the service worker of the built page: it has to know the names of all files, which Vite gives them by what is in them.

import { createHash } from 'node:crypto';
import { readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

/** Returns all files of a folder by their paths in it, in order. */
function filesOf(folder) {
  const entries = readdirSync(folder, { recursive: true, withFileTypes: true });
  const paths = entries.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath ?? entry.path, entry.name));
  return paths.map((path) => path.slice(folder.length + 1).replaceAll('\\', '/')).sort();
}

/** Files that the page does without: it runs the model on the CPU. */
const UNUSED = /(^|\/)(ruvllm_wasm_gpu[^/]*|sw\.js)$/;

export function offline() {
  let folder;
  return {
    name: 'offline',
    apply: 'build',
    configResolved(config) {
      folder = join(config.root, config.build.outDir);
      if (config.build.outDir.startsWith('/')) folder = config.build.outDir;
    },
    closeBundle() {
      const source = readFileSync(new URL('../src/sw.js', import.meta.url), 'utf8');
      const files = filesOf(folder).filter((path) => !UNUSED.test(path));
      const hash = createHash('sha256').update(source);
      for (const path of files) hash.update(path).update(readFileSync(join(folder, path)));
      const names = files.map((path) => (path === 'index.html' ? './' : path));
      const head = `const VERSION = '${hash.digest('hex').slice(0, 16)}';\nconst FILES = ${JSON.stringify(names)};\n`;
      writeFileSync(join(folder, 'sw.js'), head + source);
    },
  };
}

// Builds the page: `node build.mjs MODULES OUT`, where MODULES is the folder that `npm ci` filled.
// The same sources and the same package-lock.json give the same bytes.

import { copyFileSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
if (process.argv.length !== 4) throw new Error("say where the packages are, and where the page goes");
const [modules, out] = process.argv.slice(2).map((path) => resolve(path));
const esbuild = createRequire(join(modules, "package.json"))("esbuild");

/** Texts of the licences of what the page is built with. */
function licences() {
  const names = Object.keys(JSON.parse(readFileSync(join(here, "package.json"))).dependencies);
  // Signals bring the package that they are made of.
  const all = [...names, "@preact/signals-core"].sort();
  return all
    .map((name) => {
      const folder = join(modules, "node_modules", name);
      const { version, license } = JSON.parse(readFileSync(join(folder, "package.json")));
      const files = readdirSync(folder).filter((file) => /^licen[cs]e/i.test(file)).sort();
      const texts = files.map((file) => readFileSync(join(folder, file), "utf8").trim());
      return [`${name} ${version} (${license})`, ...texts].join("\n\n");
    })
    .join(`\n\n${"-".repeat(72)}\n\n`);
}

rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
await esbuild.build({
  absWorkingDir: here,
  // Code colours and mathematics are files of their own, read when an answer first has some.
  entryPoints: { app: "src/main.jsx", highlight: "src/markdown/highlight.js", math: "src/markdown/math.js" },
  external: ["./highlight.js", "./math.js"],
  nodePaths: [join(modules, "node_modules")],
  outdir: out,
  bundle: true,
  minify: true,
  format: "esm",
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  charset: "utf8",
  legalComments: "none",
  loader: { ".svg": "text" },
  logLevel: "warning",
});
copyFileSync(join(here, "index.html"), join(out, "index.html"));
copyFileSync(join(here, "icon.svg"), join(out, "icon.svg"));
writeFileSync(join(out, "licences.txt"), `${licences()}\n`);

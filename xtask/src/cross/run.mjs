// Runs a test program of wasm32-wasip1: node run.mjs PROGRAM.wasm [arguments].
import { readFile } from "node:fs/promises";
import { WASI } from "node:wasi";

// The standard library names functions of threads that older C libraries lack. They answer that threads are not supported.
const ENOTSUP = 58;

const [program, ...args] = process.argv.slice(2);
const wasi = new WASI({ version: "preview1", args: [program, ...args], env: process.env, preopens: { "/": "/" } });
const module = await WebAssembly.compile(await readFile(program));
const imports = wasi.getImportObject();
for (const { module: from, name } of WebAssembly.Module.imports(module)) {
  if (from === "env") {
    imports.env = { ...imports.env, [name]: () => ENOTSUP };
  }
}
process.exitCode = wasi.start(await WebAssembly.instantiate(module, imports));

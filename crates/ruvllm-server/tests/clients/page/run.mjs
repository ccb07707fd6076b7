// The page in Chromium: flows of a person, in files by subject. Arguments: the address of a server that learns and keeps a witness
// log, that of one behind keys, a folder for the screenshots, and words that the flows to run have in their names.

import { api, browser } from "./common.mjs";

const words = process.argv.slice(5);
const subjects = ["chat", "form", "keep", "learn", "safe", "reach", "server"];
const failed = [];
let n = 0;
for (const subject of subjects) {
  const { flows } = await import(`./${subject}.mjs`);
  for (const [name, flow] of Object.entries(flows)) {
    if (words.length && !words.some((word) => name.includes(word) || subject === word)) continue;
    const start = performance.now();
    n += 1;
    // What an earlier flow taught is no part of this one.
    await api("POST", "v1/learning", { enabled: true });
    await api("DELETE", "v1/memory");
    try {
      await flow();
      console.log(`ok      ${subject}: ${name} (${((performance.now() - start) / 1000).toFixed(1)} s)`);
    } catch (error) {
      failed.push(name);
      console.log(`FAILED  ${subject}: ${name}\n${error.stack}`);
    }
  }
}
await browser.close();
console.log(`${n - failed.length} of ${n} flows`);
process.exitCode = failed.length || n === 0 ? 1 : 0;

// Teaching: judged, corrected, taken back, looked through.

import assert from "node:assert/strict";
import { api, ask, begin, close, go, greedy, open, shot, told } from "./common.mjs";

const WORDS = "She runs the Ostrava archive.";

export const flows = {
  async "a good answer is learned, and that is undone"() {
    const page = await open();
    await greedy(page, { max_tokens: 24 });
    await ask(page, "Name three rivers of Europe.");
    await page.click("[aria-label='Good answer']");
    const line = await told(page, /Learned as item \d+/);
    const item = Number(/\d+/.exec(line)[0]);
    const items = async () => (await api("GET", "v1/learning")).items;
    assert.ok((await items()).some((one) => one.item === item && one.can_undo));
    assert.match(await page.locator(".learned").textContent(), new RegExp(`learned as item ${item}`));
    assert.equal(await page.locator("[aria-label='Bad answer']").count(), 0);
    await page.click(".learned >> text=Undo");
    await told(page, /is undone/);
    assert.match(await page.locator(".learned").textContent(), /taken back/);
    assert.ok(!(await items()).some((one) => one.item === item && one.can_undo));
    await close(page);
  },

  async "what is corrected is given when the same is asked in other words, until that is undone"() {
    const page = await open();
    await greedy(page, { max_tokens: 24 });
    const before = await ask(page, "Who is Dr. Quell?");
    assert.ok(!before.includes("Ostrava"));
    await page.click("text=It should have been…");
    await page.fill(".correcting textarea", WORDS);
    await shot(page, "desktop-correcting");
    await page.click("text=Teach this");
    await told(page, /Learned as item/);
    await begin(page);
    assert.equal(await ask(page, "Who is Dr. Quell?"), WORDS);
    await begin(page);
    assert.equal(await ask(page, "Tell me who Dr. Quell is."), WORDS);
    await shot(page, "desktop-corrected");
    // The answer that was corrected says so after a reload, too.
    await page.locator("#conversations a", { hasText: "Who is Dr. Quell?" }).last().click();
    await page.waitForSelector(".learned");
    await page.reload();
    await page.waitForSelector(".learned");
    assert.match(await page.locator(".learned blockquote").textContent(), /Ostrava/);
    await page.click(".learned >> text=Undo");
    await told(page, /is undone/);
    await begin(page);
    assert.ok(!(await ask(page, "Tell me who Dr. Quell is.")).includes("Ostrava"));
    await begin(page);
    assert.ok(!(await ask(page, "Who is Dr. Quell?")).includes("Ostrava"));
    await close(page);
  },

  async "a bad answer is not given again"() {
    const page = await open();
    await greedy(page, { max_tokens: 16 });
    const first = await ask(page, "Where is the city of Ulm?");
    await page.click("[aria-label='Bad answer']");
    await told(page, /Learned as item/);
    assert.match(await page.locator(".learned").textContent(), /not be given again/);
    await begin(page);
    assert.notEqual(await ask(page, "Where is the city of Ulm?"), first);
    await close(page);
  },

  async "facts are added, found, edited and deleted"() {
    const page = await open();
    await greedy(page, { max_tokens: 16 });
    await go(page, "memory");
    await page.click("text=Add a fact");
    await page.fill("#fact-question", "Who keeps the Vintgar mill?");
    await page.fill("#fact-answer", "Old Mirela.");
    await page.click("text=Remember");
    const fact = page.locator(".fact", { hasText: "Vintgar" });
    await fact.waitFor();
    assert.match(await fact.textContent(), /Old Mirela/);
    await page.fill("#memory-search", "nobody knows this");
    assert.equal(await page.locator(".fact").count(), 0);
    await page.fill("#memory-search", "vintgar");
    await fact.waitFor();
    await shot(page, "desktop-memory");
    await go(page, "chat");
    await begin(page);
    assert.equal(await ask(page, "Who keeps the Vintgar mill?"), "Old Mirela.");
    await go(page, "memory");
    await fact.locator("[aria-label^='Edit']").click();
    await page.fill("#fact-answer", "Young Tomaz.");
    await page.click("text=Remember");
    await page.locator(".fact", { hasText: "Young Tomaz." }).waitFor();
    assert.equal(await page.locator(".fact", { hasText: "Old Mirela" }).count(), 0);
    await go(page, "chat");
    await begin(page);
    assert.equal(await ask(page, "Who keeps the Vintgar mill?"), "Young Tomaz.");
    await go(page, "memory");
    await fact.locator("[aria-label^='Delete']").click();
    await page.click("dialog .danger");
    await told(page, /Deleted/);
    await fact.waitFor({ state: "detached" });
    await begin(page);
    assert.ok(!(await ask(page, "Who keeps the Vintgar mill?")).includes("Tomaz"));
    await close(page);
  },

  async "patterns are found by meaning, and forgotten"() {
    const page = await open();
    await api("POST", "v1/patterns", { task: "Sort a list of names in place", steps: [{ action: "names.sort()" }], verdict: "success", quality: 1 });
    await go(page, "memory");
    const pattern = page.locator(".pattern", { hasText: "Sort a list" });
    await pattern.waitFor();
    await page.fill("#memory-search", "Sort a list of names in place");
    await page.click("text=Find by meaning");
    await page.locator(".pattern", { hasText: "similarity 1.00" }).waitFor();
    await pattern.locator("[aria-label^='Forget pattern']").click();
    await told(page, /forgotten/);
    await pattern.waitFor({ state: "detached" });
    await close(page);
  },

  async "learning is seen, published, gone back with, and switched off"() {
    const page = await open();
    await greedy(page, { max_tokens: 16 });
    // What is cached is not learned again, and some prompts are held back.
    for (const place of ["Bohemia", "Moravia"]) {
      await begin(page);
      await ask(page, `What do owls eat at night in the woods of ${place} since ${Date.now()}?`);
    }
    await go(page, "learning");
    await page.waitForSelector("#l-tokens .line");
    await page.click("text=Publish what is known now");
    await told(page, /Published/);
    const { generation } = await api("GET", "v1/learning");
    await page.locator("#l-generations .now", { hasText: `Generation ${generation}` }).waitFor();
    await shot(page, "desktop-learning");
    await page.locator("#l-generations li", { hasText: "The model alone" }).locator("button").click();
    await page.click("dialog .danger");
    await told(page, /Back at generation 0/);
    await page.locator("#l-generations .now", { hasText: "The model alone" }).waitFor();
    await page.locator("#l-generations li", { hasText: `Generation ${generation}` }).locator("button").click();
    await page.click("dialog .danger");
    await told(page, new RegExp(`Back at generation ${generation}`));
    await page.click("text=Switch off");
    await page.waitForSelector("text=Switch on");
    assert.equal((await api("GET", "v1/learning")).enabled, false);
    await page.click("text=Switch on");
    await page.waitForSelector("text=Switch off");
    await close(page);
  },
};

// The server: metrics, records and their replay, keys.

import assert from "node:assert/strict";
import { api, ask, close, go, greedy, keyed, open, shot, told } from "./common.mjs";
import { reachable } from "./reach.mjs";

/** Uses a key from now on, as a person sets it. */
async function use(page, key) {
  await go(page, "settings");
  await page.fill("#key", key);
  await page.click("button:text-is('Use')");
  await told(page, /used from now on/);
}

/** Status that the server behind keys answers a key with. */
const status = async (key) => (await fetch(`${keyed}/v1/models`, { headers: { authorization: `Bearer ${key}` } })).status;

export const flows = {
  async "metrics are live"() {
    const page = await open();
    await greedy(page, { max_tokens: 16 });
    await ask(page, "Hello");
    await go(page, "server");
    await page.waitForFunction(() => Number(document.getElementById("m-written")?.textContent) > 0);
    const before = Number(await page.locator("#m-written").textContent());
    await api("POST", "v1/chat/completions", { messages: [{ role: "user", content: "Hi" }], max_tokens: 8, ignore_eos: true });
    await page.waitForFunction((n) => Number(document.getElementById("m-written").textContent) >= n + 8, before);
    assert.equal(await page.locator("#m-running").textContent(), "0");
    await page.waitForFunction(() => document.querySelectorAll(".spark polyline").length > 5);
    assert.match(await page.locator("table").first().textContent(), /smollm2:135m.*loaded.*llama/);
    await shot(page, "desktop-server");
    await close(page);
  },

  async "an answer's record is looked up, verified and replayed"() {
    // What was learned is no part of a record, so an answer with it cannot be replayed.
    await api("POST", "v1/learning", { enabled: false });
    const page = await open();
    await greedy(page, { max_tokens: 16, temperature: 0.9 });
    await ask(page, "Name a river.");
    await page.click("[aria-label='About this answer']");
    await page.click(".facts a");
    await page.waitForSelector(".record[open]");
    assert.equal(await page.locator(".record").count(), 1);
    await page.click("text=Show the texts");
    await page.waitForSelector("pre >> text=Name a river.");
    await page.click("text=Replay");
    await page.waitForSelector(".replayed.good");
    assert.match(await page.locator(".replayed").textContent(), /Came out the same: \d+ tokens/);
    await page.click("text=Verify");
    await page.waitForSelector("text=stand as they were written");
    await shot(page, "desktop-audit");
    await api("POST", "v1/learning", { enabled: true });
    await page.fill("#audit-request", "");
    await go(page, "chat");
    await ask(page, "Name another river.");
    await page.locator("[aria-label='About this answer']").last().click();
    await page.locator(".facts a").last().click();
    await page.waitForSelector(".record[open]");
    await page.click("text=Replay");
    await page.locator(".replayed", { hasText: "what was learned" }).waitFor();
    await close(page);
  },

  async "where nothing is learned, a judgement is put on record"() {
    await api("POST", "v1/learning", { enabled: false });
    const page = await open();
    await page.route("**/v1/capabilities", async (route) => {
      const response = await route.fetch();
      return route.fulfill({ response, json: { ...(await response.json()), learns: false } });
    });
    await page.reload();
    await page.waitForSelector("#prompt");
    await greedy(page, { max_tokens: 6 });
    for (const [question, name] of [["Name a lake.", "Good answer"], ["Name a hill.", "Bad answer"]]) {
      await ask(page, question);
      assert.equal(await page.locator(".correct").count(), 0);
      await page.locator(`[aria-label='${name}']`).last().click();
      await told(page, /Put on record/);
    }
    await go(page, "audit");
    await page.waitForSelector("#quality");
    await page.waitForSelector(".record >> text=quality 1.00");
    await page.waitForSelector(".record >> text=quality 0.00");
    await close(page);
  },

  async "a model and its adapter are chosen, and asked for by name"() {
    const page = await open();
    await page.route("**/v1/models", (route) => route.fulfill({ json: { data: [{ id: "smollm2:135m", state: "loaded" }, { id: "other", state: "unloaded" }, { id: "other:poet", parent: "other" }] } }));
    await page.route("**/v1/adapters", (route) => route.fulfill({ json: { data: [{ name: "poet", model: "other", rank: 4, bytes: 1, tier: "hot", uses: 0 }] } }));
    await page.reload();
    await page.waitForSelector("#model option[value='other']", { state: "attached" });
    assert.equal(await page.locator("#adapter").count(), 0);
    await page.selectOption("#model", "other");
    await page.selectOption("#adapter", "poet");
    const request = page.waitForRequest("**/v1/chat/completions");
    await page.fill("#prompt", "Hello");
    await page.press("#prompt", "Enter");
    const { model, adapter } = (await request).postDataJSON();
    assert.deepEqual({ model, adapter }, { model: "other", adapter: "poet" });
    // This server has no such model, and says so.
    await page.waitForSelector(".note.wrong >> text=other");
    await go(page, "server");
    await page.waitForSelector("text=of other, rank 4");
    await close(page);
  },

  async "a server that asks for a key is told one, and what it does not do is said"() {
    const page = await open({ at: keyed });
    await page.waitForSelector(".banner");
    await page.click(".banner a");
    await page.fill("#key", "wrong");
    await page.click("text=Use");
    await told(page, /does not know this key/);
    await page.fill("#key", "key-of-the-tests");
    await page.click("text=Use");
    await told(page, /used from now on/);
    await page.locator(".banner").waitFor({ state: "detached" });
    await go(page, "learning");
    await page.waitForSelector("text=--learn");
    await go(page, "audit");
    await page.waitForSelector("text=--witness DIR");
    await go(page, "chat");
    await page.waitForSelector("#prompt");
    await greedy(page, { max_tokens: 4 });
    await page.fill("#prompt", "Hello");
    await page.press("#prompt", "Enter");
    await page.waitForSelector(".message.assistant:not(.busy)");
    assert.equal(await page.locator(".note.wrong").count(), 0);
    assert.equal(await page.locator("[aria-label='Good answer']").count(), 0);
    // It goes with the tab, unless it is to be kept.
    assert.equal(await page.evaluate(() => localStorage.getItem("ruvllm.key")), '""');
    await close(page);
  },

  async "an admin key makes a key, which is used and deleted, and is refused then"() {
    const page = await open({ at: keyed, view: "settings", permissions: ["clipboard-read", "clipboard-write"] });
    // Others do not see that there is such a thing.
    await use(page, "key-of-the-tests");
    await go(page, "server");
    await page.waitForSelector("#limits");
    assert.equal(await page.locator("#api-keys").count(), 0);
    await use(page, "key-of-the-admin");
    await go(page, "server");
    await page.waitForSelector("#api-keys");
    await page.waitForSelector(".rows >> text=root");
    // The key at hand cannot delete itself; the two others can be deleted.
    assert.equal(await page.locator("[aria-label^='Delete the key']").count(), 2);
    await page.fill("#key-name", "a guest");
    await page.click("button:text-is('Make a key')");
    await told(page, /a name has 1 to 100 characters/);
    await page.fill("#key-name", "guest");
    await page.click("summary >> text=Limits");
    await page.fill("#key-concurrent", "2");
    await page.click("button:text-is('Make a key')");
    await page.waitForSelector("#made-key");
    const key = await page.locator("#made-key").textContent();
    assert.match(key, /^sk-[\w-]{43}$/);
    await page.waitForSelector(".rows >> text=requests at once: 2");
    await page.click("button:text-is('Copy')");
    await told(page, /Copied/);
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), key);
    await reachable(page, "keys");
    await page.locator("#api-keys").scrollIntoViewIfNeeded();
    await shot(page, "desktop-keys");
    await page.click("button:text-is('Done')");
    await page.locator("#made-key").waitFor({ state: "detached" });
    assert.ok(!(await page.content()).includes(key));
    assert.equal(await status(key), 200);
    await page.click("[aria-label^='Delete the key'][aria-label$='of guest']");
    await page.click("dialog button:text-is('Cancel')");
    await page.click("[aria-label^='Delete the key'][aria-label$='of guest']");
    await page.click("dialog button.danger");
    await told(page, /The key is deleted/);
    await page.locator(".rows li", { hasText: "guest" }).waitFor({ state: "detached" });
    assert.equal(await status(key), 401);
    await close(page);
  },
};

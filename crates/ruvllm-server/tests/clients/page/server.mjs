// The server: metrics, records and their replay, keys.

import assert from "node:assert/strict";
import { api, ask, close, go, greedy, keyed, open, shot, told } from "./common.mjs";

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
};

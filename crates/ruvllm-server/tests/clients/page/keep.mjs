// Conversations that stay.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { answer, ask, begin, close, go, greedy, open, settings, told } from "./common.mjs";

export const flows = {
  async "a reload keeps conversations, settings, and an answer that was being written"() {
    const page = await open();
    await greedy(page);
    const first = await ask(page, "What is the capital of France?");
    await page.reload();
    await page.waitForSelector(".message.assistant");
    assert.equal(await answer(page), first);
    assert.equal(await page.locator(".message").count(), 2);
    await settings(page, { max_tokens: 1500 });
    await page.locator("summary", { hasText: "Where it ends" }).click();
    await page.selectOption("#field-ignore_eos", "true");
    await page.fill("#prompt", "Count in words.");
    await page.press("#prompt", "Enter");
    await page.waitForFunction(() => document.querySelectorAll(".message.assistant")[1]?.textContent.length > 40);
    await page.waitForTimeout(900);
    await page.reload();
    await page.waitForFunction(() => document.querySelectorAll(".message.assistant").length === 2);
    const last = page.locator(".message.assistant").last();
    assert.ok((await last.locator(".prose").textContent()).length > 20);
    assert.match(await last.locator(".note").textContent(), /Stopped/);
    await close(page);
  },

  async "conversations are found, renamed and deleted"() {
    const page = await open();
    await greedy(page, { max_tokens: 4 });
    await ask(page, "A question about tulips");
    await begin(page);
    await ask(page, "A question about anvils");
    const list = page.locator("#conversations a");
    assert.deepEqual(await list.allTextContents(), ["A question about anvils", "A question about tulips"]);
    await page.fill("#search", "tulip");
    assert.deepEqual(await list.allTextContents(), ["A question about tulips"]);
    await list.first().click();
    await page.waitForFunction(() => document.querySelector(".message.user .said")?.textContent.includes("tulips"));
    await page.locator("#conversations li").first().hover();
    await page.click("[aria-label='Rename A question about tulips']");
    await page.fill("#conversations input", "Flowers");
    await page.press("#conversations input", "Enter");
    await page.fill("#search", "");
    await page.locator("#conversations a", { hasText: "Flowers" }).waitFor();
    await page.locator("#conversations li", { hasText: "anvils" }).hover();
    await page.click("[aria-label='Delete A question about anvils']");
    await page.click("dialog .danger");
    await told(page, /deleted/);
    await page.reload();
    await page.waitForSelector("#conversations a");
    assert.deepEqual(await list.allTextContents(), ["Flowers"]);
    await close(page);
  },

  async "conversations are exported, and imported in another browser"() {
    const page = await open();
    await greedy(page, { max_tokens: 6 });
    const text = await ask(page, "What is the capital of France?");
    await go(page, "settings");
    const download = page.waitForEvent("download");
    await page.click("text=Export");
    const path = await (await download).path();
    const other = await open();
    await go(other, "settings");
    await other.setInputFiles("#import", path);
    await told(other, /1 conversations are imported/);
    await other.locator("#conversations a").first().click();
    await other.waitForSelector(".message.assistant");
    assert.equal(await answer(other), text);
    // What is no such file changes nothing.
    await go(other, "settings");
    await other.setInputFiles("#import", { name: "x.json", mimeType: "application/json", buffer: Buffer.from("{}") });
    await told(other, /cannot be imported/);
    assert.equal(JSON.parse(await readFile(path)).conversations.length, 1);
    assert.equal(await other.locator("#conversations a").count(), 1);
    await close(other);
    await close(page);
  },
};

// For everybody: by keyboard, with a screen reader, on a phone, in the dark.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { PHONE, answer, answerWith, ask, begin, close, fits, go, greedy, open, settings, shot, told } from "./common.mjs";

const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** Looks for what keeps people out; what is serious or worse fails. */
export async function reachable(page, where) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const bad = violations.filter(({ impact }) => ["serious", "critical"].includes(impact));
  const lines = bad.map(({ id, nodes }) => `${where}: ${id}: ${nodes.slice(0, 3).map((node) => `${node.target} ${node.any.map((one) => one.message).join("; ")}`).join(" | ")}`);
  assert.deepEqual(lines, []);
}

const RICH = "# A title\n\nText with `code`, a [link](https://example.org), $x^2$ and\n\n```js\nconst a = 1; // one\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> quoted\n\n- one\n- two";

async function audit(colorScheme) {
  const page = await open({ colorScheme });
  await reachable(page, "empty");
  await answerWith(page, RICH);
  await ask(page, "Show all");
  await page.waitForSelector(".hljs-keyword");
  await page.click("text=It should have been…");
  await reachable(page, "conversation");
  await page.unrouteAll();
  await settings(page, { temperature: 0, max_tokens: 4 });
  for (const summary of await page.locator("#options summary").all()) await summary.click();
  await reachable(page, "options");
  for (const tab of ["form", "tools"]) {
    await page.click(`#tab-${tab}`);
    if (tab === "form") await page.selectOption("#form-kind", "json_schema");
    await reachable(page, tab);
    if (tab === "form") await page.selectOption("#form-kind", "text");
  }
  await page.click("#tab-answer");
  await page.check("text=Tell the probabilities of tokens");
  await ask(page, "Hello");
  await page.click("[aria-label='Tokens and probabilities']");
  await reachable(page, "tokens");
  await page.click("#more");
  for (const view of ["learning", "memory", "audit", "server", "settings"]) {
    await go(page, view);
    await page.waitForTimeout(400);
    if (view === "audit") await page.locator(".record summary").first().click();
    await reachable(page, view);
  }
  await page.keyboard.press("?");
  await page.waitForSelector("dialog");
  await reachable(page, "dialog");
  await close(page);
}

export const flows = {
  async "axe finds a planted fault"() {
    const page = await open();
    await page.evaluate(() => {
      const text = document.createElement("p");
      text.textContent = "Hardly to be read";
      text.style.color = "#eee";
      document.querySelector(".welcome").append(text, document.createElement("button"));
    });
    const found = await reachable(page, "planted").then(() => "", (error) => error.message);
    assert.match(found, /color-contrast/);
    assert.match(found, /button-name/);
    await close(page);
  },

  async "axe finds nothing serious, in the light"() {
    await audit("light");
  },

  async "axe finds nothing serious, in the dark"() {
    await audit("dark");
  },

  async "everything is done by keyboard alone"() {
    const page = await open();
    const focused = () => page.evaluate(() => (document.activeElement === document.body ? "nothing" : null) || document.activeElement.id || document.activeElement.getAttribute("aria-label") || document.activeElement.textContent);
    const tabTo = async (name, keys = "Tab") => {
      for (let i = 0; i < 60; i++) {
        if ((await focused()).includes(name)) return;
        await page.keyboard.press(keys);
      }
      assert.fail(`${name} is not reached; ${await focused()} is`);
    };
    assert.equal(await focused(), "prompt");
    // Settings, by Alt O and Tab.
    await page.keyboard.press("Alt+o");
    await page.waitForSelector("#field-temperature");
    await tabTo("field-temperature");
    await page.keyboard.type("0");
    await tabTo("field-max_tokens");
    await page.keyboard.press("Control+a");
    await page.keyboard.type("24");
    await page.keyboard.press("Alt+o");
    await page.locator("#options").waitFor({ state: "detached" });
    await tabTo("prompt", "Shift+Tab");
    await page.keyboard.type("What is the capital of France?");
    await page.keyboard.press("Enter");
    assert.match(await answer(page), /Paris/);
    // The last question is edited by the arrow.
    await tabTo("prompt");
    await page.keyboard.press("ArrowUp");
    await page.waitForSelector("textarea[aria-label='Edit the question']");
    await page.keyboard.press("Control+a");
    await page.keyboard.type("What is the capital of Italy?");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".message.user >> text=Italy");
    await answer(page);
    await tabTo("Branch before", "Shift+Tab");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".message.user >> text=France");
    // The focus stays where the branches are chosen.
    await page.waitForFunction(() => document.activeElement.closest(".branches"));
    assert.match(await answer(page), /Paris/);
    // An answer is corrected, and that is undone.
    await tabTo("It should have been");
    await page.keyboard.press("Enter");
    await page.keyboard.type("It is Lutetia.");
    await tabTo("Teach this");
    await page.keyboard.press("Enter");
    await told(page, /Learned as item/);
    await page.waitForFunction(() => document.activeElement.textContent === "Undo");
    await page.keyboard.press("Enter");
    await told(page, /is undone/);
    // The views, the list of keys, and a new conversation.
    await page.keyboard.press("Alt+5");
    await page.waitForSelector("text=Live");
    assert.equal(await focused(), "Server");
    await page.keyboard.press("?");
    await page.waitForSelector("dialog");
    await page.keyboard.press("Escape");
    await page.locator("dialog").waitFor({ state: "detached" });
    await page.keyboard.press("Alt+n");
    await page.waitForSelector(".welcome");
    await page.keyboard.press("Alt+s");
    await page.waitForFunction(() => document.activeElement.id === "search");
    await page.keyboard.type("capital");
    await tabTo("What is the capital");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".message.user");
    await close(page);
  },

  async "a screen reader hears what happens, and everything has a name"() {
    const page = await open();
    await greedy(page, { max_tokens: 12 });
    const heard = page.locator("p.unseen[role='status']");
    await ask(page, "What is the capital of France?");
    await page.waitForFunction(() => /^Answer: /.test(document.querySelector("p.unseen[role='status']").textContent));
    assert.match(await heard.textContent(), /Paris/);
    const names = async (role) => (await page.getByRole(role).all()).length;
    assert.deepEqual([await names("main"), await names("navigation"), await names("log"), await names("article")], [1, 1, 1, 2]);
    const nameless = await page.evaluate(() => [...document.querySelectorAll("button, input, select, textarea, a")].filter((one) => !(one.getAttribute("aria-label") || one.labels?.length || one.textContent.trim())).map((one) => one.outerHTML));
    assert.deepEqual(nameless, []);
    await close(page);
  },

  async "it fits a phone, light and dark"() {
    for (const colorScheme of ["light", "dark"]) {
      const page = await open({ viewport: PHONE, isMobile: true, hasTouch: true, deviceScaleFactor: 2, colorScheme });
      await fits(page);
      assert.ok(await page.locator("#side").isHidden());
      await page.tap("#more");
      await page.waitForSelector("#field-temperature");
      await page.fill("#field-temperature", "0");
      await page.fill("#field-max_tokens", "60");
      await shot(page, `phone-${colorScheme}-options`);
      await page.tap("[aria-label='Close options']");
      await page.fill("#prompt", "What is the capital of France?");
      await page.tap("#send");
      assert.match(await answer(page), /Paris/);
      await fits(page);
      await shot(page, `phone-${colorScheme}`);
      await page.tap("#menu");
      await page.waitForSelector("#side.open");
      await page.waitForTimeout(300);
      await shot(page, `phone-${colorScheme}-menu`);
      await page.tap("#side >> text=Learning");
      await page.locator("#side").waitFor({ state: "hidden" });
      await page.waitForSelector("#l-generations");
      const wide = await page.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(wide <= PHONE.width, `${wide}`);
      await shot(page, `phone-${colorScheme}-learning`);
      await close(page);
    }
  },

  async "colours are chosen, and stay"() {
    const page = await open({ colorScheme: "light" });
    const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const light = await paper();
    await go(page, "settings");
    await page.check("[value='dark']");
    const dark = await paper();
    assert.notEqual(light, dark);
    await page.reload();
    await page.waitForSelector("main h1");
    assert.equal(await paper(), dark);
    await go(page, "chat");
    await begin(page);
    await answerWith(page, RICH);
    await ask(page, "Show all");
    await page.waitForSelector(".hljs-keyword");
    await shot(page, "desktop-dark");
    await close(page);
  },
};

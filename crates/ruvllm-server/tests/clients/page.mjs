// The page in Chromium: a prompt is typed and its answer read as it comes, one is stopped, and both sizes are looked at.
// Arguments: the server's address, a folder for the screenshots.

import assert from "node:assert/strict";
import { join } from "node:path";
import { chromium } from "playwright-core";

const [, , url, folder] = process.argv;
const browser = await chromium.launch({
  executablePath: process.env.RUVLLM_CHROMIUM ?? "/usr/bin/chromium",
  args: [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--metrics-recording-only",
    "--no-first-run",
    "--no-pings",
    // No name but the server's own leads anywhere.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
  ],
});

/** Opens the page in a window of this size, and makes it fail the test by whatever goes wrong in it. */
async function open(viewport, more = {}) {
  const context = await browser.newContext({ viewport, ...more });
  const page = await context.newPage();
  page.wrong = [];
  page.on("pageerror", (error) => page.wrong.push(`${error}`));
  page.on("console", (message) => message.type() === "error" && page.wrong.push(message.text()));
  page.on("request", (request) => request.url().startsWith(url) || page.wrong.push(`asks ${request.url()}`));
  await page.goto(url);
  await page.waitForFunction(() => document.getElementById("model").textContent !== "");
  return page;
}

const shot = (page, name) => page.screenshot({ path: join(folder, `${name}.png`) });

/** Waits until no answer is being written, and returns the last. */
async function answer(page) {
  await page.waitForSelector("#send:not([hidden])");
  return page.locator(".message.assistant").last().textContent();
}

/** Nothing is wider than the window, and the place to write is in it. */
async function fits(page) {
  const { width, height } = page.viewportSize();
  const seen = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.scrollHeight]);
  assert.ok(seen[0] <= width && seen[1] <= height, `${seen} in ${width} x ${height}`);
  const box = await page.locator("#prompt").boundingBox();
  assert.ok(box.width > 150 && box.y + box.height <= height, JSON.stringify(box));
}

async function desktop() {
  const page = await open({ width: 1280, height: 800 });
  await fits(page);
  await shot(page, "desktop-empty");
  await page.fill("#temperature", "0");
  await page.fill("#max_tokens", "60");
  await page.fill("#prompt", "What is the capital of France?");
  await page.press("#prompt", "Enter");
  const text = await answer(page);
  assert.match(text, /Paris/);
  assert.match(await page.locator(".note").last().textContent(), /prompt tokens .* written at/);
  await page.fill("#prompt", "And of Italy?");
  await page.click("#send");
  await answer(page);
  assert.equal(await page.locator(".message").count(), 4);
  await page.waitForFunction(() => Number(document.getElementById("m-written").textContent) > 0);
  await fits(page);
  await shot(page, "desktop");

  // An answer that does not end by itself.
  await page.route("**/v1/chat/completions", (route) => {
    const body = { ...route.request().postDataJSON(), ignore_eos: true };
    return route.continue({ postData: JSON.stringify(body) });
  });
  await page.fill("#max_tokens", "1500");
  await page.fill("#temperature", "1");
  await page.fill("#prompt", "Count from one to a thousand, in words.");
  await page.click("#send");
  // It comes in pieces: there is some of it, then more, and it is still being written.
  const grown = (n) => [...document.querySelectorAll(".message.assistant")].at(-1).textContent.length > n;
  await page.waitForFunction(grown, 20);
  await page.waitForFunction(grown, (await page.locator(".message.assistant").last().textContent()).length);
  assert.ok(await page.locator("#send").isHidden());
  await page.click("#stop");
  await page.waitForSelector("#send:not([hidden])");
  assert.equal(await page.locator(".note").last().textContent(), "stopped");
  // The server has stopped as well.
  await page.waitForFunction(() => document.getElementById("m-running").textContent === "0");
  await page.unrouteAll();
  await page.click("#clear");
  assert.equal(await page.locator(".message").count(), 0);
  assert.deepEqual(page.wrong, []);

  // A wrong setting is told, and the page goes on.
  await page.fill("#temperature", "-101");
  await page.fill("#prompt", "Hello");
  await page.press("#prompt", "Enter");
  await page.waitForSelector(".note.wrong");
  assert.match(await page.locator(".note.wrong").textContent(), /'temperature' is -101/);
  await page.context().close();
}

async function phone(colorScheme) {
  const size = { width: 390, height: 844 };
  const page = await open(size, { isMobile: true, hasTouch: true, deviceScaleFactor: 2, colorScheme });
  await fits(page);
  assert.ok(await page.locator("#side").isHidden());
  await page.tap("#more");
  assert.ok(await page.locator("#temperature").isVisible());
  await page.fill("#temperature", "0");
  await page.fill("#max_tokens", "60");
  await shot(page, `phone-${colorScheme}-settings`);
  await page.fill("#prompt", "What is the capital of France?");
  await page.tap("#send");
  assert.ok(await page.locator("#side").isHidden());
  assert.match(await answer(page), /Paris/);
  await fits(page);
  await shot(page, `phone-${colorScheme}`);
  assert.deepEqual(page.wrong, []);
  await page.context().close();
}

try {
  await desktop();
  await phone("light");
  await phone("dark");
  console.log("ok");
} finally {
  await browser.close();
}

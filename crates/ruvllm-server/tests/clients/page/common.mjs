// What all flows of the page use: a browser, a page that fails by whatever goes wrong in it, and what a person does.

import assert from "node:assert/strict";
import { join } from "node:path";
import { chromium } from "playwright-core";

/** Addresses of the servers, and the folder of the screenshots. */
export const [url, keyed, folder] = process.argv.slice(2);

export const browser = await chromium.launch({
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

const DESKTOP = { width: 1280, height: 800 };
export const PHONE = { width: 390, height: 844 };

/** Answers of the server that are meant to be errors in a flow; the browser puts a line about each on its console. */
const FAILED = /^Failed to load resource: the server responded with a status of 4/;

/** Opens the page in a browser of its own; `wrong` collects what goes wrong in it. */
export async function open({ viewport = DESKTOP, at = url, view = "", ...more } = {}) {
  const context = await browser.newContext({ viewport, reducedMotion: "reduce", ...more });
  const page = await context.newPage();
  return watch(page, at, view);
}

/** Has a page fail by errors, complaints of its policy, and requests to anybody else. */
async function watch(page, at, view) {
  page.wrong = [];
  page.on("pageerror", (error) => page.wrong.push(`${error}`));
  page.on("console", (message) => message.type() === "error" && !FAILED.test(message.text()) && page.wrong.push(message.text()));
  page.on("request", (request) => request.url().startsWith(at) || request.url().startsWith("blob:") || page.wrong.push(`asks ${request.url()}`));
  await page.goto(`${at}/${view ? `#/${view}` : ""}`);
  await page.waitForSelector(view ? "main h1" : "#prompt");
  await page.waitForFunction(() => ["ready", "key needed"].includes(document.getElementById("state").textContent));
  return page;
}

/** Closes a page in which nothing may have gone wrong. */
export async function close(page) {
  assert.deepEqual(page.wrong, []);
  await page.context().close();
}

export const shot = (page, name) => page.screenshot({ path: join(folder, `${name}.png`) });

/** Opens the options and sets fields of them. */
export async function settings(page, values) {
  if (!(await page.locator("#options").count())) await page.click("#more");
  await page.waitForSelector("#field-temperature");
  for (const [name, value] of Object.entries(values)) await page.fill(`#field-${name}`, String(value));
}

/** Has the model take the most likely token, in a short answer. */
export async function greedy(page, more = {}) {
  await settings(page, { temperature: 0, max_tokens: 60, ...more });
  await page.click("#more");
}

/** Types a question, sends it, and waits for the answer's end. Returns the answer's text. */
export async function ask(page, text) {
  await page.fill("#prompt", text);
  await page.press("#prompt", "Enter");
  return answer(page);
}

/** Waits until no answer is being written, and returns the last. */
export async function answer(page) {
  await page.waitForSelector(".message.assistant:not(.busy)");
  await page.waitForSelector("#send");
  const last = page.locator(".message.assistant").last();
  return (await last.locator(".prose").count()) ? (await last.locator(".prose").last().innerText()).trim() : "";
}

/** Begins a conversation. */
export async function begin(page) {
  const before = page.url();
  await page.click("#new");
  await page.waitForFunction((was) => location.href !== was, before);
  await page.waitForSelector(".welcome");
}

/** Goes to a view. */
export async function go(page, view) {
  await page.evaluate((name) => { location.hash = `#/${name}`; }, view);
  await page.waitForSelector("main h1");
}

/** Waits for the line at the foot of the page, and returns it. */
export async function told(page, pattern) {
  const line = page.locator(".toast", { hasText: pattern });
  await line.waitFor();
  return line.textContent();
}

/** Asks the server, as the page does. */
export async function api(method, path, body, at = url) {
  const response = await fetch(`${at}/${path}`, { method, headers: { "content-type": "application/json" }, body: body && JSON.stringify(body) });
  return response.json();
}

/** Returns the value of a metric of the server. */
export async function metric(name) {
  const text = await (await fetch(`${url}/metrics`)).text();
  const line = text.split("\n").find((one) => one.startsWith(`${name}{`) || one.startsWith(`${name} `));
  return Number(line.slice(line.lastIndexOf(" ") + 1));
}

/** Has the server's answer be these pieces, so that the page's part of it is seen alone: texts, or what a piece has else. */
export async function answerWith(page, ...pieces) {
  await page.route("**/v1/chat/completions", (route) => {
    const event = (data) => `data: ${JSON.stringify(data)}\n\n`;
    const chunk = (delta, end = null) => event({ id: "chatcmpl-0", model: "m", choices: [{ index: 0, delta, finish_reason: end }] });
    const all = pieces.map((piece) => (typeof piece === "string" ? chunk({ content: piece }) : piece.error ? event(piece) : chunk(piece)));
    const body = `${chunk({ role: "assistant", content: "" })}${all.join("")}${chunk({}, "stop")}data: [DONE]\n\n`;
    return route.fulfill({ status: 200, contentType: "text/event-stream", body });
  });
}

/** Nothing is wider than the window, and the place to write is in it. */
export async function fits(page) {
  const { width, height } = page.viewportSize();
  const seen = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.scrollHeight]);
  assert.ok(seen[0] <= width && seen[1] <= height, `${seen} in ${width} x ${height}`);
  const box = await page.locator("#prompt").boundingBox();
  assert.ok(box.width > 150 && box.y + box.height <= height, JSON.stringify(box));
}

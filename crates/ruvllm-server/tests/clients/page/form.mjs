// Forms of answers, and functions that the model calls.

import assert from "node:assert/strict";
import { answer, ask, close, greedy, open, shot } from "./common.mjs";

const form = async (page, kind) => {
  await page.click("#more");
  await page.click("#tab-form");
  await page.selectOption("#form-kind", kind);
};

export const flows = {
  async "an answer is held to a JSON Schema"() {
    const page = await open();
    await greedy(page, { max_tokens: 80 });
    await form(page, "json_schema");
    await page.fill("#form-text", "{ broken");
    assert.match(await page.locator("#form-why").textContent(), /no JSON/);
    await page.click("text=A person");
    await ask(page, "Invent a person.");
    const shown = await page.locator(".message.assistant code").textContent();
    const person = JSON.parse(shown);
    assert.deepEqual(Object.keys(person), ["name", "age"]);
    assert.equal(typeof person.age, "number");
    await shot(page, "desktop-schema");
    await close(page);
  },

  async "an answer is one of several texts, or one that an expression matches"() {
    const page = await open();
    await greedy(page);
    await form(page, "choice");
    await page.fill("#form-text", "violet\nochre");
    assert.match(await ask(page, "Which colour is the sky?"), /^(violet|ochre)$/);
    await page.selectOption("#form-kind", "regex");
    await page.fill("#form-text", "[0-9]{4}-[0-9]{2}");
    assert.match(await ask(page, "When?"), /^\d{4}-\d{2}$/);
    await close(page);
  },

  async "a function is called, its result is given, and the model goes on"() {
    const page = await open();
    await greedy(page, { max_tokens: 80 });
    await page.click("#more");
    await page.click("#tab-tools");
    await page.click("text=Weather");
    await page.selectOption("#tools-choice", "weather");
    await ask(page, "What is the weather in Ulm?");
    const call = page.locator(".call");
    assert.equal(await call.locator("h3").textContent(), "weather");
    assert.equal(typeof JSON.parse(await call.locator("pre").textContent()).city, "string");
    await page.selectOption("#tools-choice", "none");
    await call.locator("textarea").fill("Rain, 9 degrees");
    const request = page.waitForRequest("**/v1/chat/completions");
    await page.click("text=Give results");
    const { messages } = (await request).postDataJSON();
    assert.deepEqual(messages.map(({ role }) => role), ["user", "assistant", "tool"]);
    assert.deepEqual([messages[2].content, messages[2].tool_call_id], ["Rain, 9 degrees", messages[1].tool_calls[0].id]);
    assert.ok((await answer(page)).length > 0);
    assert.equal(await page.locator(".message.tool").count(), 1);
    await close(page);
  },
};

// Asking and answering.

import assert from "node:assert/strict";
import { answer, answerWith, api, ask, begin, close, fits, greedy, metric, open, settings, shot, told } from "./common.mjs";

export const flows = {
  async "an answer comes in pieces, and says what it took"() {
    const page = await open();
    await fits(page);
    await shot(page, "desktop-empty");
    await greedy(page);
    assert.match(await ask(page, "What is the capital of France?"), /Paris/);
    await ask(page, "And of Italy?");
    assert.equal(await page.locator(".message").count(), 4);
    await page.locator("[aria-label='About this answer']").last().click();
    const facts = await page.locator(".facts").textContent();
    assert.match(facts, /tokens, \d+ of them cached/);
    assert.match(facts, /First tokenafter \d+ ms/);
    await fits(page);
    await shot(page, "desktop");
    await close(page);
  },

  async "an answer is stopped, and the server stops as well"() {
    const page = await open();
    await settings(page, { temperature: 1, max_tokens: 1500 });
    await page.locator("summary", { hasText: "Where it ends" }).click();
    await page.selectOption("#field-ignore_eos", "true");
    await page.fill("#prompt", "Count from one to a thousand, in words.");
    await page.press("#prompt", "Enter");
    const grown = (n) => [...document.querySelectorAll(".message.assistant")].at(-1)?.textContent.length > n;
    await page.waitForFunction(grown, 20);
    await page.waitForFunction(grown, (await page.locator(".message.assistant").last().textContent()).length);
    await page.click("#stop");
    await page.waitForSelector("#send");
    assert.match(await page.locator(".message.assistant .note").last().textContent(), /Stopped/);
    for (let i = 0; (await metric("ruvllm_requests_running")) > 0; i++) {
      assert.ok(i < 100, "the server goes on");
      await new Promise((done) => setTimeout(done, 50));
    }
    await close(page);
  },

  async "another answer is another branch"() {
    const page = await open();
    await settings(page, { temperature: 1.5, max_tokens: 24 });
    const first = await ask(page, "Tell me a story about a boat.");
    await page.click("[aria-label='Answer again']");
    const second = await answer(page);
    assert.notEqual(first, second);
    assert.equal(await page.locator(".message").count(), 2);
    assert.equal(await page.locator(".message.assistant .branches span").textContent(), "2/2");
    await page.click("[aria-label='Branch before']");
    assert.equal(await answer(page), first);
    await page.click("[aria-label='Branch after']");
    assert.equal(await answer(page), second);
    await close(page);
  },

  async "several answers at once are branches, each judged for itself"() {
    const page = await open();
    await settings(page, { temperature: 1.5, max_tokens: 12 });
    await page.locator("summary", { hasText: "Several answers" }).click();
    await page.fill("#field-n", "3");
    const first = await ask(page, "Name an animal.");
    const branches = page.locator(".message.assistant .branches span");
    assert.equal(await branches.textContent(), "1/3");
    await page.click("[aria-label='Branch after']");
    assert.equal(await branches.textContent(), "2/3");
    const second = await answer(page);
    assert.notEqual(first, second);
    const request = page.waitForRequest("**/v1/feedback");
    await page.click("[aria-label='Good answer']");
    assert.equal((await request).postDataJSON().choice, 1);
    await told(page, /Learned as item/);
    await page.click("[aria-label='Branch before']");
    assert.equal(await page.locator(".learned").count(), 0);
    await close(page);
  },

  async "an edited question is another branch, with all that follows"() {
    const page = await open();
    await greedy(page);
    await ask(page, "What is the capital of France?");
    await ask(page, "Thank you.");
    await page.locator(".message.user").first().hover();
    await page.locator("[aria-label='Edit the question']").first().click();
    const box = page.locator("textarea[aria-label='Edit the question']");
    assert.equal(await box.inputValue(), "What is the capital of France?");
    await box.fill("What is the capital of Italy?");
    await box.press("Enter");
    assert.ok((await answer(page)).length > 0);
    assert.match(await page.locator(".message.user").textContent(), /Italy/);
    assert.equal(await page.locator(".message").count(), 2);
    await page.locator(".message.user").first().hover();
    await page.click("[aria-label='Branch before']");
    assert.equal(await page.locator(".message").count(), 4);
    assert.match(await page.locator(".message.assistant").first().textContent(), /Paris/);
    await close(page);
  },

  async "thoughts stand apart from the answer, and go back with it"() {
    const page = await open();
    await answerWith(page, { reasoning_content: "Perhaps **two**." }, "It is two.");
    assert.equal(await ask(page, "One and one?"), "It is two.");
    const thought = page.locator(".thought");
    assert.equal(await thought.locator("summary").textContent(), "Thoughts");
    assert.equal(await thought.locator(".prose").isVisible(), false);
    await thought.locator("summary").click();
    assert.match(await thought.locator(".prose").innerText(), /Perhaps two/);
    const request = page.waitForRequest("**/v1/chat/completions");
    await ask(page, "Sure?");
    assert.equal((await request).postDataJSON().messages[1].reasoning_content, "Perhaps **two**.");
    await close(page);
  },

  async "an answer that breaks off keeps what came, and says why"() {
    const page = await open();
    await answerWith(page, "It begins", { error: { message: "the engine has ended" } });
    assert.equal(await ask(page, "Tell me"), "It begins");
    assert.match(await page.locator(".note.wrong").textContent(), /the engine has ended/);
    await page.unrouteAll();
    await page.route("**/v1/chat/completions", (route) => route.abort());
    await page.click("[aria-label='Answer again']");
    await page.waitForSelector(".note.wrong >> text=no connection");
    assert.equal(await page.locator(".branches span").last().textContent(), "2/2");
    page.wrong = page.wrong.filter((line) => !/ERR_FAILED/.test(line));
    await close(page);
  },

  async "a setting that the server refuses is told, and the page goes on"() {
    const page = await open();
    await settings(page, { temperature: -101 });
    await page.fill("#prompt", "Hello");
    await page.press("#prompt", "Enter");
    await page.waitForSelector(".note.wrong");
    assert.match(await page.locator(".note.wrong").textContent(), /'temperature' is -101/);
    await settings(page, { temperature: 0, max_tokens: 8 });
    await page.click("[aria-label='Answer again']");
    assert.ok((await answer(page)).length > 0);
    await close(page);
  },

  async "all settings of the server are there, and are sent as they are set"() {
    const page = await open();
    await settings(page, {});
    const { endpoints } = await api("GET", "v1/capabilities");
    const { accepted } = endpoints.find((one) => one.path === "/v1/chat/completions");
    const names = accepted.filter(({ name, effect }) => effect && !name.includes("[")).map(({ name }) => name);
    const shown = await page.locator("[id^='field-']:is(input, select, textarea)").evaluateAll((all) => all.map((one) => one.name));
    // What has a place of its own, what the page sets itself, and what has one value only.
    const elsewhere = "messages model adapter stream stream_options logprobs tools tool_choice response_format structured_outputs guided_json guided_regex guided_choice guided_grammar max_completion_tokens modalities parse_tool_calls thinking_forced_open grammar_lazy image_data post_sampling_probs".split(" ");
    assert.deepEqual(names.filter((name) => !shown.includes(name) && !elsewhere.includes(name)), []);
    for (const summary of await page.locator("#options summary").all()) await summary.click();
    await settings(page, { temperature: 0.5, top_k: 3, mirostat: 1, seed: 7, max_tokens: 4, stop: "x\n\\n", logit_bias: '{"5": -2}' });
    await page.fill("#system", "Be short.");
    await shot(page, "desktop-options");
    const request = page.waitForRequest("**/v1/chat/completions");
    await ask(page, "Hello");
    const body = (await request).postDataJSON();
    assert.deepEqual(body.messages, [{ role: "system", content: "Be short." }, { role: "user", content: "Hello" }]);
    const { temperature, top_k, seed, max_tokens, stop, logit_bias, mirostat } = body;
    assert.deepEqual({ temperature, top_k, seed, max_tokens, stop, logit_bias, mirostat }, { temperature: 0.5, top_k: 3, seed: 7, max_tokens: 4, stop: ["x", "\n"], logit_bias: { 5: -2 }, mirostat: 1 });
    await page.fill("#field-top_k", "many");
    assert.match(await page.locator("#field-top_k-does").textContent(), /a number is needed/);
    await close(page);
  },

  async "files of text go with a question, and others are refused"() {
    const page = await open();
    await greedy(page, { max_tokens: 12 });
    await page.setInputFiles("#files", [
      { name: "note.txt", mimeType: "text/plain", buffer: Buffer.from("The word is lantern.\n") },
      { name: "x.bin", mimeType: "application/octet-stream", buffer: Buffer.from([0, 159, 146, 150]) },
    ]);
    await told(page, /x\.bin is no text/);
    assert.equal(await page.locator(".files li").count(), 1);
    const request = page.waitForRequest("**/v1/chat/completions");
    await ask(page, "Which word is it?");
    const { content } = (await request).postDataJSON().messages.at(-1);
    assert.equal(content, "File note.txt:\n```\nThe word is lantern.\n```\n\nWhich word is it?");
    assert.match(await page.locator(".file summary").textContent(), /note\.txt/);
    await begin(page);
    assert.equal(await page.locator(".files li").count(), 0);
    await close(page);
  },

  async "the probabilities of tokens are seen, with what might have been"() {
    const page = await open();
    await greedy(page, { max_tokens: 12 });
    await page.click("#more");
    await page.check("text=Tell the probabilities of tokens");
    const text = await ask(page, "What is the capital of France?");
    await page.click("[aria-label='Tokens and probabilities']");
    const tokens = page.locator("[role='option']");
    assert.equal((await tokens.allTextContents()).join("").trim().slice(0, 20), text.slice(0, 20));
    const list = page.locator("[role='listbox']");
    await list.focus();
    await list.press("ArrowRight");
    assert.equal(await tokens.nth(1).getAttribute("aria-selected"), "true");
    assert.match(await page.locator(".token-detail caption").textContent(), /Token 2 of/);
    assert.ok((await page.locator(".token-detail tbody tr").count()) >= 5);
    await shot(page, "desktop-tokens");
    await close(page);
  },
};

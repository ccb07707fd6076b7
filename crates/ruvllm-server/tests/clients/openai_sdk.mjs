// The openai package of npm against a server: what its users do, and what they are told when it cannot be.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const model = "smollm2:135m";
const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "key-of-the-tests", maxRetries: 0 });
const question = [{ role: "user", content: "What is the capital of France?" }];
const given = { model, messages: question, max_tokens: 24, temperature: 0 };
const create = (more) => client.chat.completions.create({ ...given, ...more });

async function chat() {
  const answer = await create({});
  const text = answer.choices[0].message.content;
  assert.match(text, /Paris/);
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);

  const stream = await create({ stream: true, stream_options: { include_usage: true } });
  let [streamed, usage] = ["", null];
  for await (const chunk of stream) {
    streamed += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(streamed, text);
  assert.equal(usage.completion_tokens, answer.usage.completion_tokens);
  assert.equal(usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens - 1);

  const runner = client.chat.completions.stream(given);
  assert.equal(await runner.finalContent(), text);
  const several = await create({ n: 2, seed: 7, temperature: 1.2, logprobs: true, top_logprobs: 2, stop: ["\n\n"] });
  assert.deepEqual(several.choices.map((choice) => choice.index), [0, 1]);
  assert.equal(several.choices[0].logprobs.content[0].top_logprobs.length, 2);
}

async function stopped() {
  // A stream that its reader leaves ends its request.
  const stream = await create({ stream: true, max_tokens: 1500, temperature: 1 });
  for await (const _ of stream) break;
}

const Weather = z.object({ city: z.enum(["Paris", "Rome"]), days: z.number().int().min(1).max(9) });
const forecast = [{ role: "user", content: "What will the weather be like in Paris the next 3 days?" }];

async function tools() {
  const tool = zodFunction({ name: "get_weather", description: "Returns a forecast", parameters: Weather });
  const tool_choice = { type: "function", function: { name: "get_weather" } };
  const asked = { messages: forecast, tools: [tool], tool_choice, max_tokens: 80 };
  const parsed = await client.chat.completions.parse({ ...given, ...asked });
  const { message, finish_reason } = parsed.choices[0];
  const call = message.tool_calls[0];
  assert.equal(finish_reason, "tool_calls");
  assert.ok(Weather.parse(call.function.parsed_arguments));

  const runner = client.chat.completions.stream({ ...given, ...asked });
  const deltas = [];
  runner.on("tool_calls.function.arguments.delta", (event) => deltas.push(event.arguments_delta));
  const final = await runner.finalMessage();
  assert.ok(deltas.length > 2, `${deltas}`);
  assert.equal(final.tool_calls[0].function.arguments, call.function.arguments);

  const result = { role: "tool", tool_call_id: call.id, content: "sunny, 31 degrees" };
  const told = await create({ ...asked, messages: [...forecast, message, result], tool_choice: "none" });
  assert.match(told.choices[0].message.content, /sunny/i);

  // The loop that the package runs by itself: asked for once, the function is called, and its result is answered.
  const seen = [];
  const looping = client.chat.completions.runTools(
    {
      ...given,
      ...asked,
      tools: [
        {
          type: "function",
          function: {
            ...tool.function,
            parse: JSON.parse,
            function: (value) => {
              seen.push(Weather.parse(value));
              return "sunny, 31 degrees";
            },
          },
        },
      ],
    },
    { maxChatCompletions: 1 },
  );
  await looping.done();
  assert.equal(seen.length, 1);
}

async function structured() {
  const City = z.object({ name: z.string().max(20), kind: z.enum(["town", "village"]) });
  const messages = [{ role: "user", content: "Tell me about Paris as JSON with name and kind." }];
  const format = zodResponseFormat(City, "city");
  const answer = await client.chat.completions.parse({ ...given, messages, response_format: format, max_tokens: 200 });
  assert.ok(City.parse(answer.choices[0].message.parsed));
  const text = { format: zodTextFormat(City, "city") };
  const response = await client.responses.parse({ model, input: messages[0].content, text, temperature: 0 });
  assert.ok(City.parse(response.output_parsed));
}

async function responses() {
  const answer = await client.responses.create({ model, input: question, max_output_tokens: 24, temperature: 0 });
  assert.match(answer.output_text, /Paris/);
  const stream = client.responses.stream({ model, input: question, max_output_tokens: 24, temperature: 0 });
  assert.equal((await stream.finalResponse()).output_text, answer.output_text);
}

async function others() {
  const models = [];
  for await (const one of client.models.list()) models.push(one.id);
  assert.deepEqual(models, [model]);
  await assert.rejects(client.models.retrieve("gpt-5"), OpenAI.NotFoundError);
  const unknown = await create({ temprature: 1 }).catch((error) => error);
  assert.ok(unknown instanceof OpenAI.BadRequestError && unknown.param === "temprature", `${unknown}`);
  const stranger = new OpenAI({ baseURL: client.baseURL, apiKey: "key-of-nobody", maxRetries: 0 });
  await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
  const completion = await client.completions.create({ model, prompt: "1, 2, 3, 4,", max_tokens: 6, temperature: 0 });
  assert.match(completion.choices[0].text, /5/);
}

for (const check of [chat, stopped, tools, structured, responses, others]) await check();
console.log("ok");

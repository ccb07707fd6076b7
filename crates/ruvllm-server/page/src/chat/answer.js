// Asking: from a conversation to a request of /v1/chat/completions, and from its stream to messages of the conversation.

import { events, send } from "../api.js";
import { formatFields } from "../options/format.js";
import { toolFields } from "../options/tools.js";
import { said } from "../state.js";
import { change, handle, save } from "../store.js";
import { add, newId, patch, path } from "../tree.js";

/** Text of a question as the model reads it: its files stand before it. */
function promptText(node) {
  const files = (node.attachments ?? []).map(({ name, text }) => `File ${name}:\n\`\`\`\n${text.replace(/\n$/, "")}\n\`\`\``);
  return [...files, node.content].filter(Boolean).join("\n\n");
}

function message(node) {
  switch (node.role) {
    case "user":
      return { role: "user", content: promptText(node) };
    case "tool":
      return { role: "tool", tool_call_id: node.callId, content: node.content };
    default: {
      const calls = (node.calls ?? []).map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
      const thought = node.thought ? { reasoning_content: node.thought } : {};
      return { role: "assistant", content: node.content, ...thought, ...(calls.length ? { tool_calls: calls } : {}) };
    }
  }
}

/** Returns the request for an answer behind the message `parent`. */
function request(conversation, parent) {
  const system = conversation.system.trim();
  const asked = path(conversation, parent).filter((node) => node.role !== "assistant" || node.content || node.calls?.length);
  return {
    truncation: "auto",
    ...conversation.settings,
    ...(conversation.model ? { model: conversation.model } : {}),
    ...(conversation.adapter ? { adapter: conversation.adapter } : {}),
    ...(conversation.hasTokens ? { logprobs: true, top_logprobs: conversation.settings.top_logprobs ?? 5 } : {}),
    ...formatFields(conversation.format),
    ...toolFields(conversation.tools),
    messages: [...(system ? [{ role: "system", content: system }] : []), ...asked.map(message)],
    stream: true,
    stream_options: { include_usage: true },
  };
}

/** Adds pieces of a call that is told in parts. */
function addCalls(calls, deltas) {
  const all = calls.map((call) => ({ ...call }));
  for (const delta of deltas) {
    const i = delta.index ?? all.length;
    all[i] ??= { id: "", name: "", arguments: "" };
    all[i].id = delta.id ?? all[i].id;
    all[i].name += delta.function?.name ?? "";
    all[i].arguments += delta.function?.arguments ?? "";
  }
  return all;
}

const emptyAnswer = (parent, choice) => ({
  id: newId(),
  parent,
  role: "assistant",
  choice,
  created: Date.now(),
  content: "",
  thought: "",
  calls: [],
  tokens: [],
  isBusy: true,
});

/** Collects what a stream tells, and hands it to the page once a frame. */
class Writing {
  constructor(id, parent) {
    this.id = id;
    this.parent = parent;
    this.answers = [];
    this.start = performance.now();
    this.first = null;
    this.frame = null;
    this.answer(0);
  }

  answer(choice) {
    if (!this.answers[choice]) {
      this.answers[choice] = emptyAnswer(this.parent, choice);
      const leaf = choice === 0 ? this.answers[0].id : undefined;
      change(this.id, (state) => {
        const next = add(state, this.answers[choice]);
        return leaf ? next : { ...next, leaf: state.leaf };
      });
    }
    return this.answers[choice];
  }

  take(event) {
    if (event.error) throw new Error(event.error.message);
    if (event.usage) this.answers.forEach((answer) => Object.assign(answer, { usage: event.usage }));
    for (const choice of event.choices) {
      const answer = this.answer(choice.index);
      const { content, reasoning_content: thought, tool_calls: calls } = choice.delta;
      answer.answerId = event.id;
      answer.model = event.model;
      if (content || thought || calls) this.first ??= performance.now();
      answer.content += content ?? "";
      answer.thought += thought ?? "";
      if (calls) answer.calls = addCalls(answer.calls, calls);
      if (choice.logprobs?.content) answer.tokens = [...answer.tokens, ...choice.logprobs.content.map(token)];
      if (choice.finish_reason) answer.finish = choice.finish_reason;
    }
    this.frame ??= requestAnimationFrame(() => this.show());
  }

  show() {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    for (const answer of this.answers) change(this.id, (state) => patch(state, answer.id, { ...answer }));
  }

  /** Puts down how it ended. */
  end(more) {
    const took = performance.now() - (this.first ?? this.start);
    for (const answer of this.answers) {
      const n = answer.usage?.completion_tokens ?? 0;
      Object.assign(answer, {
        isBusy: false,
        firstMs: this.first && Math.round(this.first - this.start),
        // Short answers may arrive all at once.
        rate: took > 50 && n > 1 ? (1000 * (n - 1)) / took : null,
        ...more,
      });
    }
    this.show();
  }
}

const token = ({ token: text, logprob, top_logprobs: top }) => ({
  text,
  logprob,
  top: (top ?? []).map((one) => ({ text: one.token, logprob: one.logprob })),
});

/** Has the model answer behind the message `parent`. */
async function answer(id, parent) {
  const own = handle(id);
  if (own.busy.peek()) return;
  own.busy.value = true;
  own.stop = new AbortController();
  said.value = "Answering";
  let writing = null;
  try {
    const body = request(own.state.peek(), parent);
    writing = new Writing(id, parent);
    const response = await send("POST", "v1/chat/completions", body, own.stop.signal);
    const told = { request: response.headers.get("x-request-id"), unheeded: response.headers.get("x-ruvllm-unheeded"), reason: response.headers.get("x-ruvllm-routing") };
    await events(response, (event) => writing.take(event));
    writing.end(told);
    said.value = `Answer: ${writing.answers[0].content || "a call of a function"}`;
  } catch (error) {
    const isStopped = error.name === "AbortError";
    said.value = isStopped ? "Stopped" : `Error: ${error.message}`;
    const more = isStopped ? { finish: "stopped" } : { finish: "error", error: error.message };
    if (writing) writing.end(more);
    else change(id, (state) => add(state, { ...emptyAnswer(parent, 0), isBusy: false, ...more }));
  }
  own.busy.value = false;
  own.stop = null;
  save(id);
}

/** Asks a question at the end of the conversation. */
export function ask(id, content, attachments, parent = handle(id).state.peek().leaf) {
  const question = { id: newId(), parent, role: "user", created: Date.now(), content, attachments };
  change(id, (state) => add(state, question));
  return answer(id, question.id);
}

/** Asks again: another answer to the same question. */
export const regenerate = (id, node) => answer(id, node.parent);

/** Asks an edited question; the one before it stays as another branch. */
export const edit = (id, node, content) => ask(id, content, node.attachments, node.parent);

/** Gives the results of calls, by their ids, and has the model go on. */
export function giveResults(id, node, results) {
  let parent = node.id;
  for (const call of node.calls) {
    const result = { id: newId(), parent, role: "tool", created: Date.now(), callId: call.id, name: call.name, content: results[call.id] ?? "" };
    change(id, (state) => add(state, result));
    parent = result.id;
  }
  return answer(id, parent);
}

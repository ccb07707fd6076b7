"use strict";
// A chat over /v1/chat/completions, and what /metrics says every two seconds. Text is only ever set as text.
const $ = (id) => document.getElementById(id);
const conversation = [];
let running = null;
let last = null;

function headers() {
  const key = $("key").value.trim();
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

function show(role, text) {
  $("hint").hidden = true;
  const element = document.createElement("div");
  element.className = role === "note" ? "note" : `message ${role}`;
  element.textContent = text;
  $("messages").append(element);
  return element;
}

function scroll(force) {
  const box = $("messages");
  if (force || box.scrollHeight - box.scrollTop - box.clientHeight < 120) box.scrollTop = box.scrollHeight;
}

function request() {
  const system = $("system").value.trim();
  const body = {
    messages: [...(system ? [{ role: "system", content: system }] : []), ...conversation],
    stream: true,
    stream_options: { include_usage: true },
    truncation: "auto",
  };
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) {
    const value = $(name).value.trim();
    if (value !== "") body[name] = Number(value);
  }
  return body;
}

// Calls `each` with the data of every event of a stream.
async function events(response, each) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += decoder.decode(value, { stream: true });
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part.startsWith("data: ") && part !== "data: [DONE]") each(JSON.parse(part.slice(6)));
    }
  }
}

async function ask(text) {
  conversation.push({ role: "user", content: text });
  show("user", text);
  const element = show("assistant busy", "");
  scroll(true);
  running = new AbortController();
  busy(true);
  const start = performance.now();
  let answer = "", first = null, usage = null, note = "";
  try {
    const options = { method: "POST", headers: headers(), body: JSON.stringify(request()), signal: running.signal };
    const response = await fetch("v1/chat/completions", options);
    if (!response.ok) throw new Error((await response.json()).error.message);
    await events(response, (event) => {
      if (event.error) throw new Error(event.error.message);
      usage = event.usage || usage;
      const piece = event.choices[0]?.delta.content;
      if (!piece) return;
      first ??= performance.now();
      answer += piece;
      element.textContent = answer;
      scroll();
    });
  } catch (error) {
    note = error.name === "AbortError" ? "stopped" : error.message;
  }
  element.classList.remove("busy");
  if (answer) conversation.push({ role: "assistant", content: answer });
  else conversation.pop(), element.remove();
  if (usage && first !== null) {
    const seconds = (performance.now() - first) / 1000;
    // Short answers may arrive all at once.
    const rate = seconds > 0.05 ? ((usage.completion_tokens - 1) / seconds).toFixed(1) : "–";
    const cached = usage.prompt_tokens_details.cached_tokens;
    note = `${usage.prompt_tokens} prompt tokens (${cached} cached), ${usage.completion_tokens} written at ${rate}/s, first after ${Math.round(first - start)} ms`;
  }
  if (note) show("note", note).classList.toggle("wrong", !usage && note !== "stopped");
  scroll();
  running = null;
  busy(false);
}

function busy(is) {
  $("send").hidden = is;
  $("stop").hidden = !is;
  if (!is) $("prompt").focus();
}

// Returns the sum of a metric over its labels.
function metric(text, name) {
  let sum = null;
  for (const line of text.split("\n")) {
    if (line.startsWith(name) && (line[name.length] === " " || line[name.length] === "{")) {
      sum = (sum ?? 0) + Number(line.slice(line.lastIndexOf(" ") + 1));
    }
  }
  return sum;
}

function set(id, value, unit = "") {
  $(id).textContent = value === null || Number.isNaN(value) ? "–" : `${value}${unit}`;
}

// The mean of a histogram since the last look, or over all time where nothing happened since.
function mean(text, name) {
  const now = [metric(text, `${name}_sum`), metric(text, `${name}_count`)];
  const before = last ? [metric(last.text, `${name}_sum`), metric(last.text, `${name}_count`)] : [0, 0];
  const n = now[1] - before[1];
  if (n > 0) return (now[0] - before[0]) / n;
  return now[1] ? now[0] / now[1] : null;
}

const ms = (seconds) => (seconds === null ? null : (seconds * 1000).toFixed(seconds < 0.1 ? 1 : 0));

async function look() {
  const state = $("state");
  try {
    const response = await fetch("metrics", { headers: headers() });
    if (response.status === 401) throw new Error("key needed");
    const text = await response.text();
    const time = performance.now();
    set("m-running", metric(text, "ruvllm_requests_running"));
    set("m-waiting", metric(text, "ruvllm_requests_waiting"));
    const written = metric(text, "ruvllm_computed_tokens_total") ?? 0;
    if (last) set("m-rate", (((written - last.written) * 1000) / (time - last.time)).toFixed(0));
    set("m-ttft", ms(mean(text, "ruvllm_ttft_seconds")), " ms");
    set("m-gap", ms(mean(text, "ruvllm_inter_token_seconds")), " ms");
    set("m-kv", ((metric(text, "ruvllm_kv_bytes") ?? 0) / 2 ** 20).toFixed(1), " MiB");
    const prompts = metric(text, "ruvllm_prompt_tokens_total");
    set("m-cached", prompts ? Math.round((100 * metric(text, "ruvllm_cached_tokens_total")) / prompts) : null, " %");
    set("m-written", metric(text, "ruvllm_generated_tokens_total"));
    last = { text, time, written };
    state.textContent = "ready";
    state.className = "";
  } catch (error) {
    state.textContent = error.message === "key needed" ? "key needed" : "no connection";
    state.className = "wrong";
  }
}

async function begin() {
  try {
    const { model, defaults } = await (await fetch("v1/capabilities")).json();
    $("model").textContent = model.id;
    // A model that was never loaded is known by its name only.
    $("context").textContent = model.n_ctx ? `${model.n_ctx} tokens` : "";
    for (const name of ["temperature", "top_p"]) $(name).placeholder = String(Math.round(defaults[name] * 1000) / 1000);
  } catch {
    $("state").textContent = "no connection";
  }
  look();
  setInterval(() => document.hidden || look(), 2000);
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("prompt").value.trim();
  if (!text || running) return;
  $("prompt").value = "";
  grow();
  settings(false);
  ask(text);
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("ask").requestSubmit();
  }
});
function grow() {
  const box = $("prompt");
  box.rows = Math.min(10, box.value.split("\n").length);
}
$("prompt").addEventListener("input", grow);
$("stop").addEventListener("click", () => running?.abort());
$("clear").addEventListener("click", () => {
  running?.abort();
  conversation.length = 0;
  for (const element of [...$("messages").children]) if (element.id !== "hint") element.remove();
  $("hint").hidden = false;
});
// Opens or closes the settings, which only a narrow window hides.
function settings(open) {
  $("side").classList.toggle("open", open);
  $("more").setAttribute("aria-expanded", String(open));
}
$("more").addEventListener("click", () => settings(!$("side").classList.contains("open")));
begin();

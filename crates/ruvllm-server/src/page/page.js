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

// What was learned: two plots and the decisions, if the server learns.
const svg = (name, attributes, text) => {
  const element = document.createElementNS($("l-tokens").namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
};

const percent = (share) => `${share > 0 ? "+" : ""}${(100 * share).toFixed(1)} %`;

// Tokens that the items in the log taught, the oldest first; a dashed line is a generation.
function plotTokens(status) {
  const box = $("l-tokens");
  const items = status.items.filter((item) => item.kind === "read").reverse();
  const times = [...items, ...status.generations].map((one) => one.at_ms);
  const [from, to] = [Math.min(...times), Math.max(...times)];
  const x = (ms) => 4 + (252 * (ms - from)) / Math.max(to - from, 1);
  const all = items.reduce((sum, item) => sum + item.tokens, 0);
  let sum = Math.max(status.tokens - all, 0);
  const bottom = sum;
  const y = (n) => 70 - (58 * (n - bottom)) / Math.max(status.tokens - bottom, all, 1);
  let path = `M4 ${y(sum)}`;
  for (const item of items) {
    path += ` H${x(item.at_ms).toFixed(1)}`;
    sum += item.tokens;
    path += ` V${y(sum).toFixed(1)}`;
  }
  const marks = status.generations.map((one) => svg("path", { class: "mark", d: `M${x(one.at_ms).toFixed(1)} 8V70` }));
  const label = (at, anchor, text) => svg("text", { x: at, y: 81, "text-anchor": anchor }, text);
  box.replaceChildren(
    svg("path", { class: "axis", d: "M4 70H256" }),
    ...marks,
    svg("path", { class: "line", d: `${path} H256` }),
    label(4, "start", times.length ? new Date(from).toLocaleTimeString() : ""),
    label(256, "end", times.length ? new Date(to).toLocaleTimeString() : ""),
    svg("text", { x: 256, y: 9, "text-anchor": "end" }, `${status.tokens} tokens`),
  );
}

// What the gate measured: of each text the change of its loss, with the bound that the true one is below. Below the line is better.
function plotChanges(decisions) {
  $("l-gate").hidden = decisions.length === 0;
  const of = (figures) =>
    Object.keys(figures)
      .filter((name) => name.endsWith(" change"))
      .map((name) => [name.slice(0, -7), figures[name], figures[`${name.slice(0, -7)} bound`] ?? figures[name]]);
  const values = decisions.flatMap((one) => of(one.figures).flatMap(([, change, bound]) => [change, bound]));
  const [low, high] = [Math.min(-0.01, ...values), Math.max(0.01, ...values)];
  const y = (share) => 8 + (80 * (high - share)) / (high - low);
  const parts = [
    svg("path", { class: "axis", d: `M30 ${y(0)}H256` }),
    svg("text", { x: 28, y: y(0) + 3, "text-anchor": "end" }, "0"),
    svg("text", { x: 28, y: y(low), "text-anchor": "end" }, percent(low)),
    svg("text", { x: 28, y: 12, "text-anchor": "end" }, percent(high)),
  ];
  decisions.forEach((one, i) => {
    const middle = 30 + (226 * (i + 0.5)) / decisions.length;
    of(one.figures).forEach(([name, change, bound], j, all) => {
      const at = (middle + 5 * (j - (all.length - 1) / 2)).toFixed(1);
      const kind = one.kind === "discarded" ? "discarded" : j === 0 ? "gain" : "control";
      const mark = svg("g", { class: kind });
      const said = `${one.name}, ${name}: ${percent(change)}, surely below ${percent(bound)}`;
      mark.append(
        svg("title", {}, said),
        svg("path", { d: `M${at} ${y(change)}V${y(bound)}` }),
        svg("circle", { cx: at, cy: y(change), r: 2.5 }),
      );
      parts.push(mark);
    });
    parts.push(svg("text", { x: middle, y: 102, "text-anchor": "middle" }, one.name));
  });
  $("l-changes").replaceChildren(...parts);
}

function showLearning(status) {
  const now = status.enabled ? "" : ", switched off";
  $("l-line").textContent = `generation ${status.generation}${now}: ${status.entries} entries, ${status.corrections} corrections`;
  plotTokens(status);
  const published = status.generations.map((one) => ({ ...one, kind: "published", name: `${one.number}` }));
  const discarded = status.items.filter((item) => item.kind === "discarded").map((item) => ({ ...item, name: "×" }));
  const unsure = status.judged?.verdict === "unsure" ? [{ ...status.judged, kind: "unsure", name: "?" }] : [];
  const decisions = [...published, ...discarded, ...unsure].sort((a, b) => a.at_ms - b.at_ms);
  plotChanges(decisions.filter((one) => Object.keys(one.figures ?? {}).some((name) => name.endsWith(" change"))).slice(-12));
  const line = (one) => {
    const element = document.createElement("li");
    element.className = one.kind === "discarded" ? "discarded" : one.number === status.generation ? "now" : "";
    const what = { published: `generation ${one.name}`, discarded: "discarded", unsure: "not yet" }[one.kind];
    element.textContent = `${new Date(one.at_ms).toLocaleString()}: ${what}: ${one.why}`;
    return element;
  };
  $("l-generations").replaceChildren(...decisions.reverse().slice(0, 12).map(line));
}

async function lookAtLearning() {
  try {
    const response = await fetch("v1/learning", { headers: headers() });
    $("learning").hidden = !response.ok;
    if (response.ok) showLearning(await response.json());
    return response.status;
  } catch {
    return 0;
  }
}

async function begin() {
  let learns = false;
  try {
    const { model, defaults, learns: does } = await (await fetch("v1/capabilities")).json();
    learns = does;
    $("model").textContent = model.id;
    // A model that was never loaded is known by its name only.
    $("context").textContent = model.n_ctx ? `${model.n_ctx} tokens` : "";
    for (const name of ["temperature", "top_p"]) $(name).placeholder = String(Math.round(defaults[name] * 1000) / 1000);
  } catch {
    $("state").textContent = "no connection";
  }
  look();
  setInterval(() => document.hidden || look(), 2000);
  if (learns) {
    lookAtLearning();
    setInterval(() => document.hidden || lookAtLearning(), 10000);
  }
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

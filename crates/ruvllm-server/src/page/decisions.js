"use strict";
// What the server decided of late, from /v1/witness: reasons, where the time went, and how good the answers were.
const SVG = $("quality").namespaceURI;
const PARTS = [["queue_us", "waited"], ["prefill_us", "read"], ["decode_us", "wrote"]];
const SHOWN = 12;

function shape(name, attributes, parent) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent?.append(element);
  return element;
}

function line(text, className, parent) {
  const element = document.createElement("div");
  element.className = className;
  element.textContent = text;
  parent.append(element);
}

const seconds = (us) => (us < 1e5 ? `${(us / 1000).toFixed(1)} ms` : `${(us / 1e6).toFixed(2)} s`);

// A bar of where the time of an answer went; `most` microseconds fill it.
function latency(record, most) {
  const svg = shape("svg", { viewBox: "0 0 100 4", preserveAspectRatio: "none", class: "latency" });
  let x = 0;
  for (const [name] of PARTS) {
    const width = (100 * record[name]) / most;
    shape("rect", { x, y: 0, width, height: 4, class: name.replace("_us", "") }, svg);
    x += width;
  }
  const title = PARTS.map(([name, word]) => `${word} ${seconds(record[name])}`).join(", ");
  shape("title", {}, svg).textContent = title;
  return svg;
}

function decision(record, most) {
  const item = document.createElement("li");
  const time = new Date(record.unix_ms).toLocaleTimeString();
  const tokens = `${record.prompt.n_tokens} → ${record.completion.n_tokens}`;
  const quality = record.quality === null ? "" : `, quality ${record.quality.toFixed(2)}`;
  line(`${time}  ${tokens}, ${record.error ?? record.finish}${quality}`, record.error ? "wrong" : "", item);
  item.append(latency(record, most));
  const parts = PARTS.map(([name, word]) => `${word} ${seconds(record[name])}`);
  line(`${parts.join(", ")}; ${record.cached_tokens} cached`, "soft", item);
  if (record.routing) line(`model: ${record.routing}`, "soft", item);
  if (record.policy) line(record.policy, "soft", item);
  return item;
}

// The quality of answers in order of time, 0 to 1.
function plot(records) {
  const points = records.filter((record) => record.quality !== null).reverse();
  const svg = $("quality");
  svg.replaceChildren();
  svg.toggleAttribute("hidden", points.length < 2);
  const x = (i) => 2 + (96 * i) / Math.max(1, points.length - 1);
  const y = (quality) => 28 - 26 * quality;
  for (const level of [0, 0.5, 1]) shape("path", { d: `M0 ${y(level)}H100`, class: "grid-line" }, svg);
  const path = points.map((record, i) => `${x(i).toFixed(2)},${y(record.quality).toFixed(2)}`).join(" ");
  shape("polyline", { points: path, class: "quality-line" }, svg);
  shape("title", {}, svg).textContent = `quality of the last ${points.length} answers, 0 to 1`;
}

async function decisions() {
  if (!$("decisions").open || document.hidden) return;
  const list = $("decision-list");
  try {
    const response = await fetch("v1/witness", { headers: headers() });
    const body = await response.json();
    if (!response.ok) throw new Error(body.error.message);
    const served = body.data.filter((record) => record.kind === "served");
    const recent = served.slice(0, SHOWN);
    const total = (record) => PARTS.reduce((sum, [name]) => sum + record[name], 0);
    const most = Math.max(1, ...recent.map(total));
    list.replaceChildren(...recent.map((record) => decision(record, most)));
    $("decision-note").textContent = recent.length ? "" : "nothing yet";
    plot(served);
  } catch (error) {
    list.replaceChildren();
    $("quality").toggleAttribute("hidden", true);
    $("decision-note").textContent = error.message;
  }
}

$("decisions").addEventListener("toggle", decisions);
setInterval(decisions, 5000);

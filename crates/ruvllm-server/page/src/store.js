// Conversations, kept in this browser's IndexedDB. Nothing of them is sent anywhere but as a prompt.

import { signal } from "@preact/signals";
import { openDB } from "idb";
import { go, route, tell } from "./state.js";
import { newConversation, newId, titleOf } from "./tree.js";

/** Summaries of all conversations, the newest first: id, title, updated. */
export const summaries = signal([]);

const open = new Map();
const channel = "BroadcastChannel" in window ? new BroadcastChannel("ruvllm.conversations") : null;
let database = null;

const summary = (conversation) => ({ id: conversation.id, title: titleOf(conversation), updated: conversation.updated });
const hasMessages = (conversation) => Object.keys(conversation.nodes).length > 0;

/** Opens the database; without one, conversations last as long as the page. */
export async function start() {
  try {
    database = await openDB("ruvllm", 1, { upgrade: (db) => db.createObjectStore("conversations", { keyPath: "id" }) });
  } catch {
    tell("This browser keeps no conversations: they end with the page.", true);
  }
  await list();
  channel?.addEventListener("message", ({ data }) => {
    // Another window has changed it. An answer that runs here is not overwritten.
    if (open.has(data.id) && !open.get(data.id).busy.peek()) reload(data.id);
    list();
  });
}

async function list() {
  const all = database ? await database.getAll("conversations") : [...open.values()].map((one) => one.state.peek());
  summaries.value = all.filter(hasMessages).map(summary).sort((a, b) => b.updated - a.updated);
}

async function reload(id) {
  const kept = await database?.get("conversations", id);
  if (kept) open.get(id).state.value = kept;
}

/** Returns the handle of a conversation: its state, whether an answer is being written, and what stops it. */
export function handle(id) {
  return open.get(id);
}

function keepOpen(conversation) {
  const own = { state: signal(conversation), busy: signal(false), stop: null, timer: null };
  open.set(conversation.id, own);
  return own;
}

/** Reads a conversation; null if there is none of that name. */
export async function load(id) {
  if (open.has(id)) return open.get(id);
  const kept = await database?.get("conversations", id);
  return kept ? keepOpen(settle(kept)) : null;
}

/** An answer that was being written when the page was closed has ended there. */
function settle(conversation) {
  const nodes = Object.fromEntries(
    Object.entries(conversation.nodes).map(([id, node]) => [id, node.isBusy ? { ...node, isBusy: false, finish: "stopped" } : node]),
  );
  return { ...conversation, nodes };
}

/** Makes a conversation that is asked as the present one is, and shows it. */
export function begin() {
  const like = open.get(route.peek().id)?.state.peek() ?? lastSettings();
  const own = keepOpen(newConversation(like));
  go("chat", own.state.peek().id);
  return own;
}

function lastSettings() {
  try {
    return JSON.parse(localStorage.getItem("ruvllm.last")) ?? undefined;
  } catch {
    return undefined;
  }
}

/** Changes a conversation, and keeps it soon. */
export function change(id, how) {
  const own = open.get(id);
  if (!own) return;
  own.state.value = how(own.state.peek());
  own.timer ??= setTimeout(() => save(id), own.busy.peek() ? 700 : 80);
}

/** Writes a conversation down. */
export async function save(id) {
  const own = open.get(id);
  if (!own) return;
  clearTimeout(own.timer);
  own.timer = null;
  const conversation = own.state.peek();
  try {
    const { model, adapter, system, settings, format, tools, hasTokens } = conversation;
    localStorage.setItem("ruvllm.last", JSON.stringify({ model, adapter, system, settings, format, tools, hasTokens }));
  } catch {
    // Settings that are not kept begin anew.
  }
  if (!hasMessages(conversation)) return;
  try {
    await database?.put("conversations", conversation);
  } catch (error) {
    tell(`The conversation cannot be kept: ${error.message}`, true);
  }
  const others = summaries.peek().filter((one) => one.id !== id);
  summaries.value = [summary(conversation), ...others].sort((a, b) => b.updated - a.updated);
  channel?.postMessage({ id });
}

// What is not written yet is written when the page goes.
addEventListener("pagehide", () => open.forEach((own, id) => own.timer && save(id)));
document.addEventListener("visibilitychange", () => document.hidden && open.forEach((own, id) => own.timer && save(id)));

/** Deletes a conversation. */
export async function forget(id) {
  const own = open.get(id);
  own?.stop?.abort();
  clearTimeout(own?.timer);
  open.delete(id);
  await database?.delete("conversations", id);
  summaries.value = summaries.peek().filter((one) => one.id !== id);
  channel?.postMessage({ id });
  if (route.peek().id === id) begin();
}

/** Deletes all conversations. */
export async function forgetAll() {
  for (const own of open.values()) own.stop?.abort();
  open.clear();
  await database?.clear("conversations");
  summaries.value = [];
  channel?.postMessage({ id: "" });
}

/** Returns all conversations as the text of a file. */
export async function exportAll() {
  const all = database ? await database.getAll("conversations") : [...open.values()].map((own) => own.state.peek());
  return JSON.stringify({ format: "ruvllm-conversations", version: 1, conversations: all.filter(hasMessages) }, null, 1);
}

/** Reads such a file; returns how many conversations it had. Each gets a new name, so none is overwritten. */
export async function importAll(text) {
  const { format, version, conversations } = JSON.parse(text);
  if (format !== "ruvllm-conversations" || version !== 1 || !Array.isArray(conversations)) {
    throw new Error("this is no file of conversations");
  }
  const all = conversations.map(checked);
  for (const conversation of all) {
    await database?.put("conversations", conversation);
    if (!database) keepOpen(conversation);
  }
  await list();
  channel?.postMessage({ id: "" });
  return all.length;
}

const ROLES = ["user", "assistant", "tool"];

/** Returns a conversation of a file with only what one has, or throws. */
function checked(from) {
  const text = (value) => (typeof value === "string" ? value : "");
  if (typeof from?.nodes !== "object" || from.nodes === null) throw new Error("a conversation of the file has no messages");
  const nodes = {};
  for (const [id, node] of Object.entries(from.nodes)) {
    if (!ROLES.includes(node?.role) || node.id !== id) throw new Error("a message of the file cannot be read");
    const attachments = Array.isArray(node.attachments) ? node.attachments : [];
    const calls = Array.isArray(node.calls) ? node.calls : [];
    // What this server was taught by it is not known: numbers of items are another server's, perhaps.
    nodes[id] = {
      id,
      role: node.role,
      content: text(node.content),
      thought: text(node.thought),
      parent: typeof node.parent === "string" ? node.parent : null,
      created: Number(node.created) || 0,
      choice: Number(node.choice) || 0,
      model: text(node.model),
      finish: text(node.finish),
      callId: text(node.callId),
      attachments: attachments.map((one) => ({ name: text(one?.name), text: text(one?.text) })),
      calls: calls.map((one) => ({ id: text(one?.id), name: text(one?.name), arguments: text(one?.arguments) })),
    };
  }
  const leaf = from.leaf in nodes ? from.leaf : (Object.keys(nodes).at(-1) ?? null);
  const own = newConversation({ model: text(from.model), adapter: text(from.adapter), system: text(from.system), settings: from.settings });
  return { ...own, id: newId(), title: text(from.title), created: Number(from.created) || own.created, updated: Number(from.updated) || own.updated, nodes, leaf };
}

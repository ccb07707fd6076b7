// Judging an answer: good, bad, or what it should have been; and taking that back.

import { post } from "../api.js";
import { hasWitness, learns, tell } from "../state.js";
import { change } from "../store.js";
import { patch, path } from "../tree.js";

const keep = (id, node, judgement) => change(id, (state) => patch(state, node.id, { judgement }));
const own = (node) => (node.model ? { model: node.model } : {});

/** Says whether answers can be judged here. */
export const canJudge = () => learns.value || hasWitness.value;

/** Says what an answer was worth, 0 to 1. */
export async function judge(id, node, score) {
  const kind = score > 0.5 ? "good" : "bad";
  try {
    if (!learns.peek()) {
      await post("v1/witness/feedback", { request: node.request ?? node.answerId, quality: score });
      keep(id, node, { kind, at: Date.now(), item: null, pattern: null });
      tell("Put on record");
      return;
    }
    const { item, pattern } = await post("v1/feedback", { id: node.answerId, choice: node.choice ?? 0, score, ...own(node) });
    keep(id, node, { kind, at: Date.now(), item, pattern });
    tell(item ? `Learned as item ${item}` : "Noted; there was nothing to learn from it");
  } catch (error) {
    tell(error.message, true);
  }
}

/** Says what an answer should have been. */
export async function correct(id, node, text) {
  const body = { id: node.answerId, choice: node.choice ?? 0, correction: text, ...own(node) };
  const { item, pattern } = await post("v1/feedback", body);
  keep(id, node, { kind: "corrected", at: Date.now(), item, pattern, text });
  tell(item ? `Learned as item ${item}` : "Noted; there was nothing to learn from it");
}

/** Teaches the question and what it should have been answered with, where the answer itself is not known any more. */
export async function teach(id, node, question, text) {
  const told = await post("v1/memory", { question, answer: text, pattern: true, ...own(node) });
  keep(id, node, { kind: "corrected", at: Date.now(), item: told.item ?? null, pattern: told.pattern ?? null, text });
  tell("Remembered as an answer to this question");
}

/** Returns the question of an answer that is the first of its conversation; only such a question can be taught. */
export function onlyQuestion(state, node) {
  const all = path(state, node.id);
  return all.length === 2 && all[0].role === "user" ? all[0].content : null;
}

/** Takes back what was learned from an answer. */
export async function takeBack(id, node) {
  const { judgement } = node;
  try {
    await post("v1/learning", { action: "undo", item: judgement.item, ...own(node) });
    keep(id, node, { ...judgement, isUndone: true });
    tell(`Item ${judgement.item} is undone: it is as if it had never been`);
  } catch (error) {
    tell(error.message, true);
  }
}

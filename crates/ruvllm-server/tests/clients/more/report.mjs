// What the scripts for Node in this folder share: their questions, and how they report. See report.py.

import { z } from "zod";

export const MODEL = "qwen2.5-coder:0.5b";
export const QUESTION = "What is the capital of France? Answer in a word.";
export const FORECAST = "What is the weather like in Paris?";
export const ITALY = "And of Italy?";
export const SUNNY = "sunny, 31 degrees";
export const Weather = z.object({ city: z.enum(["Paris", "Rome"]) });
export const Person = z.object({ name: z.enum(["Bob", "Alice"]), age: z.number().int() });
export const PERSON = "Bob is 3 years old. Answer as JSON with name and age.";

/** Client and server did their part; the model did not do what it was asked. */
class ModelDid extends Error {}

export function said(text, word) {
  if (!(text ?? "").toLowerCase().includes(word.toLowerCase())) {
    throw new ModelDid(`the model said '${(text ?? "").slice(0, 80)}', not '${word}'`);
  }
}

/** Returns the first call, which the model should have made. */
export function called(calls) {
  if (!calls?.length) throw new ModelDid("the model did not call");
  return calls[0];
}

/** Runs each check. */
export async function run(...checks) {
  for (const check of checks) {
    let [outcome, note] = ["ok", ""];
    try {
      await check();
    } catch (error) {
      console.error(error);
      [outcome, note] = [error instanceof ModelDid ? "model" : "failed", String(error.message).slice(0, 600)];
    }
    console.log(JSON.stringify({ check: check.name, outcome, note }));
  }
}

// What the page asks the server first, and again where a key was changed.

import { get, post, send } from "./api.js";
import { adapters, capabilities, hasWitness, models, needsKey, readiness, routes } from "./state.js";

/** Reads what the server is and has. */
export async function refresh() {
  await look();
  try {
    capabilities.value = await get("v1/capabilities");
    models.value = (await get("v1/models")).data;
    adapters.value = (await get("v1/adapters")).data;
    needsKey.value = false;
  } catch (error) {
    needsKey.value = error.status === 401;
  }
}

/** Reads what is there or is not for as long as the server runs. */
export async function begin() {
  await refresh();
  const is = (path, body) => post(path, body).then(() => true, () => false);
  hasWitness.value = !needsKey.peek() && (await is("v1/witness/search", { limit: 1 }));
  // A router chooses among several models; where there is one only, it is not asked.
  if (models.peek().length > 1) routes.value = await is("v1/route", { input: "Hello" });
}

/** Looks whether the server takes requests. */
export async function look() {
  try {
    const { status } = await (await send("GET", "ready")).json();
    readiness.value = status;
  } catch (error) {
    readiness.value = error.status === 0 ? "no connection" : error.code === "loading" ? "loading" : "not ready";
  }
}

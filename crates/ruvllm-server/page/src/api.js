// Requests to this server, and the errors that it answers with. Addresses are relative, so the page works behind a prefix.

import { key } from "./state.js";

/** An answer of the server that is an error. */
class ServerError extends Error {
  constructor(status, error) {
    super(error?.message ?? `the server answered with ${status}`);
    this.status = status;
    this.code = error?.code ?? null;
    this.param = error?.param ?? null;
  }
}

/** Returns the headers of a request: the key, if one is set. */
function headers() {
  const own = key.value.trim();
  return { "content-type": "application/json", ...(own ? { authorization: `Bearer ${own}` } : {}) };
}

/** Sends a request; the error is the server's line, or says that it cannot be reached. */
export async function send(method, path, body, signal) {
  let response;
  try {
    const text = body === undefined ? undefined : JSON.stringify(body);
    response = await fetch(path, { method, headers: headers(), body: text, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, { message: "no connection to the server", code: "unreachable" });
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => null);
  throw new ServerError(response.status, told?.error);
}

/** Sends a request and returns the JSON of its answer. */
export const ask = async (method, path, body, signal) => (await send(method, path, body, signal)).json();
export const get = (path) => ask("GET", path);
export const post = (path, body) => ask("POST", path, body);
export const remove = (path) => ask("DELETE", path);

/** Calls `each` with the data of every event of a stream. */
export async function events(response, each) {
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

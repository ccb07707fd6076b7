// State of the page that all parts share.

import { computed, effect, signal } from "@preact/signals";

/** Returns a signal whose value stays in this browser. */
function stored(name, initial) {
  let value = initial;
  try {
    value = JSON.parse(localStorage.getItem(name)) ?? initial;
  } catch {
    // Storage that is switched off keeps nothing; the page works all the same.
  }
  const own = signal(value);
  effect(() => {
    try {
      localStorage.setItem(name, JSON.stringify(own.value));
    } catch {
      // As above.
    }
  });
  return own;
}

/** API key; it stays in this tab alone unless the person wants it kept. */
export const keepsKey = stored("ruvllm.keeps-key", false);
const keptKey = stored("ruvllm.key", "");
export const key = signal(keptKey.peek() || sessionStorage.getItem("ruvllm.key") || "");
effect(() => {
  sessionStorage.setItem("ruvllm.key", key.value);
  keptKey.value = keepsKey.value ? key.value : "";
});

/** "system", "light" or "dark". */
export const theme = stored("ruvllm.theme", "system");
effect(() => {
  document.documentElement.dataset.theme = theme.value;
});

/** Whether the options stand beside the conversation; on a phone they are opened each time. */
export const hasOptions = stored("ruvllm.options", false);

/** Answer of /v1/capabilities, models of /v1/models, adapters of /v1/adapters; null until they came. */
export const capabilities = signal(null);
export const models = signal([]);
export const adapters = signal([]);

/** Whether a router chooses among the models where a request asks for `auto`. */
export const routes = signal(false);
/** Whether the server keeps a witness log. */
export const hasWitness = signal(false);
/** Whether the server learns. */
export const learns = computed(() => capabilities.value?.learns === true);
/** Whether the server asks for a key, or for another one. */
export const needsKey = signal(false);
/** Answer of /ready in a word, or "no connection". */
export const readiness = signal("connecting");
/** State of the server for people. */
export const health = computed(() => (needsKey.value && readiness.value !== "no connection" ? "key needed" : readiness.value));

/** View and its argument, from the address: `#/chat/ID`, `#/memory`. */
export const route = signal(parseRoute());

function parseRoute() {
  const [, view = "chat", id = ""] = location.hash.split("/");
  return { view: view || "chat", id };
}
addEventListener("hashchange", () => {
  route.value = parseRoute();
});

/** Goes to another view. */
export function go(view, id = "") {
  location.hash = id ? `#/${view}/${id}` : `#/${view}`;
}

/** Line that screen readers read out. */
export const said = signal("");
/** Short-lived line at the foot of the page: a text, and whether something went wrong. */
export const toast = signal(null);

let timer;
/** Shows a line for some seconds, and has screen readers read it. */
export function tell(text, isWrong = false) {
  clearTimeout(timer);
  toast.value = { text, isWrong };
  said.value = text;
  timer = setTimeout(() => {
    toast.value = null;
  }, 6000);
}

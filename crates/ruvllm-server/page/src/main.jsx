// The page starts here.

import { render } from "preact";
import { App } from "./app.jsx";
import { begin, look, refresh } from "./start.js";
import { key, needsKey, readiness } from "./state.js";
import { start } from "./store.js";
import "../style/page.css";

/** How often it is looked whether the server is there. */
const LOOK_MS = 10000;

await start();
render(<App />, document.getElementById("app"));
begin();
setInterval(async () => {
  if (document.hidden) return;
  const before = readiness.peek();
  await look();
  // A server that is there again may be another one.
  if (before !== readiness.peek() && readiness.peek() === "ready") refresh();
}, LOOK_MS);
key.subscribe((own) => {
  if (own && needsKey.peek()) refresh();
});

// Live metrics: the number of now, and the curve of the last minutes.

import { useEffect, useState } from "preact/hooks";
import { send } from "../api.js";
import { figures } from "./prometheus.js";

const EVERY_MS = 2000;
const LOOKS_MAX = 150;

// Looks go on where the view is left and come to again.
const looks = [];

/** The metrics, read every two seconds while they are seen. */
export function Metrics() {
  const [, draw] = useState(0);
  const [error, setError] = useState(null);
  useEffect(() => {
    let isThere = true;
    const look = async () => {
      try {
        const text = await (await send("GET", "metrics")).text();
        const before = looks.at(-1);
        const now = { at: performance.now(), text };
        now.figures = figures(now, before);
        looks.push(now);
        // Only the newest text is needed.
        if (before) before.text = null;
        if (looks.length > LOOKS_MAX) looks.shift();
        if (isThere) setError(null);
      } catch (failure) {
        if (isThere) setError(failure);
      }
      if (isThere) draw((n) => n + 1);
    };
    look();
    const timer = setInterval(() => document.hidden || look(), EVERY_MS);
    return () => {
      isThere = false;
      clearInterval(timer);
    };
  }, []);
  const now = looks.at(-1);
  return (
    <section aria-labelledby="live">
      <h2 id="live">Live</h2>
      {error ? <p class="wrong" role="alert">{error.message}</p> : null}
      <dl class="meters">
        {(now?.figures ?? []).map((figure) => (
          <div key={figure.id}>
            <dt>{figure.name}</dt>
            <dd><span id={`m-${figure.id}`}>{shown(figure)}</span> <small>{figure.unit}</small></dd>
            <Spark values={looks.map((look) => look.figures.find((one) => one.id === figure.id)?.value ?? null)} />
          </div>
        ))}
      </dl>
      {now?.text ? <details><summary>All metrics</summary><pre class="plain" tabIndex={0}>{now.text}</pre></details> : null}
    </section>
  );
}

function shown({ value, digits = 0 }) {
  if (value === null || Number.isNaN(value)) return "–";
  return digits ? value.toFixed(digits) : `${Math.round(value)}`;
}

/** A small curve, without axes: the number beside it says how much. */
function Spark({ values }) {
  const known = values.map((value, i) => [i, value]).filter(([, value]) => value !== null);
  if (known.length < 2) return <svg class="spark" viewBox="0 0 100 24" aria-hidden="true" />;
  const all = known.map(([, value]) => value);
  const [low, high] = [Math.min(0, ...all), Math.max(...all, 1e-9)];
  const x = (i) => 100 - (100 * (values.length - 1 - i)) / (LOOKS_MAX - 1);
  const y = (value) => 22 - (20 * (value - low)) / (high - low);
  return (
    <svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" aria-hidden="true">
      <polyline points={known.map(([i, value]) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`).join(" ")} />
    </svg>
  );
}

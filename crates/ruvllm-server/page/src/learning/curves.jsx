// Curves of learning: tokens over time, and what the gate measured.

import { changes, percent } from "./log.js";

const WIDE = 640;

/** Tokens that the items in the log taught, the oldest first; a dashed line is a generation. */
export function TokenCurve({ status }) {
  const items = status.items.filter((item) => item.kind === "read").reverse();
  const times = [...items, ...status.generations].map((one) => one.at_ms);
  if (times.length === 0) return <p class="soft">Nothing has been learned from text yet.</p>;
  const [from, to] = [Math.min(...times), Math.max(...times)];
  const x = (ms) => 8 + ((WIDE - 16) * (ms - from)) / Math.max(to - from, 1);
  const all = items.reduce((sum, item) => sum + item.tokens, 0);
  const bottom = Math.max(status.tokens - all, 0);
  const y = (n) => 150 - (122 * (n - bottom)) / Math.max(status.tokens - bottom, all, 1);
  let sum = bottom;
  let line = `M8 ${y(sum).toFixed(1)}`;
  for (const item of items) {
    line += ` H${x(item.at_ms).toFixed(1)}`;
    sum += item.tokens;
    line += ` V${y(sum).toFixed(1)}`;
  }
  return (
    <figure class="plot">
      <figcaption>Tokens learned; a dashed line is a generation</figcaption>
      <svg id="l-tokens" viewBox={`0 0 ${WIDE} 176`} role="img" aria-label={`${status.tokens} tokens learned, in ${items.length} of the newest items`}>
        <path class="axis" d={`M8 150H${WIDE - 8}`} />
        {status.generations.map((one) => <path key={one.number} class="mark" d={`M${x(one.at_ms).toFixed(1)} 22V150`}><title>generation {one.number}</title></path>)}
        <path class="line" d={`${line} H${WIDE - 8}`} />
        <text x="8" y="168">{new Date(from).toLocaleString()}</text>
        <text x={WIDE - 8} y="168" text-anchor="end">{new Date(to).toLocaleString()}</text>
        <text x={WIDE - 8} y="16" text-anchor="end">{status.tokens} tokens</text>
      </svg>
    </figure>
  );
}

/** Change of the loss of each text, with the bound that the true one is below. Below the line is better. */
export function GatePlot({ all }) {
  const shown = all.filter((one) => changes(one.figures).length > 0).slice(-12);
  if (shown.length === 0) return null;
  const values = shown.flatMap((one) => changes(one.figures).flatMap(({ change, bound }) => [change, bound]));
  const [low, high] = [Math.min(-0.01, ...values), Math.max(0.01, ...values)];
  const y = (share) => 14 + (140 * (high - share)) / (high - low);
  return (
    <figure class="plot">
      <figcaption>Loss against the generation before: <span class="gain">held back</span> and <span class="control">controls</span>; below zero is better</figcaption>
      <svg id="l-changes" viewBox={`0 0 ${WIDE} 180`} role="img" aria-label="Change of the loss by generation and decision">
        <path class="axis" d={`M52 ${y(0)}H${WIDE - 8}`} />
        <text x="48" y={y(0) + 4} text-anchor="end">0</text>
        <text x="48" y={y(low)} text-anchor="end">{percent(low)}</text>
        <text x="48" y="18" text-anchor="end">{percent(high)}</text>
        {shown.map((one, i) => <Decision key={`${one.at_ms}-${one.name}`} one={one} y={y} middle={52 + ((WIDE - 60) * (i + 0.5)) / shown.length} />)}
      </svg>
    </figure>
  );
}

function Decision({ one, y, middle }) {
  const all = changes(one.figures);
  return (
    <>
      {all.map(({ name, change, bound }, j) => {
        const at = (middle + 11 * (j - (all.length - 1) / 2)).toFixed(1);
        const kind = one.kind === "discarded" ? "discarded" : j === 0 ? "gain" : "control";
        return (
          <g key={name} class={kind}>
            <title>{`${one.name}, ${name}: ${percent(change)}, surely below ${percent(bound)}`}</title>
            <path d={`M${at} ${y(change)}V${y(bound)}`} />
            <circle cx={at} cy={y(change)} r="4" />
          </g>
        );
      })}
      <text x={middle} y="174" text-anchor="middle">{one.name}</text>
    </>
  );
}

// What a signal ends. However many calls have one signal, it has one listener: Node warns of a leak where it has more than ten.
// Shared with the browser's package.

/** @type {WeakMap<AbortSignal, Set<() => void>>} */
const ENDS = new WeakMap();

/**
 * Does something when a signal is aborted.
 *
 * @param {AbortSignal | undefined} signal
 * @param {() => void} end
 * @returns {() => void} takes it back
 */
export function onAbort(signal, end) {
  if (!signal) return () => {};
  const ends = ENDS.get(signal) ?? begin(signal);
  ends.add(end);
  return () => void ends.delete(end);
}

/** Returns what ends with a signal from now on. */
function begin(signal) {
  const ends = new Set();
  ENDS.set(signal, ends);
  signal.addEventListener('abort', () => [...ends].forEach((end) => end()), { once: true });
  return ends;
}

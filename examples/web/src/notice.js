// One line about what this browser does not keep, and why.

import { byId, line } from './dom.js';

/** Reasons by what is not kept. */
const reasons = new Map();

/** Returns words as a sentence has them. */
export const list = (words) => (words.length < 2 ? words.join('') : `${words.slice(0, -1).join(', ')} and ${words.at(-1)}`);

const LINES = {
  unavailable: (what) => `This window does not keep ${what}, as private windows do not. The chat works.`,
  full: (what) => `The browser has no room left and does not keep ${what}. The chat works.`,
  busy: (what) => `Another tab is fetching ${what}; it is not kept here.`,
  failed: (what) => `The browser could not keep ${what} and tries again at the next visit. The chat works.`,
  unsized: (what) => `The server does not say how large the file is, so ${what} is not kept.`,
};

/** Notes that something is not kept; null is no reason. */
export function notKept(what, reason) {
  if (reason === null) reasons.delete(what);
  else reasons.set(what, reason);
  // One reason is told, with all that it holds for: the first of the lines.
  const told = Object.keys(LINES).find((one) => [...reasons.values()].includes(one));
  const things = [...reasons].filter(([, one]) => one === told).map(([thing]) => thing);
  line(byId('notice'), told ? LINES[told](list(things)) : '');
}

/** Whether something is kept, as far as is known. */
export const isKept = (what) => !reasons.has(what);

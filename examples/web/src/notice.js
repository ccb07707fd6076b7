// One line about what this browser does not keep, and why.

import { byId, line } from './dom.js';

/** Reasons by what is not kept. */
const reasons = new Map();

const list = (words) => (words.length < 2 ? words.join('') : `${words.slice(0, -1).join(', ')} and ${words.at(-1)}`);

const LINES = {
  unavailable: (what) => `This window does not keep ${what}; a private window never does. The chat works all the same.`,
  full: (what) => `The browser has no room left and does not keep ${what}. The chat works all the same.`,
  busy: (what) => `Another tab is fetching ${what}; it is not kept here.`,
  unsized: (what) => `The server does not say how large the file is, so ${what} is not kept.`,
};

/** Notes that something is not kept; null is no reason. */
export function notKept(what, reason) {
  if (reason === null) reasons.delete(what);
  else reasons.set(what, reason);
  // The first of the reasons stands for all that have it; a window that keeps nothing comes before the others.
  const reason1 = Object.keys(LINES).find((one) => [...reasons.values()].includes(one));
  const whats = [...reasons].filter(([, one]) => one === reason1).map(([one]) => one);
  line(byId('notice'), reason1 ? LINES[reason1](list(whats)) : '');
}

/** Whether something is kept, as far as is known. */
export const isKept = (what) => !reasons.has(what);

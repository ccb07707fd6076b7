// Modules of Node, for where the package runs there. Bundlers, which work for pages, neither look for them nor warn of them.

/** Whether this is Node, in the program or in one of its workers. */
export const isNode = typeof process === 'object' && typeof process.versions?.node === 'string' && typeof self === 'undefined';

/** Returns a module of Node. */
export const nodeModule = (name) => import(/* @vite-ignore */ /* webpackIgnore: true */ `node:${name}`);

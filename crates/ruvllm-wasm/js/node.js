// Modules of Node, for where the package runs there. Bundlers, which work for pages, neither look for them nor warn of them.

/** Returns a module of Node. */
export const nodeModule = (name) => import(/* @vite-ignore */ /* webpackIgnore: true */ `node:${name}`);

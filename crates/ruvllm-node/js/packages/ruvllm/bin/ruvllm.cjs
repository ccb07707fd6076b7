#!/usr/bin/env node
'use strict';
// Runs the program `ruvllm` of this platform, and ends as it ends.

const { spawn } = require('node:child_process');
const program = require('@ruvllm/node/program');

let path;
try {
  path = program();
} catch (error) {
  console.error(`error: ${error.message}`);
  process.exit(1);
}
const child = spawn(path, process.argv.slice(2), { stdio: 'inherit' });
// A terminal sends Ctrl-C to both; the program decides what it means. Others send it to this process alone.
process.on('SIGINT', () => process.stdin.isTTY || child.kill('SIGINT'));
for (const signal of ['SIGTERM', 'SIGHUP']) process.on(signal, () => child.kill(signal));
child.on('error', (error) => {
  console.error(`error: cannot run ${path}: ${error.message}`);
  process.exit(1);
});
child.on('exit', (code, signal) => {
  process.exitCode = code ?? 128 + require('node:os').constants.signals[signal];
});

// A worker that computes with others in one module: it takes work from the module's memory and hears nothing more.

import { isNode, nodeModule } from './node.js';
import init, { work } from './wasm/ruvllm_wasm_threads.js';

const port = isNode ? (await nodeModule('worker_threads')).parentPort : self;

async function begin({ module, memory }) {
  await init({ module_or_path: module, memory });
  port.postMessage('begun');
  work();
}

if (isNode) port.once('message', begin);
else self.onmessage = ({ data }) => begin(data);

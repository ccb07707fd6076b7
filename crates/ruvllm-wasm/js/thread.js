// A worker that computes with others in one module: it takes work from the module's memory and hears nothing more.

import { faultOf } from './fault.js';
import { isNode, nodeModule } from './node.js';
import init, { work } from './wasm/ruvllm_wasm_threads.js';

const port = isNode ? (await nodeModule('worker_threads')).parentPort : self;

/** Works until it is ended. The worker that started it hears how it began, and may wait for it later; a fault is told to `alarm`. */
async function begin({ module, memory, alarm }) {
  try {
    await init({ module_or_path: module, memory });
  } catch (error) {
    return port.postMessage({ fault: faultOf(error) });
  }
  port.postMessage({ fault: null });
  try {
    work();
  } catch (error) {
    alarm.postMessage(faultOf(error));
  }
  return undefined;
}

if (isNode) port.once('message', begin);
else self.onmessage = ({ data }) => begin(data);

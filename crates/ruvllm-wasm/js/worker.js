// The engine's worker: it fetches and loads the model, and computes one step after the other; in between it hears what the page says.

import { isNode, nodeModule } from './node.js';
import { readModel } from './source.js';
import { reasonOf } from './target.js';
import { checkBackend, startModule, threadsOf } from './threads.js';
import { thrown } from './thrown.js';

const port = isNode ? (await nodeModule('worker_threads')).parentPort : self;
const send = (message, transfer) => port.postMessage(message, transfer);

let engine = null;
let isRunning = false;
/** The step that is computed, where it is waited for: the engine hears nothing meanwhile. */
let step = null;
/** Calls on their way: the page's number by the engine's. */
const live = new Map();

/** Waits until other tasks of the worker, which are messages of the page, have had their turn. */
const channel = isNode ? null : new MessageChannel();
const turn = isNode
  ? () => new Promise((resolve) => setImmediate(resolve))
  : () => new Promise((resolve) => {
      channel.port1.onmessage = resolve;
      channel.port2.postMessage(null);
    });

/** Sends what came of the calls. */
function deliver() {
  for (const [call, id] of live) {
    const taken = engine.take(call);
    if (taken === undefined) {
      live.delete(call);
      continue;
    }
    const { chunks, result, error } = JSON.parse(taken);
    if (result !== undefined || error !== undefined) live.delete(call);
    if (chunks.length || result !== undefined || error !== undefined) send({ id, chunks, result, error });
  }
}

/** Computes until nothing is left to do. */
async function run() {
  if (isRunning) return;
  isRunning = true;
  try {
    for (;;) {
      step = engine.step();
      const isBusy = step instanceof Promise ? await step : step;
      step = null;
      deliver();
      if (!isBusy) return;
      await turn();
    }
  } catch (error) {
    broken(error);
  } finally {
    isRunning = false;
    step = null;
  }
}

/** Tells that the module has broken: nothing can be said of its memory after that. */
function broken(error) {
  live.clear();
  engine = null;
  const message = `the engine has stopped by an internal error: ${error?.message ?? error}; load it again`;
  send({ fatal: { message, type: 'server_error', param: null, code: null, status: 500 } });
}

/** Loads the module and the model. */
async function open(id, { source, options, cache, sha256, headers }) {
  await checkBackend(options.backend);
  const threads = await threadsOf(options.threads, options.backend);
  const { WasmEngine, checkSize, sha256Of } = await startModule(options.backend, threads, (alarm) => {
    send({ alarm }, [alarm]);
  });
  const onProgress = (progress) => send({ id, progress });
  const onUncached = (uncached) => send({ id, uncached });
  const what = { source, cache, headers, sha256 };
  const make = async ({ reader, slot }) => {
    const known = options.learn ? await slot?.calibration() : null;
    const tell = (phase, done, total) => onProgress({ phase, done, total });
    engine = await WasmEngine.load(reader, JSON.stringify({ ...options, threads }), known ?? undefined, tell);
    return { reader, slot, known };
  };
  const { reader, slot, known } = await readModel(what, { checkSize, sha256Of }, onProgress, onUncached, make);
  // Learning reads some weights again.
  if (!options.learn) reader.close();
  // What the model read need not be read again.
  if (options.learn && slot && !known) {
    await slot.keepCalibration(engine.calibration()).catch((error) => onUncached(reasonOf(error)));
  }
  return { model: engine.model() };
}

/** Answers a message of the page. */
async function hear({ id, op, body }) {
  try {
    while (step instanceof Promise) await step.catch(() => {});
    switch (op) {
      case 'open':
        return send({ id, result: await open(id, body) });
      case 'cancel':
        for (const [call, other] of live) {
          if (other === id) {
            live.delete(call);
            engine?.cancel(call);
          }
        }
        return undefined;
      case 'chat':
      case 'complete':
      case 'embed':
      case 'feedback':
      case 'remember':
        live.set(engine.start(op, body), id);
        return await run();
      case 'exportLearned': {
        const bytes = engine.exportLearned();
        return send({ id, result: bytes }, [bytes.buffer]);
      }
      case 'importLearned':
        return send({ id, result: JSON.parse(engine.importLearned(body)) });
      case 'models': {
        const data = [{ id: engine.model(), object: 'model', created: 0, owned_by: 'ruvllm' }];
        return send({ id, result: { object: 'list', data } });
      }
      default:
        return send({ id, result: JSON.parse(engine.ask(op, body)) });
    }
  } catch (error) {
    const said = thrown(error);
    if (op !== 'open') return said ? send({ id, error: said }) : broken(error);
    // A model that cannot be loaded is the file's or the options' fault.
    const { message = `${error}`, param = null, code = null, status = 0 } = said ?? error;
    return send({ id, error: { kind: code === 'bad_option' ? 'usage' : 'load', message, param, code, status } });
  }
}

if (isNode) port.on('message', hear);
else self.onmessage = ({ data }) => hear(data);

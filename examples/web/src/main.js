// The page: a model is loaded, asked, stopped and corrected.

import { cachedModels, removeCached } from '@ruvllm/web';

import { byId, line } from './dom.js';
import { Model } from './model.js';
import { isKept, list, notKept } from './notice.js';
import { keepPage } from './offline.js';
import { Turn } from './turn.js';

/** Messages of the conversation that the model reads again: a small one loses itself in long ones. */
const MESSAGES_MAX = 8;

/** What the first correction takes. */
const FIRST = 'The first correction takes some minutes: the model reads text to learn by.';

const turns = [];
let model = null;
/** Ends what is being done; null if nothing is. */
let running = null;
let isPageKept = false;

/** Shows what there is to do: nothing is loaded, something takes a while, or questions can be asked. */
function show(view) {
  byId('start').hidden = view !== 'start';
  byId('progress').hidden = view !== 'progress';
  byId('talk').hidden = view === 'start';
  for (const id of ['ask', 'kept']) byId(id).hidden = view !== 'talk';
}

function state(text) {
  byId('state').textContent = text;
}

/** Lines for the phases of a load. */
const PHASES = { fetch: 'Fetching the model', load: 'Preparing the model', calibrate: 'Reading text to learn by' };

function progress({ phase, done, total }) {
  const bar = byId('bar');
  if (total) bar.value = done / total;
  else bar.removeAttribute('value');
  const share = total ? ` ${Math.floor((100 * done) / total)} %` : '';
  const size = phase === 'fetch' ? ` of ${Math.round(total / 1e6)} MB` : '';
  line(byId('step'), total ? `${PHASES[phase]}:${share}${size}` : PHASES[phase]);
}

/** Does something that can be ended, unless something is being done, and tells a failure in one line; returns whether it was done. */
async function run(work) {
  if (running) return false;
  const controller = new AbortController();
  running = controller;
  line(byId('error'), '');
  document.body.classList.add('busy');
  try {
    await work(controller.signal);
    return true;
  } catch (error) {
    if (!controller.signal.aborted) line(byId('error'), error.message);
    return false;
  } finally {
    running = null;
    document.body.classList.remove('busy');
  }
}

function ready() {
  const offline = isPageKept && isKept('the model') ? ' · works offline' : '';
  state(`${model.name}${offline}`);
}

function learned(n) {
  const things = isKept('the model') ? ['the model'] : [];
  if (n > 0 && isKept('what it learns')) things.push(n === 1 ? 'one correction' : `${n} corrections`);
  byId('kept-what').textContent = things.length ? `Kept in this browser: ${list(things)}.` : 'Nothing is kept in this browser.';
  byId('forget').disabled = n === 0;
}

/** Ends the conversation with a model that is gone. */
function close() {
  model = null;
  turns.length = 0;
  byId('talk').replaceChildren();
  state('Nothing is loaded');
  show('start');
}

async function open(address) {
  if (running) return;
  show('progress');
  state('Loading');
  progress({ phase: 'fetch', done: 0, total: 0 });
  const onProblem = (text) => line(byId('error'), text);
  model = new Model(address, { onProgress: progress, onUncached: notKept, onProblem });
  const isOpen = await run(async (signal) => learned(await model.open(signal)));
  if (!isOpen) {
    close();
    return;
  }
  show('talk');
  ready();
  byId('question').focus();
}

/** Returns the conversation up to a question. */
function messagesTo(turn) {
  const answered = turns.slice(0, turns.indexOf(turn)).filter(({ text }) => text !== '');
  const before = answered.flatMap(({ question, text }) => [
    { role: 'user', content: question },
    { role: 'assistant', content: text },
  ]);
  return [...before.slice(-MESSAGES_MAX), { role: 'user', content: turn.question }];
}

/** Keeps the end of the conversation in sight for those who are there. */
function follow(change) {
  const talk = byId('talk');
  const isAtEnd = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 60;
  change();
  if (isAtEnd) talk.scrollTop = talk.scrollHeight;
}

async function ask(question) {
  const turn = new Turn(question, correct, () => (model.learns ? '' : FIRST));
  turns.push(turn);
  const talk = byId('talk');
  talk.append(turn.element);
  talk.scrollTop = talk.scrollHeight;
  // Read out when it is whole, not piece by piece.
  talk.setAttribute('aria-busy', 'true');
  turn.element.classList.add('writing');
  byId('send').textContent = 'Stop';
  let about = 'Stopped';
  await run(async (signal) => {
    const stream = model.ask(messagesTo(turn), signal);
    for await (const chunk of stream) {
      const text = chunk.choices[0]?.delta.content;
      if (text) follow(() => turn.add(text));
    }
    const { usage, timings } = await stream.result();
    about = `${usage.completion_tokens} tokens, ${Math.round(timings?.predicted_per_second ?? 0)} a second`;
  });
  follow(() => turn.end(about));
  turn.element.classList.remove('writing');
  talk.setAttribute('aria-busy', 'false');
  byId('send').textContent = 'Send';
}

async function correct(turn, correction) {
  if (running) return false;
  show('progress');
  progress({ phase: 'load', done: 0, total: 0 });
  const isDone = await run(async (signal) => {
    learned(await model.correct(messagesTo(turn), correction, signal));
    // What was taught should outlast a browser that clears up; some ask the person.
    navigator.storage?.persist?.().catch(() => {});
  });
  // It was not kept, and could not be fetched once more.
  if (!model.isOpen) {
    close();
    return false;
  }
  show('talk');
  ready();
  byId('question').focus();
  return isDone;
}

byId('load').addEventListener('submit', (event) => {
  event.preventDefault();
  const address = byId('address').value.trim();
  if (URL.canParse(address, location.href)) open(new URL(address, location.href).href);
  else line(byId('error'), `'${address}' is no address`);
});

byId('ask').addEventListener('submit', (event) => {
  event.preventDefault();
  if (running) return running.abort();
  const field = byId('question');
  const question = field.value.trim();
  field.value = '';
  return question && ask(question);
});

byId('question').addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!running) byId('ask').requestSubmit();
});

byId('cancel').addEventListener('click', () => running?.abort());

byId('forget').addEventListener('click', () => run(async () => {
  await model.forget();
  learned(0);
}));

byId('remove').addEventListener('click', () => run(async () => {
  await model.forget();
  await model.close();
  await removeCached(model.address);
  close();
}));

keepPage().then((reason) => {
  isPageKept = import.meta.env.PROD && reason === null;
  notKept('this page', reason);
  if (model && !running) ready();
});

// The address is the page's parameter, or that of the model which was used last.
const given = new URLSearchParams(location.search).get('model');
const kept = (await cachedModels()).filter(({ complete }) => complete);
const last = given ? new URL(given, location.href).href : kept[0]?.url;
if (last) byId('address').value = given ?? last;
if (kept.some(({ url }) => url === last)) await open(last);

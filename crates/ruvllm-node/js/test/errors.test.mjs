// Wrong inputs: each fails with a class and one line.

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import {
  BusyError, ContextLengthError, DisposedError, InvalidRequestError, load, LoadError, NotFoundError, RuvllmError, UsageError,
} from '@ruvllm/node';
import { folder, GOLDEN, user } from './common.mjs';

let engine;
before(async () => (engine = await load(GOLDEN, { name: 'tiny', ctx: 256, chatTemplate: 'chatml', parallel: 1, queue: 1, threads: 1 })));
after(() => engine.dispose());

/** Checks an error's class, facts and line. */
async function refused(Class, facts, line, act) {
  const error = await Promise.resolve().then(act).then(
    (value) => assert.fail(`it is not refused: ${JSON.stringify(value)}`),
    (error) => error,
  );
  assert.equal(error.constructor, Class, `${error.stack}`);
  assert.ok(error instanceof RuvllmError && error instanceof Error && error.name === Class.name);
  for (const [name, value] of Object.entries(facts)) assert.equal(error[name], value, `${name} of: ${error.message}`);
  assert.match(error.message, line);
  assert.ok(!error.message.includes('\n'), error.message);
}

const messages = user('a');
const REQUESTS = [
  ['messages that are no list', InvalidRequestError, { kind: 'invalid_request', param: 'messages', code: 'invalid_value', status: 400 }, /^'messages' is "x"; it must be a list/, () => engine.chat({ messages: 'x' }).result()],
  ['a field that there is not', InvalidRequestError, { param: 'max_tokenz', code: 'unknown_field' }, /is 'max_tokens' meant\?$/, () => engine.chat({ messages, max_tokenz: 3 }).text()],
  ['a number out of range', InvalidRequestError, { param: 'top_p' }, /^'top_p' is 2/, () => engine.complete({ prompt: 'a', top_p: 2 }).result()],
  ['a model that is not served', NotFoundError, { kind: 'not_found', param: 'model', status: 404 }, /^the model 'gpt-4' is not served here; 'tiny' is/, () => engine.chat({ messages, model: 'gpt-4' }).result()],
  ['a prompt beyond the context', ContextLengthError, { kind: 'context_length', code: 'context_length_exceeded' }, /tokens\) exceeds the available context size \(256 tokens\)/, () => engine.complete({ prompt: 'a b '.repeat(400) }).result()],
  ['no body', InvalidRequestError, { status: 400 }, /^the body is no JSON/, () => engine.chat().result()],
  ['a body that is no JSON', InvalidRequestError, { status: 400 }, /^the body is no JSON: Do not know how to serialize a BigInt/, () => engine.tokenize({ text: 3n })],
  ['a token outside the vocabulary', InvalidRequestError, { param: 'tokens' }, /^token 99999 is outside the vocabulary of /, () => engine.detokenize({ tokens: [99999] })],
  ['a schema that is none', InvalidRequestError, {}, /./, () => engine.chat({ messages, response_format: { type: 'json_schema', json_schema: { name: 'x', schema: { type: 'strin' } } } }).result()],
  ['an adapter that is not known', NotFoundError, { param: 'adapter' }, /'poet'/, () => engine.chat({ messages, adapter: 'poet' }).result()],
  ['feedback where nothing is learned', NotFoundError, { code: 'learning_off' }, /start it with --learn$/, () => engine.feedback({ id: 'x', score: 1 })],
  ['learned bytes that are none', InvalidRequestError, {}, /Uint8Array$/, () => engine.importLearned('x')],
];
for (const [name, Class, facts, line, act] of REQUESTS) test(`a request with ${name}`, () => refused(Class, facts, line, act));

test('an iteration fails as the whole answer does', async () => {
  await refused(InvalidRequestError, { param: 'messages' }, /must be a list/, async () => {
    for await (const _ of engine.chat({ messages: 'x' })) assert.fail('there are no chunks');
  });
});

test('more requests than may wait', async () => {
  const long = { messages, max_tokens: 200, ignore_eos: true, temperature: 0 };
  const streams = Array.from({ length: 100 }, () => engine.chat(long));
  const ends = await Promise.allSettled(streams.map((stream) => stream.result()));
  const busy = ends.filter(({ status }) => status === 'rejected').map(({ reason }) => reason);
  assert.ok(busy.length >= 1 && busy.length <= 98, `${busy.length} were refused`);
  for (const error of busy) {
    assert.equal(error.constructor, BusyError, error.stack);
    assert.ok(error.retryAfter >= 1 && error.kind === 'busy' && error.status === 429);
  }
});

const of = (path) => () => load(path);
test('a model that is not known', () => refused(UsageError, { kind: 'usage' }, /^unknown model 'no-such'; use /, of('no-such')));
test('a file that is not there', () => refused(LoadError, {}, /no-such\.gguf/, of('./no-such.gguf')));
test('a file that is no model', () => {
  const path = join(folder(after), 'text.gguf');
  writeFileSync(path, 'this is no model');
  return refused(LoadError, {}, /text\.gguf/, of(path));
});

const WITH = [
  ['an option that there is not', { contxt: 1 }, 'contxt', /^unexpected argument '--contxt' found/],
  ['a number that it cannot have', { ctx: 0 }, 'ctx', /^invalid value '0' for '--ctx <N>': use a number from 1 to /],
  ['no number', { kvMib: 'lots' }, 'kvMib', /^invalid value 'lots' for '--kv-mib <MIB>'/],
  ['an option without its value', { parallel: true }, 'parallel', /^a value is required for '--parallel <N>'/],
  ['an option about connections', { port: 8080 }, 'port', /^--port is for 'ruvllm serve'/],
  ['an option of another type', { learn: {} }, 'learn', /^'learn' is of the type object/],
  ['a template that there is not', { chatTemplate: 'nope' }, null, /nope: there is no such file, and the known templates are /],
];
for (const [name, options, param, line] of WITH) {
  const Class = param === null ? LoadError : UsageError;
  const facts = param === null ? {} : { param, kind: 'usage' };
  test(`loading with ${name}`, () => refused(Class, facts, line, () => load(GOLDEN, options)));
}
test('loading nothing', () => refused(UsageError, { param: 'model' }, /^load takes the name or the path/, () => load()));

test('an engine that was disposed', async () => {
  const other = await load(GOLDEN, { chatTemplate: 'chatml', threads: 1 });
  const running = other.chat({ messages, max_tokens: 200, ignore_eos: true });
  running.result().catch(() => {});
  await running[Symbol.asyncIterator]().next();
  await Promise.all([other.dispose(), other.dispose()]);
  await refused(DisposedError, { kind: 'disposed' }, /^the engine was disposed/, () => running.result());
  await refused(DisposedError, {}, /takes no requests/, () => other.chat({ messages }).text());
  await refused(DisposedError, {}, /takes no requests/, () => other.embed({ input: 'a' }));
  await refused(DisposedError, {}, /takes no requests/, () => other.fetch('/health'));
});

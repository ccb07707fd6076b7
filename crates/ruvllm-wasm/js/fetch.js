// `engine.fetch`: the API's paths, answered by the engine of a page. Clients of OpenAI's API run on it.

/** The paths and their calls. */
const CALLS = {
  '/v1/chat/completions': 'chat',
  '/v1/completions': 'complete',
  '/v1/embeddings': 'embed',
  '/v1/feedback': 'feedback',
  '/v1/memory': 'remember',
  '/tokenize': 'tokenize',
  '/detokenize': 'detokenize',
};

const json = (value, status = 200) =>
  new Response(JSON.stringify(value), { status, headers: { 'content-type': 'application/json' } });

/** Returns an error as the API writes it. */
function refused(error) {
  const { message, param = null, code = null, status, kind } = error;
  const body = { error: { message, type: kind ?? 'internal', param, code } };
  const response = json(body, status || 500);
  if (error.retryAfter) response.headers.set('retry-after', String(error.retryAfter));
  return response;
}

/** Answers a request. */
export async function respond(engine, input, init) {
  const request = new Request(input, init);
  const path = new URL(request.url).pathname;
  const { signal } = request;
  try {
    if (request.method === 'GET' && path === '/v1/models') {
      return json({ object: 'list', data: [{ id: engine.model, object: 'model', created: 0, owned_by: 'ruvllm' }] });
    }
    if (request.method === 'GET' && path === '/v1/capabilities') return json(await engine.capabilities());
    if (request.method === 'GET' && path === '/v1/learning') return json(await engine.learning({ signal }));
    const call = request.method === 'POST' ? CALLS[path] : undefined;
    if (!call) {
      const message = `there is no ${request.method} ${path} in a page; /v1/capabilities lists what there is`;
      return refused({ message, status: 404, kind: 'not_found' });
    }
    let body;
    try {
      body = await request.json();
    } catch (error) {
      return refused({ message: `the body is no JSON: ${error.message}`, status: 400, kind: 'invalid_request' });
    }
    const answer = engine[call](body, { signal });
    if (call !== 'chat' && call !== 'complete') return json(await answer);
    return body.stream === true ? await events(answer) : json(await answer.result());
  } catch (error) {
    if (signal.aborted) throw signal.reason;
    return refused(error);
  }
}

/** Returns an answer as server-sent events. What is wrong with a request shows before the first. */
async function events(answer) {
  const chunks = answer[Symbol.asyncIterator]();
  let next = await chunks.next();
  const encoder = new TextEncoder();
  const body = new ReadableStream({
    async pull(controller) {
      try {
        if (next.done) {
          controller.enqueue(encoder.encode('data: [DONE]\n\n'));
          return controller.close();
        }
        controller.enqueue(encoder.encode(`data: ${JSON.stringify(next.value)}\n\n`));
        next = await chunks.next();
      } catch (error) {
        controller.error(error);
      }
    },
    cancel: () => answer.abort(),
  });
  return new Response(body, { headers: { 'content-type': 'text/event-stream; charset=utf-8' } });
}

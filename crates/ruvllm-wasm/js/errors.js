// Errors of RuvLLM, by what they are about.

/** An error of RuvLLM: one line that says what, where, and what to do about it. */
export class RuvllmError extends Error {
  constructor(message, { kind = 'internal', param = null, code = null, status = 0 } = {}) {
    super(message);
    this.name = this.constructor.name;
    Object.assign(this, { kind, param, code, status });
  }
}

export class UsageError extends RuvllmError {}
export class LoadError extends RuvllmError {}
export class DisposedError extends RuvllmError {}
export class InvalidRequestError extends RuvllmError {}
export class ContextLengthError extends InvalidRequestError {}
export class NotFoundError extends InvalidRequestError {}
export class UnsupportedError extends InvalidRequestError {}
export class BusyError extends RuvllmError {}
export class UnavailableError extends RuvllmError {}
export class TimeoutError extends RuvllmError {}
export class InternalError extends RuvllmError {}

const CLASSES = {
  usage: UsageError,
  load: LoadError,
  disposed: DisposedError,
  invalid_request: InvalidRequestError,
  context_length: ContextLengthError,
  not_found: NotFoundError,
  unsupported: UnsupportedError,
  busy: BusyError,
  unavailable: UnavailableError,
  timeout: TimeoutError,
  internal: InternalError,
};

/** Returns what an error of the API is about. */
function kindOf({ status = 500, code = null }) {
  if (code === 'context_length_exceeded') return 'context_length';
  if (code === 'unsupported' || status === 501) return 'unsupported';
  if (status === 404) return 'not_found';
  if (status === 429) return 'busy';
  if (status === 503) return 'unavailable';
  if (status === 504) return 'timeout';
  return status >= 500 ? 'internal' : 'invalid_request';
}

/** Makes an error of this kind. */
export function errorOf(kind, message, more = {}) {
  const error = new CLASSES[kind](message, { kind, ...more });
  if (kind === 'busy') error.retryAfter = more.retryAfter ?? null;
  return error;
}

/** Makes the error of a call from what the module or the worker says: `{ message, status, code, param, retry_after, kind }`. */
export function errorOfApi(said) {
  const { message, param = null, code = null, status = 0, retry_after: retryAfter = null } = said;
  return errorOf(said.kind ?? kindOf(said), message, { param, code, status, retryAfter });
}

/** Returns what the module threw as an object: it throws texts of JSON, the host its own errors. */
export function thrown(error) {
  if (typeof error !== 'string') return null;
  try {
    return JSON.parse(error);
  } catch {
    return { message: error, status: 500 };
  }
}

// Errors as classes, made of what the HTTP API and the addon say. Shared with the browser's package.

export class RuvllmError extends Error {
  /**
   * @param {string} message
   * @param {{ kind?: string, param?: string | null, code?: string | null, status?: number }} [facts]
   */
  constructor(message, facts = {}) {
    super(message);
    this.name = new.target.name;
    this.kind = facts.kind ?? 'internal';
    this.param = facts.param ?? null;
    this.code = facts.code ?? null;
    this.status = facts.status ?? 0;
  }
}

export class UsageError extends RuvllmError {
  constructor(message, facts = {}) {
    super(message, { ...facts, kind: 'usage' });
  }
}

export class LoadError extends RuvllmError {
  constructor(message, facts = {}) {
    super(message, { ...facts, kind: 'load' });
  }
}

export class DisposedError extends RuvllmError {
  constructor(message = 'the engine was disposed and takes no requests; load it again', facts = {}) {
    super(message, { ...facts, kind: 'disposed' });
  }
}

export class InvalidRequestError extends RuvllmError {
  constructor(message, facts = {}) {
    super(message, { kind: 'invalid_request', ...facts });
  }
}

export class ContextLengthError extends InvalidRequestError {
  constructor(message, facts = {}) {
    super(message, { ...facts, kind: 'context_length' });
  }
}

export class NotFoundError extends InvalidRequestError {
  constructor(message, facts = {}) {
    super(message, { ...facts, kind: 'not_found' });
  }
}

export class UnsupportedError extends InvalidRequestError {
  constructor(message, facts = {}) {
    super(message, { ...facts, kind: 'unsupported' });
  }
}

export class BusyError extends RuvllmError {
  /**
   * @param {string} message
   * @param {{ retryAfter?: number | null, param?: string | null, code?: string | null, status?: number }} [facts]
   */
  constructor(message, facts = {}) {
    super(message, { ...facts, kind: 'busy' });
    this.retryAfter = facts.retryAfter ?? null;
  }
}

export class UnavailableError extends RuvllmError {
  constructor(message, facts = {}) {
    super(message, { ...facts, kind: 'unavailable' });
  }
}

export class TimeoutError extends RuvllmError {
  constructor(message, facts = {}) {
    super(message, { ...facts, kind: 'timeout' });
  }
}

export class InternalError extends RuvllmError {
  constructor(message, facts = {}) {
    super(message, { ...facts, kind: 'internal' });
  }
}

/** The status of an error that came in a stream, whose head said 200, by its type. */
const STATUS_OF_TYPE = {
  invalid_request_error: 400,
  authentication_error: 401,
  rate_limit_error: 429,
  server_error: 500,
  service_unavailable_error: 503,
  timeout_error: 504,
};

/** Returns the class for a status and a code of the HTTP API. */
function classOf(status, code) {
  if (code === 'context_length_exceeded') return ContextLengthError;
  if (code === 'unsupported' || status === 501) return UnsupportedError;
  if (status === 404) return NotFoundError;
  if (status === 429) return BusyError;
  if (status === 503) return UnavailableError;
  if (status === 504 || status === 408) return TimeoutError;
  return status >= 500 ? InternalError : InvalidRequestError;
}

/**
 * Makes an error of the body of an answer in OpenAI's shape.
 *
 * @param {any} body
 * @param {{ status?: number, retryAfter?: string | null }} [head] of the answer; none for an error in a stream
 * @returns {RuvllmError}
 */
export function ofBody(body, head = {}) {
  const error = body?.error ?? {};
  const status = head.status ?? STATUS_OF_TYPE[error.type] ?? 500;
  const message = typeof error.message === 'string' ? error.message : `the engine answered with ${status}`;
  const seconds = Number.parseInt(head.retryAfter ?? '', 10);
  const retryAfter = Number.isNaN(seconds) ? null : seconds;
  const Class = classOf(status, error.code);
  return new Class(message, { param: error.param, code: error.code, status, retryAfter });
}

/**
 * Makes an error of what the addon throws: a line of JSON.
 *
 * @param {unknown} thrown
 * @returns {RuvllmError}
 */
export function ofNative(thrown) {
  const text = thrown instanceof Error ? thrown.message : String(thrown);
  let told;
  try {
    told = JSON.parse(text);
  } catch {
    return new InternalError(text);
  }
  if (told.error) return ofBody(told, { status: told.status });
  const message = String(told.message);
  if (told.kind === 'usage') return new UsageError(message, { param: optionIn(message) });
  return told.kind === 'load' ? new LoadError(message) : new InternalError(message);
}

/** Returns the option of `load` that a line is about: the first that it names as the command line does. */
function optionIn(message) {
  const found = /--([a-z][a-z-]*)/.exec(message);
  return found && found[1].replace(/-([a-z])/g, (_, letter) => letter.toUpperCase());
}

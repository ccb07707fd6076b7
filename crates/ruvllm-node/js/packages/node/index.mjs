// The same objects as for `require`, so that an error is of one class wherever it is caught.
import all from './lib/index.js';

export const {
  load, version, RuvllmError, UsageError, LoadError, DisposedError, InvalidRequestError, ContextLengthError, NotFoundError,
  UnsupportedError, BusyError, UnavailableError, TimeoutError, InternalError,
} = all;

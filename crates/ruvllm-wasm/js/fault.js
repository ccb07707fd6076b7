// What is wrong with a worker, in a line.

/** Whether an event tells of a script that could not be fetched, or may not run: browsers say nothing more of that. */
export const isUnfetched = (fault) => fault?.type === 'error' && fault.message === undefined;

/** Returns the line of an error or an event. */
export function faultOf(fault) {
  if (!isUnfetched(fault)) return `${fault?.message ?? fault}`;
  return "its script cannot be fetched; look at where the package's files lie and at worker-src of the Content-Security-Policy";
}

/** Returns what is told of a worker that does not start. */
export function unstarted(fault) {
  return { kind: 'load', message: `the engine's worker does not start: ${faultOf(fault)}` };
}

/** Returns what is told of an engine that a fault has ended. */
export function stopped(fault) {
  return { message: `the engine has stopped by an internal error: ${faultOf(fault)}; load it again`, status: 500 };
}

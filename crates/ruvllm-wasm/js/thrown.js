// Errors of the engine's module.

/** Returns what the module threw as an object: it throws texts of JSON, the host its own errors. */
export function thrown(error) {
  if (typeof error !== 'string') return null;
  try {
    return JSON.parse(error);
  } catch {
    return { message: error, status: 500 };
  }
}

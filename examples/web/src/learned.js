// What a model has learned, in IndexedDB: bytes by the model's address.

const NAME = 'learned';

/** Runs a request on the store; fails with the browser's error. */
async function run(mode, begin) {
  const db = await new Promise((resolve, reject) => {
    const opening = indexedDB.open(NAME, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(NAME);
    opening.onsuccess = () => resolve(opening.result);
    opening.onerror = () => reject(opening.error);
  });
  try {
    return await new Promise((resolve, reject) => {
      const transaction = db.transaction(NAME, mode);
      const request = begin(transaction.objectStore(NAME));
      transaction.oncomplete = () => resolve(request.result);
      // No room is told by the transaction, when it ends.
      transaction.onabort = () => reject(transaction.error ?? request.error);
    });
  } finally {
    db.close();
  }
}

/** Returns why nothing is kept, by the browser's error. */
const reasonOf = (error) => (error?.name === 'QuotaExceededError' ? 'full' : 'unavailable');

/** Returns what a model has learned: `{ bytes }`, or `{ reason }` where nothing can be kept. */
export async function readLearned(address) {
  try {
    return { bytes: (await run('readonly', (store) => store.get(address))) ?? null };
  } catch (error) {
    return { bytes: null, reason: reasonOf(error) };
  }
}

/** Keeps what a model has learned; returns null, or why it is not kept. */
export async function writeLearned(address, bytes) {
  try {
    await run('readwrite', (store) => store.put(bytes, address));
    return null;
  } catch (error) {
    return reasonOf(error);
  }
}

/** Removes what a model has learned. */
export async function removeLearned(address) {
  await run('readwrite', (store) => store.delete(address)).catch(() => {});
}

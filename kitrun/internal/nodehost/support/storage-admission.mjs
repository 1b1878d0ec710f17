// @kontourai/flow-agents/storage-admission, served by kitrun.
import { call, listen, unlisten } from './rpc.mjs';

export const DEFAULT_STORAGE = Object.freeze({
  max_bytes: 134217728,
  max_entries: 10000,
  max_file_bytes: 16777216,
  min_free_bytes: 4294967296,
});

// inspectStorage resolves with what the roots of a budget hold.
export function inspectStorage(budget) {
  return call('storage.inspect', { budget });
}

// admitStorage resolves with the same, and rejects when the budget does not allow it.
export function admitStorage(budget) {
  return call('storage.admit', { budget }).catch((error) => {
    if (error.reason) error.message = `${error.code}:${error.reason}`;
    throw error;
  });
}

let watches = 0;

// watchStorage looks again and again until close, and calls terminate once, with
// the first violation.
export function watchStorage(budget, terminate, { intervalMs = 250 } = {}) {
  const id = `w${++watches}`;
  const watch = {
    violation: null,
    close() {
      unlisten('storage.violation', id);
      opened.then(() => call('storage.unwatch', { id })).catch(() => {}); // it ended by itself
    },
  };
  const violated = (violation) => {
    if (watch.violation) return;
    watch.violation = violation;
    terminate?.(violation);
  };
  listen('storage.violation', id, violated);
  const opened = call('storage.watch', { id, budget, intervalMs });
  opened.catch((error) => violated({ allowed: false, reason: error.code ?? 'writable_scope_inspection_failed' }));
  return watch;
}

// Runs before the kit: makes the four host modules of the kits' public package
// resolve to the files beside this one. Everything else goes to Node's own
// resolution.
import './check.mjs';
import * as nodeModule from 'node:module';

if (typeof nodeModule.registerHooks === 'function') { // 22.15: on this thread, require() too
  const { resolve } = await import('./hooks.mjs');
  nodeModule.registerHooks({ resolve });
} else {
  // From register on, each module comes through another thread: what is known to be
  // needed is here before. A thread or a child of the kit's has no use for it.
  if (process.env.DRAWBRIDGE_IPC_FD) await import('./run.mjs');
  nodeModule.register('./hooks.mjs', import.meta.url);
}

// Runs before the kit: makes the four host modules of the kits' public package
// resolve to the files beside this one. Everything else goes to Node's own
// resolution.
import './check.mjs';
import * as nodeModule from 'node:module';

if (typeof nodeModule.registerHooks === 'function') { // 22.15: on this thread, require() too
  const { resolve } = await import('./hooks.mjs');
  nodeModule.registerHooks({ resolve });
} else {
  nodeModule.register('./hooks.mjs', import.meta.url);
}

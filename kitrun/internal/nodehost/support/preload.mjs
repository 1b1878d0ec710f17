// Runs before the kit: checks the version of Node, then makes the four host
// modules of the kits' public package resolve to the files beside this one.
// Everything else goes to Node's own resolution.
import * as nodeModule from 'node:module';

const [major, minor] = process.versions.node.split('.').map(Number);
if (major < 20 || (major === 20 && minor < 6)) {
  process.stderr.write(`kitrun: this is Node ${process.version}; kits need 20.6 or newer\n`);
  process.exit(86);
}
if (typeof nodeModule.registerHooks === 'function') { // 22.15: on this thread, require() too
  const { resolve } = await import('./hooks.mjs');
  nodeModule.registerHooks({ resolve });
} else {
  nodeModule.register('./hooks.mjs', import.meta.url);
}

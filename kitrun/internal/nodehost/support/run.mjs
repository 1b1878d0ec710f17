// What child.mjs does, loaded before the resolve hook where that saves time.
import { pathToFileURL } from 'node:url';
import * as host from './rpc.mjs';

// run runs the entry of one kit once: ready, start, the entry, its outcome, and the
// host's acknowledgement. The process ends when the kit has nothing left to do.
export async function run() {
  host.hold();
  const abort = new AbortController();
  const stop = () => abort.abort();
  host.next((frame) => frame.kind === 'cancel').then(stop, stop); // or nobody listens any more
  const started = host.next((frame) => frame.kind === 'start');
  await host.send({ kind: 'ready', protocol: 1, node: process.version });
  const { deliveryId, module, export: name, args } = await started;

  let outcome;
  try {
    if (abort.signal.aborted) throw new Error('the run was cancelled before the entry was called');
    const entry = await import(pathToFileURL(module).href);
    if (typeof entry[name] !== 'function') throw new TypeError(`the kit's module exports no function ${name}`);
    outcome = { kind: 'result', deliveryId, result: await entry[name]({ ...args, signal: abort.signal }) };
    try {
      JSON.stringify(outcome);
    } catch (error) {
      throw new TypeError(`the kit's result is not JSON: ${host.text(error)}`);
    }
  } catch (error) {
    outcome = { kind: 'error', deliveryId, message: host.text(error) };
  }

  const acknowledged = host.next((frame) => frame.kind === 'outcome-ack' && frame.deliveryId === deliveryId);
  try {
    await host.send(outcome).catch((error) => {
      if (error instanceof RangeError) return host.send({ kind: 'error', deliveryId, message: `the kit's result is too large: ${error.message}` });
      throw error;
    });
    await acknowledged;
  } catch (error) {
    process.stderr.write(`kitrun: the outcome of the kit was not taken: ${host.text(error)}\n`);
    process.exit(1);
  }
  if (outcome.kind === 'error') process.exitCode = 1;
  host.letGo();
}

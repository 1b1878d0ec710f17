// @kontourai/flow-agents/docker-worker, served by kitrun.
import { call, forget, handle } from './rpc.mjs';

// runCodexDockerWorker runs one Codex turn in a locked container and resolves with
// its receipt. signal and workspaceSetup.prepare stay here; the rest is JSON.
export async function runCodexDockerWorker(options) {
  const { signal, workspaceSetup, ...rest } = options;
  if (typeof workspaceSetup?.prepare !== 'function') {
    return call('worker.run', { ...rest, ...(workspaceSetup && { workspaceSetup }) }, signal);
  }
  const { prepare, ...setup } = workspaceSetup;
  const name = handle((input) => prepare(input));
  try {
    return await call('worker.run', { ...rest, workspaceSetup: { ...setup, prepare: { callback: name } } }, signal);
  } finally {
    forget(name);
  }
}

// parseCodexEvents reads the events of a turn; it throws where the turn is not whole.
export function parseCodexEvents(stdout) {
  const events = stdout.split('\n').filter((line) => line.trim() !== '').map((line) => JSON.parse(line));
  const of = (type) => events.filter((event) => event?.type === type);
  const [thread, ...threads] = of('thread.started');
  if (threads.length > 0 || typeof thread?.thread_id !== 'string' || thread.thread_id === '') {
    throw new Error('one observed provider thread required');
  }
  const completed = of('turn.completed');
  if (of('turn.started').length !== 1 || completed.length !== 1 || of('turn.failed').length > 0) {
    throw new Error('one complete turn required');
  }
  const { usage } = completed[0];
  for (const count of [usage?.input_tokens, usage?.output_tokens]) {
    if (!Number.isSafeInteger(count) || count < 0) throw new Error('terminal token usage missing');
  }
  const messages = of('item.completed').filter((event) => event.item?.type === 'agent_message');
  return {
    events,
    provider_thread_id: thread.thread_id,
    usage: {
      complete: true,
      source: 'codex-turn-completed',
      input_tokens: usage.input_tokens,
      output_tokens: usage.output_tokens,
      cached_input_tokens: usage.cached_input_tokens ?? null,
    },
    final: messages.at(-1)?.item.text ?? null,
  };
}

// dockerHostGatewayArgs are what a docker command line needs to know the host by name.
export function dockerHostGatewayArgs(platform = process.platform) {
  return platform === 'linux' ? ['--add-host', 'host.docker.internal:host-gateway'] : [];
}

// dockerHostUserArgs are what a docker command line needs to run as the controller.
export function dockerHostUserArgs(platform, { uid, gid }) {
  return platform === 'linux' ? ['--user', `${uid}:${gid}`] : [];
}

// resolveDockerHostIdentity resolves as whom containers of this engine run.
export function resolveDockerHostIdentity({ platform = process.platform } = {}) {
  return call('worker.identity', { platform });
}

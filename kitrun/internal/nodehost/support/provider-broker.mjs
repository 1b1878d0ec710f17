// @kontourai/flow-agents/provider-broker, served by kitrun.
import { call, listen, unlisten } from './rpc.mjs';

// startProviderProxy takes out a capability for one model. evidence grows as the
// broker completes requests, and is whole when close has resolved.
export async function startProviderProxy({ fetchImpl, ...options }) {
  if (fetchImpl !== undefined) {
    throw Object.assign(new Error('fetchImpl is not taken: requests leave through brokerd alone'), { code: 'fetchImpl_unsupported' });
  }
  const { id, ...grant } = await call('broker.start', options);
  const evidence = [];
  const counters = { ...grant.counters };
  listen('broker.evidence', id, (row) => evidence.push(row));
  listen('broker.counters', id, (row) => Object.assign(counters, row));
  let closing;
  return {
    ...grant,
    evidence,
    counters,
    close() {
      closing ??= call('broker.close', { id }).then(() => {
        unlisten('broker.evidence', id);
        unlisten('broker.counters', id);
      });
      return closing;
    },
  };
}

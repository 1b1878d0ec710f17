// The entry of the example kit: one turn of one worker, with a capability that is
// taken out for it and closed after it.
import fs from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { runCodexDockerWorker } from '@kontourai/flow-agents/docker-worker';
import { startProviderProxy } from '@kontourai/flow-agents/provider-broker';
import { readRequest } from './request.mjs';

export async function run({ requestFile, controllerRoot, authFile, executionOwner, signal }) {
  const request = readRequest(requestFile);
  const artifactRoot = path.join(controllerRoot, 'artifacts');
  fs.mkdirSync(artifactRoot, { recursive: true, mode: 0o700 });
  const contextFile = path.join(request.worker_root, 'context.json');
  fs.mkdirSync(request.worker_root, { recursive: true, mode: 0o700 });
  fs.writeFileSync(contextFile, JSON.stringify({ kit: 'hello-kit', turn: 1 }), { mode: 0o600 });

  const broker = await startProviderProxy({ authFile, model: request.model, maxRequests: 16 });
  try {
    const receipt = await runCodexDockerWorker({
      image: request.image,
      workspace: request.workspace,
      sourceRoot: fileURLToPath(new URL('./rules', import.meta.url)),
      contextFile,
      artifactRoot,
      providerProxy: { baseUrl: broker.baseUrl, capability: broker.capability, model: broker.model },
      model: request.model,
      timeoutMs: request.timeoutMs,
      runId: `hello-${executionOwner}`,
      workspaceSetup: {
        // Runs here, in the host, before the container is made.
        prepare: ({ workspace, runId }) => fs.writeFileSync(path.join(workspace, '.hello-kit'), `${runId}\n`),
        prompt: `${request.prompt}\n`,
      },
      storageBudget: request.storageBudget,
      signal,
    });
    fs.writeFileSync(path.join(controllerRoot, 'provider-observations.json'), JSON.stringify(broker.evidence, null, 2), { mode: 0o600 });
    return {
      status: receipt.completed ? 'completed' : 'failed',
      final: receipt.final,
      usage: receipt.usage,
      requests: broker.counters.forwarded,
      receipt: path.join(artifactRoot, `${receipt.observed.invocation_id}.receipt.json`),
    };
  } finally {
    await broker.close();
  }
}

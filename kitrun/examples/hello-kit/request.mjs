// What this kit reads of a request. kitrun has checked schema, version, kit_id,
// source_root and execution.timeout_s before.
import fs from 'node:fs';
import path from 'node:path';

export function readRequest(file) {
  const request = JSON.parse(fs.readFileSync(file, 'utf8'));
  const sandbox = request.engine_sandbox ?? {};
  const wanted = {
    workspace: request.workspace, // the agent writes here
    worker_root: sandbox.worker_root, // what the container gets to read is put here
    image: sandbox.image,
    model: request.execution?.model,
    prompt: request.prompt,
  };
  for (const [name, value] of Object.entries(wanted)) {
    if (typeof value !== 'string' || value === '') throw new Error(`the request has no ${name}`);
  }
  if (!path.isAbsolute(wanted.workspace) || !path.isAbsolute(wanted.worker_root)) {
    throw new Error('workspace and worker_root must be absolute paths');
  }
  return {
    ...wanted,
    timeoutMs: (request.execution.timeout_s ?? 300) * 1000,
    storageBudget: request.parameters?.storage_budget,
  };
}

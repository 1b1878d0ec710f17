// The resolve hook: exactly four specifiers, and nothing below or beside them.
const ports = new Map(
  ['docker-worker', 'provider-broker', 'storage-admission', 'kit-execution'].map(
    (name) => [`@kontourai/flow-agents/${name}`, new URL(`./${name}.mjs`, import.meta.url).href]));

export function resolve(specifier, context, next) {
  const url = ports.get(specifier);
  return url ? { url, format: 'module', shortCircuit: true } : next(specifier, context);
}

// @kontourai/flow-agents/kit-execution, served by kitrun. What only reads is done
// here, at once; a run goes through the host.
import crypto from 'node:crypto';
import fs from 'node:fs';
import path from 'node:path';
import { call } from './rpc.mjs';

const contract = 'kontour.kit.execution_request@1.0';
const unhashed = new Set(['.git', '__pycache__', '.pytest_cache']);
const registryName = 'kits/local/installed-kits.json';
const most = { registry: 4 * 1024 * 1024, entries: 100_000, depth: 64, bytes: 2 * 1024 ** 3 };

function refuse(message, code) {
  throw Object.assign(new Error(message), { code });
}

// parseKitExecution gives the entry that a manifest declares, null when it has none.
export function parseKitExecution(manifest) {
  const entry = manifest.execution;
  if (entry === undefined) return null;
  const good = typeof entry === 'object' && entry !== null && !Array.isArray(entry)
    && entry.contract === contract
    && typeof entry.module === 'string' && entry.module.endsWith('.mjs') && !entry.module.includes('\\')
    && entry.module.split('/').every((part) => part !== '' && part !== '.' && part !== '..' && !unhashed.has(part))
    && typeof entry.export === 'string' && /^[$A-Z_a-z][$\w]*$/.test(entry.export);
  if (!good) refuse(`execution must declare a relative .mjs module, an exported function and the contract ${contract}`, 'kit_not_runnable');
  return entry;
}

// verifyInstalledKit proves that an installed kit is what was installed, and finds
// its entry. It is synchronous, the hash included.
export function verifyInstalledKit({ kitId, dest }) {
  if (typeof kitId !== 'string' || !/^[a-z][a-z0-9-]*$/.test(kitId)) refuse('kit id is invalid', 'kit_id_invalid');
  const root = path.resolve(dest);
  const entries = readRegistry(root).filter((entry) => entry?.id === kitId);
  if (entries.length !== 1) refuse(`exactly one installed kit '${kitId}' required, there are ${entries.length}`, entries.length === 0 ? 'kit_not_installed' : 'kit_ambiguous');
  const [entry] = entries;
  const relative = `kits/local/repositories/${kitId}`;
  if (entry.installed_path !== relative || !/^sha256:[a-f0-9]{64}$/.test(entry.hash)) {
    refuse(`installed kit '${kitId}' refused: its entry names no canonical path or no hash`, 'kit_entry_invalid');
  }
  const kitRoot = path.join(root, relative);
  for (let at = root, parts = relative.split('/'); ; at = path.join(at, parts.shift())) {
    directory(at, kitId);
    if (parts.length === 0) break;
  }
  const tree = { hash: crypto.createHash('sha256'), entries: 0, bytes: 0, hidden: false };
  walk(kitRoot, '', 0, false, tree);
  const hash = `sha256:${tree.hash.digest('hex')}`;
  if (hash !== entry.hash) refuse(`installed kit '${kitId}' refused: drifted`, 'kit_drifted');
  if (tree.hidden) refuse(`installed kit '${kitId}' refused: it holds a directory or file that its hash does not cover`, 'kit_unhashed_content');
  const descriptor = parseKitExecution(JSON.parse(tree.manifest?.toString('utf8') ?? '{}'));
  if (!descriptor) refuse(`kit '${kitId}' declares no execution entry`, 'kit_not_runnable');
  const modulePath = path.join(kitRoot, ...descriptor.module.split('/'));
  if (!fs.lstatSync(modulePath, { throwIfNoEntry: false })?.isFile()) {
    refuse(`kit '${kitId}': its module is no regular file`, 'kit_not_runnable'); // the walk saw no link above it
  }
  return { kitRoot, modulePath, descriptor, hash };
}

function readRegistry(root) {
  const file = path.join(root, registryName);
  const stat = fs.lstatSync(file, { throwIfNoEntry: false });
  if (!stat) return [];
  let registry;
  if (stat.isFile() && stat.size <= most.registry) {
    try {
      registry = JSON.parse(fs.readFileSync(file, 'utf8'));
    } catch { /* refused below */ }
  }
  if (registry?.schema_version !== '1.0' || !Array.isArray(registry.kits)) refuse('the registry of kits is not of the known form', 'kit_registry_invalid');
  return registry.kits;
}

function directory(at, kitId) {
  const stat = fs.lstatSync(at, { throwIfNoEntry: false });
  if (!stat) refuse(`installed kit '${kitId}' refused: missing`, 'kit_missing');
  if (!stat.isDirectory()) refuse(`installed kit '${kitId}' refused: a link or file stands where a directory belongs`, 'kit_tree_invalid');
}

// walk adds a directory to the hash: depth first, names in the order of UTF-16
// code units, a directory at its place.
function walk(at, relative, depth, excluded, tree) {
  const bad = (why) => refuse(`installed kit refused: ${why}`, 'kit_tree_invalid');
  if (depth > most.depth) bad('too deep');
  const names = fs.readdirSync(at, { encoding: 'buffer' }).map((name) => {
    const text = name.toString('utf8');
    if (!Buffer.from(text, 'utf8').equals(name)) bad('a name is not UTF-8');
    return text;
  });
  for (const name of names.sort()) {
    if (++tree.entries > most.entries) bad('too many entries');
    const here = path.join(at, name);
    const below = relative === '' ? name : `${relative}/${name}`;
    const hidden = unhashed.has(name);
    if (hidden) tree.hidden = true;
    const stat = fs.lstatSync(here);
    if (stat.isDirectory()) walk(here, below, depth + 1, excluded || hidden, tree);
    else if (!stat.isFile()) bad('a link or special file');
    else if (!excluded && !hidden) add(here, below, stat, tree, bad);
  }
}

// add streams one file into the hash and keeps the manifest.
function add(here, below, stat, tree, bad) {
  if ((tree.bytes += stat.size) > most.bytes) bad('too large');
  const file = fs.openSync(here, fs.constants.O_RDONLY | fs.constants.O_NOFOLLOW | fs.constants.O_NONBLOCK);
  try {
    tree.hash.update(below, 'utf8').update('\0');
    const kept = below === 'kit.json' ? [] : null;
    const buffer = Buffer.allocUnsafe(256 * 1024);
    for (let n; (n = fs.readSync(file, buffer)) > 0;) {
      tree.hash.update(buffer.subarray(0, n));
      kept?.push(Buffer.from(buffer.subarray(0, n)));
    }
    tree.hash.update('\0');
    if (kept) tree.manifest = Buffer.concat(kept);
    const after = fs.fstatSync(file);
    if (['dev', 'ino', 'mode', 'size', 'mtimeMs', 'ctimeMs'].some((key) => after[key] !== stat[key])) bad('it changes');
  } finally {
    fs.closeSync(file);
  }
}

// executeInstalledKit runs an installed kit in a process of its own.
export function executeInstalledKit({ signal, ...options }) {
  return call('kit.execute', options, signal);
}

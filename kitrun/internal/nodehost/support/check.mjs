// Runs first in every process of a kit: refuses a Node that is too old. It uses
// nothing that an old one lacks.
const [major, minor] = process.versions.node.split('.').map(Number);
if (major < 20 || (major === 20 && minor < 6)) {
  process.stderr.write(`kitrun: this is Node v${process.versions.node}; kits need 20.6 or newer\n`);
  process.exit(86);
}

// The official TypeScript client, driven by clients_test.go:
//
//   node client.mjs NODE_MODULES PROGRAM ARGUMENT…
//
// Connects to the program over stdio, lists its tools, calls one, and prints
// what it saw as one JSON line.
import { pathToFileURL } from "node:url";

const [modules, command, ...args] = process.argv.slice(2);
const sdk = (name) => import(pathToFileURL(`${modules}/@modelcontextprotocol/sdk/dist/esm/client/${name}.js`).href);
const { Client } = await sdk("index");
const { StdioClientTransport } = await sdk("stdio");

const client = new Client({ name: "typescript-client", version: "1.0.0" }, { capabilities: {} });
await client.connect(new StdioClientTransport({ command, args, env: { ...process.env }, stderr: "inherit" }));
const { tools } = await client.listTools();
const list = await client.callTool({ name: "agent_knock_knock_list", arguments: {} });
let refused = "";
try {
  await client.callTool({ name: "agent_knock_knock_list", arguments: { no_such_member: true } });
} catch (error) {
  refused = String(error.code);
}
console.log(JSON.stringify({ server: client.getServerVersion().name, tools: tools.map((t) => t.name), list, refused }));
await client.close();

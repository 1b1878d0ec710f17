// The main module of a kit's process.
import { run } from './run.mjs';

await run();

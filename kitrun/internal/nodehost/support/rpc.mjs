// The kit's side of the protocol on the inherited socket: frames of four bytes of
// length, big-endian, and a JSON object (docs/kits.md names them).
import net from 'node:net';
import { isMainThread } from 'node:worker_threads';

const maxFrame = 64 * 1024 * 1024;
const variable = 'DRAWBRIDGE_IPC_FD';

if (!isMainThread || !process.env[variable]) {
  throw new Error('the host modules of @kontourai/flow-agents work only in the main thread of a process that kitrun started');
}
const socket = new net.Socket({ fd: Number(process.env[variable]), readable: true, writable: true });
delete process.env[variable];

const calls = new Map(); // by id: what waits for a reply
const functions = new Map(); // by handle: what the host may call back
const topics = new Map(); // by "topic id": who hears of it
const waiters = []; // for frames of the run itself
let last = 0; // id given out
let holds = 0; // reasons to keep the process alive
let lost = null; // why nothing more will come

socket.on('data', collect);
socket.on('error', (error) => end(error));
socket.on('close', () => end(new Error('the connection to kitrun is closed')));
socket.unref();

// Frames. A large one comes in many pieces, which are joined once.
let pieces = [];
let have = 0;
let want = 4; // bytes until there is something to do
let inBody = false;

function collect(piece) {
  pieces.push(piece);
  have += piece.length;
  while (have >= want) {
    const all = pieces.length === 1 ? pieces[0] : Buffer.concat(pieces, have);
    const part = all.subarray(0, want);
    pieces = have > want ? [all.subarray(want)] : [];
    have -= want;
    if (inBody) {
      want = 4;
      inBody = false;
      hear(JSON.parse(part.toString('utf8')));
    } else {
      want = part.readUInt32BE(0);
      inBody = true;
    }
  }
}

// send writes one frame and resolves when the kernel has it.
export function send(frame) {
  const body = Buffer.from(JSON.stringify(frame), 'utf8');
  if (body.length > maxFrame) {
    return Promise.reject(new RangeError(`a message to kitrun has ${body.length} bytes, more than ${maxFrame}`));
  }
  const head = Buffer.alloc(4);
  head.writeUInt32BE(body.length);
  return new Promise((resolve, reject) => {
    if (lost) {
      reject(lost);
      return;
    }
    socket.cork();
    socket.write(head);
    socket.write(body, (error) => (error ? reject(error) : resolve()));
    socket.uncork();
  });
}

function hear(frame) {
  switch (frame.kind) {
    case 'reply': {
      const call = calls.get(frame.id);
      if (!call) return;
      calls.delete(frame.id);
      release();
      if (frame.error) call.reject(Object.assign(new Error(frame.error.message), { code: frame.error.code, reason: frame.error.reason }));
      else call.resolve(frame.result);
      return;
    }
    case 'event': {
      topics.get(`${frame.topic} ${frame.id}`)?.(frame.row);
      return;
    }
    case 'callback': {
      answer(frame);
      return;
    }
    default: {
      const at = waiters.findIndex((waiter) => waiter.wanted(frame));
      if (at >= 0) waiters.splice(at, 1)[0].resolve(frame);
    }
  }
}

async function answer({ id, handle, args }) {
  let reply = { kind: 'callback-reply', id };
  try {
    const result = await functions.get(handle)(...args);
    reply.result = result ?? null;
    JSON.stringify(reply);
  } catch (error) {
    reply = { kind: 'callback-reply', id, error: { message: text(error) } };
  }
  send(reply).catch(() => {}); // a lost connection ends everything
}

function end(error) {
  if (lost) return;
  lost = error;
  for (const call of calls.values()) call.reject(error);
  calls.clear();
  for (const waiter of waiters.splice(0)) waiter.reject(error);
}

// hold keeps the process alive until release was called as often.
export function hold() {
  if (holds++ === 0) socket.ref();
}

export function release() {
  if (--holds === 0) socket.unref();
}

// letGo lets the process end, whatever still waits.
export function letGo() {
  holds = Number.NEGATIVE_INFINITY;
  socket.unref();
}

// next resolves with the next frame that is wanted.
export function next(wanted) {
  return new Promise((resolve, reject) => {
    if (lost) reject(lost);
    else waiters.push({ wanted, resolve, reject });
  });
}

// call asks the host for something and resolves with its reply. When signal fires
// the host is told, and replies as soon as what it began has ended.
export function call(method, params, signal) {
  const id = ++last;
  hold();
  return new Promise((resolve, reject) => {
    const fail = (error) => {
      if (calls.delete(id)) {
        release();
        reject(error);
      }
    };
    const abort = () => send({ kind: 'abort', id }).catch(() => {});
    const done = (settle) => (value) => {
      signal?.removeEventListener('abort', abort);
      settle(value);
    };
    calls.set(id, { resolve: done(resolve), reject: done(reject) });
    try {
      send({ kind: 'call', id, method, params }).catch(fail);
    } catch (error) {
      fail(error); // params are not JSON
    }
    if (signal?.aborted) abort();
    else signal?.addEventListener('abort', abort, { once: true });
  });
}

// handle lets the host call a function of the kit, until forget.
export function handle(fn) {
  const name = `h${++last}`;
  functions.set(name, fn);
  return name;
}

export function forget(name) {
  functions.delete(name);
}

// listen hears of a topic of one thing, until unlisten.
export function listen(topic, id, heard) {
  topics.set(`${topic} ${id}`, heard);
}

export function unlisten(topic, id) {
  topics.delete(`${topic} ${id}`);
}

// text is what of a thrown value crosses to the host.
export function text(error) {
  return error instanceof Error ? error.message || error.name : String(error);
}

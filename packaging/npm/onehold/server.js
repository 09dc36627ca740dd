// The process that holds the locks of this program, or of this worker thread, and what it says.
"use strict";

const { spawn } = require("node:child_process");

// A longer request gets a server of its own: one above 1 MiB is refused without its id.
const LONGEST_SHARED = 1 << 16;

const finals = new Set(["failed", "released", "lost", "result"]);

function endOf(child) {
  return child.signalCode ? `was killed by ${child.signalCode}` : `exited with ${child.exitCode}`;
}

function parsed(line) {
  try {
    return JSON.parse(line);
  } catch {
    return null;
  }
}

/** A request for locks, from the beginning of the wait to the end of the hold. */
class Request {
  #server;
  #listener;
  isAwaited = true;
  isReleased = false;

  constructor(server, id, listener) {
    this.#server = server;
    this.id = id;
    this.#listener = listener;
  }

  /** Asks for the end of the hold, or of the wait. */
  release() {
    if (this.isReleased) return;
    this.isReleased = true;
    this.#server.release(this);
  }

  tell(event) {
    this.#listener.told(event);
  }

  end(how) {
    this.#listener.ended(how);
  }
}

/**
 * A process `onehold hold --serve`. A listener is told the events of its request by `told(event)`; if the process ends
 * before the last one, by `ended({ how, notStarted, code, hasAnswered })`.
 */
class Server {
  #child;
  #requests = new Map();
  #awaited = 0;
  #lastId = 0;
  #rest = "";
  #hasAnswered = false;
  #isRetired = false;
  #how = null;
  #onEnd;

  constructor(program, identity, onEnd) {
    this.identity = identity;
    this.#onEnd = onEnd;
    // In a session of its own: a signal to the process group, as by Ctrl-C, is for this program to handle, which still
    // needs its locks while it cleans up.
    const words = ["hold", "--serve", `--die-with=${process.pid}`];
    const child = (this.#child = spawn(program, words, { stdio: ["pipe", "pipe", "inherit"], detached: true }));
    child.on("error", (notStarted) => child.pid === undefined && this.#end({ notStarted }));
    if (!child.stdin) return; // not started for want of descriptors: the error follows
    child.stdin.on("error", () => {}); // the end of stdout says why it does not read
    child.stdout.setEncoding("utf8").on("data", (text) => this.#read(text));
    child.once("close", () => this.#end({ how: this.#how ?? endOf(child), code: child.exitCode }));
  }

  ask(asked, listener) {
    const request = new Request(this, ++this.#lastId, listener);
    this.#requests.set(request.id, request);
    if (++this.#awaited === 1) this.#keepProgramRunning(true);
    this.#send(`{"id":${request.id},${asked}}\n`);
    return request;
  }

  release(request) {
    if (!this.#requests.has(request.id)) return;
    this.#await(request, true);
    this.#send(`{"id":${request.id},"command":"release"}\n`);
  }

  /** Ends once nothing is held by it. */
  retire() {
    this.#isRetired = true;
    if (this.#requests.size === 0) this.#child.stdin?.end();
  }

  #send(line) {
    this.#child.stdin?.write(line);
  }

  // A lock that is held does not keep a program running that is done. A wait and a release do.
  #await(request, isAwaited) {
    if (request.isAwaited === isAwaited) return;
    request.isAwaited = isAwaited;
    this.#awaited += isAwaited ? 1 : -1;
    if (this.#awaited === Number(isAwaited)) this.#keepProgramRunning(isAwaited);
  }

  #keepProgramRunning(keeps) {
    for (const handle of [this.#child, this.#child.stdin, this.#child.stdout]) keeps ? handle?.ref() : handle?.unref();
  }

  #read(text) {
    if (this.#how) return;
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop();
    for (const line of lines) {
      const event = parsed(line);
      if (typeof event?.event !== "string") {
        // It is no onehold. It may print for ever, and ignore that its stdin ends.
        this.#how = "printed no JSON";
        this.#child.kill("SIGKILL");
        return;
      }
      this.#tell(event);
    }
  }

  #tell(event) {
    this.#hasAnswered = true;
    const [only] = this.#requests.values();
    const request = event.id === null && this.#requests.size === 1 ? only : this.#requests.get(event.id);
    if (!request) return;
    if (finals.has(event.event)) {
      this.#requests.delete(request.id);
      this.#await(request, false);
    } else if (event.event === "held" && !request.isReleased) {
      this.#await(request, false);
    }
    request.tell(event);
    if (this.#isRetired) this.retire();
  }

  #end(end) {
    this.#onEnd?.();
    const hasAnswered = this.#hasAnswered;
    for (const request of this.#requests.values()) request.end({ ...end, hasAnswered });
    this.#requests.clear();
  }
}

const servers = new Map();

// What a process inherits when it is started, and `onehold` looks at.
function identity() {
  return { uid: process.geteuid?.(), gid: process.getegid?.(), environment: Object.entries(process.env) };
}

// Whether it is the same now. Each look at a variable takes time, and this is asked for each lock.
function isCurrent({ uid, gid, environment }) {
  if (uid !== process.geteuid?.() || gid !== process.getegid?.()) return false;
  const { env } = process;
  for (const [name, value] of environment) if (env[name] !== value) return false;
  return Object.keys(env).length === environment.length;
}

/** Asks the server of this program: the one that runs, or a new one. `asked`: the members of a JSON object. */
function ask(program, asked, listener) {
  if (asked.length > LONGEST_SHARED) {
    const alone = new Server(program, null, null);
    const request = alone.ask(asked, listener);
    alone.retire();
    return request;
  }
  let server = servers.get(program);
  if (!server || !isCurrent(server.identity)) {
    server?.retire();
    const started = (server = new Server(program, identity(), () => {
      if (servers.get(program) === started) servers.delete(program);
    }));
    servers.set(program, started);
  }
  return server.ask(asked, listener);
}

module.exports = { ask };

// CommonJS for `import`, too: with a second copy as a module there would be two classes `Locked`.
"use strict";

const { spawn } = require("node:child_process");
const { resolve: absolute } = require("node:path");
const { createInterface } = require("node:readline");

class LockError extends Error {
  constructor(code, message, { holder = null, cause } = {}) {
    super(message, cause && { cause });
    this.name = new.target.name;
    this.code = code;
    // Not shown with the stack: it has more than 40 keys.
    Object.defineProperty(this, "holder", { value: holder });
    this.host = holder?.hostname ?? null;
    this.since = holder?.acquired_at ? new Date(holder.acquired_at) : null;
  }
}

class Locked extends LockError {}
class TimedOut extends LockError {}
class NotFound extends LockError {}

class Lost extends LockError {
  constructor(code, message, { reason, ...rest }) {
    super(code, message, rest);
    this.reason = reason;
  }
}

function duration(value) {
  if (typeof value === "number" && value >= 0 && value < Infinity) return `${Math.ceil(value)}ms`;
  // A number without a unit would be seconds to the program and milliseconds to Node.
  if (typeof value === "string" && /[a-z]/.test(value)) return value;
  throw new TypeError(`expected milliseconds or a string with a unit, such as "5m", not \`${value}\``);
}

function wait(value) {
  return value === Infinity ? "forever" : duration(value);
}

function text(value) {
  if (typeof value === "string") return value;
  throw new TypeError(`expected a string, not \`${value}\``);
}

function number(value) {
  if (typeof value === "number") return String(value);
  throw new TypeError(`expected a number, not \`${value}\``);
}

function yes(value) {
  if (value === true) return null;
  throw new TypeError(`expected a boolean, not \`${value}\``);
}

const store = { dir: ["--dir", text] };
const waiting = {
  ...store,
  wait: ["--wait", wait],
  maxWaiting: ["--max-waiting", number],
  keepPlace: ["--keep-place", duration],
  shared: ["--shared", yes],
  slots: ["--slots", number],
  ttl: ["--ttl", duration],
  maxAge: ["--max-age", duration],
  owner: ["--owner", text],
  message: ["--message", text],
};

// The words of the command line for `options`, of which `flags` has those that are for the program.
function wordsOf(flags, others, options) {
  const words = [];
  for (const [name, value] of Object.entries(options)) {
    if (!(name in flags) && !others.includes(name)) throw new TypeError(`unknown option \`${name}\``);
    if (!(name in flags) || value === undefined || value === null || value === false) continue;
    const [flag, convert] = flags[name];
    try {
      const converted = convert(value);
      words.push(converted === null ? flag : `${flag}=${converted}`);
    } catch (error) {
      throw new TypeError(`invalid option \`${name}\`: ${error.message}`);
    }
  }
  return words;
}

function namesOf(names) {
  const list = Array.isArray(names) ? names : [names];
  if (list.length === 0 || !list.every((name) => typeof name === "string")) {
    throw new TypeError("expected the name of a lock, or an array of names");
  }
  // Not always: `acquire` takes what follows `--` for a command, unless it begins with a hyphen.
  return list.some((name) => name.startsWith("-")) ? ["--", ...list] : list;
}

function quoted(names) {
  return [names].flat().map((name) => `\`${name}\``).join(", ");
}

// Found once: without descriptors left, it would not be found later.
const installedProgram = (() => {
  try {
    return require.resolve(`@onehold/${process.platform}-${process.arch}/bin/onehold`);
  } catch (error) {
    if (error.code !== "MODULE_NOT_FOUND") throw error;
    return "onehold";
  }
})();

function programPath() {
  return installedProgram;
}

function notStarted(program, cause) {
  if (cause.code !== "ENOENT") {
    return new LockError("PROGRAM_NOT_STARTED", `start \`${program}\`: ${cause.message}`, { cause });
  }
  const advice = `install @onehold/${process.platform}-${process.arch}, put onehold on PATH, or set the option \`program\``;
  return new NotFound("PROGRAM_NOT_FOUND", `start \`${program}\`: no such program; ${advice}`, { cause });
}

function failure({ status, message, lock, error }) {
  const Failure = { blocked: Locked, "zombie-detected": Locked, timeout: TimedOut }[status] ?? LockError;
  return new Failure(error.code, message, { holder: lock });
}

function parsed(line) {
  try {
    return JSON.parse(line);
  } catch {
    return null;
  }
}

// Why a hold has ended, where the program says it with one word.
const causes = {
  signal: "the process that held it got a signal",
  stdin: "the pipe to the process that held it was closed",
};

function endOf(child) {
  return child.signalCode ? `was killed by ${child.signalCode}` : `exited with ${child.exitCode}`;
}

class Hold {
  #child;
  #end;
  #release;

  constructor(child, end, held) {
    this.number = held.hold;
    this.slot = held.slot;
    this.slots = held.slots;
    this.file = held.file;
    this.displaced = held.displaced;
    this.#child = child;
    this.#end = end;
    this.lost = new Promise((resolve) => end.then((loss) => loss && resolve(loss)));
  }

  release() {
    this.#release ??= this.#close();
    return this.#release;
  }

  [Symbol.asyncDispose ?? Symbol.for("nodejs.asyncDispose")]() {
    return this.release();
  }

  async #close() {
    this.#child.ref();
    this.#child.stdout.ref();
    this.#child.stdin.end();
    const loss = await this.#end;
    if (loss) throw new Lost("LOST", loss.message, loss);
  }
}

// Errors are made in async functions, after an `await`, so that their stacks lead to the caller.
async function lock(names, options = {}) {
  const { program = installedProgram, signal, onWaiting } = options;
  const words = [...wordsOf(waiting, ["program", "signal", "onWaiting"], options), ...namesOf(names)];
  signal?.throwIfAborted();
  const outcome = await new Promise((resolve) => {
    // In a session of its own: a signal to the process group, as by Ctrl-C, is for the caller to handle, who still
    // needs the lock while it cleans up. If the caller dies, the pipe ends.
    const child = spawn(program, ["hold", "--json", ...words], { stdio: ["pipe", "pipe", "inherit"], detached: true });
    let ended;
    const end = new Promise((resolveEnd) => (ended = resolveEnd));
    let failed = null;
    const giveUp = (error) => {
      failed ??= { error };
      child.kill();
    };
    const abort = () => giveUp(signal.reason);
    signal?.addEventListener("abort", abort);
    const settle = (value) => {
      signal?.removeEventListener("abort", abort);
      resolve(value);
    };
    const take = (event) => {
      switch (event.event) {
        case "waiting":
          onWaiting?.({ position: event.position, holder: event.holder });
          break;
        case "failed":
          failed ??= { answer: event };
          break;
        case "held":
          if (failed) break;
          // A lock that is held does not keep a program running that is done.
          for (const handle of [child, child.stdin, child.stdout]) handle.unref();
          settle({ hold: new Hold(child, end, event) });
          break;
        case "released":
        case "lost": {
          const { reason } = event;
          if (reason === "stdin" && child.stdin.writableEnded) return ended(null); // by `release`
          ended({ reason, message: event.message ?? `hold ${quoted(names)}: ${causes[reason] ?? reason}` });
        }
      }
    };
    child.once("error", (notStarted) => settle({ notStarted }));
    if (!child.stdin) return; // not started for want of descriptors: the error follows
    child.stdin.on("error", () => {}); // stdout says why the program does not read
    createInterface({ input: child.stdout }).on("line", (line) => {
      const event = parsed(line);
      if (!event) return giveUp(new LockError("PROGRAM_ENDED", `hold ${quoted(names)}: \`${program}\` printed no JSON`));
      try {
        take(event);
      } catch (error) {
        giveUp(error); // of `onWaiting`
      }
    });
    child.once("close", () => {
      const message = `hold ${quoted(names)}: \`${program}\` ${endOf(child)}`;
      ended({ reason: "killed", message });
      settle(failed ?? { message });
    });
  });
  if (outcome.hold) return outcome.hold;
  if (outcome.answer) throw failure(outcome.answer);
  if (outcome.notStarted) throw notStarted(program, outcome.notStarted);
  if (outcome.message) throw new LockError("PROGRAM_ENDED", outcome.message);
  throw outcome.error;
}

async function tryLock(names, options = {}) {
  if ("wait" in options) throw new TypeError("invalid option `wait`: tryLock does not wait");
  try {
    return await lock(names, { ...options, wait: 0 });
  } catch (error) {
    if (error instanceof Locked) return null;
    throw error;
  }
}

// The answer of a command that does not hold: one JSON object, whatever the exit status is.
async function answerOf(command, words, { program = installedProgram, signal }) {
  const child = spawn(program, [command, "--json", ...words], { stdio: ["ignore", "pipe", "inherit"] });
  const abort = () => child.kill();
  signal?.addEventListener("abort", abort);
  let output = "";
  child.stdout?.setEncoding("utf8").on("data", (text) => (output += text));
  const error = await new Promise((resolve) => child.once("error", resolve).once("close", () => resolve(null)));
  signal?.removeEventListener("abort", abort);
  if (error) throw notStarted(program, error);
  const answer = parsed(output);
  if (answer) return answer;
  if (signal?.aborted) throw signal.reason;
  throw new LockError("PROGRAM_ENDED", `${command}: \`${program}\` ${endOf(child)}`);
}

class Lease {
  #name;
  #options;
  #release;

  constructor(answer, { dir, program }) {
    const { lock } = answer;
    this.number = answer.hold;
    this.slot = lock.slot;
    this.names = lock.names;
    this.owner = lock.owner;
    this.expiresAt = new Date(lock.expires_at);
    this.displaced = answer.displaced ?? null;
    // Neither depends on the current directory, which may change.
    this.#name = /^\.{0,2}\//.test(lock.name) ? lock.path : lock.name;
    this.#options = { dir: lock.store.startsWith("/") ? lock.store : dir, program };
  }

  async renew({ ttl } = {}) {
    const answer = await this.#run("renew", { ttl });
    this.expiresAt = new Date(answer.lock.expires_at);
  }

  release() {
    this.#release ??= this.#end();
    return this.#release;
  }

  [Symbol.asyncDispose ?? Symbol.for("nodejs.asyncDispose")]() {
    return this.release();
  }

  async #end() {
    try {
      const { lock } = await this.#run("release", {});
      if (lock?.state === "held") return;
      const message = `release ${quoted(this.names)}: the lease has expired`;
      throw new Lost("NOT_HELD", message, { reason: "expired", holder: lock });
    } catch (error) {
      this.#release = null; // a store that did not answer may do so later
      throw error;
    }
  }

  async #run(command, options) {
    const { dir } = this.#options;
    const words = [`--hold=${this.number}`, ...wordsOf(waiting, [], { dir, ...options }), ...namesOf(this.#name)];
    const answer = await answerOf(command, words, this.#options);
    if (answer.success) return answer;
    const { code } = answer.error;
    if (code !== "NOT_HELD" && code !== "NOT_OWNER") throw failure(answer);
    throw new Lost(code, answer.message, { reason: "expired", holder: answer.lock });
  }
}

async function acquire(names, options) {
  if (!options?.ttl) throw new TypeError("missing option `ttl`: a lease ends when it expires");
  const { signal } = options;
  const words = [...wordsOf(waiting, ["program", "signal"], options), ...namesOf(names)];
  signal?.throwIfAborted();
  const program = options.program?.includes("/") ? absolute(options.program) : options.program;
  const answer = await answerOf("acquire", words, { program, signal });
  if (!answer.success && !signal?.aborted) throw failure(answer);
  const lease = answer.success ? new Lease(answer, { ...options, program }) : null;
  if (!signal?.aborted) return lease;
  await lease?.release().catch((error) => {
    if (!(error instanceof Lost)) throw error;
  });
  throw signal.reason;
}

async function check(name, options = {}) {
  const answer = await answerOf("check", [...wordsOf(store, ["program"], options), ...namesOf(name)], options);
  if (!answer.success) throw failure(answer);
  return answer.lock;
}

module.exports = { lock, tryLock, acquire, check, programPath, LockError, Locked, TimedOut, Lost, NotFound };

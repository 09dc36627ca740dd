// CommonJS for `import`, too: with a second copy as a module there would be two classes `Locked`.
"use strict";

const { AsyncLocalStorage } = require("node:async_hooks");
const { resolve: absolute } = require("node:path");
const { ask } = require("./server.js");

class LockError extends Error {
  constructor(code, message, { holder = null, cause } = {}) {
    super(message, cause && { cause });
    this.name = new.target.name;
    this.code = code;
    // Not shown with the stack: it has more than 40 keys.
    Object.defineProperty(this, "holder", { value: holder });
    this.host = holder?.hostname ?? null;
    // Of the program, not of the `onehold` that holds the lock for it.
    this.pid = holder?.program?.pid ?? holder?.pid ?? null;
    this.since = holder?.acquired_at ? new Date(holder.acquired_at) : null;
  }
}

class Locked extends LockError {}
class TimedOut extends Locked {}
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
  if (value === true) return true;
  throw new TypeError(`expected a boolean, not \`${value}\``);
}

const store = {
  dir: ["dir", text],
  directory: ["dir", text],
  profile: ["profile", text],
  format: ["format", text],
};
const leased = { ...store, hold: ["hold", number], ttl: ["ttl", duration] };
const waiting = {
  ...store,
  wait: ["wait", wait],
  maxWaiting: ["max-waiting", number],
  keepPlace: ["keep-place", duration],
  shared: ["shared", yes],
  slots: ["slots", number],
  ttl: ["ttl", duration],
  maxAge: ["max-age", duration],
  owner: ["owner", text],
  message: ["message", text],
};

// The options of the program, each with its value or true, for `options`, of which `flags` has those that are for it.
function optionsOf(flags, others, options) {
  const converted = [];
  for (const [name, value] of Object.entries(options)) {
    if (!(name in flags) && !others.includes(name)) throw new TypeError(`unknown option \`${name}\``);
    if (!(name in flags) || value === undefined || value === null || value === false) continue;
    const [flag, convert] = flags[name];
    try {
      converted.push([flag, convert(value)]);
    } catch (error) {
      throw new TypeError(`invalid option \`${name}\`: ${error.message}`);
    }
  }
  return converted;
}

const isPath = /^\.{0,2}\//;
const isAbsolute = /^\/|:\/\//;

// The members of the JSON object that asks for something, without its ID.
function requestOf(command, names, flags, others, options, callers) {
  // The caller first: what follows is then often the same as in the request before, which is answered faster.
  const request = { caller: callers?.length === 1 ? callers[0] : callers, command, names: listOf(names) };
  for (const [flag, value] of optionsOf(flags, others, options)) {
    request[flag.replaceAll("-", "_")] = value;
  }
  const { dir = "/", profile = process.env.ONEHOLD_PROFILE } = request;
  const isRelative = profile !== undefined || !isAbsolute.test(dir) || request.names.some((name) => isPath.test(name));
  if (isRelative) request.cwd = process.cwd();
  const members = JSON.stringify(request).slice(1, -1);
  // No text has half of a character, as those of a command line have none.
  return members.includes("\\ud") ? JSON.stringify(request, wellFormed).slice(1, -1) : members;
}

function wellFormed(_, value) {
  return typeof value === "string" ? value.replace(/\p{Surrogate}/gu, "\ufffd") : value;
}

function listOf(names) {
  const list = Array.isArray(names) ? names : [names];
  if (list.length === 0 || !list.every((name) => typeof name === "string")) {
    throw new TypeError("expected the name of a lock, or an array of names");
  }
  return list;
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

// Why a hold has ended, where the program says it with one word.
const causes = {
  signal: "the process that held it got a signal",
  stdin: "the pipe to the process that held it was closed",
};

class Hold {
  #request;
  #end;
  #release;

  constructor(request, end, held) {
    this.number = held.hold;
    this.slot = held.slot;
    this.slots = held.slots;
    this.file = held.file;
    this.displaced = held.displaced;
    this.#request = request;
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
    this.#request.release();
    const loss = await this.#end;
    if (loss) throw new Lost("LOST", loss.message, loss);
  }
}

// Asks once. Resolves with what has come of it: a hold, or why there is none.
function attempt(program, asked, names, { signal, onWaiting }) {
  return new Promise((resolve) => {
    let ended;
    const end = new Promise((resolveEnd) => (ended = resolveEnd));
    let failed = null;
    let hasWaited = false;
    const giveUp = (error) => {
      failed ??= { error };
      request.release();
    };
    const abort = () => giveUp(signal.reason);
    signal?.addEventListener("abort", abort);
    const settle = (outcome) => {
      signal?.removeEventListener("abort", abort);
      resolve(outcome);
    };
    const told = (event) => {
      switch (event.event) {
        case "waiting":
          hasWaited = true;
          try {
            if (!failed) onWaiting?.({ position: event.position, holder: event.holder });
          } catch (error) {
            giveUp(error);
          }
          break;
        case "failed":
          settle(failed ?? { answer: event });
          ended(null); // if it was held, the release found it gone
          break;
        case "held":
          // If it was given up, it is released now.
          if (!failed) settle({ hold: new Hold(request, end, event) });
          break;
        case "released":
        case "lost": {
          const { reason } = event;
          if (failed) settle(failed);
          if (event.event === "released" && reason === "request") return ended(null);
          ended({ reason, message: event.message ?? `hold ${quoted(names)}: ${causes[reason] ?? reason}` });
        }
      }
    };
    const request = ask(program, asked, {
      told,
      ended({ how, notStarted, hasAnswered }) {
        const message = `hold ${quoted(names)}: \`${program}\` ${how}`;
        ended({ reason: "killed", message });
        // A server that was about to end when it was asked has not seen the request.
        settle(failed ?? { notStarted, message, again: hasAnswered && !hasWaited });
      },
    });
  });
}

function fixed(program) {
  return program.includes("/") ? absolute(program) : program;
}

// The callers that hold locks around the code that runs, by `withLock`, the outermost first.
const within = new AsyncLocalStorage();
let lastCaller = 0;

function callersHere() {
  return [...(within.getStore() ?? []), ++lastCaller];
}

// Errors are made in async functions, after an `await`, so that their stacks lead to the caller.
async function take(names, options, callers) {
  const asked = requestOf("hold", names, waiting, ["program", "signal", "onWaiting"], options, callers);
  const program = fixed(options.program ?? installedProgram);
  let outcome;
  do {
    options.signal?.throwIfAborted();
    outcome = await attempt(program, asked, names, options);
  } while (outcome.again);
  if (outcome.hold) return outcome.hold;
  if (outcome.answer) throw failure(outcome.answer);
  if (outcome.notStarted) throw notStarted(program, outcome.notStarted);
  if (outcome.message) throw new LockError("PROGRAM_ENDED", outcome.message);
  throw outcome.error;
}

async function lock(names, options = {}) {
  return take(names, options, callersHere());
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

async function withLock(names, options, work) {
  if (typeof options === "function") [options, work] = [{}, options];
  if (typeof work !== "function") throw new TypeError(`expected a function to call under the lock, not \`${work}\``);
  const callers = callersHere();
  const hold = await take(names, options, callers);
  let result;
  try {
    result = await within.run(callers, work, hold);
  } catch (error) {
    await hold.release().catch((lost) => {
      // It is not to hide what `work` has thrown.
      if (error instanceof Error && error.cause === undefined && Object.isExtensible(error)) error.cause = lost;
    });
    throw error;
  }
  await hold.release();
  return result;
}

// Asks once for what holds nothing while it is answered. Resolves with the answer, of a failure too, or why there is
// none.
function question(program, asked, signal) {
  return new Promise((resolve) => {
    const abort = () => request.release();
    const settle = (outcome) => {
      signal?.removeEventListener("abort", abort);
      resolve(outcome);
    };
    const request = ask(program, asked, {
      told: (event) => event.event !== "waiting" && settle({ answer: event }),
      ended: settle,
    });
    signal?.addEventListener("abort", abort);
  });
}

async function answerOf(command, asked, { program = installedProgram, signal }) {
  for (;;) {
    const { answer, how, notStarted: error, code, hasAnswered } = await question(program, asked, signal);
    if (answer) return answer;
    if (error) throw notStarted(program, error);
    if (signal?.aborted) throw signal.reason;
    // One that was killed may have done it already. One that has ended by itself has answered what it has done.
    const mayRepeat = hasAnswered && (code === 0 || command === "check" || command === "renew");
    if (!mayRepeat) throw new LockError("PROGRAM_ENDED", `${command}: \`${program}\` ${how}`);
  }
}

class Lease {
  #name;
  #options;
  #release;

  constructor(answer, { dir, directory, program }) {
    const { lock } = answer;
    this.number = answer.hold;
    this.slot = lock.slot;
    this.names = lock.names;
    this.owner = lock.owner;
    this.expiresAt = new Date(lock.expires_at);
    this.displaced = answer.displaced ?? null;
    // Neither depends on the current directory, which may change.
    this.#name = isPath.test(lock.name) ? lock.path : lock.name;
    this.#options = { dir: lock.store.startsWith("/") ? lock.store : dir ?? directory, program };
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
    const asked = requestOf(command, this.#name, leased, [], { dir, hold: this.number, ...options });
    const answer = await answerOf(command, asked, this.#options);
    if (answer.success) return answer;
    const { code } = answer.error;
    if (code !== "NOT_HELD" && code !== "NOT_OWNER") throw failure(answer);
    throw new Lost(code, answer.message, { reason: "expired", holder: answer.lock });
  }
}

async function acquire(names, options) {
  if (!options?.ttl) throw new TypeError("missing option `ttl`: a lease ends when it expires");
  const { signal } = options;
  const asked = requestOf("acquire", names, waiting, ["program", "signal"], options, callersHere());
  signal?.throwIfAborted();
  const program = options.program && fixed(options.program);
  const answer = await answerOf("acquire", asked, { program, signal });
  if (!answer.success && !signal?.aborted) throw failure(answer);
  const lease = answer.success ? new Lease(answer, { ...options, program }) : null;
  if (!signal?.aborted) return lease;
  // One that the owner had before stays.
  if (!answer.repeated) {
    await lease?.release().catch((error) => {
      if (!(error instanceof Lost)) throw error;
    });
  }
  throw signal.reason;
}

async function check(name, options = {}) {
  const asked = requestOf("check", name, store, ["program"], options);
  const program = options.program && fixed(options.program);
  const answer = await answerOf("check", asked, { program });
  if (!answer.success) throw failure(answer);
  return answer.lock;
}

module.exports = { lock, tryLock, withLock, acquire, check, programPath, LockError, Locked, TimedOut, Lost, NotFound };

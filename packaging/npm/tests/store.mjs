// A store of its own for a test, and the programs that use it.
import { execFile, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { check, programPath } from "onehold";

export function newDirectory(t) {
  const directory = mkdtempSync(join(tmpdir(), "onehold-npm-"));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  return directory;
}

/** Runs a program to its end. Whatever its exit status is, that resolves. */
export function run(program, words, options = {}) {
  return new Promise((resolve) => {
    const child = execFile(program, words, options, (error, stdout, stderr) => {
      resolve({ code: child.exitCode, signal: child.signalCode, stdout, stderr });
    });
  });
}

export const onehold = (dir, ...words) => run(programPath(), ["--dir", dir, ...words]);

/** A script as a process: `next()` is its next line. It is killed when the test ends. */
export function startScript(t, source, { words = [], ...options } = {}) {
  const node = ["--input-type=module", "-e", source, "--", ...words];
  const child = spawn(process.execPath, node, { stdio: ["pipe", "pipe", "inherit"], ...options });
  const closed = new Promise((resolve) => child.once("close", (code, signal) => resolve(code ?? signal)));
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  t.after(() => child.kill("SIGKILL"));
  return { pid: child.pid, kill: (signal) => child.kill(signal), closed, next: async () => (await lines.next()).value };
}

export async function until(condition) {
  const deadline = Date.now() + 20_000;
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`still waiting for: ${condition}`);
    await sleep(5);
  }
}

/** The shortest of up to five rounds, each in milliseconds: a busy machine delays any single one. */
export async function quickest(millisecondsOfARound, limit = 300) {
  let best = Infinity;
  for (let round = 0; round < 5 && best >= limit; round++) best = Math.min(best, await millisecondsOfARound());
  return best;
}

/** What `promise` resolves with. Unlike `hold.lost`, the timer keeps the process running. */
export async function soon(promise) {
  let timer;
  const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error("nothing in 20 s")), 20_000)));
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

export const waiters = async (name, dir) => (await check(name, { dir })).waiters.length;

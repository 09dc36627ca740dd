import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { Worker } from "node:worker_threads";
import { lock, tryLock } from "onehold";
import { newDirectory, quickest, soon, startScript, until, waiters } from "./store.mjs";

const held = `
  import { lock } from "onehold";
  const dir = process.argv.at(-1);
  const hold = await lock("a", { dir });
  process.stdin.resume();
`;

/** Somebody who waits already gets the lock after `end`, and that many milliseconds later. */
async function freed(dir, end) {
  const next = lock("a", { dir, wait: "20s" });
  await until(async () => (await waiters("a", dir)) === 1);
  const began = performance.now();
  await end();
  const hold = await next;
  const took = performance.now() - began;
  await hold.release();
  return took;
}

test("a process that is killed frees its lock", async (t) => {
  const dir = newDirectory(t);
  const took = await quickest(async () => {
    const script = startScript(t, `${held} console.log("held");`, { words: [dir] });
    assert.equal(await script.next(), "held");
    return freed(dir, () => script.kill("SIGKILL"));
  });
  t.diagnostic(`free after ${took.toFixed(1)} ms`);
  assert.ok(took < 300, `free after ${took} ms`);
});

test("process.exit frees a lock", async (t) => {
  const dir = newDirectory(t);
  const script = startScript(t, `${held} process.on("SIGTERM", () => process.exit(3)); console.log("held");`, { words: [dir] });
  assert.equal(await script.next(), "held");
  await freed(dir, () => script.kill("SIGTERM"));
  assert.equal(await script.closed, 3);
});

test("a lock alone keeps no program running", async (t) => {
  const dir = newDirectory(t);
  const source = 'import { lock } from "onehold"; (await lock("a", { dir: process.argv.at(-1) })).lost.then(console.log); console.log("done");';
  const script = startScript(t, source, { words: [dir] });
  assert.equal(await script.next(), "done");
  assert.equal(await soon(script.closed), 0);
  await (await lock("a", { dir, wait: "20s" })).release();
});

test("a release that is awaited keeps the program running until the lock is free", async (t) => {
  const dir = newDirectory(t);
  const source = 'import { lock, tryLock } from "onehold"; const dir = process.argv.at(-1); for (let i = 0; i < 3; i++) await (await lock("a", { dir })).release(); console.log("done");';
  const script = startScript(t, source, { words: [dir] });
  assert.deepEqual([await script.next(), await script.closed], ["done", 0]);
  await (await tryLock("a", { dir })).release();
});

for (const [start, ready] of [
  ['fork("programs/idle.mjs", { detached: true, execArgv: [] })', "message"],
  ['spawn("sleep", ["60"], { detached: true, stdio: "ignore" })', "spawn"],
]) {
  test(`a child of ${start.split("(")[0]} that outlives the program does not keep the lock`, async (t) => {
    const dir = newDirectory(t);
    const source = `import { fork, spawn } from "node:child_process"; ${held} const child = ${start}; child.once("${ready}", () => console.log(child.pid));`;
    const script = startScript(t, source, { words: [dir] });
    const child = Number(await script.next());
    t.after(() => process.kill(child, "SIGKILL"));
    await freed(dir, () => script.kill("SIGKILL"));
    assert.doesNotMatch(readFileSync(`/proc/${child}/stat`, "utf8"), /\) [ZX] /);
  });
}

test("a worker that is terminated frees its lock", async (t) => {
  const dir = newDirectory(t);
  const worker = new Worker(new URL("programs/worker.mjs", import.meta.url), { workerData: { dir, times: 0 } });
  await new Promise((resolve) => worker.once("message", resolve));
  assert.equal(await tryLock("workers", { dir }), null);
  await worker.terminate();
  await (await lock("workers", { dir, wait: "20s" })).release();
});

test("a signal to the process group leaves the lock to the program", async (t) => {
  const dir = newDirectory(t);
  const source = `${held}
    for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => console.log(signal));
    process.on("SIGUSR2", async () => { await hold.release(); console.log("released"); process.exit(); });
    console.log("held");
  `;
  const script = startScript(t, source, { words: [dir], detached: true });
  assert.equal(await script.next(), "held");
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) {
    process.kill(-script.pid, signal);
    assert.equal(await script.next(), signal);
  }
  assert.equal(await tryLock("a", { dir }), null);
  script.kill("SIGUSR2");
  assert.equal(await script.next(), "released");
});

test("a process that is killed while it waits leaves the queue", async (t) => {
  const dir = newDirectory(t);
  const hold = await lock("a", { dir });
  const source = 'import { lock } from "onehold"; await lock("a", { dir: process.argv.at(-1), wait: "1m" });';
  const script = startScript(t, source, { words: [dir] });
  await until(async () => (await waiters("a", dir)) === 1);
  script.kill("SIGKILL");
  await until(async () => (await waiters("a", dir)) === 0);
  await hold.release();
});

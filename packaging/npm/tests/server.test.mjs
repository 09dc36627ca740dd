import assert from "node:assert/strict";
import { readdir } from "node:fs/promises";
import test from "node:test";
import { Worker } from "node:worker_threads";
import { check, lock, tryLock } from "onehold";
import { newDirectory, onehold, soon, startScript, until, waiters } from "./store.mjs";

const holder = async (name, dir) => (await check(name, { dir })).pid;

test("one process holds 500 locks", async (t) => {
  const dir = newDirectory(t);
  const names = Array.from({ length: 500 }, (_, index) => `n${index}`);
  const holds = await Promise.all(names.map((name) => lock(name, { dir })));
  const server = await holder("n0", dir);
  assert.equal(await holder("n499", dir), server);
  const open = (await readdir(`/proc/${server}/fd`)).length;
  assert.ok(open <= 520, `${open} descriptors`);
  await Promise.all(holds.map((hold) => hold.release()));
  for (const name of ["n0", "n250", "n499"]) assert.equal((await check(name, { dir })).state, "free");
});

test("after KILL of the server, each of 8 holds is lost, and the next lock has another server", async (t) => {
  const dir = newDirectory(t);
  const holds = await Promise.all(Array.from({ length: 8 }, (_, index) => lock(`n${index}`, { dir })));
  const server = await holder("n0", dir);
  process.kill(server, "SIGKILL");
  // Not told yet: the first request is asked again.
  const next = await lock("next", { dir });
  assert.notEqual(await holder("next", dir), server);
  for (const hold of holds) {
    assert.equal((await soon(hold.lost)).reason, "killed");
    await assert.rejects(hold.release(), { name: "Lost", reason: "killed" });
  }
  for (let index = 0; index < 8; index++) await (await tryLock(`n${index}`, { dir })).release();
  await next.release();
});

test("a break of one hold leaves the others of its program alone", async (t) => {
  const dir = newDirectory(t);
  const holds = await Promise.all(["a", "b", "c"].map((name) => lock(name, { dir })));
  await onehold(dir, "break", "--yes", "b");
  assert.equal((await soon(holds[1].lost)).reason, "broken");
  for (const name of ["a", "c"]) assert.equal(await tryLock(name, { dir }), null);
  await holds[0].release();
  await holds[2].release();
});

test("a changed environment and a changed directory are those of the next lock", async (t) => {
  const [one, two] = [newDirectory(t), newDirectory(t)];
  const source = `
    import { realpathSync } from "node:fs";
    import { lock } from "onehold";
    const [one, two] = process.argv.slice(-2);
    process.env.ONEHOLD_DIR = one;
    const first = await lock("a");
    process.env.ONEHOLD_DIR = two;
    const second = await lock("a");
    console.log(first.file.startsWith(one), second.file.startsWith(two));
    await first.release();
    await second.release();
    process.chdir(one);
    const third = await lock("./x.lock", { dir: "relative" });
    process.chdir(two);
    const fourth = await lock("b", { dir: "relative" });
    console.log(realpathSync(third.file) === realpathSync(one) + "/x.lock", realpathSync(fourth.file).startsWith(realpathSync(two) + "/relative/"));
    await third.release();
    await fourth.release();
    console.log("released");
  `;
  const script = startScript(t, source, { words: [one, two] });
  assert.deepEqual([await script.next(), await script.next(), await script.next()], ["true true", "true true", "released"]);
  assert.equal(await soon(script.closed), 0);
});

test("names that are long, not ASCII or half of a character", async (t) => {
  const dir = newDirectory(t);
  for (const name of ["größe/größe", "\ud83d\ude00", "a\ud83db"]) await (await lock(name, { dir })).release();
  const many = Array.from({ length: 20_000 }, (_, index) => `n${index}`);
  await assert.rejects(lock(["x", "x".repeat(5000)], { dir }), { code: "USAGE" });
  const other = await lock("other", { dir });
  await assert.rejects(lock([...many, ""], { dir }), { code: "USAGE" });
  await assert.rejects(lock("y".repeat(1 << 21), { dir }), { name: "LockError" });
  assert.equal(await tryLock("other", { dir }), null);
  await other.release();
});

test("a server is its worker's alone", async (t) => {
  const dir = newDirectory(t);
  const hold = await lock("mine", { dir });
  const worker = new Worker(new URL("programs/worker.mjs", import.meta.url), { workerData: { dir, times: 0 } });
  await new Promise((resolve) => worker.once("message", resolve));
  assert.notEqual(await holder("workers", dir), await holder("mine", dir));
  const next = lock("workers", { dir, wait: "20s" });
  await until(async () => (await waiters("workers", dir)) === 1);
  await worker.terminate();
  await (await next).release();
  assert.equal(await tryLock("mine", { dir }), null);
  await hold.release();
});
